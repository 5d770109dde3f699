//! What a server says no with, in words that name the mend.
//!
//! A server that answers with an error has not run the command: such a refusal is [`NotApplied`](larder_core::Effect::NotApplied). So it is of a script, which
//! looks before it writes; but one that writes twice may be refused the second write (a user who may not, a score that is none). Where it cannot take the first one
//! back, it answers an error of its own that says so, [`HALF`], and that is [`Unknown`](larder_core::Effect::Unknown).

use larder_core::{Effect, Error, ErrorKind};
use redis::ServerError;

use crate::scripts::Script;

/// How the error begins by which a script tells that it was refused a command after it had written. The name of the command follows, then the server's words.
const HALF: &str = "HALF";

/// Refusals that are told apart elsewhere.
pub(crate) struct Refusal;

impl Refusal {
    /// The value is a string without a header.
    pub(crate) fn foreign() -> Error {
        let detail = "the key holds a value that another program wrote: it has no header of Larder's; \
                      nothing was changed. Use another key or namespace, or delete it with that program";
        Error::new(ErrorKind::LayoutMismatch, detail)
    }

    /// True if the server does not know a script: it did not run.
    pub(crate) fn is_no_script(error: &ServerError) -> bool {
        error.code() == "NOSCRIPT"
    }

    /// True if what was refused has written nothing.
    pub(crate) fn is_of_all(error: &ServerError) -> bool {
        half_done(error).is_none() && refused(error).known_effect() == Effect::NotApplied
    }

    /// True if the server is a replica.
    pub(crate) fn is_read_only(error: &ServerError) -> bool {
        is(error, "READONLY")
    }

    /// True if a node of a cluster refuses for the sake of the cluster. To a script that it lets begin, since it lets reads be done (`cluster-allow-reads-when-down`),
    /// it says so without the code: `ERR Script attempted to execute a write command while the cluster is down and readonly`, before 7.0 `Lua script attempted …`.
    pub(crate) fn is_cluster_down(error: &ServerError) -> bool {
        let in_script = error.details().is_some_and(|words| words.contains("while the cluster is down"));
        error.code() == "CLUSTERDOWN" || (in_script && error.code() != HALF)
    }

    /// True if it is a `WAIT` that was refused since the server is a replica.
    pub(crate) fn is_wait_of_replica(error: &ServerError) -> bool {
        error.details().is_some_and(|words| words.contains("replica instances"))
    }
}

/// What was asked of a server, as far as its refusal does not tell.
pub(super) struct Asked {
    /// What the key was to hold.
    pub(super) holds: &'static str,
    /// The script that was called, if it was one.
    pub(super) script: Option<Script>,
}

/// The error of a script that was stopped between two writes; `None` for any other refusal.
pub(super) fn half_done(error: &ServerError) -> Option<Error> {
    let said = error.details().filter(|_| error.code() == HALF)?;
    let (command, said) = said.split_once(' ').unwrap_or((said, ""));
    let (kind, mend) = match is_forbidden(said) {
        true => (ErrorKind::Config, format!("grant {command} to this user with ACL SETUSER, or use another user, and")),
        false => (ErrorKind::Protocol, "mend what was refused, and".to_owned()),
    };
    let detail = format!(
        "the server refused {command} to a script that had written by then, and what it had written stays: {said}; {mend} look at what the key holds before \
         this is done again"
    );
    Some(Error::new(kind, detail).effect(Effect::Unknown))
}

/// What a server refuses for now.
const FOR_NOW: [&str; 6] = ["LOADING", "BUSY", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNKILLABLE"];

/// Whether a refusal is of this code. A script of a server before 7.0 wraps what its command answered, dash and all: `ERR Error running script (call to f_…):
/// @user_script:6: @user_script: 6: -OOM command not allowed …`, and `@user_script: 6: -OOM …` where the script hands it on.
fn is(error: &ServerError, code: &str) -> bool {
    let words = error.details().unwrap_or_default();
    let begins = words.strip_prefix(code).is_some_and(|rest| rest.starts_with(' '));
    error.code() == code || begins || [": ", ": -"].iter().any(|before| words.contains(&format!("{before}{code} ")))
}

/// Whether these words say that the user may not. Of a command in a script, servers before 7.2 have no code for it.
fn is_forbidden(words: &str) -> bool {
    words.starts_with("NOPERM") || words.contains("can't run this command") || words.contains("has no permissions")
}

/// The error that a server's refusal is.
pub(crate) fn refused(error: &ServerError) -> Error {
    refused_as(error, &Asked { holds: "string", script: None })
}

/// The same, of what was asked.
pub(super) fn refused_as(error: &ServerError, asked: &Asked) -> Error {
    let (code, words) = (error.code(), error.details().unwrap_or_default());
    let said = format!("{code} {words}");
    let told = |kind: ErrorKind, detail: String| Error::new(kind, detail);
    if is(error, "WRONGTYPE") {
        return told(
            ErrorKind::LayoutMismatch,
            format!(
                "the key holds another Redis type than a {}, so another program wrote it; nothing was changed. \
                 Use another key or namespace, or delete it with that program ({said})",
                asked.holds
            ),
        );
    }
    if is(error, "OOM") {
        return told(
            ErrorKind::Full,
            format!("the server has reached its maxmemory; give it more, or delete ({said})"),
        );
    }
    if is(error, "NOPERM") || is_forbidden(words) {
        let mend = "grant the command and the keys to this user with ACL SETUSER, or use another user";
        // Of a command in a script, servers before 7.2 do not say which.
        let unnamed = asked.script.filter(|_| words.contains("can't run this command"));
        let calls =
            unnamed.map(|script| format!(" (the script calls {})", script.calls().join(", "))).unwrap_or_default();
        return told(ErrorKind::Config, format!("the server forbids it to this user: {said}{calls}; {mend}"));
    }
    // Called from a script, Redis says "Unknown Redis command".
    let lower = words.to_ascii_lowercase();
    if lower.contains("unknown command") || lower.contains("unknown redis command") {
        let mend = "it was renamed or taken away (rename-command): give it back";
        return told(ErrorKind::Config, format!("the server does not know the command: {said}; {mend}"));
    }
    if Refusal::is_read_only(error) {
        let detail = format!("the server has become a replica, which refuses writes; connect to its primary ({said})");
        return told(ErrorKind::Unavailable, detail);
    }
    if FOR_NOW.iter().any(|code| is(error, code)) {
        return told(ErrorKind::Unavailable, format!("the server refuses for now: {said}"));
    }
    match code {
        _ if Refusal::is_cluster_down(error) => told(
            ErrorKind::Unavailable,
            format!("the cluster is down, or does not serve the slot of this key ({said})"),
        ),
        "NOAUTH" | "WRONGPASS" => told(
            ErrorKind::Config,
            format!("the server wants a password: {said}; put it in the URL, redis://user:password@host"),
        ),
        "MOVED" | "ASK" | "CROSSSLOT" | "TRYAGAIN" => told(
            ErrorKind::Unavailable,
            format!("the server is a node of a cluster, and the key is not served by it ({said})"),
        ),
        "NOSCRIPT" => told(ErrorKind::Unavailable, format!("the server has forgotten the scripts; try again ({said})")),
        _ if words.contains("string exceeds maximum allowed size") => {
            told(ErrorKind::BadInput, format!("the value would outgrow the server's proto-max-bulk-len ({said})"))
        }
        // Whatever it is, it is not known to have been refused before it ran.
        _ => told(ErrorKind::Protocol, format!("the server answered an error: {said}")).effect(Effect::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server said, as the client crate reads it.
    fn said(words: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{words}\r\n").as_bytes()).unwrap() {
            redis::Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    /// None of the servers of the tests is so old. The frames are those of Redis 6.2: of a call that failed, and of one whose error the script hands on.
    #[test]
    fn a_refusal_is_told_as_well_where_a_script_of_an_old_server_wraps_it() {
        for (words, kind) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Full),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
                ErrorKind::Unavailable,
            ),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", ErrorKind::LayoutMismatch),
            (
                "Script attempted to execute a write command while the cluster is down and readonly",
                ErrorKind::Unavailable,
            ),
            ("Lua script attempted to execute a command while the cluster is down", ErrorKind::Unavailable),
        ] {
            let call = "ERR Error running script (call to f_0519ba): @user_script:6: @user_script: 6: -";
            for frame in ["", call, "@user_script: 14: -", "ERR "] {
                let error = said(&format!("{frame}{words}"));
                let told = refused(&error);
                assert_eq!((told.kind(), told.known_effect()), (kind, Effect::NotApplied), "{frame}{words}: {told}");
                assert_eq!(Refusal::is_read_only(&error), words.starts_with("READONLY"), "{frame}{words}");
                assert_eq!(Refusal::is_cluster_down(&error), words.contains("cluster is down"), "{frame}{words}");
            }
        }
        let half =
            said("HALF SADD ERR Script attempted to execute a write command while the cluster is down and readonly");
        assert!(!Refusal::is_cluster_down(&half) && half_done(&half).unwrap().is_unknown(), "it has written by then");
        for words in ["ERR OOMPH", "ERR no-OOM here", "ERR the word OOM in it"] {
            let told = refused(&said(words));
            assert_eq!((told.kind(), told.known_effect()), (ErrorKind::Protocol, Effect::Unknown), "{words}");
        }
    }
}
