//! Queues and stacks behind the same calls, for tests that hold for both.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Result, StoreRef};
use larder_structures::queue::ClaimId;
use larder_structures::{Claim, Queue, QueueOptions, QueueStat, Stack, StackOptions};

/// How long claims of [`Line::take`] last: longer than any test.
pub const LEASE: Duration = Duration::from_secs(60);

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First in, first out.
    Queue,
    /// Last in, first out.
    Stack,
}

/// Both of them.
pub const BOTH: [Kind; 2] = [Kind::Queue, Kind::Stack];

/// A queue or a stack.
#[derive(Clone, Debug)]
pub enum Line {
    /// First in, first out.
    Queue(Queue),
    /// Last in, first out.
    Stack(Stack),
}

macro_rules! each {
    ($line:expr, $handle:ident => $call:expr) => {
        match $line {
            Line::Queue($handle) => $call,
            Line::Stack($handle) => $call,
        }
    };
}

impl Kind {
    /// The letter that stands in the keys.
    pub fn role(self) -> char {
        if self == Kind::Queue { 'q' } else { 'k' }
    }
}

impl Line {
    /// Opens one of that name, or makes it.
    pub async fn try_open_as(kind: Kind, store: &StoreRef, name: &str, options: &QueueOptions) -> Result<Line> {
        Ok(match kind {
            Kind::Queue => Line::Queue(options.open_or_create(store, name).await?),
            Kind::Stack => Line::Stack(StackOptions::from(options.clone()).open_or_create(store, name).await?),
        })
    }

    /// Opens one of that name, or makes it, where that must not fail.
    pub async fn open_as(kind: Kind, store: &StoreRef, name: &str, options: &QueueOptions) -> Line {
        Line::try_open_as(kind, store, name, options).await.expect("a queue or a stack")
    }

    /// Opens `q`, or makes it.
    pub async fn try_open(kind: Kind, store: &StoreRef, options: &QueueOptions) -> Result<Line> {
        Line::try_open_as(kind, store, "q", options).await
    }

    /// Opens `q`, or makes it, where that must not fail.
    pub async fn open(kind: Kind, store: &StoreRef, options: &QueueOptions) -> Line {
        Line::open_as(kind, store, "q", options).await
    }

    /// Pushes an item.
    pub async fn push(&self, item: impl AsRef<[u8]>) -> Result<()> {
        each!(self, line => line.push(item).await)
    }

    /// Pushes items.
    pub async fn push_all(&self, items: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        each!(self, line => line.push_all(items).await)
    }

    /// Takes an item for good.
    pub async fn pop(&self) -> Result<Option<Bytes>> {
        each!(self, line => line.pop().await)
    }

    /// Claims an item.
    pub async fn claim(&self, lease: Duration) -> Result<Option<Claim>> {
        each!(self, line => line.claim(lease).await)
    }

    /// Acknowledges a claim by its id.
    pub async fn ack(&self, id: ClaimId) -> Result<()> {
        each!(self, line => line.ack(id).await)
    }

    /// How many items there are.
    pub async fn len(&self) -> Result<u64> {
        each!(self, line => line.len().await)
    }

    /// Its figures.
    pub async fn stat(&self) -> QueueStat {
        each!(self, line => line.stat().await).expect("figures")
    }

    /// The largest item.
    pub fn item_bytes_max(&self) -> usize {
        each!(self, line => line.item_bytes_max())
    }

    /// Claims an item that must be there.
    pub async fn take(&self) -> Claim {
        self.claim(LEASE).await.expect("a claim").expect("an item")
    }

    /// Pops all there is.
    pub async fn drain(&self) -> Vec<String> {
        let mut items = Vec::new();
        while let Some(item) = self.pop().await.expect("a pop") {
            items.push(text(&item));
        }
        items
    }
}

/// An item as text.
pub fn text(item: &[u8]) -> String {
    String::from_utf8_lossy(item).into_owned()
}

/// Segments as small as they get, so that few items fill several.
pub fn small() -> QueueOptions {
    QueueOptions::default().segment_bytes(256).timeout(Duration::from_secs(30))
}

/// Items that [`script`] pushes.
pub const SCRIPTED: usize = 22;

/// Fills segments, takes, acknowledges and gives back, through two handles. Every call must be settled. What was delivered
/// for good, in order.
pub async fn script(one: &Line, two: &Line) -> Vec<String> {
    let mut done = Vec::new();
    for n in 0..12 {
        one.push(format!("first {n:03}")).await.expect("a push");
    }
    let back = two.take().await;
    for line in [one, two, one] {
        let claim = line.take().await;
        claim.ack().await.expect("an acknowledgement");
        done.push(text(claim.item()));
    }
    back.release().await.expect("a release");
    two.push_all(["second a", "second b"]).await.expect("a push");
    for n in 0..8 {
        one.push(format!("third {n:03}")).await.expect("a push");
        done.push(text(&two.pop().await.expect("a pop").expect("an item")));
    }
    done
}
