//! Everything removed at once, and what that leaves, swept away.
//!
//! An item is of a generation. To remove everything is one small batch that notes the next one, however many items there are: those of earlier
//! generations are shown to nobody from then on, and a crash leaves all of them or none. They are removed a few at a time, between the rounds of others. (The engine can forget a whole
//! keyspace, but not while others read and write it: its tree's issues 286 and 310.)

use crate::end::End;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::layout::{Generations, ITEM, Record};

/// Items that are looked at in one piece.
const LOOKED_AT_MAX: usize = 4096;
/// Items that are removed in one piece.
const REMOVED_MAX: usize = 1024;

/// Where the sweep stands.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Engine keys from here on were not looked at; `None`: nothing is to be swept.
    from: Option<Vec<u8>>,
}

/// A piece of it.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Items of earlier generations: their keys, and the ends of their lives.
    pub(crate) old: Vec<(Vec<u8>, Option<End>)>,
    /// It was the last.
    pub(crate) is_last: bool,
}

impl Sweep {
    /// For an engine that was just opened.
    pub(crate) fn of(generations: Generations) -> Sweep {
        let mut sweep = Sweep { from: None };
        if generations.swept != generations.current {
            sweep.begin();
        }
        sweep
    }

    /// Everything is to be looked at.
    pub(crate) fn begin(&mut self) {
        self.from = Some(vec![ITEM]);
    }

    /// Nothing was looked at yet.
    pub(crate) fn is_at_the_beginning(&self) -> bool {
        self.from.as_deref() == Some(&[ITEM])
    }

    /// What is to be removed next; `None` where nothing is. An item that is damaged stays, for whoever asks for it to be told.
    ///
    /// # Errors
    /// Where the engine cannot go on reading. It is left alone then, until the store is opened anew.
    pub(crate) fn next(&mut self, engine: &Engine, current: u32) -> Result<Option<Swept>, Fault> {
        let Some(from) = self.from.take() else { return Ok(None) };
        let (mut swept, mut looked_at, mut last) = (Swept::default(), 0, None);
        engine.scan(&from, &[ITEM + 1], &mut |engine_key, bytes| {
            let key = &engine_key[1..];
            if let Ok(record) = Record::decode(key, &bytes)
                && record.generation != current
            {
                swept.old.push((key.to_vec(), record.end));
            }
            looked_at += 1;
            let goes_on = looked_at < LOOKED_AT_MAX && swept.old.len() < REMOVED_MAX;
            last = (!goes_on).then(|| engine_key.to_vec());
            goes_on
        })?;
        swept.is_last = last.is_none();
        self.from = last.map(|mut next| {
            next.push(0);
            next
        });
        Ok(Some(swept))
    }
}
