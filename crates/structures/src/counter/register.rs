//! A slot as a register: read it, and write it if nobody else has meanwhile. Whether it stands on one server or on several is
//! decided here; who writes what, and why, is not.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Batch, Cas, ClockRef, Ctx, Error, ErrorKind, Item, PutMode, Reply, Result, StoreRef, Ttl};

use super::layout::Slot;
use super::replica;
use crate::cell::{Cell, Wrote};
use crate::manifest::Manifest;
use crate::name::Name;
use crate::vigil::Vigil;

/// The slots of one counter.
#[derive(Debug)]
pub(super) struct Registers {
    pub(super) store: StoreRef,
    pub(super) vigil: Arc<Vigil>,
    /// Where the copies of each slot stand; one cell a slot without replication.
    pub(super) places: Box<[Vec<Cell>]>,
}

/// What was read of a slot, and the right to write it if it is still so.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) slot: Slot,
    /// True if what was read will stay; false for a write that stands on too few copies, so that nobody knows yet.
    pub(super) settled: bool,
    pub(super) hold: Hold,
}

/// What a write is conditional on.
#[derive(Clone, Debug)]
pub(super) enum Hold {
    One(Cas),
    Many(replica::Hold),
}

/// A write to be made.
pub(super) struct Job {
    pub(super) index: u16,
    pub(super) view: View,
    pub(super) next: Slot,
}

/// What is known after a write: as of [`Wrote`], with what the slot holds now as a view.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) landed: Result<bool>,
    pub(super) now: Result<Option<View>>,
}

impl View {
    /// True if a copy is missing, and the next write will make it again.
    pub(super) fn is_thin(&self) -> bool {
        match &self.hold {
            Hold::One(_) => false,
            Hold::Many(hold) => hold.is_thin(),
        }
    }

    /// What kept a copy from being read, if one was not.
    pub(super) fn fault(&self) -> Option<&Error> {
        match &self.hold {
            Hold::One(_) => None,
            Hold::Many(hold) => hold.fault(),
        }
    }
}

impl Registers {
    pub(super) fn new(store: StoreRef, name: &Name, manifest: &Manifest, clock: ClockRef) -> Result<Registers> {
        let vigil = Vigil::new(&store, clock, name, manifest)?;
        let places = (0..manifest.shards).map(|index| manifest.cells(name, index)).collect::<Result<_>>()?;
        Ok(Registers { store, vigil, places })
    }

    /// The ops that make the slots.
    pub(super) fn create_ops(&self) -> Batch {
        let slot = Slot::default();
        let one = slot.encode();
        let copy = replica::first_bytes(&slot);
        let put = |cell: &Cell, value: &Bytes| {
            larder_core::Op::put(cell.key.clone(), PutMode::Add, value.clone(), Ttl::Never).routed(cell.route.clone())
        };
        self.places
            .iter()
            .flat_map(|cells| cells.iter().map(|cell| put(cell, if cells.len() == 1 { &one } else { &copy })))
            .collect()
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> u16 {
        // As many as the manifest says, which counts them in 16 bits.
        self.places.len() as u16
    }

    /// Reads slots; `None` is a slot that is gone. **Round trips: 1.**
    pub(super) async fn read(&self, ctx: Ctx, indices: impl Iterator<Item = u16>) -> Vec<Result<Option<View>>> {
        let places: Vec<&Vec<Cell>> = indices.filter_map(|index| self.places.get(usize::from(index))).collect();
        let batch: Batch = places.iter().flat_map(|cells| cells.iter().map(Cell::read_op)).collect();
        let mut replies = self.vigil.run(ctx, batch).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let read = |cells: &&Vec<Cell>| match cells.as_slice() {
            [cell] => view(cell, next().map(Reply::into_item)),
            cells => replica::view(cells, cells.iter().map(|_| next().map(Reply::into_item)).collect()),
        };
        places.iter().map(read).collect()
    }

    /// Writes slots, each if it is still as its view says. **Round trips: 1**; with several copies 2 for a slot that was
    /// not written by this writer last, 3 where a copy is missing.
    pub(super) async fn write(&self, ctx: Ctx, jobs: Vec<Job>) -> Vec<Written> {
        if jobs.is_empty() {
            return Vec::new();
        }
        if self.places.first().is_some_and(|cells| cells.len() > 1) {
            return replica::write(self, ctx, jobs).await;
        }
        let mut batch = Batch::new();
        let mut sent = Vec::with_capacity(jobs.len());
        for Job { index, view, next } in jobs {
            let (Some([cell]), Hold::One(cas)) = (self.places.get(usize::from(index)).map(Vec::as_slice), view.hold)
            else {
                continue;
            };
            let bytes = next.encode();
            batch.extend(cell.put_ops(PutMode::Cas(cas), bytes.clone(), Ttl::Never));
            sent.push((cell, bytes));
        }
        let mut replies = self.vigil.run(ctx, batch).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let judge = |(cell, bytes): (&Cell, Bytes)| {
            let Wrote { landed, now } = Wrote::new(&bytes, next(), next());
            Written { landed, now: view(cell, now) }
        };
        sent.into_iter().map(judge).collect()
    }
}

/// What the item of a slot without copies says.
fn view(cell: &Cell, item: Result<Option<Item>>) -> Result<Option<View>> {
    let Some(item) = item? else { return Ok(None) };
    let slot = Slot::decode(&item.value).ok_or_else(|| no_slot(cell, &item.value))?;
    Ok(Some(View { slot, settled: true, hold: Hold::One(token(cell, &item)?) }))
}

/// The token of an item that was read with one.
pub(super) fn token(cell: &Cell, item: &Item) -> Result<Cas> {
    item.cas
        .ok_or_else(|| Error::new(ErrorKind::Protocol, "the store gave an item without its cas token").key(&cell.key))
}

/// The error for bytes that are no slot.
pub(super) fn no_slot(cell: &Cell, bytes: &[u8]) -> Error {
    let shown = larder_core::text::Shown(bytes);
    Error::new(ErrorKind::LayoutMismatch, format!("this is no slot of a counter: {shown}")).key(&cell.key)
}
