//! Altering one item by the caller's own code: for servers, whose protocols have writes that no op has.

use bytes::Bytes;
use larder_core::{Key, Remaining, Result, Ttl};
use tokio::sync::oneshot;

use crate::committer::Request;
use crate::layout::Record;
use crate::ops::{self, Change};
use crate::store::DurableStore;

/// An item as [`DurableStore::alter`] shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// The flags.
    pub flags: u32,
    /// Eight bits that only `alter` reads and writes. Whatever an op writes has none; append, arithmetic and touch keep them.
    pub marks: u8,
    /// The cas token.
    pub cas: u64,
    /// What is left of its life.
    pub ttl: Remaining,
}

/// What becomes of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Altered {
    /// It stays as it is; nothing is written.
    Keep,
    /// It is this from now on.
    Put {
        /// The value.
        value: Bytes,
        /// The flags.
        flags: u32,
        /// The marks.
        marks: u8,
        /// How long it lives.
        ttl: NextTtl,
        /// Its cas token.
        cas: NextCas,
    },
    /// It is gone.
    Remove,
}

/// The life of an item that was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTtl {
    /// What was left of it; for ever where there was no item.
    Keep,
    /// This, from now on.
    New(Ttl),
}

/// The cas token of an item that was altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextCas {
    /// The one it had; a new one where there was no item.
    Keep,
    /// A new one.
    New,
    /// This one. That it is not one the item had before, or gets later, is up to the caller: those that the store gives out count on from no token that was chosen.
    Exactly(u64),
}

impl DurableStore {
    /// Shows `change` the item under a key, or that there is none, and does to it what that says, with no other write in between. As durable as any write when it
    /// returns.
    ///
    /// `change` runs on the committer: it must not block, nor ask this store.
    ///
    /// # Errors
    /// Those of a put. What `change` returned is lost then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// use larder_store_durable::{Altered, NextCas, NextTtl, Options};
    /// let store = Options::new(folder.path()).open()?;
    /// let key = larder_core::Key::new("k")?;
    /// let was_there = store.alter(key, |entry| {
    ///     let put = Altered::Put { value: "v".into(), flags: 0, marks: 1, ttl: NextTtl::Keep, cas: NextCas::New };
    ///     (put, entry.is_some())
    /// });
    /// assert!(!was_there.await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn alter<T: Send + 'static>(
        &self,
        key: Key,
        change: impl FnOnce(Option<&Entry>) -> (Altered, T) + Send + 'static,
    ) -> Result<T> {
        let (told, mut tell) = oneshot::channel();
        let key_bytes = key.as_bytes().len();
        let alter = move |record: Option<&Record>, rules: &ops::Rules| {
            let entry = record.map(|record| entry(record, rules));
            let (altered, answer) = change(entry.as_ref());
            let changed = changed(altered, record, key_bytes, rules)?;
            _ = told.send(answer);
            Ok(changed)
        };
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Alter { key, alter: Box::new(alter), reply }).await?;
        answer.await.map_err(|_| self.gone(true))??;
        tell.try_recv().map_err(|_| self.gone(true))
    }
}

fn entry(record: &Record, rules: &ops::Rules) -> Entry {
    let item = ops::read(record, larder_core::Want::all(), rules);
    Entry { value: item.value, flags: item.flags, marks: record.marks, cas: record.cas, ttl: item.ttl }
}

fn changed(altered: Altered, record: Option<&Record>, key_bytes: usize, rules: &ops::Rules) -> Result<Change> {
    let (value, flags, marks, ttl, cas) = match altered {
        Altered::Keep => return Ok(Change::Keep),
        Altered::Remove => return Ok(if record.is_some() { Change::Remove } else { Change::Keep }),
        Altered::Put { value, flags, marks, ttl, cas } => (value, flags, marks, ttl, cas),
    };
    ops::check_value(&value, key_bytes, rules.item_bytes_max)?;
    let end = match ttl {
        NextTtl::Keep => record.and_then(|record| record.end),
        NextTtl::New(ttl) => ops::end(ttl, rules)?,
    };
    let cas = match cas {
        NextCas::Keep => record.map_or(rules.cas, |record| record.cas),
        NextCas::New => rules.cas,
        NextCas::Exactly(cas) => cas,
    };
    Ok(Change::Put(Record { marks, flags, end, cas, value, ..Record::default() }))
}

#[cfg(test)]
mod tests {
    use larder_core::{Ctx, ErrorKind, Op, PutMode, StoreExt};

    use super::*;
    use crate::committer::AlterFn;
    use crate::fault::Fault;
    use crate::layout::Commit;
    use crate::{Direct, DirectItem, DirectNext, Options};

    /// Has the committer do this, and does not wait for it.
    async fn have(store: &DurableStore, alter: AlterFn) {
        let key = Key::new("k").unwrap();
        assert!(store.ask(Request::Alter { key, alter, reply: oneshot::channel().0 }).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_of_who_writes_is_told_to_those_who_wait_and_is_a_failure_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let direct = Direct::new(Options::new(folder.path()).open().unwrap());
        assert!(direct.failure().is_none());
        have(direct.store(), Box::new(|_: Option<&Record>, _: &_| panic!("on purpose"))).await;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while direct.failure().is_none() {
            assert!(std::time::Instant::now() < until, "nobody is told");
            tokio::task::yield_now().await;
        }
        assert!(direct.failure().unwrap().to_string().contains("ended in a panic"));
    }

    /// As one that waits for room in an engine that has failed.
    #[tokio::test]
    async fn a_failed_store_whose_writer_stands_still_is_closed_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).open().unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let stand = move |_: Option<&Record>, _: &_| {
            _ = released.recv();
            Ok(Change::Keep)
        };
        have(&store, Box::new(stand)).await;
        store.shared().fail(&Fault::corrupt("on purpose"));
        let began = std::time::Instant::now();
        drop(store);
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
        drop(release);
    }

    /// As an earlier version left it, which counted on from tokens that clients had chosen.
    #[tokio::test]
    async fn where_no_token_is_left_none_is_given_out_again() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Options::new(folder.path()).open().unwrap();
        let key = || Key::new("k").unwrap();
        let put = || Op::put(key(), PutMode::Set, "v", Ttl::Never);
        let store = open();
        store.run_one(Ctx::default(), put()).await.unwrap();
        let shared = store.shared();
        let last = shared.engine.last_commit().unwrap().unwrap();
        let last = Commit { sequence: last.sequence + 1, cas_limit: u64::MAX - 5, ..last };
        shared.engine.commit(shared.engine.entries(), last, true).unwrap();
        drop(store);

        let store = open();
        for _ in 0..10 {
            let error = store.run_one(Ctx::default(), put()).await.unwrap_err();
            assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false));
            assert!(error.to_string().contains("no cas token is left"), "{error}");
        }
        assert_eq!(store.get(key()).await.unwrap().unwrap().value, "v");
        store.run_one(Ctx::default(), Op::delete(key())).await.unwrap();
        drop(store);

        let direct = Direct::new(open());
        let next = |cas| DirectNext::Put(DirectItem { value: "v".into(), flags: 0, marks: 0, cas, expiry_ms: None });
        for _ in 0..10 {
            assert_eq!(direct.overwrite(b"k", next).unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(direct.get(b"k").unwrap().0, None);
    }
}
