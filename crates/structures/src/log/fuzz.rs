//! The parameters, parts and cursors of a log, fuzzed.

use super::Cursor;
use super::layout::{At, HEADER_BYTES, Params, PartValue, put_event};
use crate::append::layout::seal_frames;
use crate::fuzzing::{Codec, GENERATION, bytes, comes_back, number, unsealed};

const AT: At = At { chunk: 77, part: 1 };

fn read_part(bytes: &[u8]) -> Result<bool, String> {
    let Ok(part) = PartValue::parse(bytes, GENERATION, AT) else { return Ok(false) };
    let Ok(frames) = part.frames(HEADER_BYTES) else { return Ok(false) };
    let mut again = AT.header(GENERATION, part.incarnation).to_vec();
    for frame in &frames {
        let mut elements = Vec::new();
        if part.events(frame, |offset_ms, event| put_event(&mut elements, offset_ms, event)).is_err() {
            return Ok(false);
        }
        again.extend_from_slice(&AT.frame(GENERATION, frame.writer, frame.seq, &elements, frame.is_marked));
        if part.has(frame.writer, frame.seq).ok() != Some(true) {
            return Err(format!("a frame of {} is there and not found", frame.writer));
        }
    }
    // What was cut short is read up to there, or refused; lengths may be written longer than they need be.
    _ = part.cut(bytes.len() / 2).frames(HEADER_BYTES);
    let same = PartValue::parse(&again, GENERATION, AT).and_then(|part| Ok(part.frames(HEADER_BYTES)?.len()));
    match same {
        Ok(count) if count == frames.len() => Ok(true),
        other => Err(format!("{} frames come back as {other:?}", frames.len())),
    }
}

pub(crate) const CODECS: &[Codec] = &[
    Codec {
        name: "log",
        draw: |rng| Params { chunk_ms: number(rng).max(1), retention_ms: number(rng) }.encode().to_vec(),
        read: |bytes| {
            let params = Params::decode(bytes);
            if let Some(params) = params {
                let (first_ms, last_ms) = params.bounds_ms(params.chunk_of(u64::MAX));
                if first_ms > last_ms {
                    return Err(format!("a chunk of {params:?} ends before it begins"));
                }
            }
            comes_back(params, |params| Params::decode(&params.encode()))
        },
        seal: unsealed,
    },
    Codec {
        name: "log part",
        draw: |rng| {
            let mut part = AT.header(GENERATION, rng.u64(..)).to_vec();
            for _ in 0..rng.usize(0..5) {
                let mut elements = Vec::new();
                for _ in 0..rng.usize(1..4) {
                    put_event(&mut elements, number(rng), &bytes(rng, 20));
                }
                part.extend_from_slice(&AT.frame(GENERATION, rng.u64(..), number(rng), &elements, rng.bool()));
            }
            part
        },
        read: read_part,
        seal: |bytes| {
            if let Some(frames) = bytes.get_mut(HEADER_BYTES..) {
                seal_frames(AT.place(GENERATION), frames);
            }
        },
    },
    Codec {
        name: "log cursor",
        draw: super::cursor::drawn,
        read: |bytes| comes_back(Cursor::from_bytes(bytes).ok(), |cursor| Cursor::from_bytes(&cursor.to_bytes()).ok()),
        seal: super::cursor::seal,
    },
];
