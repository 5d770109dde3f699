//! Counting over records: over all of them in blocks, or over a list of ids.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use larder_core::native::{Native, NativeReply};
use larder_core::{Batch, Ctx, Error, ErrorKind, Op, Result, Want};

use super::layout::{self, Bits, Header};
use super::schema::{Schema, Value};
use super::shared::{Inner, Known};

/// The most groups that are counted.
pub const GROUPS_MAX: usize = 1 << 20;
/// Up to so many bits there is a place for every group.
const DENSE_BITS: u32 = 16;
/// Up to so many, a group is one number.
const SPARSE_BITS: u32 = 63;
/// In so many tables, since a count that was just written is slow to count up again: some groups are far more frequent than others.
const LANES: usize = 4;
/// A word that begins with any byte has so many bits from any bit of that byte on.
const WORD_BITS: u64 = 57;
/// How many ids of a list are read at once.
const IDS_A_BATCH: usize = 1_000;

/// How many records have which values, by [`PackedRecords::aggregate`](super::PackedRecords::aggregate).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Aggregate {
    /// How many records were counted.
    pub records: u64,
    /// The groups that have any, in the order of what is stored: of numbers the smallest first (below zero last), of labels as they were declared, none first.
    pub groups: Vec<Group>,
}

/// Records that have the same values in the fields that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// The values, in the order that the fields were asked for.
    pub values: Vec<Value>,
    /// How many records have them.
    pub count: u64,
}

impl Aggregate {
    /// How many records have these values.
    ///
    /// ```
    /// # use larder_structures::records::{Aggregate, Value};
    /// assert_eq!(Aggregate::default().count(&[Value::Bit(true)]), 0);
    /// ```
    pub fn count(&self, values: &[Value]) -> u64 {
        self.groups.iter().find(|group| group.values == values).map_or(0, |group| group.count)
    }
}

/// Counts by the bits of some fields.
pub(super) struct Tally {
    /// Fields by their places in the schema.
    fields: Vec<usize>,
    /// The numbers of a record that make its group, highest bits first.
    pub(super) parts: Vec<Bits>,
    counts: Counts,
    records: u64,
}

enum Counts {
    /// Each group has a place in all of them, and as many records as they say together.
    Dense([Vec<u64>; LANES]),
    Sparse(HashMap<u64, u64, crate::hash::State>),
    /// By the numbers of all parts.
    Wide(HashMap<Box<[u64]>, u64, crate::hash::State>),
}

impl Tally {
    /// # Errors
    /// [`ErrorKind::BadInput`] for a field that there is not.
    pub(super) fn new(schema: &Schema, names: &[&str]) -> Result<Tally> {
        let fields: Vec<usize> = names.iter().map(|name| schema.position(name)).collect::<Result<_>>()?;
        let parts: Vec<Bits> = fields.iter().flat_map(|&at| schema.fields()[at].parts()).collect();
        let bits: u32 = parts.iter().map(|part| u32::from(part.width)).sum();
        let counts = match bits {
            bits if bits <= DENSE_BITS => Counts::Dense(std::array::from_fn(|_| vec![0; 1 << bits])),
            bits if bits <= SPARSE_BITS => Counts::Sparse(HashMap::default()),
            _ => Counts::Wide(HashMap::default()),
        };
        Ok(Tally { fields, parts, counts, records: 0 })
    }

    /// Counts `times` records of one group.
    fn add(&mut self, group: u64, times: u64) -> Result<()> {
        self.records += times;
        match &mut self.counts {
            Counts::Dense(lanes) => lanes[0][group as usize] += times,
            Counts::Sparse(counts) => {
                *counts.entry(group).or_default() += times;
                return expect_room(counts.len());
            }
            Counts::Wide(_) => {}
        }
        Ok(())
    }

    /// As [`add`](Tally::add), of the group that has these numbers, where they do not fit one.
    fn add_wide(&mut self, numbers: &[u64], times: u64) -> Result<()> {
        self.records += times;
        let Counts::Wide(counts) = &mut self.counts else { return Ok(()) };
        match counts.get_mut(numbers) {
            Some(count) => *count += times,
            None => _ = counts.insert(numbers.into(), times),
        }
        expect_room(counts.len())
    }

    /// Counts records of zeros.
    fn add_zeros(&mut self, times: u64) -> Result<()> {
        match self.counts {
            Counts::Wide(_) => self.add_wide(&vec![0; self.parts.len()], times),
            _ => self.add(0, times),
        }
    }

    /// Counts a record by the numbers of its parts.
    fn add_record(&mut self, read: &[u64]) -> Result<()> {
        if matches!(self.counts, Counts::Wide(_)) {
            return self.add_wide(read, 1);
        }
        let group = self.parts.iter().zip(read).fold(0, |group, (part, number)| group << part.width | number);
        self.add(group, 1)
    }

    /// Counts the first `records` of a shard.
    fn add_shard(&mut self, bytes: &[u8], first_bit: u64, record_bits: u64, records: u32) -> Result<()> {
        if let ([part], Counts::Dense(lanes)) = (&self.parts[..], &mut self.counts) {
            count_dense(bytes, (first_bit + part.offset, record_bits, part.width), records, lanes);
            self.records += u64::from(records);
            return Ok(());
        }
        let is_wide = matches!(self.counts, Counts::Wide(_));
        let mut numbers = Vec::new();
        for record in 0..u64::from(records) {
            let first = first_bit + record * record_bits;
            let read = |part: &Bits| (part.width, layout::read_bits(bytes, first + part.offset, part.width));
            if is_wide {
                numbers.clear();
                numbers.extend(self.parts.iter().map(|part| read(part).1));
                self.add_wide(&numbers, 1)?;
                continue;
            }
            let group = self.parts.iter().map(read).fold(0, |group, (width, number)| group << width | number);
            self.add(group, 1)?;
        }
        Ok(())
    }

    /// The numbers of a group's parts, from the one number that they were put into.
    fn numbers_of(&self, group: u64) -> Box<[u64]> {
        let mut left: u32 = self.parts.iter().map(|part| u32::from(part.width)).sum();
        let take = |part: &Bits| {
            left -= u32::from(part.width);
            group >> left & (u64::MAX >> (64 - part.width))
        };
        self.parts.iter().map(take).collect()
    }

    fn done(mut self, schema: &Schema) -> Result<Aggregate> {
        let counted = std::mem::replace(&mut self.counts, Counts::Wide(HashMap::default()));
        let one = |counts: Vec<(u64, u64)>| -> Vec<(Box<[u64]>, u64)> {
            counts.into_iter().map(|(group, count)| (self.numbers_of(group), count)).collect()
        };
        let mut counts = match counted {
            Counts::Dense(lanes) => {
                let sum = |group: usize| lanes.iter().filter_map(|lane| lane.get(group)).sum();
                let all = (0..lanes[0].len()).map(|group| (group as u64, sum(group)));
                one(all.filter(|&(_, count): &(u64, u64)| count > 0).collect())
            }
            Counts::Sparse(counts) => one(counts.into_iter().collect()),
            Counts::Wide(counts) => counts.into_iter().collect(),
        };
        counts.sort_unstable();
        let fields: Vec<_> =
            self.fields.iter().map(|&at| &schema.fields()[at]).map(|of| (of, of.parts().len())).collect();
        let group = |(numbers, count): (Box<[u64]>, u64)| {
            let mut left = &numbers[..];
            let mut values = Vec::with_capacity(fields.len());
            for (field, parts) in &fields {
                let (read, rest) = left.split_at(*parts);
                values.push(field.value(read)?);
                left = rest;
            }
            Ok(Group { values, count })
        };
        let groups = counts.into_iter().map(group).collect::<Result<_>>()?;
        Ok(Aggregate { records: self.records, groups })
    }
}

/// # Errors
/// [`ErrorKind::BadInput`] for more groups than are counted.
fn expect_room(groups: usize) -> Result<()> {
    if groups <= GROUPS_MAX {
        return Ok(());
    }
    let detail = format!("the records fall into more than {GROUPS_MAX} groups, which is the limit");
    Err(Error::new(ErrorKind::BadInput, detail))
}

/// Counts numbers of one width that follow one another with nothing in between, eight at a time: how many were counted. The width is known to the compiler, so that no place is looked up in
/// vain: two thirds of the time that [`count_dense`] takes for the same.
fn count_eights<const WIDTH: usize, const PLACES: usize>(
    bytes: &[u8],
    first: u64,
    records: u32,
    lanes: &mut [Vec<u64>; LANES],
) -> u32 {
    const { assert!(PLACES == 1 << WIDTH && 8 * WIDTH + 7 <= u128::BITS as usize && WIDTH * LANES <= 64) };
    let lanes = lanes.each_mut().map(|lane| lane.first_chunk_mut::<PLACES>());
    let [Some(one), Some(two), Some(three), Some(four)] = lanes else { return 0 };
    let place = |word: u64, behind: usize| (word >> behind) as usize % PLACES;
    let rest = bytes.get((first / 8) as usize..).unwrap_or_default();
    // Eight of them take as many bytes as one takes bits.
    let eights = (records / 8) as usize;
    for eight in 0..eights {
        let at = eight * WIDTH;
        let Some(bytes) = rest.get(at..).and_then(|rest| rest.first_chunk()) else { return eight as u32 * 8 };
        let word = u128::from_be_bytes(*bytes) << (first % 8);
        let (head, tail) = ((word >> 64) as u64, (word >> (u128::BITS as usize - 8 * WIDTH)) as u64);
        one[place(head, 64 - WIDTH)] += 1;
        two[place(head, 64 - 2 * WIDTH)] += 1;
        three[place(head, 64 - 3 * WIDTH)] += 1;
        four[place(head, 64 - 4 * WIDTH)] += 1;
        one[place(tail, 3 * WIDTH)] += 1;
        two[place(tail, 2 * WIDTH)] += 1;
        three[place(tail, WIDTH)] += 1;
        four[place(tail, 0)] += 1;
    }
    eights as u32 * 8
}

/// As [`count_eights`], of a width that is known when it runs: none where there is no such code for it.
fn count_packed(bytes: &[u8], first: u64, width: u8, records: u32, lanes: &mut [Vec<u64>; LANES]) -> u32 {
    let count = match width {
        1 => count_eights::<1, 2>,
        2 => count_eights::<2, 4>,
        3 => count_eights::<3, 8>,
        4 => count_eights::<4, 16>,
        5 => count_eights::<5, 32>,
        6 => count_eights::<6, 64>,
        7 => count_eights::<7, 128>,
        8 => count_eights::<8, 256>,
        9 => count_eights::<9, 512>,
        10 => count_eights::<10, 1024>,
        11 => count_eights::<11, 2048>,
        12 => count_eights::<12, 4096>,
        _ => return 0,
    };
    count(bytes, first, records, lanes)
}

/// Counts numbers of one width that follow one another at one distance.
fn count_dense(bytes: &[u8], (first, step, width): (u64, u64, u8), records: u32, lanes: &mut [Vec<u64>; LANES]) {
    let packed = if step == u64::from(width) { count_packed(bytes, first, width, records, lanes) } else { 0 };
    let (first, records) = (first + u64::from(packed) * step, records - packed);
    let shift = 64 - u32::from(width);
    // The bits from one on, highest first, where there are 8 bytes left.
    let word = |offset: u64| {
        let eight = bytes.get((offset / 8) as usize..)?.first_chunk()?;
        Some(u64::from_be_bytes(*eight) << (offset % 8))
    };
    let [one, two, three, four] = lanes;
    let (mut offset, mut left) = (first, records);
    if 3 * step + u64::from(width) <= WORD_BITS {
        let step_bits = step as u32;
        while left >= LANES as u32 {
            let Some(word) = word(offset) else { break };
            one[(word >> shift) as usize] += 1;
            two[(word << step_bits >> shift) as usize] += 1;
            three[(word << (2 * step_bits) >> shift) as usize] += 1;
            four[(word << (3 * step_bits) >> shift) as usize] += 1;
            offset += LANES as u64 * step;
            left -= LANES as u32;
        }
    }
    let number = |offset: u64| match word(offset) {
        Some(word) => (word >> shift) as usize,
        None => layout::read_bits(bytes, offset, width) as usize,
    };
    for _ in 0..left / 2 {
        one[number(offset)] += 1;
        two[number(offset + step)] += 1;
        offset += 2 * step;
    }
    if left % 2 == 1 {
        one[number(offset)] += 1;
    }
}

const _: () = assert!(DENSE_BITS as u64 <= WORD_BITS && SPARSE_BITS < u64::BITS);

/// Shards, and their bytes where they are there.
type Block = Vec<(u32, Option<Bytes>)>;

impl Inner {
    /// Counts all records up to the highest id, block by block; the next block is under way while one is counted.
    pub(super) async fn aggregate(
        self: &Arc<Self>,
        mut tally: Tally,
        told: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Aggregate> {
        let end = self.end().await?;
        let deadline = self.deadline();
        let per_shard = u64::from(self.params.per_shard);
        let list = self.look(deadline).await?;
        let mut shards: Vec<u32> = list.pieces().iter().filter_map(|piece| u32::try_from(piece.number).ok()).collect();
        shards.dedup();
        shards.retain(|&shard| self.first_id(shard) < end);
        let blocks: Vec<Vec<u32>> = shards.chunks(self.shards_a_batch()).map(<[u32]>::to_vec).collect();
        let mut under_way = blocks.first().map(|block| self.begin(block));
        for (at, _) in blocks.iter().enumerate() {
            let Some(current) = under_way.take() else { break };
            under_way = blocks.get(at + 1).map(|block| self.begin(block));
            for (shard, bytes) in current.end().await? {
                let bytes = bytes.ok_or_else(|| self.lost(shard))?;
                self.count(&mut tally, shard, &bytes, end)?;
            }
            let done = blocks[at].last().map_or(0, |&shard| self.first_id(shard) + per_shard);
            told(done.min(end), end);
        }
        // Of shards that were never made, all records are zeros.
        let zeros = end - tally.records;
        if zeros > 0 {
            tally.add_zeros(zeros)?;
        }
        self.vigil().check()?;
        tally.done(&self.params.schema)
    }

    fn count(&self, tally: &mut Tally, shard: u32, bytes: &Bytes, end: u64) -> Result<()> {
        if bytes.len() != self.params.shard_bytes() {
            return Err(self.strange(shard));
        }
        let records = (end - self.first_id(shard)).min(u64::from(self.params.per_shard)) as u32;
        tally.add_shard(bytes, self.params.first_bit(0), self.params.schema.bits() as u64, records)
    }

    /// Begins to read shards, beside the caller where there is a runtime.
    fn begin(self: &Arc<Self>, shards: &[u32]) -> UnderWay {
        let (inner, shards) = (self.clone(), shards.to_vec());
        let deadline = self.deadline();
        let read = async move { inner.block(deadline, &shards).await };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => UnderWay::Task(AbortOnDrop(runtime.spawn(read))),
            Err(_) => UnderWay::Here(Box::pin(read)),
        }
    }

    /// Reads shards whole. **Round trips: 1.**
    async fn block(&self, deadline: Instant, shards: &[u32]) -> Result<Block> {
        let ops: Result<Batch> = shards
            .iter()
            .map(|&shard| {
                let key = self.key(shard)?;
                let len_bytes = self.params.shard_bytes() as u64 + 1;
                Ok(match self.is_native() {
                    true => Op::native(key, Native::BitsRead { offset_bytes: 0, len_bytes }),
                    false => Op::get(key, Want::VALUE),
                })
            })
            .collect();
        let replies = self.vigil().run(Ctx { deadline: Some(deadline) }, ops?).await;
        let mut block = Block::with_capacity(shards.len());
        for (&shard, reply) in shards.iter().zip(replies) {
            let bytes = match reply? {
                larder_core::Reply::Item(item) => Some(item.value),
                larder_core::Reply::Native(native) => match *native {
                    NativeReply::Bytes(bytes) if !bytes.is_empty() => Some(bytes),
                    _ => None,
                },
                _ => None,
            };
            let found = match &bytes {
                // What another program put in its place has no mark.
                Some(bytes) if self.is_native() && !is_marked(shard, bytes) => None,
                Some(bytes) => Some(self.header(shard, bytes)?.incarnation),
                None => None,
            };
            if self.settle(deadline, shard, found).await? != Known::Made {
                return Err(self.lost(shard));
            }
            block.push((shard, bytes));
        }
        Ok(block)
    }

    /// Counts the records of these ids, 1,000 at a time; also where they are counted alone, it is looked whether their shards are there.
    pub(super) async fn aggregate_ids(&self, mut tally: Tally, ids: &[u64]) -> Result<Aggregate> {
        let parts = tally.parts.clone();
        for some in ids.chunks(IDS_A_BATCH) {
            for read in self.read(some, &parts).await? {
                tally.add_record(&read)?;
            }
        }
        tally.done(&self.params.schema)
    }
}

/// True if a shard in bits says of itself which one it is.
fn is_marked(shard: u32, bytes: &Bytes) -> bool {
    Header::parse(bytes).is_some_and(|header| (header.known, header.shard) == (0, shard))
}

/// A block that is being read.
enum UnderWay {
    Task(AbortOnDrop),
    Here(std::pin::Pin<Box<dyn Future<Output = Result<Block>> + Send>>),
}

struct AbortOnDrop(tokio::task::JoinHandle<Result<Block>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl UnderWay {
    async fn end(self) -> Result<Block> {
        match self {
            UnderWay::Here(read) => read.await,
            UnderWay::Task(mut task) => (&mut task.0).await.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Unavailable, "a read of records was given up").source(error))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::StoreRef;
    use larder_layers::Counting;
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::records::{PackedRecords, SHARDS_MAX};

    /// A group of them has a place, is one number, or several: by the bits of its fields.
    #[tokio::test]
    async fn records_of_shards_that_were_never_made_are_counted_as_zeros() {
        for fields in [&["n:u8"][..], &["n:u40"], &["n:u64"], &["n:u62", "m:u62"]] {
            let store: StoreRef = Arc::new(MemoryStore::new());
            let options =
                PackedRecords::options().schema(Schema::parse(fields.iter().copied()).unwrap()).shard_bytes(64);
            let records = options.open_or_create(&store, "users").await.unwrap();
            records.set(1_000, &[("n", Value::Uint(7))]).await.unwrap();
            let names = &["n", "m"][..fields.len()];
            let counted = records.aggregate(names).await.unwrap();
            let zeros = [Value::Uint(0), Value::Uint(0)];
            assert_eq!((counted.records, counted.groups.len()), (1_001, 2), "{fields:?}");
            assert_eq!(counted.count(&zeros[..names.len()]), 1_000, "{fields:?}");
            assert_eq!(counted.groups[1].values[0], Value::Uint(7), "{fields:?}");
        }
    }

    /// Four shards of 1 MiB: two for each batch.
    #[tokio::test]
    async fn shards_are_read_and_written_two_mib_at_a_time() {
        // None of its looks at what it wrote, which it draws the times of, is due here.
        fastrand::seed(1);
        let counting = Counting::new(Arc::new(MemoryStore::new()));
        let store: StoreRef = Arc::new(counting.clone());
        let fields = ["paid:bit", "a:bytes255", "b:bytes255", "c:bytes255", "d:bytes255"];
        let options = PackedRecords::options().schema(Schema::parse(fields).unwrap()).shard_bytes(1 << 20);
        let records = options.open_or_create(&store, "users").await.unwrap();
        let per_shard = (records.id_max() + 1) / u64::from(SHARDS_MAX);
        let paid = [("paid", Value::Bit(true))];
        let set = async || records.set_many((0..4).map(|shard| (shard * per_shard, &paid[..]))).await.unwrap();
        set().await;
        let before = counting.counts();
        set().await;
        assert_eq!(counting.counts().since(&before).round_trips, 2 * 2, "a read and a write for every 2 MiB");
        let before = counting.counts();
        assert_eq!(records.aggregate(&["paid"]).await.unwrap().count(&[Value::Bit(true)]), 4);
        assert_eq!(counting.counts().since(&before).round_trips, 3 + 2, "3, and 1 for every 2 MiB");
    }

    #[test]
    fn one_group_more_than_are_counted_is_refused_whatever_its_width() {
        for schema in ["n:u40", "n:u64"] {
            let schema = Schema::parse([schema]).unwrap();
            let mut tally = Tally::new(&schema, &["n"]).unwrap();
            let parts = tally.parts.len();
            let read = |group: usize| {
                let mut read = vec![0; parts];
                read[parts - 1] = group as u64;
                read
            };
            (0..GROUPS_MAX).for_each(|group| tally.add_record(&read(group)).unwrap());
            tally.add_record(&read(7)).unwrap();
            let told = tally.add_record(&read(GROUPS_MAX)).unwrap_err();
            assert!(
                told.kind() == ErrorKind::BadInput && told.to_string().contains("more than 1048576 groups"),
                "{told}"
            );
        }
    }

    /// Records of every length around what fits a word, at any bit, and to the last of the bytes.
    #[test]
    fn numbers_are_counted_as_they_are_read_bit_by_bit() {
        let mut random = fastrand::Rng::with_seed(7);
        for width in 1..=16 {
            for gap in [0, 1, 6, 40] {
                for records in [0, 1, 3, 4, 7, 100] {
                    let (step, first) = (u64::from(width) + gap, random.u64(..70));
                    let bits = first + step * u64::from(records);
                    let mut bytes = vec![0; bits.div_ceil(8) as usize];
                    random.fill(&mut bytes);
                    let mut expected = vec![0u64; 1 << width];
                    for record in 0..u64::from(records) {
                        expected[layout::read_bits(&bytes, first + record * step, width) as usize] += 1;
                    }
                    let mut lanes: [Vec<u64>; LANES] = std::array::from_fn(|_| vec![0; 1 << width]);
                    count_dense(&bytes, (first, step, width), records, &mut lanes);
                    let sums: Vec<u64> = (0..1 << width).map(|at| lanes.iter().map(|lane| lane[at]).sum()).collect();
                    assert!(sums == expected, "{records} records of {width} bits, {step} apart, from bit {first}");
                }
            }
        }
    }

    /// A shard has room for more records than are counted, and what is behind those is not theirs.
    #[test]
    fn only_as_many_records_are_counted_as_there_are() {
        let bytes: Vec<u8> = (0..=255).cycle().take(600).collect();
        for width in 1..=12 {
            for records in [1u32, 3, 5, 7, 9, 15, 63] {
                let mut expected = vec![0u64; 1 << width];
                for record in 0..u64::from(records) {
                    expected[layout::read_bits(&bytes, record * u64::from(width), width) as usize] += 1;
                }
                let mut lanes: [Vec<u64>; LANES] = std::array::from_fn(|_| vec![0; 1 << width]);
                count_dense(&bytes, (0, u64::from(width), width), records, &mut lanes);
                let sums: Vec<u64> = (0..1 << width).map(|at| lanes.iter().map(|lane| lane[at]).sum()).collect();
                assert!(sums == expected, "{records} records of {width} bits");
            }
        }
    }

    /// The quick code has a count of its own for each width that it knows, and leaves fewer than eight to the other.
    #[test]
    fn numbers_of_up_to_twelve_bits_without_gaps_are_counted_eight_at_a_time() {
        let bytes = [0xff; 256];
        for width in 1..=13u8 {
            let mut lanes: [Vec<u64>; LANES] = std::array::from_fn(|_| vec![0; 1 << width]);
            let counted = count_packed(&bytes, 3, width, 29, &mut lanes);
            assert_eq!(counted, if width <= 12 { 24 } else { 0 }, "of {width} bits");
            let sum: u64 = lanes.iter().filter_map(|lane| lane.last()).sum();
            assert_eq!(sum, u64::from(counted), "of {width} bits");
        }
    }

    /// The fourth of four may end just behind what a word has for certain.
    #[test]
    fn a_bit_that_is_far_from_the_next_is_counted_from_wherever_it_is_read() {
        let bytes = [0xff; 64];
        for step in 1..=24 {
            for first in 0..8 {
                let mut lanes: [Vec<u64>; LANES] = std::array::from_fn(|_| vec![0; 2]);
                count_dense(&bytes, (first, step, 1), 16, &mut lanes);
                let sums: [u64; 2] = [0, 1].map(|at| lanes.iter().map(|lane| lane[at]).sum());
                assert_eq!(sums, [0, 16], "bits {step} apart, from bit {first}");
            }
        }
    }

    #[test]
    fn as_many_groups_are_counted_as_there_may_be_and_not_one_more() {
        let schema = Schema::parse(["a:u24"]).unwrap();
        let mut tally = Tally::new(&schema, &["a"]).unwrap();
        let most = 1 << 20;
        let Counts::Sparse(counts) = &mut tally.counts else { panic!("so many groups have no places") };
        counts.reserve(most as usize);
        counts.extend((0..most - 1).map(|group| (group, 1)));
        // The last that there may be, and one that is there.
        tally.add(most - 1, 1).unwrap();
        tally.add(0, 1).unwrap();
        assert_eq!(tally.add(most, 1).unwrap_err().kind(), ErrorKind::BadInput);
    }
}
