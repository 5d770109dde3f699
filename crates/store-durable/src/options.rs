//! How a store is opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use larder_core::{ClockRef, Error, ErrorKind, Key, Result, SystemClock};

use crate::DurableStore;
use crate::place::Patience;

/// When what was written is on disk: what a power cut may take. A crash of the process alone takes nothing that was acknowledged, at any setting.
///
/// ```
/// use larder_store_durable::Sync;
/// use std::time::Duration;
/// assert_eq!("every:100ms".parse(), Ok(Sync::Every(Duration::from_millis(100))));
/// assert_eq!(Sync::default(), Sync::Always);
/// assert!("sometimes".parse::<Sync>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Before it is acknowledged: a power cut takes nothing that was acknowledged. Writers that wait at the same time share one sync.
    #[default]
    Always,
    /// So long after it was acknowledged, at the most, plus the time that the sync takes.
    Every(Duration),
    /// Whenever the system sees fit; and when the store is closed.
    Never,
}

/// What is not a [`Sync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSync;

impl fmt::Display for NoSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sync takes {}", NoSync::FORM)
    }
}

impl std::error::Error for NoSync {}

impl NoSync {
    /// What there is to choose from.
    ///
    /// ```
    /// assert!(larder_store_durable::NoSync::FORM.starts_with("always, never or every:100ms"));
    /// ```
    pub const FORM: &str = "always, never or every:100ms (1 ms to 1 h, in ms or s)";
}

impl FromStr for Sync {
    type Err = NoSync;

    fn from_str(text: &str) -> Result<Sync, NoSync> {
        match text {
            "always" => return Ok(Sync::Always),
            "never" => return Ok(Sync::Never),
            _ => {}
        }
        let interval = text.strip_prefix("every:").ok_or(NoSync)?;
        let (digits, unit_ms) = match interval.strip_suffix("ms") {
            Some(digits) => (digits, 1),
            None => (interval.strip_suffix('s').ok_or(NoSync)?, 1000),
        };
        let count: u64 = digits.parse().map_err(|_| NoSync)?;
        let ms = count.checked_mul(unit_ms).filter(|ms| (1..=3_600_000).contains(ms)).ok_or(NoSync)?;
        Ok(Sync::Every(Duration::from_millis(ms)))
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sync::Always => f.write_str("always"),
            Sync::Every(interval) => write!(f, "every:{}ms", interval.as_millis()),
            Sync::Never => f.write_str("never"),
        }
    }
}

/// The options of a durable store; [`open`](Options::open) opens it.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("store");
/// use larder_store_durable::{Options, Sync};
/// let store = Options::new(path).sync(Sync::Always).value_bytes_max(1 << 20).open()?;
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) folder: PathBuf,
    pub(crate) sync: Sync,
    pub(crate) value_bytes_max: usize,
    pub(crate) cache_bytes: u64,
    pub(crate) reserve_bytes: u64,
    pub(crate) patience: Patience,
    pub(crate) clock: ClockRef,
    pub(crate) witness: Option<PathBuf>,
    pub(crate) create: bool,
}

impl Options {
    /// The largest value beside the longest key that a store can be told to take: 64 MiB, the default.
    pub const VALUE_BYTES_MAX: usize = 64 << 20;

    /// The default options of the store in a folder.
    ///
    /// ```
    /// let options = larder_store_durable::Options::new("/var/lib/larder");
    /// ```
    pub fn new(folder: impl AsRef<Path>) -> Options {
        Options {
            folder: folder.as_ref().to_owned(),
            sync: Sync::Always,
            value_bytes_max: Options::VALUE_BYTES_MAX,
            cache_bytes: 64 << 20,
            reserve_bytes: 64 << 20,
            patience: Patience::default(),
            clock: SystemClock::shared(),
            witness: None,
            create: true,
        }
    }

    /// When what was written is on disk.
    ///
    /// ```
    /// # use larder_store_durable::{Options, Sync};
    /// let options = Options::new("store").sync(Sync::Never);
    /// ```
    #[must_use]
    pub fn sync(mut self, sync: Sync) -> Options {
        self.sync = sync;
        self
    }

    /// The largest value beside a key of 250 bytes; beside a shorter one it may have as many bytes more as that is shorter. Default: [`Options::VALUE_BYTES_MAX`], which is the most.
    ///
    /// ```
    /// # use larder_store_durable::Options;
    /// let options = Options::new("store").value_bytes_max(1 << 20);
    /// ```
    #[must_use]
    pub fn value_bytes_max(mut self, bytes: usize) -> Options {
        self.value_bytes_max = bytes;
        self
    }

    /// Memory for blocks of tables that were read. Default: 64 MiB.
    ///
    /// ```
    /// # use larder_store_durable::Options;
    /// let options = Options::new("store").cache_bytes(1 << 30);
    /// ```
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Options {
        self.cache_bytes = bytes;
        self
    }

    /// Writes are refused with [`ErrorKind::Full`] while less is free on the disk, so that what was begun can be ended; deletes are not. It must be free besides what the engine has in
    /// memory and has yet to write to tables, 64 MiB as a rule and some 320 MiB at the most, which is counted, as are, twice, what was admitted and is not written yet, and the largest merge of tables that may come: about what the tables take, of a small store, and some 1.3 GB of one of many GB. Default: 64 MiB; 0 writes until the disk refuses, which ends all writing until the store is opened anew.
    ///
    /// ```
    /// # use larder_store_durable::Options;
    /// let options = Options::new("store").reserve_bytes(1 << 30);
    /// ```
    #[must_use]
    pub fn reserve_bytes(mut self, bytes: u64) -> Options {
        self.reserve_bytes = bytes;
        self
    }

    /// How long to wait for another process to close the store. Default: not at all.
    ///
    /// ```
    /// # use larder_store_durable::Options;
    /// let options = Options::new("store").wait(std::time::Duration::from_secs(5));
    /// ```
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Options {
        self.patience.wait = wait;
        self
    }

    /// What ends that wait early, for a caller who may give up: it is set from another thread.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// # let folder = tempfile::tempdir().unwrap();
    /// let given_up = Arc::new(AtomicBool::new(true));
    /// let options = larder_store_durable::Options::new(folder.path()).wait(std::time::Duration::MAX).given_up(given_up);
    /// let first = options.clone().open()?;
    /// assert!(options.open().is_err()); // at once
    /// # drop(first);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn given_up(mut self, is_given_up: Arc<AtomicBool>) -> Options {
        self.patience.is_given_up = is_given_up;
        self
    }

    /// Where the time comes from.
    ///
    /// ```
    /// # use larder_store_durable::Options;
    /// let options = Options::new("store").clock(larder_core::SystemClock::shared());
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: ClockRef) -> Options {
        self.clock = clock;
        self
    }

    /// A file that says how far the store was on disk, kept elsewhere: brought up to date within a second, and when the store is closed. A store that is older than its
    /// witness, such as a copy that was put back, is [`ErrorKind::RolledBack`] when it is opened, and one that is gone [`ErrorKind::Lost`]; one that was
    /// [restored](Options::restore) is as it should be. What the last second wrote, the witness may not know, nor what no sync had on disk before that: at [`Sync::Every`] up to an interval more, at [`Sync::Never`]
    /// all since the store was opened, another file of its journal was begun, a lot of tokens was set aside, or [`sync`](DurableStore::sync) was called. Where its disk hangs, the store goes on, and only closing it waits; where it
    /// cannot be written, that is an error of the opening, and tried again each second from then on.
    ///
    /// ```
    /// # use larder_store_durable::Options;
    /// let options = Options::new("store").witness("/elsewhere/store.witness");
    /// ```
    #[must_use]
    pub fn witness(mut self, file: impl AsRef<Path>) -> Options {
        self.witness = Some(file.as_ref().to_owned());
        self
    }

    /// Whether a store is made where the folder is empty or not there. Default: yes. What only reads should not: a path that is mistyped looks like a store that holds nothing.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("mistyped");
    /// # use larder_store_durable::Options;
    /// assert!(Options::new(&path).create(false).open().is_err());
    /// assert!(!path.exists());
    /// ```
    #[must_use]
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// Opens the store, or makes it where the folder is empty or not there, unless [told not to](Options::create). Blocks while it reads what the journal holds: some 0.1 s for each 64 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a path that is a file, is read-only, or holds something else, or no store where [none is to be made](Options::create); [`ErrorKind::Unavailable`], naming the process, where
    /// another has it open; [`ErrorKind::LayoutMismatch`] for one of a newer layout; [`ErrorKind::Corrupt`], with the place, for one
    /// that is damaged; [`ErrorKind::RolledBack`] or [`ErrorKind::Lost`] for one that its [witness](Options::witness) saw further on.
    /// [`ErrorKind::Full`] for one that is to be made where the disk has no room; one that is there is read without room.
    ///
    /// An open that fails changes nothing that the store holds. It may leave the folder, with the file `lock`, where there was none. Where what is wrong shows only once the engine has opened its files,
    /// it has done what each open begins with: what a crash cut short at the journal's end is cut off, and what may not be on disk is written again; the engine has written older files
    /// of its journal to tables, and removed tables that no list names.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = larder_store_durable::Options::new(folder.path()).open()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn open(self) -> Result<DurableStore> {
        self.check()?;
        DurableStore::open(&self)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let most = Options::VALUE_BYTES_MAX;
        if !(1..=most).contains(&self.value_bytes_max) {
            let detail = format!("value_bytes_max is {}; it takes 1 to {most}", self.value_bytes_max);
            return Err(Error::new(ErrorKind::Config, detail));
        }
        Ok(())
    }

    /// The largest key and value together.
    pub(crate) fn item_bytes_max(&self) -> usize {
        self.value_bytes_max + Key::BYTES_MAX
    }
}
