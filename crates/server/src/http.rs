//! `/metrics` and `/healthz`: a request a connection, read to its head's end, answered and closed.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// Answers whoever comes. Where there is no room, who came first gives way, so that nobody keeps it who sends half a request, or does not read.
pub(crate) async fn serve<E: Engine>(env: Arc<Env<E>>, listener: TcpListener) {
    let mut under_way: VecDeque<AbortHandle> = VecDeque::with_capacity(REQUESTS_MAX);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        under_way.retain(|request| !request.is_finished());
        if under_way.len() == REQUESTS_MAX
            && let Some(first) = under_way.pop_front()
        {
            first.abort();
        }
        let env = env.clone();
        let request = tokio::spawn(async move {
            // Whoever is slow, or gone, gets nothing.
            let _ = tokio::time::timeout(TIMEOUT, answer(&env, stream)).await;
        });
        under_way.push_back(request.abort_handle());
        // Each has its turn before the next is let in: a request that is there is answered however many come behind it.
        tokio::task::yield_now().await;
    }
}

async fn answer<E: Engine>(env: &Env<E>, mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1 << 10);
    let mut looked_at = 0;
    while !head[looked_at..].windows(4).any(|end| end == b"\r\n\r\n") {
        // What ends may have begun in what came before.
        looked_at = head.len().saturating_sub(3);
        if head.len() > HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
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
    let figures = env.engine.figures();
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
    put(
        "item_bytes_max",
        "gauge",
        "Bytes that the items may take in memory",
        &env.memory_bytes_max.load(Ordering::Relaxed),
    );
    put("evicted_total", "counter", "Items that were dropped to make room", &figures.evicted);
    put("expired_total", "counter", "Items that were over and reclaimed", &figures.expired);
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
