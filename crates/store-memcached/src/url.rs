//! URLs, and what is wrong with them.

use std::path::PathBuf;
use std::time::Duration;

use larder_core::text::{split_scheme, url_options};
use larder_core::{Error, ErrorKind, Result};
use larder_net::url::{Wrong, decoded, host, masked, number, one_of, split_options, suggestion, user_information};
use larder_net::{Address, Tls};
use larder_proto::Dialect;

use crate::config::{Config, Connections, DialectMode, FleetMode, Hash, Server};

const OPTIONS: [&str; 14] = [
    "connections",
    "timeout_ms",
    "connect_timeout_ms",
    "hash",
    "weights",
    "fleet",
    "dialect",
    "queue_ops_max",
    "queue_bytes_max",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_name",
    "tls_insecure",
];
const SCHEMES: [&str; 3] = ["memcached", "memcached+unix", "memcached+tls"];

pub(crate) fn parse(url: &str) -> Result<Config> {
    read(url).map_err(|detail| Error::new(ErrorKind::Config, format!("{detail}, in the URL {}", masked(url))))
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
    let mut config = if scheme == "memcached+unix" { unix(target)? } else { hosts(target)? };
    if scheme == "memcached+tls" {
        config.tls = Some(Tls::default());
    }
    for (name, value) in url_options(options)? {
        option(&mut config, name, &decoded(value)?)?;
    }
    Ok(config)
}

fn unix(target: &str) -> Result<Config, Wrong> {
    let (auth, path) = user_information(target)?;
    if !path.starts_with('/') {
        return Err(format!("a unix socket is an absolute path (memcached+unix:///run/memcached.sock), not {path:?}"));
    }
    let mut config = Config::new(vec![Server::unix(PathBuf::from(decoded(path)?))]);
    config.auth = auth;
    Ok(config)
}

fn hosts(target: &str) -> Result<Config, Wrong> {
    let (auth, list) = user_information(target)?;
    let list = list.strip_suffix('/').unwrap_or(list);
    let mut servers: Vec<Server> = Vec::new();
    for text in list.split(',') {
        let server = match host(text, Config::PORT)? {
            Address::Tcp { host, port } => Server::tcp(&host, port),
            Address::Unix(path) => Server::unix(path),
        };
        if servers.iter().any(|other| other.name == server.name) {
            return Err(format!("the server {} is listed twice", server.name));
        }
        servers.push(server);
    }
    if servers.len() > Config::SERVERS_MAX {
        return Err(format!("there are {} servers; the limit is {}", servers.len(), Config::SERVERS_MAX));
    }
    let mut config = Config::new(servers);
    config.auth = auth;
    Ok(config)
}

fn option(config: &mut Config, name: &str, value: &str) -> Result<(), Wrong> {
    match name {
        "connections" if value == "auto" => config.connections = Connections::Auto,
        "connections" => {
            let count = number(name, value, 1, Config::CONNECTIONS_MAX as u64);
            let count = count.map_err(|wrong| wrong.replace("takes a number", "takes auto or a number"))?;
            config.connections = Connections::Exactly(count as usize);
        }
        "timeout_ms" => config.timeout = Duration::from_millis(number(name, value, 1, 600_000)?),
        "connect_timeout_ms" => config.connect_timeout = Duration::from_millis(number(name, value, 1, 600_000)?),
        "queue_ops_max" => config.queue_ops_max = number(name, value, 1, 1_000_000)? as usize,
        "queue_bytes_max" => config.queue_bytes_max = number(name, value, 65_536, 1 << 32)? as usize,
        "hash" => config.hash = one_of(name, value, &[("rendezvous", Hash::Rendezvous), ("ketama", Hash::Ketama)])?,
        "fleet" => {
            let modes = [("check", FleetMode::Check), ("ignore", FleetMode::Ignore), ("claim", FleetMode::Claim)];
            config.fleet = one_of(name, value, &modes)?;
        }
        "dialect" => {
            let dialects = [
                ("auto", DialectMode::Auto),
                ("classic", DialectMode::Forced(Dialect::Classic)),
                ("classic-bare", DialectMode::Bare),
                ("meta13", DialectMode::Forced(Dialect::Meta13)),
                ("meta", DialectMode::Forced(Dialect::Meta)),
            ];
            config.dialect = one_of(name, value, &dialects)?;
        }
        "weights" => weights(config, value)?,
        "tls_ca" => tls(config, name)?.ca = Some(PathBuf::from(value)),
        "tls_cert" => tls(config, name)?.cert = Some(PathBuf::from(value)),
        "tls_key" => tls(config, name)?.key = Some(PathBuf::from(value)),
        "tls_name" => tls(config, name)?.name = Some(value.to_owned()),
        "tls_insecure" => tls(config, name)?.insecure = one_of(name, value, &[("yes", true), ("no", false)])?,
        _ => return Err(format!("the option {name:?} is unknown{}", suggestion(name, &OPTIONS))),
    }
    Ok(())
}

fn tls<'a>(config: &'a mut Config, name: &str) -> Result<&'a mut Tls, Wrong> {
    config.tls.as_mut().ok_or_else(|| format!("the option {name} goes with memcached+tls://"))
}

fn weights(config: &mut Config, value: &str) -> Result<(), Wrong> {
    let weights: Vec<&str> = value.split(',').collect();
    if weights.len() != config.servers.len() {
        return Err(format!("there are {} servers and {} weights", config.servers.len(), weights.len()));
    }
    for (server, weight) in config.servers.iter_mut().zip(weights) {
        server.weight = number("weights", weight, 1, u64::from(Config::WEIGHT_MAX))? as u32;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_net::Auth;

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
        let config = parse("memcached://joe:p%40ss@a,b:1,[::1]:2,[fe80::1]?weights=1,2,3,4&timeout_ms=7").unwrap();
        let names: Vec<_> = config.servers.iter().map(|server| (server.name.as_str(), server.weight)).collect();
        assert_eq!(names, [("a:11211", 1), ("b:1", 2), ("[::1]:2", 3), ("[fe80::1]:11211", 4)]);
        assert_eq!(config.auth, Some(Auth { user: "joe".into(), password: "p@ss".into() }));
        assert_eq!(config.timeout, Duration::from_millis(7));
        let config = parse("memcached+unix:///run/m.sock?connections=4").unwrap();
        assert_eq!(config.servers[0].name, "/run/m.sock");
        assert_eq!(config.connections, Connections::Exactly(4));
        assert_eq!(parse("memcached://h?connections=auto").unwrap().connections, Connections::Auto);
        let config = parse("memcached+tls://h/?tls_ca=/a%20b.pem&tls_insecure=yes").unwrap();
        assert_eq!(config.tls, Some(Tls { ca: Some("/a b.pem".into()), insecure: true, ..Tls::default() }));
    }

    #[test]
    fn a_typo_is_named_with_what_was_meant() {
        assert!(wrong("memcache://h").contains("did you mean memcached?"));
        assert!(wrong("memcached://h?timeout_ms=1&timeout_ms=2").contains("the option timeout_ms is given twice"));
        assert!(wrong("memcached://h?conections=2").contains("did you mean connections?"));
        assert!(wrong("memcached://h?hash=ketma").contains("did you mean ketama?"));
        assert!(!wrong("memcached://h?zzz=2").contains("did you mean"));
        assert!(wrong("memcached:/h").contains("scheme://"));
    }

    #[test]
    fn limits_are_named_with_the_value() {
        assert!(wrong("memcached://h?connections=5").contains("takes auto or a number of 1 to 4, not \"5\""));
        assert!(wrong("memcached://h?timeout_ms=0").contains("1 to 600000"));
        assert!(wrong("memcached://h:70000").contains("\"70000\""));
        assert!(wrong("memcached://a,b?weights=1").contains("2 servers and 1 weights"));
        assert!(wrong("memcached://a,b,a").contains("listed twice"));
        assert!(wrong("memcached://h?tls_ca=x").contains("memcached+tls"));
        assert!(wrong("memcached://::1").contains("brackets"));
        assert!(wrong("memcached://a b").contains("no host name"));
        assert!(wrong("memcached://").contains("no host name"));
        assert!(wrong("memcached+unix://sock").contains("absolute path"));
        assert!(wrong("memcached://h#x").contains("fragment"));
    }

    #[test]
    fn an_option_never_changes_what_is_dialled() {
        let config = parse("memcached+tls://good?tls_ca=/etc/a@evil").unwrap();
        assert_eq!(config.servers[0].name, "good:11211");
        assert!(wrong("memcached://good?oops=joe:pw@evil").contains("%40"));
    }

    #[test]
    fn secrets_are_masked() {
        let text = wrong("memcached://joe:secret@h?oops=1");
        assert!(text.contains("joe:***@h") && !text.contains("secret"));
        let text = wrong("memcached://joe:sec?ret@h?oops=1");
        assert!(text.contains("%3F") && !text.contains("sec") && !text.contains("ret@"), "{text}");
        assert!(!format!("{:?}", parse("memcached://joe:secret@h").unwrap()).contains("secret"));
    }
}
