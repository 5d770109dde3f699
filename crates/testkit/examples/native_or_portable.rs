//! What set, table, log and queue cost a Redis server in their portable layouts, and what the server's own collections would: its CPU time an operation,
//! and its memory an element. The figures stand in `docs/design.md`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use larder::log::Cursor;
use larder::{EventLog, Queue, Set, StoreRef, Table};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

/// Elements of each.
const ELEMENTS: usize = 1_000;
/// Rounds over reads.
const READS: usize = 1_000;

/// A server, and what it has used so far.
struct Bench {
    server: RedisServer,
}

impl Bench {
    fn cpu_us(&self) -> f64 {
        let second = |field| self.server.info("cpu", field).parse::<f64>().unwrap_or_default();
        (second("used_cpu_user") + second("used_cpu_sys")) * 1e6
    }

    fn used_bytes(&self) -> f64 {
        self.server.info("memory", "used_memory_dataset").parse().unwrap_or_default()
    }

    /// Runs a job of so many operations, and prints what each took.
    async fn job(&self, what: &str, ops: usize, job: impl AsyncFnOnce()) {
        let (cpu, start) = (self.cpu_us(), Instant::now());
        job().await;
        let (wall, cpu) = (start.elapsed().as_secs_f64() * 1e6, self.cpu_us() - cpu);
        println!("{what:<34} {:>7.1} us of the server, {:>7.1} us in all", cpu / ops as f64, wall / ops as f64);
    }

    async fn filled(&self, what: &str, fill: impl AsyncFnOnce()) {
        let before = self.used_bytes();
        self.job(what, ELEMENTS, fill).await;
        println!("{what:<34} {:>7.1} bytes an element", (self.used_bytes() - before) / ELEMENTS as f64);
    }
}

/// A connection that sends a command and waits for its reply: nothing else.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn ask(&mut self, words: &[&[u8]]) {
        let mut line = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            line.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            line.extend_from_slice(word);
            line.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&line).expect("the server listens");
        self.reply();
    }

    fn reply(&mut self) {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        let length = || line[1..].trim().parse::<i64>().expect("a length");
        match line.as_bytes().first() {
            Some(b'*') => (0..length()).for_each(|_| self.reply()),
            Some(b'$') if length() >= 0 => {
                let mut bytes = vec![0; length() as usize + 2];
                self.0.read_exact(&mut bytes).expect("the server answers");
            }
            Some(b'-') => panic!("{line}"),
            _ => {}
        }
    }
}

fn member(at: usize) -> String {
    format!("member-{at:09}")
}

async fn sets(bench: &Bench, store: &StoreRef, raw: &mut Raw) {
    let set = Set::open_or_create(store, "set").await.unwrap();
    let add = async || {
        for at in 0..ELEMENTS {
            set.add([member(at)]).await.unwrap();
        }
    };
    bench.filled("set: add", add).await;
    set.compact().await.unwrap();
    let has = async || {
        for at in 0..READS {
            assert!(set.has(member(at % ELEMENTS)).await.unwrap());
        }
    };
    bench.job("set: has", READS, has).await;
    bench
        .job("set: members, a member", ELEMENTS, async || assert_eq!(set.members().await.unwrap().len(), ELEMENTS))
        .await;
    let fill = async || (0..ELEMENTS).for_each(|at| raw.ask(&[b"SADD", b"native-set", member(at).as_bytes()]));
    bench.filled("SADD", fill).await;
    let has = async || (0..READS).for_each(|at| raw.ask(&[b"SISMEMBER", b"native-set", member(at).as_bytes()]));
    bench.job("SISMEMBER", READS, has).await;
    bench.job("SMEMBERS, a member", ELEMENTS, async || raw.ask(&[b"SMEMBERS", b"native-set"])).await;
}

async fn tables(bench: &Bench, store: &StoreRef, raw: &mut Raw) {
    let (table, value) = (Table::open_or_create(store, "table").await.unwrap(), [b'v'; 32]);
    let put = async || {
        for at in 0..ELEMENTS {
            table.put(member(at), value).await.unwrap();
        }
    };
    bench.filled("table: put of a new key", put).await;
    let again = async || {
        for at in 0..ELEMENTS {
            table.put(member(at), value).await.unwrap();
        }
    };
    bench.job("table: put of a key that is there", ELEMENTS, again).await;
    let get = async || {
        for at in 0..READS {
            assert!(table.get(member(at)).await.unwrap().is_some());
        }
    };
    bench.job("table: get", READS, get).await;
    let fill = async || (0..ELEMENTS).for_each(|at| raw.ask(&[b"HSET", b"native-hash", member(at).as_bytes(), &value]));
    bench.filled("HSET", fill).await;
    let get = async || (0..READS).for_each(|at| raw.ask(&[b"HGET", b"native-hash", member(at).as_bytes()]));
    bench.job("HGET", READS, get).await;
}

async fn logs(bench: &Bench, store: &StoreRef, raw: &mut Raw) {
    let (log, event) = (EventLog::open_or_create(store, "log").await.unwrap(), [b'e'; 100]);
    let put = async || {
        for _ in 0..ELEMENTS {
            log.put(event).await.unwrap();
        }
    };
    bench.filled("log: put", put).await;
    let mut tail = log.tail(Cursor::default()).unwrap();
    let read = async || assert_eq!(tail.poll().await.unwrap().whole().unwrap().len(), ELEMENTS);
    bench.job("log: a tail's first look, an event", ELEMENTS, read).await;
    let fill = async || (0..ELEMENTS).for_each(|_| raw.ask(&[b"XADD", b"native-stream", b"*", b"e", &event]));
    bench.filled("XADD", fill).await;
    bench.job("XRANGE, an event", ELEMENTS, async || raw.ask(&[b"XRANGE", b"native-stream", b"-", b"+"])).await;
}

async fn queues(bench: &Bench, store: &StoreRef, raw: &mut Raw) {
    let (queue, item) = (Queue::open_or_create(store, "queue").await.unwrap(), [b'i'; 100]);
    let push = async || {
        for _ in 0..ELEMENTS {
            queue.push(item).await.unwrap();
        }
    };
    bench.filled("queue: push", push).await;
    let pop = async || {
        for _ in 0..ELEMENTS {
            assert!(queue.pop().await.unwrap().is_some());
        }
    };
    bench.job("queue: pop", ELEMENTS, pop).await;
    bench.filled("RPUSH", async || (0..ELEMENTS).for_each(|_| raw.ask(&[b"RPUSH", b"native-list", &item]))).await;
    bench.job("LPOP", ELEMENTS, async || (0..ELEMENTS).for_each(|_| raw.ask(&[b"LPOP", b"native-list"]))).await;
    bench.filled("XADD", async || (0..ELEMENTS).for_each(|_| raw.ask(&[b"XADD", b"jobs", b"*", b"i", &item]))).await;
    raw.ask(&[b"XGROUP", b"CREATE", b"jobs", b"g", b"0"]);
    let take = async || {
        let read: &[&[u8]] = &[b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"1", b"STREAMS", b"jobs", b">"];
        (0..ELEMENTS).for_each(|_| raw.ask(read));
    };
    bench.job("XREADGROUP, without XACK and XDEL", ELEMENTS, take).await;
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for version in [RedisVersion::Redis7, RedisVersion::Redis8] {
        println!("{version:?}, {ELEMENTS} elements, one client, one operation at a time");
        let bench = Bench { server: RedisServer::start(version, &RedisOptions::new()) };
        let store = larder::open(&bench.server.url()).await.expect("it serves");
        let mut raw = Raw(BufReader::new(TcpStream::connect(bench.server.addr()).expect("it serves")));
        raw.0.get_ref().set_nodelay(true).expect("a socket of ours");
        sets(&bench, &store, &mut raw).await;
        tables(&bench, &store, &mut raw).await;
        logs(&bench, &store, &mut raw).await;
        queues(&bench, &store, &mut raw).await;
    }
}
