//! Command lines, of `larder` and as memcached has them, and the small languages in them: times, sizes, schemas, CSV, networks.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use larder_cli::fuzzing::{Reader, is_name};
use larder_structures::lookup::{CsvOptions, LookupKey};
use larder_structures::records::Schema;

use super::{Execute, Input, Target, bounded, shown};

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target::new("command lines", Lines::new),
        Target::new("memcached's command lines", || memcached),
        Target::new("schemas", || schemas),
        Target::new("CSV", || csv),
    ]
}

/// Values that options and verbs take.
const VALUES: &[&str] = &[
    "hits",
    "-",
    "--",
    "30s",
    "1m30s",
    "500ms",
    "0",
    "-1",
    "1",
    "99999999999999999999",
    "1e300",
    "nan",
    "18446744073709551615",
    "2026-01-31T12:00:00Z",
    "age:u7",
    "place:CA|US",
    "vip=1",
    "+02:00",
    "-14:00",
    "exact",
    "compact",
    "near-exact:32",
    "sketch:12",
    "integer",
    "any",
    "tab",
    ";",
    "\t",
    "64m",
    "7d",
    "0x10",
    "192.0.2.0/24",
    "::/0",
    "bash",
    "zsh",
    "1-2-3",
    "memcached://joe:hunter2@cache",
    "memory:",
    "",
    "\u{fc}",
];

struct Lines {
    reader: Reader,
    words: Vec<String>,
}

impl Lines {
    fn new() -> Lines {
        let reader = Reader::new();
        Lines { words: reader.words(), reader }
    }

    fn word(&self, input: &mut Input) -> Vec<u8> {
        let known = &self.words[input.rng.usize(0..self.words.len())];
        let mut word = match input.rng.u8(0..6) {
            0..=2 => known.clone().into_bytes(),
            3 => format!("{known}={}", input.pick(VALUES)).into_bytes(),
            4 => input.pick(VALUES).as_bytes().to_vec(),
            _ => input.number().to_string().into_bytes(),
        };
        if input.one_in(6) {
            input.mutate(&mut word, &[b"=", b",", b":", b"\xff", b"s", b"--"], b"--store=x");
        }
        // What the system hands over ends with the first zero.
        word.retain(|&byte| byte != 0);
        word
    }
}

impl Execute for Lines {
    fn execute(&mut self, input: &mut Input) -> Result<(), String> {
        let words: Vec<Vec<u8>> = (0..input.rng.usize(0..7)).map(|_| self.word(input)).collect();
        let typed: Vec<OsString> =
            std::iter::once(b"larder".to_vec()).chain(words.clone()).map(OsString::from_vec).collect();
        let told = self.reader.read(&typed);
        let shown_words = || shown(&words.join(&b' '));
        if told.as_ref().is_some_and(|told| told.contains("message: \"\"")) {
            return Err(format!("{} is refused, and nothing said", shown_words()));
        }
        if let Some(name) = typed.last() {
            let long = name.len() > 64 || name.is_empty();
            if is_name(name.clone()) == long {
                return Err(format!("a name of {} bytes: {}", name.len(), shown_words()));
            }
        }
        Ok(())
    }
}

fn memcached(input: &mut Input) -> Result<(), String> {
    const WORDS: &[&str] = &[
        "-p",
        "-l",
        "-m",
        "-c",
        "-t",
        "-I",
        "-U",
        "-s",
        "-a",
        "-d",
        "-v",
        "-vv",
        "-u",
        "-P",
        "-A",
        "-F",
        "-X",
        "-M",
        "-f",
        "-n",
        "-o",
        "-Z",
        "-Y",
        "-B",
        "-S",
        "-R",
        "-b",
        "-h",
        "-V",
        "--port",
        "--listen",
        "--memory-limit",
        "--max-item-size",
        "--extended",
        "modern,hashpower=20",
        "127.0.0.1,::1",
        "127.0.0.1:5",
        "unix:/tmp/y",
        "0770",
        "1m",
        "2g",
        "-1",
        "0",
        "99999999999999999999",
        "-m128",
        "-I2m",
        "--store",
        "file:/tmp/x",
        "ascii",
        "",
    ];
    let mut words = Vec::new();
    for _ in 0..input.rng.usize(0..7) {
        let mut word = input.pick(WORDS).as_bytes().to_vec();
        if input.one_in(5) {
            input.mutate(&mut word, &[b"=", b",", b":", b"\xff", b"-"], b"--port=5");
        }
        words.push(word);
    }
    let typed: Vec<OsString> = words.iter().cloned().map(OsString::from_vec).collect();
    match larder_server::Args::parse(typed) {
        Err(error) if error.to_string().is_empty() => {
            Err(format!("{} is refused, and nothing said", shown(&words.join(&b' '))))
        }
        _ => Ok(()),
    }
}

fn schemas(input: &mut Input) -> Result<(), String> {
    const WORDS: &[&[u8]] = &[
        b"age", b":", b"u7", b"u64", b"u65", b"i2", b"i64", b"bit", b"bytes", b"bytes9", b"A|B", b"|", b"||", b"=",
        b"-1", b"true",
    ];
    let fields: Vec<String> =
        (0..input.rng.usize(0..5)).map(|_| String::from_utf8_lossy(&input.jumble(WORDS, 5)).into_owned()).collect();
    let bytes = fields.iter().map(String::len).sum();
    let schema = bounded("a schema", bytes, 64, || Schema::parse(fields.iter().map(String::as_str)))?;
    let Ok(schema) = schema else { return Ok(()) };
    for field in schema.fields() {
        let text = String::from_utf8_lossy(&input.jumble(WORDS, 3)).into_owned();
        let _ = field.parse(&text);
        if schema.position(field.name()).is_err() || field.offset() + field.kind().bits() > schema.bits() {
            return Err(format!("{fields:?}: {field:?} of {} bits", schema.bits()));
        }
    }
    Ok(())
}

fn csv(input: &mut Input) -> Result<(), String> {
    const WORDS: &[&[u8]] = &[
        b"network",
        b"first",
        b"last",
        b"id",
        b",",
        b";",
        b"\"",
        b"\"\"",
        b"\n",
        b"\r\n",
        b"192.0.2.0/24",
        b"192.0.2.1",
        b"192.0.2.9",
        b"::",
        b"2001:db8::/32",
        b"1",
        b"2",
        b"3",
        b"AT",
        b"/33",
        b"\xff",
        b"\xef\xbb\xbf",
        b" ",
    ];
    let bytes = input.jumble(WORDS, 24);
    let read = bounded("CSV", bytes.len(), 400, || {
        CsvOptions::new().delimiter(*input.pick(&[b",", b";"].map(|d| &d[0]))).read(&bytes[..])
    })?;
    if let Ok(rows) = read
        && rows.len() > bytes.len()
    {
        return Err(format!("{} rows of {}", rows.len(), shown(&bytes)));
    }
    let word = String::from_utf8_lossy(&input.jumble(WORDS, 2)).into_owned();
    match word.parse::<LookupKey>() {
        Ok(key) if key.to_string().parse::<LookupKey>().ok() != Some(key) => {
            Err(format!("{word:?} is {key}, and that another"))
        }
        _ => Ok(()),
    }
}
