//! What a server itself does where Larder never lets it come so far: asked of it raw, on an old (1.6.18) and a new (1.6.38 or later) release.

mod common;

use std::net::SocketAddr;

use common::says;
use larder_testkit::servers::{Memcached, Version};

fn each(args: &[&str]) -> impl Iterator<Item = (Version, Memcached)> {
    Version::ALL.into_iter().map(move |version| (version, Memcached::start(version, args)))
}

#[test]
fn an_ms_out_of_memory_deletes_the_old_item_in_every_mode_and_classic_cas_and_append_keep_it() {
    const BYTES: usize = 200_000;
    const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
    let body = "v".repeat(BYTES);
    for (version, server) in each(&["-M", "-m", "2"]) {
        let addr = server.addr();
        let set = |key: &str, value: &str| says(addr, &format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()));
        // Its class has a page of its own before the large ones take all there are.
        assert_eq!(set("k", "old"), "STORED\r\n");
        let filled = (0..100).position(|at| set(&format!("fill{at}"), &body) != "STORED\r\n");
        assert!(filled.is_some(), "{version:?}: a server of 2 MB took 20");
        let out_of_memory = |command: String| {
            assert_eq!(set("k", "old"), "STORED\r\n");
            let said = says(addr, &format!("{command}\r\n{body}\r\nmg k v\r\n"));
            said.strip_prefix(FULL).unwrap_or_else(|| panic!("{version:?}: {command}: {said}")).to_owned()
        };
        for mode in ["", "MS", "ME", "MR", "C1"] {
            assert_eq!(out_of_memory(format!("ms k {BYTES} {mode}")), "EN\r\n", "{version:?} {mode}");
        }
        for (classic, kept) in
            [("set", false), ("add", true), ("replace", true), ("append", true), ("prepend", true), ("cas", true)]
        {
            let token = if classic == "cas" { " 1" } else { "" };
            let expected = if kept { "VA 3\r\nold\r\n" } else { "EN\r\n" };
            assert_eq!(out_of_memory(format!("{classic} k 0 0 {BYTES}{token}")), expected, "{version:?} {classic}");
        }
    }
}

#[test]
fn an_ma_with_a_token_of_zero_checks_nothing() {
    for (version, server) in each(&[]) {
        let said = says(server.addr(), "set n 0 0 1\r\n1\r\nma n C0 v\r\nma n C1234567 v\r\n");
        assert_eq!(said, "STORED\r\nVA 1\r\n2\r\nEX\r\n", "{version:?}");
    }
}

#[test]
fn an_append_past_the_limit_is_no_miss_where_n_makes_up_for_misses() {
    let (old, more) = ("o".repeat(1_000_000), "m".repeat(100_000));
    for (version, server) in each(&[]) {
        for flags in ["MA", "MA N0", "MP N0"] {
            let said = says(
                server.addr(),
                &format!("set k 0 0 {}\r\n{old}\r\nms k {} {flags}\r\n{more}\r\nmg k s\r\n", old.len(), more.len()),
            );
            assert_eq!(said, "STORED\r\nNS\r\nHD s1000000\r\n", "{version:?} {flags}");
        }
        // Only where N is known does the answer tell the two apart.
        let missing = says(server.addr(), "ms none 1 MA N0\r\nm\r\n");
        assert_eq!(missing, if version == Version::Old { "NS\r\n" } else { "HD\r\n" }, "{version:?}");
    }
}

/// What a server says of a key as it is, and whether it then has it.
fn takes(addr: SocketAddr, key: &str) -> bool {
    let said = says(addr, &format!("set {key} 0 0 1\r\nx\r\nmg {key} v\r\n"));
    said == "STORED\r\nVA 1\r\nx\r\n"
}

#[test]
fn a_raw_key_of_control_and_high_bytes_is_taken() {
    for (version, server) in each(&[]) {
        for key in ["a\x01b", "a\tb", "a\x7fb", "é"] {
            assert!(takes(server.addr(), key), "{version:?}: {key:?}");
        }
        // A line ends at a NUL for the old one.
        assert_eq!(takes(server.addr(), "a\0b"), version == Version::New);
    }
}

#[test]
fn a_base64_key_may_have_250_bytes_as_text_so_some_186_of_its_own() {
    for (version, server) in each(&[]) {
        // Four characters for three bytes: 248 for 186, and 252 for 187.
        let (fits, over) = ("A".repeat(248), "A".repeat(252));
        let set = |key: &str| says(server.addr(), &format!("ms {key} 1 b\r\nx\r\n"));
        assert_eq!(set(&fits), "HD\r\n", "{version:?}");
        let said = set(&over);
        assert!(said.starts_with("CLIENT_ERROR"), "{version:?}: {said}");
    }
}
