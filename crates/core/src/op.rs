//! Ops: commands as data.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::native::Native;
use crate::profile::{Profile, Ranges};

/// One command to a store: a key, where the key lives, and what to do with it.
///
/// ```
/// use larder_core::{Key, Op, PutMode, Ttl, Want};
/// let key = Key::new("greeting")?;
/// let batch = [
///     Op::put(key.clone(), PutMode::Set, "hello", Ttl::Never),
///     Op::get(key, Want::VALUE | Want::CAS),
/// ];
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The key the op reads or writes.
    pub key: Key,
    /// Which server of a fleet holds the key. [`Route::default`] unless a structure places copies itself.
    pub route: Route,
    /// What to do.
    pub verb: Verb,
}

/// What an [`Op`] does with its key.
///
/// ```
/// use larder_core::{Key, Op, Verb, Want};
/// let key = Key::new("k")?;
/// assert_eq!(Op::get(key, Want::CAS).verb, Verb::Get { want: Want::CAS });
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Read the item. Answers [`Item`](crate::Reply::Item) or [`Miss`](crate::Reply::Miss).
    Get {
        /// Which parts of the item to bring.
        want: Want,
    },
    /// Write the item. Answers [`Stored`](crate::Reply::Stored), [`NotStored`](crate::Reply::NotStored),
    /// [`Exists`](crate::Reply::Exists) or [`Miss`](crate::Reply::Miss); [`PutMode`] says which and when.
    Put {
        /// Under which condition, and how.
        mode: PutMode,
        /// The value, or what is joined to it.
        value: Bytes,
        /// An opaque number kept with the item. Append and prepend keep the old one.
        flags: u32,
        /// How long the item lives. Append and prepend keep the old one.
        ttl: Ttl,
    },
    /// Remove the item. Answers [`Deleted`](crate::Reply::Deleted), [`Miss`](crate::Reply::Miss), and with a token
    /// [`Exists`](crate::Reply::Exists) where the item is another than the one that was read.
    Delete {
        /// Only if the item still has this token.
        cas: Option<Cas>,
    },
    /// Give the item another life. Answers [`Touched`](crate::Reply::Touched) or [`Miss`](crate::Reply::Miss).
    /// The cas token stays as it was.
    Touch {
        /// The new life, counted from now.
        ttl: Ttl,
    },
    /// Add to, or subtract from, a value of decimal digits, unsigned, 64 bits. Answers
    /// [`Number`](crate::Reply::Number) with the new value, or [`Miss`](crate::Reply::Miss) (without `initial`).
    /// A value that is not a number is [`ErrorKind::BadInput`], and stays as it is.
    Arith {
        /// By how much, and which way.
        arith: Arith,
        /// What to store, and for how long, where there is no item; the delta is not applied to it.
        initial: Option<Initial>,
    },
    /// Read a part of the value. Answers [`Item`](crate::Reply::Item) with those bytes of the range that there are, none behind the
    /// end, or [`Miss`](crate::Reply::Miss). Optional: see [`Ranges`] and [`range`](crate::range).
    GetRange {
        /// From which byte.
        offset: u64,
        /// How many at the most.
        len: u64,
    },
    /// Write over a part of the value of an item that is there. Answers [`Stored`](crate::Reply::Stored), or
    /// [`Miss`](crate::Reply::Miss) where there is none: what was lost is never made again of a part. A gap behind the end is filled
    /// with zeros; over the limit of a value it is [`ErrorKind::BadInput`]. Life and flags stay, the cas token changes; an empty value
    /// changes no byte. Optional: see [`Ranges`] and [`range`](crate::range).
    PutRange {
        /// From which byte.
        offset: u64,
        /// The bytes.
        value: Bytes,
    },
    /// Wait until the item is another than the one that was read, or until the deadline. Answers
    /// [`Changed`](crate::Reply::Changed), also where it may have changed and nobody can tell (a connection was lost): look, and see; or
    /// [`Unchanged`](crate::Reply::Unchanged) when the deadline has come. It changes nothing. Optional: see `watch` in the profile.
    ///
    /// Watches of one batch end together, with the first of them: a batch of them waits until *any* of its items is another. Send no other
    /// ops with them, whose replies would wait as long.
    Watch {
        /// The token of the item as it was read; `None`: there was none.
        seen: Option<Cas>,
    },
    /// What some stores can do besides. Answers [`Native`](crate::Reply::Native). Optional, by families: see [`native`](crate::native).
    Native(Box<Native>),
}

/// The two ways of arithmetic, as memcached has them.
///
/// ```
/// use larder_core::{Arith, Key, Op};
/// let key = Key::new("k")?;
/// let op = Op::arith(key, Arith::Decr(2));
/// assert_eq!(op.name(), "decr");
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arith {
    /// Add; wraps around at 2^64.
    Incr(u64),
    /// Subtract; stops at 0.
    Decr(u64),
}

/// The item that arithmetic makes where there is none.
///
/// ```
/// use larder_core::{Arith, Initial, Key, Op, Ttl, Verb};
/// let key = Key::new("k")?;
/// let initial = Some(Initial { value: 1, ttl: Ttl::Never });
/// let op = Op::new(key, Verb::Arith { arith: Arith::Incr(1), initial });
/// assert!(!op.is_read());
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initial {
    /// The number it starts as.
    pub value: u64,
    /// How long it lives.
    pub ttl: Ttl,
}

/// When a put takes effect, and how.
///
/// ```
/// use larder_core::{Key, Op, PutMode, Ttl};
/// let key = Key::new("k")?;
/// let op = Op::put(key, PutMode::Append, "tail", Ttl::Never);
/// assert_eq!(op.name(), "append");
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Always. Answers `Stored`.
    Set,
    /// Only where there is no item. Answers `Stored` or `NotStored`.
    Add,
    /// Only where there is an item. Answers `Stored` or `NotStored`.
    Replace,
    /// Joins the value behind the item's. Answers `Stored`, or `NotStored` where there is no item **or the item would
    /// outgrow the limit** (memcached does not tell which: read the item to know).
    Append,
    /// Joins the value before the item's. Answers as `Append` does.
    Prepend,
    /// Only if the item still has this token. Answers `Stored`, `Exists` (another item, or the token's connection has
    /// ended) or `Miss`.
    Cas(Cas),
}

/// A cas token: the version of an item, as a store told it in answer to a get with [`Want::CAS`].
///
/// It is opaque, and valid only on the `session` that read it: stores draw tokens anew after a restart, so an old token can
/// match a strange item by accident. A store refuses a token of a session that has ended with
/// [`Exists`](crate::Reply::Exists), and sends nothing. It is **not** a fencing token: it can go backwards.
///
/// ```
/// use larder_core::{Cas, Key, Op, PutMode, Ttl};
/// let key = Key::new("k")?;
/// let read = Cas { token: 7, session: 1 }; // as a get brought it
/// let op = Op::put(key, PutMode::Cas(read), "new", Ttl::Never);
/// assert_eq!(op.cas(), Some(read));
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cas {
    /// The store's own number.
    pub token: u64,
    /// What the token is valid with: a connection of a network store, a life of an embedded one. Where tokens outlive connections (Redis), a
    /// further part of the version.
    pub session: u64,
}

/// How long an item lives.
///
/// Stores may be coarser than a duration is: memcached counts whole seconds, and a life of T seconds ends after T-1 to T of
/// them (its clock ticks once a second); a part of a second is rounded up. The longest life is in the profile.
///
/// ```
/// use larder_core::Ttl;
/// assert_eq!(Ttl::default(), Ttl::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ttl {
    /// Until it is deleted (or evicted, where the store does that).
    #[default]
    Never,
    /// This long from now. Zero is refused.
    After(Duration),
}

impl Ttl {
    /// A life of `ttl`.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for zero: it means "for ever" to memcached and "at once" to others.
    ///
    /// ```
    /// use larder_core::Ttl;
    /// use std::time::Duration;
    /// assert_eq!(Ttl::after(Duration::from_secs(5))?, Ttl::After(Duration::from_secs(5)));
    /// assert!(Ttl::after(Duration::ZERO).is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn after(ttl: Duration) -> Result<Ttl> {
        if ttl.is_zero() {
            return Err(Error::new(
                ErrorKind::BadInput,
                "a ttl is 0; the shortest is 1 ms (leave the ttl out for an item that never expires)",
            ));
        }
        Ok(Ttl::After(ttl))
    }

    /// How long the life is, for a store that keeps items no longer than `max`; `None` for one that never ends.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for zero, as [`after`](Ttl::after), and for more than `max`, naming both.
    ///
    /// ```
    /// use larder_core::Ttl;
    /// use std::time::Duration;
    /// let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
    /// assert_eq!(Ttl::After(second).within(hour)?, Some(second));
    /// assert_eq!(Ttl::After(hour).within(hour)?, Some(hour));
    /// assert_eq!(Ttl::Never.within(hour)?, None);
    /// let error = Ttl::After(hour).within(second).unwrap_err();
    /// assert_eq!(error.detail(), "a ttl is 3600s; the limit is 1s");
    /// assert!(Ttl::After(Duration::ZERO).within(hour).is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn within(self, max: Duration) -> Result<Option<Duration>> {
        let Ttl::After(life) = self else { return Ok(None) };
        Ttl::after(life)?;
        if life > max {
            return Err(Error::new(ErrorKind::BadInput, format!("a ttl is {life:?}; the limit is {max:?}")));
        }
        Ok(Some(life))
    }
}

bitflags::bitflags! {
    /// Which parts of an item a get brings. A hit is told apart from a miss with none of them, too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Want: u8 {
        /// The value.
        const VALUE = 1;
        /// The cas token.
        const CAS = 2;
        /// The flags.
        const FLAGS = 4;
        /// The remaining life. Not every store can tell (see `remaining_ttl` in the profile).
        const TTL = 8;
    }
}

/// Which server of a fleet holds a key.
///
/// A store of one node ignores it. A fleet ranks its servers for every routing key; rank 0 is the server that holds the key,
/// rank 1 the one that holds its first copy, and so on.
///
/// ```
/// use larder_core::{Key, Op, Route, Want};
/// let key = Key::new("k")?;
/// let copy = Op::get(key, Want::VALUE).routed(Route { with: None, rank: 1 });
/// assert_eq!(copy.route.rank, 1);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Route {
    /// Routes as this key would, instead of the op's own: keys that belong together share one.
    pub with: Option<Key>,
    /// Which copy; must be less than the number of nodes in the profile.
    pub rank: u8,
}

/// Ops that are sent together. One op needs no allocation.
///
/// Ops on one key take effect in the order of the batch; ops on different keys in any order, and each alone: a batch is no
/// transaction. A store that has several nodes sends to all of them at once.
///
/// ```
/// use larder_core::{Batch, Key, Op, Want};
/// let key = Key::new("k")?;
/// let batch = Batch::from_iter([Op::get(key.clone(), Want::VALUE), Op::delete(key)]);
/// assert_eq!(batch.len(), 2);
/// # Ok::<(), larder_core::Error>(())
/// ```
pub type Batch = SmallVec<[Op; 1]>;

impl Op {
    /// A get.
    ///
    /// ```
    /// use larder_core::{Key, Op, Want};
    /// let key = Key::new("k")?;
    /// assert!(Op::get(key, Want::VALUE).is_read());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn get(key: Key, want: Want) -> Op {
        Op::new(key, Verb::Get { want })
    }

    /// A put with flags of 0.
    ///
    /// ```
    /// use larder_core::{Key, Op, PutMode, Ttl};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::put(key, PutMode::Add, "v", Ttl::Never).name(), "add");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn put(key: Key, mode: PutMode, value: impl Into<Bytes>, ttl: Ttl) -> Op {
        Op::new(key, Verb::Put { mode, value: value.into(), flags: 0, ttl })
    }

    /// A delete of whatever is there.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::delete(key).cas(), None);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn delete(key: Key) -> Op {
        Op::new(key, Verb::Delete { cas: None })
    }

    /// A delete of the item that was read, and of no other.
    ///
    /// ```
    /// use larder_core::{Cas, Key, Op};
    /// let key = Key::new("k")?;
    /// let cas = Cas { token: 7, session: 1 };
    /// assert_eq!(Op::delete_if(key, cas).cas(), Some(cas));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn delete_if(key: Key, cas: Cas) -> Op {
        Op::new(key, Verb::Delete { cas: Some(cas) })
    }

    /// A touch.
    ///
    /// ```
    /// use larder_core::{Key, Op, Ttl};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::touch(key, Ttl::Never).name(), "touch");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn touch(key: Key, ttl: Ttl) -> Op {
        Op::new(key, Verb::Touch { ttl })
    }

    /// Arithmetic on an item that is there; a miss where it is not.
    ///
    /// ```
    /// use larder_core::{Arith, Key, Op};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::arith(key, Arith::Incr(1)).name(), "incr");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn arith(key: Key, arith: Arith) -> Op {
        Op::new(key, Verb::Arith { arith, initial: None })
    }

    /// A read of at most `len` bytes from `offset` on.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// assert!(Op::get_range(Key::new("k")?, 10, 5).is_read());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn get_range(key: Key, offset: u64, len: u64) -> Op {
        Op::new(key, Verb::GetRange { offset, len })
    }

    /// A write over the bytes from `offset` on of an item that is there.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// assert_eq!(Op::put_range(Key::new("k")?, 10, "bytes").name(), "put range");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn put_range(key: Key, offset: u64, value: impl Into<Bytes>) -> Op {
        Op::new(key, Verb::PutRange { offset, value: value.into() })
    }

    /// A wait until the item is another than the one with this token; with `None`, until there is one.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// assert_eq!(Op::watch(Key::new("k")?, None).name(), "watch");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn watch(key: Key, seen: Option<Cas>) -> Op {
        Op::new(key, Verb::Watch { seen })
    }

    /// A native op.
    ///
    /// ```
    /// use larder_core::{Key, Op, native::Native};
    /// assert_eq!(Op::native(Key::new("k")?, Native::HashLen).name(), "hash len");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn native(key: Key, native: Native) -> Op {
        Op::new(key, Verb::Native(Box::new(native)))
    }

    /// The bytes of values, fields and members that it sends beside its key, without what a protocol adds.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// assert_eq!(Op::put_range(Key::new("k")?, 10, "bytes").value_bytes(), 5);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn value_bytes(&self) -> usize {
        match &self.verb {
            Verb::Put { value, .. } | Verb::PutRange { value, .. } => value.len(),
            Verb::Native(native) => native.bytes(),
            _ => 0,
        }
    }

    /// An op with the default route.
    ///
    /// ```
    /// use larder_core::{Key, Op, Verb};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::new(key.clone(), Verb::Delete { cas: None }), Op::delete(key));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(key: Key, verb: Verb) -> Op {
        Op { key, route: Route::default(), verb }
    }

    /// The same op, routed otherwise.
    ///
    /// ```
    /// use larder_core::{Key, Op, Route};
    /// let key = Key::new("k")?;
    /// let together = Route { with: Some(Key::new("family")?), rank: 0 };
    /// assert_eq!(Op::delete(key).routed(together.clone()).route, together);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn routed(mut self, route: Route) -> Op {
        self.route = route;
        self
    }

    /// True where running it twice, or running it and not knowing, does no harm: it changes nothing.
    ///
    /// ```
    /// use larder_core::{Key, Op, Want};
    /// let key = Key::new("k")?;
    /// assert!(Op::get(key.clone(), Want::empty()).is_read());
    /// assert!(!Op::delete(key).is_read());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn is_read(&self) -> bool {
        match &self.verb {
            Verb::Get { .. } | Verb::GetRange { .. } | Verb::Watch { .. } => true,
            Verb::Native(native) => native.is_read(),
            Verb::Put { .. } | Verb::Delete { .. } | Verb::Touch { .. } | Verb::Arith { .. } => false,
            Verb::PutRange { .. } => false,
        }
    }

    /// Fails if the op is one of the optional ones and a store of this profile has it not, or if it is one that every store refuses.
    /// Each store asks before it sends anything.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], or [`ErrorKind::BadInput`] for a native op that says nothing ([`Native::check`]).
    ///
    /// ```
    /// use larder_core::{ErrorKind, Key, Op, Profile, Want, native::Native};
    /// let profile = Profile::unlimited("example");
    /// assert!(Op::get(Key::new("k")?, Want::VALUE).check(&profile).is_ok());
    /// let error = Op::native(Key::new("k")?, Native::SetLen).check(&profile).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unsupported);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[inline]
    pub fn check(&self, profile: &Profile) -> Result<()> {
        let checked = match &self.verb {
            Verb::GetRange { .. } | Verb::PutRange { .. } if profile.ranges != Ranges::Native => Err(self.lacking()),
            Verb::Watch { .. } if !profile.watch => Err(self.lacking()),
            Verb::Native(native) if !profile.natives.contains(native.family()) => Err(self.lacking()),
            Verb::Native(native) => native.check(),
            _ => return Ok(()),
        };
        checked.map_err(|error| error.op(self).store(profile.store.clone()))
    }

    /// The error of an optional op that a store has not.
    ///
    /// ```
    /// use larder_core::{Key, Op, native::Native};
    /// let op = Op::native(Key::new("k")?, Native::SetLen);
    /// assert_eq!(op.lacking().to_string(), "unsupported: the store has no set len");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[cold]
    pub fn lacking(&self) -> Error {
        Error::new(ErrorKind::Unsupported, format!("the store has no {}", self.name()))
    }

    /// The token the op depends on, if it depends on one.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::delete(key).cas(), None);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn cas(&self) -> Option<Cas> {
        match self.verb {
            Verb::Put { mode: PutMode::Cas(cas), .. } => Some(cas),
            Verb::Delete { cas } => cas,
            _ => None,
        }
    }

    /// The op's name, for errors and metrics.
    ///
    /// ```
    /// use larder_core::{Key, Op};
    /// let key = Key::new("k")?;
    /// assert_eq!(Op::delete(key).name(), "delete");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn name(&self) -> &'static str {
        match &self.verb {
            Verb::Get { .. } => "get",
            Verb::Put { mode, .. } => match mode {
                PutMode::Set => "set",
                PutMode::Add => "add",
                PutMode::Replace => "replace",
                PutMode::Append => "append",
                PutMode::Prepend => "prepend",
                PutMode::Cas(_) => "cas",
            },
            Verb::Delete { .. } => "delete",
            Verb::Touch { .. } => "touch",
            Verb::Arith { arith: Arith::Incr(_), .. } => "incr",
            Verb::Arith { arith: Arith::Decr(_), .. } => "decr",
            Verb::GetRange { .. } => "get range",
            Verb::PutRange { .. } => "put range",
            Verb::Watch { .. } => "watch",
            Verb::Native(native) => native.name(),
        }
    }
}
