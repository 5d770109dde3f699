//! The fast counter: the server's own arithmetic on one key.
//!
//! Stored are decimal digits, the value plus 2^62: so far from both ends that the differences between servers (a floor at 0, a
//! wrap at 2^64, trouble from 2^63 on before memcached 1.6.22) cannot be met, and that what others write there is told from it.
//!
//! Where the store has bit fields, the number is one: 63 bits behind the generation of its manifest, big-endian, which no other program writes there. An add
//! looks for that mark and writes as one step, so one that meets no number, or a value of another program, writes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::native::{BitField, Families, GuardedBits, GuardedBitsAct, Native, NativeReply};
use larder_core::{
    Arith, Batch, ClockRef, Ctx, Effect, Error, ErrorKind, Key, Op, Profile, PutMode, Reply, Result, StoreRef, Ttl,
    Want,
};

use super::reset::{look_in_time, unanswered, within};
use crate::events;
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::owned::{self, GONE};
use crate::vigil::Vigil;

/// The version of the layout in decimal digits.
const LAYOUT: u8 = 1;
/// The version of the layout in a bit field.
const LAYOUT_NATIVE: u8 = 3;
/// What the bit field takes of a store.
const NATIVE: Families = Families::BITS.union(Families::KEYS);
/// The bits of the number, the highest of which is the second behind the mark: the first one is 0.
const NUMBER_BITS: u8 = 63;
const NUMBER_AT: u64 = 65;
/// The bytes of mark and number.
const NATIVE_BYTES: usize = 16;
/// What is added to the value before it is stored.
const BIAS: u64 = 1 << 62;
/// The values of a fast counter are at most this far from 0.
pub(super) const VALUE_MAX: i64 = 1 << 61;
/// The numbers added to a fast counter are at most this far from 0: 31 writers at once that all leave the range cannot reach
/// the ends of the server's arithmetic before they undo what they did.
pub(super) const DELTA_MAX: i64 = 1 << 56;
/// How far from 0 a value may be seen while they do.
const SEEN_MAX: i128 = VALUE_MAX as i128 + 31 * DELTA_MAX as i128;

/// A fast counter, opened.
#[derive(Debug)]
pub(super) struct Fast {
    pub(super) store: StoreRef,
    pub(super) timeout: Duration,
    pub(super) vigil: Arc<Vigil>,
    name: Name,
    key: Key,
    /// Where the number is no item.
    mark: Option<Bytes>,
}

/// What a new fast counter records: a bit field where the store has them.
pub(super) fn manifest(profile: &Profile) -> Manifest {
    let layout = if profile.natives.contains(NATIVE) { LAYOUT_NATIVE } else { LAYOUT };
    Manifest::new(Kind::FastCounter, layout, 1, Bytes::new())
}

/// The layouts that this release reads.
pub(super) fn layout_of(manifest: &Manifest) -> u8 {
    if manifest.layout == LAYOUT { LAYOUT } else { LAYOUT_NATIVE }
}

/// What its number begins with where it is no item.
pub(crate) fn mark(manifest: &Manifest) -> Option<Bytes> {
    is_native(manifest).then(|| Bytes::copy_from_slice(&manifest.generation.to_be_bytes()))
}

/// True if its number is no item.
pub(crate) fn is_native(manifest: &Manifest) -> bool {
    manifest.kind == Kind::FastCounter && manifest.layout == LAYOUT_NATIVE
}

impl Fast {
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a bit field on a store that has none.
    pub(super) fn new(
        store: StoreRef,
        name: Name,
        manifest: &Manifest,
        timeout: Duration,
        clock: ClockRef,
    ) -> Result<Fast> {
        let (mark, profile) = (mark(manifest), store.profile());
        if mark.is_some() && !profile.natives.contains(NATIVE) {
            let detail = format!("{name} holds a counter in a bit field, which this store has not");
            return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
        }
        let vigil = Vigil::new(&store, clock, &name, manifest)?;
        let key = manifest.data_key(&name, 0)?;
        Ok(Fast { store, timeout, vigil, name, key, mark })
    }

    pub(super) fn create_ops(&self) -> Batch {
        let key = self.key.clone();
        Batch::from_buf([match &self.mark {
            Some(mark) => Op::native(key, Native::BitsMake { value: [mark, &BIAS.to_be_bytes()[..]].concat().into() }),
            None => Op::put(key, PutMode::Add, BIAS.to_string(), Ttl::Never),
        }])
    }

    pub(super) async fn add(&self, delta: i64) -> Result<()> {
        if delta.unsigned_abs() > DELTA_MAX.unsigned_abs() {
            let detail = format!("{delta} is too much for one add to a fast counter; the limit is ±{DELTA_MAX} (2^56)");
            return Err(Error::new(ErrorKind::BadInput, detail).key(&self.key));
        }
        let ctx = Ctx::within(self.timeout);
        let value = self.shift(ctx, i128::from(delta)).await?;
        if value.abs() <= i128::from(VALUE_MAX) {
            return Ok(());
        }
        let detail = format!("adding {delta} makes {value}; a fast counter holds ±{VALUE_MAX} (2^61)");
        let taken_back = self.shift(ctx, -i128::from(delta)).await;
        // A bit field has a mark: nobody else writes there.
        let is_foreign = self.mark.is_none() && value.abs() > SEEN_MAX;
        let error = match (&taken_back, is_foreign) {
            (Ok(_), false) => Error::new(ErrorKind::Overflow, format!("{detail}; nothing is added")),
            (Err(error), false) => {
                let detail = format!("{detail}, and taking it back failed: {}", error.detail());
                Error::new(ErrorKind::Overflow, detail).effect(Effect::Unknown)
            }
            // Arithmetic ends at 0, and leaves blanks behind a number that became shorter.
            (_, true) => {
                let detail = format!("{detail}: another program wrote this number, which may be another now");
                Error::new(ErrorKind::LayoutMismatch, detail).effect(Effect::Unknown)
            }
        };
        let error = error.key(&self.key);
        Err(match taken_back {
            Ok(_) => error,
            Err(source) => error.source(source),
        })
    }

    pub(super) async fn get(&self, ctx: Ctx) -> Result<i128> {
        if let Some(mark) = &self.mark {
            let op = self.look_op();
            return match self.run_one(ctx, op.clone()).await?.into_native() {
                Some(NativeReply::Bytes(bytes)) => match number(mark, &bytes) {
                    Some(number) => Ok(unbiased(number)),
                    None => Err(self.lost(ctx).await),
                },
                other => Err(self.strange(&op, other)),
            };
        }
        let reply = self.run_one(ctx, Op::get(self.key.clone(), Want::VALUE)).await?;
        let Some(item) = reply.into_item() else { return Err(self.lost(ctx).await) };
        // Servers leave the blanks of a longer number behind a shorter one.
        let digits =
            std::str::from_utf8(&item.value).ok().and_then(|text| text.trim_end_matches(' ').parse::<u64>().ok());
        // Small numbers, as others write them, are none of ours, which stand around 2^62.
        digits.map(unbiased).filter(|value| value.abs() <= SEEN_MAX).ok_or_else(|| {
            let shown = larder_core::text::Shown(&item.value);
            let detail = format!("this is no number of a fast counter: {shown}; another program wrote it");
            Error::new(ErrorKind::LayoutMismatch, detail).key(&self.key)
        })
    }

    /// Takes away what was read: so what resets return and what remains add up to what was added.
    ///
    /// Ends at the deadline or a moment behind it, whatever the store does.
    pub(super) async fn reset(&self, ctx: Ctx) -> Result<i128> {
        let value = look_in_time(ctx, &self.name, self.get(ctx)).await?;
        if value != 0 {
            let shift = within(ctx, self.shift(ctx, -value)).await;
            let shifted = shift.unwrap_or_else(|| Err(unanswered(&self.name)));
            shifted.map_err(|error| if error.is_unknown() { self.in_doubt(value, error) } else { error })?;
        }
        Ok(value)
    }

    /// The error of a reset that may have taken a value away: it names it.
    fn in_doubt(&self, value: i128, error: Error) -> Error {
        let detail = format!("0 was reset, and perhaps {value} more, before: {}", error.detail());
        Error::new(error.kind(), detail).key(&self.key).effect(Effect::Unknown).source(error)
    }

    /// Adds, and tells the value after it.
    async fn shift(&self, ctx: Ctx, delta: i128) -> Result<i128> {
        if let Some(mark) = &self.mark {
            return self.shift_bits(ctx, mark.clone(), delta).await;
        }
        let amount = u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX);
        let arith = if delta < 0 { Arith::Decr(amount) } else { Arith::Incr(amount) };
        let op = Op::arith(self.key.clone(), arith);
        match self.run_one(ctx, op.clone()).await {
            Ok(Reply::Number(number)) => Ok(unbiased(number)),
            Ok(Reply::Miss) => Err(self.lost(ctx).await),
            Ok(other) => Err(manifest::unexpected(&op, &other)),
            Err(error) => Err(owned::counting(error, &self.key)),
        }
    }

    async fn shift_bits(&self, ctx: Ctx, mark: Bytes, delta: i128) -> Result<i128> {
        // Within ±2^62, as every value that is added and every one that is read.
        let delta = i64::try_from(delta).unwrap_or(if delta < 0 { i64::MIN } else { i64::MAX });
        let act = GuardedBitsAct::Incr { number: BitField::incr(NUMBER_BITS, NUMBER_AT, delta) };
        let op = Op::native(self.key.clone(), Native::GuardedBits(GuardedBits { mark, act }));
        match self.run_one(ctx, op.clone()).await?.into_native() {
            Some(NativeReply::Unmarked) => Err(self.lost(ctx).await),
            Some(NativeReply::Numbers(numbers)) => match numbers.first() {
                Some(Some(number)) => Ok(unbiased(*number)),
                _ => {
                    let detail =
                        format!("the number of {} would leave {NUMBER_BITS} bits; nothing is added", self.name);
                    Err(Error::new(ErrorKind::Overflow, detail).key(&self.key))
                }
            },
            other => Err(self.strange(&op, other)),
        }
    }

    fn look_op(&self) -> Op {
        number_op(self.key.clone())
    }

    fn strange(&self, op: &Op, reply: Option<NativeReply>) -> Error {
        manifest::unexpected(op, &reply.map_or(Reply::Miss, Reply::from))
    }

    async fn run_one(&self, ctx: Ctx, op: Op) -> Result<Reply> {
        let mut replies = self.vigil.run(ctx, Batch::from_buf([op])).await;
        replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
    }

    async fn lost(&self, ctx: Ctx) -> Error {
        let why = match manifest::find(&self.store, ctx, &self.name).await {
            Ok(Some(found)) if manifest_key_is(&found.manifest, &self.name, &self.key) => GONE,
            Ok(Some(_)) => "the counter was dropped and made again; open it anew",
            Ok(None) => "the manifest is gone too: the counter was dropped, or its server was restarted",
            Err(_) => "the manifest cannot be read either",
        };
        let detail = format!("the number of fast counter {} is gone ({why})", self.name);
        let error = Error::new(ErrorKind::Lost, detail).key(&self.key).store(self.store.profile().store.clone());
        events::loss(self.vigil.subject(), error)
    }
}

fn manifest_key_is(manifest: &Manifest, name: &Name, key: &Key) -> bool {
    manifest.data_key(name, 0).is_ok_and(|other| other == *key)
}

/// The number of the bytes under a native counter's key, if they are its own.
fn number(mark: &[u8], bytes: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(bytes.strip_prefix(mark)?.try_into().ok()?);
    (number >> NUMBER_BITS == 0).then_some(number)
}

/// What a manifest says where the number is an item.
pub(crate) fn portable_manifest(manifest: &Manifest) -> Manifest {
    Manifest { layout: LAYOUT, ..manifest.clone() }
}

/// The op that reads a number that is no item, and a byte behind it: what has more is none.
pub(crate) fn number_op(key: Key) -> Op {
    Op::native(key, Native::BitsRead { offset_bytes: 0, len_bytes: NATIVE_BYTES as u64 + 1 })
}

/// Asks whether there is anything under a key of the structure's data: an item, but for a native number.
pub(crate) fn presence_op(manifest: &Manifest, key: Key) -> Op {
    if is_native(manifest) { number_op(key) } else { Op::get(key, Want::empty()) }
}

/// True if the reply to [`presence_op`] says that there is.
pub(crate) fn is_present(manifest: &Manifest, reply: &Result<Reply>) -> bool {
    match reply {
        Ok(Reply::Item(_)) => true,
        Ok(Reply::Native(native)) => match (&**native, mark(manifest)) {
            (NativeReply::Bytes(bytes), Some(mark)) => bytes.starts_with(&mark),
            _ => false,
        },
        _ => false,
    }
}

/// What stands in an item of the same number; `None` for bytes that are none.
pub(crate) fn portable_number(manifest: &Manifest, bytes: &[u8]) -> Option<Bytes> {
    let number = number(&mark(manifest)?, bytes)?;
    Some(Bytes::from(number.to_string()))
}

fn unbiased(number: u64) -> i128 {
    i128::from(number) - i128::from(BIAS)
}

#[cfg(test)]
mod tests {
    use larder_core::{Run, Store, SystemClock, Verb};

    use super::*;

    /// A store that holds these bytes under one native key, and nothing else.
    #[derive(Debug)]
    struct Holding(Vec<u8>);

    impl Store for Holding {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { natives: NATIVE, ..Profile::unlimited("test") })
        }

        fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
            let read = |op: &Op| {
                let Verb::Native(native) = &op.verb else { return Ok(Reply::Miss) };
                let Native::BitsRead { offset_bytes, len_bytes } = &**native else { panic!("{native:?}") };
                let bytes = self.0.iter().skip(*offset_bytes as usize).take(*len_bytes as usize);
                Ok(NativeReply::Bytes(bytes.copied().collect()).into())
            };
            Run::Ready(batch.iter().map(read).collect())
        }
    }

    #[tokio::test]
    async fn bytes_that_go_on_behind_a_native_number_are_none() {
        let native = Manifest { generation: 0xab, ..Manifest::new(Kind::FastCounter, LAYOUT_NATIVE, 1, Bytes::new()) };
        let ours = [0xab, BIAS + 5].map(u64::to_be_bytes).concat();
        let read = async |bytes: Vec<u8>| {
            let (store, name) = (Arc::new(Holding(bytes)), Name::new("n").unwrap());
            let fast = Fast::new(store, name, &native, Duration::from_secs(1), SystemClock::shared()).unwrap();
            fast.get(Ctx::default()).await.map_err(|error| error.kind())
        };
        assert_eq!(read(ours.clone()).await, Ok(5));
        assert_eq!(read([&ours[..], b"x"].concat()).await, Err(ErrorKind::Lost), "another program's");
    }

    /// 31 writers that all leave the range at once end where the server's arithmetic still counts.
    #[test]
    fn values_and_what_is_added_have_room_for_all_who_leave_the_range_at_once() {
        assert_eq!((VALUE_MAX, DELTA_MAX), (2_305_843_009_213_693_952, 72_057_594_037_927_936));
        let (bias, ends) = (i128::from(BIAS), 0..=(1_i128 << NUMBER_BITS) - 1);
        assert_eq!(SEEN_MAX, 4_539_628_424_389_459_968);
        assert!(ends.contains(&(bias + SEEN_MAX)) && ends.contains(&(bias - SEEN_MAX)));
        assert!(!ends.contains(&(bias + SEEN_MAX + i128::from(DELTA_MAX))), "one more would not have");
    }

    #[test]
    fn a_native_number_has_golden_bytes_as_an_item() {
        let native = Manifest { generation: 0xab, ..Manifest::new(Kind::FastCounter, LAYOUT_NATIVE, 1, Bytes::new()) };
        let bytes = b"\0\0\0\0\0\0\0\xab\x3f\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(portable_number(&native, bytes).unwrap(), "4611686018427387903", "-1");
        for wrong in [&b""[..], b"5", &bytes[..15], b"\0\0\0\0\0\0\0\xac\x40\0\0\0\0\0\0\0"] {
            assert_eq!(portable_number(&native, wrong), None, "{wrong:?}");
        }
        let said = portable_manifest(&native);
        assert_eq!((said.layout, portable_number(&said, bytes)), (1, None));
    }
}
