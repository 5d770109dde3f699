//! Queues and stacks behind the same calls, for tests that hold for both.

use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Key, Result, StoreRef};
use larder_structures::queue::ClaimId;
use larder_structures::{Claim, Name, Queue, QueueOptions, QueueStat, Stack, StackOptions, registry};
use larder_testkit::queue_bytes::segment_key;

pub(crate) const LEASE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Queue,
    Stack,
}

pub(crate) const BOTH: [Kind; 2] = [Kind::Queue, Kind::Stack];

/// A queue or a stack.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    Queue(Queue),
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

impl Line {
    pub(crate) async fn try_open(kind: Kind, store: &StoreRef, options: &QueueOptions) -> Result<Line> {
        Ok(match kind {
            Kind::Queue => Line::Queue(options.open_or_create(store, "q").await?),
            Kind::Stack => Line::Stack(StackOptions::from(options.clone()).open_or_create(store, "q").await?),
        })
    }

    pub(crate) async fn open(kind: Kind, store: &StoreRef, options: &QueueOptions) -> Line {
        Line::try_open(kind, store, options).await.unwrap()
    }

    pub(crate) async fn push(&self, item: impl AsRef<[u8]>) -> Result<()> {
        each!(self, line => line.push(item).await)
    }

    pub(crate) async fn push_all(&self, items: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        each!(self, line => line.push_all(items).await)
    }

    pub(crate) async fn pop(&self) -> Result<Option<Bytes>> {
        each!(self, line => line.pop().await)
    }

    pub(crate) async fn claim(&self, lease: Duration) -> Result<Option<Claim>> {
        each!(self, line => line.claim(lease).await)
    }

    pub(crate) async fn ack(&self, id: ClaimId) -> Result<()> {
        each!(self, line => line.ack(id).await)
    }

    pub(crate) async fn len(&self) -> Result<u64> {
        each!(self, line => line.len().await)
    }

    pub(crate) async fn stat(&self) -> QueueStat {
        each!(self, line => line.stat().await).unwrap()
    }

    pub(crate) fn item_bytes_max(&self) -> usize {
        each!(self, line => line.item_bytes_max())
    }

    /// Claims an item that must be there.
    pub(crate) async fn take(&self) -> Claim {
        self.claim(LEASE).await.unwrap().expect("an item")
    }

    /// Pops all there is.
    pub(crate) async fn drain(&self) -> Vec<String> {
        let mut items = Vec::new();
        while let Some(item) = self.pop().await.unwrap() {
            items.push(text(&item));
        }
        items
    }
}

pub(crate) fn text(item: &[u8]) -> String {
    String::from_utf8_lossy(item).into_owned()
}

/// Segments as small as they get, so that few items fill several.
pub(crate) fn small() -> QueueOptions {
    QueueOptions::default().segment_bytes(256).timeout(Duration::from_secs(30))
}

/// The key of a segment, or of the state (`None`), by the documented scheme.
pub(crate) async fn key(kind: Kind, store: &StoreRef, segment: Option<u64>) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap().unwrap();
    let role = if kind == Kind::Queue { 'q' } else { 'k' };
    let prefix = format!("L.q.{role}.{:016x}", manifest.generation);
    match segment {
        Some(segment) => segment_key(store, &prefix, segment).await,
        None => Key::new(format!("{prefix}.0")).unwrap(),
    }
}
