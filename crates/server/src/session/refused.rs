//! What a store refused, or could not read, in the words of the protocol: an error, never a miss.

use std::borrow::Cow;

use larder_core::{Error, ErrorKind};

use super::Session;
use super::classic::TOO_LARGE;
use crate::counters::{Count, Tally};
use crate::engine::Engine;

/// The words behind the kind are cut there: clients bound the lines that they read.
const DETAIL_CHARS_MAX: usize = 500;

/// The line that answers an error. `no_room` is what memcached says where the store drops items as memcached does.
#[cold]
pub(super) fn line<E: Engine>(error: &Error, no_room: &'static str) -> Cow<'static, str> {
    match error.kind() {
        ErrorKind::Full if E::REFUSED_SET_REMOVES => Cow::Borrowed(no_room),
        ErrorKind::BadInput => Cow::Borrowed(TOO_LARGE),
        kind => {
            if kind == ErrorKind::Corrupt {
                tracing::error!(%error, "a request met damage");
            }
            Cow::Owned(format!("SERVER_ERROR the store is {}: {}", kind.as_str(), one_line(error)))
        }
    }
}

impl Session {
    /// Answers an error of the store, and counts it: want of room apart, too, whatever asked for it.
    #[cold]
    pub(super) fn refused<E: Engine>(&mut self, error: &Error, no_room: &'static str, silent: bool, tally: &mut Tally) {
        tally.add(Count::Errors, 1);
        if error.kind() == ErrorKind::Full {
            tally.add(Count::StoreNoMemory, 1);
        }
        self.answer(&line::<E>(error, no_room), silent);
    }
}

fn one_line(error: &Error) -> String {
    let plain = |char: char| if char.is_control() { ' ' } else { char };
    error.detail().chars().take(DETAIL_CHARS_MAX).map(plain).collect()
}
