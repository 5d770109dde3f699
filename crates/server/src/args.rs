//! The command line: memcached's own options, and ours beside them.
//!
//! It is read as `getopt_long` reads it, so that a line that was written for memcached does here what it does there: letters may stand
//! together (`-vv`, `-m64`), a value may be the next word, `--name=value` is `--name value`, and a long name may be cut short where no other begins so (`--verb`).

use std::ffi::{OsStr, OsString};
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use larder_core::{Error, ErrorKind, Result};

use crate::auth::AuthFile;
use crate::config::{Config, Listen, Runtime};
use crate::extended::{self, TlsWords};

/// The port that clients try first.
const PORT: u16 = 11_211;
const ITEM_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 30;
/// Of what memcached names a listener by.
const TAG_BYTES: std::ops::RangeInclusive<usize> = 1..=8;

/// What a command line asks for.
///
/// ```
/// use larder_server::Args;
/// let args = Args::parse(["-s", "/run/larder.sock", "-L"])?;
/// assert_eq!(args.ignored.len(), 1); // large pages
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Args {
    /// The server, but for listeners that are inherited.
    pub config: Config,
    /// The store to serve, by its URL, if it was named.
    pub store: Option<String>,
    /// Threads, if that was said; the configuration has memcached's 4 otherwise.
    pub threads: Option<usize>,
    /// Whether the store drops items when it is full, if that was said.
    pub evict: Option<bool>,
    /// The user to become where root starts it. Left to whoever starts the server.
    pub user: Option<String>,
    /// True for `-d`: go to the background.
    pub daemon: bool,
    /// Where to write the process id.
    pub pid_file: Option<PathBuf>,
    /// True for `-h`, `-V`.
    pub help: bool,
    /// True for `-V`.
    pub version: bool,
    /// Where memcached would listen, if nothing was named: everywhere, by IPv4 and IPv6.
    pub everywhere: Option<Listen>,
    /// What was passed over because it means nothing here, a line each.
    pub ignored: Vec<String>,
}

/// An option: its letter, its long name, and whether it takes a value.
struct Known(char, &'static str, bool);

/// All that are known. Letters are memcached's; those without one are ours.
const KNOWN: &[Known] = &[
    Known('p', "port", true),
    Known('U', "udp-port", true),
    Known('s', "unix-socket", true),
    Known('a', "unix-mask", true),
    Known('A', "enable-shutdown", false),
    Known('l', "listen", true),
    Known('d', "daemon", false),
    Known('r', "enable-coredumps", false),
    Known('u', "user", true),
    Known('m', "memory-limit", true),
    Known('M', "disable-evictions", false),
    Known('c', "conn-limit", true),
    Known('k', "lock-memory", false),
    Known('v', "verbose", false),
    Known('h', "help", false),
    Known('i', "license", false),
    Known('V', "version", false),
    Known('P', "pidfile", true),
    Known('f', "slab-growth-factor", true),
    Known('n', "slab-min-size", true),
    Known('L', "enable-largepages", false),
    Known('D', "", true),
    Known('t', "threads", true),
    Known('R', "max-reqs-per-event", true),
    Known('C', "disable-cas", false),
    Known('b', "listen-backlog", true),
    Known('B', "protocol", true),
    Known('I', "max-item-size", true),
    Known('S', "enable-sasl", false),
    Known('F', "disable-flush-all", false),
    Known('X', "disable-dumping", false),
    Known('W', "disable-watch", false),
    Known('Y', "auth-file", true),
    Known('e', "memory-file", true),
    Known('Z', "enable-ssl", false),
    Known('o', "extended", true),
    Known('N', "napi-ids", true),
    Known('\0', "store", true),
    Known('\0', "evict", false),
    Known('\0', "metrics", true),
    Known('\0', "tls-cert", true),
    Known('\0', "tls-key", true),
    Known('\0', "runtime", true),
];

/// What is gathered before it becomes listeners.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    port: Option<u16>,
    unix: Option<PathBuf>,
    unix_mode: Option<u32>,
    listen: Vec<String>,
    tls: bool,
    pub(crate) tls_words: TlsWords,
}

impl Args {
    /// Reads the words behind the command's name.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for an option that is not known, a value that it does not take, and what cannot be had here: SASL, the binary
    /// protocol alone, a memory file.
    ///
    /// ```
    /// use larder_server::Args;
    /// let args = Args::parse(["-vvm64", "-t", "2", "--port=0", "-o", "idle_timeout=30,modern"])?;
    /// assert_eq!(args.config.limits.memory_bytes_max, 64 << 20);
    /// assert_eq!((args.config.threads, args.config.limits.idle_timeout_ms), (2, 30_000));
    /// assert!(Args::parse(["--no-such"]).is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn parse<W: Into<OsString>>(words: impl IntoIterator<Item = W>) -> Result<Args> {
        let mut args = Args {
            config: Config::default(),
            store: None,
            threads: None,
            evict: None,
            user: None,
            daemon: false,
            pid_file: None,
            help: false,
            version: false,
            everywhere: None,
            ignored: Vec::new(),
        };
        let mut gathered = Gathered::default();
        let mut words = words.into_iter().map(Into::into);
        while let Some(word) = words.next() {
            let Some(text) = word.to_str() else { return config(format!("not an option: {}", shown(&word))) };
            if let Some(long) = text.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let known = long_named(name)?;
                let value = match (known.2, value) {
                    (false, Some(_)) => return config(format!("--{} takes no value", known.1)),
                    (true, None) => words.next(),
                    (_, value) => value.map(OsString::from),
                };
                args.take(&mut gathered, known, value)?;
            } else if let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                args.take_letters(&mut gathered, letters, &mut words)?;
            } else {
                return config(format!("not an option: {text:?}"));
            }
        }
        args.listeners(gathered)?;
        Ok(args)
    }

    fn take_letters(
        &mut self,
        gathered: &mut Gathered,
        letters: &str,
        words: &mut impl Iterator<Item = OsString>,
    ) -> Result<()> {
        for (at, letter) in letters.char_indices() {
            let Some(known) = KNOWN.iter().find(|known| known.0 == letter && letter != '\0') else {
                return config(format!("no option -{letter}; --help tells which there are"));
            };
            if known.2 {
                let rest = &letters[at + letter.len_utf8()..];
                let value = if rest.is_empty() { words.next() } else { Some(OsString::from(rest)) };
                return self.take(gathered, known, value);
            }
            self.take(gathered, known, None)?;
        }
        Ok(())
    }

    fn take(&mut self, gathered: &mut Gathered, known: &Known, value: Option<OsString>) -> Result<()> {
        let name = if known.1.is_empty() { format!("-{}", known.0) } else { format!("--{}", known.1) };
        if known.2 && value.is_none() {
            return config(format!("{name} takes a value"));
        }
        let path = value.clone().map(PathBuf::from);
        let value = value.as_deref().map(shown).unwrap_or_default();
        let limits = &mut self.config.limits;
        match known.1 {
            // Any that is free, as in memcached.
            "port" if value == "-1" => gathered.port = Some(0),
            "port" => gathered.port = Some(number(&name, &value)?),
            "unix-socket" => gathered.unix = path,
            "unix-mask" => gathered.unix_mode = Some(octal(&name, &value)?),
            "listen" => {
                let places = value.split([',', ';']).filter(|place| !place.is_empty());
                let before = gathered.listen.len();
                gathered.listen.extend(places.map(str::to_owned));
                if gathered.listen.len() == before {
                    return config(format!("{name} takes an address, not {value:?}"));
                }
            }
            "enable-shutdown" => limits.shutdown_enabled = true,
            "daemon" => self.daemon = true,
            "user" => self.user = Some(value),
            "memory-limit" => limits.memory_bytes_max = number::<usize>(&name, &value)?.saturating_mul(1 << 20),
            "disable-evictions" => self.evict = Some(false),
            "evict" => self.evict = Some(true),
            "conn-limit" => limits.connections_max = number::<NonZeroUsize>(&name, &value)?.get(),
            "listen-backlog" => limits.backlog = number(&name, &value)?,
            "verbose" => limits.verbosity += 1,
            "help" | "license" => self.help = true,
            "version" => self.version = true,
            "pidfile" => self.pid_file = path,
            "threads" => {
                self.config.threads = number(&name, &value)?;
                self.threads = Some(self.config.threads);
            }
            "max-item-size" => limits.item_bytes_max = item_bytes(&name, &value)?,
            "disable-flush-all" => limits.flush_enabled = false,
            "disable-dumping" => limits.dump_enabled = false,
            "auth-file" => self.config.auth = Some(AuthFile::read(&value)?),
            "enable-ssl" => gathered.tls = true,
            "extended" => self.extended(gathered, &value)?,
            "store" => self.store = Some(value),
            "metrics" => self.config.metrics = Some(address(&value, 0)?),
            "tls-cert" => (gathered.tls, gathered.tls_words.chain) = (true, path),
            "tls-key" => (gathered.tls, gathered.tls_words.key) = (true, path),
            "runtime" => self.config.runtime = runtime(&value)?,
            "udp-port" if value == "0" => {}
            "disable-watch" => {}
            "enable-sasl" => return config("SASL is not known here; --auth-file is".to_owned()),
            "memory-file" => return config("a memory file is not known here; --store file:PATH keeps data".to_owned()),
            "protocol" => self.protocol(&value)?,
            _ => self.ignored.push(format!("{name} {value}").trim().to_owned()),
        }
        Ok(())
    }

    /// The list behind `-o`.
    fn extended(&mut self, gathered: &mut Gathered, list: &str) -> Result<()> {
        let mut options = list.split(',').filter(|option| !option.is_empty());
        options.try_for_each(|option| extended::take(option, &mut self.config.limits, gathered, &mut self.ignored))
    }

    fn protocol(&mut self, value: &str) -> Result<()> {
        match value {
            // What is spoken here.
            "ascii" => Ok(()),
            // In memcached: either, as the client begins.
            "auto" => {
                self.ignored.push("--protocol auto".to_owned());
                Ok(())
            }
            "binary" => config("the binary protocol is not spoken here".to_owned()),
            _ => config(format!("--protocol takes ascii, binary or auto, not {value:?}")),
        }
    }

    fn listeners(&mut self, gathered: Gathered) -> Result<()> {
        if gathered.tls {
            self.config.tls = Some(gathered.tls_words.tls()?);
        }
        let mode = gathered.unix_mode.unwrap_or(0o700);
        let port = gathered.port.unwrap_or(PORT);
        for place in &gathered.listen {
            let place = bare(place, &mut self.ignored)?;
            match place.strip_prefix("unix:") {
                Some(path) => self.config.listen.push(Listen::Unix(PathBuf::from(path), mode)),
                // As in memcached, a socket is instead of the network. Who wants both names both by --listen.
                None if gathered.unix.is_some() => {
                    self.ignored.push(format!("--listen {place} beside --unix-socket"));
                }
                None => self.config.listen.push(tcp(place, port)?),
            }
        }
        match gathered.unix {
            Some(path) => self.config.listen.push(Listen::Unix(path, mode)),
            // Loopback, unlike memcached: whoever wants the world to come in says so.
            None if gathered.listen.is_empty() => {
                let wildcards = [SocketAddr::from(([0; 4], port)), SocketAddr::from(([0u16; 8], port))];
                self.everywhere = Some(Listen::TcpAny(wildcards.to_vec()));
                self.config.listen.push(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
            }
            None => {}
        }
        Ok(())
    }
}

/// The option of this long name, or of the only one that begins so. What is the only one of memcached's is so beside ours, too.
fn long_named(name: &str) -> Result<&'static Known> {
    let begin_so: Vec<&Known> = KNOWN.iter().filter(|known| !name.is_empty() && known.1.starts_with(name)).collect();
    if let Some(known) = begin_so.iter().find(|known| known.1 == name) {
        return Ok(known);
    }
    let theirs: Vec<&Known> = begin_so.iter().copied().filter(|known| known.0 != '\0').collect();
    match (&theirs[..], &begin_so[..]) {
        ([known], _) | ([], [known]) => Ok(known),
        (_, []) => config(format!("no option --{name}; --help tells which there are")),
        _ => {
            let names: Vec<String> = begin_so.iter().map(|known| format!("--{}", known.1)).collect();
            config(format!("--{name} may be any of {}", names.join(", ")))
        }
    }
}

pub(crate) fn config<T>(detail: String) -> Result<T> {
    Err(Error::new(ErrorKind::Config, detail))
}

fn shown(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

pub(crate) fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().or_else(|_| config(format!("{name} takes a number, not {value:?}")))
}

fn octal(name: &str, value: &str) -> Result<u32> {
    let mode = u32::from_str_radix(value, 8).ok().filter(|&mode| mode <= 0o777);
    mode.map_or_else(|| config(format!("{name} takes an octal mode up to 777, not {value:?}")), Ok)
}

/// A size of an item: bytes, or with `k` or `m` behind it.
fn item_bytes(name: &str, value: &str) -> Result<usize> {
    let (digits, unit) = match value.char_indices().last() {
        Some((at, 'k' | 'K')) => (&value[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&value[..at], 1 << 20),
        _ => (value, 1),
    };
    let bytes = number::<usize>(name, digits)?.saturating_mul(unit);
    if ITEM_BYTES.contains(&bytes) { Ok(bytes) } else { config(format!("{name} takes 1k to 1024m, not {value:?}")) }
}

fn runtime(value: &str) -> Result<Runtime> {
    match value {
        "per-core" => Ok(Runtime::PerCore),
        "shared" => Ok(Runtime::Shared),
        _ => config(format!("--runtime takes per-core or shared, not {value:?}")),
    }
}

/// A place to listen on, without memcached's words before it. What they say of it means nothing here, is refused, or noted as passed over.
fn bare<'p>(place: &'p str, ignored: &mut Vec<String>) -> Result<&'p str> {
    if place.starts_with("notls:") {
        let why = "with TLS all TCP is TLS here, and without it none is; who is to come in without it takes a unix socket, or another server";
        return config(format!("--listen {place}: no address is exempt from TLS: {why}"));
    }
    if place.starts_with("btls:") || place.starts_with("mtls:") {
        let why = "who shows a certificate over TLS is said for all addresses at once, by -o ssl_verify_mode";
        return config(format!("--listen {place}: {why}"));
    }
    let mut rest = place;
    if let Some((protocol, behind)) = bracketed(rest, "proto") {
        match protocol {
            "ascii" | "negotiating" => ignored.push(format!("--listen proto[{protocol}]:")),
            "binary" => return config(format!("--listen {place}: the binary protocol is not spoken here")),
            "proxy" => return config(format!("--listen {place}: there is no proxy here")),
            _ => return config(format!("--listen {place}: proto[] takes ascii or negotiating, not {protocol:?}")),
        }
        rest = behind;
    }
    if let Some((tag, behind)) = bracketed(rest, "tag") {
        if !TAG_BYTES.contains(&tag.len()) {
            return config(format!("--listen {place}: tag[] takes 1 to 8 characters, not {tag:?}"));
        }
        ignored.push(format!("--listen tag[{tag}]:"));
        rest = behind;
    }
    Ok(rest)
}

/// What stands between brackets behind this name, and what behind them.
fn bracketed<'p>(place: &'p str, name: &str) -> Option<(&'p str, &'p str)> {
    place.strip_prefix(name)?.strip_prefix('[')?.split_once("]:")
}

/// An address with a port, or one that takes the port given.
fn address(place: &str, port: u16) -> Result<SocketAddr> {
    Ok(addresses(place, port)?[0])
}

/// All addresses that a place stands for; at least one.
fn addresses(place: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let place = place.trim();
    let bare = place.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = match place.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(_) => (bare, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default(),
    };
    if found.is_empty() { config(format!("{place:?} is no address to listen on")) } else { Ok(found) }
}

/// An address is listened on as it is; a name, as in memcached, on all that it stands for.
fn tcp(place: &str, port: u16) -> Result<Listen> {
    let mut found = addresses(place, port)?;
    Ok(if found.len() == 1 { Listen::Tcp(found.remove(0)) } else { Listen::TcpAny(found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(line.split_whitespace())
    }

    #[test]
    fn a_line_written_for_memcached_means_what_it_means_there() {
        let args = parse(
            "-d -m 128 -c4096 -u nobody -l 127.0.0.1,::1 -p 0 -P /run/m.pid -I 2m -MAFX -f 1.25 -o modern,hashpower=20",
        )
        .unwrap();
        let limits = &args.config.limits;
        assert_eq!(
            (limits.memory_bytes_max, limits.connections_max, limits.item_bytes_max),
            (128 << 20, 4096, 2 << 20)
        );
        assert!(limits.shutdown_enabled && !limits.flush_enabled && !limits.dump_enabled);
        assert_eq!((args.evict, args.daemon, args.user.as_deref()), (Some(false), true, Some("nobody")));
        assert_eq!(args.ignored, ["--slab-growth-factor 1.25", "-o hashpower=20"]);
        assert!(matches!(&args.config.listen[..], [Listen::Tcp(v4), Listen::Tcp(v6)] if v4.is_ipv4() && v6.is_ipv6()));
        let args = parse("-s /tmp/x.sock -a 0770").unwrap();
        assert!(matches!(&args.config.listen[..], [Listen::Unix(_, 0o770)]));
        let args = parse("--listen 127.0.0.1:5 --listen=unix:/tmp/y").unwrap();
        assert!(matches!(&args.config.listen[..], [Listen::Tcp(tcp), Listen::Unix(..)] if tcp.port() == 5));
        let args =
            parse("-l proto[ascii]:127.0.0.1:5;tag[x]:[::1]:6,proto[negotiating]:tag[12345678]:127.0.0.1,").unwrap();
        assert!(matches!(&args.config.listen[..], [Listen::Tcp(v4), Listen::Tcp(v6), Listen::Tcp(last)]
                if (v4.port(), v6.port(), last.port()) == (5, 6, PORT) && v6.is_ipv6()));
        let passed_over = ["proto[ascii]:", "tag[x]:", "proto[negotiating]:", "tag[12345678]:"];
        assert_eq!(args.ignored, passed_over.map(|word| format!("--listen {word}")));
    }

    #[test]
    fn a_unix_socket_by_its_own_option_is_instead_of_the_network() {
        for line in ["-s /tmp/x -l 127.0.0.1,::1", "-l 127.0.0.1;::1 -p 5 -s /tmp/x", "-s /tmp/x -l 127.0.0.1 -l ::1"] {
            let args = parse(line).unwrap();
            assert!(matches!(&args.config.listen[..], [Listen::Unix(..)]), "{line}: {:?}", args.config.listen);
            assert_eq!(args.everywhere.map(|_| ()), None, "{line}");
            let ignored = ["127.0.0.1", "::1"].map(|place| format!("--listen {place} beside --unix-socket"));
            assert_eq!(args.ignored, ignored, "{line}");
        }
        let args = parse("-s /tmp/x -l unix:/tmp/y").unwrap();
        assert!(matches!(&args.config.listen[..], [Listen::Unix(..), Listen::Unix(..)]) && args.ignored.is_empty());
        let args = parse("-l unix:/tmp/y,127.0.0.1").unwrap();
        assert!(matches!(&args.config.listen[..], [Listen::Unix(..), Listen::Tcp(_)]) && args.ignored.is_empty());
    }

    #[test]
    fn long_names_may_be_cut_short() {
        // Of memcached's only `threads` and `slab-...` begin so, ours do not make it ambiguous.
        let args = parse("--verb --ext idle_timeout=3 --t=2 --max-i 2m --conn 9 --sto file:x --ev").unwrap();
        let limits = &args.config.limits;
        assert_eq!((limits.verbosity, limits.idle_timeout_ms, args.config.threads), (1, 3_000, 2));
        assert_eq!((limits.item_bytes_max, limits.connections_max), (2 << 20, 9));
        assert_eq!((args.store.as_deref(), args.evict), (Some("file:x"), Some(true)));
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        for (line, part) in [
            ("-m x", "--memory-limit takes a number, not \"x\""),
            ("-m", "--memory-limit takes a value"),
            ("-I 512", "1k to 1024m"),
            ("-a 999", "octal"),
            ("-S", "SASL"),
            ("-B binary", "binary"),
            ("-B klingon", "--protocol takes ascii, binary or auto"),
            ("-c 0", "--conn-limit takes a number"),
            ("-o nosuch=1", "no option -o nosuch"),
            ("-o ssl_nosuch", "no option -o ssl_nosuch"),
            ("-o idle_timeout", "-o idle_timeout takes a number"),
            ("-o ssl_verify_mode=9", "takes 0 to 3"),
            ("-o ssl_keyformat=2", "PEM"),
            ("-Z -o ssl_chain_cert=c,ssl_verify_mode=2", "ssl_ca_cert"),
            ("-e /dev/shm/x", "--store file:"),
            ("-Z", "--tls-cert"),
            ("-Y /no/such/file", "/no/such/file"),
            ("-q", "no option -q"),
            ("stray", "not an option"),
            ("-l no.such.host.invalid", "no address"),
            ("-l notls:127.0.0.1", "no address is exempt from TLS"),
            ("-l btls:127.0.0.1", "by -o ssl_verify_mode"),
            ("-l 127.0.0.1,mtls:127.0.0.1", "by -o ssl_verify_mode"),
            ("-l proto[binary]:127.0.0.1", "the binary protocol is not spoken here"),
            ("-l 127.0.0.1,proto[binary]:tag[x]:127.0.0.1", "the binary protocol is not spoken here"),
            ("-l proto[proxy]:127.0.0.1", "no proxy"),
            ("-l proto[x]:127.0.0.1", "ascii or negotiating, not \"x\""),
            ("-l tag[]:127.0.0.1", "1 to 8 characters"),
            ("-l tag[123456789]:127.0.0.1", "1 to 8 characters"),
            ("-l tag[x]127.0.0.1", "no address"),
            ("-l ,;", "--listen takes an address"),
            ("--runtime x", "per-core or shared"),
            ("--mem 64", "--mem may be any of --memory-limit, --memory-file"),
            ("--enable", "--enable may be any of --enable-shutdown, --enable-coredumps"),
            ("--tls x", "--tls may be any of --tls-cert, --tls-key"),
            ("--verbosely", "no option --verbosely"),
            ("--", "no option --;"),
            ("--=5", "no option --;"),
            ("--daemon=1", "--daemon takes no value"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
