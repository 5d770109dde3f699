//! What the store takes, item by item.

use larder_core::survey::{DataType, Pace, Seen, Survey, Surveying, Told, Vitals};
use larder_core::{Ctx, Result};

use crate::layout::Record;
use crate::list::Walked;
use crate::shared::SharedStore;
use crate::store::DurableStore;

/// In the order of the keys, of one moment. An item's bytes are those of its key and its record; what they take in the files depends on compression, and on what was overwritten
/// and is not merged away yet: [`disk_bytes`](Vitals::disk_bytes) tells of all together.
impl Survey for DurableStore {
    fn vitals(&self, _: Ctx) -> Surveying<'_, Vec<Result<Vitals>>> {
        Box::pin(async move { vec![self.vitals_now()] })
    }

    fn walk<'a>(&'a self, ctx: Ctx, _: Pace, tell: &'a mut (dyn FnMut(Told<'_>) + Send)) -> Surveying<'a, Result<()>> {
        Box::pin(self.walk_records(ctx, b"", |walked| match walked {
            Walked::Record(key, record, bytes) => tell(Told::Key(item(key, bytes, record))),
            Walked::LookedAt(count) => tell(Told::LookedAt(count)),
        }))
    }
}

/// The store is open until the walk ends.
impl Survey for SharedStore {
    fn vitals(&self, ctx: Ctx) -> Surveying<'_, Vec<Result<Vitals>>> {
        Box::pin(async move {
            match self.get(ctx).await {
                Ok(store) => store.vitals(ctx).await,
                Err(error) => vec![Err(error)],
            }
        })
    }

    fn walk<'a>(
        &'a self,
        ctx: Ctx,
        pace: Pace,
        tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    ) -> Surveying<'a, Result<()>> {
        Box::pin(async move { self.get(ctx).await?.walk(ctx, pace, tell).await })
    }
}

impl DurableStore {
    fn vitals_now(&self) -> Result<Vitals> {
        let shared = self.shared();
        let mut vitals = Vitals::of(&shared.name, "durable");
        vitals.disk_bytes = Some(self.stats()?.disk_bytes);
        Ok(vitals)
    }
}

fn item<'a>(key: &'a [u8], record_bytes: usize, record: &Record) -> Seen<'a> {
    Seen {
        key,
        data_type: DataType::Item,
        encoding: "item",
        bytes: Some((key.len() + record_bytes) as u64),
        resident_bytes: None,
        value_bytes: Some(record.value.len() as u64),
        expires: Some(record.end.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::{Key, Op, PutMode, Store, Ttl};

    use super::*;
    use crate::Options;
    use crate::list::PROGRESS_EVERY;

    #[tokio::test]
    async fn every_item_is_told_once_with_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).open_shared().unwrap();
        let put = |number: usize, ttl| {
            let key = Key::new(format!("key{number:05}")).unwrap();
            Op::put(key, PutMode::Set, vec![b'v'; number % 50], ttl)
        };
        // Two pieces of a walk, and one more.
        let count = 2 * PROGRESS_EVERY as usize + 1;
        let mut ops: Vec<Op> = (1..count).map(|number| put(number, Ttl::Never)).collect();
        ops.push(put(0, Ttl::After(Duration::from_secs(1_000))));
        for batch in ops.chunks(1_000) {
            assert!(store.run(Ctx::default(), batch.iter().cloned().collect()).await.iter().all(Result::is_ok));
        }
        let (mut keys, mut values, mut bytes, mut brief) = (0, 0, 0, 0);
        let mut tell = |told: Told<'_>| {
            if let Told::Key(seen) = told {
                keys += 1;
                values += seen.value_bytes.unwrap();
                bytes += seen.bytes.unwrap();
                brief += u64::from(seen.expires.unwrap());
            }
        };
        store.walk(Ctx::default(), Pace::default(), &mut tell).await.unwrap();
        assert_eq!((keys, brief), (count, 1));
        assert_eq!(values, (0..count as u64).map(|number| number % 50).sum::<u64>());
        assert!(bytes > values + 8 * count as u64);
        let vitals = store.vitals(Ctx::default()).await.pop().unwrap().unwrap();
        assert!(vitals.disk_bytes.unwrap() > 0);
    }
}
