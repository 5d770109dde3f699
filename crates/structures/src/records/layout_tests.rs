use bytes::Bytes;
use larder_core::ErrorKind;
use proptest::prelude::*;

use super::layout::*;
use super::*;

fn params() -> Params {
    let schema = Schema::new()
        .bit("vip")
        .uint("age", 7)
        .int("debt", 5)
        .choice("place", ["CA", "US", "FR"])
        .bytes("tag", 8)
        .build()
        .unwrap();
    Params { kept: Kept::Native, per_shard: 3, schema }
}

#[test]
fn parameters_have_golden_bytes() {
    let bytes = params().encode();
    let expected = b"\x02\x03\0\0\0\x05\
        \x00\x01\0\x03vip\
        \x01\x07\0\x03age\
        \x02\x05\0\x04debt\
        \x03\x03\0\x05place\x02CA\x02US\x02FR\
        \x04\x08\0\x03tag";
    assert_eq!(&bytes[..], expected);
    assert_eq!(Params::decode(&bytes).unwrap(), params());
}

#[test]
fn a_shard_has_golden_bytes() {
    let params = params();
    let header = Header { incarnation: 0x0102_0304_0506_0708, known: 0, shard: 0x0a0b_0c0d };
    let mut shard = header.shard_of_zeros(params.shard_bytes());
    // 3 records of 79 bits.
    assert_eq!(shard.len(), 16 + 30);
    let values: [Value; 5] =
        [true.into(), 0x55u64.into(), (-3i64).into(), "FR".into(), Bytes::from_static(b"\x80tagged\x01").into()];
    for (field, value) in params.schema.fields().iter().zip(&values) {
        for bits in field.pieces(value).unwrap() {
            write_bits(&mut shard, Bits { offset: params.first_bit(1) + bits.offset, ..bits });
        }
    }
    Header::raise_known(&mut shard, 2);
    Header::raise_known(&mut shard, 1);
    let mut expected = b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x02\x0a\x0b\x0c\x0d".to_vec();
    // Bits 79 to 157: 1 1010101 11101 11 and the eight bytes of the tag.
    let record = 0b110_1010_1111_0111_u128 << 64 | 0x80_74_61_67_67_65_64_01;
    let mut records = [0; 30];
    records[4..20].copy_from_slice(&(record << 2).to_be_bytes());
    expected.extend(records);
    assert_eq!(shard, expected);
    let header = Header::parse(&shard).unwrap();
    assert_eq!((header.known, header.shard), (2, 0x0a0b_0c0d));
    let mark = Header::mark(0x0a0b_0c0d, 0x0102_0304_0506_0708);
    assert_eq!(&mark[..], b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\x0a\x0b\x0c\x0d");
    let fields = Header::mark_fields().map(|field| Some(read_bits(&mark, field.offset, field.width)));
    assert_eq!(Header::of_fields(0x0a0b_0c0d, &fields), Some(0x0102_0304_0506_0708));
    assert_eq!(Header::of_fields(0x0a0b_0c0e, &fields), None);
    assert_eq!(Header::of_fields(0, &[Some(0), Some(0)]), None);
    for (field, value) in params.schema.fields().iter().zip(values) {
        let read = |part: Bits| read_bits(&shard, params.first_bit(1) + part.offset, part.width);
        let numbers: Vec<u64> = field.parts().into_iter().map(read).collect();
        assert_eq!(field.value(&numbers).unwrap(), value);
    }
}

#[test]
fn the_marks_bits_are_the_incarnations() {
    let shard = Header { incarnation: u64::MAX >> 1, known: 9, shard: 1 }.shard_of_zeros(20);
    assert_eq!(read_bits(&shard, 1, 63), u64::MAX >> 1);
    assert_eq!(Header::parse(&[0; 16]), None, "zeros are no shard");
    assert_eq!(Header::parse(&[0xff; 16]), None);
    assert_eq!(Header::parse(&shard[..15]), None);
}

#[test]
fn values_that_do_not_fit_are_named() {
    let params = params();
    let refuse = |at: usize, value: Value, words: &[&str]| {
        let error = params.schema.fields()[at].pieces(&value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error} does not name {word}"));
    };
    refuse(1, 128u64.into(), &["age", "127", "128"]);
    refuse(1, true.into(), &["age"]);
    refuse(2, 16i64.into(), &["debt", "-16 to 15", "16"]);
    refuse(2, (-17i64).into(), &["debt", "-17"]);
    refuse(3, "DE".into(), &["place", "CA, US, FR", "DE"]);
    refuse(4, Bytes::from_static(b"short").into(), &["tag", "8 bytes"]);
}

#[test]
fn schemas_out_of_range_are_refused() {
    let long = "n".repeat(65);
    let wide = |count: usize| (0..count).fold(Schema::new(), |schema, at| schema.bytes(format!("f{at}"), 255));
    let many = (0..256).fold(Schema::new(), |schema, at| schema.bit(format!("f{at}")));
    let labels: Vec<String> = (0..2_000).map(|at| format!("{at:060}")).collect();
    for (schema, word) in [
        (Schema::new(), "0 fields"),
        (many, "256 fields"),
        (Schema::new().bit("a").uint("a", 2), "\"a\""),
        (Schema::new().bit(""), "0 bytes"),
        (Schema::new().bit(long.clone()), "65 bytes"),
        (Schema::new().choice("c", [long]), "65 bytes"),
        (Schema::new().uint("u", 0), "0 bits"),
        (Schema::new().int("i", 65), "65 bits"),
        (Schema::new().bytes("b", 0), "0 bytes"),
        (Schema::new().choice("c", ["x", "x"]), "twice"),
        (Schema::new().choice::<String>("c", []), "0 labels"),
        (wide(5), "8192"),
        (Schema::new().choice("c", labels), "65536"),
    ] {
        let error = schema.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(word), "{error} does not name {word}");
    }
}

fn schemas() -> impl Strategy<Value = Schema> {
    let kind = prop_oneof![
        Just(FieldKind::Bit),
        (1u8..=64).prop_map(FieldKind::Uint),
        (1u8..=64).prop_map(FieldKind::Int),
        (1usize..300).prop_map(|count| FieldKind::Choice((0..count).map(|at| format!("l{at}")).collect())),
        (1u8..=20).prop_map(FieldKind::Bytes),
    ];
    proptest::collection::vec(kind, 1..6).prop_map(|kinds| {
        let named = kinds.into_iter().enumerate();
        named.fold(Schema::new(), |schema, (at, kind)| schema.field(format!("f{at}"), kind)).build().unwrap()
    })
}

/// Some value that fits a field, made of a random number.
fn value_of(field: &Field, random: u64) -> Value {
    let bits = field.kind().bits() as u32;
    match field.kind() {
        FieldKind::Bit => Value::Bit(random % 2 == 1),
        FieldKind::Uint(_) => Value::Uint(random >> (64 - bits)),
        FieldKind::Int(_) => Value::Int((random as i64) >> (64 - bits)),
        FieldKind::Choice(labels) => Value::Choice(match random as usize % (labels.len() + 1) {
            0 => None,
            at => Some(labels[at - 1].clone()),
        }),
        FieldKind::Bytes(count) => {
            Value::Bytes((0..*count).map(|at| random.rotate_left(u32::from(at) * 7) as u8).collect())
        }
    }
}

#[test]
fn schemas_at_their_limits_are_taken() {
    let wide =
        |rest: u8| (0..4).fold(Schema::new(), |schema, at| schema.bytes(format!("f{at}"), 255)).uint("last", rest);
    assert_eq!(wide(32).build().unwrap().bits(), RECORD_BITS_MAX);
    assert!(wide(33).build().is_err());
    let many = (0..FIELDS_MAX).fold(Schema::new(), |schema, at| schema.bit(format!("f{at}")));
    assert_eq!(many.build().unwrap().fields().len(), FIELDS_MAX);
    let long = "n".repeat(NAME_BYTES_MAX);
    let widths = Schema::new().choice(&long, [&long]).uint("u", 64).int("i", 64).uint("v", 1).int("j", 1).bytes("b", 1);
    assert_eq!(widths.build().unwrap().bits(), 1 + 64 + 64 + 1 + 1 + 8);
    // All labels and what goes with them: one byte each for their lengths, the field's own three and its name.
    let labels = |last: usize| {
        let short = (0..1_074).map(|at| format!("{at:060}"));
        let schema = Schema::new().choice("c", short.chain([format!("{:0last$}", 7)]));
        schema.build().map(|schema| schema.bits())
    };
    let fits = (1..=NAME_BYTES_MAX).filter(|&last| labels(last).is_ok()).max().unwrap();
    assert!(labels(fits + 1).unwrap_err().to_string().contains(&format!("{} bytes", SCHEMA_BYTES_MAX + 1)));
}

#[test]
fn pieces_that_follow_one_another_are_joined_as_far_as_one_may_be_wide() {
    let of = |offset: u64, width: u8, value: u64| Bits { offset, width, value };
    let pieces = vec![of(16, 8, 0xcc), of(0, 8, 0xaa), of(8, 8, 0xbb), of(25, 8, 0xdd), of(33, 55, 1), of(88, 1, 1)];
    assert_eq!(joined(pieces), [of(0, 24, 0xaa_bbcc), of(25, 63, 0xdd << 55 | 1), of(88, 1, 1)]);
}

#[test]
fn a_number_of_all_bits_is_two_pieces_and_any_other_one() {
    for (width, value, pieces) in [(63, u64::MAX >> 1, 1), (64, u64::MAX, 2), (64, 0x0102_0304_0506_0708, 2), (1, 1, 1)]
    {
        let bits = of_number(5, width, value);
        assert_eq!(bits.len(), pieces, "{width}");
        let values: Vec<u64> = bits.iter().map(|bits| bits.value).collect();
        assert_eq!(to_number(width, &values), value, "{width}");
    }
    // Of a narrow number the first piece is all there is, whatever comes behind it.
    assert_eq!([to_number(63, &[7, 9]), to_number(64, &[7, 9]), to_number(64, &[])], [7, 7 << 32 | 9, 0]);
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_neighbours_stay(
        schema in schemas(), position in 0u32..20, random: u64, ones: bool, joins: bool,
    ) {
        let params = Params { kept: Kept::Portable, per_shard: 21, schema };
        prop_assert_eq!(Params::decode(&params.encode()), Some(params.clone()));
        let mut shard = vec![if ones { 0xff } else { 0 }; params.shard_bytes()];
        let before = shard.clone();
        let fields = params.schema.fields();
        let values: Vec<Value> = (0u32..).zip(fields).map(|(at, field)| value_of(field, random.rotate_left(at))).collect();
        let first = params.first_bit(position);
        let mut pieces = Vec::new();
        for (field, value) in fields.iter().zip(&values) {
            pieces.extend(field.pieces(value).unwrap().into_iter().map(|bits| Bits { offset: first + bits.offset, ..bits }));
        }
        for bits in if joins { joined(pieces) } else { pieces } {
            prop_assert!(bits.width <= 63);
            write_bits(&mut shard, bits);
        }
        for (field, value) in fields.iter().zip(&values) {
            let read = |part: Bits| read_bits(&shard, first + part.offset, part.width);
            let numbers: Vec<u64> = field.parts().into_iter().map(read).collect();
            prop_assert_eq!(&field.value(&numbers).unwrap(), value);
            prop_assert_eq!(&field.parse(&value.to_string()).unwrap(), value);
        }
        let end = first + params.schema.bits() as u64;
        for bit in (0..before.len() as u64 * 8).filter(|bit| !(first..end).contains(bit)) {
            prop_assert_eq!(read_bits(&shard, bit, 1), read_bits(&before, bit, 1), "bit {}", bit);
        }
    }

    #[test]
    fn what_is_written_twice_is_what_was_written_last(values in proptest::collection::vec((0u64..6, 0u64..512), 1..20)) {
        let pieces: Vec<Bits> = values.iter().map(|&(at, value)| Bits { offset: at * 9, width: 9, value }).collect();
        let (mut one_by_one, mut at_once) = (vec![0; 8], vec![0; 8]);
        pieces.iter().for_each(|piece| write_bits(&mut one_by_one, *piece));
        joined(pieces).into_iter().for_each(|piece| write_bits(&mut at_once, piece));
        prop_assert_eq!(one_by_one, at_once);
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), offset in 0u64..1_000, width in 1u8..=63) {
        if let Some(params) = Params::decode(&bytes) {
            prop_assert_eq!(&params.encode()[..], &bytes[..]);
        }
        _ = Header::parse(&bytes);
        prop_assert!(read_bits(&bytes, offset, width) >> width == 0);
        let mut bytes = bytes;
        write_bits(&mut bytes, Bits { offset, width, value: u64::MAX >> (64 - width) });
    }
}

#[test]
fn as_many_records_as_fit_into_a_shard() {
    assert_eq!([per_shard(16, 9), per_shard(17, 9), per_shard(25, 9), per_shard(0, 9)], [0, 0, 8, 0]);
    assert_eq!([per_shard(16 + 90, 9), per_shard(16 + 89, 9), per_shard(usize::MAX, 1)], [80, 79, u32::MAX]);
}

#[test]
fn shards_that_are_none_are_refused() {
    let with = |per_shard: u32| Params::decode(&Params { per_shard, ..params() }.encode());
    // 79 bits a record, and 2^32 bits that can be told at the most.
    let most = ((larder_core::native::BitField::OFFSET_END - 16 * 8) / 79) as u32;
    assert_eq!([0, 1, most, most + 1].map(|per_shard| with(per_shard).is_some()), [false, true, true, false]);
}

#[test]
fn an_incarnation_has_63_bits_and_is_not_zero() {
    let parsed = |incarnation: u64| {
        let header = Header { incarnation, known: 1, shard: 2 };
        Header::parse(&header.shard_of_zeros(16)) == Some(header)
    };
    assert_eq!([0, 1, u64::MAX >> 1, 1 << 63].map(parsed), [false, true, true, false]);
}

#[test]
fn the_number_of_known_records_is_raised_and_never_lowered() {
    let mut shard = Header { incarnation: 1, known: 5, shard: 2 }.shard_of_zeros(16);
    for (known, then) in [(4, 5), (5, 5), (6, 6), (1, 6)] {
        Header::raise_known(&mut shard, known);
        assert_eq!(Header::parse(&shard).unwrap().known, then);
    }
}
