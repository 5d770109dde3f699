//! What is handed out: a binary that needs nothing of the system it runs on, its manual pages and completions, and unit files.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{Context, Failure, Result, output};

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Builds it all into `target/dist`.
pub(crate) fn build(root: &Path) -> Result<()> {
    let target = host_target()?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--package", "larder-cli", "--target", &target]).current_dir(root);
    // The C library goes into the binary.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
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
    for shell in SHELLS {
        let script = output(Command::new(&binary).args(["completions", shell]))?;
        let path = completions.join(format!("larder.{shell}"));
        fs::write(&path, script).context(|| format!("writing {}", path.display()))?;
    }
    output(Command::new(&binary).arg("man").arg(&pages))?;
    for name in ["larder.service", "larder.socket"] {
        fs::copy(root.join("dist").join(name), dist.join(name)).context(|| format!("copying {name}"))?;
    }
    anstream::println!("{}", dist.display());
    Ok(())
}

/// The system that this is built on, as Rust names it.
fn host_target() -> Result<String> {
    let said = output(Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure("rustc does not name its host".to_owned()))
}
