//! One connection through the proxy: the way up to the server, where faults are decided, and the way down.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{Cut, Fault, Half, Hold, Moment, Shared, Then, lock};

/// What one read may return, each way.
const CHUNK_BYTES_MAX: usize = 64 * 1024;
/// What a late delivery may hold; past this it is delivered.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long the server may take to carry out what it was sent before a connection is closed under it.
const DRAIN_MS_MAX: u64 = 2_000;

/// What happens to bytes from the server.
#[derive(Clone, Copy)]
enum Down {
    Relay,
    /// This many more are returned.
    CutAfter(u64),
    /// None is returned; then, once the server has closed.
    Discard(Then),
}

/// What the two ways of a connection tell each other.
struct Link {
    down: Cell<Down>,
    /// Bytes to be returned in the place of the server's.
    say: RefCell<Vec<u8>>,
    /// `say` has grown.
    said: Notify,
    /// The server's bytes came in while they were discarded.
    discarded: Notify,
    /// The client's connection is to be closed, and nothing else.
    close_client: Notify,
    /// The connection is to end as soon as the server has closed it.
    drain: Notify,
    /// A delivery is due that must outlive its client.
    late: Cell<bool>,
    /// The number of the last chunk delivered, among those of all connections.
    delivered: Cell<u64>,
    number: u64,
    /// Once the server has closed, its client is left in the dark.
    silent: Cell<bool>,
}

/// Carries one accepted connection to its end.
pub(super) async fn serve(client: TcpStream, number: u64, mut cut: watch::Receiver<Cut>, shared: &Arc<Shared>) {
    let first = shared.decide(&Moment { connection: number, chunk: None, bytes: &[], begins: true });
    if matches!(first, Fault::Close | Fault::Hang) {
        shared.count(|counts| counts.add(&first));
        if first == Fault::Hang {
            let _ = cut.changed().await;
        }
        return;
    }
    let Ok(server) = TcpStream::connect(shared.upstream()).await else { return };
    // Fails only for a connection that is dead already.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let link = Link {
        down: Cell::new(Down::Relay),
        say: RefCell::default(),
        said: Notify::new(),
        discarded: Notify::new(),
        close_client: Notify::new(),
        drain: Notify::new(),
        late: Cell::new(false),
        delivered: Cell::new(0),
        number,
        silent: Cell::new(false),
    };
    let up = Up { client: client_read, server: server_write, number, link: &link, shared };
    let mut up = Box::pin(up.run(first));
    let down = run_down(server_read, client_write, &link, shared);
    tokio::pin!(down);
    loop {
        tokio::select! {
            () = &mut up => return,
            () = &mut down => return,
            _ = cut.changed() => match *cut.borrow_and_update() {
                _ if link.late.get() => link.close_client.notify_one(),
                Cut::Now => return,
                Cut::Drain => break,
            }
        }
    }
    // The end of the stream to the server, which closes once it has carried out all it was sent.
    drop(up);
    link.close_client.notify_one();
    link.drain.notify_one();
    // A server that stands still is not waited for.
    let _ = timeout_at(Instant::now() + Duration::from_millis(DRAIN_MS_MAX), down).await;
}

/// The way up. Its methods return when the connection is to be closed, and otherwise leave that to the way down.
struct Up<'a> {
    client: OwnedReadHalf,
    server: OwnedWriteHalf,
    number: u64,
    link: &'a Link,
    shared: &'a Arc<Shared>,
}

impl Up<'_> {
    async fn run(mut self, first: Fault) {
        let mut buffer = vec![0; CHUNK_BYTES_MAX];
        let mut first = Some(first).filter(|fault| *fault != Fault::Pass);
        let mut begins = true;
        for number in 0.. {
            let chunk = self.read(&mut buffer).await;
            let queued = self.shared.queued().or_else(|| first.take());
            let fault = queued.unwrap_or_else(|| {
                self.shared.decide(&Moment { connection: self.number, chunk: Some(number), bytes: chunk, begins })
            });
            begins = chunk.ends_with(b"\n");
            self.shared.count(|counts| {
                counts.chunks += 1;
                counts.add(&fault);
            });
            match fault {
                Fault::Pass => self.forward(chunk).await,
                Fault::Delay { ms } => {
                    sleep(Duration::from_millis(ms)).await;
                    self.forward(chunk).await;
                }
                Fault::Duplicate { ms } => {
                    self.forward(chunk).await;
                    let pending = LatePending::new(self.shared);
                    spawn_local(deliver_copy(chunk.to_vec(), ms, pending));
                }
                Fault::Behind { ms_max } => {
                    self.wait_for_another(ms_max).await;
                    self.forward(chunk).await;
                }
                Fault::HalfOpen(half) => {
                    if half == Half::Down {
                        self.link.close_client.notify_one();
                    }
                    self.forward(chunk).await;
                    return self.half_open(half, &mut buffer).await;
                }
                Fault::Close | Fault::LoseRequest(Then::Close) => return,
                Fault::Hang | Fault::LoseRequest(Then::Hang) => {
                    self.link.down.set(Down::Discard(Then::Hang));
                    pending().await
                }
                Fault::Garbage(bytes) => return self.garbage(&bytes, &mut buffer).await,
                Fault::CutRequest { after_bytes } => {
                    let read = chunk.len();
                    return self.cut_request(after_bytes, read, &mut buffer).await;
                }
                Fault::CutReply { after_bytes } => {
                    self.link.down.set(Down::CutAfter(after_bytes));
                    self.forward(chunk).await;
                    return self.relay(&mut buffer).await;
                }
                Fault::LoseReply(then) => {
                    self.link.down.set(Down::Discard(then));
                    self.forward(chunk).await;
                    return self.lose_reply(then, &mut buffer).await;
                }
                Fault::DeliverLate(hold) => {
                    let held = chunk.to_vec();
                    return self.deliver_late(hold, held, &mut buffer).await;
                }
            }
        }
    }

    /// The next chunk. At the end of the client's stream the server is told, and the rest is up to the way down.
    async fn read<'b>(&mut self, buffer: &'b mut [u8]) -> &'b [u8] {
        match self.client.read(buffer).await {
            Ok(read) if read > 0 => &buffer[..read],
            _ => {
                let _ = self.server.shutdown().await;
                pending().await
            }
        }
    }

    /// Delivers to the server. When that is gone, the way down finds its last words and then the end.
    async fn forward(&mut self, chunk: &[u8]) {
        // Counted first: by the time the server answers, the count is right.
        self.shared.count(|counts| counts.request_bytes += chunk.len() as u64);
        if self.server.write_all(chunk).await.is_err() {
            pending::<()>().await;
        }
        self.link.delivered.set(self.shared.delivered.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// Waits until a chunk that another connection delivers from now on is answered, unless another one waits so already.
    async fn wait_for_another(&mut self, ms_max: u64) {
        let mut answered = self.shared.answered.subscribe();
        let before = self.shared.delivered.load(Ordering::Relaxed);
        let Some(_turn) = Turn::take(self.shared) else { return };
        let due = Instant::now() + Duration::from_millis(ms_max);
        while let Ok(Ok(())) = timeout_at(due, answered.changed()).await {
            let (connection, chunk) = *answered.borrow_and_update();
            if connection != self.number && chunk > before {
                self.shared.count(|counts| counts.reorders += 1);
                return;
            }
        }
    }

    /// The way down goes on by itself in either case.
    async fn half_open(&mut self, half: Half, buffer: &mut [u8]) {
        if half == Half::Down {
            return self.relay(buffer).await;
        }
        self.link.silent.set(true);
        let _ = self.server.shutdown().await;
        while self.client.read(buffer).await.is_ok_and(|read| read > 0) {}
    }

    async fn relay(&mut self, buffer: &mut [u8]) {
        loop {
            let chunk = self.read(buffer).await;
            self.forward(chunk).await;
        }
    }

    async fn garbage(&mut self, bytes: &[u8], buffer: &mut [u8]) {
        loop {
            self.link.say.borrow_mut().extend_from_slice(bytes);
            self.link.said.notify_one();
            self.read(buffer).await;
        }
    }

    async fn cut_request(&mut self, mut left: u64, mut read: usize, buffer: &mut [u8]) {
        loop {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(read);
            self.forward(&buffer[..part]).await;
            left -= part as u64;
            if part < read {
                return self.end_stream().await;
            }
            read = self.read(buffer).await.len();
        }
    }

    async fn lose_reply(&mut self, then: Then, buffer: &mut [u8]) {
        loop {
            tokio::select! {
                () = self.link.discarded.notified() => break,
                read = self.client.read(buffer) => match read {
                    Ok(read) if read > 0 => self.forward(&buffer[..read]).await,
                    _ => break,
                },
            }
        }
        self.end_stream().await;
        if then == Then::Hang {
            pending().await
        }
    }

    async fn deliver_late(&mut self, hold: Hold, mut held: Vec<u8>, buffer: &mut [u8]) {
        self.link.late.set(true);
        let _pending = LatePending::new(self.shared);
        match hold {
            Hold::UntilClientCloses => self.hold(&mut held, buffer).await,
            Hold::Ms(ms) => {
                let due = Instant::now() + Duration::from_millis(ms);
                // Either way it is over at that time: an error says that the client still waits.
                let _ = timeout_at(due, self.hold(&mut held, buffer)).await;
                sleep_until(due).await;
            }
            Hold::CutThenMs(ms) => {
                self.link.close_client.notify_one();
                sleep(Duration::from_millis(ms)).await;
            }
        }
        self.link.down.set(Down::Discard(Then::Close));
        self.forward(&held).await;
        self.end_stream().await;
    }

    /// Collects what the client sends until it closes.
    async fn hold(&mut self, held: &mut Vec<u8>, buffer: &mut [u8]) {
        while held.len() < HELD_BYTES_MAX
            && let Ok(read) = self.client.read(buffer).await
            && read > 0
        {
            held.extend_from_slice(&buffer[..read]);
        }
    }

    /// Ends the stream to the server and waits: a server closes once it has carried out all it was sent, and the way
    /// down with it.
    async fn end_stream(&mut self) {
        let _ = self.server.shutdown().await;
        sleep(Duration::from_millis(DRAIN_MS_MAX)).await;
    }
}

/// Delivers a chunk once more and waits until the server has carried it out.
async fn deliver_copy(chunk: Vec<u8>, ms: u64, pending: LatePending) {
    sleep(Duration::from_millis(ms)).await;
    let Ok(mut server) = TcpStream::connect(pending.0.upstream()).await else { return };
    if server.write_all(&chunk).await.is_ok() && server.shutdown().await.is_ok() {
        let mut buffer = [0; 4096];
        let replies = async { while server.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
        // A server that stands still must not keep a copy pending for ever.
        let _ = timeout_at(Instant::now() + Duration::from_millis(DRAIN_MS_MAX), replies).await;
    }
}

/// The right to wait for a chunk of another connection: two that waited for each other would wait in vain.
struct Turn<'a>(&'a Shared);

impl<'a> Turn<'a> {
    fn take(shared: &'a Shared) -> Option<Self> {
        let mut waits = lock(&shared.waits);
        if std::mem::replace(&mut *waits, true) { None } else { Some(Self(shared)) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.waits) = false;
    }
}

/// Counts a late delivery as pending for as long as it lives.
struct LatePending(Arc<Shared>);

impl LatePending {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.count(|counts| counts.late_pending += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for LatePending {
    fn drop(&mut self) {
        self.0.count(|counts| counts.late_pending -= 1);
    }
}

/// The way down; returns when the connection is to be closed, which the server's close leads to.
async fn run_down(mut server: OwnedReadHalf, client: OwnedWriteHalf, link: &Link, shared: &Shared) {
    let mut client = Some(client);
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    loop {
        let read = tokio::select! {
            () = link.close_client.notified() => {
                client = None;
                continue;
            }
            () = link.said.notified() => {
                let words = link.say.take();
                give(&mut client, &words, link, shared).await;
                continue;
            }
            read = server.read(&mut buffer) => read.unwrap_or(0),
        };
        if read == 0 {
            break;
        }
        shared.answered.send_replace((link.number, link.delivered.get()));
        match link.down.get() {
            Down::Relay => give(&mut client, &buffer[..read], link, shared).await,
            Down::CutAfter(left) => {
                let part = usize::try_from(left).unwrap_or(usize::MAX).min(read);
                give(&mut client, &buffer[..part], link, shared).await;
                if part < read {
                    return;
                }
                link.down.set(Down::CutAfter(left - part as u64));
            }
            Down::Discard(_) => link.discarded.notify_one(),
        }
    }
    if link.silent.get() || matches!(link.down.get(), Down::Discard(Then::Hang)) {
        link.drain.notified().await;
    }
}

/// Returns bytes to the client; forgets a client that is gone or to be closed.
async fn give(client: &mut Option<OwnedWriteHalf>, bytes: &[u8], link: &Link, shared: &Shared) {
    let Some(stream) = client else { return };
    shared.count(|counts| counts.reply_bytes += bytes.len() as u64);
    let written = tokio::select! {
        () = link.close_client.notified() => false,
        result = stream.write_all(bytes) => result.is_ok(),
    };
    if !written {
        *client = None;
    }
}
