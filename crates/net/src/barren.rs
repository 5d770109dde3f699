//! Connections of no use: they shake hands, and end soon, before they have answered anything.

use std::time::Instant;

use larder_core::{Error, ErrorKind};

use crate::Backoff;

/// So many in a row are a server that is down.
const IN_A_ROW_MAX: u32 = 3;

/// True if a connection that has just ended, and begun then, was barren: as bad as a dial that fails, so that the next one is to wait as after that.
///
/// ```
/// use std::time::Instant;
/// assert!(larder_net::is_barren(Instant::now(), false));
/// assert!(!larder_net::is_barren(Instant::now(), true)); // it has answered
/// ```
pub fn is_barren(begun: Instant, has_answered: bool) -> bool {
    !has_answered && begun.elapsed() < Backoff::REDIAL.max
}

/// What a server is told to be after so many barren connections in a row: down from the third on, else nothing. `cause` is why the last one ended, where that is known.
///
/// ```
/// assert!(larder_net::down_by_barren(2, None).is_none());
/// let down = larder_net::down_by_barren(3, None).unwrap();
/// assert_eq!(down.detail(), "3 connections in a row ended before an answer");
/// ```
pub fn down_by_barren(in_a_row: u32, cause: Option<Error>) -> Option<Error> {
    if in_a_row < IN_A_ROW_MAX {
        return None;
    }
    let ended = format!("{in_a_row} connections in a row ended before an answer");
    Some(match cause {
        Some(cause) => Error::new(ErrorKind::Unavailable, format!("{ended}: {}", cause.detail())).source(cause),
        None => Error::new(ErrorKind::Unavailable, ended),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connection_is_barren_that_ended_soon_and_had_answered_nothing() {
        let long_ago = Instant::now().checked_sub(Backoff::REDIAL.max + Duration::from_millis(1)).unwrap();
        assert!(is_barren(Instant::now(), false));
        assert!(!is_barren(Instant::now(), true));
        assert!(!is_barren(long_ago, false), "it was quiet, and then ended");
    }

    #[test]
    fn the_third_in_a_row_is_a_server_that_is_down_and_says_why() {
        assert!([0, 1, 2].into_iter().all(|in_a_row| down_by_barren(in_a_row, None).is_none()));
        let down = down_by_barren(4, Some(Error::new(ErrorKind::Unavailable, "the server hung up"))).unwrap();
        assert_eq!(down.kind(), ErrorKind::Unavailable);
        assert_eq!(down.detail(), "4 connections in a row ended before an answer: the server hung up");
        assert!(std::error::Error::source(&down).is_some());
    }
}
