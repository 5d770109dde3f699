//! A closer look at some keys.

use std::sync::Arc;
use std::time::Instant;

use larder_core::survey::{DataType, Measured, Pace, Part, Sample, Shape};
use larder_core::{Ctx, Result};
use redis::{Pipeline, Value};

use super::{Asker, bytes, pause, unless_moved};
use crate::node::Node;

/// Keys that are looked at in one piece.
const KEYS_A_PIECE: usize = 50;
/// Elements of a collection that `MEMORY USAGE` looks at; it makes up the rest from them.
const MEMORY_SAMPLES: usize = 32;
/// Elements this large are not fetched: their number and the key's size tell enough.
const ELEMENT_BYTES_MAX: u64 = 16 * 1024;
/// The longest text that may be a whole number.
const NUMBER_BYTES_MAX: i64 = 20;

/// Measures keys of one server. **Round trips:** 1 for every 50, up to 3 more where elements are drawn.
pub(super) async fn measure(node: &Arc<Node>, ctx: Ctx, pace: Pace, keys: &[&Sample]) -> Result<Vec<Option<Measured>>> {
    let mut all = Vec::with_capacity(keys.len());
    if keys.is_empty() {
        return Ok(all);
    }
    let mut asker = Asker::open(node, ctx, &["MEMORY"]).await?;
    for piece in keys.chunks(KEYS_A_PIECE) {
        let begun = Instant::now();
        let mut measured = sizes(&mut asker, ctx, piece).await?;
        draw(&mut asker, ctx, piece, &mut measured).await?;
        // An element is asked after as a key is.
        let asked = piece.len() + measured.iter().flatten().map(|measured| measured.shapes.len()).sum::<usize>();
        all.append(&mut measured);
        pause(ctx, pace.pause(asked, begun.elapsed())).await;
    }
    Ok(all)
}

async fn sizes(asker: &mut Asker, ctx: Ctx, keys: &[&Sample]) -> Result<Vec<Option<Measured>>> {
    let mut pipeline = Pipeline::new();
    for sample in keys {
        pipeline.cmd("MEMORY").arg("USAGE").arg(&sample.key).arg("SAMPLES").arg(MEMORY_SAMPLES);
        match length(sample.data_type) {
            Some(command) => pipeline.cmd(command).arg(&sample.key),
            None => pipeline.cmd("EXISTS").arg(&sample.key),
        };
        pipeline.cmd("PTTL").arg(&sample.key);
    }
    let mut answers = asker.ask(ctx, &pipeline).await?.into_iter();
    let mut found = Vec::with_capacity(keys.len());
    for sample in keys {
        let mut next = || answers.next().unwrap_or(Value::Nil);
        found.push(size(sample, [next(), next(), next()])?);
    }
    Ok(found)
}

/// What was answered of a key: its size, its length and its life; `None` where it is gone, has become another type, or has moved.
fn size(sample: &Sample, [bytes, length, life]: [Value; 3]) -> Result<Option<Measured>> {
    let bytes = unless_moved("MEMORY USAGE", bytes)?.as_ref().and_then(number);
    let length = match length {
        // It has become another type.
        Value::ServerError(error) if error.code() == "WRONGTYPE" => None,
        answer => unless_moved("that counts its elements", answer)?.as_ref().and_then(number),
    };
    // -1: no life. -2: no key.
    let life = unless_moved("PTTL", life)?;
    let (Some(bytes), Some(length), Some(life)) = (bytes, length, life) else { return Ok(None) };
    let is_string = sample.data_type == DataType::String;
    Ok(Some(Measured {
        bytes,
        elements: if is_string { 1 } else { length },
        value_bytes: is_string.then_some(length),
        expires: matches!(life, Value::Int(0..)),
        shapes: Vec::new(),
    }))
}

fn length(data_type: DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::String => "STRLEN",
        DataType::List => "LLEN",
        DataType::Set => "SCARD",
        DataType::SortedSet => "ZCARD",
        DataType::Hash => "HLEN",
        DataType::Stream => "XLEN",
        DataType::Item | DataType::Other => return None,
    })
}

/// Draws elements, of hashes by their fields, whose values are measured before any is fetched.
async fn draw(asker: &mut Asker, ctx: Ctx, keys: &[&Sample], measured: &mut [Option<Measured>]) -> Result<()> {
    let mut pipeline = Pipeline::new();
    let mut drawn = Vec::new();
    for (at, (sample, measured)) in keys.iter().zip(measured.iter()).enumerate() {
        let Some(measured) = measured else { continue };
        let element_bytes = measured.bytes / measured.elements.max(1);
        if sample.elements_max == 0 || element_bytes > ELEMENT_BYTES_MAX {
            continue;
        }
        let command = match sample.data_type {
            DataType::Hash => "HRANDFIELD",
            DataType::Set => "SRANDMEMBER",
            DataType::SortedSet => "ZRANDMEMBER",
            _ => continue,
        };
        let cmd = pipeline.cmd(command).arg(&sample.key).arg(sample.elements_max);
        if sample.data_type == DataType::SortedSet {
            cmd.arg("WITHSCORES");
        }
        drawn.push(at);
    }
    let answers = asker.ask(ctx, &pipeline).await?;
    let mut hashes = Vec::new();
    for (at, answer) in drawn.into_iter().zip(answers) {
        // One that has become another type, or is gone, has no elements to tell.
        let (Value::Array(parts) | Value::Set(parts)) = answer else { continue };
        let Some(measured) = &mut measured[at] else { continue };
        match keys[at].data_type {
            DataType::Hash => hashes.push((at, parts.into_iter().filter_map(bytes).collect::<Vec<_>>())),
            DataType::SortedSet => measured.shapes = scored(parts),
            _ => {
                let members = parts.into_iter().filter_map(bytes);
                measured.shapes = members.map(|member| Shape { name: Part::of(&member), value: None }).collect();
            }
        }
    }
    values(asker, ctx, keys, &hashes, measured).await
}

/// Members and scores, however the protocol frames them.
fn scored(parts: Vec<Value>) -> Vec<Shape> {
    let mut flat = Vec::new();
    for part in parts {
        match part {
            Value::Array(pair) => flat.extend(pair),
            part => flat.push(part),
        }
    }
    let mut shapes = Vec::with_capacity(flat.len() / 2);
    let mut flat = flat.into_iter();
    while let (Some(member), Some(score)) = (flat.next().and_then(bytes), flat.next()) {
        let score = match score {
            Value::Double(score) => Part::of(score.to_string().as_bytes()),
            Value::Int(score) => Part::Integer(score),
            score => bytes(score).map_or(Part::Text(0), |score| Part::of(&score)),
        };
        shapes.push(Shape { name: Part::of(&member), value: Some(score) });
    }
    shapes
}

/// Measures the values of fields, and fetches those that may be numbers.
async fn values(
    asker: &mut Asker,
    ctx: Ctx,
    keys: &[&Sample],
    hashes: &[(usize, Vec<Vec<u8>>)],
    measured: &mut [Option<Measured>],
) -> Result<()> {
    let mut pipeline = Pipeline::new();
    for (at, fields) in hashes {
        for field in fields {
            pipeline.cmd("HSTRLEN").arg(&keys[*at].key).arg(field);
        }
    }
    let mut lengths = asker.ask(ctx, &pipeline).await?.into_iter();
    let (mut pipeline, mut short) = (Pipeline::new(), Vec::new());
    for (at, fields) in hashes {
        for field in fields {
            let Some(Value::Int(length)) = lengths.next() else { continue };
            let Some(measured) = &mut measured[*at] else { continue };
            if length <= NUMBER_BYTES_MAX {
                pipeline.cmd("HGET").arg(&keys[*at].key).arg(field);
                short.push((*at, measured.shapes.len()));
            }
            let value = Part::Text(u64::try_from(length).unwrap_or(0));
            measured.shapes.push(Shape { name: Part::of(field), value: Some(value) });
        }
    }
    let fetched = asker.ask(ctx, &pipeline).await?;
    for ((at, place), value) in short.into_iter().zip(fetched) {
        if let (Some(measured), Some(value)) = (&mut measured[at], bytes(value)) {
            measured.shapes[place].value = Some(Part::of(&value));
        }
    }
    Ok(())
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_understood_in_both_protocols() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let expected = [
            Shape { name: Part::Text(1), value: Some(Part::Text(3)) },
            Shape { name: Part::Integer(7), value: Some(Part::Integer(2)) },
        ];
        let old = vec![bulk("a"), bulk("1.5"), bulk("7"), bulk("2")];
        let new =
            vec![Value::Array(vec![bulk("a"), Value::Double(1.5)]), Value::Array(vec![bulk("7"), Value::Double(2.0)])];
        assert_eq!(scored(old), expected);
        assert_eq!(scored(new), expected);
        assert_eq!(scored(vec![Value::Nil]), []);
    }
}
