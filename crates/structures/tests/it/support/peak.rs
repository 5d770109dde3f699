//! How much memory this process took at the most: tests run in processes of their own.

use std::fs;

/// Begins anew: what was taken before does not count.
pub(crate) fn reset() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// The most since then, in bytes.
pub(crate) fn bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}
