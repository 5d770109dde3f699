//! Not for programs: command lines, read and not run, for the proof's fuzzing.

use std::ffi::OsString;

use clap::{Command, CommandFactory, FromArgMatches};

use crate::args::{Cli, Named};

/// Reads command lines, one after the other.
pub struct Reader {
    command: Command,
}

impl Reader {
    /// One that has read none.
    pub fn new() -> Reader {
        Reader { command: Cli::command() }
    }

    /// Reads a command line; the program's name is its first word. What is told where it cannot be, secrets masked; nothing where it can.
    pub fn read(&mut self, words: &[OsString]) -> Option<String> {
        let parsed = self.command.try_get_matches_from_mut(words);
        let error = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
            Ok(_) => return None,
            Err(error) => error,
        };
        let text = crate::masked(&error.render().to_string(), words);
        Some(format!("{:?}", crate::wrong_usage(&text)))
    }

    /// The words of the command line that it knows: verbs, options.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        gather(&self.command, &mut words);
        words.sort_unstable();
        words.dedup();
        words
    }
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

fn gather(command: &Command, words: &mut Vec<String>) {
    for verb in command.get_subcommands() {
        words.push(verb.get_name().to_owned());
        gather(verb, words);
    }
    words.extend(command.get_arguments().filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")));
}

/// Whether a structure may be called so.
pub fn is_name(name: OsString) -> bool {
    Named { name }.checked().is_ok()
}
