//! Which keys the store holds, in their order.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, Error, ErrorKind, Item, Key, Result, Want, text};

use crate::committer::moments::PAGE_ITEMS_MIN;
use crate::committer::{ITEMS_END, Shared};
use crate::engine::Moment;
use crate::fault::Fault;
use crate::layout::{self, Record, Shown};
use crate::ops;
use crate::store::DurableStore;

/// Items between two words of progress, and between two looks at the deadline.
pub(crate) const PROGRESS_EVERY: u64 = 10_000;

/// In the order of the keys, of one moment: what is written meanwhile is not told.
impl List for DurableStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(self.walk_records(ctx, prefix, |walked| match walked {
            Walked::Record(key, ..) => tell(Listed::Key(key)),
            Walked::LookedAt(count) => tell(Listed::LookedAt(count)),
        }))
    }
}

/// What a walk over all items meets.
pub(crate) enum Walked<'a> {
    /// A living item: its key, its record, and the bytes that the record takes.
    Record(&'a [u8], &'a Record, usize),
    /// How many items were looked at so far.
    LookedAt(u64),
}

impl DurableStore {
    /// Shows the items of a prefix that live, in the order of their keys, of one moment; a piece at a time, between which others run.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where an item is damaged, [`ErrorKind::Timeout`] when the deadline comes first. What was shown until then stands.
    pub(crate) async fn walk_records(
        &self,
        ctx: Ctx,
        prefix: &[u8],
        mut show: impl FnMut(Walked<'_>) + Send,
    ) -> Result<()> {
        let shared = self.shared();
        let to = after_prefix(prefix);
        let (mut from, mut looked_at) = (layout::item_key(prefix), 0u64);
        let moment = shared.moment(&from, &to);
        let generation = shared.generation_of(&moment).map_err(|fault| fault.error(&shared.name))?;
        let shown = Shown { now_ms: shared.time.now_ms(), generation };
        loop {
            let (mut last, mut seen, mut bad) = (None, 0, None);
            let scanned = moment.scan(&from, &to, &mut |engine_key: &[u8], bytes: Bytes| {
                seen += 1;
                let key = &engine_key[1..];
                match Record::decode(key, &bytes) {
                    Ok(record) if !shown.has(&record) => {}
                    Ok(record) => show(Walked::Record(key, &record, bytes.len())),
                    Err(fault) => bad = Some(damaged(key, fault)),
                }
                last = Some(engine_key.to_vec());
                seen < PROGRESS_EVERY && bad.is_none()
            });
            scanned.and(bad.map_or(Ok(()), Err)).map_err(|fault| fault.error(&shared.name))?;
            looked_at += seen;
            show(Walked::LookedAt(looked_at));
            let Some(mut next) = last.filter(|_| seen == PROGRESS_EVERY) else { return Ok(()) };
            next.push(0);
            from = next;
            if ctx.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let detail = format!("the deadline came after {looked_at} items");
                return Err(Error::new(ErrorKind::Timeout, detail).store(&shared.name));
            }
            Yield(false).await;
        }
    }

    /// Up to `count` items in the order of their keys, from `from` on (and with it; empty: from the first): for operators, and for whoever moves a store.
    /// What has expired is left out. Goes on behind the last key of a page by asking from that key with a zero byte behind it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where an item is damaged.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// use larder_core::{Ctx, Key, Op, PutMode, StoreExt, Ttl, Want};
    /// let store = larder_store_durable::Options::new(folder.path()).open()?;
    /// for key in ["b", "a"] {
    ///     store.run_one(Ctx::default(), Op::put(Key::new(key)?, PutMode::Set, "v", Ttl::Never)).await?;
    /// }
    /// let items = store.scan(b"", 10, Want::VALUE)?;
    /// assert_eq!(items.iter().map(|(key, _)| key.as_bytes()).collect::<Vec<_>>(), [b"a", b"b"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan(&self, from: &[u8], count: usize, want: Want) -> Result<Vec<(Key, Item)>> {
        let (shared, from) = (self.shared(), layout::item_key(from));
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut looks_at = count;
        loop {
            let (moment, to) = shared.page(&from, looks_at);
            let items = page(shared, &moment, &from..&to, count, want).map_err(|fault| fault.error(&shared.name))?;
            if items.len() == count || to == ITEMS_END {
                return Ok(items);
            }
            // Most of what stands in front is gone. All that is told is of one moment, so what was found is looked for again.
            looks_at = looks_at.max(PAGE_ITEMS_MIN).saturating_mul(8);
        }
    }
}

/// The first items of a page.
fn page(
    shared: &Shared,
    moment: &Moment,
    range: Range<&[u8]>,
    count: usize,
    want: Want,
) -> Result<Vec<(Key, Item)>, Fault> {
    let rules = shared.rules();
    let shown = Shown { now_ms: shared.time.now_ms(), generation: shared.generation_of(moment)? };
    let (mut items, mut bad) = (Vec::new(), None);
    let mut tell = |engine_key: &[u8], bytes: Bytes| {
        let key = &engine_key[1..];
        match Record::decode(key, &bytes) {
            Ok(record) if !shown.has(&record) => return true,
            Ok(record) => match Key::new(key.to_vec()) {
                Ok(key) => items.push((key, ops::read(&record, want, &rules))),
                Err(_) => bad = Some(damaged(key, layout::Bad("its key has no valid length"))),
            },
            Err(fault) => bad = Some(damaged(key, fault)),
        }
        items.len() < count && bad.is_none()
    };
    moment.scan(range.start, range.end, &mut tell)?;
    bad.map_or(Ok(items), Err)
}

pub(crate) fn damaged(key: &[u8], bad: layout::Bad) -> Fault {
    Fault::corrupt(format!("the item of key {} is damaged: {}", text::Shown(key), bad.0))
}

/// The first engine key behind all items whose keys begin so.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut to = layout::item_key(prefix);
    while to.last() == Some(&0xff) {
        to.pop();
    }
    if let Some(last) = to.last_mut() {
        *last += 1;
    }
    to
}

/// Lets others run once.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
