//! A cache of values that are costly to make: of all who miss one, on all machines, one makes it, and the others wait or are served the stale
//! one.
//!
//! The semantics are those of memcached's win and stale flags: of those who find a value missing or stale one wins (W) and rebuilds it, the
//! others learn that somebody does (Z), and are served the stale value as long as there is one (X). Here they are made of ops that every store with
//! cas and expiry has: a lease is an `add`, or where there is a stale value a `cas` that keeps it, and the finished value is a `cas` with the token of that
//! very lease. So whatever comes between (an invalidation, an eviction, a lease that ran out and was followed by another) makes the late value
//! miss its place, without any assumption about time.
//!
//! # A cache entry is nothing to rely on
//! Values may go at any time: they expire, and a store that needs the room evicts them. That is a **miss**, never a loss, and a rebuild follows. Nothing that
//! exists nowhere else belongs into a cache.
//!
//! # Guarantees, a store
//! | | memory | memcached, meta dialects | memcached, classic dialect |
//! |---|---|---|---|
//! | rebuilds of a key at a time | one, however long it takes: its lease is renewed at each third of it, as long as the store can be reached once a lease and keeps the lease | the same; a lease that is evicted lets another in | the same |
//! | a lease that could not be renewed in time | is told with the value, which is not cached over what another made since | the same | the same |
//! | fresh, stale and the end of a lease are judged by | the store's clock, in ms | the server's clock, in whole seconds: a ttl is rounded up, a lease may take one more | **the wall clocks of the readers**: one that is wrong by minutes takes fresh values for stale or stale ones for fresh. The server's clock ends a value with ttl and stale window together. Where a clock that is behind takes the lease of a stale one, which is not replaced then, that window is longer by as much as it is behind, with each such lease |
//! | a rebuilder that dies | is followed after its lease, by the same clock | the same | the same, or when the item expires |
//! | an invalidation during a rebuild | is not undone by it: what it makes is not cached | the same | the same |
//! | a slow rebuilder, past its lease | never overwrites what others made since | the same | the same |
//! | a lost reply | looked up; what stays open is told as unknown | the same | the same |
//! | eviction, restart | a miss | a miss | a miss |
//!
//! Without cas, or without expiry, opening is [`Unsupported`](ErrorKind::Unsupported).
//!
//! # One rebuild, wherever it is asked for
//! [`get_or_rebuild`](Cache::get_or_rebuild) with one key is what is elsewhere called `once` or "single flight", over all machines. A rebuild that must not be done twice
//! at the same time *for its effects* wants a [`Lock`](crate::Lock) with a fencing token instead: here only the value is protected from a late rebuilder.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | a hit, fresh or stale | 1 |
//! | a miss that this caller rebuilds | 3: the look, the lease, the value |
//! | the same, of a rebuild that takes longer | 1 more at each third of the lease, beside it; a stale value travels with each |
//! | a closure that fails | 3: the look, the lease, giving it up |
//! | a miss that somebody else rebuilds | 1, and 1 for each look: the pauses are drawn between 0 and a bound that doubles from 10 ms to 250 ms; where the store tells of changes 2 for each wait and the look behind it, a wait ending with a change, and after 250 ms |
//! | invalidate | 1 |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 2 to make it |
//!
//! A handle reads the manifest when it opens, and looks at it again once a minute with a read that it makes anyway. One that finds it gone, or of another life, opens the
//! name anew (1 to 2 more), and makes it again if it may.
//!
//! # Drop
//! The entries' keys hold the generation of the cache. A drop removes the manifest alone; the next to make the cache draws another generation, so that no old entry can
//! be reached, and they expire by their lives. A handle that is open works on for a minute at the most until it notices.
//!
//! # Limits and memory
//! A key has 0 to [`KEY_BYTES_MAX`] bytes, a value 0 to [`Cache::value_bytes_max`]. An entry costs key and value, 25 to 35 bytes, and the store's
//! own key of 35 bytes and the name. While a stale value is rebuilt, it stands in the lease: so the rebuild of a stale value sends it and reads it once more.
//!
//! # Source
//! The lease and the stale value are Facebook's (Nishtala and others: "Scaling Memcache at Facebook", 2013, section 3.2.1), and memcached's meta protocol has them as flags (`mg` with `N` and
//! `R`, `md` with `I`); `docs/design.md` says why they are not used.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod judge;
mod layout;
pub(crate) mod look;
mod rebuild;
mod shared;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{ClockRef, Error, ErrorKind, Profile, Result, StoreRef, SystemClock};

pub(crate) use self::layout::LAYOUT;
pub use self::rebuild::Rebuild;
use self::shared::{Shared, Terms, check_store};
use crate::name::Name;

/// The longest key of an entry, in bytes.
pub const KEY_BYTES_MAX: usize = 8 * 1024;

/// The longest lease, wait and timeout.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A handle of a cache: a cheap clone, shared by as many tasks as you like.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Cache;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let pages = Cache::open_or_create(&store, "pages").await?;
/// let page = pages.get_or_rebuild("/index", async || Ok::<_, larder_core::Error>("<html>")).await?;
/// assert_eq!(page.value, "<html>");
/// assert!(page.is_kept());
/// let page = pages.get("/index").await?.expect("cached a moment ago");
/// assert_eq!(page.value, "<html>");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cache(Arc<Shared>);

/// How a cache is opened and made. Nothing of it is recorded with the cache: each entry is written with the ttl and stale window of the handle that
/// rebuilt it, and everybody judges it by those.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Cache;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use std::time::Duration;
/// let options = Cache::options().ttl(Duration::from_secs(300)).stale(Duration::from_secs(60)).lease(Duration::from_secs(10));
/// let pages = options.open_or_create(&store, "pages").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CacheOptions {
    ttl: Duration,
    stale: Duration,
    lease: Duration,
    wait: Duration,
    timeout: Duration,
    clock: Option<ClockRef>,
}

/// A value, and how it was come by.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Cache;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let pages = Cache::open_or_create(&store, "pages").await?;
/// let page = pages.get_or_rebuild("/index", async || Ok::<_, larder_core::Error>("<html>")).await?;
/// println!("{} bytes, {:?}", page.value.len(), page.source);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Cached {
    /// The value.
    pub value: Bytes,
    /// How it was come by.
    pub source: Source,
}

/// How a value was come by.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Cache;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::cache::Source;
/// # let pages = Cache::open_or_create(&store, "pages").await?;
/// let page = pages.get_or_rebuild("/index", async || Ok::<_, larder_core::Error>("<html>")).await?;
/// match page.source {
///     Source::Fresh => println!("it was cached, or somebody else made it while we waited"),
///     Source::Stale => println!("somebody else is making it; this is the last one"),
///     Source::Rebuilt(Ok(())) => println!("we made it, and it is cached"),
///     Source::Rebuilt(Err(error)) => println!("we made it, and it is not cached, or nobody knows: {error}"),
///     _ => {}
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// It was there, fresh; perhaps somebody else made it while this caller waited.
    Fresh,
    /// It was there, past its ttl and within its stale window.
    Stale,
    /// This caller made it. Whether it was cached: an error of kind [`Conflict`](ErrorKind::Conflict) says that it was invalidated meanwhile, or came after its lease and somebody else's
    /// turn; with the effect [`Unknown`](larder_core::Effect::Unknown) it may be cached, or may yet be, as long as nothing of that kind happened.
    Rebuilt(Result<()>),
}

/// What [`Cache::lookup`] found.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Cache;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::cache::Lookup;
/// # let pages = Cache::open_or_create(&store, "pages").await?;
/// let page = match pages.lookup("/index").await? {
///     Lookup::Found(page) => page,
///     Lookup::Rebuild(rebuild) => rebuild.finish("<html>").await,
/// };
/// assert_eq!(page.value, "<html>");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Lookup {
    /// The value, fresh, or stale while somebody else rebuilds it.
    Found(Cached),
    /// It is this caller's turn to make the value, and nobody else's for the time of the lease, or as long as it is [renewed](Rebuild::renewing).
    Rebuild(Rebuild),
}

impl Cached {
    /// True unless the value was made by this caller and could not be cached, or nobody knows.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let pages = Cache::open_or_create(&store, "pages").await?;
    /// let page = pages.get_or_rebuild("/index", async || Ok::<_, larder_core::Error>("<html>")).await?;
    /// assert!(page.is_kept());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_kept(&self) -> bool {
        !matches!(self.source, Source::Rebuilt(Err(_)))
    }
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            ttl: Duration::from_secs(5 * 60),
            stale: Duration::ZERO,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            clock: None,
        }
    }
}

impl CacheOptions {
    /// How long a value is fresh that this handle made; 5 minutes if not given. A store that counts seconds rounds it up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use larder_structures::Cache;
    /// let options = Cache::options().ttl(Duration::from_secs(30));
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> CacheOptions {
        self.ttl = ttl;
        self
    }

    /// How much longer the value is served to others while one rebuilds it; 0 if not given: they wait.
    ///
    /// Nothing is served later than that, but for the time that a write of it takes on its way to the store; rebuilds that fail do not lengthen it. A value that nobody asks for goes when it ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use larder_structures::Cache;
    /// let options = Cache::options().stale(Duration::from_secs(60));
    /// ```
    pub fn stale(mut self, stale: Duration) -> CacheOptions {
        self.stale = stale;
        self
    }

    /// How long others leave a rebuild to whoever began it and does not renew it; 30 s if not given, a day at the most. After a rebuilder that died, it is how long the others wait.
    ///
    /// [`get_or_rebuild`](Cache::get_or_rebuild) renews it at each third, so a rebuild may take longer. One that takes longer and could not be renewed in time is begun a second time, and its own
    /// value is no longer cached.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use larder_structures::Cache;
    /// let options = Cache::options().lease(Duration::from_secs(10));
    /// ```
    pub fn lease(mut self, lease: Duration) -> CacheOptions {
        self.lease = lease.min(DAY);
        self
    }

    /// How long a caller waits for somebody else's rebuild before it gets a [`Timeout`](ErrorKind::Timeout); a minute if not given, a day at the most. 0: not at all.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use larder_structures::Cache;
    /// let options = Cache::options().wait(Duration::ZERO);
    /// ```
    pub fn wait(mut self, wait: Duration) -> CacheOptions {
        self.wait = wait.min(DAY);
        self
    }

    /// How long one exchange with the store may take, with all it tries again; 5 s if not given, a day at the most.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use larder_structures::Cache;
    /// let options = Cache::options().timeout(Duration::from_millis(200));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> CacheOptions {
        self.timeout = timeout.min(DAY);
        self
    }

    /// Where the time comes from; the system's clock if not given. Its wall clock matters only on a store that tells no remaining life.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use larder_structures::Cache;
    /// let options = Cache::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(mut self, clock: ClockRef) -> CacheOptions {
        self.clock = Some(clock);
        self
    }

    /// Opens a cache that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Cache::options().open(&store, "pages").await.is_err());
    /// Cache::open_or_create(&store, "pages").await?;
    /// Cache::options().open(&store, "pages").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes, a ttl, lease or timeout of less than 1 ms, and for a ttl and stale window that come to more
    /// than the store's longest life; [`Absent`](ErrorKind::Absent) if there is none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure,
    /// [`Unsupported`](ErrorKind::Unsupported) on a store without cas or expiry.
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Cache> {
        self.open_as(store, Name::new(name)?, false).await
    }

    /// Opens a cache, and makes it if there is none. **Round trips: 1**, 2 if it is made.
    ///
    /// A handle that was opened so also makes it again where it was dropped or its manifest evicted.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let pages = Cache::options().open_or_create(&store, "pages").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](CacheOptions::open), but for `Absent`.
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Cache> {
        self.open_as(store, Name::new(name)?, true).await
    }

    async fn open_as(self, store: &StoreRef, name: Name, may_create: bool) -> Result<Cache> {
        self.check(&store.profile())?;
        let CacheOptions { ttl, stale, lease, wait, timeout, clock } = self;
        let clock = clock.unwrap_or_else(SystemClock::shared);
        let terms = Terms { ttl, stale, lease, wait, timeout, clock, may_create };
        Ok(Cache(Arc::new(Shared::open(store, name, terms).await?)))
    }

    fn check(&self, profile: &Profile) -> Result<()> {
        for (what, time) in [("ttl", self.ttl), ("lease", self.lease), ("timeout", self.timeout)] {
            if time < Duration::from_millis(1) {
                let detail = format!("a cache's {what} is {time:?}; the shortest is 1 ms");
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
        }
        check_store(profile)?;
        let life = self.ttl.saturating_add(self.stale);
        if life > profile.ttl_max {
            let detail =
                format!("ttl and stale window come to {life:?}; the limit on this store is {:?}", profile.ttl_max);
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        Ok(())
    }
}

impl Cache {
    /// Options, to open a cache otherwise than by default.
    ///
    /// ```
    /// # use larder_structures::Cache;
    /// let options = Cache::options().ttl(std::time::Duration::from_secs(30));
    /// ```
    pub fn options() -> CacheOptions {
        CacheOptions::default()
    }

    /// Opens a cache that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let error = Cache::open(&store, "pages").await.unwrap_err();
    /// assert_eq!(error.kind(), larder_core::ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`CacheOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Cache> {
        Cache::options().open(store, name).await
    }

    /// Opens a cache, and makes it if there is none. **Round trips: 1**, 2 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let pages = Cache::open_or_create(&store, "pages").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`CacheOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Cache> {
        Cache::options().open_or_create(store, name).await
    }

    /// The value of a key; made by `rebuild` if it is missing or stale and this caller is the one whose turn it is. **Round trips: 1** for a hit, 3 with
    /// a rebuild; of a rebuild by somebody else, see [the module](crate::cache#round-trips).
    ///
    /// While `rebuild` runs, its lease is renewed in the background at each third of it, also while it computes on its thread. A lease that is lost all the same (the store could not be reached,
    /// evicted it, or somebody invalidated the value) does not end `rebuild`: its value comes back, and [`Source::Rebuilt`] says that it is not cached, and why.
    ///
    /// An error of `rebuild` is handed on as it is, nothing is cached, and the lease is given up at once, so that another may try. So is the lease of a call
    /// that is dropped midway.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let pages = Cache::open_or_create(&store, "pages").await?;
    /// async fn render(path: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    ///     if path == "/broken" { Err("no such template".into()) } else { Ok(format!("<h1>{path}</h1>")) }
    /// }
    /// let page = pages.get_or_rebuild("/index", || render("/index")).await.unwrap();
    /// assert_eq!(page.value, "<h1>/index</h1>");
    /// let error = pages.get_or_rebuild("/broken", || render("/broken")).await.unwrap_err();
    /// assert_eq!(error.to_string(), "no such template");
    /// assert!(pages.get("/broken").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `rebuild`, and those of [`lookup`](Cache::lookup), as `rebuild`'s type has them. A value that was made and could not be cached is no error: see [`Source::Rebuilt`].
    pub async fn get_or_rebuild<V, E, Fut>(
        &self,
        key: impl AsRef<[u8]>,
        rebuild: impl FnOnce() -> Fut,
    ) -> Result<Cached, E>
    where
        V: Into<Bytes>,
        E: From<Error>,
        Fut: Future<Output = Result<V, E>>,
    {
        let lease = match self.lookup(key).await? {
            Lookup::Found(cached) => return Ok(cached),
            Lookup::Rebuild(lease) => lease.renewing(),
        };
        match rebuild().await {
            Ok(value) => Ok(lease.finish(value).await),
            Err(error) => {
                lease.give_up().await;
                Err(error)
            }
        }
    }

    /// The value of a key, or the lease to rebuild it: [`get_or_rebuild`](Cache::get_or_rebuild) in two steps. Waits while somebody else rebuilds a value of which there
    /// is no stale one. **Round trips: 1** for a hit, 2 for a lease.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// use larder_structures::cache::Lookup;
    /// # let pages = Cache::open_or_create(&store, "pages").await?;
    /// match pages.lookup("/index").await? {
    ///     Lookup::Found(page) => println!("{} bytes", page.value.len()),
    ///     Lookup::Rebuild(rebuild) => _ = rebuild.finish("<html>").await,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a key of more than [`KEY_BYTES_MAX`] bytes; [`Timeout`](ErrorKind::Timeout) where somebody else's rebuild outlasts
    /// [`wait`](CacheOptions::wait); [`LayoutMismatch`](ErrorKind::LayoutMismatch) where another program wrote under the entry's key (an invalidation mends it);
    /// [`Absent`](ErrorKind::Absent) where the cache was dropped and this handle may not make it; [`Unsupported`](ErrorKind::Unsupported) where it would have to wait outside a Tokio
    /// runtime; those of the store. After one with the effect `Unknown` a lease may have been taken: it is given up beside the caller, and where that
    /// fails, too, ends with its time. So is that of a lookup that is dropped midway.
    pub async fn lookup(&self, key: impl AsRef<[u8]>) -> Result<Lookup> {
        self.0.lookup(key.as_ref()).await
    }

    /// What is cached, fresh or stale; rebuilds nothing and waits for nobody. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let pages = Cache::open_or_create(&store, "pages").await?;
    /// assert!(pages.get("/index").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`lookup`](Cache::lookup), but for those of waiting.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Cached>> {
        self.0.get(key.as_ref()).await
    }

    /// Removes the value of a key, stale or fresh; the next who asks rebuilds it. A rebuild that is under way is not cached any more. **Round trips: 1.**
    ///
    /// Whoever asks after this has returned, by a handle of the same life of the cache, gets what was made after it began. Where others made the cache anew since this handle was opened (its manifest was evicted, or dropped), that is the life that
    /// is now, if the manifest can be read; a handle that has not noticed yet goes on with the life before, and its values, for a minute at the most. An invalidation whose reply is lost is sent again: that costs no more than a value that was made meanwhile.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let pages = Cache::open_or_create(&store, "pages").await?;
    /// pages.get_or_rebuild("/index", async || Ok::<_, larder_core::Error>("<html>")).await?;
    /// pages.invalidate("/index").await?;
    /// assert!(pages.get("/index").await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the store. With the effect `Unknown` the value may still be there, or go yet.
    pub async fn invalidate(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.0.invalidate(key.as_ref()).await
    }

    /// The most bytes that the value of this key can have on this store.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Cache;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let pages = Cache::open_or_create(&store, "pages").await?;
    /// assert!(pages.value_bytes_max("/index") > 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_bytes_max(&self, key: impl AsRef<[u8]>) -> usize {
        self.0.value_bytes_max(key.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_times_are_limited_as_documented() {
        assert_eq!((KEY_BYTES_MAX, DAY), (8_192, Duration::from_secs(86_400)));
    }

    #[test]
    fn ttl_and_stale_window_together_may_be_as_long_as_the_store_keeps_anything() {
        let profile = Profile { ttl_max: Duration::from_secs(100), ..Profile::unlimited("test") };
        let checked = |stale_ms| {
            let options = Cache::options().ttl(Duration::from_secs(60)).stale(Duration::from_millis(stale_ms));
            options.check(&profile).map_err(|error| error.kind())
        };
        assert_eq!([checked(40_000), checked(40_001)], [Ok(()), Err(ErrorKind::BadInput)]);
    }
}
