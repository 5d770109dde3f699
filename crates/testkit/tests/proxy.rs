//! Every kind of fault, against a server that echoes and records what it was sent.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use larder_testkit::proxy::{Counts, Fault, Half, Hold, Proxy, Rates, Then};

/// Answers each byte with its upper case, so that an echo is told from what was sent; keeps all it got.
struct Echo {
    addr: SocketAddr,
    got: Arc<Mutex<Vec<u8>>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&got);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, record) = (stream.unwrap(), Arc::clone(&record));
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(read) = stream.read(&mut buffer)
                        && read > 0
                    {
                        record.lock().unwrap().extend_from_slice(&buffer[..read]);
                        if stream.write_all(&buffer[..read].to_ascii_uppercase()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { addr, got }
    }

    fn got(&self) -> String {
        String::from_utf8(self.got.lock().unwrap().clone()).unwrap()
    }
}

fn setup() -> (Echo, Proxy) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr);
    (echo, proxy)
}

struct Client(TcpStream);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Requires exactly this to come next.
    fn expect(&mut self, text: &str) {
        let mut read = vec![0; text.len()];
        self.0.read_exact(&mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), text);
    }

    fn ask(&mut self, text: &str) {
        self.send(text);
        self.expect(&text.to_ascii_uppercase());
    }

    /// What still comes until the connection is closed.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let mut buffer = [0; 64];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => rest.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("not closed: {error}"),
            }
        }
        String::from_utf8(rest).unwrap()
    }

    /// The connection is open, and nothing comes.
    fn expect_silence(&mut self) {
        self.0.set_read_timeout(Some(Duration::from_millis(60))).unwrap();
        let error = self.0.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.0.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn without_faults_all_passes_both_ways() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("hello");
    client.ask("again");
    assert_eq!(echo.got(), "helloagain");
    let counts = proxy.counts();
    let expected = Counts {
        connections: 1,
        connections_open: 1,
        chunks: 2,
        request_bytes: 10,
        reply_bytes: 10,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    drop(client);
    until("the connection is closed", || proxy.counts().connections_open == 0);
}

#[test]
fn a_half_closed_client_gets_its_replies() {
    let (_echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.send("bye");
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.rest(), "BYE");
}

#[test]
fn large_streams_pass_both_ways_at_once() {
    let (echo, proxy) = setup();
    let client = Client::connect(&proxy);
    let text = "abcdefgh".repeat(1 << 20);
    let mut writer = client.0.try_clone().unwrap();
    let sent = text.clone();
    let writing = thread::spawn(move || {
        writer.write_all(sent.as_bytes()).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut reply = String::new();
    let mut reader = &client.0;
    reader.read_to_string(&mut reply).unwrap();
    writing.join().unwrap();
    assert!(reply == text.to_ascii_uppercase() && echo.got() == text);
}

#[test]
fn close_at_accept() {
    let (echo, proxy) = setup();
    proxy.set(Fault::Close);
    assert_eq!(Client::connect(&proxy).rest(), "");
    assert_eq!((echo.got().as_str(), proxy.counts().closes), ("", 1));
    proxy.set(Fault::Pass);
    Client::connect(&proxy).ask("fine");
}

#[test]
fn hang_at_accept() {
    let (echo, proxy) = setup();
    proxy.set(Fault::Hang);
    let mut client = Client::connect(&proxy);
    client.send("anyone");
    client.expect_silence();
    assert_eq!((echo.got().as_str(), proxy.counts().hangs), ("", 1));
    proxy.cut_all();
    assert_eq!(client.rest(), "");
}

#[test]
fn hang_in_the_middle() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    proxy.next(Fault::Hang);
    client.send("two");
    client.expect_silence();
    assert_eq!(echo.got(), "one");
}

#[test]
fn garbage_answers_every_chunk_and_reaches_nobody() {
    let (echo, proxy) = setup();
    proxy.set(Fault::Garbage(b"-ERR what\r\n".to_vec()));
    let mut client = Client::connect(&proxy);
    for request in ["one", "two"] {
        client.send(request);
        client.expect("-ERR what\r\n");
    }
    assert_eq!((echo.got().as_str(), proxy.counts().garbage), ("", 1));
}

#[test]
fn requests_are_cut_at_any_byte() {
    for after_bytes in 0..6 {
        let (echo, proxy) = setup();
        proxy.set(Fault::CutRequest { after_bytes });
        let mut client = Client::connect(&proxy);
        client.send("abcdef");
        let whole = &"abcdef"[..usize::try_from(after_bytes).unwrap()];
        assert_eq!(client.rest(), whole.to_ascii_uppercase(), "cut after {after_bytes}");
        assert_eq!(echo.got(), whole);
        assert_eq!(proxy.counts().request_cuts, 1);
    }
}

#[test]
fn a_request_cut_counts_across_chunks_from_its_own() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("before");
    proxy.next(Fault::CutRequest { after_bytes: 5 });
    client.ask("abc");
    client.send("def");
    assert_eq!(client.rest(), "DE");
    assert_eq!(echo.got(), "beforeabcde");
}

#[test]
fn replies_are_cut_at_any_byte() {
    for after_bytes in 0..6 {
        let (echo, proxy) = setup();
        proxy.set(Fault::CutReply { after_bytes });
        let mut client = Client::connect(&proxy);
        client.send("abcdef");
        assert_eq!(client.rest(), "ABCDEF"[..usize::try_from(after_bytes).unwrap()], "cut after {after_bytes}");
        assert_eq!(echo.got(), "abcdef");
        assert_eq!(proxy.counts().reply_cuts, 1);
    }
}

#[test]
fn a_reply_cut_counts_across_chunks() {
    let (echo, proxy) = setup();
    proxy.set(Fault::CutReply { after_bytes: 4 });
    let mut client = Client::connect(&proxy);
    client.ask("abc");
    client.send("def");
    assert_eq!(client.rest(), "D");
    assert_eq!(echo.got(), "abcdef");
}

#[test]
fn a_lost_request_reaches_nobody() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    proxy.next(Fault::LoseRequest(Then::Close));
    client.send("two");
    assert_eq!(client.rest(), "");
    assert_eq!((echo.got().as_str(), proxy.counts().lost_requests), ("one", 1));
}

#[test]
fn a_lost_request_may_hang() {
    let (echo, proxy) = setup();
    proxy.set(Fault::LoseRequest(Then::Hang));
    let mut client = Client::connect(&proxy);
    client.send("one");
    client.expect_silence();
    assert_eq!(echo.got(), "");
}

#[test]
fn a_lost_reply_closes_only_after_delivery() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    proxy.next(Fault::LoseReply(Then::Close));
    client.send("two");
    assert_eq!(client.rest(), "");
    // No waiting here: the close is the promise that the server had it.
    assert_eq!((echo.got().as_str(), proxy.counts().lost_replies), ("onetwo", 1));
}

#[test]
fn a_lost_reply_may_hang() {
    let (echo, proxy) = setup();
    proxy.set(Fault::LoseReply(Then::Hang));
    let mut client = Client::connect(&proxy);
    client.send("one");
    client.expect_silence();
    assert_eq!(echo.got(), "one");
    proxy.cut_all();
    assert_eq!(client.rest(), "");
}

#[test]
fn a_request_is_delivered_after_the_client_gave_up() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    proxy.next(Fault::DeliverLate(Hold::UntilClientCloses));
    client.send("two");
    client.expect_silence();
    client.send("three");
    client.expect_silence();
    assert_eq!((echo.got().as_str(), proxy.counts().late_pending), ("one", 1));
    drop(client);
    until("it is delivered", || proxy.counts().late_pending == 0);
    assert_eq!((echo.got().as_str(), proxy.counts().late_deliveries), ("onetwothree", 1));
}

#[test]
fn a_request_is_delivered_at_a_time_while_the_client_waits() {
    let (echo, proxy) = setup();
    proxy.set(Fault::DeliverLate(Hold::Ms(80)));
    let mut client = Client::connect(&proxy);
    client.send("one");
    client.expect_silence();
    assert_eq!(echo.got(), "");
    assert_eq!(client.rest(), "");
    assert_eq!(echo.got(), "one");
}

#[test]
fn a_request_is_delivered_at_a_time_though_the_client_is_gone() {
    let (echo, proxy) = setup();
    proxy.set(Fault::DeliverLate(Hold::Ms(80)));
    let mut client = Client::connect(&proxy);
    client.send("one");
    let start = Instant::now();
    drop(client);
    until("it is delivered", || echo.got() == "one");
    assert!(start.elapsed() >= Duration::from_millis(60), "{:?}", start.elapsed());
}

#[test]
fn a_request_is_delivered_after_the_connection_was_cut() {
    let (echo, proxy) = setup();
    proxy.set(Fault::DeliverLate(Hold::CutThenMs(80)));
    let mut client = Client::connect(&proxy);
    client.send("one");
    assert_eq!(client.rest(), "");
    assert_eq!((echo.got().as_str(), proxy.counts().late_pending), ("", 1));
    proxy.set(Fault::Pass);
    // The overtaking request: what makes a late one dangerous.
    Client::connect(&proxy).ask("two");
    until("it is delivered", || proxy.counts().late_pending == 0);
    assert_eq!(echo.got(), "twoone");
}

#[test]
fn cut_all_spares_late_deliveries() {
    let (echo, proxy) = setup();
    let mut plain = Client::connect(&proxy);
    plain.ask("one");
    proxy.next(Fault::DeliverLate(Hold::UntilClientCloses));
    let mut late = Client::connect(&proxy);
    late.send("two");
    until("it is held", || proxy.counts().late_pending == 1);
    proxy.cut_all();
    assert_eq!((plain.rest().as_str(), late.rest().as_str()), ("", ""));
    drop(late);
    until("it is delivered", || echo.got() == "onetwo");
    Client::connect(&proxy).ask("three");
}

#[test]
fn a_delay_is_a_delay() {
    let (_echo, proxy) = setup();
    proxy.script(0, |_, _| Fault::Delay { ms: 50 });
    let start = Instant::now();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    client.ask("two");
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert!(proxy.counts().delays >= 2);
}

#[test]
fn a_peer_may_be_gone_without_a_word() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    proxy.next(Fault::HalfOpen(Half::Up));
    client.ask("two");
    // The server has closed; the client may go on as long as it likes.
    for _ in 0..3 {
        client.send("more");
        client.expect_silence();
    }
    assert_eq!((echo.got().as_str(), proxy.counts().half_opens), ("onetwo", 1));
    drop(client);
    until("the connection is closed", || proxy.counts().connections_open == 0);
}

#[test]
fn a_client_whose_replies_have_ended_is_still_heard() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    proxy.next(Fault::HalfOpen(Half::Down));
    client.send("two");
    assert_eq!(client.rest(), "");
    until("the chunk is delivered", || echo.got() == "onetwo");
    client.send("three");
    until("what follows is delivered", || echo.got() == "onetwothree");
    drop(client);
    until("the connection is closed", || proxy.counts().connections_open == 0);
}

#[test]
fn a_chunk_is_delivered_twice_and_answered_once() {
    let (echo, proxy) = setup();
    let mut client = Client::connect(&proxy);
    proxy.next(Fault::Duplicate { ms: 40 });
    client.ask("one");
    assert_eq!(proxy.counts().late_pending, 1);
    client.ask("two");
    client.expect_silence();
    until("the copy is carried out", || proxy.counts().late_pending == 0);
    assert_eq!(echo.got(), "onetwoone");
    assert_eq!((proxy.counts().duplicates, proxy.counts().request_bytes), (1, 6));
}

#[test]
fn two_connections_requests_arrive_in_the_other_order() {
    let (echo, proxy) = setup();
    let (mut first, mut second) = (Client::connect(&proxy), Client::connect(&proxy));
    // Both are accepted, in this order.
    first.ask("a");
    second.ask("b");
    proxy.next(Fault::Behind { ms_max: 5_000 });
    first.send("one");
    until("the chunk was read", || proxy.counts().chunks == 3);
    assert_eq!(echo.got(), "ab");
    second.ask("two");
    first.expect("ONE");
    assert_eq!((echo.got().as_str(), proxy.counts().reorders), ("abtwoone", 1));
}

#[test]
fn who_waits_for_another_connection_waits_alone_and_not_for_ever() {
    let (echo, proxy) = setup();
    let (mut first, mut second) = (Client::connect(&proxy), Client::connect(&proxy));
    proxy.next(Fault::Behind { ms_max: 5_000 });
    proxy.next(Fault::Behind { ms_max: 5_000 });
    first.send("one");
    until("the chunk was read", || proxy.counts().chunks == 1);
    // Somebody waits already: this one passes, and ends the wait.
    second.ask("two");
    first.expect("ONE");
    proxy.next(Fault::Behind { ms_max: 20 });
    first.ask("three");
    assert_eq!((echo.got().as_str(), proxy.counts().reorders), ("twoonethree", 1));
}

#[test]
fn a_drain_returns_once_all_that_was_sent_is_carried_out() {
    let (echo, proxy) = setup();
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(&proxy)).collect();
    clients[0].ask("a");
    proxy.next(Fault::DeliverLate(Hold::Ms(80)));
    clients[1].send("late");
    until("the chunk was read", || proxy.counts().late_pending == 1);
    proxy.next(Fault::HalfOpen(Half::Up));
    clients[2].ask("b");
    proxy.drain();
    assert_eq!(echo.got(), "ablate");
    assert!(clients.iter_mut().all(|client| client.rest().is_empty()));
    Client::connect(&proxy).ask("c");
}

/// A client that connects at that very moment is closed as well, or begins behind it: a proof waited for one for ever that had just been accepted.
#[test]
fn a_drain_returns_though_clients_connect_meanwhile() {
    let (_echo, proxy) = setup();
    let proxy = Arc::new(proxy);
    let (stop, drained) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let connecting = {
        let (addr, stop) = (proxy.addr(), Arc::clone(&stop));
        thread::spawn(move || {
            // Each stays open until it is closed from the other side.
            while !stop.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(addr).unwrap();
                _ = stream.read(&mut [0]);
            }
        })
    };
    let draining = {
        let (proxy, drained) = (Arc::clone(&proxy), Arc::clone(&drained));
        thread::spawn(move || {
            while drained.fetch_add(1, Ordering::Relaxed) < 10_000 {
                proxy.drain();
            }
        })
    };
    until("all drains have returned", || draining.is_finished());
    stop.store(true, Ordering::Relaxed);
    proxy.drain();
    until("the last has connected", || {
        proxy.cut_all();
        connecting.is_finished()
    });
}

#[test]
fn a_script_is_told_where_requests_may_begin() {
    let (_echo, proxy) = setup();
    let (tell, told) = std::sync::mpsc::channel();
    proxy.script(0, move |moment, _| {
        tell.send((moment.begins, moment.is_whole())).unwrap();
        Fault::Pass
    });
    let mut client = Client::connect(&proxy);
    for text in ["get a\r\n", "set a 0 0 9\r\nhalf", "half\r\n", "get a\r\n"] {
        client.ask(text);
    }
    let seen: Vec<_> = told.try_iter().skip(1).collect();
    assert_eq!(seen, [(true, true), (true, false), (false, false), (true, true)]);
}

#[test]
fn a_script_sees_connection_chunk_and_bytes() {
    let (_echo, proxy) = setup();
    let (tell, told) = std::sync::mpsc::channel();
    proxy.script(0, move |moment, _| {
        tell.send((moment.connection, moment.chunk, moment.bytes.to_vec())).unwrap();
        if moment.bytes == b"bad" { Fault::Close } else { Fault::Pass }
    });
    let mut first = Client::connect(&proxy);
    first.ask("a");
    Client::connect(&proxy).ask("b");
    first.send("bad");
    assert_eq!(first.rest(), "");
    let seen: Vec<_> = told.try_iter().collect();
    let of = |connection: u64, chunk: Option<u64>, bytes: &str| (connection, chunk, bytes.as_bytes().to_vec());
    assert_eq!(
        seen,
        [of(0, None, ""), of(0, Some(0), "a"), of(1, None, ""), of(1, Some(0), "b"), of(0, Some(1), "bad")]
    );
}

#[test]
fn an_upstream_that_is_down_closes_the_client() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nobody);
    assert_eq!(Client::connect(&proxy).rest(), "");
}

#[test]
fn dropping_the_proxy_closes_everything() {
    let (_echo, proxy) = setup();
    let addr = proxy.addr();
    let mut client = Client::connect(&proxy);
    client.ask("one");
    drop(proxy);
    assert_eq!(client.rest(), "");
    assert!(TcpStream::connect(addr).is_err());
}

/// One request a connection, one after the other; 1 for each that was answered in full.
fn answered(proxy: &Proxy, requests: usize) -> Vec<bool> {
    let ask = |_| {
        let mut client = Client::connect(proxy);
        client.send("abcd\r\n");
        let mut reply = [0; 6];
        client.0.read_exact(&mut reply).is_ok()
    };
    (0..requests).map(ask).collect()
}

const RATES: Rates = Rates {
    lost_request: 0.1,
    lost_reply: 0.1,
    late_delivery: 0.1,
    cut_request: 0.1,
    cut_reply: 0.1,
    delay: 0.1,
    half_open: 0.1,
    duplicate: 0.1,
    reorder: 0.1,
    late_ms_max: 5,
    delay_ms_max: 1,
};

#[test]
fn random_faults_come_at_their_rates_and_from_the_seed_alone() {
    const REQUESTS: usize = 500;
    let run = |seed| {
        let (echo, proxy) = setup();
        proxy.random(seed, RATES);
        let answers = answered(&proxy, REQUESTS);
        until("all is delivered", || proxy.counts().late_pending == 0);
        (answers, proxy.counts(), echo.got().len())
    };
    let (answers, counts, got) = run(7);
    for (kind, count) in [
        ("lost requests", counts.lost_requests),
        ("lost replies", counts.lost_replies),
        ("late deliveries", counts.late_deliveries),
        ("request cuts", counts.request_cuts),
        ("reply cuts", counts.reply_cuts),
        ("delays", counts.delays),
        ("half-open connections", counts.half_opens),
        ("second deliveries", counts.duplicates),
    ] {
        assert!((25..=80).contains(&count), "{kind}: {count} of {REQUESTS} at a rate of 0.1");
    }
    assert_eq!(got as u64, counts.request_bytes + 6 * counts.duplicates);
    let (again, counts_again, got_again) = run(7);
    assert_eq!((&answers, counts.faults(), got), (&again, counts_again.faults(), got_again));
    assert_ne!(answers, run(8).0);
}

#[test]
#[should_panic(expected = "not probabilities")]
fn rates_past_one_are_refused() {
    let (_echo, proxy) = setup();
    proxy.random(1, Rates { lost_reply: 0.6, lost_request: 0.6, ..Rates::default() });
}
