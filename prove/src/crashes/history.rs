//! What a process said while it worked, and what a store must therefore hold after a crash.

use std::collections::HashMap;
use std::path::Path;

use larder_core::{PutMode, StoreExt, Ttl};
use larder_store_durable::{Checked, DurableStore, Options, Stats, Sync};
use tokio::runtime::Runtime;

use super::work::{self, State, WRITERS, Work};

/// Which crash it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process ended, and the system wrote all that it had been given.
    OfProcess,
    /// The power went.
    OfPower,
}

/// What is known of one writer.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Steps that were acknowledged, or seen by a reader.
    acknowledged: usize,
    /// Steps that are on disk by what was said.
    on_disk: usize,
    /// The next one may have been done, too.
    is_in_flight: bool,
}

/// What was said so far.
#[derive(Clone, Debug)]
pub(super) struct History {
    sync: Sync,
    has_rounds: bool,
    states: Vec<Vec<State>>,
    writers: [Known; WRITERS],
    /// Which step was shown which cas token.
    tokens: HashMap<u64, (usize, usize)>,
    /// Something failed since the store was opened last, or may have: whoever closes a store is not told.
    has_failed: bool,
    /// Calls fail in this life.
    pub(super) is_faulty: bool,
    pub(super) acknowledged: u64,
    /// What must not be.
    pub(super) bad: Vec<String>,
}

impl History {
    pub(super) fn new(work: &Work) -> History {
        History {
            sync: work.sync,
            has_rounds: work.has_rounds(),
            states: (0..WRITERS).map(|writer| work.states(writer)).collect(),
            writers: [Known::default(); WRITERS],
            tokens: HashMap::new(),
            has_failed: false,
            is_faulty: false,
            acknowledged: 0,
            bad: Vec::new(),
        }
    }

    /// Takes in what was said.
    pub(super) fn hear(&mut self, said: &str) {
        let mut words = said.trim_end().splitn(2, ' ');
        let (what, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !self.is_faulty && matches!(what, "unknown" | "refused" | "unsynced" | "unsettled" | "shut") {
            self.bad.push(format!("nothing failed, and the store said: {}", said.trim_end()));
        }
        let numbers: Vec<u64> = rest.split(' ').map_while(|word| word.parse().ok()).collect();
        match (what, &numbers[..]) {
            ("opened", _) => self.has_failed = self.is_faulty,
            ("synced", _) => self.all_on_disk(),
            // A store that is closed without a word about a failure is on disk.
            ("closed", _) if !self.has_failed => self.all_on_disk(),
            ("settled" | "closed", _) => {}
            ("unsynced" | "unsettled" | "shut", _) => self.has_failed = true,
            ("resumed", &[writer, steps]) => self.resume(writer as usize, steps as usize),
            ("ok", &[writer, steps]) => {
                self.acknowledged += 1;
                let known = &mut self.writers[writer as usize];
                *known = Known { acknowledged: steps as usize, is_in_flight: true, ..*known };
            }
            ("unknown", &[_, _]) => self.has_failed = true,
            ("refused", &[writer, _]) => {
                self.has_failed = true;
                self.writers[writer as usize].is_in_flight = false;
            }
            ("token", &[writer, step, token]) => self.token(token, (writer as usize, step as usize)),
            _ => self.bad.push(said.trim_end().to_owned()),
        }
        if self.sync == Sync::Always {
            self.all_on_disk();
        }
    }

    fn all_on_disk(&mut self) {
        self.writers.iter_mut().for_each(|known| known.on_disk = known.acknowledged);
    }

    fn resume(&mut self, writer: usize, steps: usize) {
        let states = &self.states[writer];
        if !self.may_be(writer, &states[steps], Crash::OfProcess) {
            let known = self.writers[writer];
            self.bad.push(format!("writer {writer} found what it had after {steps} steps; known was {known:?}"));
        }
        self.writers[writer] = Known { acknowledged: steps, is_in_flight: true, ..self.writers[writer] };
    }

    fn token(&mut self, token: u64, step: (usize, usize)) {
        let other = *self.tokens.entry(token).or_insert(step);
        if other != step {
            self.bad.push(format!("the cas token {token} was shown to {other:?} and to {step:?} (writer, step)"));
        }
    }

    fn may_be(&self, writer: usize, state: &State, crash: Crash) -> bool {
        let known = self.writers[writer];
        let least = if crash == Crash::OfPower { known.on_disk } else { known.acknowledged };
        let most = (known.acknowledged + usize::from(known.is_in_flight)).min(self.states[writer].len() - 1);
        self.states[writer][least.min(most)..=most].contains(state)
    }

    /// Opens what a crash left, and holds it against what was said: what is wrong, or the bytes of a torn write that were cut off.
    pub(super) fn check(&self, folder: &Path, crash: Crash, runtime: &Runtime) -> Result<u64, String> {
        let opened = Options::new(folder).reserve_bytes(0).cache_bytes(1 << 20).open();
        let store = opened.map_err(|error| format!("the store does not open: {error}"))?;
        runtime.block_on(async {
            self.hold(&store, crash).await?;
            // What rounds have left is in front at first, and in the engine then.
            if self.has_rounds {
                store.settle().map_err(|error| format!("moving what rounds have left: {error}"))?;
                self.hold(&store, crash).await?;
            }
            let key = work::key("after");
            let put = store.put(key.clone(), PutMode::Set, "the crash", Ttl::Never).await;
            put.map_err(|error| format!("a write after the crash: {error}"))?;
            let cas = store.get(key).await.ok().flatten().and_then(|item| item.cas).ok_or("a write is not there")?;
            match self.tokens.get(&cas.token) {
                Some(step) => Err(format!("the cas token {} was shown to {step:?} before the crash", cas.token)),
                None => store.stats().map(|Stats { torn_bytes, .. }| torn_bytes).map_err(|error| error.to_string()),
            }
        })
    }

    /// Holds what is read, and what a check finds, against what was said.
    async fn hold(&self, store: &DurableStore, crash: Crash) -> Result<(), String> {
        let mut items = 0;
        for writer in 0..WRITERS {
            let (held, _) = work::held(store, writer).await.map_err(|error| format!("a read: {error}"))?;
            if !self.may_be(writer, &held, crash) {
                return Err(self.tell(writer, &held));
            }
            items += held.len() as u64;
        }
        let Checked { items: there, damaged, first, .. } =
            store.check(&mut |_| ()).map_err(|error| format!("a check: {error}"))?;
        if damaged > 0 || there != items {
            return Err(format!("{items} items should be there, {there} are, {damaged} damaged: {first:?}"));
        }
        Ok(())
    }

    fn tell(&self, writer: usize, held: &State) -> String {
        let at: Vec<usize> =
            self.states[writer].iter().enumerate().filter(|(_, it)| *it == held).map(|(at, _)| at).collect();
        format!("writer {writer} has what it had after {at:?} steps; known was {:?}", self.writers[writer])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crashes::work::Sizes;

    #[test]
    fn a_refusal_is_bad_where_nothing_failed() {
        let work = Work { seed: 0, sync: Sync::Always, sizes: Sizes::Small };
        for said in ["unknown 0 3\n", "refused 0 3\n", "unsynced\n", "unsettled\n", "shut why\n"] {
            let mut history = History::new(&work);
            history.is_faulty = true;
            history.hear(said);
            assert_eq!(history.bad, Vec::<String>::new(), "{said}");
            history.is_faulty = false;
            history.hear(said);
            assert_eq!(history.bad, [format!("nothing failed, and the store said: {}", said.trim_end())]);
        }
    }
}
