//! `/metrics` and `/healthz`: a request a connection, read to its head's end, answered and closed.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::counters::{BUCKETS, Count, LATENCY_CLASSES, bucket_bound_ns};
use crate::engine::Engine;
use crate::env::Env;
use crate::session::TIMED_EVERY;

/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Requests at once.
const REQUESTS_MAX: usize = 16;

/// How many of them may be answered without giving way to who has sent half a request only.
const ANSWERED_MAX: usize = REQUESTS_MAX / 2;

/// A connection.
struct Request {
    task: AbortHandle,
    /// Its head has come: what it asks for is being written.
    is_answered: Arc<AtomicBool>,
}

/// Which one gives way where there is no room: of those that have sent half a request who came first; of those that are being answered, and may only read slowly, only
/// where they take more than their half of the room.
fn gives_way(under_way: &VecDeque<Request>) -> Option<usize> {
    let is_answered = |request: &Request| request.is_answered.load(Ordering::Relaxed);
    let answered = under_way.iter().filter(|request| is_answered(request)).count();
    under_way.iter().position(|request| is_answered(request) == (answered > ANSWERED_MAX))
}

/// Answers whoever comes. Where there is no room, one [gives way](gives_way), so that nobody keeps it who sends half a request, or does not read.
pub(crate) async fn serve<E: Engine>(env: Arc<Env<E>>, listener: TcpListener) {
    let mut under_way: VecDeque<Request> = VecDeque::with_capacity(REQUESTS_MAX);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        under_way.retain(|request| !request.task.is_finished());
        if under_way.len() == REQUESTS_MAX
            && let Some(first) = gives_way(&under_way).and_then(|at| under_way.remove(at))
        {
            first.task.abort();
        }
        let (env, is_answered) = (env.clone(), Arc::new(AtomicBool::new(false)));
        let answered = is_answered.clone();
        let task = tokio::spawn(async move {
            // Whoever is slow, or gone, gets nothing.
            let _ = tokio::time::timeout(TIMEOUT, answer(&env, stream, &answered)).await;
        });
        under_way.push_back(Request { task: task.abort_handle(), is_answered });
        // Each has its turn before the next is let in: a request that is there is answered however many come behind it.
        tokio::task::yield_now().await;
    }
}

async fn answer<E: Engine>(env: &Env<E>, mut stream: TcpStream, is_answered: &AtomicBool) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1 << 10);
    let mut looked_at = 0;
    while !head[looked_at..].windows(4).any(|end| end == b"\r\n\r\n") {
        // What ends may have begun in what came before.
        looked_at = head.len().saturating_sub(3);
        if head.len() > HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    is_answered.store(true, Ordering::Relaxed);
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics(env)),
        (b"GET" | b"HEAD", b"/healthz") if env.draining.load(Ordering::Relaxed) => {
            ("503 Service Unavailable", "text/plain", "ending\n".to_owned())
        }
        (b"GET" | b"HEAD", b"/healthz") => match env.engine.failure() {
            None => ("200 OK", "text/plain", "ok\n".to_owned()),
            Some(error) => ("503 Service Unavailable", "text/plain", format!("{error}\n")),
        },
        (b"GET" | b"HEAD", _) => ("404 Not Found", "text/plain", "/metrics or /healthz\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET it\n".to_owned()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    if method == b"GET" {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}

/// All there is to tell, in the text format of Prometheus.
fn metrics<E: Engine>(env: &Env<E>) -> String {
    let mut text = String::with_capacity(16 << 10);
    let mut put = |name: &str, kind: &str, help: &str, value: &dyn std::fmt::Display| {
        // A String takes whatever is written.
        let _ = writeln!(text, "# HELP larder_{name} {help}.\n# TYPE larder_{name} {kind}\nlarder_{name} {value}");
    };
    let figures = env.figures();
    let usage = crate::process::usage();
    for &count in Count::ALL {
        put(&format!("{}_total", count.name()), "counter", count.help(), &env.counters.sum(count));
    }
    put("connections", "gauge", "Clients that are connected", &env.conns.count());
    put("connections_max", "gauge", "Clients that may be connected", &env.limits.connections_max);
    put(
        "held_bytes",
        "gauge",
        "Bytes of what is not finished: half requests, and replies that nobody has read yet",
        &env.all_held_bytes(),
    );
    put("items", "gauge", "Items in the store, over ones too where nobody has come past them", &figures.items);
    put("item_bytes", "gauge", "Bytes that the items take", &figures.bytes);
    put("item_bytes_max", "gauge", "Bytes that the items may take in memory; 0 over a folder", &env.limit_bytes());
    put("evicted_total", "counter", "Items that were dropped to make room", &figures.evicted);
    put("expired_total", "counter", "Items that were over and reclaimed", &figures.expired);
    put(
        "torn_bytes",
        "gauge",
        "Bytes that were cut off the journal when the store was opened: a write that a crash had cut short, or damage in what was not known to be on disk",
        &figures.torn_bytes,
    );
    put("uptime_seconds", "gauge", "Since the server began", &env.started.elapsed().as_secs());
    put("cpu_seconds_total", "counter", "Time of the processors that it took", &(usage.user_s + usage.system_s));
    put("resident_bytes", "gauge", "Memory of the process", &crate::process::resident_bytes());
    histograms(env, &mut text);
    text
}

/// How many requests there were and how long they took, by one in 16, which stands for all 16: from its line being found to its reply being written into the buffer and, over a folder,
/// being as durable as the store promises.
fn histograms<E: Engine>(env: &Env<E>, text: &mut String) {
    const NAME: &str = "larder_request_seconds";
    const NS: f64 = 1e9;
    let _ = writeln!(
        text,
        "# HELP {NAME} Requests, by how long each took until its reply was ready and durable. One in {TIMED_EVERY} is timed, and counted {TIMED_EVERY} times.\n# TYPE {NAME} histogram"
    );
    for (class, word) in LATENCY_CLASSES {
        let times = env.counters.times(class);
        let mut sum = 0;
        for (bucket, count) in times.buckets.iter().enumerate() {
            sum += count * u64::from(TIMED_EVERY);
            let bound =
                if bucket < BUCKETS { (bucket_bound_ns(bucket) as f64 / NS).to_string() } else { "+Inf".to_owned() };
            let _ = writeln!(text, "{NAME}_bucket{{class=\"{word}\",le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(text, "{NAME}_sum{{class=\"{word}\"}} {}", times.sum_ns as f64 * f64::from(TIMED_EVERY) / NS);
        let _ = writeln!(text, "{NAME}_count{{class=\"{word}\"}} {sum}");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use larder_store_memory::MemoryStore;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::config::Limits;
    use crate::engine::MemoryEngine;
    use crate::env::Settings;
    use crate::files::Files;

    /// A listener whose connections take little of a reply at a time.
    fn listening() -> SocketAddr {
        let engine = MemoryEngine::new(MemoryStore::builder().build().unwrap());
        let env = Env::new(engine, Limits::default(), 1, Files::default(), Settings::default());
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(1 << 10).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1_024).unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve(env, listener));
        addr
    }

    /// Asks, and has not read yet.
    async fn asking(addr: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1 << 10).unwrap();
        let mut asking = socket.connect(addr).await.unwrap();
        asking.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        asking
    }

    #[tokio::test]
    async fn who_reads_slowly_gets_all_of_a_reply_however_many_come_meanwhile() {
        let addr = listening();
        let mut asking = asking(addr).await;
        let (mut told, mut part, mut halves) = (Vec::new(), [0; 1 << 10], Vec::new());
        loop {
            for _ in 0..REQUESTS_MAX {
                let mut half = TcpStream::connect(addr).await.unwrap();
                half.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
                halves.push(half);
            }
            match asking.read(&mut part).await.expect("a reply to its end") {
                0 => break,
                read => told.extend_from_slice(&part[..read]),
            }
        }
        let told = String::from_utf8(told).unwrap();
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}, and {} bytes", body.len());
    }

    /// Nor do those keep anybody out who ask and never read.
    #[tokio::test]
    async fn readers_that_never_read_keep_no_room_from_who_asks() {
        let addr = listening();
        let mut deaf = Vec::new();
        for _ in 0..3 * REQUESTS_MAX {
            deaf.push(asking(addr).await);
            let mut asks = TcpStream::connect(addr).await.unwrap();
            let mut halves = Vec::new();
            for _ in 0..REQUESTS_MAX / 4 {
                halves.push(TcpStream::connect(addr).await.unwrap());
            }
            asks.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
            let mut told = Vec::new();
            asks.read_to_end(&mut told).await.unwrap();
            assert!(told.ends_with(b"\r\n\r\nok\n"), "{:?}", told.escape_ascii().to_string());
        }
    }
}
