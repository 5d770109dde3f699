//! Errors: faults, as opposed to outcomes. Each says what is known of its effect.

use std::fmt;

use crate::key::Key;
use crate::op::Op;

/// The result of anything that can fail.
///
/// ```
/// fn length(key: &[u8]) -> larder_core::Result<usize> {
///     Ok(larder_core::Key::new(key.to_vec())?.as_bytes().len())
/// }
/// assert_eq!(length(b"k")?, 1);
/// # Ok::<(), larder_core::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault: what went wrong, what is known of the effect, and on which op, key and store.
///
/// One pointer wide, so that a `Result<Reply>` stays small.
///
/// ```
/// use larder_core::{Effect, Error, ErrorKind};
/// let error = Error::new(ErrorKind::Timeout, "no answer for 1 s").effect(Effect::Unknown).store("memcached://cache:11211");
/// assert!(error.is_unknown());
/// assert_eq!(error.to_string(), "timeout: no answer for 1 s (store memcached://cache:11211; it is unknown whether it took effect)");
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    op: Option<&'static str>,
    key: Option<Key>,
    store: Option<String>,
    detail: String,
    source: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>>,
}

/// What is known of the effect of an op that failed.
///
/// ```
/// use larder_core::{Effect, Error};
/// /// Whether to send the same again.
/// fn may_retry(error: &Error) -> bool {
///     error.known_effect() == Effect::NotApplied
/// }
/// # assert!(may_retry(&Error::new(larder_core::ErrorKind::Timeout, "")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It did not take effect, and never will: trying again is safe.
    NotApplied,
    /// It may have taken effect, or may yet: trying again may do it twice.
    Unknown,
}

/// What went wrong.
///
/// ```
/// use larder_core::{ErrorKind, Key};
/// assert_eq!(Key::new("").unwrap_err().kind(), ErrorKind::BadInput);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller gave something over a limit or of the wrong form; the message names the limit and the value.
    BadInput,
    /// A URL, an option or a server list is wrong.
    Config,
    /// There is no room: the store is full, or the structure has reached a limit that the message names.
    Full,
    /// The store cannot do this; the profile says so.
    Unsupported,
    /// The store could not be reached.
    Unavailable,
    /// The store did not answer in time.
    Timeout,
    /// The store answered what it should not have: another protocol, garbage, an error of its own.
    Protocol,
    /// Others kept writing at the same time, more often than the retry limit allows.
    Conflict,
    /// There is no such structure. On a volatile store "never created" and "lost" look alike to a fresh process.
    Absent,
    /// The structure was there (this handle saw it, or its manifest names it) and data of it are gone.
    Lost,
    /// The store holds bytes that are not those that were written; the message names the place. Told by stores on disk.
    Corrupt,
    /// The structure is there in an older state than one this handle saw.
    RolledBack,
    /// The name holds another kind of structure, or the same with other parameters.
    LayoutMismatch,
    /// The lease has ended or another holder has the lock.
    Fenced,
    /// A number would leave its range.
    Overflow,
}

impl ErrorKind {
    /// The kind in words, as errors begin.
    ///
    /// ```
    /// assert_eq!(larder_core::ErrorKind::RolledBack.as_str(), "rolled back");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::BadInput => "bad input",
            ErrorKind::Config => "configuration",
            ErrorKind::Full => "full",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Protocol => "protocol",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Absent => "absent",
            ErrorKind::Lost => "lost",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::RolledBack => "rolled back",
            ErrorKind::LayoutMismatch => "layout mismatch",
            ErrorKind::Fenced => "fenced",
            ErrorKind::Overflow => "overflow",
        }
    }
}

impl Error {
    /// An error of something that did not take effect; [`effect`](Error::effect) says otherwise.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Full, "10 of 10 bytes are taken");
    /// assert_eq!(error.to_string(), "full: 10 of 10 bytes are taken");
    /// ```
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            effect: Effect::NotApplied,
            op: None,
            key: None,
            store: None,
            detail: detail.into(),
            source: None,
        }))
    }

    /// Sets what is known of the effect.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// let error = Error::new(ErrorKind::Timeout, "no answer").effect(larder_core::Effect::Unknown);
    /// assert!(error.is_unknown());
    /// ```
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Error {
        self.0.effect = effect;
        self
    }

    /// Names the op and its key.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// let op = larder_core::Op::delete(larder_core::Key::new("k")?);
    /// assert_eq!(Error::new(ErrorKind::Timeout, "no answer").op(&op).to_string(), "timeout: no answer (op delete; key \"k\")");
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn op(mut self, op: &Op) -> Error {
        self.0.op = Some(op.name());
        self.0.key = Some(op.key.clone());
        self
    }

    /// Names the key.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// let key = larder_core::Key::new("k")?;
    /// assert_eq!(Error::new(ErrorKind::Lost, "gone").key(&key).to_string(), "lost: gone (key \"k\")");
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn key(mut self, key: &Key) -> Error {
        self.0.key = Some(key.clone());
        self
    }

    /// Names the store or server. Must carry no secret: mask URLs first ([`masked_url`](crate::text::masked_url)).
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// assert_eq!(Error::new(ErrorKind::Lost, "gone").store("memory").to_string(), "lost: gone (store memory)");
    /// ```
    #[must_use]
    pub fn store(mut self, store: impl Into<String>) -> Error {
        self.0.store = Some(store.into());
        self
    }

    /// Keeps the error that led to this one.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// let io = std::io::Error::other("broken pipe");
    /// let error = Error::new(ErrorKind::Unavailable, "the connection ended").source(io);
    /// assert_eq!(std::error::Error::source(&error).map(ToString::to_string).as_deref(), Some("broken pipe"));
    /// ```
    #[must_use]
    pub fn source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(std::sync::Arc::new(source));
        self
    }

    /// What went wrong.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// assert_eq!(Error::new(ErrorKind::Full, "").kind(), ErrorKind::Full);
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What is known of the effect.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// assert_eq!(Error::new(ErrorKind::Full, "").known_effect(), larder_core::Effect::NotApplied);
    /// ```
    pub fn known_effect(&self) -> Effect {
        self.0.effect
    }

    /// True if the op may have taken effect: [`Effect::Unknown`].
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// assert!(!Error::new(ErrorKind::Full, "").is_unknown());
    /// ```
    pub fn is_unknown(&self) -> bool {
        self.0.effect == Effect::Unknown
    }

    /// What happened, without the kind, the op and the store.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// assert_eq!(Error::new(ErrorKind::Full, "no room").detail(), "no room");
    /// ```
    pub fn detail(&self) -> &str {
        &self.0.detail
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, effect, op, key, store, detail, .. } = &*self.0;
        write!(f, "{}: {detail}", kind.as_str())?;
        let mut separator = " (";
        let mut part = |f: &mut fmt::Formatter<'_>, name: &str, shown: &dyn fmt::Display| {
            let written = write!(f, "{separator}{name}{shown}");
            separator = "; ";
            written
        };
        if let Some(op) = op {
            part(f, "op ", op)?;
        }
        if let Some(key) = key {
            part(f, "key ", key)?;
        }
        if let Some(store) = store {
            part(f, "store ", store)?;
        }
        if *effect == Effect::Unknown {
            part(f, "", &"it is unknown whether it took effect")?;
        }
        if separator == "; " { f.write_str(")") } else { Ok(()) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
