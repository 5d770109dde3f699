//! The codec of memcached's protocol: requests parsed, replies decoded, listings and statistics read.

use bytes::{Bytes, BytesMut};
use larder_core::{Arith, Cas, Initial, Key, Op, PutMode, Ttl, Verb, Want};
use larder_proto::server::words::Words;
use larder_proto::server::{self, Command, KeyScratch, parse};
use larder_proto::stats::{Stats, take_line};
use larder_proto::{Abilities, Answer, Decoder, Dialect, Expect, Version, metadump};
use larder_testkit::sessions::Generator;
use std::time::Duration;

use super::input::minimised;
use super::{Input, OF_A_SOCKET, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target::new("requests", || requests).times(OF_A_SOCKET),
        Target::new("encoded ops", || encoded_ops),
        Target::new("replies", || replies).times(OF_A_SOCKET),
        Target::new("listings", || listings).times(OF_A_SOCKET),
    ]
}

/// What requests are made of.
pub(super) const WORDS: &[&[u8]] = &[
    b"get ",
    b"gets ",
    b"gat ",
    b"gats ",
    b"set ",
    b"add ",
    b"replace ",
    b"append ",
    b"prepend ",
    b"cas ",
    b"delete ",
    b"incr ",
    b"decr ",
    b"touch ",
    b"mg ",
    b"ms ",
    b"md ",
    b"ma ",
    b"me ",
    b"mn",
    b"stats",
    b"version",
    b"quit",
    b"flush_all",
    b"verbosity ",
    b"shutdown",
    b"slabs ",
    b"lru_crawler ",
    b"lru ",
    b"watch ",
    b"cache_memlimit ",
    b"noreply",
    b" v",
    b" q",
    b" k",
    b" b",
    b" c",
    b" t",
    b" T0",
    b" N30",
    b" R30",
    b" C0",
    b" E1",
    b" O1",
    b" I",
    b" MS",
    b" MA",
    b" J0",
    b" D1",
    b" F0",
    b" x",
    b" ",
    b"  ",
    b"\t",
    b"\0",
    b"\r\n",
    b"\n",
    b"\r",
    b"k",
    b"key",
    b"Zm9v",
    b"=",
    b"-",
    b"-1",
    b"0",
    b"1",
    b"2147483647",
    b"4294967296",
    b"18446744073709551616",
    b"\x80",
    b"HTTP/1.1",
];

/// A request line, valid or not, its end included.
fn line(input: &mut Input) -> Vec<u8> {
    let mut line = match input.rng.u8(0..4) {
        0 => input.jumble(WORDS, 8),
        kind => {
            let mut generator = Generator::new(input.rng.u64(..));
            let text = if kind == 1 { generator.classic() } else { generator.meta() };
            text.lines().next().unwrap_or_default().as_bytes().to_vec()
        }
    };
    if input.rng.bool() {
        input.mutate(&mut line, WORDS, b" noreply v q k O1");
    }
    line.retain(|&byte| byte != b'\n');
    line.extend_from_slice(input.pick(&[&b"\r\n"[..], b"\n"]));
    line
}

fn requests(input: &mut Input) -> Result<(), String> {
    let line = line(input);
    let mut scratch = KeyScratch::new();
    let command = bounded("a line", line.len(), 0, || parse(&line, &mut scratch))?;
    let wrong = |what: &str| Err(format!("{what}: {command:?} of {}", shown(&line)));
    if let Some(key) = key_of(&command)
        && key.len() > server::KEY_BYTES_MAX
    {
        return wrong("a key that is too long");
    }
    match &command {
        Command::Get { keys, .. } if words(*keys) == 0 => return wrong("a get without keys"),
        Command::MetaPut(_, bytes) if *bytes > i32::MAX as usize => return wrong("a body that no value can have"),
        Command::Put(put) if put.bytes > i32::MAX as usize => return wrong("a body that no value can have"),
        Command::Refuse { reply, .. } if reply.is_empty() || reply.contains('\n') => {
            return wrong("a reply of no line");
        }
        _ => {}
    }
    // What ends a line is no part of what it says.
    if input.one_in(8) {
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let other = [text, b"\r\n"].concat();
        let mut scratch = KeyScratch::new();
        let again = format!("{:?}", parse(&other, &mut scratch));
        // A line is too short with its end.
        if again != format!("{command:?}") && line.len() >= 4 && !text.ends_with(b"\r") {
            return wrong(&format!("with another end it is {again}"));
        }
    }
    Ok(())
}

fn words(words: Words<'_>) -> usize {
    words.count()
}

fn key_of<'a>(command: &Command<'a>) -> Option<&'a [u8]> {
    match command {
        Command::Put(put) => Some(put.key),
        Command::Delete { key, .. } | Command::Arith { key, .. } | Command::Touch { key, .. } => Some(key),
        Command::MetaGet(meta) | Command::MetaPut(meta, _) | Command::MetaDelete(meta) | Command::MetaArith(meta) => {
            Some(meta.key)
        }
        _ => None,
    }
}

fn op(input: &mut Input) -> Op {
    let key = loop {
        let bytes = if input.rng.bool() { b"hits".to_vec() } else { input.bytes(250) };
        if let Ok(key) = Key::new(bytes) {
            break key;
        }
    };
    let cas = Cas { token: input.number(), session: 5 };
    let ttl = if input.rng.bool() { Ttl::Never } else { Ttl::After(Duration::from_millis(input.number())) };
    let verb = match input.rng.u8(0..6) {
        0 | 1 => Verb::Get { want: Want::from_bits_truncate(input.rng.u8(..)) },
        2 => {
            let modes = [PutMode::Set, PutMode::Add, PutMode::Replace, PutMode::Append, PutMode::Cas(cas)];
            let mode = modes[input.rng.usize(0..modes.len())];
            Verb::Put { mode, value: Bytes::from(input.bytes(300)), flags: input.number() as u32, ttl }
        }
        3 => Verb::Delete { cas: input.rng.bool().then_some(cas) },
        4 => Verb::Touch { ttl },
        _ => {
            let delta = input.number();
            let arith = if input.rng.bool() { Arith::Incr(delta) } else { Arith::Decr(delta) };
            let initial = input.rng.bool().then(|| Initial { value: input.number(), ttl });
            Verb::Arith { arith, initial }
        }
    };
    Op::new(key, verb)
}

fn dialect(input: &mut Input) -> Dialect {
    [Dialect::Classic, Dialect::Meta13, Dialect::Meta][input.rng.usize(0..3)]
}

/// What a client sends, a server understands: as the same command, of the same key, with the same value.
fn encoded_ops(input: &mut Input) -> Result<(), String> {
    let (op, dialect) = (op(input), dialect(input));
    let mut sent = Vec::new();
    if Abilities::of(dialect).encode(&op, input.rng.u32(..), 1_700_000_000, &mut sent).is_err() {
        return if sent.is_empty() { Ok(()) } else { Err(format!("a refused op was sent: {op:?}")) };
    }
    let end = sent.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let (line, body) = sent.split_at(end);
    let mut scratch = KeyScratch::new();
    let command = parse(line, &mut scratch);
    let key = match &command {
        Command::Get { keys, .. } => { *keys }.next(),
        command => key_of(command),
    };
    let value = match (&op.verb, &command) {
        (Verb::Put { value, .. }, Command::Put(put)) if put.bytes == value.len() => Some(&value[..]),
        (Verb::Put { value, .. }, Command::MetaPut(_, bytes)) if *bytes == value.len() => Some(&value[..]),
        (Verb::Get { .. }, Command::Get { .. } | Command::MetaGet(_))
        | (Verb::Touch { .. }, Command::Touch { .. } | Command::MetaGet(_))
        | (Verb::Delete { .. }, Command::Delete { .. } | Command::MetaDelete(_))
        | (Verb::Arith { .. }, Command::Arith { .. } | Command::MetaArith(_)) => None,
        // The classic dialect deletes by a cas that ends the item's life.
        (Verb::Delete { cas: Some(_) }, Command::Put(put)) if put.bytes == 0 => Some(&[][..]),
        _ => return Err(format!("{op:?} was sent as {} and read as {command:?}", shown(&sent))),
    };
    let whole = value.map(|value| [value, b"\r\n"].concat()).unwrap_or_default();
    if key != Some(op.key.as_bytes()) || body != whole {
        return Err(format!("{op:?} was sent as {} and read of another key or value", shown(&sent)));
    }
    Ok(())
}

const DECODER: Decoder = Decoder { session: 5, value_bytes_max: 1 << 20 };

/// What replies are made of.
const REPLY_WORDS: &[&[u8]] = &[
    b"VA ",
    b"HD",
    b"EN",
    b"NS",
    b"NF",
    b"EX",
    b"MN",
    b"VALUE ",
    b"END\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b" O3",
    b" O",
    b" c",
    b" f",
    b" t-1",
    b" t",
    b" W",
    b" s",
    b"STORED\r\n",
    b"NOT_STORED\r\n",
    b"EXISTS\r\n",
    b"NOT_FOUND\r\n",
    b"DELETED\r\n",
    b"TOUCHED\r\n",
    b"SERVER_ERROR out of memory",
    b"SERVER_ERROR object too large",
    b"CLIENT_ERROR ",
    b"CLIENT_ERROR cannot increment or decrement non-numeric value",
    b"ERROR\r\n",
    b"hits",
    b" ",
    b"0",
    b"1",
    b"9 ",
    b"99999999999999999999",
    b"-1",
    b"\0",
    b"STAT ",
];

/// A reply that the op may get, and then some.
fn reply(input: &mut Input, op: &Op, dialect: Dialect) -> Vec<u8> {
    let key = op.key.as_bytes().to_vec();
    let most = if input.one_in(50) { 20_000 } else { 60 };
    let value = input.bytes(most);
    let (flags, token, bytes) = (input.number(), input.number(), value.len());
    let mut reply = match (dialect.is_meta(), input.rng.u8(0..4)) {
        (_, 0) => input.jumble(REPLY_WORDS, 10),
        (true, 1) => [format!("VA {bytes} O3 c{token} f{flags} t{flags}\r\n").as_bytes(), &value, b"\r\n"].concat(),
        (true, _) => format!("{} O3\r\n", input.pick(&["HD", "EN", "NS", "NF", "EX"])).into_bytes(),
        (false, 1 | 2) => {
            let head = [b"VALUE ", &key[..], format!(" {flags} {bytes} {token}\r\n").as_bytes()].concat();
            [&head[..], &value, b"\r\nEND\r\n"].concat()
        }
        (false, _) => input.pick(REPLY_WORDS).to_vec(),
    };
    if input.rng.bool() {
        input.mutate(&mut reply, REPLY_WORDS, b"VA 3 O3\r\nabc\r\n");
    }
    reply
}

/// What a decoder says of a stream: the answer and the bytes that it left; more is awaited; or out of step.
#[derive(Debug, PartialEq)]
enum Said {
    Answer(String, Vec<u8>),
    More(usize),
    Error,
}

fn said(expect: &Expect, pieces: &[Vec<u8>]) -> Said {
    let mut received = BytesMut::new();
    let mut left = pieces.iter();
    loop {
        match DECODER.decode(&mut received, expect) {
            Err(_) => return Said::Error,
            Ok(Some(answer)) => {
                let answer = match answer {
                    Answer::Reply(reply) => format!("{reply:?}"),
                    Answer::Refused { error, in_step } => format!("{error:?} {in_step}"),
                };
                left.for_each(|piece| received.extend_from_slice(piece));
                return Said::Answer(answer, received.to_vec());
            }
            Ok(None) => match left.next() {
                Some(piece) => received.extend_from_slice(piece),
                None => return Said::More(received.len()),
            },
        }
    }
}

/// In whatever pieces a reply comes, it says the same.
fn replies(input: &mut Input) -> Result<(), String> {
    let (op, dialect) = (op(input), dialect(input));
    let Ok(expect) = Abilities::of(dialect).encode(&op, 3, 1_700_000_000, &mut Vec::new()) else { return Ok(()) };
    let bytes = reply(input, &op, dialect);
    let whole = bounded("a reply", bytes.len(), 16, || said(&expect, std::slice::from_ref(&bytes)))?;
    let pieces = input.pieces(&bytes);
    let got = said(&expect, &pieces);
    if got == whole {
        return Ok(());
    }
    let differs = |bytes: &[u8]| {
        let each: Vec<Vec<u8>> = bytes.chunks(1).map(<[u8]>::to_vec).collect();
        said(&expect, &[bytes.to_vec()]) != said(&expect, &each)
    };
    let bytes = if differs(&bytes) { minimised(bytes, differs) } else { bytes };
    Err(format!("the reply {} to {op:?} says {whole:?} whole and {got:?} in pieces", shown(&bytes)))
}

/// Lines that are read at a handshake, and of listings.
fn listings(input: &mut Input) -> Result<(), String> {
    const WORDS: &[&[u8]] = &[
        b"STAT ",
        b"item_size_max ",
        b"evictions ",
        b"cas_enabled ",
        b"maxbytes ",
        b"durability ",
        b"time ",
        b"pid ",
        b"uptime ",
        b"END",
        b"ERROR",
        b"on",
        b"off",
        b"VERSION ",
        b"1.6.45",
        b".",
        b"-",
        b"key=",
        b"%",
        b"%2",
        b"%20",
        b"%ff",
        b" exp=",
        b" cls=",
        b" size=",
        b"BUSY",
        b"OK",
        b"\r\n",
        b"\n",
        b" ",
    ];
    let bytes = input.jumble(WORDS, 10);
    bounded("a listing", bytes.len(), 32, || {
        let mut stats = Stats::default();
        let _ = stats.line(&bytes);
        let _ = Version::parse(&String::from_utf8_lossy(&bytes));
        let _ = (metadump::parse(&bytes), metadump::details(&bytes));
    })?;
    let mut received = BytesMut::from(&bytes[..]);
    let taken = take_line(&mut received);
    let is_sound = match &taken {
        Ok(Some(line)) => [&line[..], b"\r\n", &received[..]].concat() == bytes,
        Ok(None) => received == bytes,
        Err(_) => true,
    };
    // Every key comes back as it was, escaped or not.
    let escaped: Vec<u8> = bytes.iter().flat_map(|byte| format!("%{byte:02x}").into_bytes()).collect();
    if !is_sound || metadump::unescaped(&escaped) != bytes {
        return Err(format!("{} was read as {taken:?}", shown(&bytes)));
    }
    Ok(())
}
