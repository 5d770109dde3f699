//! What commands cost, counted on the wire, and what they say when the wire breaks.

mod common;

use std::net::TcpListener;
use std::thread;

use common::on;
use larder_testkit::proxy::{Fault, Proxy, Then};
use larder_testkit::servers::{Memcached, Version};

/// What connecting to a server costs, in round trips. `--trace` leaves it out.
const CONNECT: u64 = 1;

#[test]
fn what_a_command_costs_in_round_trips_is_as_the_help_says() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("memcached://{}", proxy.addr());
        on(&url, "counter add first").exits(0); // and signs the server as one of this fleet
        for (line, round_trips) in [
            ("counter add exact", 6), // looks, makes slots and manifest, the first add 2, gives the slot back
            ("counter add exact", 4),
            ("counter get exact", 2),
            ("counter reset exact", 3),
            ("counter reset exact", 2),
            ("counter add fast --fast", 4),
            ("counter add fast", 2),
            ("counter get fast", 2),
            ("counter reset fast", 3),
            ("set add tags red green blue", 4),
            ("set add tags red green blue", 2),
            ("set remove tags red", 2),
            ("set has tags green", 2),
            ("set has tags green blue", 2),
            ("set members tags", 2),
            ("set stat tags", 2),
            ("set compact tags", 3),
            ("lock run nightly -- true", 3),
            ("lock run nightly -- true", 3),
            ("lock status nightly", 2),
            ("drop nightly", 2),
            ("drop tags", 3),
        ] {
            let before = proxy.counts().chunks;
            let done = on(&url, &format!("--trace --json {line}"));
            assert_eq!(done.code(), 0, "{done:?}");
            assert_eq!(done.round_trips(), round_trips, "{line} on {version:?}: {done:?}");
            // What it says of itself is what went over the wire: it waits for each reply before it sends more.
            assert_eq!(proxy.counts().chunks - before, CONNECT + round_trips, "{line} on {version:?}");
        }
        let plain = on(&url, "--trace counter get exact").stderr;
        assert!(plain.starts_with("round trips: 2, ops: "), "{plain}");
    }
}

/// True for the arithmetic of a fast counter, in whatever dialect.
fn is_add(bytes: &[u8]) -> bool {
    bytes.starts_with(b"ma ") || bytes.starts_with(b"incr ")
}

#[test]
fn a_fast_add_whose_reply_is_lost_is_unknown_and_not_tried_again() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("memcached://{}", proxy.addr());
        on(&url, "counter add n 5 --fast").exits(0);
        proxy.script(0, |moment, _| if is_add(moment.bytes) { Fault::LoseReply(Then::Close) } else { Fault::Pass });
        on(&url, "counter add n 1").fails(7, "unknown whether it took effect");
        let error = on(&url, "--json counter add n 1").json_error();
        assert_eq!(error["exit_code"], 7);
        assert!(error["hint"].as_str().unwrap().contains("read before you try again"), "{error}");
        proxy.set(Fault::Pass);
        assert_eq!(on(&url, "counter get n").exits(0), "7\n", "both landed, once");
    }
}

#[test]
fn an_exact_add_whose_request_or_reply_is_lost_counts_once() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("memcached://{}", proxy.addr());
        on(&url, "counter add n 5").exits(0);
        for fault in [Fault::LoseReply(Then::Close), Fault::LoseRequest(Then::Close)] {
            let mut left = 1;
            proxy.script(0, move |moment, _| {
                let is_write = [&b"ms L.n.s."[..], b"cas L.n.s."].iter().any(|start| moment.bytes.starts_with(start));
                if !is_write || left == 0 {
                    return Fault::Pass;
                }
                left -= 1;
                fault.clone()
            });
            let faults = proxy.counts().faults();
            on(&url, "counter add n 1").exits(0);
            assert_eq!(proxy.counts().faults(), faults + 1, "the fault has set in");
        }
        assert_eq!(on(&url, "counter get n").exits(0), "7\n");
    }
}

#[test]
fn a_server_that_hangs_is_said_to() {
    let server = Memcached::start(Version::New, &[]);
    on(&server.url(), "counter add n 5").exits(0);
    server.stop();
    // It hangs at the handshake already, so nothing was sent that could count.
    let done = on(&server.url(), "--timeout 300ms counter add n 1");
    done.fails(6, "");
    assert!(done.stderr.contains(&server.addr().to_string()), "{}", done.stderr);
    server.cont();
    assert_eq!(on(&server.url(), "counter get n").exits(0), "5\n");
    let proxy = Proxy::start(server.addr());
    proxy.script(0, |moment, _| if moment.bytes.starts_with(b"mg L.n") { Fault::Hang } else { Fault::Pass });
    let url = format!("memcached://{}", proxy.addr());
    on(&url, "--timeout 300ms counter get n").fails(6, "timeout");
}

#[test]
fn a_store_that_is_something_else_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answers = thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        _ = stream.read(&mut [0; 1024]);
        _ = stream.write_all(b"-ERR unknown command 'version', with args beginning with: \r\n");
    });
    let done = on(&format!("memcached://{addr}"), "counter get n");
    assert!([2, 6, 70].contains(&done.code()) && done.text().is_empty(), "{done:?}");
    assert!(done.stderr.contains(&addr.to_string()), "{done:?}");
    answers.join().unwrap();
}
