//! Sessions, from a seed.

use std::ops::Range;

use fastrand::Rng;

/// Tokens that sessions give with `E`; all others are drawn by the servers.
pub const TOKENS: Range<u64> = 1_000_000..2_000_000;

/// What a generated session is made of: few keys, values that are numbers or nearly, every flag of the meta commands, and some garbage.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    token: u64,
}

impl Generator {
    /// From a seed.
    pub fn new(seed: u64) -> Generator {
        Generator { rng: Rng::with_seed(seed), token: TOKENS.start }
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.rng.usize(0..of.len())]
    }

    fn key(&mut self) -> &'static str {
        self.pick(&["a", "b", "c", "n", "m", "long-key-of-some-length"])
    }

    fn value(&mut self) -> String {
        match self.rng.u8(0..5) {
            0 => self.rng.u64(0..200).to_string(),
            1 => u64::MAX.to_string(),
            2 => String::new(),
            3 => "v".repeat(self.rng.usize(0..400)),
            _ => self.pick(&["9 ", "abc", "10", "007", "-1", " 5", "99"]).to_owned(),
        }
    }

    fn exptime(&mut self) -> &'static str {
        self.pick(&["0", "0", "0", "1000", "5000", "-1", "2000000000", "100000000"])
    }

    /// Tokens grow, and older ones are asked for.
    fn fresh_token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    fn old_token(&mut self) -> u64 {
        if self.rng.u8(0..8) == 0 { 0 } else { self.token - self.rng.u64(0..4).min(self.token - TOKENS.start) }
    }

    fn noreply(&mut self) -> &'static str {
        self.pick(&["", "", "", " noreply"])
    }

    /// A classic command, with its value if it has one.
    pub fn classic(&mut self) -> String {
        let (key, value, noreply) = (self.key(), self.value(), self.noreply());
        let (flags, exptime) = (self.pick(&["0", "7", "4294967295"]), self.exptime());
        let bytes = value.len();
        match self.rng.u8(0..12) {
            0..=3 => {
                let verb = self.pick(&["set", "set", "add", "replace", "append", "prepend"]);
                format!("{verb} {key} {flags} {exptime} {bytes}{noreply}\r\n{value}\r\n")
            }
            4 => {
                let token = self.old_token();
                format!("cas {key} {flags} {exptime} {bytes} {token}{noreply}\r\n{value}\r\n")
            }
            5 => format!("get {key} {} {}\r\n", self.key(), self.key()),
            6 => format!("gets {key}\r\n"),
            7 => format!("{} {exptime} {key} {}\r\n", self.pick(&["gat", "gats"]), self.key()),
            8 => format!("delete {key}{noreply}\r\n"),
            9 => format!("touch {key} {exptime}{noreply}\r\n"),
            _ => {
                let delta = self.pick(&["1", "0", "5", "18446744073709551615", "x", "-1"]);
                format!("{} {key} {delta}{noreply}\r\n", self.pick(&["incr", "decr"]))
            }
        }
    }

    fn flags(&mut self, of: &[&str], most: usize) -> String {
        let mut text = String::new();
        for _ in 0..self.rng.usize(0..=most) {
            let flag = self.pick(of);
            let argument = match flag {
                "T" | "N" => self.pick(&["0", "1000", "7000", "-1"]).to_owned(),
                "R" => self.pick(&["0", "30", "2000", "9000"]).to_owned(),
                "E" => self.fresh_token().to_string(),
                "C" => self.old_token().to_string(),
                "O" => self.rng.u32(..).to_string(),
                "F" => self.pick(&["0", "1", "4294967295", "x"]).to_owned(),
                "J" | "D" => self.pick(&["0", "1", "13", "18446744073709551615", "y"]).to_owned(),
                "M" => self.pick(&["S", "E", "A", "P", "R", "set", "I", "D", "+", "-", "z", ""]).to_owned(),
                _ => String::new(),
            };
            text.push_str(&format!(" {flag}{argument}"));
        }
        text
    }

    /// A meta command, with its value if it has one.
    pub fn meta(&mut self) -> String {
        let (key, value) = (self.key(), self.value());
        match self.rng.u8(0..9) {
            // `t` and `T-1` in one request: memcached prints a life that has passed as a huge one.
            0..=2 => {
                let life = self.pick(&["t", "s"]);
                let flags = self.flags(&["v", "c", "f", "h", "k", "l", "s", "q", "u", "O", "C", "N", "R"], 6);
                format!("mg {key}{flags} {life}\r\n").replace("N-1", "N1000")
            }
            3 => format!("mg {key}{}\r\n", self.flags(&["v", "c", "T", "h", "N", "E", "R", "k", "q"], 5)),
            4 | 5 => {
                let flags = self.flags(&["c", "C", "E", "F", "I", "k", "O", "q", "s", "T", "M", "N"], 5);
                format!("ms {key} {}{flags}\r\n{value}\r\n", value.len())
            }
            6 => format!("md {key}{}\r\n", self.flags(&["C", "E", "I", "k", "O", "q", "T", "x", "F"], 4)),
            7 => {
                // `E` and `T` are lost by memcached where the number grows by a digit.
                let flags = self.flags(&["C", "N", "J", "D", "M", "O", "q", "c", "v", "k"], 5);
                format!("ma {key}{flags}\r\n")
            }
            _ => self
                .pick(&["me b\r\n", "me a\r\n", "me n\r\n", "mg bG9uZw== b v k\r\n", "ms bG9uZw== 2 b k\r\nhi\r\n"])
                .to_owned(),
        }
    }

    /// A line that is hardly a command; never one that has a body, or whose reply tells of the server.
    pub fn garbage(&mut self) -> String {
        let words =
            ["set", "a", "0", "-1", "mg", "ms", "v", "noreply", "99999999999", "M", "\t", " ", "cas", "stats", "x"];
        let mut line = String::new();
        for _ in 0..self.rng.usize(0..7) {
            line.push_str(self.pick(&words));
            line.push_str(self.pick(&[" ", " ", "  ", ""]));
        }
        // What has a body would take in what follows, and statistics differ; that is tried elsewhere.
        let other = ["set", "cas", "ms", "stats"].iter().any(|name| line.trim_start().starts_with(name));
        let end = self.pick(&["\r\n", "\r\n", "\n"]);
        if other { format!("x{line}{end}") } else { format!("{line}{end}") }
    }

    /// A session: a flush, and up to 59 requests.
    pub fn session(&mut self) -> Vec<Vec<u8>> {
        let requests = (0..self.rng.usize(1..60)).map(|_| match self.rng.u8(0..20) {
            0..=8 => self.classic(),
            9..=18 => self.meta(),
            _ => self.garbage(),
        });
        let requests: Vec<String> = requests.collect();
        std::iter::once("flush_all\r\n".to_owned()).chain(requests).map(String::into_bytes).collect()
    }
}
