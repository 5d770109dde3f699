//! From a dump into a store.

use std::io::Read;
use std::time::Duration;

use larder_core::list::FLEET_KEY;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, Store, Ttl, Verb};

use crate::format::{DumpItem, now_ms};
use crate::reader::DumpReader;

/// Items that are sent in one batch.
const BATCH_OPS: usize = 256;
/// Bytes of values of one batch, at the most (and one item's more).
const BATCH_BYTES: usize = 1 << 20;
/// Refusals that are named.
const NAMED_MAX: usize = 20;

/// How to import.
///
/// ```
/// let how = larder_dump::Importing { replace: true, ..Default::default() };
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Importing {
    /// Write over what is there. Otherwise that stays, and is counted.
    pub replace: bool,
    /// Leave out so many blocks: those that an import before put there.
    pub skip_blocks: u64,
}

/// What came of an import so far.
///
/// ```
/// assert_eq!(larder_dump::Imported::default().stored, 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// Items that were written.
    pub stored: u64,
    /// Bytes of the values that were read.
    pub value_bytes: u64,
    /// Items whose key was taken, and were left out.
    pub kept: u64,
    /// Items whose life is over.
    pub expired: u64,
    /// Items that the store does not take.
    pub refused: Refused,
    /// Blocks that are done: an import that failed is gone on with behind them.
    pub blocks: u64,
}

/// Items that a store does not take: longer than it can hold, or with a life that it does not know.
///
/// ```
/// assert!(larder_dump::Refused::default().first.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// Some of them, with the store's words.
    pub first: Vec<Error>,
}

/// Puts the items of a dump into a store, with flags and what is left of their lives. Writers meanwhile are not overwritten, unless told to `replace`.
///
/// An item that the store does not take is counted, and the others go on. A fleet's list of its servers ([`FLEET_KEY`]), which older dumps may hold, is left out. **Round trips**: 1 for each 256 items, or 1 MiB.
///
/// # Errors
/// Those of the dump and of the store. `so_far` tells how far it came: go on with as many [blocks](Imported::blocks) skipped. What a block's lost answer left unknown is
/// written then, or is there already.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Key, StoreExt};
/// use larder_dump::{DumpItem, DumpReader, DumpWriter, Head, Imported, Importing, import};
/// let mut writer = DumpWriter::new(Vec::new(), &Head::now("a test"))?;
/// writer.push(&DumpItem { key: Key::new("k")?, flags: 0, expiry_ms: None, value: "v".into() })?;
/// let (file, _) = writer.finish()?;
/// let store = larder_store_memory::MemoryStore::new();
/// let mut imported = Imported::default();
/// let mut reader = DumpReader::new(&file[..])?;
/// import(&store, &mut reader, Importing::default(), &mut imported, &mut |_| ()).await?;
/// assert_eq!(imported.stored, 1);
/// assert_eq!(store.get(Key::new("k")?).await?.unwrap().value, "v");
/// # Ok(())
/// # }
/// ```
pub async fn import<R: Read>(
    store: &dyn Store,
    reader: &mut DumpReader<R>,
    how: Importing,
    so_far: &mut Imported,
    tell: &mut dyn FnMut(&Imported),
) -> Result<()> {
    let mut number = 0;
    while let Some(items) = reader.next_block()? {
        // The head is a block, too.
        number = reader.blocks() - 1;
        if number > how.skip_blocks {
            let mut items = items.as_slice();
            while !items.is_empty() {
                let count = batch_len(items);
                write(store, &items[..count], how.replace, so_far).await?;
                items = &items[count..];
            }
        }
        so_far.blocks = number.max(how.skip_blocks);
        so_far.value_bytes = reader.totals().value_bytes;
        tell(so_far);
    }
    if number < how.skip_blocks {
        let detail = format!("{} blocks are to be left out, and the dump has {number}", how.skip_blocks);
        return Err(Error::new(ErrorKind::BadInput, detail));
    }
    Ok(())
}

/// How many items go in the next batch.
fn batch_len(items: &[DumpItem]) -> usize {
    let mut bytes = 0;
    let fits = |item: &&DumpItem| {
        bytes += item.value.len();
        bytes <= BATCH_BYTES
    };
    items.iter().take(BATCH_OPS).take_while(fits).count().max(1)
}

async fn write(store: &dyn Store, items: &[DumpItem], replace: bool, so_far: &mut Imported) -> Result<()> {
    let (now_ms, mode) = (now_ms(), if replace { PutMode::Set } else { PutMode::Add });
    let mut batch = Batch::new();
    for item in items.iter().filter(|item| item.key.as_bytes() != FLEET_KEY.as_bytes()) {
        let ttl = match item.expiry_ms.map(|expiry_ms| expiry_ms.saturating_sub(now_ms)) {
            Some(0) => {
                so_far.expired += 1;
                continue;
            }
            Some(left_ms) => Ttl::After(Duration::from_millis(left_ms)),
            None => Ttl::Never,
        };
        batch.push(Op::new(item.key.clone(), Verb::Put { mode, value: item.value.clone(), flags: item.flags, ttl }));
    }
    let mut failed: Option<Error> = None;
    for reply in store.run(Ctx::default(), batch).await {
        match reply {
            Ok(Reply::Stored) => so_far.stored += 1,
            Ok(_) => so_far.kept += 1,
            Err(error) if is_of_the_item(&error) => {
                so_far.refused.count += 1;
                if so_far.refused.first.len() < NAMED_MAX {
                    so_far.refused.first.push(error);
                }
            }
            // The first; but one whose outcome is unknown goes before.
            Err(error) => failed = failed.filter(|first| first.is_unknown() || !error.is_unknown()).or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// True if the item is at fault, not the store: others will be taken.
fn is_of_the_item(error: &Error) -> bool {
    use ErrorKind::{BadInput, LayoutMismatch, Unsupported};
    error.known_effect() == Effect::NotApplied && matches!(error.kind(), BadInput | LayoutMismatch | Unsupported)
}
