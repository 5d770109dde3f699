//! `cargo xtask servers`: an old and a new memcached, Redis 7, Redis 8 and Valkey under `.servers/`, and zsh and fish, which must load
//! the completions; got and started in the same way.
//!
//! Each is unpacked from a Debian suite with the libraries of that suite, and started through that suite's own dynamic
//! loader, so a server newer (or older) than the machine's C library runs all the same. `.servers/<name>/run` hides
//! this: it ends in `exec`, so the process one starts is the server.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anstream::println;

use crate::apt::{self, MIRROR_ENV, Suite};
use crate::command::{Context, Failure, Result, output};

type Version = (u32, u32, u32);

/// What kind of server, which says its packages, its executable and how it tells its version.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memcached,
    Redis,
    Valkey,
    Zsh,
    Fish,
}

impl Kind {
    /// The name of the executable, and of the server in messages.
    fn executable(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// The Debian packages to unpack. The server of Redis and Valkey is a link to an executable in their tools.
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Memcached => &["memcached"],
            Self::Redis => &["redis-server", "redis-tools"],
            Self::Valkey => &["valkey-server", "valkey-tools"],
            Self::Zsh => &["zsh", "zsh-common"],
            Self::Fish => &["fish", "fish-common"],
        }
    }

    fn version_flag(self) -> &'static str {
        if self == Self::Memcached { "-V" } else { "--version" }
    }
}

/// A server, or a shell, that the tests need.
struct Wanted {
    /// Its folder under `.servers/`.
    name: &'static str,
    kind: Kind,
    /// Environment variable naming an executable to use instead of a download.
    env: &'static str,
    /// Debian suites to try, in this order.
    suites: &'static [&'static str],
    /// What the version must be, for messages.
    versions: &'static str,
    accepts: fn(Version) -> bool,
}

const WANTED: [Wanted; 7] = [
    Wanted {
        name: "memcached-old",
        kind: Kind::Memcached,
        env: "LARDER_MEMCACHED_OLD",
        suites: &["bookworm"],
        versions: "1.6.18",
        accepts: |version| version == (1, 6, 18),
    },
    Wanted {
        name: "memcached-new",
        kind: Kind::Memcached,
        env: "LARDER_MEMCACHED_NEW",
        suites: &["sid", "testing", "trixie"],
        versions: "1.6.38 or later",
        accepts: |version| version >= (1, 6, 38),
    },
    Wanted {
        name: "redis-7",
        kind: Kind::Redis,
        env: "LARDER_REDIS_7",
        suites: &["bookworm"],
        versions: "7",
        accepts: |version| version.0 == 7,
    },
    Wanted {
        name: "redis-8",
        kind: Kind::Redis,
        env: "LARDER_REDIS_8",
        suites: &["sid", "testing", "trixie"],
        versions: "8",
        accepts: |version| version.0 == 8,
    },
    Wanted {
        name: "valkey",
        kind: Kind::Valkey,
        env: "LARDER_VALKEY",
        suites: &["sid", "testing", "trixie"],
        versions: "8 or later",
        accepts: |version| version.0 >= 8,
    },
    Wanted {
        name: "zsh",
        kind: Kind::Zsh,
        env: "LARDER_ZSH",
        suites: &["bookworm", "trixie"],
        versions: "5.8 or later",
        accepts: |version| version >= (5, 8, 0),
    },
    Wanted {
        name: "fish",
        kind: Kind::Fish,
        env: "LARDER_FISH",
        suites: &["bookworm", "trixie"],
        versions: "3.4 or later",
        accepts: |version| version >= (3, 4, 0),
    },
];

/// The folder the servers live in.
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join(".servers")
}

/// Makes sure that every wanted server is there and starts, and prints what is used.
pub(crate) fn ensure(root: &Path, refresh: bool) -> Result<()> {
    let folder = folder(root);
    for wanted in &WANTED {
        let home = folder.join(wanted.name);
        let (version, how) = match provide(wanted, &home, refresh) {
            Ok(found) => found,
            Err(failure) => return Err(Failure(format!("{failure}\n{}", cure(wanted)))),
        };
        println!("{:<14} {version}{}, {how}: {}", wanted.name, tls(wanted, &home), home.join("run").display());
    }
    Ok(())
}

/// The versions of those that are there.
pub(crate) fn versions(root: &Path) -> Vec<(&'static str, String)> {
    let folder = folder(root);
    let servers = WANTED.iter().filter(|wanted| !matches!(wanted.kind, Kind::Zsh | Kind::Fish));
    servers.filter_map(|wanted| Some((wanted.name, check(wanted, &folder.join(wanted.name)).ok()?))).collect()
}

/// Returns the server's version and where it came from.
fn provide(wanted: &Wanted, home: &Path, refresh: bool) -> Result<(String, String)> {
    if let Some(executable) = env::var_os(wanted.env) {
        let executable = PathBuf::from(executable);
        fs::create_dir_all(home).context(|| format!("could not create {}", home.display()))?;
        let quoted = format!("'{}'", executable.display().to_string().replace('\'', r"'\''"));
        write_run(home, wanted.kind, &quoted)?;
        return Ok((check(wanted, home)?, format!("named by {}", wanted.env)));
    }
    if !refresh && let Ok(version) = check(wanted, home) {
        return Ok((version, "already here".to_owned()));
    }
    let mirror = apt::mirror()?;
    let mut failures = Vec::new();
    for suite in wanted.suites {
        println!("{:<14} fetching from Debian {suite}, {mirror}", wanted.name);
        match download(wanted, suite, &mirror, home) {
            Ok(version) => return Ok((version, format!("fetched from Debian {suite}"))),
            Err(failure) => failures.push(format!("from Debian {suite}: {failure}")),
        }
    }
    Err(Failure(failures.join("\n")))
}

fn cure(wanted: &Wanted) -> String {
    format!(
        "no {server} {} could be had for the tests. Either\n\
         \x20 - name an executable of that version: {}=/path/to/{server}, or\n\
         \x20 - on a machine with apt, name a Debian mirror that has one of the suites {}: {MIRROR_ENV}=http://host/debian",
        wanted.versions,
        wanted.env,
        wanted.suites.join(", "),
        server = wanted.kind.executable(),
    )
}

/// Unpacks beside `home` and renames, so a broken download is never taken for a server.
fn download(wanted: &Wanted, suite: &str, mirror: &str, home: &Path) -> Result<String> {
    let scratch = home.with_file_name(format!("{}.{}.tmp", wanted.name, std::process::id()));
    let result = unpack(wanted, suite, mirror, &scratch).and_then(|version| {
        remove(home)?;
        fs::rename(scratch.join("home"), home).context(|| format!("could not move {} in place", home.display()))?;
        Ok(version)
    });
    remove(&scratch)?;
    result
}

fn unpack(wanted: &Wanted, suite: &str, mirror: &str, scratch: &Path) -> Result<String> {
    let home = scratch.join("home");
    let root = home.join("root");
    fs::create_dir_all(&root).context(|| format!("could not create {}", root.display()))?;
    let suite = Suite::fetch(suite, mirror, &scratch.join("apt"))?;
    suite.unpack(wanted.kind.packages(), &root)?;
    write_run(&home, wanted.kind, &launcher(&home, wanted.kind.executable(), suite.name())?)?;
    check(wanted, &home)
}

/// What starts an executable that was unpacked below `home`: its suite's own loader, with its libraries; in a script in which `$here` is `home`.
fn launcher(home: &Path, executable: &str, suite: &str) -> Result<String> {
    let mut files = Vec::new();
    walk(&home.join("root"), &mut files)?;
    let relative = |path: &Path| format!("\"$here/{}\"", path.strip_prefix(home).unwrap_or(path).display());
    let named = |wanted: &dyn Fn(&str) -> bool| {
        let is_named = |path: &&PathBuf| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy()));
        files.iter().filter(is_named).collect::<Vec<_>>()
    };
    let loader = named(&|name| name.starts_with("ld-linux") && name.contains(".so"))
        .first()
        .copied()
        .ok_or_else(|| Failure(format!("no dynamic loader in the libc6 of {suite}")))?;
    let server = named(&|name| name == executable)
        .into_iter()
        .find(|path| path.parent().is_some_and(|folder| folder.ends_with("bin")))
        .ok_or_else(|| Failure(format!("no bin/{executable} in the packages of {suite}")))?;
    let mut libraries: Vec<String> =
        named(&|name| name.contains(".so")).into_iter().filter_map(|path| path.parent()).map(relative).collect();
    libraries.sort();
    libraries.dedup();
    Ok(format!("{} --library-path {} {}", relative(loader), libraries.join(":"), relative(server)))
}

/// A program of a Debian package that is no server: what starts it, fetched into `home` if it is not there.
pub(crate) fn program(home: &Path, package: &str, executable: &str) -> Result<PathBuf> {
    let run = home.join("run");
    if !run.exists() {
        let suite = "bookworm";
        remove(home)?;
        let fetched = Suite::fetch(suite, &apt::mirror()?, &home.join("apt"))?;
        fetched.unpack(&[package], &home.join("root"))?;
        write_run(home, Kind::Redis, &launcher(home, executable, suite)?)?;
    }
    Ok(run)
}

/// Every file below `folder`, links not followed.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).context(|| format!("could not read {}", folder.display()))?;
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Writes the script that starts the server. memcached refuses to run as root unless told so with `-u`; a shell is told where its
/// functions and modules are, which it looks for below `/usr`.
fn write_run(home: &Path, kind: Kind, command: &str) -> Result<()> {
    let before = match kind {
        Kind::Memcached => "if [ \"$(id -u)\" = 0 ]; then set -- -u root \"$@\"; fi\n",
        Kind::Redis | Kind::Valkey => "",
        Kind::Zsh | Kind::Fish => "export LARDER_SHELL_ROOT=\"$here/root\"\n",
    };
    let script = format!(
        "#!/bin/sh\n\
         # Written by `cargo xtask servers`. Ends in exec: the process one starts is the server.\n\
         here=$(cd \"${{0%/*}}\" && pwd)\n\
         {before}\
         exec {command} \"$@\"\n"
    );
    let run = home.join("run");
    fs::write(&run, script).context(|| format!("could not write {}", run.display()))?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755))
        .context(|| format!("could not make {} executable", run.display()))
}

/// Starts the server far enough to say its version, and holds that against what is wanted.
fn check(wanted: &Wanted, home: &Path) -> Result<String> {
    let said = output(Command::new(home.join("run")).arg(wanted.kind.version_flag()))?;
    let version =
        parse_version(&said).ok_or_else(|| Failure(format!("{} says no version but {said:?}", wanted.name)))?;
    if !(wanted.accepts)(version) {
        let (major, minor, patch) = version;
        return Err(Failure(format!("{} is {major}.{minor}.{patch}, the tests need {}", wanted.name, wanted.versions)));
    }
    let (major, minor, patch) = version;
    Ok(format!("{major}.{minor}.{patch}"))
}

/// Whether it was built with TLS, where the server says so.
fn tls(wanted: &Wanted, home: &Path) -> &'static str {
    match (wanted.kind, output(Command::new(home.join("run")).arg("-h"))) {
        (Kind::Memcached, Ok(help)) if help.contains("--enable-ssl") => " with TLS",
        (Kind::Memcached, _) => " without TLS",
        _ => "",
    }
}

/// `memcached 1.6.18` gives (1, 6, 18), as would `Redis server v=1.6.18 sha=…`; a suffix such as `_beta1` is left out, and where there is no
/// third number, as in `zsh 5.9`, it is 0.
fn parse_version(said: &str) -> Option<Version> {
    let mut words = said.split_whitespace();
    let text = match words.next()? {
        "memcached" | "zsh" => words.next()?,
        "fish," => words.nth(1)?,
        "Redis" | "Valkey" => words.find_map(|word| word.strip_prefix("v="))?,
        _ => return None,
    };
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// Removes a folder, if there is one, with all that is in it.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure(format!("could not remove {}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A home whose `run` is a script that claims to be the given version.
    fn fake(version: &str) -> (tempfile::TempDir, &'static Wanted) {
        let home = tempfile::tempdir().unwrap();
        write_run(home.path(), Kind::Memcached, &format!("echo memcached {version} #")).unwrap();
        (home, &WANTED[1])
    }

    #[test]
    fn versions_are_parsed() {
        assert_eq!(parse_version("memcached 1.6.18\n"), Some((1, 6, 18)));
        assert_eq!(parse_version("memcached 1.6.45_beta1\n"), Some((1, 6, 45)));
        assert_eq!(parse_version("memcached\n"), None);
        assert_eq!(parse_version("redis_server v=7.0\n"), None);
        assert_eq!(parse_version("zsh 5.9 (x86_64-debian-linux-gnu)\n"), Some((5, 9, 0)));
        assert_eq!(parse_version("fish, version 3.6.0\n"), Some((3, 6, 0)));
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=0\n";
        assert_eq!(parse_version(redis), Some((7, 0, 15)));
        assert_eq!(parse_version("Valkey server v=9.1.2 sha=00000000:1 malloc=jemalloc\n"), Some((9, 1, 2)));
    }

    #[test]
    fn a_server_too_old_is_refused_and_said_so() {
        let (home, wanted) = fake("1.6.37");
        let failure = check(wanted, home.path()).unwrap_err();
        assert!(failure.0.contains("is 1.6.37, the tests need 1.6.38 or later"), "{failure}");
    }

    #[test]
    fn a_server_of_the_right_version_is_taken() {
        let (home, wanted) = fake("1.6.45");
        assert_eq!(check(wanted, home.path()).unwrap(), "1.6.45");
    }

    #[test]
    fn the_old_server_is_exactly_one_release() {
        let old = &WANTED[0];
        assert!((old.accepts)((1, 6, 18)) && !(old.accepts)((1, 6, 19)) && !(old.accepts)((1, 6, 17)));
    }

    #[test]
    fn the_cure_names_the_variables() {
        let text = cure(&WANTED[0]);
        assert!(text.contains("LARDER_MEMCACHED_OLD") && text.contains(MIRROR_ENV), "{text}");
    }
}
