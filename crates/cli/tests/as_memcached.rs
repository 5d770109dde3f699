//! `larder memcached` in memcached's place: what it does when it is full, where it listens, what each option does.

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{finish, is_alive, larder, number_in, until};
use larder_testkit::servers::{executable, rss_bytes_of};
use rustix::process::{Pid, Signal};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A port that was free a moment ago, by both families.
fn free_port() -> u16 {
    loop {
        let socket = TcpListener::bind((V4, 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        if TcpListener::bind((V6, port)).is_ok() || !has_v6() {
            return port;
        }
    }
}

fn has_v6() -> bool {
    TcpListener::bind((V6, 0)).is_ok()
}

/// A server; killed when it is dropped.
struct Peer {
    name: &'static str,
    child: Child,
    port: u16,
}

impl Drop for Peer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn theirs() -> Command {
    Command::new(executable("memcached-new"))
}

fn ours() -> Command {
    larder(["memcached"])
}

impl Peer {
    /// On a port of its own, where the options leave it.
    fn start(name: &'static str, mut command: Command, options: &[&str]) -> Peer {
        let port = free_port();
        command.args(["-p", &port.to_string()]).args(options).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut peer = Peer { name, child, port };
        until("the server", || {
            assert!(peer.child.try_wait().unwrap().is_none(), "{name} {options:?} ended: {}", peer.said());
            TcpStream::connect((V4, port)).is_ok()
        });
        peer
    }

    /// Real memcached, and ours.
    fn both(options: &[&str]) -> [Peer; 2] {
        [Peer::start("memcached", theirs(), options), Peer::start("larder", ours(), options)]
    }

    fn connect(&self) -> Talk {
        let stream = TcpStream::connect((V4, self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Talk { reader: BufReader::new(stream) }
    }

    fn ask(&self, request: &str) -> String {
        self.connect().ask(request)
    }

    /// Kills it, and gives what it wrote on standard error.
    fn said(&mut self) -> String {
        _ = self.child.kill();
        self.said_by_its_end()
    }

    /// The same, once it has ended by itself when it was asked to: with all that was under way.
    fn said_when_asked_to_end(&mut self) -> String {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.said_by_its_end()
    }

    fn said_by_its_end(&mut self) -> String {
        _ = self.child.wait();
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut said).unwrap();
        }
        said
    }
}

/// A connection.
struct Talk {
    reader: BufReader<TcpStream>,
}

impl Talk {
    /// All lines of the replies to a request.
    fn ask(&mut self, request: &str) -> String {
        self.reader.get_mut().write_all(format!("{request}\r\nmn\r\n").as_bytes()).unwrap();
        let mut reply = String::new();
        while !reply.ends_with("MN\r\n") {
            assert!(self.reader.read_line(&mut reply).unwrap() > 0, "closed after {reply}");
        }
        reply.truncate(reply.len() - "MN\r\n".len());
        reply
    }

    fn stat(&mut self, name: &str) -> u64 {
        let stats = self.ask("stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {stats}")).trim().parse().unwrap()
    }

    /// Which of these keys are there.
    fn present(&mut self, keys: std::ops::Range<usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        for key in keys {
            if self.ask(&format!("mg k{key}")).starts_with("HD") {
                found.insert(key);
            }
        }
        found
    }
}

const VALUE_BYTES: usize = 1_000;
/// Five times what 8 MB hold.
const ITEMS: usize = 40_000;
/// Sent at once.
const BATCH: usize = 100;

/// Sets so many items, and reads one between them: the replies that are not `STORED`, and how many.
fn fill(talk: &mut Talk, items: usize) -> (BTreeSet<String>, usize) {
    let value = "v".repeat(VALUE_BYTES);
    let (mut others, mut refused) = (BTreeSet::new(), 0);
    for first in (0..items).step_by(BATCH) {
        let sets: String =
            (first..first + BATCH).map(|at| format!("set k{at} 0 0 {VALUE_BYTES}\r\n{value}\r\n")).collect();
        for line in talk.ask(&format!("{sets}mg hot")).lines().filter(|line| !["STORED", "HD", "EN"].contains(line)) {
            others.insert(line.to_owned());
            refused += 1;
        }
    }
    (others, refused)
}

#[test]
fn when_it_is_full_the_oldest_go_as_in_memcached() {
    for peer in Peer::both(&["-m", "8", "-l", "127.0.0.1"]) {
        let (name, mut talk) = (peer.name, peer.connect());
        talk.ask("set hot 0 0 1\r\nx");
        let before = rss_bytes_of(peer.child.id());
        assert_eq!(fill(&mut talk, ITEMS), (BTreeSet::new(), 0), "{name}: nothing is refused");
        let grown = rss_bytes_of(peer.child.id()).saturating_sub(before);
        assert!(grown < 24 << 20, "{name} grew by {grown} bytes");
        let (items, evicted) = (talk.stat("curr_items"), talk.stat("evictions"));
        assert_eq!(items + evicted, ITEMS as u64 + 1, "{name}");
        assert!(evicted > ITEMS as u64 / 2, "{name} evicted {evicted}");
        assert!(talk.stat("bytes") <= 8 << 20, "{name}");
        // What is older than three times what there is room for, and nobody asked for, is gone, all but a few; most of the newest are there, and what is asked for all the time.
        let old = ITEMS - 3 * items as usize;
        let kept = talk.present(0..old).len();
        assert!(kept * 100 < old, "{name} has {kept} of the oldest {old}");
        let newest = talk.present(ITEMS - 500..ITEMS).len();
        assert!(newest > 400, "{name} has {newest} of the newest 500");
        assert_eq!(talk.ask("mg hot"), "HD\r\n", "{name}");
        assert!(talk.ask("stats settings").contains("STAT evictions on\r\n"), "{name}");
        assert_eq!(talk.ask("stats reset"), "RESET\r\n");
        assert_eq!(talk.stat("evictions"), 0, "{name}");
    }
}

#[test]
fn with_evictions_off_it_refuses_as_memcached_does() {
    for peer in Peer::both(&["-m", "8", "-M", "-l", "127.0.0.1"]) {
        let (name, mut talk) = (peer.name, peer.connect());
        let (said, refused) = fill(&mut talk, ITEMS);
        assert_eq!(said, BTreeSet::from(["SERVER_ERROR out of memory storing object".to_owned()]), "{name}");
        let items = talk.stat("curr_items") as usize;
        assert_eq!((talk.stat("evictions"), items + refused), (0, ITEMS), "{name}");
        // All that was acknowledged is there: what was sent before it was full.
        assert_eq!(talk.present(0..1_000).len(), 1_000, "{name}");
        assert!(talk.stat("store_no_memory") > 0, "{name}");
        assert!(talk.ask("stats settings").contains("STAT evictions off\r\n"), "{name}");
    }
}

#[test]
fn it_listens_everywhere_as_memcached_does_and_the_server_of_ours_does_not() {
    let peers = Peer::both(&[]).into_iter().chain([Peer::start("larder serve", larder(["serve"]), &[])]);
    for peer in peers {
        // All of 127/8 is this machine: another address of it is open where everything is.
        let other = TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), peer.port)).is_ok();
        let v6 = TcpStream::connect((V6, peer.port)).is_ok();
        let everywhere = peer.name != "larder serve";
        assert_eq!((other, v6), (everywhere, everywhere && has_v6()), "{}", peer.name);
        // Nor are its threads memcached's four: they are one a core.
        let cores = std::thread::available_parallelism().unwrap().get() as u64;
        let threads = if everywhere { 4 } else { cores.min(64) };
        assert_eq!(peer.connect().stat("threads"), threads, "{}", peer.name);
    }
    // What a name stands for, and one address alone.
    for peer in
        Peer::both(&["-l", "127.0.0.1,::1"].map(|word| if has_v6() { word } else { word.trim_end_matches(",::1") }))
    {
        assert_eq!(TcpStream::connect((V6, peer.port)).is_ok(), has_v6(), "{}", peer.name);
        assert!(TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), peer.port)).is_err(), "{}", peer.name);
    }
}

/// A port that is taken is an error, in each family.
#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind((V4, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    finish(larder(["memcached", "-p"]).arg(&port)).fails(2, &format!("could not listen on 0.0.0.0:{port}"));
    let Ok(taken) = TcpListener::bind((V6, 0)) else { return };
    let port = taken.local_addr().unwrap().port().to_string();
    finish(larder(["memcached", "-p"]).arg(&port)).fails(2, &format!("could not listen on [::]:{port}"));
}

/// Connects so often that nobody waits to be accepted, and tells how the last one was answered.
#[test]
fn options_do_what_they_do_in_memcached() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("users"), "joe:secret\n").unwrap();
    let users = folder.path().join("users").display().to_string();
    let long = format!("set k 0 0 1500000\r\n{}", "v".repeat(1_500_000));
    let too_large = "SERVER_ERROR object too large for cache\r\n";
    // Options, a request, and what memcached answers.
    let cases: &[(&[&str], &str, &str)] = &[
        (&[], &long, too_large),
        (&["-I", "2m"], &long, "STORED\r\n"),
        (&["-F"], "flush_all", "CLIENT_ERROR flush_all not allowed\r\n"),
        (&[], "flush_all", "OK\r\n"),
        (&["-X"], "stats cachedump 1 1", "CLIENT_ERROR stats cachedump not allowed\r\n"),
        (&["-X"], "lru_crawler metadump all", "ERROR metadump not allowed\r\n"),
        (&["-W"], "watch", "CLIENT_ERROR watch commands not allowed\r\n"),
        (&[], "shutdown", "SERVER_ERROR: shutdown not enabled\r\n"),
        (&["-Y", &users], "get k", "CLIENT_ERROR unauthenticated\r\n"),
        (&["-B", "ascii"], "set k 0 0 1\r\nx", "STORED\r\n"),
    ];
    for (options, request, answer) in cases {
        let options = [&["-l", "127.0.0.1"], *options].concat();
        for peer in Peer::both(&options).into_iter().chain([Peer::start("larder serve", larder(["serve"]), &options)]) {
            // Who is not logged in is not answered a `mn`.
            let mut stream = TcpStream::connect((V4, peer.port)).unwrap();
            stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
            let mut said = String::new();
            BufReader::new(stream).read_line(&mut said).unwrap();
            assert_eq!(said, *answer, "{} {options:?} {request:?}", peer.name);
        }
    }
    // What `stats settings` tells of options is what memcached tells.
    let options = "--memory-l 16 --conn=77 -t 3 -b 55 -I 2m -A -F -X --disable-ev --ext idle_timeout=9";
    let options: Vec<&str> = ["-l", "127.0.0.1"].into_iter().chain(options.split(' ')).collect();
    let told = Peer::both(&options).map(|peer| peer.ask("stats settings"));
    for name in [
        "maxbytes",
        "maxconns",
        "udpport",
        "evictions",
        "domain_socket",
        "umask",
        "shutdown_command",
        "num_threads",
        "detail_enabled",
        "cas_enabled",
        "tcp_backlog",
        "auth_enabled_sasl",
        "auth_enabled_ascii",
        "item_size_max",
        "maxconns_fast",
        "flush_enabled",
        "dump_enabled",
        "idle_timeout",
        "ssl_enabled",
        "ssl_verify_mode",
        "ssl_min_version",
        "client_flags_size",
    ] {
        let [theirs, ours] =
            told.each_ref().map(|told| told.lines().find(|line| line.starts_with(&format!("STAT {name} "))));
        assert!(theirs.is_some() && theirs == ours, "{theirs:?} and {ours:?}");
    }
}

/// The server of ours takes the same, and what memcached has not; a word of it each that shows.
#[test]
fn options_of_ours_do_what_they_say() {
    let metrics = free_port();
    let at = format!("127.0.0.1:{metrics}");
    let list = "slow_timeout_ms=4000,line_bytes_max=70000,read_buf_mem_limit=3,track_access,exit_when_idle=900";
    let options = ["-m", "8", "--evict", "--metrics", &at, "--runtime", "per-core", "-t", "2", "-o", list];
    let peer = Peer::start("larder serve", larder(["serve"]), &options);
    let mut talk = peer.connect();
    let told = talk.ask("stats settings");
    for line in
        ["slow_timeout_ms 4000", "line_bytes_max 70000", "held_bytes_max 3145728", "num_threads 2", "evictions on"]
    {
        assert!(told.contains(&format!("STAT {line}\r\n")), "{line} in {told}");
    }
    // Times of use are kept.
    talk.ask("set hot 0 0 1\r\nx\r\nget hot");
    assert!(talk.ask("me hot").contains(" fetch=yes"), "{}", talk.ask("me hot"));
    assert_eq!(fill(&mut talk, ITEMS), (BTreeSet::new(), 0), "nothing is refused");
    let evicted = talk.stat("evictions");
    assert!(evicted > 0);
    let mut http = TcpStream::connect((V4, metrics)).unwrap();
    http.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    http.read_to_string(&mut text).unwrap();
    assert!(text.contains(&format!("\nlarder_evicted_total {evicted}\n")), "{text}");
    // A line that is longer than it may be.
    let mut stream = TcpStream::connect((V4, peer.port)).unwrap();
    _ = stream.write_all(&b"x".repeat(80_000));
    let mut said = String::new();
    _ = stream.read_to_string(&mut said);
    assert!(said.is_empty() || said.contains("too"), "closed: {said}");
}

/// What `stats settings` of memcached tells and ours tells otherwise, or not at all, and why.
const SETTINGS_THAT_DIFFER: &[(&str, &str)] = &[
    ("tcpport", "each is on its own"),
    ("inter", "where it listens is named, also where that is everywhere"),
    ("binding_protocol", "there is one"),
    ("track_sizes", "a walk over all items counts them whenever it is asked to"),
    ("oldest", "times of use are kept only if they are asked for"),
    ("num_threads_per_udp", "no UDP"),
    ("stat_key_prefix", "no `stats detail`"),
    ("reqs_per_event", "who has others wait is bounded by bytes, not by requests"),
    ("read_buf_mem_limit", "what is not finished is always bounded: held_bytes_max"),
    ("memory_file", "`--store file:PATH` keeps data"),
    ("hash_algorithm", "no choice"),
    ("hashpower_init", "the table grows as it needs"),
    ("tail_repair_time", "no lists of use"),
    ("temporary_ttl", "no lists of use"),
    ("temp_lru", "no lists of use"),
    ("inline_ascii_response", "how values are kept, of no meaning to a client"),
    ("watcher_logbuf_size", "no `watch`"),
    ("worker_logbuf_size", "no `watch`"),
    ("num_napi_ids", "threads are not bound to queues of a network card"),
    ("ssl_chain_cert", "files are not told to clients"),
    ("ssl_key", "files are not told to clients"),
    ("ssl_ca_cert", "files are not told to clients"),
    ("ssl_keyformat", "PEM"),
    ("ssl_ciphers", "those that rustls holds for safe"),
    ("ssl_wbuf_size", "no such buffer"),
    ("ssl_session_cache", "as it is in rustls"),
    ("ssl_kernel_tls", "none"),
];

/// The same, by how the names begin.
const SETTINGS_OF_WHAT_IS_NOT_HERE: &[(&str, &str)] = &[
    ("growth_factor", "no slabs"),
    ("chunk_size", "no slabs"),
    ("slab_", "no slabs"),
    ("lru_", "no lists of use, and no crawler"),
    ("hot_", "no lists of use"),
    ("warm_", "no lists of use"),
    ("ext_", "no storage behind memory"),
    ("proxy_", "no proxy"),
];

/// A line that says nothing means what it means to memcached; the server of ours, which is no cache, evicts nothing, has a thread a core and is for this machine alone.
#[test]
fn where_nothing_is_said_limits_are_memcacheds() {
    let peers = Peer::both(&[]).into_iter().chain([Peer::start("larder serve", larder(["serve"]), &[])]);
    let told: Vec<Vec<(String, String)>> = peers
        .map(|peer| {
            let said = peer.ask("stats settings");
            let lines = said.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        })
        .collect();
    let [theirs, ours, served] = &told[..] else { unreachable!() };
    let value = |of: &[(String, String)], name: &str| of.iter().find(|line| line.0 == name).map(|line| line.1.clone());
    let differ = |ours: &[(String, String)]| -> BTreeSet<String> {
        let names = theirs.iter().filter(|(name, value_there)| value(ours, name).as_ref() != Some(value_there));
        names.map(|(name, _)| name.clone()).collect()
    };
    let named = |name: &str| {
        let not_here = |(start, _): &(&str, &str)| name.starts_with(start);
        SETTINGS_THAT_DIFFER.iter().any(|(exempt, _)| *exempt == name)
            || SETTINGS_OF_WHAT_IS_NOT_HERE.iter().any(not_here)
    };
    let unnamed: Vec<String> = differ(ours).into_iter().filter(|name| !named(name)).collect();
    assert!(unnamed.is_empty(), "{unnamed:?}");
    // What is equal needs no reason.
    for (name, why) in SETTINGS_THAT_DIFFER {
        assert!(differ(ours).contains(*name), "{name} ({why}) is as in memcached");
    }
    for (start, why) in SETTINGS_OF_WHAT_IS_NOT_HERE {
        assert!(differ(ours).iter().any(|name| name.starts_with(start)), "{start} ({why}) is as in memcached");
    }
    let more: Vec<String> = differ(served).difference(&differ(ours)).cloned().collect();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(more, if cores == 4 { vec!["evictions"] } else { vec!["evictions", "num_threads"] });
    // Those that memcached has not.
    for (name, limit) in [("slow_timeout_ms", 30_000), ("held_bytes_max", 256 << 20), ("line_bytes_max", 1 << 20)] {
        assert_eq!((value(theirs, name), value(ours, name)), (None, Some(limit.to_string())));
    }
}

#[test]
fn connections_threads_sockets_and_the_end_are_as_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let few = Peer::start("larder", ours(), &["-l", "127.0.0.1", "-c", "2", "-t", "3"]);
    // The one that found it ready may be there for a moment still.
    let mut held = Vec::new();
    until("two connections", || {
        let mut stream = TcpStream::connect((V4, few.port)).unwrap();
        stream.write_all(b"get none\r\n").unwrap();
        let mut reply = [0; 5];
        if stream.read_exact(&mut reply).is_ok() && &reply == b"END\r\n" {
            held.push(stream);
        }
        held.len() == 2
    });
    let mut said = String::new();
    TcpStream::connect((V4, few.port)).unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "ERROR Too many open connections\r\n");
    let threads = std::fs::read_dir(format!("/proc/{}/task", few.child.id())).unwrap();
    let names = threads.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let workers: BTreeSet<String> = names
        .filter(|name| name.starts_with("larder-") && name.trim_end().ends_with(|it: char| it.is_ascii_digit()))
        .collect();
    assert_eq!(workers.len(), 3, "{workers:?}");
    drop(few);
    // In the background, with a file for its id; it ends by a client's word, and takes the file with it.
    let (socket, pid) = (folder.path().join("socket"), folder.path().join("pid"));
    let mut command = ours();
    command.args(["-d", "-A", "-a", "0666", "-s"]).arg(&socket).arg("-P").arg(&pid);
    finish(&mut command).exits(0);
    let id = number_in(&pid);
    assert!(is_alive(id));
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"shutdown\r\n").unwrap();
    until("its end", || !is_alive(id));
    until("the end of its file", || !pid.exists());
}

#[test]
fn more_is_said_with_each_v() {
    let [silent, serving, all] = ["", "-v", "-vv"].map(|verbose| {
        let options: Vec<&str> = ["-l", "127.0.0.1", verbose].into_iter().filter(|word| !word.is_empty()).collect();
        let mut peer = Peer::start("larder", ours(), &options);
        for _ in 0..20 {
            assert_eq!(peer.ask("get none"), "END\r\n");
        }
        (peer.port, peer.said_when_asked_to_end())
    });
    assert_eq!(silent.1, "");
    let started = |port: u16| format!("serving listeners=[\"tcp:127.0.0.1:{port}\"] threads=4");
    let of = |said: &str, level: &str| said.lines().filter(|line| line.contains(level)).count();
    assert!(serving.1.contains(&started(serving.0)), "{}", serving.1);
    assert_eq!((of(&serving.1, " INFO "), of(&serving.1, " DEBUG ")), (serving.1.lines().count(), 0), "{}", serving.1);
    assert!(all.1.contains(&started(all.0)), "{}", all.1);
    // Each connection has a number and says whose it was.
    for conn in 1..10 {
        let closed = format!("closed conn={conn} peer=tcp:127.0.0.1:");
        assert!(all.1.lines().any(|line| line.contains(" DEBUG ") && line.contains(&closed)), "{closed}: {}", all.1);
    }
}

#[test]
fn a_memory_limit_that_is_set_later_is_held() {
    for peer in Peer::both(&["-m", "64", "-l", "127.0.0.1"]) {
        let (name, mut talk) = (peer.name, peer.connect());
        let too_small = "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
        assert_eq!(talk.ask("cache_memlimit 7"), too_small, "{name}");
        assert_eq!(talk.ask("cache_memlimit 8"), "OK\r\n", "{name}");
        assert_eq!(talk.stat("limit_maxbytes"), 8 << 20, "{name}");
        assert_eq!(fill(&mut talk, ITEMS), (BTreeSet::new(), 0), "{name}: nothing is refused");
        let (bytes, evicted) = (talk.stat("bytes"), talk.stat("evictions"));
        assert!(bytes <= 8 << 20 && evicted > 0, "{name}: {bytes} bytes, {evicted} evicted");
    }
}

/// Words before an address name a listener, or the protocol that it speaks anyway.
#[test]
fn words_before_an_address_that_mean_nothing_here_are_told() {
    for word in ["proto[ascii]:", "tag[x]:", "proto[negotiating]:tag[y]:"] {
        let mut peer = Peer::start("larder", ours(), &["-l", &format!("{word}127.0.0.1")]);
        assert_eq!(peer.ask("get none"), "END\r\n");
        let said = peer.said();
        assert_eq!(said.matches("passed over").count(), word.matches(':').count(), "{said}");
        assert_eq!(Peer::start("memcached", theirs(), &["-l", &format!("{word}127.0.0.1")]).ask("get none"), "END\r\n");
    }
}

/// What memcached's help lists, and why it is refused here. All else that it lists is taken.
const REFUSED: &[(&str, &str)] = &[
    ("-S", "SASL"),
    ("--enable-sasl", "SASL"),
    // As memcached does, too.
    ("-Z", "TLS needs a certificate"),
    ("--enable-ssl", "TLS needs a certificate"),
    ("-e", "--store file:PATH"),
    ("--memory-file", "--store file:PATH"),
    // Memcached takes no such name either: it is `--napi-ids`.
    ("--napi_ids", "no option --napi_ids"),
];

/// Letters, long names and those behind `-o`, as memcached's help lists them: each with a value where it takes one.
fn options_of(help: &str) -> BTreeSet<(String, Option<&'static str>)> {
    let value_of = |name: &str, takes: bool| match name {
        "listen" | "l" => Some("127.0.0.1"),
        "protocol" | "B" => Some("ascii"),
        "max-item-size" | "I" => Some("2m"),
        "unix-mask" | "a" => Some("0700"),
        "extended" | "o" => Some("modern"),
        "auth-file" | "Y" => Some("USERS"),
        // Its help does not say that it takes one.
        "max-reqs-per-event" | "R" => Some("20"),
        "napi-ids" | "N" => Some("2"),
        _ => takes.then_some("9"),
    };
    let mut found = BTreeSet::new();
    for line in help.lines() {
        if let Some((name, _)) = line.strip_prefix("   - ").and_then(|rest| rest.split_once(':')) {
            // A heading.
            if name.contains(' ') {
                continue;
            }
            let value = match name {
                "hash_algorithm" => "=xxh3",
                "ssl_verify_mode" | "ssl_keyformat" => "=1",
                "ssl_min_version" => "=2",
                "no_lru_crawler" | "no_lru_maintainer" | "no_modern" | "no_hashexpand" | "modern" => "",
                _ => "=9",
            };
            found.insert((format!("-o{name}{value}"), None));
            continue;
        }
        let Some(letter) = line.strip_prefix('-').and_then(|rest| rest.chars().next()) else { continue };
        let takes = line.starts_with("-D ") || line.split_whitespace().nth(1).is_some_and(|long| long.contains("=<"));
        found.insert((format!("-{letter}"), value_of(&letter.to_string(), takes)));
        if let Some(long) = line.split_whitespace().nth(1).and_then(|word| word.strip_prefix("--")) {
            let long = long.split_once('=').map_or(long, |(name, _)| name);
            found.insert((format!("--{long}"), value_of(long, takes)));
        }
    }
    found
}

/// A list of our own would lack what a later release brings.
#[test]
fn every_option_of_memcacheds_help_is_known() {
    let help = theirs().arg("-h").output().unwrap().stdout;
    let options = options_of(&String::from_utf8(help).unwrap());
    let letters = options.iter().filter(|(name, _)| name.len() == 2).count();
    let extended = options.iter().filter(|(name, _)| name.starts_with("-o") && name.len() > 2).count();
    let long = options.len() - letters - extended;
    assert!(letters > 30 && long > 30 && extended > 40, "{letters}, {long}, {extended}: its help is read otherwise");
    let users = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(users.path(), "joe:secret\n").unwrap();
    let mut refused = BTreeSet::new();
    for (name, value) in &options {
        let value = value.map(|value| if value == "USERS" { users.path().to_str().unwrap() } else { value });
        let Err(error) = larder_server::Args::parse([&name[..]].into_iter().chain(value)) else { continue };
        let why = REFUSED.iter().find(|(refused, _)| refused == name).map(|(_, why)| *why);
        let why = why.unwrap_or_else(|| panic!("{name} {value:?}: {error}"));
        assert!(error.to_string().contains(why), "{name}: {error}");
        refused.insert(&name[..]);
    }
    // What is refused for a reason is, still.
    assert_eq!(refused, REFUSED.iter().map(|(name, _)| *name).collect());
}

/// What memcached takes, and does nothing here, is named; what it refuses is refused.
#[test]
fn what_has_no_effect_is_told_and_what_nobody_knows_is_refused() {
    let passed_over = [
        "-U 11211",
        "-r",
        "-k",
        "-f 1.5",
        "-n 64",
        "-L",
        "-D :",
        "-R 40",
        "-C",
        "-B auto",
        "-N 2",
        "-o hashpower=20",
        "-o slab_automove=1",
        "-o no_lru_crawler",
        "-o ext_item_size=512",
        "-o ssl_ciphers=ALL",
        "-o ssl_kernel_tls",
        "-o ssl_min_version=0",
        "-o hash_algorithm=xxh3",
        "-o no_modern",
        "-o drop_privileges",
    ];
    let words = passed_over.iter().flat_map(|options| options.split(' '));
    let options: Vec<&str> = ["-l", "127.0.0.1"].into_iter().chain(words).collect();
    let mut peer = Peer::start("larder", ours(), &options);
    assert_eq!(peer.ask("get none"), "END\r\n");
    let said = peer.said();
    assert_eq!(said.lines().filter(|line| line.contains("passed over")).count(), passed_over.len(), "{said}");
    let silent = ["-U", "0", "-W", "-o", "modern,maxconns_fast,track_sizes,no_drop_privileges,ssl_session_cache"];
    let mut peer = Peer::start("larder", ours(), &[&["-l", "127.0.0.1"], &silent[..]].concat());
    assert_eq!(peer.said(), "");
    for (options, said) in [
        ("-o nosuch", "no option -o nosuch"),
        ("-o ssl_nosuch=1", "no option -o ssl_nosuch"),
        ("-o idle_timeout", "takes a number"),
        ("-o ssl_verify_mode=9", "takes 0 to 3"),
        ("-B foo", "ascii, binary or auto"),
        ("-B binary", "not spoken here"),
        ("-c 0", "takes a number"),
        ("-t 0", "takes 1 to 256"),
        ("-I 512", "takes 1k to 1024m"),
        ("-S", "SASL"),
        ("-e /dev/shm/x", "--store file:PATH"),
        ("-q", "no option -q"),
        ("-l no.such.host.invalid", "no address"),
        ("-l notls:127.0.0.1", "no address is exempt from TLS"),
        ("-l proto[binary]:127.0.0.1", "the binary protocol is not spoken here"),
        ("-l proto[proxy]:127.0.0.1", "no proxy"),
        ("-l tag[123456789]:127.0.0.1", "1 to 8 characters"),
    ] {
        finish(larder(["memcached", "-p", "-1"]).args(options.split(' '))).fails(2, said);
        // These are memcached's.
        if !["-B binary", "-S", "-e /dev/shm/x", "-l proto[binary]:127.0.0.1"].contains(&options) {
            let mut command = theirs();
            let ended = common::wait(
                command
                    .args(["-p", "-1"])
                    .args(options.split(' '))
                    .stderr(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stdin(Stdio::null())
                    .spawn()
                    .unwrap(),
            );
            assert_ne!(ended.code(), 0, "memcached takes {options}");
        }
    }
}

/// An authority, and what it signed.
fn certificates(folder: &Path) -> [String; 5] {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let signed = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    let ((server, server_key), (client, client_key)) = (signed(), signed());
    let files = [
        ("ca", authority.pem()),
        ("server", server),
        ("server.key", server_key),
        ("client", client),
        ("client.key", client_key),
    ];
    files.map(|(name, text)| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    })
}

#[test]
fn over_tls_options_of_memcached_say_who_may_come_in() {
    let folder = tempfile::tempdir().unwrap();
    let [ca, cert, key, client, client_key] = certificates(folder.path());
    let server = |more: &str| {
        let list = format!("ssl_chain_cert={cert},ssl_key={key},ssl_keyformat=1{more}");
        Peer::start("larder", ours(), &["-l", "127.0.0.1", "-Z", "-o", &list])
    };
    let with = format!("&tls_cert={client}&tls_key={client_key}");
    let asked = |peer: &Peer, more: &str| {
        let url = format!("memcached+tls://localhost:{}?tls_ca={ca}{more}", peer.port);
        common::on(&url, "counter add hits").code() == 0
    };
    for (more, without, with_one) in [
        ("", true, true),
        (&format!(",ssl_ca_cert={ca}")[..], true, true),
        (&format!(",ssl_ca_cert={ca},ssl_verify_mode=1"), true, true),
        (&format!(",ssl_ca_cert={ca},ssl_verify_mode=2"), false, true),
        (&format!(",ssl_ca_cert={ca},ssl_verify_mode=3"), false, true),
        (",ssl_min_version=3", true, true),
    ] {
        let peer = server(more);
        assert_eq!((asked(&peer, ""), asked(&peer, &with)), (without, with_one), "{more}");
    }
}
