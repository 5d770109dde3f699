//! What the store on Redis keeps there, items of a header and a value, and the tokens that say what an item holds; and what servers answer: replies to commands, the map of a cluster, a
//! handshake.

use std::sync::LazyLock;

use larder_core::{Effect, ErrorKind, Reply, Result};
use larder_store_redis::fuzzing::{Ask, Value, item, maps, parse_redis_value, questions, read_handshake, read_item};

use super::{Input, OF_A_SOCKET, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target::new("items in Redis", || items),
        Target::new("replies of Redis", || replies).times(OF_A_SOCKET),
        Target::new("handshakes of Redis", || handshakes).times(OF_A_SOCKET),
        Target::new("maps of a Redis Cluster", || cluster_maps).times(OF_A_SOCKET),
    ]
}

fn items(input: &mut Input) -> std::result::Result<(), String> {
    // Most items have no flags, and a shorter header.
    let flags = if input.rng.bool() { input.number() as u32 } else { 0 };
    let value = input.bytes(60);
    let whole = item(input.number(), flags, &value);
    if read_item(&whole) != Ok(true) {
        return Err(format!("an item is not read as it was written: {}", shown(&whole)));
    }
    let mut bytes = whole;
    match input.rng.u8(0..8) {
        0 => bytes = input.bytes(40),
        1 => bytes.truncate(input.rng.usize(0..=bytes.len())),
        _ => input.mutate(&mut bytes, &[], &value),
    }
    match bounded("an item", bytes.len(), 8, || read_item(&bytes))? {
        Ok(_) => Ok(()),
        Err(what) => Err(format!("{what}: {}", shown(&bytes))),
    }
}

/// What a decoder may take in memory, times the bytes of a reply: an error has it in words, each byte as a number.
const FACTOR: u64 = 32;

/// What a reply may tell is heard as it was said, in either protocol. Any other is an outcome that comes back from its own telling, or an error that says what is wrong, and of which nobody
/// takes it that nothing was done.
fn replies(input: &mut Input) -> std::result::Result<(), String> {
    let ask = Ask::draw(&mut input.rng);
    let answer = ask.answer(&mut input.rng);
    let wrong = |what: &str, value: &Value| Err(format!("{what}: {value:?} to {ask:?}"));
    let heard = ask.hear(answer.clone());
    let Some(again) = again(&ask, &heard) else { return wrong(&format!("it is heard as {heard:?}"), &answer) };
    if ask.wants_all() && again != answer {
        return wrong(&format!("it is heard as {heard:?}, which is {again:?}"), &answer);
    }
    let other = ask.reframed(&answer);
    if !same(&ask.hear(other.clone()), &heard) {
        return wrong(&format!("otherwise it is {heard:?}"), &other);
    }
    let value = twisted(input, answer);
    let heard = bounded("a reply", bytes_of(&value), FACTOR, || ask.hear(value.clone()))?;
    if let Some(again) = self::again(&ask, &heard) {
        let once_more = ask.hear(again.clone());
        return if same(&once_more, &heard) {
            Ok(())
        } else {
            wrong(&format!("it is heard as {heard:?}, and {again:?} as {once_more:?}"), &value)
        };
    }
    for error in heard.iter().filter_map(|outcome| outcome.as_ref().err()) {
        if let Err(what) = sound(error, &value) {
            return wrong(&what, &value);
        }
    }
    match &heard[0] {
        Err(error) if error.kind() == ErrorKind::Protocol && error.known_effect() != Effect::Unknown => {
            wrong(&format!("nothing is said to be done: {error:?}"), &value)
        }
        Ok(_) if heard.iter().all(Result::is_ok) => wrong(&format!("{heard:?} has no reply that tells it"), &value),
        _ => Ok(()),
    }
}

fn again(ask: &Ask, heard: &[Result<Reply>]) -> Option<Value> {
    match heard {
        [Ok(first)] => ask.again(first, None),
        [Ok(first), Ok(read)] => ask.again(first, Some(read)),
        _ => None,
    }
}

fn same(some: &[Result<Reply>], others: &[Result<Reply>]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| one.as_ref().ok() == other.as_ref().ok())
}

/// Whether an error says what is wrong with a reply.
fn sound(error: &larder_core::Error, value: &Value) -> std::result::Result<(), String> {
    let text = error.to_string();
    let is_told = match (value, error.kind()) {
        // In the server's words.
        (Value::ServerError(said), _) => text.contains(said.code()) || said.code() == "HALF",
        (_, ErrorKind::Protocol) => text.contains("the server answered"),
        (_, ErrorKind::LayoutMismatch) => text.contains("another program wrote"),
        (_, ErrorKind::BadInput) => text.contains("not a number"),
        _ => false,
    };
    if is_told { Ok(()) } else { Err(format!("the error says {text:?}")) }
}

/// The bytes of a value, about as many as it came in.
fn bytes_of(value: &Value) -> usize {
    8 + match value {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.len(),
        Value::Array(parts) | Value::Set(parts) => parts.iter().map(bytes_of).sum(),
        Value::Map(pairs) => pairs.iter().map(|(name, value)| bytes_of(name) + bytes_of(value)).sum(),
        Value::ServerError(error) => error.details().unwrap_or_default().len(),
        _ => 0,
    }
}

/// Changes something in it: a part, or how it is framed.
fn twisted(input: &mut Input, value: Value) -> Value {
    if input.one_in(6) {
        return leaf(input);
    }
    match value {
        Value::Array(parts) if input.one_in(4) => reframed(input, parts),
        Value::Array(mut parts) => {
            let at = input.rng.usize(0..=parts.len());
            match input.rng.u8(0..8) {
                0 => parts.insert(at, leaf(input)),
                1 => parts.truncate(at),
                2 if at < parts.len() => parts.insert(at, parts[at].clone()),
                3 if at < parts.len() => _ = parts.remove(at),
                _ if at < parts.len() => {
                    let part = std::mem::take(&mut parts[at]);
                    parts[at] = twisted(input, part);
                }
                _ => parts.push(leaf(input)),
            }
            Value::Array(parts)
        }
        Value::BulkString(mut bytes) => {
            input.mutate(&mut bytes, &[b"0", b"-", b"+", b".", b"inf", b"nan", b"\xc1"], b"1-2");
            Value::BulkString(bytes)
        }
        Value::Int(number) if input.rng.bool() => Value::Int(number.wrapping_add(input.rng.i64(-3..=3))),
        _ => leaf(input),
    }
}

fn reframed(input: &mut Input, mut parts: Vec<Value>) -> Value {
    match input.rng.u8(0..4) {
        0 => Value::Set(parts),
        1 => {
            let pairs = parts.chunks(2).map(|pair| (pair[0].clone(), pair.get(1).cloned().unwrap_or_default()));
            Value::Map(pairs.collect())
        }
        2 => Value::Array(vec![Value::Array(parts)]),
        _ => parts.pop().unwrap_or_default(),
    }
}

/// What a server says no with, some of it with the words of a client in it.
const ERRORS: &[&str] = &[
    "ERR",
    "ERR unknown command 'X'",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM this user has no permissions to run the 'get' command",
    "ERR value is not an integer or out of range",
    "ERR increment or decrement would overflow",
    "ERR resulting score is not a number (NaN)",
    "ERR value is not a valid float",
    "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
    "HALF ZADD NOPERM can't run this command",
    "HALF",
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 :6381",
    "NOSCRIPT No matching script.",
    "READONLY You can't write against a read only replica.",
    "NOAUTH Authentication required.",
    "LOADING",
    "CLUSTERDOWN Hash slot not served",
    "EXECABORT",
    "x",
    "",
];

fn leaf(input: &mut Input) -> Value {
    match input.rng.u8(0..12) {
        0 => Value::Nil,
        1 => Value::Okay,
        2 => Value::Int(input.rng.i64(-4..=3)),
        3 => Value::Int(input.number() as i64),
        4 => Value::BulkString(input.number().to_string().into_bytes()),
        5 => Value::SimpleString(String::from_utf8_lossy(&input.bytes(20)).into_owned()),
        6 => Value::Double(f64::from_bits(input.number())),
        7 => Value::Boolean(input.rng.bool()),
        8 => Value::Array((0..input.rng.usize(0..3)).map(|_| leaf(input)).collect()),
        9 => Value::SimpleString(input.number().to_string()),
        10 => refusal(input),
        _ => {
            let most = if input.one_in(50) { 20_000 } else { 40 };
            Value::BulkString(input.bytes(most))
        }
    }
}

fn refusal(input: &mut Input) -> Value {
    let mut text = input.pick(ERRORS).as_bytes().to_vec();
    if input.one_in(3) {
        input.mutate(&mut text, &[b" ", b": OOM ", b"NOPERM", b"unknown command"], b"ERR ");
    }
    let text = String::from_utf8_lossy(&text).replace(['\r', '\n'], " ");
    parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap_or_default()
}

/// A map is read as it was told, in whatever order its ranges came; whoever is named serves the slot, and of any other answer nothing is taken.
fn cluster_maps(input: &mut Input) -> std::result::Result<(), String> {
    const WORDS: &[&[u8]] = &[b"cluster_current_epoch:", b"cluster_state:ok", b"\r\n", b"\n", b"7", b"-1", b" "];
    const PLACES: &[&[u8]] = &[b":", b"[", b"]", b"?", b"h", b"10.0.0.1", b"::1", b"@", b","];
    let (answer, owners) = maps::answer(&mut input.rng);
    let info = String::from_utf8_lossy(&input.jumble(WORDS, 6)).into_owned();
    match (maps::read(&answer, &info), &owners) {
        (Ok(map), Some(owners)) if map.owners()? == *owners => {
            let again = maps::read(&maps::again(owners), "").map_err(|error| error.to_string())?;
            if again.owners()? != *owners {
                return Err(format!("the map of {answer:?} does not come back"));
            }
        }
        (Err(_), None) => {}
        (read, _) => return Err(format!("{answer:?} is read as {:?}", read.map(|_| "another map"))),
    }
    let text = String::from_utf8_lossy(&input.jumble(PLACES, 5)).into_owned();
    if let Some((host, port)) = maps::read_place(&text)
        && maps::read_place(&format!("{host}:{port}")) != Some((host.clone(), port))
    {
        return Err(format!("{text:?} is the place {host:?} with port {port}, and that another"));
    }
    let value = twisted(input, answer);
    match bounded("a map", bytes_of(&value), FACTOR, || maps::read(&value, &info))? {
        Ok(map) => map.owners().map(drop),
        Err(error) if error.kind() == ErrorKind::Protocol && error.to_string().contains("cluster") => Ok(()),
        Err(error) if error.to_string().contains("CLUSTER SLOTS") => Ok(()),
        Err(error) => Err(format!("{value:?} is refused with {error}")),
    }
}

/// A server that says whatever it likes of itself is a store, or is told why it is none.
fn handshakes(input: &mut Input) -> std::result::Result<(), String> {
    const WORDS: &[&[u8]] = &[
        b"redis_version:7.0.15",
        b"valkey_version:",
        b"redis_mode:sentinel",
        b"cluster_enabled:1",
        b"role:slave",
        b"role:master",
        b"master_host:",
        b"maxmemory:",
        b"maxmemory_policy:allkeys-lru",
        b"connected_slaves:",
        b"aof_enabled:1",
        b"\r\n",
        b"\r\n",
        b"\n",
        b":",
    ];
    static QUESTIONS: LazyLock<usize> = LazyLock::new(questions);
    const SETTINGS: &[&str] = &[
        "save",
        "appendonly",
        "appendfsync",
        "proto-max-bulk-len",
        "hash-max-listpack-entries",
        "set-max-intset-entries",
        "yes",
        "always",
        "",
    ];
    let mut answers = vec![Value::BulkString(input.jumble(WORDS, 8))];
    while answers.len() < *QUESTIONS {
        let setting = |input: &mut Input| Value::BulkString(input.pick(SETTINGS).as_bytes().to_vec());
        let value =
            if input.rng.bool() { setting(input) } else { Value::BulkString(input.number().to_string().into()) };
        let pair = Value::Array(vec![setting(input), value]);
        answers.push(if input.one_in(30) { twisted(input, pair) } else { pair });
    }
    if input.one_in(4) {
        answers[0] = leaf(input);
    }
    answers.truncate(if input.one_in(4) { input.rng.usize(0..=answers.len()) } else { answers.len() });
    let bytes = answers.iter().map(bytes_of).sum();
    let is_member = input.rng.bool();
    match bounded("a handshake", bytes, FACTOR, || read_handshake(answers.clone(), is_member))? {
        Err(error) if error.detail().is_empty() || error.is_unknown() && error.kind() != ErrorKind::Protocol => {
            Err(format!("{answers:?} are refused with {error:?}"))
        }
        _ => Ok(()),
    }
}
