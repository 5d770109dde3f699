//! What the store takes, item by item.

use larder_core::survey::{DataType, Pace, Seen, Survey, Surveying, Told, Vitals};
use larder_core::{Ctx, Result};

use crate::MemoryStore;
use crate::list::Walked;
use crate::shard::Locked;

/// Shard by shard, each under its lock in one piece. It keeps to no pace, but lets other tasks of its thread go on once a millisecond has passed. An item's bytes are what the heap gives for it. RSS is that of the whole process.
impl Survey for MemoryStore {
    fn vitals(&self, _: Ctx) -> Surveying<'_, Vec<Result<Vitals>>> {
        Box::pin(async move {
            let stats = self.stats();
            let mut vitals = Vitals::of("this process", "memory");
            vitals.used_bytes = Some(stats.bytes as u64);
            vitals.data_bytes = vitals.used_bytes;
            vitals.limit_bytes = self.inner.shared.budget.max().map(|max| max as u64);
            vitals.resident_bytes = resident_bytes();
            vitals.items = Some(stats.items as u64);
            (vitals.evicted, vitals.expired) = (Some(stats.evicted), Some(stats.expired));
            vec![Ok(vitals)]
        })
    }

    fn walk<'a>(&'a self, ctx: Ctx, _: Pace, tell: &'a mut (dyn FnMut(Told<'_>) + Send)) -> Surveying<'a, Result<()>> {
        Box::pin(async move {
            let copy = |shard: &Locked<'_>, now_ms| {
                let mut items = Vec::new();
                shard.each(|item| {
                    if item.expiry_ms().is_none_or(|expiry_ms| expiry_ms > now_ms) {
                        let bytes = (item.class_bytes() as u64, item.value().len() as u64);
                        items.push((Box::<[u8]>::from(item.key()), bytes, item.expiry_ms().is_some()));
                    }
                });
                let looked = items.len() as u64;
                (items, looked)
            };
            self.walk_shards(ctx, copy, |walked| match walked {
                Walked::Item((key, (bytes, value_bytes), expires)) => tell(Told::Key(Seen {
                    key: &key,
                    data_type: DataType::Item,
                    encoding: "item",
                    bytes: Some(bytes),
                    resident_bytes: Some(bytes),
                    value_bytes: Some(value_bytes),
                    expires: Some(expires),
                })),
                Walked::LookedAt(count) => tell(Told::LookedAt(count)),
            })
            .await
        })
    }
}

/// RSS of this process, where the system tells.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1_024)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use larder_core::{ErrorKind, ManualClock, PutMode, Ttl};

    use super::*;
    use crate::list::tests::ended;

    #[test]
    fn items_add_up_to_what_the_store_counts() {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        for number in 0..20_000 {
            let key = format!("a{number}");
            store.direct().put(key.as_bytes(), PutMode::Set, &vec![b'v'; number % 300], 0, Ttl::Never).unwrap();
        }
        store.direct().put(b"brief", PutMode::Set, b"v", 0, Ttl::After(Duration::from_secs(1))).unwrap();
        let (mut keys, mut bytes, mut values, mut brief, mut looked_at) = (0u64, 0, 0, 0, 0);
        let mut tell = |told: Told<'_>| match told {
            Told::Key(seen) => {
                keys += 1;
                bytes += seen.bytes.unwrap();
                values += seen.value_bytes.unwrap();
                brief += u64::from(seen.expires.unwrap());
            }
            Told::LookedAt(count) => looked_at = count,
        };
        ended(store.walk(Ctx::default(), Pace::default(), &mut tell)).unwrap();
        assert_eq!((keys, looked_at, brief), (20_001, 20_001, 1));
        assert_eq!(values, (0..20_000u64).map(|number| number % 300).sum::<u64>() + 1);
        let vitals = ended(store.vitals(Ctx::default())).pop().unwrap().unwrap();
        let used = vitals.used_bytes.unwrap();
        assert!(bytes < used && used < bytes + bytes / 2, "{bytes} of items, {used} with their tables");
        assert_eq!((vitals.items, vitals.limit_bytes), (Some(20_001), None));
        clock.advance(Duration::from_secs(1));
        let mut keys = 0;
        ended(store.walk(Ctx::default(), Pace::default(), &mut |told| keys += u64::from(matches!(told, Told::Key(_)))))
            .unwrap();
        assert_eq!(keys, 20_000);
        let late = Ctx { deadline: Some(Instant::now()) };
        assert_eq!(ended(store.walk(late, Pace::default(), &mut |_| ())).unwrap_err().kind(), ErrorKind::Timeout);
    }
}
