//! Reading all there is, and holding it against its checksums.

use std::path::PathBuf;

use bytes::Bytes;
use larder_core::{Error, Result};

use crate::fault::Fault;
use crate::layout::{self, EXPIRY, ITEM, Record};
use crate::list::damaged;
use crate::store::DurableStore;

/// Entries between two words of progress.
const TELL_EVERY: u64 = 10_000;
/// Damaged items that are named.
const NAMED_MAX: usize = 100;

/// What a check found.
///
/// ```
/// assert_eq!(larder_store_durable::Checked::default().damaged, 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Bytes of tables that were read, before the items.
    pub table_bytes: u64,
    /// Items that were read, those that are over among them.
    pub items: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Items that are damaged, or whose end of life is noted nowhere, so that nothing would reclaim them.
    pub damaged: u64,
    /// Some of those.
    pub first: Vec<Error>,
    /// Files of tables whose parts all match their own checksums, so that nothing in them is damaged, and which do not match the one noted of the whole file. The
    /// engine notes a wrong one where the system wrote less at once than it was given, as on a disk that was full for a moment; a file that somebody put there from another
    /// store, by the same name, looks the same.
    pub unmatched: Vec<PathBuf>,
}

impl DurableStore {
    /// Reads every file of a table from end to end, and every item, and holds each against its checksum. The journal and the lists of tables were looked over when the store was opened,
    /// which also mends what a crash has left ([`Options::open`](crate::Options::open)); this itself changes nothing.
    /// Others work meanwhile; what they write is not looked at. Blocks for as long as the store is large.
    ///
    /// # Errors
    /// [`Corrupt`](larder_core::ErrorKind::Corrupt), with the file and the place, for a table that is damaged: what lies behind it cannot be read. A damaged item
    /// is counted, and the others go on.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = larder_store_durable::Options::new(folder.path()).open()?;
    /// assert_eq!(store.check(&mut |_| ())?.damaged, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn check(&self, tell: &mut dyn FnMut(&Checked)) -> Result<Checked> {
        let shared = self.shared();
        let moment = shared.moment(&[EXPIRY], &[ITEM + 1]);
        let (mut checked, mut unread) = (Checked::default(), None);
        let named = |fault: Fault| fault.error(&shared.name);
        let mut read = |bytes| {
            checked.table_bytes += bytes;
            tell(&checked);
        };
        let unmatched = shared.engine.verify_tables(&mut read).map_err(named)?;
        checked.unmatched = unmatched;
        let current = moment.generations().map_err(named)?.current;
        let mut look = |engine_key: &[u8], bytes: Bytes| {
            let key = &engine_key[1..];
            let bad = match Record::decode(key, &bytes) {
                Ok(record) => {
                    checked.value_bytes += record.value.len() as u64;
                    let noted = record.end.map(|end| moment.has(&layout::expiry_key(end, key)));
                    match noted.transpose() {
                        // What waits to be swept needs no end: its note may have come, and gone.
                        Ok(Some(false)) if record.generation == current => {
                            Some(layout::Bad("the end of its life is noted nowhere"))
                        }
                        Ok(_) => None,
                        Err(fault) => {
                            unread = Some(fault);
                            return false;
                        }
                    }
                }
                Err(bad) => Some(bad),
            };
            checked.items += 1;
            if let Some(bad) = bad {
                checked.damaged += 1;
                if checked.first.len() < NAMED_MAX {
                    checked.first.push(damaged(key, bad).error(&shared.name));
                }
            }
            if checked.items.is_multiple_of(TELL_EVERY) {
                tell(&checked);
            }
            true
        };
        moment.scan(&[ITEM], &[ITEM + 1], &mut look).map_err(named)?;
        unread.map_or(Ok(()), Err).map_err(named)?;
        moment.scan(&[EXPIRY], &[EXPIRY + 1], &mut |_, _| true).map_err(named)?;
        tell(&checked);
        Ok(checked)
    }
}
