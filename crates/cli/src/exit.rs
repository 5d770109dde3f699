//! Exit codes, and how an error becomes one.

use std::io::{self, Write};
use std::process::ExitCode;

use larder::dump::{DumpFault, FileError};
use larder::{ErrorKind, Name};
use serde_json::json;

use crate::session::Session;

/// How the command ends. `lock run`, `queue work --once` and `cache get` end as their command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok = 0,
    No = 1,
    Usage = 2,
    Absent = 3,
    Lost = 4,
    Lock = 5,
    Unreachable = 6,
    Unknown = 7,
    Refused = 8,
    Internal = 70,
}

/// Every exit code, and what it means.
pub(crate) const CODES: [(&str, &str); 13] = [
    ("0", "done; the answer is yes"),
    (
        "1",
        "what was asked for is not there, or the answer is no; of several, for one of them: `set has`, `table get`, `hash get`, `lookup get`, `records bits`, `queue pop` and others; `unique new`: no id is new; `demo`: a total is off",
    ),
    ("2", "wrong usage: an option, a name, a value, a URL; no store is set; a file that cannot be read or written"),
    ("3", "absent: there is no such structure (never created, or lost)"),
    (
        "4",
        "lost, rolled back or damaged: data that were there are gone, or cannot be read; `log fetch` printed what is left, `check` found damage",
    ),
    ("5", "the lock was not obtained in time, or was lost while the command ran; a claim of a queue is over"),
    (
        "6",
        "the store cannot be reached or does not answer, or somebody else's rebuild outlasted the wait; nothing was changed but what the error says is done",
    ),
    (
        "7",
        "the outcome is unknown: it may have happened, or may yet; or a part is done that counts twice if it is done again; read before you try again",
    ),
    (
        "8",
        "refused: full, out of range, another kind of structure, too many writers, or unsupported; `export` and `import`: something was left out, the rest is done",
    ),
    ("70", "the store or larder misbehaved"),
    ("126", "`lock run`, `cache get`, `queue work`: the command cannot be run"),
    ("127", "`lock run`, `cache get`, `queue work`: the command was not found"),
    ("128+n", "`lock run`, `cache get`, `queue work`: signal n ended the command; others: signal n ended larder"),
];

/// As `larder exit-codes` and the help print it.
pub(crate) fn table() -> String {
    let lines: String = CODES.iter().map(|(code, meaning)| format!("{code:>5}  {meaning}\n")).collect();
    format!(
        "Exit codes:\n{lines}\n`lock run`, `queue work --once`, and `cache get` of what is missing, else exit as their command does; --lock-exit-code tells its own 5 apart."
    )
}

/// The same, behind an example of how to use it.
pub(crate) const AFTER_LONG_HELP: &str = "\
Examples:
  larder demo                                    try every structure, here and now, without a server
  larder counter add hits 5                      in this user's own store
  export LARDER_STORE=memcached://localhost:11211
  larder set add tags red green                  in one that machines share
  larder lock run nightly -- ./report.sh

Exit codes (`larder exit-codes`): 0 done, 1 no, 2 usage, 3 absent, 4 lost, 5 lock not obtained or lost, 6 store unreachable, \
7 outcome unknown, 8 refused (full, …), 70 internal; `lock run` and `cache get` exit as their command does.";

/// Where the store of a command is: what can be done about an error goes by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Behind a server that was named.
    Server,
    /// In a folder that is opened.
    Folder,
    /// Behind the server of this user's own store, which commands start.
    OwnServer,
}

/// What to do where a server does not answer, if it is one.
const NO_SERVER: &str = "is the server up, and its address right? The store is set by --store or LARDER_STORE";
/// The same of a folder.
const NO_FOLDER: &str = "one process at a time has a folder open: --timeout waits longer for it, and a store that is served is used by its server's address; what else keeps it from being opened is said above";
/// The same of this user's own store.
const NO_OWN_SERVER: &str = "its server ends once no command uses it, and the next command starts another: try again; --direct opens the files instead";
/// What a witness tells when a store is opened.
const WITNESSED: &str =
    "nothing was changed; `larder restore` makes a store of a backup, and docs/durability.md says what a witness tells";
/// What a folder of a newer layout tells.
const NEWER: &str = "a newer larder has written it, and nothing was changed: use that one";
/// What a drop tells of a layout that it does not read.
const NOT_DROPPED: &str = "nothing was changed: the larder that wrote it can drop it; if it is another program's, that one can remove it, or take another name";

/// What to do where a part is done, and all of it would do that twice.
const TWICE: &str = "what is done counts twice if it is done again: read before you try again";
/// What a reader that went away tells.
const UNREAD: &str = "nobody reads what is printed";

/// Why the command failed, for people and for machines.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: u8,
    kind: &'static str,
    message: String,
    hint: Option<String>,
    /// True where nobody need be told.
    is_silent: bool,
}

/// Which of several failures is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gravity {
    /// Only the reader of standard output has gone.
    Unread,
    Failed,
    Unknown,
}

impl Failure {
    /// That of a name which holds nothing, worded by what the store promises.
    pub(crate) fn absent(session: &Session, name: &Name) -> Failure {
        larder::registry::absent(&session.store, name).into()
    }

    pub(crate) fn new(exit: Exit, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { exit: exit as u8, kind, message: message.into(), hint: None, is_silent: false }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, "usage", message)
    }

    /// With another exit code, one that is not ours to choose.
    #[must_use]
    pub(crate) fn exiting(mut self, exit: u8) -> Failure {
        self.exit = exit;
        self
    }

    /// What to do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// That of a store which could not be opened.
    pub(crate) fn opening(error: larder::Error, place: Where) -> Failure {
        let kind = error.kind();
        let failure = Failure::from(error).at(place);
        match kind {
            _ if place != Where::Folder => failure,
            // The whole store, not a structure that could be dropped.
            ErrorKind::Lost | ErrorKind::RolledBack => failure.hint(WITNESSED),
            ErrorKind::LayoutMismatch => failure.hint(NEWER),
            _ => failure,
        }
    }

    /// That of a drop: what it does not read it cannot remove either.
    pub(crate) fn of_a_drop(error: larder::Error) -> Failure {
        let is_not_read = error.kind() == ErrorKind::LayoutMismatch && !error.is_unknown();
        let failure = Failure::from(error);
        if is_not_read { failure.hint(NOT_DROPPED) } else { failure }
    }

    /// That of a command on a store there: what cannot be reached need not be a server with an address.
    #[must_use]
    pub(crate) fn at(self, place: Where) -> Failure {
        match place {
            _ if self.hint.as_deref() != Some(NO_SERVER) => self,
            Where::Server => self,
            Where::Folder => self.hint(NO_FOLDER),
            Where::OwnServer => self.hint(NO_OWN_SERVER),
        }
    }

    /// What to do about it, should it be that nothing is there.
    #[must_use]
    pub(crate) fn hint_if_absent(self, hint: impl Into<String>) -> Failure {
        if self.exit == Exit::Absent as u8 { self.hint(hint) } else { self }
    }

    /// Puts what was done so far before the message.
    #[must_use]
    pub(crate) fn after(mut self, progress: &str) -> Failure {
        self.message = format!("{progress}: {}", self.message);
        self
    }

    /// The same of elements that are acted on one by one, if any is done.
    #[must_use]
    pub(crate) fn after_part(self, done: usize, all: usize) -> Failure {
        if done == 0 { self } else { self.after(&format!("{done} of {all} elements are done")) }
    }

    /// The same of standard input: what is done to so many (`what`, as in "elements are done") of those that were begun. Where the outcome
    /// of some is open, it says so; where none was begun, nothing.
    #[must_use]
    pub(crate) fn after_input(self, done: u64, begun: u64, what: &str) -> Failure {
        let (things, verb) = what.split_once(' ').unwrap_or((what, "are done"));
        match (done, begun > done) {
            (0, false) => self,
            (0, true) => self.after(&format!("no {things} of standard input {verb} for certain, some may be")),
            (_, true) => self.after(&format!("{done} {things} of standard input {verb}, others may be")),
            (_, false) => self.after(&format!("{done} {things} of standard input {verb}")),
        }
    }

    /// The same of what counts twice if it is done again: to who does all of it again the outcome is unknown as soon as anything is done.
    #[must_use]
    pub(crate) fn after_some(self, done: usize, what: &str) -> Failure {
        self.after(&format!("{done} {what}")).with_some_done(done > 0)
    }

    /// The same where it is said already how much is done.
    #[must_use]
    pub(crate) fn with_some_done(self, is_any_done: bool) -> Failure {
        // A reader that went away keeps nothing from being done.
        let is_partial = is_any_done && self.gravity() == Gravity::Failed;
        if is_partial { self.exiting(Exit::Unknown as u8).hint(TWICE) } else { self }
    }

    /// Of two failures the one that is told: the graver, or else the first.
    #[must_use]
    fn or_graver(self, next: Failure) -> Failure {
        if next.gravity() > self.gravity() { next } else { self }
    }

    fn gravity(&self) -> Gravity {
        match self.exit {
            Failure::PIPE_EXIT => Gravity::Unread,
            exit if exit == Exit::Unknown as u8 => Gravity::Unknown,
            _ => Gravity::Failed,
        }
    }

    /// That of a verb that changes things: what is done is said, also where a reader that went away is all that failed.
    #[must_use]
    pub(crate) fn of_a_change(mut self) -> Failure {
        self.is_silent = false;
        if self.message == UNREAD { self.after("what was asked for is done") } else { self }
    }

    /// True if the store lacks what was asked of it.
    pub(crate) fn is_unsupported(&self) -> bool {
        self.kind == ErrorKind::Unsupported.as_str()
    }

    /// What happened.
    pub(crate) fn message(self) -> String {
        self.message
    }

    /// Prints it to standard error and gives the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if !self.is_silent {
            let shown = if json { self.json() } else { self.text() };
            say(&shown);
        }
        ExitCode::from(self.exit)
    }

    /// 128 + SIGPIPE, as a shell would say.
    const PIPE_EXIT: u8 = 141;

    fn json(&self) -> String {
        let Failure { exit, kind, message, hint, .. } = self;
        json!({"error": {"kind": kind, "message": message, "hint": hint, "exit_code": exit}}).to_string()
    }

    fn text(&self) -> String {
        let mut text = format!("\x1b[1;31merror:\x1b[0m {}", self.message);
        if let Some(hint) = &self.hint {
            text.push_str(&format!("\n \x1b[1mhint:\x1b[0m {hint}"));
        }
        text
    }
}

impl From<larder::Error> for Failure {
    fn from(error: larder::Error) -> Failure {
        if let Some(FileError(cause)) = std::error::Error::source(&error).and_then(|source| source.downcast_ref()) {
            return of_a_file(&error, cause);
        }
        if DumpFault::is_why(&error) {
            return Failure::new(judge(&error).0, error.kind().as_str(), error.to_string());
        }
        let (exit, hint) = judge(&error);
        let failure = Failure::new(exit, error.kind().as_str(), error.to_string());
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

/// A dump that cannot be read or written where it lies: no store is to blame.
fn of_a_file(error: &larder::Error, cause: &io::Error) -> Failure {
    if cause.kind() == io::ErrorKind::BrokenPipe {
        return io::Error::from(cause.kind()).into();
    }
    let exit = if error.kind() == ErrorKind::Full { Exit::Refused } else { Exit::Usage };
    Failure::new(exit, "i/o", error.detail())
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            // It is no failure: what was read was right.
            let unread = Failure::new(Exit::Internal, "pipe", UNREAD).exiting(Failure::PIPE_EXIT);
            return Failure { is_silent: true, ..unread };
        }
        Failure::new(Exit::Internal, "i/o", error.to_string())
    }
}

/// What came of two things that were done at once, where one failure is told.
pub(crate) fn graver(first: Result<(), Failure>, next: Result<(), Failure>) -> Result<(), Failure> {
    match (first, next) {
        (Err(first), Err(next)) => Err(first.or_graver(next)),
        (first, next) => first.and(next),
    }
}

/// Prints a line to standard error. Where that is closed or full, nobody is left to be told.
pub(crate) fn say(line: &str) {
    _ = writeln!(anstream::stderr().lock(), "{line}");
}

fn judge(error: &larder::Error) -> (Exit, &'static str) {
    if error.is_unknown() {
        return (Exit::Unknown, "read before you try again: it may have happened, or may yet");
    }
    match error.kind() {
        ErrorKind::BadInput => (Exit::Usage, ""),
        ErrorKind::Config => (Exit::Usage, "the store is set by --store or LARDER_STORE; see `larder --help`"),
        ErrorKind::Absent => (Exit::Absent, ""),
        ErrorKind::Lost | ErrorKind::RolledBack => {
            (Exit::Lost, "`larder drop NAME` removes what is left, so that it can be made anew")
        }
        ErrorKind::Fenced => (Exit::Lock, "the lease ran out, or the lock was taken away"),
        ErrorKind::Unavailable => (Exit::Unreachable, NO_SERVER),
        ErrorKind::Timeout => (Exit::Unreachable, "the server is slow or hangs; --timeout gives it longer"),
        ErrorKind::Full => (Exit::Refused, ""),
        ErrorKind::LayoutMismatch => {
            (Exit::Refused, "take another name, or remove what is there with `larder drop NAME`")
        }
        ErrorKind::Conflict => (Exit::Refused, "many write it at once; try again"),
        ErrorKind::Unsupported | ErrorKind::Overflow => (Exit::Refused, ""),
        ErrorKind::Corrupt => (Exit::Lost, "the store's files are damaged: see docs/durability.md"),
        ErrorKind::Protocol => (Exit::Internal, "is that server what the URL says it is?"),
        _ => (Exit::Internal, ""),
    }
}

#[cfg(test)]
mod tests {
    use larder::{Effect, Error};

    use super::*;

    #[test]
    fn every_code_is_in_the_table() {
        let codes = [
            Exit::Ok,
            Exit::No,
            Exit::Usage,
            Exit::Absent,
            Exit::Lost,
            Exit::Lock,
            Exit::Unreachable,
            Exit::Unknown,
            Exit::Refused,
            Exit::Internal,
        ];
        for code in codes {
            let code = (code as u8).to_string();
            assert!(CODES.iter().any(|(listed, _)| *listed == code), "{code}");
        }
    }

    #[test]
    fn what_a_file_does_is_no_failure_of_the_store() {
        let exit = |kind: io::ErrorKind| Failure::from(FileError(kind.into()).of("the dump cannot be read")).exit;
        assert_eq!(exit(io::ErrorKind::BrokenPipe), Failure::PIPE_EXIT);
        assert_eq!(exit(io::ErrorKind::IsADirectory), Exit::Usage as u8);
        assert_eq!(exit(io::ErrorKind::StorageFull), Exit::Refused as u8);
    }

    #[test]
    fn what_is_to_be_done_goes_by_where_the_store_is() {
        let hint = |kind, place| Failure::opening(Error::new(kind, ""), place).hint.unwrap();
        let unreachable = [Where::Server, Where::Folder, Where::OwnServer].map(|it| hint(ErrorKind::Unavailable, it));
        assert_eq!(unreachable, [NO_SERVER, NO_FOLDER, NO_OWN_SERVER]);
        for kind in [ErrorKind::Lost, ErrorKind::RolledBack, ErrorKind::LayoutMismatch] {
            assert!(hint(kind, Where::Server).contains("larder drop NAME"));
            assert!(!hint(kind, Where::Folder).contains("larder drop NAME"));
        }
        let structure = Failure::from(Error::new(ErrorKind::Lost, "")).at(Where::Folder);
        assert!(structure.hint.unwrap().contains("larder drop NAME"), "a structure in a folder can be dropped");
        let own = Failure::usage("").hint("another").at(Where::Folder);
        assert_eq!(own.hint.as_deref(), Some("another"));
    }

    #[test]
    fn a_drop_that_is_refused_is_not_told_to_drop() {
        let failure = Failure::of_a_drop(Error::new(ErrorKind::LayoutMismatch, "of layout 99"));
        assert_eq!((failure.exit, failure.hint.as_deref()), (Exit::Refused as u8, Some(NOT_DROPPED)));
        // A part of it may be gone.
        let midway = Failure::of_a_drop(Error::new(ErrorKind::LayoutMismatch, "").effect(Effect::Unknown));
        assert_eq!(midway.exit, Exit::Unknown as u8);
        assert!(midway.hint.unwrap().contains("read before"));
    }

    #[test]
    fn it_is_said_of_standard_input_what_is_done_and_whether_anything_is_open() {
        let said = |done, begun| Failure::usage("x").after_input(done, begun, "elements are done").message();
        assert_eq!(said(0, 0), "x");
        assert_eq!(said(0, 5), "no elements of standard input are done for certain, some may be: x");
        assert_eq!(said(3, 5), "3 elements of standard input are done, others may be: x");
        assert_eq!(said(5, 5), "5 elements of standard input are done: x");
    }

    #[test]
    fn an_unknown_outcome_goes_before_the_kind() {
        let error = Error::new(ErrorKind::Timeout, "no answer");
        assert_eq!(Failure::from(error.clone()).exit, Exit::Unreachable as u8);
        assert_eq!(Failure::from(error.effect(Effect::Unknown)).exit, Exit::Unknown as u8);
    }
}
