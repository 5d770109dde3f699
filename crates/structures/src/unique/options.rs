//! Opening and making unique visitors.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use larder_core::native::Families;
use larder_core::{ClockRef, Ctx, Durability, Error, ErrorKind, Result, StoreRef, SystemClock, TtlSupport};

use super::add::{Adder, COMBINED_IDS_MAX};
use super::core::{Core, as_ms};
use super::id::IdKind;
use super::layout::{DAY_MS, EXPECTED_MAX, LAYOUT, Params, Precision, Shape};
use super::zone::Zone;
use super::{Shared, UniqueVisitors};
use crate::append::Tuning;
use crate::combine::Combiner;
use crate::ledger::{CLOCKS_APART_MAX, Ledger};
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::timeout;

const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const PERIOD_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// No clock of the earth is further from UTC.
const OFFSET_MS_MAX: i32 = 14 * 60 * 60 * 1_000;
const EXPECTED_DEFAULT: u64 = 100_000;
const KEEP_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Of a list that changes with every period, dirt below a read's other costs.
const LEDGER_DIRTY_BYTES: usize = 1_024;
/// What the store must have for shards that are sets of its own.
const SETS: Families = Families::SET.union(Families::KEYS);
/// The smallest item that a shard can live in.
const VALUE_BYTES_MIN: usize = 16_384;

/// How unique visitors are opened and made. What is said here must be so of those that exist; what is not said follows them.
///
/// ```
/// # use larder_core::{ErrorKind, StoreRef};
/// # use larder_structures::{Precision, UniqueVisitors};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let exact = UniqueVisitors::options().precision(Precision::Exact).expected(1_000);
/// exact.open_or_create(&store, "site").await?;
/// let error = UniqueVisitors::options().precision(Precision::Compact).open(&store, "site").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct UniqueVisitorsOptions {
    period: Option<Duration>,
    offset_s: Option<i32>,
    zone: Option<String>,
    precision: Option<Precision>,
    ids: Option<IdKind>,
    seed: Option<u64>,
    expected: Option<u64>,
    keep: Option<Duration>,
    timeout: Option<Duration>,
    clock: Option<ClockRef>,
}

impl UniqueVisitorsOptions {
    /// How long a period is: 1 s to 366 days, in whole milliseconds; a day for new ones unless said.
    ///
    /// ```
    /// let options = larder_structures::UniqueVisitors::options().period(std::time::Duration::from_secs(3_600));
    /// ```
    pub fn period(self, period: Duration) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { period: Some(period), ..self }
    }

    /// How many seconds the local time is ahead of UTC, negative where it is behind, up to 14 hours; 0 for new ones unless said. Periods begin at local
    /// midnight (or whatever their length divides). Where summer time moves it, see [`zone`](UniqueVisitorsOptions::zone).
    ///
    /// ```
    /// let new_york = larder_structures::UniqueVisitors::options().offset_s(-5 * 3_600);
    /// ```
    pub fn offset_s(self, offset_s: i32) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { offset_s: Some(offset_s), ..self }
    }

    /// The zone whose days they are, instead of an offset: a name of the IANA time zone database, such as `Europe/Berlin`, 64 bytes at the most. A day has 23 or 25 hours
    /// there when the clocks change; the number of a day is that of its date, in days after 1-1-1970. Periods are whole days then, counted from that date.
    ///
    /// A zone's names are names of different zones to it: what was made with `Europe/Kiev` is not opened with `Europe/Kyiv`.
    ///
    /// Which day a time is in is told by the database of the process that adds, or counts: the machine's own, or where it has none the one that this crate was built with. Where two of
    /// them differ (a law was changed, and one was not updated), visitors of the hours in question are in the day that the one who adds them says.
    ///
    /// ```
    /// let berlin = larder_structures::UniqueVisitors::options().zone("Europe/Berlin");
    /// ```
    pub fn zone(self, zone: impl Into<String>) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { zone: Some(zone.into()), ..self }
    }

    /// How exactly visitors are counted; compact for new ones unless said.
    ///
    /// ```
    /// use larder_structures::{Precision, UniqueVisitors};
    /// let options = UniqueVisitors::options().precision(Precision::NEAR_EXACT);
    /// ```
    pub fn precision(self, precision: Precision) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { precision: Some(precision), ..self }
    }

    /// What kind of ids there are; any for new ones unless said.
    ///
    /// ```
    /// use larder_structures::{IdKind, UniqueVisitors};
    /// let options = UniqueVisitors::options().ids(IdKind::Integer);
    /// ```
    pub fn ids(self, ids: IdKind) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { ids: Some(ids), ..self }
    }

    /// What the hash of ids begins with; 0 for new ones unless said. Sites that are to be united need the same. Whoever knows it can make up ids
    /// that count as one; where visitors choose their ids, take a secret.
    ///
    /// ```
    /// let options = larder_structures::UniqueVisitors::options().seed(0x5eed);
    /// ```
    pub fn seed(self, seed: u64) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { seed: Some(seed), ..self }
    }

    /// How many visitors a period is made for if nobody came in the one before it: 1 to 2^30; 100,000 for new ones unless said. More may come.
    /// Not compared with what exists: it tells how the next period is made.
    ///
    /// ```
    /// let options = larder_structures::UniqueVisitors::options().expected(10_000_000);
    /// ```
    pub fn expected(self, expected: u64) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { expected: Some(expected), ..self }
    }

    /// How long a period is kept after its end, up to 10 years; zero, and new ones unless said, for ever. The next one is made for as many visitors as it
    /// tells only if the first of them come while it is kept; else for as many as [`expected`](UniqueVisitorsOptions::expected) says.
    ///
    /// ```
    /// let options = larder_structures::UniqueVisitors::options().keep(std::time::Duration::from_secs(30 * 86_400));
    /// ```
    pub fn keep(self, keep: Duration) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { keep: Some(keep), ..self }
    }

    /// How long a method may take, with all its steps; 30 s unless said. 0 is refused at open.
    ///
    /// ```
    /// let options = larder_structures::UniqueVisitors::options().timeout(std::time::Duration::from_secs(1));
    /// ```
    pub fn timeout(self, timeout: Duration) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { timeout: Some(timeout.min(timeout::TIMEOUT_MAX)), ..self }
    }

    /// The clock that tells which period it is; the system's unless said.
    ///
    /// ```
    /// let options = larder_structures::UniqueVisitors::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(self, clock: ClockRef) -> UniqueVisitorsOptions {
        UniqueVisitorsOptions { clock: Some(clock), ..self }
    }

    /// Opens unique visitors that are there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(UniqueVisitors::options().open(&store, "site").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes and options out of range,
    /// [`Absent`](ErrorKind::Absent) if there are none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure and for options other than theirs,
    /// [`Unsupported`](ErrorKind::Unsupported) where the store has no cas, or its items or lives are too small.
    pub async fn open(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<UniqueVisitors> {
        let name = Name::new(name)?;
        self.params(store)?;
        match manifest::find(store, self.ctx(), &name).await? {
            Some(found) => self.handle(store, name, found.manifest),
            None => Err(manifest::absent(store, &name)),
        }
    }

    /// Opens unique visitors, and makes them if there are none. **Round trips: 1**, 3 if they are made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::options().expected(500).open_or_create(&store, "site").await?;
    /// assert_eq!(site.period().as_secs(), 86_400);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](UniqueVisitorsOptions::open), but for `Absent`.
    pub async fn open_or_create(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<UniqueVisitors> {
        let name = Name::new(name)?;
        let params = self.params(store)?;
        if let Some(found) = manifest::find(store, self.ctx(), &name).await? {
            return self.handle(store, name, found.manifest);
        }
        let new = Manifest::new(Kind::UniqueVisitors, LAYOUT, Ledger::SHARDS, params.encode());
        // Refuses a store that cannot carry it, before anything is written.
        self.handle(store, name.clone(), new.clone())?;
        let data_of = |new: &Manifest| Ok(vec![Ledger::create_ops(&name, new)?]);
        let made = manifest::create(store, self.ctx(), &name, new, data_of).await?;
        self.handle(store, name, made)
    }

    fn ctx(&self) -> Ctx {
        Ctx::within(self.timeout.unwrap_or(TIMEOUT_DEFAULT))
    }

    /// What new ones record. Refuses what none can be.
    fn params(&self, store: &StoreRef) -> Result<Params> {
        timeout::check(self.timeout.unwrap_or(TIMEOUT_DEFAULT))?;
        let expected = self.expected.unwrap_or(EXPECTED_DEFAULT);
        if !(1..=EXPECTED_MAX).contains(&expected) {
            return Err(bad(format!("{expected} visitors are expected; it takes 1 to {EXPECTED_MAX}")));
        }
        let offset_s = self.offset_s.unwrap_or(0);
        let offset_ms = offset_s.checked_mul(1_000).filter(|ms| (-OFFSET_MS_MAX..=OFFSET_MS_MAX).contains(ms));
        let Some(offset_ms) = offset_ms else {
            return Err(bad(format!(
                "an offset is {offset_s} s; it takes {} at the most, either way",
                OFFSET_MS_MAX / 1_000
            )));
        };
        let zone = self.new_zone()?;
        let keep = self.keep.unwrap_or(Duration::ZERO);
        if keep > KEEP_MAX {
            return Err(bad(format!("periods are to be kept for {keep:?}; the limit is {KEEP_MAX:?}")));
        }
        let (precision, ids) = (self.precision.unwrap_or_default(), self.ids.unwrap_or_default());
        let params = Params {
            period_ms: as_ms(self.period.unwrap_or(PERIOD_DEFAULT)),
            offset_ms,
            seed: self.seed.unwrap_or(0),
            precision,
            ids,
            shape: shape_on(store, precision, ids),
            expected,
            keep_ms: as_ms(keep),
            zone,
        };
        let period = self.period.unwrap_or(PERIOD_DEFAULT);
        if !is_sound(&params) || !period.subsec_nanos().is_multiple_of(1_000_000) {
            let detail = format!(
                "a period is {period:?} and the precision {:?}; periods take {PERIOD_MIN:?} to {PERIOD_MAX:?} in whole milliseconds, near-exact 24 to 48 \
                 bits, a sketch 2^10 to 2^16 rows",
                params.precision
            );
            return Err(bad(detail));
        }
        Ok(params)
    }

    /// The zone of new ones.
    fn new_zone(&self) -> Result<Option<Zone>> {
        let Some(name) = &self.zone else { return Ok(None) };
        let Some(zone) = Zone::named(name).filter(Zone::is_known) else {
            return Err(bad(format!(
                "the zone is {name:?}; it takes a name of the IANA time zone database, such as Europe/Berlin"
            )));
        };
        if self.offset_s.is_some() {
            return Err(bad(format!("there are a zone, {}, and an offset; periods take one of them", zone.name())));
        }
        let period = self.period.unwrap_or(PERIOD_DEFAULT);
        if !as_ms(period).is_multiple_of(DAY_MS) {
            return Err(bad(format!("a period is {period:?}, and a zone is given; its periods take whole days")));
        }
        Ok(Some(zone))
    }

    /// A handle on what a manifest says, if it is as these options say.
    fn handle(&self, store: &StoreRef, name: Name, manifest: Manifest) -> Result<UniqueVisitors> {
        let params = self.compare(&name, &manifest)?;
        can_carry(store, &params)?;
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        let tuning = Tuning { clock: clock.clone(), dirty_bytes: LEDGER_DIRTY_BYTES };
        let ledger = Ledger::new(store, &name, &manifest, tuning)?;
        let timeout = self.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let core = Arc::new(Core::new(store.clone(), name, manifest, params, ledger, clock, timeout)?);
        let combiner = Combiner::new(Adder::new(core.clone()), COMBINED_IDS_MAX);
        Ok(UniqueVisitors(Arc::new(Shared { core, combiner, tickets: AtomicU64::new(0) })))
    }

    fn compare(&self, name: &Name, manifest: &Manifest) -> Result<Params> {
        manifest.expect(name, Kind::UniqueVisitors, LAYOUT)?;
        let mismatch = |detail: String| Err(Error::new(ErrorKind::LayoutMismatch, detail));
        let is_strange = manifest.shards != Ledger::SHARDS || manifest.copies != 1;
        let Some(found) = Params::decode(&manifest.params).filter(|params| !is_strange && is_sound(params)) else {
            return mismatch(format!("{name} keeps its visitors in a way that this release does not know"));
        };
        let differs = |what: &str, found: String, asked: String| {
            mismatch(format!("{name} was made with {what} {found}, not {asked}; it is fixed"))
        };
        if let Some(period) = self.period.filter(|period| as_ms(*period) != found.period_ms) {
            let found = Duration::from_millis(found.period_ms);
            return differs("a period of", format!("{found:?}"), format!("{period:?}"));
        }
        let made_by =
            found.zone.as_ref().map_or_else(|| an_offset(found.offset_ms / 1_000), |zone| zone.name().to_owned());
        let zone = |name: &String| Zone::named(name).map_or_else(|| name.clone(), |zone| zone.name().to_owned());
        let asked = self.zone.as_ref().map(zone).or_else(|| self.offset_s.map(an_offset));
        if let Some(asked) = asked.filter(|asked| *asked != made_by) {
            return differs("days of", made_by, format!("of {asked}"));
        }
        if let Some(precision) = self.precision.filter(|precision| *precision != found.precision) {
            return differs("precision", format!("{:?}", found.precision), format!("{precision:?}"));
        }
        if let Some(ids) = self.ids.filter(|ids| *ids != found.ids) {
            return differs("ids of the kind", found.ids.as_str().to_owned(), ids.as_str().to_owned());
        }
        if self.seed.is_some_and(|seed| seed != found.seed) {
            return mismatch(format!("{name} was made with another seed; it is fixed"));
        }
        if let Some(keep) = self.keep.filter(|keep| as_ms(*keep) != found.keep_ms) {
            let found = Duration::from_millis(found.keep_ms);
            return differs("periods kept for", format!("{found:?}"), format!("{keep:?}"));
        }
        Ok(Params { expected: self.expected.unwrap_or(found.expected), ..found })
    }
}

fn an_offset(offset_s: i32) -> String {
    format!("an offset of {offset_s} s")
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadInput, detail)
}

/// What shards new ones have on a store.
fn shape_on(store: &StoreRef, precision: Precision, ids: IdKind) -> Shape {
    let profile = store.profile();
    let fits = match precision {
        Precision::Compact => true,
        Precision::Exact => ids == IdKind::Integer,
        Precision::NearExact { .. } | Precision::Sketch { .. } => false,
    };
    if fits && profile.natives.contains(SETS) {
        return Shape::Native;
    }
    // Servers take memory in size classes: what grows through them leaves some of each behind.
    match profile.durability == Durability::Server && profile.may_evict() {
        true => Shape::Padded,
        false => Shape::Blob,
    }
}

/// What no release would write is not worked with.
fn is_sound(params: &Params) -> bool {
    (as_ms(PERIOD_MIN)..=as_ms(PERIOD_MAX)).contains(&params.period_ms)
        && (-OFFSET_MS_MAX..=OFFSET_MS_MAX).contains(&params.offset_ms)
        && (1..=EXPECTED_MAX).contains(&params.expected)
        && params.keep_ms <= as_ms(KEEP_MAX)
        && params.precision.is_sound()
        && (params.zone.is_none() || params.period_ms.is_multiple_of(DAY_MS) && params.offset_ms == 0)
        && (params.shape != Shape::Native
            || params.precision == Precision::Compact
            || params.precision == Precision::Exact && params.ids == IdKind::Integer)
}

/// # Errors
/// [`ErrorKind::Unsupported`] where the store has no cas, or its items or lives are too small.
fn can_carry(store: &StoreRef, params: &Params) -> Result<()> {
    let profile = store.profile();
    let refuse = |detail: String| Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
    if !profile.cas {
        return refuse("unique visitors need conditional writes (cas)".to_owned());
    }
    if params.shape == Shape::Native && !profile.natives.contains(SETS) {
        return refuse("these unique visitors are kept in sets of a Redis or Valkey server".to_owned());
    }
    if profile.value_bytes_max(larder_core::Key::BYTES_MAX) < VALUE_BYTES_MIN {
        return refuse(format!("unique visitors need items of {VALUE_BYTES_MIN} bytes"));
    }
    if let Some(zone) = params.zone.as_ref().filter(|zone| !zone.is_known()) {
        return refuse(format!(
            "these are the days of {}, which is not in the time zone database of this machine",
            zone.name()
        ));
    }
    if params.keep_ms > 0 {
        // The days of a zone may be longer: 25 hours, or two days where the date line was moved.
        let longer_ms = if params.zone.is_some() { DAY_MS } else { 0 };
        let life = Duration::from_millis(params.keep_ms + params.period_ms + longer_ms) + 3 * CLOCKS_APART_MAX;
        if profile.ttl == TtlSupport::None || life > profile.ttl_max {
            return refuse(format!("periods must live for {life:?}; the longest life here is {:?}", profile.ttl_max));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_of_more_keys_or_copies_than_one_is_a_mismatch() {
        let params = days();
        let good = Manifest::new(Kind::UniqueVisitors, LAYOUT, Ledger::SHARDS, params.encode());
        let name = Name::new("site").unwrap();
        let open = |manifest: Manifest| UniqueVisitorsOptions::default().compare(&name, &manifest);
        assert_eq!(open(good.clone()).unwrap(), params);
        for strange in [Manifest { shards: 2, ..good.clone() }, Manifest { copies: 2, ..good.clone() }] {
            let error = open(strange).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
            assert!(error.to_string().contains("this release does not know"), "{error}");
        }
    }

    /// Compact ones of days, kept for ever.
    fn days() -> Params {
        Params {
            period_ms: DAY_MS,
            offset_ms: 0,
            seed: 0,
            precision: Precision::Compact,
            ids: IdKind::Any,
            shape: Shape::Blob,
            expected: 100,
            keep_ms: 0,
            zone: None,
        }
    }

    #[test]
    fn the_periods_of_a_zone_are_whole_days_that_begin_where_its_clocks_say() {
        let zone = Zone::named("Europe/Berlin");
        assert!(zone.is_some());
        let of_zone = |period_ms, offset_ms| Params { zone: zone.clone(), period_ms, offset_ms, ..days() };
        assert!(is_sound(&of_zone(DAY_MS, 0)) && is_sound(&of_zone(2 * DAY_MS, 0)));
        assert!(!is_sound(&of_zone(DAY_MS, 3_600_000)), "an offset beside the zone");
        assert!(!is_sound(&of_zone(DAY_MS / 2, 0)), "half a day");
        assert!(is_sound(&Params { zone: None, ..of_zone(DAY_MS / 2, 3_600_000) }));
    }

    #[test]
    fn sets_keep_compact_hashes_or_integers_as_they_are_and_nothing_else() {
        let sets = |precision, ids| Params { shape: Shape::Native, precision, ids, ..days() };
        for ids in [IdKind::Any, IdKind::Integer] {
            assert!(is_sound(&sets(Precision::Compact, ids)));
            assert!(!is_sound(&sets(Precision::NEAR_EXACT, ids)));
            assert_eq!(is_sound(&sets(Precision::Exact, ids)), ids == IdKind::Integer);
        }
    }
}
