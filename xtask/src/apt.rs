//! Debian packages without installing them: apt with sources, state and cache of its own in a scratch folder, so
//! neither root rights nor a change to the machine's package system is needed, and any suite of the mirror will do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Context, Failure, Result, output};

/// Used when the machine itself is not a Debian with a mirror configured.
const MIRROR_DEFAULT: &str = "http://deb.debian.org/debian";
/// Names another Debian mirror, for machines whose configured one lacks the newer suites.
pub(crate) const MIRROR_ENV: &str = "LARDER_DEBIAN_MIRROR";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Undoes the hooks of container images: they clean the machine's own cache, which is not ours to touch.
const HOOKS_OFF: &str = "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
                         #clear APT::Update::Post-Invoke-Success;\n";

/// One suite of a Debian mirror, its lists and downloads in a folder of our own.
pub(crate) struct Suite {
    name: String,
    folder: PathBuf,
}

impl Suite {
    /// Fetches the package lists of `suite` into `folder`.
    pub(crate) fn fetch(suite: &str, mirror: &str, folder: &Path) -> Result<Self> {
        for part in ["state/lists/partial", "cache/archives/partial"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).context(|| format!("could not create {}", path.display()))?;
        }
        let signed_by = if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
        write(&folder.join("sources.list"), &format!("deb {signed_by}{mirror} {suite} main\n"))?;
        write(&folder.join("apt.conf"), &configuration(folder))?;
        // An empty status file: nothing counts as installed, so the whole of the dependencies comes from the suite.
        write(&folder.join("status"), "")?;
        let suite = Self { name: suite.to_owned(), folder: folder.to_path_buf() };
        output(suite.apt("apt-get").args(["--quiet", "update"]))?;
        Ok(suite)
    }

    /// Downloads `wanted` and the shared libraries they need, and unpacks them all into `root`.
    pub(crate) fn unpack(&self, wanted: &[&str], root: &Path) -> Result<()> {
        let options = [
            "--recurse",
            "--no-recommends",
            "--no-suggests",
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
        ];
        let graph = output(self.apt("apt-cache").arg("depends").args(options).args(wanted))?;
        let packages = with_libraries(wanted, &parse_depends(&graph));
        let debs = self.folder.join("debs");
        fs::create_dir_all(&debs).context(|| format!("could not create {}", debs.display()))?;
        output(self.apt("apt-get").args(["--quiet", "download"]).args(&packages).current_dir(&debs))?;
        let found = fs::read_dir(&debs).context(|| format!("could not read {}", debs.display()))?;
        for deb in found.flatten().map(|entry| entry.path()) {
            output(Command::new("dpkg").arg("-x").arg(&deb).arg(root))?;
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").arg("--config-file").arg(self.folder.join("apt.conf"));
        command
    }
}

/// apt's configuration on top of the machine's own, which may name a proxy and credentials.
fn configuration(folder: &Path) -> String {
    let at = |part: &str| folder.join(part).display().to_string();
    let options = [
        ("Dir::Etc::SourceList", at("sources.list")),
        ("Dir::Etc::SourceParts", "/dev/null".to_owned()),
        ("Dir::Etc::Preferences", "/dev/null".to_owned()),
        ("Dir::Etc::PreferencesParts", "/dev/null".to_owned()),
        ("Dir::State", at("state")),
        ("Dir::State::status", at("status")),
        ("Dir::State::Lists", at("state/lists")),
        ("Dir::Cache", at("cache")),
        ("Dir::Cache::Archives", at("cache/archives")),
        // The sandbox user of apt could not write into a folder of ours.
        ("APT::Sandbox::User", String::new()),
        // A list that could not be fetched is an error, not a warning.
        ("APT::Update::Error-Mode", "any".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::Retries", "3".to_owned()),
        ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".to_owned()),
    ];
    let lines = options.iter().map(|(option, value)| format!("{option} \"{value}\";\n"));
    lines.collect::<String>() + HOOKS_OFF
}

/// The Debian mirror this machine is configured for, so that a private mirror or a proxying one is honoured.
pub(crate) fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_ENV) {
        return Ok(mirror);
    }
    for program in ["apt-get", "apt-cache", "dpkg"] {
        if output(Command::new(program).arg("--version")).is_err() {
            return Err(Failure(format!("`{program}` is not on this machine")));
        }
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    // Works before any list was fetched, and understands every format of sources.
    let uris = output(Command::new("apt-get").args(["--print-uris", "update"])).unwrap_or_default();
    Ok(parse_mirror(&release, &uris).unwrap_or_else(|| MIRROR_DEFAULT.to_owned()))
}

/// The mirror of the running release's own suite: `'http://…/dists/bookworm/InRelease' …` gives `http://…`.
fn parse_mirror(os_release: &str, uris: &str) -> Option<String> {
    let field = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    if field("ID")? != "debian" {
        return None;
    }
    let tail = format!("/dists/{}/InRelease", field("VERSION_CODENAME")?);
    uris.lines()
        .filter_map(|line| line.strip_prefix('\'')?.split('\'').next())
        .find_map(|uri| uri.strip_suffix(&tail).map(str::to_owned))
}

/// Reads what `apt-cache depends --recurse` prints: a package at the start of a line, its dependencies indented below.
fn parse_depends(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut graph: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut package = String::new();
    for line in text.lines() {
        if !line.starts_with([' ', '|']) {
            line.trim().clone_into(&mut package);
            graph.entry(package.clone()).or_default();
        } else if let Some((kind, name)) = line.trim_start_matches([' ', '|']).split_once(": ")
            && matches!(kind, "Depends" | "PreDepends")
        {
            graph.entry(package.clone()).or_default().push(name.trim().to_owned());
        }
    }
    graph
}

/// `packages` and the libraries they reach through libraries. The rest (adduser, perl, systemd) serves installing.
fn with_libraries(packages: &[&str], graph: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    let mut queue: Vec<String> = packages.iter().map(|&package| package.to_owned()).collect();
    let mut wanted: BTreeSet<String> = queue.iter().cloned().collect();
    while let Some(next) = queue.pop() {
        for name in graph.get(&next).into_iter().flatten() {
            if is_library(name) && graph.contains_key(name) && wanted.insert(name.clone()) {
                queue.push(name.clone());
            }
        }
    }
    wanted
}

fn is_library(package: &str) -> bool {
    // Redis and Valkey are linked against libsystemd0; other packages of systemd serve installing.
    let systemd = package.contains("systemd") && package != "libsystemd0";
    let extra = package.contains("perl") || package.contains("gconv") || systemd;
    (package.starts_with("lib") || package.starts_with("zlib")) && !extra
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str = "ID=debian\nVERSION_CODENAME=bookworm\n";

    #[test]
    fn the_mirror_is_that_of_the_running_release() {
        let uris = "'http://deb.nodesource.com/node/dists/nodistro/InRelease' a 0 \n\
                    'http://mirror.local/debian-security/dists/bookworm-security/InRelease' b 0 \n\
                    'http://mirror.local/debian/dists/bookworm/InRelease' c 0 \n";
        assert_eq!(parse_mirror(BOOKWORM, uris).unwrap(), "http://mirror.local/debian");
    }

    #[test]
    fn another_distribution_has_no_debian_mirror() {
        let uris = "'http://archive.ubuntu.com/ubuntu/dists/noble/InRelease' a 0 \n";
        assert_eq!(parse_mirror("ID=ubuntu\nVERSION_CODENAME=noble\n", uris), None);
        assert_eq!(parse_mirror(BOOKWORM, uris), None);
    }

    #[test]
    fn libraries_are_followed_and_nothing_else() {
        let text = "memcached\n  PreDepends: init\n  Depends: perl\n |Depends: libc6\n  Depends: <virtual>\n    libgone\n\
                    libc6\n  Depends: libgcc-s1\nlibgcc-s1\n  Depends: gcc-12-base\nperl\n  Depends: libperl5\nlibperl5\n";
        let packages = with_libraries(&["memcached"], &parse_depends(text));
        assert_eq!(packages.into_iter().collect::<Vec<_>>(), ["libc6", "libgcc-s1", "memcached"]);
    }
}
