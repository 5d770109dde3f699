//! The exact counter: what a handle knows of its slots, and the reads over all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{Batch, ClockRef, Ctx, Error, ErrorKind, Result, StoreRef, ambient};

use super::layout::Slot;
use super::register::{Job, Registers, View, Written};
use super::writer::{Tries, is_idle};
use crate::events;
use crate::manifest::Manifest;
use crate::name::Name;
use crate::vigil::Sight;

/// What all clones of a handle share.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) registers: Registers,
    pub(super) timeout: Duration,
    pub(super) clock: ClockRef,
    pub(super) name: Name,
    /// The highest sequence seen of each slot. Held for a copy or a comparison, never across an await.
    seen: Mutex<Vec<u64>>,
}

impl Slots {
    pub(super) fn new(
        store: StoreRef,
        name: Name,
        manifest: &Manifest,
        timeout: Duration,
        clock: ClockRef,
    ) -> Result<Arc<Slots>> {
        let registers = Registers::new(store, &name, manifest, clock.clone())?;
        let seen = Mutex::new(vec![0; registers.places.len()]);
        Ok(Arc::new(Slots { registers, timeout, clock, name, seen }))
    }

    /// The total. **Round trips: 1.**
    pub(super) async fn total(&self) -> Result<i128> {
        let views = self.read_all(Ctx::within(self.timeout)).await?;
        sum(views.iter())
    }

    /// Every slot, or an error. **Round trips: 1**, one more to word a loss.
    pub(super) async fn read_all(&self, ctx: Ctx) -> Result<Vec<View>> {
        self.look(ctx, 0..self.registers.len()).await?.into_iter().collect()
    }

    /// Slots, each on its own, where the server of one may be down. One that is gone, or older than it was, fails them all.
    pub(super) async fn look(&self, ctx: Ctx, indices: impl Iterator<Item = u16> + Clone) -> Result<Vec<Result<View>>> {
        // What another task sees while this read is under way must not make this read look like an old state.
        let seen = self.seen().clone();
        let reads = self.registers.read(ctx, indices.clone()).await;
        let mut views = Vec::with_capacity(reads.len());
        let mut lost = Vec::new();
        for (index, read) in indices.zip(reads) {
            let known_seq = seen.get(usize::from(index)).copied().unwrap_or(0);
            match read {
                Ok(None) => lost.push(index),
                Ok(Some(view)) if view.slot.seq < known_seq => return Err(self.rolled_back(index, known_seq, &view)),
                Ok(Some(view)) => {
                    self.saw(index, &view);
                    views.push(Ok(view));
                }
                Err(error) => views.push(Err(error)),
            }
        }
        if lost.is_empty() { Ok(views) } else { Err(self.lost(ctx, &lost, &views).await) }
    }

    /// Makes missing copies again until none is missing; how many slots it mended.
    /// **Round trips: 5**, 1 where nothing is missing.
    pub(super) async fn repair(&self) -> Result<u16> {
        let ctx = Ctx::within(self.timeout);
        let mut tries = Tries::new(ctx);
        let mut mended = 0;
        loop {
            let views = self.read_all(ctx).await?;
            if let Some(fault) = views.iter().find_map(View::fault) {
                return Err(fault.clone());
            }
            if !views.iter().any(View::is_thin) {
                return Ok(mended);
            }
            match self.mend(ctx, views, |_, _| true).await {
                Ok(now) => mended += now,
                Err(error) => tries.fault(error, true).await?,
            }
            tries.conflict().await?;
        }
    }

    /// Tries once to make the missing copies of idle slots again, but for the slot at `but`. **Round trips: 4.**
    pub(super) async fn mend_idle(&self, ctx: Ctx, but: u16) -> Result<u16> {
        let now_ms = self.now_ms();
        let views = self.read_all(ctx).await?;
        self.mend(ctx, views, |index, slot| index != but && is_idle(slot, now_ms)).await
    }

    /// Writes slots that miss a copy, and for which `may` holds, as they are; how many it did. **Round trips: 3.**
    async fn mend(&self, ctx: Ctx, views: Vec<View>, may: impl Fn(u16, &Slot) -> bool) -> Result<u16> {
        let thin = (0..).zip(views).filter(|(index, view)| view.is_thin() && may(*index, &view.slot));
        let jobs: Vec<Job> = thin.map(|(index, view)| Job { index, next: view.slot.clone(), view }).collect();
        let mut mended = 0;
        let mut fault = None;
        for (landed, _) in self.write(ctx, jobs).await {
            match landed {
                Ok(true) => mended += 1,
                // Somebody else is writing it, and so mends it.
                Ok(false) => {}
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or(Ok(mended), Err)
    }

    /// Writes slots, and remembers how far they have come. A slot that went back meanwhile is left to be read again, which
    /// words it. **Round trips:** as of [`Registers::write`].
    pub(super) async fn write(&self, ctx: Ctx, jobs: Vec<Job>) -> Vec<(Result<bool>, Option<View>)> {
        let bases: Vec<(u16, u64)> = jobs.iter().map(|job| (job.index, job.view.slot.seq)).collect();
        let written = self.registers.write(ctx, jobs).await;
        let note = |((index, base_seq), written): ((u16, u64), Written)| {
            let now = written.now.ok().flatten().filter(|view| !view.settled || view.slot.seq >= base_seq);
            if let Some(view) = &now {
                self.saw(index, view);
            }
            (written.landed, now)
        };
        bases.into_iter().zip(written).map(note).collect()
    }

    /// Remembers how far a slot has come.
    fn saw(&self, index: u16, view: &View) {
        // What is not settled may be replaced by something of a lower sequence.
        if view.settled
            && let Some(seen) = self.seen().get_mut(usize::from(index))
        {
            *seen = view.slot.seq.max(*seen);
        }
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX)
    }

    fn seen(&self) -> MutexGuard<'_, Vec<u64>> {
        // A panic while it was held leaves whole numbers.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rolled_back(&self, index: u16, known_seq: u64, view: &View) -> Error {
        let detail = format!(
            "slot {index} of counter {} is at write {}; this handle has seen write {known_seq}",
            self.name, view.slot.seq
        );
        events::loss(self.registers.vigil.subject(), self.of_store(Error::new(ErrorKind::RolledBack, detail)))
    }

    /// The error for a slot that lacks an add of this handle's that was acknowledged, behind so many writes at the least.
    pub(super) fn lacks(&self, index: u16, base_seq: u64, view: &View) -> Error {
        let detail = format!(
            "slot {index} of counter {} is at write {} and lacks an add of this handle that came behind write {base_seq} and was acknowledged",
            self.name, view.slot.seq
        );
        events::loss(self.registers.vigil.subject(), self.of_store(Error::new(ErrorKind::RolledBack, detail)))
    }

    /// The error for a slot whose sum is another one than it was at the same write.
    pub(super) fn differs(&self, index: u16, base_sum: i128, view: &View) -> Error {
        let detail = format!(
            "slot {index} of counter {} is at write {} with a sum of {}; this handle has read {base_sum} there",
            self.name, view.slot.seq, view.slot.sum
        );
        events::loss(self.registers.vigil.subject(), self.of_store(Error::new(ErrorKind::RolledBack, detail)))
    }

    /// The error for slots that are gone: the manifest tells whether the counter was dropped.
    async fn lost(&self, ctx: Ctx, lost: &[u16], rest: &[Result<View>]) -> Error {
        // A look only: what makes copies of the manifest again might do so behind a drop.
        let why = match self.registers.vigil.look(ctx, Batch::new()).await.1 {
            Sight::Ours { .. } => "evicted, or their server was restarted",
            Sight::Another => "the counter was dropped and made again; open it anew",
            Sight::Gone { .. } => "the manifest is gone too: the counter was dropped, or its server was restarted",
            Sight::Unread(_) => "the manifest cannot be read either",
        };
        let slots = self.registers.len();
        let rest = match sum(rest.iter().flatten()) {
            Ok(rest) => format!("those that were read sum to {rest}"),
            Err(_) => "the sum of the others overflows".to_owned(),
        };
        let (gone, listed) = (lost.len(), Listed(lost));
        let detail =
            format!("{gone} of the {slots} slots of counter {} are gone ({why}): slots {listed}; {rest}", self.name);
        events::loss(self.registers.vigil.subject(), self.of_store(Error::new(ErrorKind::Lost, detail)))
    }

    fn of_store(&self, error: Error) -> Error {
        error.store(self.registers.store.profile().store.clone())
    }
}

/// The sum over slots.
pub(super) fn sum<'a>(mut views: impl Iterator<Item = &'a View>) -> Result<i128> {
    views
        .try_fold(0_i128, |sum, view| sum.checked_add(view.slot.sum))
        .ok_or_else(|| Error::new(ErrorKind::Overflow, "the slots together leave 128 bits, though none does by itself"))
}

/// True if nobody waits any more after a pause.
pub(super) fn is_over_in(ctx: Ctx, pause: Duration) -> bool {
    ctx.deadline.is_some_and(|deadline| deadline.saturating_duration_since(ambient::now()) <= pause)
}

/// How many indices an error lists.
const LISTED_MAX: usize = 16;

struct Listed<'a>(&'a [u16]);

impl std::fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, index) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}{index}", if at == 0 { "" } else { ", " })?;
        }
        if self.0.len() > LISTED_MAX { f.write_str(", …") } else { Ok(()) }
    }
}
