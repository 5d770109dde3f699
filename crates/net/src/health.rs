//! Whether a server is reached, and who waits to know.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use larder_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What is known of the way to a server: told by the one task that dials, asked by whoever wants a connection.
///
/// ```
/// use larder_core::{Error, ErrorKind};
/// use larder_net::Health;
/// let health = Health::default();
/// assert!(health.error().is_none(), "the first dial is under way");
/// health.down(Error::new(ErrorKind::Unavailable, "connection refused"));
/// assert_eq!(health.error().unwrap().detail(), "connection refused");
/// health.up();
/// assert!(health.error().is_none());
/// ```
#[derive(Debug, Default)]
pub struct Health {
    state: Mutex<State>,
    /// Whether a dial has ended, well or not.
    has_dialled: AtomicBool,
    /// Wakes callers when a dial has ended, well or not.
    dialled: Notify,
}

#[derive(Debug, Default)]
enum State {
    /// A first dial, or the first after a loss, is under way: callers wait for it.
    #[default]
    Dialling,
    Up,
    /// Dials fail: callers are refused at once, and one prober goes on dialling.
    Down {
        since: Instant,
        error: Error,
    },
}

impl Health {
    /// A dial went well: there is a connection.
    pub fn up(&self) {
        *self.state.lock() = State::Up;
        self.has_dialled.store(true, Ordering::Release);
        self.dialled.notify_waiters();
    }

    /// A dial failed, and there is no connection.
    pub fn down(&self, error: Error) {
        let mut state = self.state.lock();
        let since = match &*state {
            State::Down { since, .. } => *since,
            State::Dialling | State::Up => Instant::now(),
        };
        *state = State::Down { since, error };
        drop(state);
        self.has_dialled.store(true, Ordering::Release);
        self.dialled.notify_waiters();
    }

    /// The last connection was lost: it is dialled anew, and who comes waits for that.
    pub fn lost(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Up) {
            *state = State::Dialling;
        }
    }

    /// The error for callers while the server is down.
    pub fn error(&self) -> Option<Error> {
        let state = self.state.lock();
        let State::Down { since, error } = &*state else { return None };
        let kind = match error.kind() {
            ErrorKind::Config => ErrorKind::Config,
            _ => ErrorKind::Unavailable,
        };
        let detail = match since.elapsed().as_secs() {
            0 => error.detail().to_owned(),
            down_s => format!("down for {down_s} s: {}", error.detail()),
        };
        Some(Error::new(kind, detail).source(error.clone()))
    }

    /// What `live` finds; where that is nothing, once a dial that is under way has ended.
    ///
    /// # Errors
    /// At once while the server is down; [`ErrorKind::Timeout`] where the deadline comes before the dial has ended.
    pub async fn connection<C>(&self, deadline: Instant, live: impl Fn() -> Option<C>) -> Result<C> {
        loop {
            let dialled = self.dialled.notified();
            if let Some(connection) = live() {
                return Ok(connection);
            }
            if let Some(error) = self.error() {
                return Err(error);
            }
            if tokio::time::timeout_at(deadline.into(), dialled).await.is_err() {
                return Err(Error::new(ErrorKind::Timeout, "no connection before the deadline; a dial is under way"));
            }
        }
    }

    /// Waits for the end of the first dial, whatever has become of its connection since.
    pub async fn first_dial(&self) {
        loop {
            let dialled = self.dialled.notified();
            if self.has_dialled.load(Ordering::Acquire) {
                return;
            }
            dialled.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refused() -> Error {
        Error::new(ErrorKind::Timeout, "no answer")
    }

    #[tokio::test]
    async fn who_comes_while_it_is_dialled_waits_for_that_and_no_longer() {
        let health = Health::default();
        let soon = || Instant::now() + Duration::from_secs(60);
        let (waited, ()) = tokio::join!(health.connection(soon(), || None::<()>), async { health.down(refused()) });
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
        let late = Health::default().connection(Instant::now(), || None::<()>).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(health.connection(soon(), || Some(7)).await.unwrap(), 7, "what is there is taken, whatever is told");
        health.first_dial().await;
    }

    #[tokio::test]
    async fn the_first_dial_has_ended_though_its_connection_was_lost_at_once() {
        let health = Health::default();
        let first = tokio::time::timeout(Duration::from_secs(5), health.first_dial());
        let (waited, ()) = tokio::join!(first, async {
            health.up();
            health.lost();
        });
        waited.expect("it waits for another");
    }

    #[test]
    fn a_loss_is_no_failure_and_a_failure_no_loss() {
        let health = Health::default();
        health.up();
        health.lost();
        assert!(health.error().is_none());
        health.down(refused());
        health.lost();
        assert!(health.error().is_some(), "a server that is down stays so until a dial goes well");
    }

    #[test]
    fn what_is_wrong_with_a_setting_is_told_as_that() {
        let health = Health::default();
        health.down(Error::new(ErrorKind::Config, "the password is wrong"));
        assert_eq!(health.error().unwrap().kind(), ErrorKind::Config);
    }
}
