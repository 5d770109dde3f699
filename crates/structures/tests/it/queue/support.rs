//! What tests of queues and stacks share.

use larder_core::{Ctx, Key, StoreRef};
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
