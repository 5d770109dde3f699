//! URLs, and what is wrong with them.

use std::path::PathBuf;
use std::time::Duration;

use larder_core::text::{split_scheme, url_options};
use larder_core::{Error, ErrorKind, Result};
use larder_net::url::{Wrong, decoded, host, masked, number, one_of, split_options, suggestion};
use larder_net::{Address, Auth, Tls};

use crate::cluster::ClusterConfig;
use crate::config::{Config, WaitReplicas};

const OPTIONS: [&str; 11] = [
    "database",
    "timeout_ms",
    "connect_timeout_ms",
    "value_bytes_max",
    "wait_replicas",
    "wait_ms",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_name",
    "tls_insecure",
];
const CLUSTER_SCHEMES: [&str; 2] = ["redis-cluster", "rediss-cluster"];
const SCHEMES: [&str; 3] = ["redis", "rediss", "redis+unix"];
/// Servers have 16 databases unless they are told otherwise.
const DATABASE_MAX: u64 = 1_000_000;

pub(crate) fn parse(url: &str) -> Result<Config> {
    read(url).map_err(|detail| Error::new(ErrorKind::Config, format!("{detail}, in the URL {}", masked(url))))
}

pub(crate) fn parse_cluster(url: &str) -> Result<ClusterConfig> {
    read_cluster(url).map_err(|detail| Error::new(ErrorKind::Config, format!("{detail}, in the URL {}", masked(url))))
}

fn read_cluster(url: &str) -> Result<ClusterConfig, Wrong> {
    let Some((scheme, rest)) = split_scheme(url) else {
        return Err(format!("a store is given as scheme://…, with one of the schemes {}", CLUSTER_SCHEMES.join(", ")));
    };
    if !CLUSTER_SCHEMES.contains(&scheme) {
        return Err(format!("the scheme {scheme:?} is unknown{}", suggestion(scheme, &CLUSTER_SCHEMES)));
    }
    if rest.contains('#') {
        return Err("a fragment (#…) has no meaning here".to_owned());
    }
    let (target, options) = split_options(rest)?;
    let (auth, places) = user_information(target)?;
    let places = places.strip_suffix('/').unwrap_or(places);
    if places.contains('/') {
        return Err("a cluster has one database: nothing stands behind the nodes but options".to_owned());
    }
    let mut seeds = Vec::new();
    for text in places.split(',') {
        match host(text, Config::PORT)? {
            Address::Tcp { host, port } => seeds.push((host, port)),
            Address::Unix(path) => return Err(format!("a node has a host and a port, not {}", path.display())),
        }
    }
    if seeds.len() > ClusterConfig::SEEDS_MAX {
        return Err(format!("{} nodes are named; the limit is {}", seeds.len(), ClusterConfig::SEEDS_MAX));
    }
    let mut node = Config::tcp(&seeds[0].0, seeds[0].1);
    node.auth = auth;
    if scheme == "rediss-cluster" {
        node.tls = Some(Tls::default());
    }
    for (name, value) in url_options(options)? {
        if name == "database" {
            return Err("the option database has no meaning here: a cluster has one database".to_owned());
        }
        option(&mut node, name, &decoded(value)?)?;
    }
    settle_wait(&mut node)?;
    Ok(ClusterConfig { seeds, node })
}

fn read(url: &str) -> Result<Config, Wrong> {
    let Some((scheme, rest)) = split_scheme(url) else {
        return Err(format!("a store is given as scheme://…, with one of the schemes {}", SCHEMES.join(", ")));
    };
    if !SCHEMES.contains(&scheme) {
        return Err(format!("the scheme {scheme:?} is unknown{}", suggestion(scheme, &SCHEMES)));
    }
    if rest.contains('#') {
        return Err("a fragment (#…) has no meaning here".to_owned());
    }
    let (target, options) = split_options(rest)?;
    let (auth, place) = user_information(target)?;
    let options = url_options(options)?;
    let mut config = match scheme {
        "redis+unix" => unix(place)?,
        _ => tcp(place, options.iter().any(|(name, _)| *name == "database"))?,
    };
    config.auth = auth;
    if scheme == "rediss" {
        config.tls = Some(Tls::default());
    }
    for (name, value) in options {
        option(&mut config, name, &decoded(value)?)?;
    }
    settle_wait(&mut config)?;
    Ok(config)
}

/// `user:password@` or `:password@`. Any bytes may be percent-encoded: Redis takes them as they are.
fn user_information(target: &str) -> Result<(Option<Auth>, &str), Wrong> {
    let Some((user, rest)) = target.rsplit_once('@') else { return Ok((None, target)) };
    let Some((user, password)) = user.split_once(':') else {
        return Err("before the @ stands user:password, or :password".to_owned());
    };
    if password.is_empty() {
        return Err("the password before the @ is empty".to_owned());
    }
    Ok((Some(Auth { user: decoded(user)?, password: decoded(password)? }), rest))
}

fn unix(path: &str) -> Result<Config, Wrong> {
    if !path.starts_with('/') {
        return Err(format!("a unix socket is an absolute path (redis+unix:///run/redis.sock), not {path:?}"));
    }
    Ok(Config::unix(PathBuf::from(decoded(path)?)))
}

/// A server, and a database behind its host, unless that `has_database` as an option.
fn tcp(place: &str, has_database: bool) -> Result<Config, Wrong> {
    let (text, database) = place.split_once('/').unwrap_or((place, ""));
    if text.contains(',') {
        return Err(format!(
            "one server is one host, not {text:?}; the nodes of a cluster are given as redis-cluster://"
        ));
    }
    let mut config = match host(text, Config::PORT)? {
        Address::Tcp { host, port } => Config::tcp(&host, port),
        Address::Unix(path) => Config::unix(path),
    };
    if !database.is_empty() {
        if has_database {
            return Err(format!("the database is given twice: /{database}, and as an option"));
        }
        option(&mut config, "database", database)?;
    }
    Ok(config)
}

fn option(config: &mut Config, name: &str, value: &str) -> Result<(), Wrong> {
    let milliseconds = || number(name, value, 1, 600_000).map(Duration::from_millis);
    match name {
        // Fits: the limits are below.
        "database" => config.database = number(name, value, 0, DATABASE_MAX)? as u32,
        "timeout_ms" => config.timeout = milliseconds()?,
        "connect_timeout_ms" => config.connect_timeout = milliseconds()?,
        "value_bytes_max" => {
            config.value_bytes_max = number(name, value, 1_024, Config::VALUE_BYTES_MAX as u64)? as usize;
        }
        "wait_replicas" => {
            // Fits: the limit is below.
            wait(config).replicas = number(name, value, 0, u64::from(WaitReplicas::MAX))? as u32;
        }
        "wait_ms" => wait(config).timeout = milliseconds()?,
        "tls_ca" => tls(config, name)?.ca = Some(PathBuf::from(value)),
        "tls_cert" => tls(config, name)?.cert = Some(PathBuf::from(value)),
        "tls_key" => tls(config, name)?.key = Some(PathBuf::from(value)),
        "tls_name" => tls(config, name)?.name = Some(value.to_owned()),
        "tls_insecure" => tls(config, name)?.insecure = one_of(name, value, &[("yes", true), ("no", false)])?,
        _ => return Err(format!("the option {name:?} is unknown{}", suggestion(name, &OPTIONS))),
    }
    Ok(())
}

/// What has been said of replicas so far: no replicas, and no time.
fn wait(config: &mut Config) -> &mut WaitReplicas {
    config.wait.get_or_insert(WaitReplicas { replicas: 0, timeout: Duration::ZERO })
}

/// Takes what was said of replicas together, when everything was read.
fn settle_wait(config: &mut Config) -> Result<(), Wrong> {
    let Some(said) = config.wait.take() else { return Ok(()) };
    let timeout = config.timeout;
    match said {
        WaitReplicas { replicas: 0, timeout: Duration::ZERO } => {}
        WaitReplicas { replicas: 0, .. } => return Err("the option wait_ms goes with wait_replicas".to_owned()),
        WaitReplicas { replicas, timeout: Duration::ZERO } => {
            config.wait = Some(WaitReplicas { replicas, timeout: (timeout / 2).max(Duration::from_millis(1)) });
        }
        said if said.timeout < timeout => config.wait = Some(said),
        said => {
            return Err(format!(
                "the option wait_ms is {}; it must be less than timeout_ms, which is {}",
                said.timeout.as_millis(),
                timeout.as_millis()
            ));
        }
    }
    Ok(())
}

fn tls<'a>(config: &'a mut Config, name: &str) -> Result<&'a mut Tls, Wrong> {
    config.tls.as_mut().ok_or_else(|| format!("the option {name} goes with rediss://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(url: &str) -> String {
        match parse(url) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Config);
                error.to_string()
            }
            Ok(config) => panic!("{url} was taken for {config:?}"),
        }
    }

    #[test]
    fn the_parts_are_found() {
        let config = parse("redis://joe:p%40ss@[::1]:1/3?timeout_ms=7&value_bytes_max=2048").unwrap();
        assert_eq!(config.address.to_string(), "[::1]:1");
        assert_eq!(config.auth, Some(Auth { user: "joe".into(), password: "p@ss".into() }));
        assert_eq!((config.database, config.timeout, config.value_bytes_max), (3, Duration::from_millis(7), 2_048));
        let waits = |url: &str| parse(url).unwrap().wait.map(|wait| (wait.replicas, wait.timeout.as_millis()));
        assert_eq!(waits("redis://h?wait_ms=7&wait_replicas=2"), Some((2, 7)));
        assert_eq!(waits("redis://h?wait_replicas=1&timeout_ms=300"), Some((1, 150)));
        assert_eq!(waits("redis://h?wait_replicas=0"), None);
        let config = parse("redis+unix://:pw@/run/r.sock?database=4").unwrap();
        assert_eq!((config.address.to_string().as_str(), config.database), ("/run/r.sock", 4));
        assert_eq!(config.auth, Some(Auth { user: String::new(), password: "pw".into() }));
        let config = parse("rediss://h/?tls_ca=/a%20b.pem&tls_insecure=yes").unwrap();
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b.pem".into()), insecure: true, ..Tls::default() }));
        assert_eq!(config.address.to_string(), "h:6379");
    }

    #[test]
    fn a_cluster_has_seeds_and_one_database() {
        let config = parse_cluster("rediss-cluster://joe:pw@a,[::1]:7001/?tls_insecure=yes&timeout_ms=7").unwrap();
        assert_eq!(config.seeds, [("a".to_owned(), 6_379), ("::1".to_owned(), 7_001)]);
        assert_eq!(config.to_string(), "a:6379,[::1]:7001");
        assert!(config.node.tls.is_some() && config.node.auth.is_some());
        for (url, said) in [
            ("redis-cluter://a", "did you mean redis-cluster?"),
            ("redis-cluster://a/1", "one database"),
            ("redis-cluster://a?database=1", "one database"),
            ("redis-cluster://", "no host name"),
            ("redis-cluster://a,,b", "no host name"),
            ("redis-cluster://a?timout_ms=1", "did you mean timeout_ms?"),
        ] {
            let error = parse_cluster(url).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(!format!("{config:?}").contains("pw@") && !format!("{config:?}").contains("\"pw\""));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, said) in [
            ("redi://h", "did you mean redis?"),
            ("redis://h?timeout_ms=1&timeout_ms=2", "the option timeout_ms is given twice"),
            ("redis://h/3?database=5", "the database is given twice: /3, and as an option"),
            ("redis://h?databse=2", "did you mean database?"),
            ("redis://h/one", "the option database takes a number of 0 to 1000000, not \"one\""),
            ("redis://h:70000", "\"70000\""),
            ("redis://a,b", "redis-cluster://"),
            ("redis://secret@h", "user:password, or :password"),
            ("redis://joe:@h", "password before the @ is empty"),
            ("redis://h?tls_ca=x", "goes with rediss://"),
            ("redis+unix://sock", "absolute path"),
            ("redis://h?value_bytes_max=1", "1024 to"),
            ("redis://h?wait_replicas=65", "the option wait_replicas takes a number of 0 to 64, not \"65\""),
            ("redis://h?wait_ms=5", "goes with wait_replicas"),
            ("redis://h?wait_replicas=1&wait_ms=1000", "less than timeout_ms, which is 1000"),
            ("redis://h#x", "fragment"),
            ("redis://", "no host name"),
        ] {
            let error = wrong(url);
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let said = wrong("redis://joe:hunt?er2@h?oops=1");
        assert!(said.contains("%3F") && !said.contains("hunt") && !said.contains("er2"), "{said}");
        assert!(!wrong("redis://joe:hunter2@h?oops=1").contains("hunter2"));
        assert!(!format!("{:?}", parse("redis://joe:hunter2@h").unwrap()).contains("hunter2"));
    }
}
