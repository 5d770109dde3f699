//! Logging in: a `set` whose value is `user password` comes first, where there is an auth file.

use larder_proto::server::words::Words;
use larder_proto::server::{LINE_BYTES_MAX, number};
use memchr::memchr;

use super::Session;
use crate::counters::{Count, Tally};
use crate::engine::Engine;
use crate::env::Env;

/// The longest `user password`.
const TOKEN_BYTES_MAX: usize = 16_384;
/// A shorter line logs nobody in.
const LINE_BYTES_MIN: usize = 6;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Login {
    /// In, or not asked for.
    #[default]
    In,
    /// The line is to come.
    Line,
    /// The value is to come, of so many bytes with its line end.
    Token(usize),
}

impl Login {
    pub(super) fn new(needed: bool) -> Login {
        if needed { Login::Line } else { Login::In }
    }

    pub(super) fn is_in(self) -> bool {
        self == Login::In
    }

    pub(super) fn is_idle(self) -> bool {
        matches!(self, Login::In | Login::Line)
    }
}

impl Session {
    /// Takes a line, or the token behind it.
    pub(super) fn log_in<E: Engine>(&mut self, env: &Env<E>, rest: &[u8], tally: &mut Tally) -> Option<usize> {
        let Login::Token(bytes) = self.login else { return self.log_in_line(rest, tally) };
        let token = rest.get(..bytes)?;
        self.login = Login::Line;
        self.need = 0;
        let reply = match token.strip_suffix(b"\r\n") {
            None => "CLIENT_ERROR bad command line termination",
            Some(token) => match memchr(b' ', token) {
                None => "CLIENT_ERROR bad authentication token format",
                Some(space) => {
                    tally.add(Count::AuthCmds, 1);
                    let (user, password) = (&token[..space], &token[space + 1..]);
                    if env.files.allow(user, password) {
                        self.login = Login::In;
                        "STORED"
                    } else {
                        tally.add(Count::AuthErrors, 1);
                        "CLIENT_ERROR authentication failure"
                    }
                }
            },
        };
        self.answer(reply, false);
        Some(bytes)
    }

    fn log_in_line(&mut self, rest: &[u8], tally: &mut Tally) -> Option<usize> {
        let Some(end) = memchr(b'\n', rest) else {
            self.closing |= rest.len() > LINE_BYTES_MAX;
            return None;
        };
        if end < LINE_BYTES_MIN {
            self.closing = true;
            return None;
        }
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let bytes = { Words::of(line) }.nth(4);
        match number(bytes) {
            Some(bytes) if line.starts_with(b"set") => match usize::try_from(bytes) {
                Ok(bytes) if bytes <= TOKEN_BYTES_MAX => {
                    self.login = Login::Token(bytes + 2);
                    self.need = bytes + 2;
                }
                _ => self.answer("CLIENT_ERROR auth token too long", false),
            },
            _ => {
                tally.add(Count::Errors, 1);
                self.answer("CLIENT_ERROR unauthenticated", false);
            }
        }
        Some(end + 1)
    }
}
