//! The Tokio runtime of a caller: pauses need one.

use tokio::runtime::Handle;

/// True on a Tokio runtime. Asked by a future before it makes a timer: that panics without one. A runtime that was built without its timer cannot be told.
pub(crate) fn is_here() -> bool {
    Handle::try_current().is_ok()
}
