//! What requests cost, without a socket: allocations, copies of large values, writes.

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use larder_core::ManualClock;
use larder_store_memory::MemoryStore;

use crate::config::Limits;
use crate::engine::MemoryEngine;
use crate::env::{Env, Settings};
use crate::files::Files;
use crate::fuzzing::Wire;
use crate::session::Session;

const LARGE_BYTES: usize = 1_000_000;
/// What comes on top of a large value: its line, its header, rounding of allocations, what is read at once.
const SLACK_BYTES: u64 = 128 << 10;

fn engine() -> MemoryEngine {
    MemoryEngine::new(MemoryStore::builder().bytes_max(64 << 20).value_bytes_max(1 << 20).build().unwrap())
}

fn env() -> Arc<Env<MemoryEngine>> {
    Env::new(engine(), Limits::default(), 1, Files::default(), Settings::default())
}

/// What a request, which is there whole, takes of the allocator, and its reply.
fn fed(env: &Env<MemoryEngine>, session: &mut Session, request: &[u8]) -> (AllocationInfo, Vec<u8>) {
    let info = measure(|| assert_eq!(session.feed(env, request), request.len()));
    let reply = session.out.clone();
    session.out.clear();
    (info, reply)
}

fn large_set() -> Vec<u8> {
    [format!("set large 0 0 {LARGE_BYTES}\r\n").as_bytes(), &[b'v'; LARGE_BYTES], b"\r\n"].concat()
}

#[test]
fn a_connection_that_is_warm_allocates_nothing_for_a_request_but_what_a_new_item_takes() {
    // So often that what a connection and a thread keep has grown, hot keys too, and numbers have the digits that they will have.
    const WARM: usize = 4_000;
    const MEASURED: usize = 1_000;
    // Requests, what they are answered, and how many new items they make.
    for (request, reply, items) in [
        ("get k\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n", 0),
        ("get k none k\r\n", "VALUE k 5 3\r\nabc\r\nVALUE k 5 3\r\nabc\r\nEND\r\n", 0),
        ("gat 0 k\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n", 0),
        ("mg k v f t\r\n", "VA 3 f5 t-1\r\nabc\r\n", 0),
        ("mg bm9uZQ== b v k Oq\r\n", "EN kbm9uZQ== b Oq\r\n", 0),
        ("set k 5 0 3\r\nabc\r\n", "STORED\r\n", 0),
        ("ms k 3 T0 F5\r\nabc\r\n", "HD\r\n", 0),
        ("touch k 0\r\n", "TOUCHED\r\n", 0),
        ("delete none\r\n", "NOT_FOUND\r\n", 0),
        ("ma n N0 J1\r\n", "HD\r\n", 0),
        ("incr n 0\r\n", "7\r\n", 0),
        ("gets none\r\n", "END\r\n", 0),
        ("add k 5 0 3\r\nabc\r\n", "NOT_STORED\r\n", 0),
        ("replace k 5 0 3\r\nabc\r\n", "STORED\r\n", 0),
        ("cas k 5 0 3 1\r\nabc\r\n", "EXISTS\r\n", 0),
        ("cas none 5 0 3 1\r\nabc\r\n", "NOT_FOUND\r\n", 0),
        ("set k 5 0 3\r\nabc\r\nappend k 0 0 2\r\nde\r\nprepend k 0 0 1\r\nz\r\n", "STORED\r\nSTORED\r\nSTORED\r\n", 0),
        ("set k 5 0 3\r\nabc\r\ndelete k\r\n", "STORED\r\nDELETED\r\n", 1),
        ("ms k 3\r\nabc\r\nmd k\r\nmd k\r\n", "HD\r\nHD\r\nNF\r\n", 1),
        ("ms k 2 MA\r\nde\r\nms k 3\r\nabc\r\n", "HD\r\nHD\r\n", 0),
        ("ms k 3 ME\r\nabc\r\n", "NS\r\n", 0),
        ("mg made N30 v\r\nmd made\r\n", "VA 0 W\r\n\r\nHD\r\n", 1),
        ("ma made N0 J7\r\nmd made\r\nmn\r\n", "HD\r\nHD\r\nMN\r\n", 1),
        ("set k 5 0 3 noreply\r\nabc\r\n", "", 0),
    ] {
        let (env, mut session) = (env(), Session::default());
        fed(&env, &mut session, b"set k 5 0 3\r\nabc\r\nset n 0 0 1\r\n7\r\n");
        for _ in 0..WARM {
            fed(&env, &mut session, request.as_bytes());
        }
        let took: u64 = (0..MEASURED)
            .map(|_| {
                let (info, told) = fed(&env, &mut session, request.as_bytes());
                assert_eq!(String::from_utf8(told).unwrap(), reply, "{request}");
                info.count_total
            })
            .sum();
        // One that is new is kept in memory of its own; one that is there, and not larger, is written over.
        assert_eq!(took, items * MEASURED as u64, "allocations by {MEASURED} of {request}");
    }
}

/// Beside those that a connection takes when it comes, and its room to read and to write.
#[test]
fn a_connection_allocates_no_more_for_many_requests_than_for_few() {
    const MANY: usize = 2_000;
    /// What all the replies are gathered in here grows by doubling, and so may a connection's own room.
    const GROWTH_MAX: u64 = 40;
    for (request, reply) in [
        ("get k\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n"),
        ("mg k v\r\n", "VA 3\r\nabc\r\n"),
        ("set k 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("ms k 3 F5\r\nabc\r\n", "HD\r\n"),
    ] {
        let wire = Wire::new(engine(), Limits::default());
        let took = [1, MANY, 1, MANY].map(|requests| {
            let pieces: Vec<Vec<u8>> = std::iter::once("set k 5 0 3\r\nabc\r\n")
                .chain(std::iter::repeat_n(request, requests))
                .map(|piece| piece.as_bytes().to_vec())
                .collect();
            let mut talk = None;
            let info = measure(|| talk = Some(wire.talk(pieces, usize::MAX)));
            let talk = talk.unwrap();
            assert_eq!(String::from_utf8(talk.replies).unwrap(), format!("STORED\r\n{}", reply.repeat(requests)));
            assert_eq!(talk.writes, requests + 1, "each came by itself");
            info.count_total
        });
        let [.., few, many] = took;
        assert!(many <= few + GROWTH_MAX, "{request}: {took:?} allocations");
    }
}

#[test]
fn a_large_value_is_copied_once_from_where_it_was_gathered_and_once_into_its_reply() {
    let (env, mut session) = (env(), Session::default());
    let (info, reply) = fed(&env, &mut session, &large_set());
    assert_eq!(reply, b"STORED\r\n");
    let one = LARGE_BYTES as u64;
    assert!((one..one + SLACK_BYTES).contains(&info.bytes_total), "{info:?}");
    session.out = Vec::new();
    let (info, reply) = fed(&env, &mut session, b"get large\r\n");
    assert!(reply.len() > LARGE_BYTES);
    assert!((one..one + SLACK_BYTES).contains(&info.bytes_total), "{info:?}");
}

/// Room for a body doubles as it comes: all of it together is less than twice the value, and the item is the value once.
#[test]
fn a_large_value_that_comes_in_pieces_is_gathered_where_it_is_taken_from() {
    let wire = Wire::new(engine(), Limits::default());
    let pieces: Vec<Vec<u8>> = large_set().chunks(100_000).map(<[u8]>::to_vec).collect();
    // The buffers of the thread are there.
    wire.talk([b"mn\r\n".to_vec()], usize::MAX);
    let mut replies = Vec::new();
    let info = measure(|| replies = wire.talk(pieces, usize::MAX).replies);
    assert_eq!(replies, b"STORED\r\n");
    assert!(info.bytes_total < 3 * LARGE_BYTES as u64 + SLACK_BYTES, "{info:?}");
}

#[test]
fn requests_that_come_together_are_answered_with_one_write() {
    let wire = Wire::new(engine(), Limits::default());
    for (request, reply) in [("get none\r\n", "END\r\n"), ("mg none v\r\n", "EN\r\n"), ("ma n N0\r\n", "HD\r\n")] {
        let talk = wire.talk([request.repeat(64).into_bytes()], usize::MAX);
        assert_eq!((String::from_utf8(talk.replies).unwrap(), talk.writes), (reply.repeat(64), 1), "{request}");
    }
}

/// The largest values that one read can ask for, 30 GB of them, are answered a part at a time.
#[test]
fn a_line_of_very_many_keys_gathers_no_more_than_one_value_too_many() {
    let (env, mut session) = (env(), Session::default());
    fed(&env, &mut session, &large_set().strip_prefix(b"set large").map(|rest| [b"set b", rest].concat()).unwrap());
    for verb in ["get", "gets", "gat 0", "gats 0"] {
        let request = format!("{verb}{}\r\n", " b".repeat(30_000)).into_bytes();
        for part in 0..20 {
            let info = measure(|| assert_eq!(session.feed(&env, &request), 0, "{verb}: it is done after part {part}"));
            assert!(session.blocked && session.out.len() > LARGE_BYTES, "{verb}");
            assert!(info.bytes_max < 2 * LARGE_BYTES as u64, "{verb}: {info:?}");
            session.out.clear();
        }
        session = Session::default();
    }
}

#[test]
fn a_flush_for_a_moment_before_the_server_was_there_removes_nothing() {
    let (env, mut session) = (env(), Session::default());
    let mut answer = |request: &str| String::from_utf8(fed(&env, &mut session, request.as_bytes()).1).unwrap();
    let now_s = env.wall_ms() / 1_000;
    // What is before the server's start by more than a minute is before memcached's clock began.
    for (when, stays) in [(now_s - 70, true), (now_s - 50, false), (now_s, false), (now_s + 70, true), (60, true)] {
        assert_eq!(answer("set k 0 0 1\r\nx\r\n"), "STORED\r\n");
        assert_eq!(answer(&format!("flush_all {when}\r\n")), "OK\r\n");
        assert_eq!(answer("get k\r\n"), if stays { "VALUE k 0 1\r\nx\r\nEND\r\n" } else { "END\r\n" }, "{when}");
    }
    // It takes the place of what was asked for before, as any other.
    assert_eq!(answer("flush_all 2\r\nflush_all 1600000000\r\n"), "OK\r\nOK\r\n");
    std::thread::sleep(Duration::from_millis(1_050));
    env.tick();
    assert_eq!(answer("get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n");
    // A second before the delay is over.
    assert_eq!(answer("flush_all 2\r\n"), "OK\r\n");
    env.tick();
    assert_eq!(answer("get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n");
    std::thread::sleep(Duration::from_millis(1_050));
    env.tick();
    assert_eq!(answer("get k\r\n"), "END\r\n");
}

#[test]
fn a_life_ends_no_earlier_than_it_was_told_whatever_there_is_of_the_millisecond() {
    for (at_us, command) in [(900, "set k 0 1 1"), (0, "set k 0 1 1"), (999, "ms k 1 T1"), (1, "ms k 1 T1")] {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let env = Env::new(MemoryEngine::new(store), Limits::default(), 1, Files::default(), Settings::default());
        let mut session = Session::default();
        let mut answer = |request: &str| String::from_utf8(fed(&env, &mut session, request.as_bytes()).1).unwrap();
        clock.advance(Duration::from_micros(at_us));
        answer(&format!("{command}\r\nx\r\n"));
        assert_eq!(answer("mg k t\r\n"), "HD t1\r\n");
        clock.advance(Duration::from_micros(999_100));
        assert_eq!(answer("mg k t\r\n"), "HD t1\r\n", "{command} at {at_us} us");
        clock.advance(Duration::from_micros(899));
        assert_eq!(answer("mg k\r\n"), "HD\r\n", "{command} at {at_us} us");
        // At most 1 ms more.
        clock.advance(Duration::from_micros(1_001));
        assert_eq!(answer("mg k\r\n"), "EN\r\n", "{command} at {at_us} us");
    }
}

#[test]
fn what_is_left_of_a_life_is_told_in_the_seconds_it_was_given_in() {
    for seconds in [1, 2, 10, 2_592_000] {
        let (env, mut session) = (env(), Session::default());
        let request = format!("set k 0 {seconds} 1\r\nx\r\nmg k t\r\n");
        let reply = String::from_utf8(fed(&env, &mut session, request.as_bytes()).1).unwrap();
        assert_eq!(reply, format!("STORED\r\nHD t{seconds}\r\n"));
    }
    assert_eq!([0, 1, 2, 1_001, 1_002, 2_001].map(|ms| crate::env::left_s(500 + ms, 500)), [0, 1, 1, 1, 2, 2]);
    assert_eq!(crate::env::left_s(499, 500), 0);
}

/// What was taken of a buffer and is still in memory, in front of a larger rest, is counted with that.
#[test]
fn what_was_taken_is_counted_for_as_long_as_it_is_in_memory() {
    const TAKEN: usize = 29_000;
    const REST: usize = 30_000;
    let wire = Wire::new(engine(), Limits::default());
    // Half a line first: what comes next is read behind it, into one buffer.
    let more =
        [format!(" 0 {TAKEN}\r\n").as_bytes(), &[b'v'; TAKEN], b"\r\nset r 0 0 90000\r\n", &[b'r'; REST]].concat();
    let talk = wire.talk([b"set k 0".to_vec(), more], usize::MAX);
    assert_eq!(talk.replies, b"STORED\r\n");
    assert!(talk.held_bytes_max >= TAKEN + REST, "{} bytes", talk.held_bytes_max);
    let wire = Wire::new(engine(), Limits::default());
    // A larger part is not kept.
    let more =
        [format!(" 0 {REST}\r\n").as_bytes(), &[b'v'; REST], b"\r\nset r 0 0 90000\r\n", &[b'r'; TAKEN]].concat();
    let talk = wire.talk([b"set k 0".to_vec(), more], usize::MAX);
    assert!((TAKEN..TAKEN + REST).contains(&talk.held_bytes_max), "{} bytes", talk.held_bytes_max);
}
