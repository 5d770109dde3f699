//! What a server says of itself when a connection begins.

use larder_core::{Encodings, Error, ErrorKind, Result};
use redis::{Cmd, Pipeline, ServerError, Value};

use crate::codec::refused;
use crate::config::WaitReplicas;
use crate::node::Role;
use crate::scripts::Script;

/// The settings that are asked for, one `CONFIG GET` each: several at once are known from 7.0 on.
const SETTINGS: [&str; 8] = [
    "save",
    "appendonly",
    // And `no-appendfsync-on-rewrite`.
    "*appendfsync*",
    "replica-read-only",
    "proto-max-bulk-len",
    "*-max-listpack-*",
    "set-max-intset-entries",
    "stream-node-max-*",
];

/// What the handshake found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) flavour: Flavour,
    pub(crate) version: String,
    /// `maxmemory-policy`, where a limit is set; `None` where the server does not tell, `noeviction` where there is no limit.
    pub(crate) policy: Option<String>,
    pub(crate) persistence: Persistence,
    /// `appendfsync` is `always`, but while a snapshot or a new file is written nothing is synced, or it does not tell that it is.
    pub(crate) is_unsynced_at_times: bool,
    /// Should it become a replica, it takes writes all the same: `replica-read-only no`. Never of a node of a cluster, which redirects them.
    pub(crate) is_writable_as_replica: bool,
    pub(crate) bulk_bytes_max: Option<u64>,
    pub(crate) encodings: Option<Encodings>,
    /// Replicas that were connected; `None` where it does not tell.
    pub(crate) replicas: Option<u32>,
    /// It told that it has no replica, and keeps nothing for one that it had: it forgets that only `repl-backlog-ttl`, an hour, after the last has left.
    pub(crate) is_alone: bool,
    /// Replicas that writes wait for.
    pub(crate) wait_replicas: u32,
    /// Why settings could not be read, in the server's words.
    pub(crate) untold: Option<String>,
    pub(crate) unknown: Unknown,
}

impl ServerInfo {
    /// The error of a server that refuses a command which the store needs: of one that is too old to have it, nobody took it away.
    fn lacks(&self, command: &str, error: &ServerError) -> Error {
        let is_unknown = error.details().is_some_and(|words| words.contains("unknown command"));
        if is_unknown && self.flavour == Flavour::Redis && is_older(&self.version, OLDEST) {
            let ((major, minor), version) = (OLDEST, &self.version);
            let detail = format!(
                "this is Redis {version}, and does not know the command {command}: the store needs Redis {major}.{minor} or later, or Valkey"
            );
            return Error::new(ErrorKind::Config, detail);
        }
        let refusal = refused(error);
        Error::new(refusal.kind(), format!("the store needs the command {command}: {}", refusal.detail()))
    }
}

/// The first Redis that has all of [`COMMANDS`].
const OLDEST: (u32, u32) = (6, 2);

/// Of a version that is none, nobody can tell.
fn is_older(version: &str, than: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    matches!((parts.next(), parts.next()), (Some(Some(major)), Some(Some(minor))) if (major, minor) < than)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flavour {
    #[default]
    Redis,
    Valkey,
}

/// What a restart leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// The server does not say.
    #[default]
    Unknown,
    /// Nothing.
    None,
    /// What stood there at the last snapshot, minutes ago.
    Snapshots,
    /// All but the last second or so, or what came while a snapshot or a new file was written.
    AppendOnly,
    /// All that was acknowledged.
    AppendOnlyAlways,
}

/// Everything that is asked in one round trip.
pub(crate) fn questions(wait: Option<WaitReplicas>) -> Pipeline {
    let mut pipeline = Pipeline::new();
    // As the connection speaks by now: what it answers no ACL can forbid.
    pipeline.cmd("HELLO").arg(3);
    pipeline.cmd("ROLE");
    pipeline.cmd("INFO");
    for setting in SETTINGS {
        pipeline.cmd("CONFIG").arg("GET").arg(setting);
    }
    for script in Script::ALL {
        pipeline.add_command(load(script));
    }
    // A server repeats the arguments of a command that it does not know, and the client crate takes a refusal that is not UTF-8 for the end of the
    // connection. So whether they are known is asked here, with arguments that are.
    for command in COMMANDS.into_iter().chain(LOOKS) {
        pipeline.cmd(command);
    }
    pipeline.cmd("EVALSHA").arg(Script::Head.sha()).arg(1).arg(PROBE_KEY);
    if wait.is_some() {
        pipeline.cmd("WAIT").arg(0).arg(1);
    }
    pipeline
}

/// The key that the handshake asks after. Nothing is ever stored there.
const PROBE_KEY: &str = "L!probe";
/// What ops and scripts call, but for what only looks. Sent with too few arguments, to be refused for that.
#[rustfmt::skip]
pub(crate) const COMMANDS: [&str; 42] = [
    "GET", "SET", "GETRANGE", "SETRANGE", "STRLEN", "APPEND", "EXISTS", "DEL", "UNLINK", "PEXPIRE", "PERSIST", "PTTL",
    "BITFIELD",
    "HMGET", "HSET", "HSETNX", "HDEL", "HINCRBY", "HGETALL", "HLEN", "HSCAN", "HEXISTS",
    "SADD", "SREM", "SMISMEMBER", "SISMEMBER", "SMEMBERS", "SCARD", "SSCAN",
    "ZADD", "ZINCRBY", "ZREM", "ZREMRANGEBYRANK", "ZRANGE", "ZMSCORE", "ZSCORE", "ZRANK", "ZREVRANK", "ZCARD",
    "XADD", "XRANGE", "XLEN",
];

/// What only looks: a server without it is a store all the same.
const LOOKS: [&str; 4] = ["OBJECT", "MEMORY", "SCAN", "TYPE"];

/// Which of [`LOOKS`] a server does not know, a bit each. It is not sent those: they name keys, which need not be UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unknown(u8);

impl Unknown {
    fn bit(command: &str) -> u8 {
        LOOKS.iter().position(|look| *look == command).map_or(0, |at| 1 << at)
    }

    /// What either does not know.
    pub(crate) fn or(self, other: Unknown) -> Unknown {
        Unknown(self.0 | other.0)
    }

    /// # Errors
    /// [`ErrorKind::Config`] for a command that the server does not know.
    pub(crate) fn refuse(self, command: &str) -> Result<()> {
        if self.0 & Unknown::bit(command) == 0 {
            return Ok(());
        }
        let detail = format!(
            "the server does not know the command {command}: it was renamed or taken away (rename-command): give it back"
        );
        Err(Error::new(ErrorKind::Config, detail))
    }
}

/// The command that teaches a server a script.
pub(crate) fn load(script: Script) -> Cmd {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(script.source());
    cmd
}

/// What the answers to [`questions`] say.
///
/// # Errors
/// [`ErrorKind::Config`] for a server that cannot serve as a store: a replica, a sentinel, a node of a cluster, one that forbids scripts.
pub(crate) fn understood(answers: Vec<Value>, role: Role, wait: Option<WaitReplicas>) -> Result<ServerInfo> {
    let mut answers = answers.into_iter();
    let mut info = ServerInfo { wait_replicas: wait.map_or(0, |wait| wait.replicas), ..ServerInfo::default() };
    let mut is_aof = None;
    let (hello, of) = (answers.next(), answers.next());
    match answers.next() {
        Some(Value::ServerError(error)) if is_forbidden(&error) => {
            info.untold = Some(words("INFO", &error));
            take_hello(&mut info, hello, of).fits(role)?;
        }
        Some(Value::ServerError(error)) => return Err(refused(&error)),
        Some(value) => {
            let (stands, aof) = take_info(&mut info, &text(&value));
            stands.fits(role)?;
            is_aof = aof;
        }
        None => {}
    }
    let mut settings = Vec::new();
    for _ in SETTINGS {
        match answers.next() {
            Some(Value::ServerError(error)) => {
                info.untold.get_or_insert_with(|| words("CONFIG GET", &error));
            }
            Some(value) => pairs(value, &mut settings),
            None => {}
        }
    }
    let is_fatal = |command: &str, error: &ServerError| {
        let words = error.details().unwrap_or_default();
        let is_key = error.code() == "NOPERM" && !words.contains("command");
        match command {
            "SCRIPT LOAD" => true,
            // A replica of a cluster is no place to wait, and serves no key.
            "WAIT" => !words.contains("replica"),
            // Keys may be granted by pattern; in a cluster another node has the key.
            "EVALSHA" => !is_key && !matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"),
            _ => words.contains("unknown command"),
        }
    };
    let commands = COMMANDS.into_iter().chain(LOOKS).chain(["EVALSHA", "WAIT"]);
    for (command, answer) in std::iter::repeat_n("SCRIPT LOAD", Script::ALL.len()).chain(commands).zip(answers) {
        match answer {
            Value::ServerError(error) if is_fatal(command, &error) => match Unknown::bit(command) {
                0 => return Err(info.lacks(command, &error)),
                bit => info.unknown.0 |= bit,
            },
            _ => {}
        }
    }
    take_settings(&mut info, &settings, is_aof, role);
    Ok(info)
}

fn is_forbidden(error: &ServerError) -> bool {
    error.code() == "NOPERM" || error.details().is_some_and(|words| words.contains("unknown command"))
}

fn words(command: &str, error: &ServerError) -> String {
    format!("{command} is refused: {} {}", error.code(), error.details().unwrap_or_default())
}

/// What a server is among others.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stands {
    is_sentinel: bool,
    /// Whether it is a node of a cluster; `None` where it does not say.
    is_member: Option<bool>,
    /// The role of a replica, in the server's word.
    replica: Option<String>,
    /// Its primary, where it is told.
    primary: Option<String>,
}

impl Stands {
    /// # Errors
    /// [`ErrorKind::Config`] where it is not what it was opened as.
    fn fits(&self, role: Role) -> Result<()> {
        let wrong = |detail: &str| Err(Error::new(ErrorKind::Config, detail));
        match (role, self.is_member, &self.replica) {
            _ if self.is_sentinel => wrong("this is a sentinel, which holds no data; name the primary that it watches"),
            (Role::Member, Some(false), _) => {
                wrong("this server is no node of a cluster (cluster-enabled no); open it as redis://host:port")
            }
            (Role::Single, Some(true), _) => wrong("this is a node of a cluster; open it as redis-cluster://host:port"),
            (Role::Single, _, Some(word)) => {
                let unnamed = "(INFO and ROLE, which name it, are forbidden to this user)";
                let primary = self.primary.as_deref().unwrap_or(unnamed);
                let detail = format!(
                    "this server is a replica (role {word}), which refuses writes; connect to its primary {primary}"
                );
                wrong(&detail)
            }
            _ => Ok(()),
        }
    }
}

/// Takes in `INFO`; says what the server is, and whether there is an append-only file.
fn take_info(info: &mut ServerInfo, text: &str) -> (Stands, Option<bool>) {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    info.version = field("redis_version").unwrap_or_default().to_owned();
    if let Some(version) = field("valkey_version") {
        info.flavour = Flavour::Valkey;
        info.version = version.to_owned();
    }
    info.replicas = number("connected_slaves").and_then(|count| u32::try_from(count).ok());
    info.is_alone = info.replicas == Some(0) && number("repl_backlog_active") == Some(0);
    info.policy = match (number("maxmemory"), field("maxmemory_policy")) {
        (Some(0), _) => Some("noeviction".to_owned()),
        (_, policy) => policy.map(str::to_owned),
    };
    let replica = field("role").filter(|word| matches!(*word, "slave" | "replica")).map(str::to_owned);
    let stands = Stands {
        is_sentinel: field("redis_mode") == Some("sentinel"),
        is_member: Some(field("cluster_enabled") == Some("1")),
        primary: replica
            .as_ref()
            .map(|_| format!("{}:{}", field("master_host").unwrap_or("?"), field("master_port").unwrap_or("?"))),
        replica,
    };
    (stands, field("aof_enabled").map(|enabled| enabled == "1"))
}

/// Takes in `HELLO`, and `ROLE` for the primary: where `INFO` is forbidden.
fn take_hello(info: &mut ServerInfo, hello: Option<Value>, of: Option<Value>) -> Stands {
    let mut told = Vec::new();
    hello.into_iter().for_each(|hello| pairs(hello, &mut told));
    let field = |name: &str| told.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    info.version = field("version").unwrap_or_default().to_owned();
    if field("server") == Some("valkey") {
        info.flavour = Flavour::Valkey;
    }
    let primary = match of {
        Some(Value::Array(parts)) => match &parts[..] {
            [role, host, Value::Int(port), ..] if text(role) == "slave" => Some(format!("{}:{port}", text(host))),
            _ => None,
        },
        _ => None,
    };
    Stands {
        is_sentinel: field("mode") == Some("sentinel"),
        is_member: field("mode").map(|mode| mode == "cluster"),
        replica: field("role").filter(|word| matches!(*word, "slave" | "replica")).map(str::to_owned),
        primary,
    }
}

fn take_settings(info: &mut ServerInfo, settings: &[(String, String)], is_aof: Option<bool>, role: Role) {
    let field = |name: &str| settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
    let is_aof = field("appendonly").map(|value| value == "yes").or(is_aof);
    let is_always = is_aof == Some(true) && field("appendfsync") == Some("always");
    info.is_unsynced_at_times = is_always && field("no-appendfsync-on-rewrite") != Some("no");
    info.is_writable_as_replica = role == Role::Single && field("replica-read-only") == Some("no");
    info.persistence = match (is_aof, field("appendfsync"), field("save")) {
        _ if is_always && !info.is_unsynced_at_times => Persistence::AppendOnlyAlways,
        (Some(true), _, _) => Persistence::AppendOnly,
        (Some(false), _, Some("")) => Persistence::None,
        (Some(false), _, Some(_)) => Persistence::Snapshots,
        _ => Persistence::Unknown,
    };
    info.bulk_bytes_max = number("proto-max-bulk-len");
    info.encodings = encodings(field);
}

/// The limits of packed encodings, of settings by their names.
pub(crate) fn encodings<'a>(setting: impl Fn(&str) -> Option<&'a str>) -> Option<Encodings> {
    setting("hash-max-listpack-entries")?;
    let limit = |name: &str| setting(name).and_then(|value| value.parse().ok()).unwrap_or_default();
    Some(Encodings {
        hash_entries_max: limit("hash-max-listpack-entries"),
        hash_value_bytes_max: limit("hash-max-listpack-value"),
        set_integers_max: limit("set-max-intset-entries"),
        set_entries_max: limit("set-max-listpack-entries"),
        set_value_bytes_max: limit("set-max-listpack-value"),
        sorted_set_entries_max: limit("zset-max-listpack-entries"),
        sorted_set_value_bytes_max: limit("zset-max-listpack-value"),
        stream_node_entries_max: limit("stream-node-max-entries"),
        stream_node_bytes_max: limit("stream-node-max-bytes"),
    })
}

/// The text of a reply that is one.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        _ => String::new(),
    }
}

/// Names and values, however the protocol frames them.
fn pairs(value: Value, settings: &mut Vec<(String, String)>) {
    match value {
        Value::Map(pairs) => settings.extend(pairs.iter().map(|(name, value)| (text(name), text(value)))),
        Value::Array(parts) => {
            settings.extend(parts.chunks_exact(2).map(|pair| (text(&pair[0]), text(&pair[1]))));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn found(info: &str, settings: &[(&str, &str)]) -> Result<ServerInfo> {
        let map = settings.iter().map(|(name, value)| (bulk(name), bulk(value))).collect();
        let mut answers = vec![Value::Nil, Value::Nil, bulk(info), Value::Map(map)];
        answers.resize(SETTINGS.len() + 3, Value::Map(Vec::new()));
        understood(answers, Role::Single, None)
    }

    /// By `HELLO` and `ROLE` alone.
    fn untold(hello: &[(&str, &str)], of: Value, role: Role) -> Result<ServerInfo> {
        let hello = hello.iter().map(|(name, value)| (bulk(name), bulk(value))).collect();
        let error = redis::parse_redis_value(b"-NOPERM User joe has no permissions to run the 'info' command\r\n");
        understood(vec![Value::Map(hello), of, error.unwrap()], role, None)
    }

    #[test]
    fn a_server_is_understood() {
        let info =
            "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n";
        let settings = [("save", "3600 1"), ("hash-max-listpack-entries", "128"), ("proto-max-bulk-len", "1000")];
        let found = found(info, &settings).unwrap();
        assert_eq!((found.flavour, found.version.as_str()), (Flavour::Redis, "7.0.15"));
        assert_eq!(found.policy.as_deref(), Some("allkeys-lru"));
        assert_eq!(found.persistence, Persistence::Snapshots);
        assert_eq!(found.bulk_bytes_max, Some(1_000));
        assert_eq!(found.encodings.unwrap().hash_entries_max, 128);
        assert_eq!(found.untold, None);
    }

    #[test]
    fn persistence_is_told_apart() {
        for (settings, persistence) in [
            (
                &[("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")][..],
                Persistence::AppendOnlyAlways,
            ),
            (
                &[("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "yes")],
                Persistence::AppendOnly,
            ),
            (&[("appendonly", "yes"), ("appendfsync", "always")], Persistence::AppendOnly),
            (&[("appendonly", "yes"), ("appendfsync", "everysec")], Persistence::AppendOnly),
            (&[("appendonly", "no"), ("save", "")], Persistence::None),
            (&[("appendonly", "no"), ("save", "60 1")], Persistence::Snapshots),
            (&[], Persistence::Unknown),
        ] {
            let found = found("redis_version:7.0.15\r\n", settings).unwrap();
            assert_eq!(found.persistence, persistence, "{settings:?}");
            let is_always = settings.contains(&("appendfsync", "always"));
            assert_eq!(found.is_unsynced_at_times, is_always && persistence == Persistence::AppendOnly);
        }
        let forbidden = found("valkey_version:8.1.3\r\nredis_version:7.2.4\r\naof_enabled:1\r\n", &[]).unwrap();
        assert_eq!((forbidden.flavour, forbidden.version.as_str()), (Flavour::Valkey, "8.1.3"));
        assert_eq!(forbidden.persistence, Persistence::AppendOnly);
    }

    #[test]
    fn a_server_is_alone_only_where_it_tells_that_no_replica_was_there_lately() {
        for (info, replicas, is_alone) in [
            ("connected_slaves:0\r\nrepl_backlog_active:0\r\n", Some(0), true),
            ("connected_slaves:0\r\nrepl_backlog_active:1\r\n", Some(0), false),
            ("connected_slaves:1\r\nrepl_backlog_active:1\r\n", Some(1), false),
            ("connected_slaves:0\r\n", Some(0), false),
            ("repl_backlog_active:0\r\n", None, false),
        ] {
            let found = found(info, &[]).unwrap();
            assert_eq!((found.replicas, found.is_alone), (replicas, is_alone), "{info}");
        }
        let found = untold(&[("mode", "standalone"), ("role", "master")], Value::Nil, Role::Single).unwrap();
        assert_eq!((found.replicas, found.is_alone), (None, false));
    }

    #[test]
    fn a_node_of_a_cluster_may_be_a_replica_and_must_be_one_of_a_cluster() {
        let stands = |info: &str| take_info(&mut ServerInfo::default(), info).0.fits(Role::Member);
        assert!(stands("cluster_enabled:1\r\nrole:slave\r\n").is_ok());
        let error = stands("role:master\r\ncluster_enabled:0\r\n").unwrap_err();
        assert!(error.to_string().contains("redis://host:port"), "{error}");
    }

    #[test]
    fn a_server_that_is_too_old_for_a_command_is_told_so_and_of_another_it_was_taken_away() {
        let answers = |info: &str, command: &str| {
            let probes = Script::ALL.len() + COMMANDS.iter().position(|known| *known == command).unwrap();
            let mut answers = vec![Value::Nil, Value::Nil, bulk(info)];
            answers.resize(3 + SETTINGS.len(), Value::Map(Vec::new()));
            answers.resize(3 + SETTINGS.len() + probes, Value::Okay);
            let error = format!("-ERR unknown command `{command}`, with args beginning with: \r\n");
            answers.push(redis::parse_redis_value(error.as_bytes()).unwrap());
            answers
        };
        for (version, is_old) in
            [("6.0.16", true), ("5.0.7", true), ("6.2.0", false), ("7.0.15", false), ("", false), ("unstable", false)]
        {
            let info = format!("redis_version:{version}\r\nrole:master\r\n");
            let said = understood(answers(&info, "SMISMEMBER"), Role::Single, None).unwrap_err().to_string();
            assert_eq!(said.contains("needs Redis 6.2 or later, or Valkey"), is_old, "{said}");
            assert_eq!(said.contains("rename-command"), !is_old, "{said}");
            assert!(said.contains("the command SMISMEMBER") && (!is_old || said.contains(version)), "{said}");
        }
        let valkey = "redis_version:6.0.16\r\nvalkey_version:8.1.3\r\n";
        let said = understood(answers(valkey, "ZMSCORE"), Role::Single, None).unwrap_err().to_string();
        assert!(said.contains("rename-command"), "{said}");
    }

    #[test]
    fn what_is_no_store_is_refused_where_info_is_forbidden() {
        let primary = || Value::Array(vec![bulk("slave"), bulk("10.0.0.1"), Value::Int(6_380), bulk("connected")]);
        let alone = ("mode", "standalone");
        for (hello, of, role, said) in [
            (&[alone, ("role", "replica")][..], primary(), Role::Single, "its primary 10.0.0.1:6380"),
            (&[alone, ("role", "replica")], Value::Nil, Role::Single, "INFO and ROLE, which name it, are forbidden"),
            (&[("mode", "sentinel")], Value::Nil, Role::Single, "sentinel"),
            (&[("mode", "sentinel")], Value::Nil, Role::Member, "sentinel"),
            (&[("mode", "cluster"), ("role", "master")], Value::Nil, Role::Single, "redis-cluster://"),
            (&[alone, ("role", "master")], Value::Nil, Role::Member, "redis://host:port"),
        ] {
            let error = untold(hello, of, role).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(said), "{said:?} is not in {error}");
        }
        let hello = [("server", "valkey"), ("version", "8.1.3"), ("mode", "cluster"), ("role", "replica")];
        let found = untold(&hello, primary(), Role::Member).unwrap();
        assert_eq!((found.flavour, found.version.as_str()), (Flavour::Valkey, "8.1.3"));
        assert!(found.untold.unwrap().contains("INFO is refused"));
    }

    #[test]
    fn what_is_no_store_is_refused() {
        for (info, said) in [
            ("role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6380\r\n", "its primary 10.0.0.1:6380"),
            ("redis_mode:sentinel\r\n", "sentinel"),
            ("cluster_enabled:1\r\n", "redis-cluster://"),
        ] {
            let error = found(info, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
