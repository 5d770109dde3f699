//! What the nodes that are asked for the map tell, and which map is gone by then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use larder_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use super::map::{Place, SlotMap};
use super::nodes::{Member, Topology};

/// What several nodes told.
pub(super) struct Told {
    /// What is gone by until now.
    known: Arc<Topology>,
    /// Who was asked and has not answered yet.
    pub(super) open: JoinSet<(Arc<Member>, Result<SlotMap>)>,
    /// Who was asked.
    pub(super) asked: HashSet<Place>,
    /// The best map; where none is told, why.
    best: Result<SlotMap>,
    /// Primaries of the map gone by that told an older one.
    behind: usize,
    /// The older maps that were told.
    olders: Vec<SlotMap>,
    /// Of whom told an older one, its epoch.
    epochs: HashMap<Place, u64>,
}

impl Told {
    pub(super) fn new(known: Arc<Topology>) -> Told {
        let unasked = Err(Error::new(ErrorKind::Unavailable, "no node was asked"));
        Told {
            known,
            open: JoinSet::new(),
            asked: HashSet::new(),
            best: unasked,
            behind: 0,
            olders: Vec::new(),
            epochs: HashMap::new(),
        }
    }

    pub(super) fn take(&mut self, member: &Arc<Member>, told: Result<SlotMap>) {
        self.asked.insert(member.place.clone());
        if let Ok(map) = &told
            && map.is_older_than(&self.known.map)
        {
            self.behind += usize::from(self.is_gone_by(&member.place));
            self.epochs.insert(member.place.clone(), map.epoch());
            if !self.olders.contains(map) {
                self.olders.push(map.clone());
            }
        }
        let rank = |map: &SlotMap| (!map.is_older_than(&self.known.map), map.fullness());
        let is_better = match (&self.best, &told) {
            (Ok(best), Ok(map)) => rank(map) > rank(best),
            (Ok(_), Err(_)) => false,
            (Err(_), Ok(_)) => true,
            // A wrong setting is what is to be mended; that a node is down may pass.
            (Err(before), Err(_)) => before.kind() != ErrorKind::Config,
        };
        if is_better {
            self.best = told;
        }
    }

    /// Somebody cannot be asked.
    pub(super) fn cannot_ask(&mut self, error: Error) {
        if self.best.is_err() {
            self.best = Err(error);
        }
    }

    /// Whether a map was told, of whichever kind.
    pub(super) fn is_told(&self) -> bool {
        self.best.is_ok()
    }

    /// Whether nothing can be told that is better.
    pub(super) fn is_whole(&self) -> bool {
        self.best.as_ref().is_ok_and(|map| map.is_whole() && !map.is_older_than(&self.known.map))
    }

    /// Whether all maps that were told are older, and it is not known to be another cluster that they are of.
    pub(super) fn is_behind(&self) -> bool {
        self.best.is_ok() && self.agreed().is_none()
    }

    /// The primaries that older maps name and that were not asked.
    pub(super) fn unasked(&self) -> Vec<Place> {
        let named: HashSet<&Place> = self.olders.iter().flat_map(SlotMap::primaries).collect();
        named.into_iter().filter(|place| !self.asked.contains(place)).cloned().collect()
    }

    /// The map to go by.
    pub(super) fn decided(self) -> Result<SlotMap> {
        let best = self.best.as_ref().map_err(Clone::clone)?;
        self.agreed().cloned().ok_or_else(|| older(best, &self.known.map))
    }

    /// The best map that is no older than the one gone by; else the best of another cluster.
    fn agreed(&self) -> Option<&SlotMap> {
        let best = self.best.as_ref().ok()?;
        // Of those that were gone by most have gone back.
        let is_anew = 2 * self.behind > self.known.members.len();
        if is_anew || !best.is_older_than(&self.known.map) {
            return Some(best);
        }
        self.olders.iter().filter(|map| self.is_of_another(map)).max_by_key(|map| map.fullness())
    }

    /// Whether an older map is that of another cluster in the place of the one gone by: more than half of the primaries that it names are at its very epoch. Of those that a node names which was
    /// cut off, most have voted for a later one. A lone primary votes alone: it counts where it serves all, and was not gone by.
    fn is_of_another(&self, map: &SlotMap) -> bool {
        let primaries = map.primaries();
        let agree = primaries.iter().filter(|place| self.epochs.get(place) == Some(&map.epoch())).count();
        let is_believed = match primaries {
            [alone] => map.is_whole() && !self.is_gone_by(alone),
            _ => true,
        };
        is_believed && 2 * agree > primaries.len()
    }

    fn is_gone_by(&self, place: &Place) -> bool {
        self.known.members.iter().any(|serving| serving.place == *place)
    }
}

pub(super) fn older(told: &SlotMap, known: &SlotMap) -> Error {
    let (told, known) = (told.epoch(), known.epoch());
    let detail =
        format!("the nodes that answer tell of epoch {told}, and the cluster was at {known}: they were cut off");
    Error::new(ErrorKind::Unavailable, detail)
}
