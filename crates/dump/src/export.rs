//! From a store into a dump.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use larder_core::list::{FLEET_KEY, List, Listed};
use larder_core::text::Shown;
use larder_core::{Batch, Ctx, Error, ErrorKind, Item, Key, Op, Remaining, Reply, Result, Store, Want};
use xxhash_rust::xxh3::xxh3_128;

use crate::format::{DumpItem, Totals, now_ms};
use crate::writer::DumpWriter;

/// Items that are asked for in one batch, at the most.
const BATCH_OPS: usize = 256;
/// And in the first: nobody knows yet how large they are.
const FIRST_OPS: usize = 8;
/// Bytes of values that a batch is to bring, if its items are as large as the largest of the one before.
const BATCH_BYTES: usize = 8 << 20;
/// What no batch is to bring, if its items are as large as the store takes them: nobody knows how large the next ones are.
const BATCH_BYTES_MAX: usize = 1 << 30;
/// The listing waits while so many keys wait to be asked for.
const KEYS_MAX: usize = 4 * BATCH_OPS;
/// Keys of others that are named.
const NAMED_MAX: usize = 20;

/// What came of an export.
///
/// ```
/// assert_eq!(larder_dump::Exported::default().foreign.count, 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Exported {
    /// What the dump holds, in all.
    pub totals: Totals,
    /// Keys that were listed, and had no item when they were asked for: it is gone, or what it says stands in others.
    pub gone: u64,
    /// Keys that were in the dump already, where it was gone on with.
    pub known: u64,
    /// Keys that hold what is no item of Larder's, or that no op names.
    pub foreign: Foreign,
}

/// Keys that were left out, since what they hold is no item: other programs' values on Redis, and its own types. Structures that are kept in those are read as items by
/// `Portable` of `larder-structures`. And keys that no op without a [route](Op::route) names ([`Listed::Other`]).
///
/// ```
/// assert!(larder_dump::Foreign::default().first.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// How many.
    pub count: u64,
    /// Some of them, with the store's words.
    pub first: Vec<Error>,
}

impl Foreign {
    fn add(&mut self, error: Error) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push(error);
        }
    }
}

/// Writes every item of a store that its list tells, with flags and life, while others work on it: no moment, but each item as it was when it was read. What is
/// `known` (where a dump is gone on with) is not read again. A fleet's list of its servers ([`FLEET_KEY`]) is left out.
///
/// `store` and `list` must be of the same thing: a layer whose profile tells fewer `nodes` than there are hides the servers behind it, and what is listed of each would be in the dump as often.
///
/// Items are asked for by 8 at first, and by up to 256 at a time where they are small: no more than come to some 8 MiB if they are as large as the largest of those before, and than 1 GiB if they are as large as the store takes them, and the listing waits for them, so memory stays small.
/// Where much larger ones follow small ones, up to 256 of them are in memory, once: how large an item is its store tells with the item. Over several servers, where a key may have copies that are listed, too, some 40 bytes of it a
/// key are taken, so that each is in the dump once; one server may tell a key twice (as a table that grows does), and then it is twice in the dump, which an import does not mind. **Round trips**: the list's, and 1 for each 256 items (16 where they may have 64 MiB), or some 8 MiB of values; up to 5 more to come to that from 8.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where the store cannot tell lives: a dump without them would make what is to end live for ever. Those of the list, of reading and of writing;
/// what was written until then can be gone on with by [`DumpWriter::resume`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Ctx, Key, Op, PutMode, StoreExt, Ttl};
/// use larder_dump::{DumpReader, DumpWriter, Head, export};
/// let store = larder_store_memory::MemoryStore::new();
/// store.run_one(Ctx::default(), Op::put(Key::new("k")?, PutMode::Set, "v", Ttl::Never)).await?;
/// let writer = DumpWriter::new(Vec::new(), &Head::now("memory:"))?;
/// let (file, exported) = export(&store, &store, writer, &|_| false, &mut |_| ()).await?;
/// assert_eq!(exported.totals.items, 1);
/// assert_eq!(DumpReader::new(&file[..])?.next_block()?.unwrap()[0].value, "v");
/// # Ok(())
/// # }
/// ```
pub async fn export<W: Write>(
    store: &dyn Store,
    list: &dyn List,
    mut out: DumpWriter<W>,
    known: &(dyn Fn(&[u8]) -> bool + Sync),
    tell: &mut dyn FnMut(Totals),
) -> Result<(W, Exported)> {
    let profile = store.profile();
    if !profile.remaining_ttl {
        let detail = "this store cannot tell how long its items live, and a dump must say so";
        return Err(Error::new(ErrorKind::Unsupported, detail).store(&profile.store));
    }
    let mut exported = Exported::default();
    let seen = (profile.nodes > 1).then(HashSet::new);
    let told = Mutex::new(Told { keys: VecDeque::new(), known: 0, seen, foreign: Foreign::default() });
    let mut take = |listed: Listed<'_>| match listed {
        Listed::Key(key) => lock(&told).take(key, known),
        Listed::Other(key) => lock(&told).leave_out(key),
        Listed::LookedAt(_) => {}
    };
    let mut listing = list.list(Ctx::default(), b"", &mut take);
    let ops_max = (BATCH_BYTES_MAX / profile.value_bytes_max(profile.key_bytes_max).max(1)).clamp(1, BATCH_OPS);
    let (mut is_listed, mut ops) = (false, FIRST_OPS.min(ops_max));
    loop {
        if !is_listed {
            is_listed = poll_fn(|cx| match listing.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(done.map(|()| true)),
                Poll::Pending if lock(&told).keys.len() >= BATCH_OPS => Poll::Ready(Ok(false)),
                Poll::Pending => Poll::Pending,
            })
            .await?;
        }
        loop {
            let keys = lock(&told).next(ops, is_listed);
            if keys.is_empty() {
                break;
            }
            let largest = read(store, keys, &mut out, &mut exported).await?;
            ops = (BATCH_BYTES / largest.max(1)).clamp(1, ops_max.min(2 * ops));
            tell(out.totals());
            // What a listing has told at once may be more than that.
            if !is_listed && lock(&told).keys.len() < KEYS_MAX {
                break;
            }
        }
        if is_listed {
            break;
        }
    }
    drop(listing);
    let Told { known, foreign, .. } = told.into_inner().unwrap_or_else(PoisonError::into_inner);
    exported.known = known;
    exported.foreign.count += foreign.count;
    exported.foreign.first.extend(foreign.first);
    exported.foreign.first.truncate(NAMED_MAX);
    let (file, totals) = out.finish()?;
    exported.totals = totals;
    Ok((file, exported))
}

/// What the listing has told, and is not asked for yet.
struct Told {
    keys: VecDeque<Key>,
    known: u64,
    /// Fingerprints of all keys that were told, where one may stand on several servers.
    seen: Option<HashSet<u128>>,
    /// Those that cannot be asked for.
    foreign: Foreign,
}

impl Told {
    fn take(&mut self, key: &[u8], known: &(dyn Fn(&[u8]) -> bool + Sync)) {
        // Of the fleet it was on, a store that is no fleet may have it: put there by an import, or by a fleet that it served.
        if key == FLEET_KEY.as_bytes() {
            return;
        }
        if self.seen.as_mut().is_some_and(|seen| !seen.insert(xxh3_128(key))) {
            return;
        }
        if known(key) {
            self.known += 1;
        } else {
            match Key::new(key.to_vec()) {
                Ok(key) => self.keys.push_back(key),
                Err(_) => self.leave_out(key),
            }
        }
    }

    fn leave_out(&mut self, key: &[u8]) {
        let detail = format!("{} is no key of an item: another program's, or routed with another key", Shown(key));
        self.foreign.add(Error::new(ErrorKind::BadInput, detail));
    }

    /// The next batch, of so many; a smaller one only at the end.
    fn next(&mut self, ops: usize, is_last: bool) -> Vec<Key> {
        if self.keys.len() < ops && !is_last {
            return Vec::new();
        }
        self.keys.drain(..self.keys.len().min(ops)).collect()
    }
}

fn lock(told: &Mutex<Told>) -> std::sync::MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads items and adds them to the dump: bytes of the largest value.
async fn read<W: Write>(
    store: &dyn Store,
    keys: Vec<Key>,
    out: &mut DumpWriter<W>,
    exported: &mut Exported,
) -> Result<usize> {
    let want = Want::VALUE | Want::FLAGS | Want::TTL;
    let batch: Batch = keys.iter().map(|key| Op::get(key.clone(), want)).collect();
    let replies = store.run(Ctx::default(), batch).await;
    let (now_ms, mut largest) = (now_ms(), 0);
    for (key, reply) in keys.into_iter().zip(replies) {
        match reply {
            Ok(Reply::Item(item)) => {
                largest = largest.max(item.value.len());
                out.push(&dumped(key, item, now_ms)?)?;
            }
            Ok(_) => exported.gone += 1,
            Err(error) if matches!(error.kind(), ErrorKind::LayoutMismatch | ErrorKind::BadInput) => {
                exported.foreign.add(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(largest)
}

fn dumped(key: Key, item: Item, now_ms: u64) -> Result<DumpItem> {
    let expiry_ms = match item.ttl {
        Remaining::Never => None,
        Remaining::For(left) => {
            let left_ms = u64::try_from(left.max(Duration::from_millis(1)).as_millis()).unwrap_or(u64::MAX);
            Some(now_ms.saturating_add(left_ms))
        }
        Remaining::Unknown => {
            let detail = "the store did not tell how long the item lives";
            return Err(Error::new(ErrorKind::Unsupported, detail).key(&key));
        }
    };
    Ok(DumpItem { key, flags: item.flags, expiry_ms, value: item.value })
}
