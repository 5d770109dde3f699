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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::{StoreRef, ambient};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::Set;
    use crate::answering_tests::Answering;

    /// As all options say.
    #[tokio::test]
    async fn a_call_takes_a_day_at_the_most_whatever_it_is_told() {
        const DAY: Duration = Duration::from_secs(86_400);
        let memory: StoreRef = Arc::new(MemoryStore::new());
        let answering = Answering::over(&memory);
        for timeout in [DAY - Duration::from_secs(1), DAY, DAY + Duration::from_secs(1), Duration::MAX] {
            let longest = timeout.min(DAY);
            let began = ambient::now();
            Set::options().timeout(timeout).open_or_create(&answering.shared(), "set").await.unwrap();
            let ended = ambient::now();
            let latest = answering.asked().into_iter().filter_map(|(ctx, _)| ctx.deadline).max().unwrap();
            assert!((began + longest..=ended + longest).contains(&latest), "{timeout:?}: {:?}", latest - began);
        }
    }
}
