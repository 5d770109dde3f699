//! What of a structure's data is live and what is stale, item by item as they are read: of the kinds whose items tell it one by one.

use std::collections::HashSet;

use larder_core::{Result, SystemClock};

use crate::manifest::{Kind, Manifest};
use crate::{ledger, log, table, visitors};

/// Weighs the items of one structure.
pub(super) struct Scales {
    kind: Kind,
    generation: u64,
    now_s: u32,
    /// The frames of a log that were seen: each counts once a chunk.
    frames: HashSet<log::Counted>,
    /// `None` once there was an item that no such structure has.
    sum: Option<Weight>,
}

/// What items come to.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    live_bytes: u64,
    stale_bytes: u64,
    elements: u64,
}

impl Scales {
    pub(super) fn of(manifest: &Manifest) -> Scales {
        let is_weighed = matches!(manifest.kind, Kind::Table | Kind::EventLog | Kind::Visitors);
        Scales {
            kind: manifest.kind,
            generation: manifest.generation,
            now_s: u32::try_from(SystemClock::shared().wall().as_secs()).unwrap_or(u32::MAX),
            frames: HashSet::new(),
            sum: is_weighed.then(Weight::default),
        }
    }

    /// Takes in an item: of the shard that the manifest names, or a piece.
    pub(super) fn take(&mut self, shard: Option<u16>, value: &[u8]) {
        let Some(sum) = self.sum else { return };
        let weighed = self.weigh(shard, value).ok();
        self.sum = weighed.map(|(stale_bytes, elements)| Weight {
            live_bytes: sum.live_bytes + value.len().saturating_sub(stale_bytes) as u64,
            stale_bytes: sum.stale_bytes + stale_bytes as u64,
            elements: sum.elements + elements,
        });
    }

    /// How many bytes are stale, and how many elements there are.
    fn weigh(&mut self, shard: Option<u16>, value: &[u8]) -> Result<(usize, u64)> {
        let Scales { kind, generation, now_s, .. } = *self;
        match (kind, shard) {
            (Kind::Table, _) => {
                let stale_bytes = table::stale_bytes(value, generation, shard, now_s)?;
                Ok((stale_bytes, u64::from(shard.is_none())))
            }
            (_, Some(_)) => Ok((ledger::stale_bytes(value, generation, now_s)?, 0)),
            (Kind::EventLog, None) => log::weigh(value, generation, &mut self.frames),
            (_, None) => Ok((visitors::stale_bytes(value)?, 0)),
        }
    }

    /// Live and stale bytes and elements, of the kinds that tell them. Visitors are counted by their windows.
    pub(super) fn told(self) -> (Option<u64>, Option<u64>, Option<u64>) {
        let Some(Weight { live_bytes, stale_bytes, elements }) = self.sum else { return (None, None, None) };
        (Some(live_bytes), Some(stale_bytes), Some(elements).filter(|_| self.kind != Kind::Visitors))
    }
}
