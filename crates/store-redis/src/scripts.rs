//! The Lua scripts: what Redis has no single command for.
//!
//! Each touches the one key in `KEYS[1]`, so it runs on the node of that key's slot. All begin by looking at the first bytes of what is
//! there, or for a mark in it, so that nothing is written over a value of another program; a key of another type fails there, before anything is written.
//! They are loaded at each handshake and called by their hash (`EVALSHA`). Numbers stand in them as text where a command takes them: Redis 7
//! prints a number of Lua with 17 digits, which takes longer than some commands.

use std::fmt;
use std::sync::LazyLock;

use crate::handshake::COMMANDS;

/// A script of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Set,
    Cas,
    Append,
    Prepend,
    Delete,
    Touch,
    Arith,
    Head,
    Read,
    RangeGet,
    RangePut,
    Guarded,
    GuardedBits,
}

impl Script {
    pub(crate) const ALL: [Script; 13] = [
        Script::Set,
        Script::Cas,
        Script::Append,
        Script::Prepend,
        Script::Delete,
        Script::Touch,
        Script::Arith,
        Script::Head,
        Script::Read,
        Script::RangeGet,
        Script::RangePut,
        Script::Guarded,
        Script::GuardedBits,
    ];

    /// What the server runs.
    pub(crate) fn source(self) -> &'static str {
        match self {
            Script::Set => include_str!("scripts/set.lua"),
            Script::Cas => include_str!("scripts/cas.lua"),
            Script::Append => include_str!("scripts/append.lua"),
            Script::Prepend => include_str!("scripts/prepend.lua"),
            Script::Delete => include_str!("scripts/delete.lua"),
            Script::Touch => include_str!("scripts/touch.lua"),
            Script::Arith => include_str!("scripts/arith.lua"),
            Script::Head => include_str!("scripts/head.lua"),
            Script::Read => include_str!("scripts/read.lua"),
            Script::RangeGet => include_str!("scripts/range_get.lua"),
            Script::RangePut => include_str!("scripts/range_put.lua"),
            Script::Guarded => include_str!("scripts/guarded.lua"),
            Script::GuardedBits => include_str!("scripts/guarded_bits.lua"),
        }
    }

    /// The commands that it may call.
    pub(crate) fn calls(self) -> Vec<&'static str> {
        COMMANDS.into_iter().filter(|command| self.source().contains(&format!("'{command}'"))).collect()
    }

    /// The name that the server gives it: 40 hexadecimal digits.
    pub(crate) fn sha(self) -> &'static str {
        static SHAS: LazyLock<[String; Script::ALL.len()]> =
            LazyLock::new(|| Script::ALL.map(|script| redis::Script::new(script.source()).get_hash().to_owned()));
        &SHAS[self as usize]
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sha())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_printed_for_a_command() {
        for script in Script::ALL {
            for call in script.source().split("call('").skip(1) {
                let arguments = call.split([')', '(']).next().unwrap_or_default();
                let number = arguments.split(", ").find(|argument| argument.parse::<f64>().is_ok());
                assert_eq!(number, None, "{}", script.source());
            }
        }
    }
}
