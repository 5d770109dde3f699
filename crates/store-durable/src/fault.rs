//! What can go wrong below the ops, and what it is to callers.

use larder_core::{Error, ErrorKind};

/// A fault below the ops: in the engine, on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) harm: Harm,
    pub(crate) detail: String,
}

/// Which kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Stored bytes are not what was written.
    Corrupt,
    /// The disk has no room.
    Full,
    /// Reading or writing failed, or was refused.
    Unavailable,
}

impl Fault {
    pub(crate) fn corrupt(detail: impl Into<String>) -> Fault {
        Fault { harm: Harm::Corrupt, detail: detail.into() }
    }

    /// No cas token is left to give out.
    pub(crate) fn no_token() -> Fault {
        let detail = "no cas token is left: an earlier version counted on from tokens that clients had chosen; restore a backup into another folder, which counts anew";
        Fault { harm: Harm::Unavailable, detail: detail.to_owned() }
    }

    /// Of an input or output that failed.
    pub(crate) fn io(what: &str, error: std::io::Error) -> Fault {
        use std::io::ErrorKind as Io;
        let harm = match error.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => Harm::Full,
            Io::UnexpectedEof | Io::InvalidData | Io::NotFound => Harm::Corrupt,
            _ => Harm::Unavailable,
        };
        Fault { harm, detail: format!("{what}: {error}") }
    }

    /// As callers see it.
    pub(crate) fn error(&self, store: &str) -> Error {
        let kind = match self.harm {
            Harm::Corrupt => ErrorKind::Corrupt,
            Harm::Full => ErrorKind::Full,
            Harm::Unavailable => ErrorKind::Unavailable,
        };
        Error::new(kind, self.detail.clone()).store(store)
    }
}
