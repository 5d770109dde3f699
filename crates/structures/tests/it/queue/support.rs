//! What tests of queues and stacks share.

use larder_core::{Ctx, ErrorKind, Key, StoreRef};
use larder_structures::{Name, registry};
pub(crate) use larder_testkit::lines::{BOTH, Kind, LEASE, Line, SCRIPTED, script, small, text};
use larder_testkit::queue_bytes::segment_key;

/// The key of a segment, or of the state (`None`), by the documented scheme.
pub(crate) async fn key(kind: Kind, store: &StoreRef, segment: Option<u64>) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap().unwrap();
    let prefix = format!("L.q.{}.{:016x}", kind.role(), manifest.generation);
    match segment {
        Some(segment) => segment_key(store, &prefix, segment).await,
        None => Key::new(format!("{prefix}.0")).unwrap(),
    }
}

/// Takes all there is: what came, and how often a loss was told.
pub(crate) async fn drain(line: &Line) -> (Vec<String>, usize) {
    let (mut items, mut told) = (Vec::new(), 0);
    loop {
        match line.pop().await {
            Ok(Some(item)) => items.push(text(&item)),
            Ok(None) => return (items, told),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                told += 1;
            }
        }
    }
}
