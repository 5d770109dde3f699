//! A copy of the tree in which the tests beside a package's code are built of that code and of what it is built on, and of nothing that is built on it.
//!
//! cargo builds all dev-dependencies of a package for any test of it. Where one of them depends on the package, a mutant has to be compiled three times: as the package, under that one, and as its own
//! tests. That takes longer than all that its tests do.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{Context, Failure, Result, output};
use crate::servers;

/// What of a package's dev-dependencies is in the way.
pub(super) struct Alone {
    /// What is built on the package itself.
    pub(super) without: &'static str,
    /// What is needed of another one then, which had it through that: its name, and the feature.
    pub(super) with: (&'static str, &'static str),
}

impl Alone {
    /// Makes the copy.
    pub(super) fn tree(&self, root: &Path, package: &str, tree: &Path) -> Result<()> {
        copy_of(root, tree)?;
        let cargo = |words: &[&str]| {
            let words = [words, &["--package", package, "--offline", "--quiet"]].concat();
            output(Command::new(super::cargo()).args(words).current_dir(tree))
        };
        let (from, feature) = self.with;
        cargo(&["remove", "--dev", self.without])?;
        cargo(&["add", "--dev", from, "--features", feature])?;
        Ok(())
    }
}

/// A copy, in a folder that is its own, of all that git knows or would take.
pub(super) fn copy_of(root: &Path, tree: &Path) -> Result<()> {
    servers::remove(tree)?;
    let git = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let files = output(Command::new("git").args(git).current_dir(root))?;
    files.split_terminator('\0').try_for_each(|file| copy(root, tree, file))
}

fn copy(root: &Path, tree: &Path, file: &str) -> Result<()> {
    let (from, to) = (root.join(file), tree.join(file));
    // One that is gone from the tree is not gone from git yet.
    if !from.is_file() {
        return Ok(());
    }
    let folder = to.parent().ok_or_else(|| Failure(format!("{file} is in no folder")))?;
    fs::create_dir_all(folder).context(|| format!("could not make {}", folder.display()))?;
    fs::copy(&from, &to).context(|| format!("could not copy {file}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a package of a workspace, with these lines of dependencies.
    fn package(root: &Path, name: &str, dependencies: &str) {
        let folder = root.join(name);
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("src/lib.rs"), "").unwrap();
        let text = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n{dependencies}\n");
        fs::write(folder.join("Cargo.toml"), text).unwrap();
    }

    #[test]
    fn a_copy_is_what_git_would_take_without_what_is_built_on_the_package() {
        let (folder, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = folder.path();
        let workspace = "[workspace]\nresolver = \"3\"\nmembers = [\"one\", \"layers\", \"kit\"]\n\n[workspace.dependencies]\n\
                         one = { path = \"one\" }\nlayers = { path = \"layers\" }\nkit = { path = \"kit\" }\n";
        fs::write(root.join("Cargo.toml"), workspace).unwrap();
        package(root, "one", "[dev-dependencies]\nlayers.workspace = true\nkit.workspace = true\n");
        package(root, "layers", "[features]\ntesting = []\n");
        package(root, "kit", "[dependencies]\none.workspace = true\n");
        fs::write(root.join(".gitignore"), "ignored\n").unwrap();
        fs::write(root.join("ignored"), "").unwrap();
        fs::write(root.join("gone"), "").unwrap();
        output(Command::new("git").args(["init", "-q"]).current_dir(root)).unwrap();
        output(Command::new("git").args(["add", "."]).current_dir(root)).unwrap();
        fs::remove_file(root.join("gone")).unwrap();
        fs::write(root.join("new"), "new").unwrap();

        let alone = Alone { without: "kit", with: ("layers", "testing") };
        let tree = target.path().join("tree");
        alone.tree(root, "one", &tree).unwrap();
        fs::write(tree.join("old"), "of a copy before").unwrap();
        alone.tree(root, "one", &tree).unwrap();

        assert_eq!(fs::read_to_string(tree.join("new")).unwrap(), "new");
        assert!(["ignored", "gone", "old"].iter().all(|file| !tree.join(file).exists()));
        let of = fs::read_to_string(tree.join("one/Cargo.toml")).unwrap();
        assert!(!of.contains("kit") && of.contains("testing"), "{of}");
        assert!(fs::read_to_string(root.join("one/Cargo.toml")).unwrap().contains("kit"), "the tree is as it was");
        assert!(Alone { without: "nobody", ..alone }.tree(root, "one", &tree).is_err());
    }
}
