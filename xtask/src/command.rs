//! Running other programs, and the one error of this crate.

use std::fmt;
use std::process::{Command, Stdio};

/// Lines of a failed program's output that are worth repeating.
const OUTPUT_LINES_MAX: usize = 20;

/// What went wrong and, after it, what to do about it: printed as it is.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Adds to an error what was being done when it came up.
pub(crate) trait Context<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure(format!("{}: {error}", doing())))
    }
}

/// Runs a program and returns its standard output; on failure the error repeats the end of what it said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let out = command.stdin(Stdio::null()).output().context(|| format!("could not start `{shown}`"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = [out.stdout, out.stderr].concat();
    Err(Failure(format!(
        "`{shown}` failed ({}):\n{}",
        out.status,
        tail(&String::from_utf8_lossy(&said), OUTPUT_LINES_MAX)
    )))
}

/// The program and its arguments as one would type them, for messages.
pub(crate) fn show(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

fn tail(text: &str, lines_max: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_program_that_succeeds() {
        assert_eq!(output(Command::new("echo").arg("hello")).unwrap(), "hello\n");
    }

    #[test]
    fn a_failure_repeats_what_the_program_said() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.0.contains("why") && error.0.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.0.contains("no-such-program-here"), "{error}");
    }

    #[test]
    fn tail_keeps_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
