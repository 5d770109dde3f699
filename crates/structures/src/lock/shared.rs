//! What the clones and guards of one handle share: the store, the options, and what was seen of the record.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use larder_core::observe::Subject;
use larder_core::{ClockRef, Ctx, Effect, Error, ErrorKind, Item, Result, StoreRef, Ttl};

use super::LockOptions;
use super::guard::Term;
use super::layout::{Found, RECORD_TTL, Record};
use super::sight::{Sight, Verdict};
use crate::cell::{Cell, Wrote};
use crate::events;
use crate::keepers::Keepers;
use crate::manifest::Kind;
use crate::name::Name;

/// Writes that letting go may take when others, or an earlier try of its own, get in between.
const RELEASE_WRITES_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: StoreRef,
    pub(super) name: Name,
    pub(super) cell: Cell,
    pub(super) lease: Duration,
    pub(super) label: Bytes,
    pub(super) timeout: Duration,
    pub(super) clock: ClockRef,
    /// Protects what was seen, never held across an await: so a plain mutex.
    sight: Mutex<Sight>,
    /// One waiter a handle polls the store at a time, the others queue behind it. Held across awaits, and fair.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// The last look of the one that polls failed: nobody may have the lock.
    pub(super) is_failing: AtomicBool,
    /// Wakes the waiter that polls when this handle lets go.
    pub(super) freed: tokio::sync::Notify,
    /// Renews the leases of the guards.
    pub(super) keepers: Keepers<Term>,
}

/// How often the wall clock is asked whether it went on, before that is left to a pause. One that shows microseconds has within as many readings.
const TICK_READINGS: usize = 64;
/// How many pauses it gets. A clock that stands still for longer is a test's.
const TICK_PAUSES: usize = 4;
const TICK_PAUSE: Duration = Duration::from_millis(1);

/// What is known after a write.
pub(super) struct Put {
    /// As in [`Wrote`].
    pub(super) landed: Result<bool>,
    /// What the record is after it.
    pub(super) now: Result<Option<Found>>,
}

/// How letting go ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetGo {
    /// It was the owner's until now, and is free.
    Freed,
    /// It was not the owner's any more.
    NotOurs,
}

impl Shared {
    pub(super) fn new(store: StoreRef, name: Name, options: LockOptions) -> Result<Shared> {
        let LockOptions { lease, label, timeout, clock, existing: _ } = options;
        let cell = Cell::new(name.manifest_key()?);
        // What is stored counts whole milliseconds.
        let lease = Duration::from_millis(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        Ok(Shared {
            store,
            name,
            cell,
            lease,
            label,
            timeout,
            clock,
            sight: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            is_failing: AtomicBool::new(false),
            freed: tokio::sync::Notify::new(),
            keepers: Keepers::default(),
        })
    }

    pub(super) fn ctx(&self) -> Ctx {
        Ctx::within(self.timeout)
    }

    /// The wall clock, in microseconds since the Unix epoch.
    pub(super) fn wall_us(&self) -> u64 {
        u64::try_from(self.clock.wall().as_micros()).unwrap_or(u64::MAX)
    }

    /// The wall clock once it has gone on. Who made the record takes his token from that: the one that was lost before may have been written at the very time that the clock shows now, with that time
    /// for its token, and two holders must not have the same.
    pub(super) async fn next_wall_us(&self) -> u64 {
        let first = self.wall_us();
        let has_gone_on = |wall_us: &u64| *wall_us > first;
        if let Some(wall_us) = (0..TICK_READINGS).map(|_| self.wall_us()).find(has_gone_on) {
            return wall_us;
        }
        for _ in 0..TICK_PAUSES {
            tokio::time::sleep(TICK_PAUSE).await;
            if let Some(wall_us) = Some(self.wall_us()).filter(has_gone_on) {
                return wall_us;
            }
        }
        first
    }

    pub(super) fn sight(&self) -> MutexGuard<'_, Sight> {
        // It is only ever replaced field by field: whole after a panic, too.
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn judge(&self, view: Option<&Found>) -> Verdict {
        self.sight().judge(view, self.clock.monotonic(), self.lease, &self.store.profile())
    }

    /// Reads the record. **Round trips: 1.**
    pub(super) async fn read(&self, ctx: Ctx) -> Result<Option<Found>> {
        self.seen(self.cell.read(&self.store, ctx).await?)
    }

    /// Takes note of an item that was just received.
    fn seen(&self, item: Option<Item>) -> Result<Option<Found>> {
        let view = Found::of(&self.name, item)?;
        self.sight().note(view.as_ref(), self.clock.monotonic());
        Ok(view)
    }

    /// Writes the record, conditional on what was seen, and reads it back. **Round trips: 1**, 2 where a lost reply leaves
    /// both in the dark.
    pub(super) async fn put(&self, ctx: Ctx, before: Option<&Found>, record: &Record) -> Put {
        let (value, ttl) = (record.encode(), Ttl::After(RECORD_TTL));
        let wrote = match before {
            Some(found) => self.cell.write(&self.store, ctx, found.cas, value.clone(), ttl).await,
            None => self.cell.create(&self.store, ctx, value.clone(), ttl).await,
        };
        let Wrote { mut landed, now } = wrote;
        let mut now = now.and_then(|item| self.seen(item));
        if now.is_err() && landed.as_ref().is_err_and(Error::is_unknown) {
            now = self.read(ctx).await;
            if matches!(&now, Ok(Some(found)) if found.value == value) {
                landed = Ok(true);
            }
        }
        Put { landed, now }
    }

    /// Frees the lock if `owner` has it, starting from the record last seen or else from a read.
    /// **Round trips: 1** from a record that still stands, 2 otherwise.
    ///
    /// # Errors
    /// With [`Effect::Unknown`], the release may have landed or may yet; it is never a blind one.
    pub(super) async fn let_go(&self, ctx: Ctx, owner: u64, start: Option<Found>) -> Result<LetGo> {
        let mut view = match start {
            Some(found) => Some(found),
            None => self.read(ctx).await?,
        };
        let mut doubt: Option<Error> = None;
        for _ in 0..RELEASE_WRITES_MAX {
            let Some(found) = view.filter(|found| found.record.owner == owner) else {
                // Where a reply was lost, the release may have landed before somebody else took the lock, or not.
                return doubt.map_or(Ok(LetGo::NotOurs), Err);
            };
            if !found.record.held {
                return Ok(LetGo::Freed);
            }
            view = match self.free(ctx, &found, &found.record.freed(), &mut doubt).await? {
                ControlFlow::Break(()) => return Ok(LetGo::Freed),
                ControlFlow::Continue(now) => now,
            };
        }
        Err(doubt.unwrap_or_else(|| self.conflict(RELEASE_WRITES_MAX)))
    }

    /// Writes `freed` over the record that was `found`. `Break`: the lock is free, and a waiter of this handle is woken.
    /// `Continue`: it is not by this write, and what stands there now. An outcome that is unknown is kept in `doubt`, which
    /// every later error gives way to.
    pub(super) async fn free(
        &self,
        ctx: Ctx,
        found: &Found,
        freed: &Record,
        doubt: &mut Option<Error>,
    ) -> Result<ControlFlow<(), Option<Found>>> {
        let put = self.put(ctx, Some(found), freed).await;
        match put.landed {
            Ok(true) => {
                self.freed.notify_one();
                return Ok(ControlFlow::Break(()));
            }
            Ok(false) => {}
            Err(error) if error.is_unknown() => *doubt = Some(error),
            Err(error) => return Err(doubt.take().unwrap_or(error)),
        }
        put.now
            .map(ControlFlow::Continue)
            .map_err(|error| doubt.take().unwrap_or_else(|| error.effect(Effect::NotApplied)))
    }

    /// The error for a write that others, or breaking connections, kept from landing.
    pub(super) fn conflict(&self, writes: usize) -> Error {
        let detail = format!("the lock {} changed under {writes} conditional writes; that is the limit", self.name);
        Error::new(ErrorKind::Conflict, detail).store(self.store.profile().store.clone())
    }

    /// The error for a record that this handle saw, and that is gone.
    pub(super) fn lost(&self, advice: &str) -> Error {
        let detail = format!("the record of the lock {} was there and is gone{advice}", self.name);
        let error = Error::new(ErrorKind::Lost, detail).store(self.store.profile().store.clone());
        events::loss(self.subject(), error)
    }

    /// The lock, as events name it.
    pub(super) fn subject(&self) -> Subject<'_> {
        events::subject(Kind::Lock, &self.name)
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
