//! What runs are of, beside the code: read off, nothing typed in.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::output;
use crate::servers;

/// The machine, the compiler, and the servers that there are.
pub(super) fn machine(root: &Path) -> String {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rustc = output(Command::new("rustc").arg("--version")).unwrap_or_default();
    let servers = servers::versions(root).into_iter().map(|(name, version)| format!(", {name} {version}"));
    format!(
        "{}, {} cores, {}, Linux {}, {}{}",
        field("/proc/cpuinfo", "model name"),
        std::thread::available_parallelism().map_or(1, usize::from),
        field("/proc/meminfo", "MemTotal"),
        kernel.trim(),
        rustc.trim(),
        servers.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_told_and_of_servers_those_that_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine(folder.path());
        assert!(machine.contains(" cores, ") && machine.contains(", rustc 1."), "{machine}");
        assert!(!machine.contains("redis"), "{machine}");
    }
}
