//! The calls by which a program changes files, as Linux numbers them on x86-64, and the filter that has the tracer see them and no others.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// A call that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sys {
    Write,
    WriteAt,
    WriteMany,
    Sync,
    /// `sync_file_range`, of which it is only followed what it says: whether a write of the file has failed that this descriptor was not told of.
    Told,
    SetLen,
    Open,
    /// `rename`, `renameat`, `renameat2`: in which arguments the two paths are, and whether folders stand before them.
    Rename {
        at: bool,
    },
    Unlink {
        at: bool,
    },
    MakeDir {
        at: bool,
    },
    RemoveDir,
    /// A way to change files that is not followed: nothing would be proved of a program that takes it.
    Strange,
}

/// The numbers.
const NUMBERS: &[(i64, Sys)] = &[
    (1, Sys::Write),
    (18, Sys::WriteAt),
    (20, Sys::WriteMany),
    (74, Sys::Sync),
    (75, Sys::Sync),
    (277, Sys::Told),
    (77, Sys::SetLen),
    (257, Sys::Open),
    (82, Sys::Rename { at: false }),
    (264, Sys::Rename { at: true }),
    (316, Sys::Rename { at: true }),
    (87, Sys::Unlink { at: false }),
    (263, Sys::Unlink { at: true }),
    (83, Sys::MakeDir { at: false }),
    (258, Sys::MakeDir { at: true }),
    (84, Sys::RemoveDir),
    (2, Sys::Strange),   // open
    (9, Sys::Strange),   // mmap of a file, shared and for writing
    (26, Sys::Strange),  // msync
    (40, Sys::Strange),  // sendfile
    (76, Sys::Strange),  // truncate
    (85, Sys::Strange),  // creat
    (86, Sys::Strange),  // link
    (88, Sys::Strange),  // symlink
    (265, Sys::Strange), // linkat
    (266, Sys::Strange), // symlinkat
    (275, Sys::Strange), // splice
    (285, Sys::Strange), // fallocate
    (296, Sys::Strange), // pwritev
    (326, Sys::Strange), // copy_file_range
    (328, Sys::Strange), // pwritev2
    (425, Sys::Strange), // io_uring_setup
    (437, Sys::Strange), // openat2
];

/// Of `open`'s flags: the file is made, or emptied.
pub(super) const CREATES: u64 = 0o100;
pub(super) const EMPTIES: u64 = 0o1000;

/// Which call has this number.
pub(super) fn named(number: u64) -> Option<Sys> {
    NUMBERS.iter().find(|(it, _)| *it as u64 == number).map(|(_, sys)| *sys)
}

/// A filter that hands these calls to the tracer and lets all others pass.
pub(super) fn filter() -> seccompiler::Result<BpfProgram> {
    let bits = |arg, bits| SeccompCondition::new(arg, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), bits);
    let opens = |arg| {
        let rule = |flag| bits(arg, flag).and_then(|condition| SeccompRule::new(vec![condition]));
        Ok(vec![rule(CREATES)?, rule(EMPTIES)?])
    };
    let mut rules = std::collections::BTreeMap::new();
    for (number, _) in NUMBERS {
        let of_call = match number {
            2 => opens(1),
            257 => opens(2),
            // PROT_WRITE, MAP_SHARED, and not MAP_ANONYMOUS.
            9 => {
                let is_file = SeccompCondition::new(3, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0x21), 1)?;
                SeccompRule::new(vec![bits(2, 2)?, is_file]).map(|rule| vec![rule])
            }
            _ => Ok(Vec::new()),
        };
        rules.insert(*number, of_call?);
    }
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Trace(0), TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}
