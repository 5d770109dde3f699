//! How long a call may take: what all structures' options hold a timeout to.

use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};

/// The longest timeout of a call.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Fails for a timeout that leaves no time for anything.
///
/// # Errors
/// [`ErrorKind::BadInput`] for 0.
pub(crate) fn check(timeout: Duration) -> Result<()> {
    if timeout.is_zero() {
        return Err(Error::new(ErrorKind::BadInput, "a timeout is 0; nothing can be done within it"));
    }
    Ok(())
}
