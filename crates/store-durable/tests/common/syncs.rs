//! A disk that fails. The server's tests have it, too.

/// From here on the system refuses to sync, as a disk does that fails.
pub(crate) fn refuse_syncs() {
    use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
    // The numbers of the calls, by architecture.
    let (syncs, arch) =
        if cfg!(target_arch = "aarch64") { ([82, 83], TargetArch::aarch64) } else { ([74, 75], TargetArch::x86_64) };
    let rules = syncs.into_iter().map(|call| (call, Vec::new())).collect();
    let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(rustix::io::Errno::IO.raw_os_error() as u32));
    let filter = SeccompFilter::new(rules, allow, refuse, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}
