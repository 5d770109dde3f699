//! Opening and making visitors.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use larder_core::{ClockRef, Ctx, Error, ErrorKind, Result, StoreRef, SystemClock, TtlSupport};

use super::Visitors;
use super::known::Known;
use super::layout::{LAYOUT, Params, SHARDS_MAX};
use super::shared::{KEPT, Shared, as_ms};
use crate::append::Tuning;
use crate::ledger::{CLOCKS_APART_MAX, Ledger};
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::timeout;

pub(super) const PERIOD_MIN: Duration = Duration::from_secs(1);
pub(super) const PERIOD_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const PERIOD_DEFAULT: Duration = Duration::from_secs(5 * 60);
const SHARDS_DEFAULT: u16 = 4;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// The most pieces that the windows in use may have: each first hit reads their list.
const PIECES_MAX: u64 = 10_000;
/// Of a list that changes with every window, dirt below a read's other costs.
const LEDGER_DIRTY_BYTES: usize = 1_024;

/// How visitors are opened and made. What is said here must be so of those that exist; what is not said follows them.
///
/// ```
/// # use larder_core::{ErrorKind, StoreRef};
/// # use larder_structures::Visitors;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let minute = Visitors::options().period(Duration::from_secs(60));
/// minute.open_or_create(&store, "site").await?;
/// let error = Visitors::options().period(Duration::from_secs(300)).open(&store, "site").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct VisitorsOptions {
    period: Option<Duration>,
    shards: Option<u16>,
    timeout: Option<Duration>,
    clock: Option<ClockRef>,
}

impl VisitorsOptions {
    /// How long a window is: 1 s to 30 days, in whole milliseconds; 5 minutes for new ones unless said.
    ///
    /// ```
    /// let options = larder_structures::Visitors::options().period(std::time::Duration::from_secs(60));
    /// ```
    pub fn period(self, period: Duration) -> VisitorsOptions {
        VisitorsOptions { period: Some(period), ..self }
    }

    /// Over how many values the visitors of a window are spread, if hits name them: 1 to 256, 4 for new ones unless said. One of an item
    /// of 1 MiB holds some 131,000 visitors. Each read brings them all. Those of a short period must be few: all windows in use
    /// have 10,000 pieces at the most.
    ///
    /// ```
    /// let options = larder_structures::Visitors::options().shards(16);
    /// ```
    pub fn shards(self, shards: u16) -> VisitorsOptions {
        VisitorsOptions { shards: Some(shards), ..self }
    }

    /// How long a method may take, with all its steps; 5 s unless said, a day at the most. 0 is refused at open.
    ///
    /// ```
    /// let options = larder_structures::Visitors::options().timeout(std::time::Duration::from_secs(1));
    /// ```
    pub fn timeout(self, timeout: Duration) -> VisitorsOptions {
        VisitorsOptions { timeout: Some(timeout.min(timeout::TIMEOUT_MAX)), ..self }
    }

    /// The clock that tells which window is being filled; the system's unless said. See the [module](super) for clocks that disagree.
    ///
    /// ```
    /// let options = larder_structures::Visitors::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(self, clock: ClockRef) -> VisitorsOptions {
        VisitorsOptions { clock: Some(clock), ..self }
    }

    /// Opens visitors that are there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Visitors::options().open(&store, "site").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes and options out of range,
    /// [`Absent`](ErrorKind::Absent) if there are none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure, another period or number of
    /// shards, [`Unsupported`](ErrorKind::Unsupported) where the store's items, batches or lives are too small.
    pub async fn open(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Visitors> {
        let name = Name::new(name)?;
        self.params()?;
        match manifest::find(store, self.ctx(), &name).await? {
            Some(found) => self.handle(store, name, found.manifest),
            None => Err(manifest::absent(store, &name)),
        }
    }

    /// Opens visitors, and makes them if there are none. **Round trips: 1**, 3 if they are made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = Visitors::options().shards(1).open_or_create(&store, "site").await?;
    /// assert_eq!(site.period(), std::time::Duration::from_secs(300));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](VisitorsOptions::open), but for `Absent`.
    pub async fn open_or_create(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Visitors> {
        let name = Name::new(name)?;
        let params = self.params()?;
        if let Some(found) = manifest::find(store, self.ctx(), &name).await? {
            return self.handle(store, name, found.manifest);
        }
        let new = Manifest::new(Kind::Visitors, LAYOUT, Ledger::SHARDS, params.encode());
        // Refuses a store that cannot carry it, before anything is written.
        self.handle(store, name.clone(), new.clone())?;
        let data_of = |new: &Manifest| Ok(vec![Ledger::create_ops(&name, new)?]);
        let made = manifest::create(store, self.ctx(), &name, new, data_of).await?;
        self.handle(store, name, made)
    }

    fn ctx(&self) -> Ctx {
        Ctx::within(self.timeout.unwrap_or(TIMEOUT_DEFAULT))
    }

    /// What new visitors record. Refuses what none can be.
    fn params(&self) -> Result<Params> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        timeout::check(self.timeout.unwrap_or(TIMEOUT_DEFAULT))?;
        let period = self.period.unwrap_or(PERIOD_DEFAULT);
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) || !period.subsec_nanos().is_multiple_of(1_000_000) {
            return bad(format!("a period is {period:?}; it takes 1 s to 30 days, in whole milliseconds"));
        }
        let shards = self.shards.unwrap_or(SHARDS_DEFAULT);
        if !(1..=SHARDS_MAX).contains(&shards) {
            return bad(format!("visitors have 1 to {SHARDS_MAX} shards, not {shards}"));
        }
        let params = Params { period_ms: as_ms(period), shards };
        let pieces = pieces_in_use(params);
        if pieces > PIECES_MAX {
            return bad(format!(
                "windows of {period:?} with {shards} shards have {pieces} pieces in use; the limit is {PIECES_MAX}: take fewer \
                 shards, or a longer period"
            ));
        }
        Ok(params)
    }

    /// A handle on what a manifest says, if it is as these options say.
    fn handle(&self, store: &StoreRef, name: Name, manifest: Manifest) -> Result<Visitors> {
        let params = self.compare(&name, &manifest)?;
        can_carry(store, params)?;
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        let tuning = Tuning { clock: clock.clone(), dirty_bytes: LEDGER_DIRTY_BYTES };
        let mut shared = Shared {
            store: store.clone(),
            ledger: Ledger::new(store, &name, &manifest, tuning)?,
            name,
            manifest,
            params,
            known: Known::default(),
            clock,
            timeout: self.timeout.unwrap_or(TIMEOUT_DEFAULT),
            value_bytes_max: 0,
            is_trimming: AtomicBool::new(false),
            is_compacting: AtomicBool::new(false),
        };
        let longest = shared.key(super::layout::WINDOW_MAX, SHARDS_MAX)?;
        shared.value_bytes_max = store.profile().value_bytes_max(longest.as_bytes().len());
        Ok(Visitors(Arc::new(shared)))
    }

    fn compare(&self, name: &Name, manifest: &Manifest) -> Result<Params> {
        manifest.expect(name, Kind::Visitors, LAYOUT)?;
        let mismatch = |detail: String| Err(Error::new(ErrorKind::LayoutMismatch, detail));
        let is_strange = manifest.shards != Ledger::SHARDS || manifest.copies != 1;
        let Some(params) = Params::decode(&manifest.params).filter(|params| !is_strange && is_sound(*params)) else {
            return mismatch(format!("{name} keeps its visitors in a way that this release does not know"));
        };
        match (self.period, self.shards) {
            (Some(period), _) if as_ms(period) != params.period_ms => mismatch(format!(
                "{name} was made with a period of {:?}, not {period:?}; it is fixed",
                Duration::from_millis(params.period_ms)
            )),
            (_, Some(shards)) if shards != params.shards => {
                mismatch(format!("{name} was made with {} shards, not {shards}; their number is fixed", params.shards))
            }
            _ => Ok(params),
        }
    }
}

/// What no release would write is not worked with.
fn is_sound(params: Params) -> bool {
    (as_ms(PERIOD_MIN)..=as_ms(PERIOD_MAX)).contains(&params.period_ms) && (1..=SHARDS_MAX).contains(&params.shards)
}

/// How many pieces are listed at a time: of the windows that are kept, and of those that are over for some clock, not for all.
fn pieces_in_use(params: Params) -> u64 {
    let over = (2 * as_ms(CLOCKS_APART_MAX)).div_ceil(params.period_ms);
    (KEPT + 1 + over) * (1 + u64::from(params.shards))
}

/// # Errors
/// [`ErrorKind::Unsupported`] where the store's batches or lives are too small.
fn can_carry(store: &StoreRef, params: Params) -> Result<()> {
    let profile = store.profile();
    let refuse = |detail: String| Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
    let ops = 2 * (1 + usize::from(params.shards)) + 1;
    if ops > profile.batch_ops_max {
        let max = profile.batch_ops_max;
        return refuse(format!("two windows of {} shards are {ops} ops; a batch here takes {max}", params.shards));
    }
    let life = Duration::from_millis((KEPT + 1) * params.period_ms) + 3 * CLOCKS_APART_MAX;
    if profile.ttl != TtlSupport::None && life > profile.ttl_max {
        return refuse(format!("windows must live for {life:?}; the longest life here is {:?}", profile.ttl_max));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_store_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_window_is_five_minutes_long_unless_said() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let site = VisitorsOptions::default().open_or_create(&store, "site").await.unwrap();
        assert_eq!(site.period(), Duration::from_secs(300));
    }

    #[test]
    fn visitors_as_no_release_makes_them_are_a_layout_mismatch() {
        const DAYS_30_MS: u64 = 2_592_000_000;
        let name = Name::new("n").unwrap();
        let of = |period_ms, shards| {
            Manifest::new(Kind::Visitors, LAYOUT, Ledger::SHARDS, Params { period_ms, shards }.encode())
        };
        let opened = |manifest: &Manifest| {
            let params = VisitorsOptions::default().compare(&name, manifest).map_err(|error| error.kind())?;
            Ok((params.period_ms, params.shards))
        };
        for (period_ms, shards) in [(1_000, 1), (300_000, 4), (DAYS_30_MS, 256)] {
            assert_eq!(opened(&of(period_ms, shards)), Ok((period_ms, shards)));
        }
        let strange = [
            of(999, 4),
            of(DAYS_30_MS + 1, 4),
            of(300_000, 0),
            of(300_000, 257),
            Manifest { shards: Ledger::SHARDS + 1, ..of(300_000, 4) },
            Manifest { copies: 3, ..of(300_000, 4) },
            Manifest { params: bytes::Bytes::new(), ..of(300_000, 4) },
        ];
        for manifest in strange {
            assert_eq!(opened(&manifest), Err(ErrorKind::LayoutMismatch), "{manifest:?}");
        }
    }
}
