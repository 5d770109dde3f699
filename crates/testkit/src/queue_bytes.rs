//! Where a queue or stack keeps a segment, found as a program in another language would: by the bytes that `docs/layouts.md` writes down.

use larder_core::{Ctx, Key, Op, StoreExt, StoreRef, Want};

/// The key of a segment. `prefix` is what all keys of the structure's data begin with: `L.<name>.<role>.<generation>`.
///
/// # Panics
/// If neither the state nor a link tells of it.
pub async fn segment_key(store: &StoreRef, prefix: &str, number: u64) -> Key {
    let state = read(store, format!("{prefix}.0")).await.expect("a state");
    let incarnation = match of_state(&state, number) {
        Some(incarnation) => incarnation,
        None => {
            let link = read(store, format!("{prefix}.n{number:x}")).await.expect("a link");
            u64::from_le_bytes(link[4..].try_into().expect("12 bytes"))
        }
    };
    Key::new(format!("{prefix}.s{incarnation:016x}")).expect("a key")
}

async fn read(store: &StoreRef, key: String) -> Option<Vec<u8>> {
    let get = Op::get(Key::new(key).expect("a key"), Want::VALUE);
    store.run_one(Ctx::default(), get).await.expect("a reply").into_item().map(|item| item.value.to_vec())
}

/// The incarnation of a segment, if the state names it.
fn of_state(state: &[u8], number: u64) -> Option<u64> {
    let mut rest = &state[8..];
    varint(&mut rest);
    let tail = varint(&mut rest);
    let incarnation = fixed(&mut rest);
    if tail == number {
        return Some(incarnation);
    }
    rest = &rest[1..];
    for _ in 0..6 {
        varint(&mut rest);
    }
    for _ in 0..varint(&mut rest) {
        fixed(&mut rest);
        varint(&mut rest);
    }
    for _ in 0..varint(&mut rest) {
        let (segment, incarnation) = (varint(&mut rest), fixed(&mut rest));
        varint(&mut rest);
        for _ in 0..varint(&mut rest) {
            varint(&mut rest);
            varint(&mut rest);
        }
        // What there was: so many frames, the digest of all, and 4 bytes of those 1, 2, 4 … before, unless there were none.
        let frames = varint(&mut rest);
        if frames > 0 {
            let earlier = u64::BITS - (frames - 1).leading_zeros();
            rest = &rest[8 + 4 * earlier as usize..];
        }
        // Who is to remove it: a byte, and unless that is 0 a writer and a sequence.
        let (&named, tail) = rest.split_first().expect("a byte");
        rest = tail;
        if named > 0 {
            fixed(&mut rest);
            varint(&mut rest);
        }
        if segment == number && incarnation != 0 {
            return Some(incarnation);
        }
    }
    None
}

fn fixed(rest: &mut &[u8]) -> u64 {
    let (number, tail) = rest.split_first_chunk().expect("8 bytes");
    *rest = tail;
    u64::from_le_bytes(*number)
}

fn varint(rest: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (&byte, tail) = rest.split_first().expect("a varint");
        *rest = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
        shift += 7;
    }
}
