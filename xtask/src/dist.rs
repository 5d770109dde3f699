//! What is handed out: a binary that needs nothing of the system it runs on, its manual pages and completions, and unit files.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::command::{Context, Failure, Result, output};

/// The file of checksums.
const SUMS: &str = "SHA256SUMS";
/// What a server says to who sets a key, gets it and ends it.
const SAID: &str = "STORED\r\nVALUE k 0 2\r\nhi\r\nEND\r\n";
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Builds it all into `target/dist`.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let target = host_target()?;
    let mut cargo = cargo();
    cargo.args(["build", "--release", "--package", "larder-cli", "--target", &target]).current_dir(root);
    // The C library goes into the binary. There, randomness comes from the kernel's call: looked up at run time, as it is where libraries are
    // loaded, it is not found, and the file taken instead is missing from an empty root folder.
    cargo.env("RUSTFLAGS", r#"-C target-feature=+crt-static --cfg getrandom_backend="linux_getrandom""#);
    output(&mut cargo)?;
    let metadata =
        output(Command::new("cargo").args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).context(|| "cargo metadata".to_owned())?;
    let folder =
        metadata["target_directory"].as_str().ok_or_else(|| Failure("cargo names no target folder".to_owned()))?;
    let (built, dist) =
        (Path::new(folder).join(&target).join("release").join("larder"), Path::new(folder).join("dist"));
    let make = |path: &Path| fs::create_dir_all(path).context(|| format!("making {}", path.display()));
    let (completions, pages) = (dist.join("completions"), dist.join("man"));
    [&dist, &completions, &pages].into_iter().try_for_each(|path| make(path))?;
    let binary = dist.join("larder");
    fs::copy(&built, &binary).context(|| format!("copying {}", built.display()))?;
    let bytes = fs::read(&binary).context(|| format!("reading {}", binary.display()))?;
    if needs_loader(&bytes) {
        return Err(Failure(format!("{} is not static: it needs the system's loader", binary.display())));
    }
    for shell in SHELLS {
        let script = output(Command::new(&binary).args(["completions", shell]))?;
        let path = completions.join(format!("larder.{shell}"));
        fs::write(&path, script).context(|| format!("writing {}", path.display()))?;
    }
    output(Command::new(&binary).arg("man").arg(&pages))?;
    for name in ["larder.service", "larder.socket"] {
        fs::copy(root.join("dist").join(name), dist.join(name)).context(|| format!("copying {name}"))?;
    }
    sums(&dist)?;
    anstream::println!("{}, {} bytes of it the binary", dist.display(), bytes.len());
    Ok(dist)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs what was built as its users would: the binary in a root folder that has nothing else, as the image has it; what `cargo install` makes; and the image, where a daemon builds one.
pub(crate) fn check(root: &Path) -> Result<()> {
    let dist = build(root)?;
    let folder = dist.with_file_name("dist-check");
    crate::servers::remove(&folder)?;
    let empty = folder.join("root");
    fs::create_dir_all(empty.join("data")).context(|| format!("making {}", empty.display()))?;
    fs::copy(dist.join("larder"), empty.join("larder")).context(|| "copying larder".to_owned())?;
    let mut alone = Command::new("unshare");
    alone.args(["--map-root-user", "--root"]).arg(&empty).arg("/larder");
    answers(alone, "file:/data/larder")?;
    tell("the static binary serves a folder in an empty root");
    let installed = folder.join("installed");
    let mut install = cargo();
    output(install.args(["install", "--path", "crates/cli", "--root"]).arg(&installed).current_dir(root))?;
    answers(Command::new(installed.join("bin").join("larder")), "memory:")?;
    tell("`cargo install --path crates/cli` makes one that serves");
    if output(Command::new("docker").args(["info", "--format", "{{.ServerVersion}}"])).is_err() {
        tell("no image was built: there is no docker daemon");
        return Ok(());
    }
    // The crates come over the network of the host: a daemon may have no other.
    let build = ["build", "--network", "host", "--tag", "larder-check", "."];
    output(Command::new("docker").args(build).current_dir(root))?;
    let mut image = Command::new("docker");
    image.args(["run", "--rm", "--network", "host", "larder-check"]);
    answers(image, "file:/data/larder")?;
    tell("the image serves a folder");
    Ok(())
}

fn tell(what: &str) {
    anstream::println!("\x1b[32mok\x1b[0m    {what}");
}

/// Starts `... serve` of this store, writes, reads, and has it end by itself when it is told to.
fn answers(mut command: Command, store: &str) -> Result<()> {
    let shown = format!("{command:?} serve --store {store}");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).context(|| "no port".to_owned())?.port();
    let listen = format!("127.0.0.1:{port}");
    command.args(["serve", "--enable-shutdown", "--listen", &listen, "--store", store]);
    let mut child = command.spawn().context(|| shown.clone())?;
    let said = talk(&mut child, &listen);
    if said.is_err() {
        _ = child.kill();
    }
    let ended = child.wait().context(|| shown.clone())?;
    let said = said.context(|| shown.clone())?;
    if said != SAID || !ended.success() {
        return Err(Failure(format!("{shown}: {said:?}, {ended}")));
    }
    Ok(())
}

/// Asks as soon as somebody listens, for half a minute.
fn talk(child: &mut Child, listen: &str) -> std::io::Result<String> {
    let began = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(listen) {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > Duration::from_secs(30) || child.try_wait()?.is_some() => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(b"set k 0 0 2\r\nhi\r\nget k\r\nshutdown\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// The checksums of all of it, for `sha256sum --check SHA256SUMS`.
fn sums(dist: &Path) -> Result<()> {
    let script = format!("find . -type f ! -name {SUMS} | LC_ALL=C sort | xargs sha256sum");
    let text = output(Command::new("sh").args(["-c", &script]).current_dir(dist))?;
    fs::write(dist.join(SUMS), text.trim_end().to_owned() + "\n").context(|| format!("writing {SUMS}"))
}

/// True for an executable (ELF, 64 bits) that names a program to load it: one that is not static.
fn needs_loader(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let bytes = |at: usize, count: usize| elf.get(at..at + count).unwrap_or_default();
    let number = |at, count| bytes(at, count).iter().rev().fold(0_usize, |sum, &byte| sum << 8 | usize::from(byte));
    let (headers, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|header| number(headers + header * size, 4) == INTERPRETER as usize)
}

/// The system that this is built on, as Rust names it.
fn host_target() -> Result<String> {
    let said = output(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure("rustc does not name its host".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_static_is_told() {
        let shell = fs::read("/bin/sh").unwrap_or_default();
        assert!(needs_loader(&shell), "the system's shell is linked to its libraries");
        // As a static one has it: no such header.
        let mut elf = vec![0; 64 + 56];
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
        assert!(!needs_loader(&elf));
        elf[64] = 3;
        assert!(needs_loader(&elf));
        assert!(!needs_loader(b"text"));
    }

    #[test]
    fn checksums_are_of_every_file_and_hold() {
        let folder = std::env::temp_dir().join(format!("larder-sums-{}", std::process::id()));
        fs::create_dir_all(folder.join("man")).unwrap_or_else(|error| panic!("{error}"));
        for name in ["larder", "man/larder.1"] {
            fs::write(folder.join(name), name).unwrap_or_else(|error| panic!("{error}"));
        }
        for _ in 0..2 {
            sums(&folder).unwrap_or_else(|error| panic!("{error}"));
        }
        let said = output(Command::new("sha256sum").args(["--check", SUMS]).current_dir(&folder));
        assert_eq!(said.unwrap_or_else(|error| panic!("{error}")).lines().count(), 2);
        fs::remove_dir_all(folder).unwrap_or_else(|error| panic!("{error}"));
    }
}
