//! The Tokio runtime of a caller: timers and background work need one.

use larder_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;

/// The runtime that the caller runs on. Asked before a timer is made: that panics without one.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where there is none; `why` begins the message.
pub(crate) fn current(why: &str) -> Result<Handle> {
    Handle::try_current()
        .map_err(|error| Error::new(ErrorKind::Unsupported, format!("{why} and needs a Tokio runtime")).source(error))
}
