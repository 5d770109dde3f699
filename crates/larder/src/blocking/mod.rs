//! The structures for programs without async: every call waits, and returns when it is done.
//!
//! One runtime in the background serves the handles of the whole process: connections are served and leases of locks renewed on its
//! thread, while the caller computes. Nothing here may be called on a thread that runs async code, which it would hold up: such a call is an
//! [`Unsupported`](crate::ErrorKind::Unsupported) error that says so, and no panic. So it is on a thread that a runtime keeps for blocking work (`spawn_blocking`), which cannot be told
//! from the others; a thread of `std::thread` will do.
//!
//! A process that forks does so before its first call here, and opens its stores afterwards: the child of a later fork has the handles and not the thread that serves them, and a call to a server waits for ever.
//!
//! The twins have the names, the guarantees and the round trips of what they stand for; each method links to it. Whatever has no twin
//! here, such as opening with options, [`wait`] waits for: `Set::new(wait(larder::Set::options().shards(16).open_or_create(&store, "tags"))?)`.
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> larder::Result<()> {
//! use larder::blocking::{self, Counter, Lock};
//! use std::time::Duration;
//!
//! let store = blocking::open("memory:")?; // or "memcached://localhost:11211"
//! let hits = Counter::open_or_create(&store, "hits")?;
//! hits.add(2)?;
//! assert_eq!(hits.get()?, 2);
//!
//! let nightly = Lock::open(&store, "nightly")?;
//! let guard = nightly.acquire(Duration::from_secs(10))?;
//! println!("mine, with fencing token {}", guard.fencing_token());
//! drop(guard); // waits until it is given back
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```

mod cache;
mod handles;
mod lock;
mod log;
mod packed;
mod queue;
mod sharded;
mod unique;

use std::future::{self, Future};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{io, thread};

use tokio::runtime::{Builder, Handle};

pub use self::cache::Cache;
pub use self::handles::{Array, Counter, Set, Table, Visitors};
pub use self::lock::{Lock, LockGuard};
pub use self::log::{EventLog, Tail};
pub use self::packed::{PackedRecords, PackedTable};
pub use self::queue::{Claim, Queue, Stack};
pub use self::sharded::{ShardedHash, ShardedSet, ShardedSortedSet};
pub use self::unique::UniqueVisitors;
use crate::{Ctx, Error, ErrorKind, Manifest, Name, Result, StoreRef};

/// Opens the store that a URL names, as [`larder::open`](crate::open) does. Its connections live on the background runtime: the store is for the handles of this module, and for async
/// ones as well.
///
/// ```
/// # #[cfg(feature = "memory")]
/// assert!(larder::blocking::open("memory:").is_ok());
/// ```
///
/// # Errors
/// As [`larder::open`](crate::open); [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
pub fn open(url: &str) -> Result<StoreRef> {
    wait(crate::open(url))
}

/// What a name holds, as [`larder::find`](crate::find) tells it. **Round trips: 1.**
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # let store = larder::blocking::open("memory:").unwrap();
/// let name = larder::Name::new("hits").unwrap();
/// assert!(larder::blocking::find(&store, &name).unwrap().is_none());
/// # }
/// ```
///
/// # Errors
/// As [`larder::find`](crate::find); [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
pub fn find(store: &StoreRef, name: &Name) -> Result<Option<Manifest>> {
    wait(crate::find(store, Ctx::default(), name))
}

/// Removes a structure with all its keys, as [`larder::drop_structure`](crate::drop_structure) does. Round trips: as there.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # let store = larder::blocking::open("memory:").unwrap();
/// let name = larder::Name::new("hits").unwrap();
/// assert!(larder::blocking::drop_structure(&store, &name).unwrap().is_none());
/// # }
/// ```
///
/// # Errors
/// As [`larder::drop_structure`](crate::drop_structure); [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
pub fn drop_structure(store: &StoreRef, name: &Name) -> Result<Option<Manifest>> {
    wait(crate::drop_structure(store, Ctx::default(), name))
}

/// Waits for anything of this library that is async, on the background runtime.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> larder::Result<()> {
/// use larder::{Ctx, Key, Op, StoreExt, Want, blocking};
/// let store = blocking::open("memory:")?;
/// let reply = blocking::wait(store.run_one(Ctx::default(), Op::get(Key::new("k")?, Want::VALUE)))?;
/// # _ = reply;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
///
/// # Errors
/// Those of the future; [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code, and where the system gives the runtime no thread. The future is not
/// polled then.
pub fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(future)
}

/// The background runtime, for a caller that may wait.
fn runtime() -> Result<&'static Handle> {
    let refuse = |why: &str| Err(Error::new(ErrorKind::Unsupported, why));
    match Handle::try_current() {
        Ok(_) => {
            return refuse(
                "a blocking call on a thread that runs async code would hold it up: await the async handles there",
            );
        }
        Err(error) if error.is_thread_local_destroyed() => {
            return refuse("this thread is ending: it can wait for nothing any more");
        }
        Err(_) => {}
    }
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(made) = RUNTIME.get() {
        return Ok(made);
    }
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    match RUNTIME.get() {
        Some(made) => Ok(made),
        // A refusal is not kept: the next call asks again.
        None => started().map(|made| RUNTIME.get_or_init(|| made)).map_err(|error| {
            Error::new(ErrorKind::Unsupported, "the system gave the background runtime no thread").source(error)
        }),
    }
}

/// One thread: it serves connections and timers for as long as the process runs, and what the callers wait for runs on their own threads. It is started here, and not by the runtime, which
/// panics where the system gives no thread.
fn started() -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name("larder".to_owned()).spawn(move || runtime.block_on(future::pending::<()>()))?;
    Ok(handle)
}

/// A blocking twin of an async handle.
///
/// Each method names what it takes and gives, and an example of its use, in which `it` is the handle.
macro_rules! twin {
    (
        $(#[$doc:meta])*
        $name:ident($($creates:ident)?);
        $(
            $(#[$note:meta])*
            fn $method:ident$(<$life:lifetime>)?(&self $(, $arg:ident: $type:ty)*) -> $out:ty = $example:literal;
        )*
    ) => {
        $(#[$doc])*
        ///
        #[cfg_attr(feature = "memory", doc = "```")]
        #[cfg_attr(not(feature = "memory"), doc = "```no_run")]
        #[doc = $crate::blocking::example!($name, "_ = it;")]
        /// ```
        #[derive(Clone, Debug)]
        pub struct $name(crate::$name);

        impl $name {
            #[doc = concat!("[`", stringify!($name), "::open`](crate::", stringify!($name), "::open), waited for. Round trips: as there.")]
            ///
            #[cfg_attr(feature = "memory", doc = "```")]
            #[cfg_attr(not(feature = "memory"), doc = "```no_run")]
            #[doc = concat!("# let store = larder::blocking::open(\"memory:\").unwrap();\nlet opened = larder::blocking::", stringify!($name), "::open(&store, \"name\");\n# _ = opened;")]
            /// ```
            ///
            /// # Errors
            /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
            pub fn open(store: &crate::StoreRef, name: impl AsRef<[u8]>) -> crate::Result<$name> {
                Ok($name($crate::blocking::wait(crate::$name::open(store, name))?))
            }

            $(
                #[doc = concat!("[`", stringify!($name), "::", stringify!($creates), "`](crate::", stringify!($name), "::", stringify!($creates), "), waited for. Round trips: as there.")]
                ///
                #[cfg_attr(feature = "memory", doc = "```")]
                #[cfg_attr(not(feature = "memory"), doc = "```no_run")]
                #[doc = concat!("# let store = larder::blocking::open(\"memory:\").unwrap();\nlet it = larder::blocking::", stringify!($name), "::", stringify!($creates), "(&store, \"name\").unwrap();\n# _ = it;")]
                /// ```
                ///
                /// # Errors
                /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
                pub fn $creates(store: &crate::StoreRef, name: impl AsRef<[u8]>) -> crate::Result<$name> {
                    Ok($name($crate::blocking::wait(crate::$name::$creates(store, name))?))
                }
            )?

            #[doc = concat!("A twin of a [`", stringify!($name), "`](crate::", stringify!($name), ") that is open, however it was opened: with options, say, by [`wait`](crate::blocking::wait). **Round trips: 0.**")]
            ///
            /// ```
            #[doc = concat!("# fn twin(opened: larder::", stringify!($name), ") {\nlet it = larder::blocking::", stringify!($name), "::new(opened);\n# _ = it;\n# }")]
            /// ```
            pub fn new(handle: crate::$name) -> $name {
                $name(handle)
            }

            /// The async handle, for a part of the program that is async.
            ///
            /// ```
            #[doc = concat!("# fn handle(it: &larder::blocking::", stringify!($name), ") {\nlet handle: larder::", stringify!($name), " = it.handle().clone();\n# _ = handle;\n# }")]
            /// ```
            pub fn handle(&self) -> &crate::$name {
                &self.0
            }

            $(
                #[doc = concat!("[`", stringify!($name), "::", stringify!($method), "`](crate::", stringify!($name), "::", stringify!($method), "), waited for. Round trips: as there.")]
                $(#[$note])*
                ///
                #[cfg_attr(feature = "memory", doc = "```")]
                #[cfg_attr(not(feature = "memory"), doc = "```no_run")]
                #[doc = $crate::blocking::example!($name, $example)]
                /// ```
                ///
                /// # Errors
                /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
                pub fn $method$(<$life>)?(&self $(, $arg: $type)*) -> crate::Result<$out> {
                    $crate::blocking::wait(self.0.$method($($arg),*))
                }
            )*
        }
    };
}
pub(crate) use twin;

/// An example, in which `it` is an open handle.
macro_rules! example {
    (Lock, $example:literal) => {
        $crate::blocking::example!("Lock", "open", $example)
    };
    (PackedRecords, $example:literal) => {
        concat!(
            "# fn main() -> larder::Result<()> {\n# let store = larder::blocking::open(\"memory:\")?;\n",
            "let schema = larder::records::Schema::parse([\"place:CA|US\", \"visits:u7\"])?;\n",
            "let made = larder::PackedRecords::options().schema(schema).open_or_create(&store, \"name\");\n",
            "let it = larder::blocking::PackedRecords::new(larder::blocking::wait(made)?);\n",
            $example,
            "\n# Ok(())\n# }"
        )
    };
    ($name:ident, $example:literal) => {
        $crate::blocking::example!(stringify!($name), "open_or_create", $example)
    };
    ($name:expr, $open:literal, $example:literal) => {
        concat!(
            "# fn main() -> larder::Result<()> {\n# let store = larder::blocking::open(\"memory:\")?;\n",
            "let it = larder::blocking::",
            $name,
            "::",
            $open,
            "(&store, \"name\")?;\n",
            $example,
            "\n# Ok(())\n# }"
        )
    };
}
pub(crate) use example;
