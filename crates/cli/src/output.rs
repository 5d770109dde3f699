//! What goes to standard output: plain, one value a line; or JSON, one object or array a line.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Number, Value, json};

use crate::exit::{Failure, say};

/// Which of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) json: bool,
}

impl Out {
    /// Says on standard error what endangers the data, and how to mend it.
    pub(crate) fn warn(self, warning: &str) {
        if self.json {
            say(&json!({ "warning": warning }).to_string());
        } else {
            say(&format!("\x1b[1;33mwarning:\x1b[0m {warning}"));
        }
    }

    /// Prints one answer: its fields as a JSON object, or `plain`, which may be empty and then prints nothing.
    pub(crate) fn answer(self, plain: &str, object: &Value) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{object}")?;
        } else if !plain.is_empty() {
            writeln!(out, "{plain}")?;
        }
        out.flush()?;
        Ok(())
    }

    /// Prints many answers, a line each.
    pub(crate) fn answers(self, answers: impl Iterator<Item = (impl fmt::Display, Value)>) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        for (plain, object) in answers {
            if self.json {
                writeln!(out, "{object}")?;
            } else {
                writeln!(out, "{plain}")?;
            }
        }
        out.flush()?;
        Ok(())
    }

    /// The same of lines that may hold bytes of any kind, which stay as they are.
    pub(crate) fn raw_answers(self, answers: impl Iterator<Item = (Vec<u8>, Value)>) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        for (mut plain, object) in answers {
            if self.json {
                writeln!(out, "{object}")?;
            } else {
                plain.push(b'\n');
                out.write_all(&plain)?;
            }
        }
        out.flush()?;
        Ok(())
    }

    /// Prints byte strings: a raw line each, or one array.
    pub(crate) fn list(self, values: &[impl AsRef<[u8]>]) -> Result<(), Failure> {
        let mut out = BufWriter::new(io::stdout().lock());
        if self.json {
            let array: Vec<Value> = values.iter().map(|value| bytes(value.as_ref())).collect();
            writeln!(out, "{}", Value::Array(array))?;
        } else {
            for value in values {
                out.write_all(value.as_ref())?;
                out.write_all(b"\n")?;
            }
        }
        out.flush()?;
        Ok(())
    }
}

/// Bytes in JSON: a string where they are UTF-8, else `{"base64": …}`.
pub(crate) fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => json!({ "base64": BASE64_STANDARD.encode(bytes) }),
    }
}

/// A number in JSON, however large.
pub(crate) fn number(number: i128) -> Value {
    Number::from_i128(number).map_or_else(|| Value::from(number.to_string()), Value::Number)
}

/// An argument as the bytes that the shell handed over.
pub(crate) fn argument(argument: &OsStr) -> &[u8] {
    argument.as_bytes()
}

/// Bytes as an argument or a variable of the environment.
pub(crate) fn os_string(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_carries_any_bytes_and_any_number() {
        assert_eq!(bytes("grün\n".as_bytes()).to_string(), "\"grün\\n\"");
        assert_eq!(bytes(b"\xff\0").to_string(), "{\"base64\":\"/wA=\"}");
        assert_eq!(number(i128::MIN).to_string(), "-170141183460469231731687303715884105728");
        assert_eq!(json!({ "value": number(7) }).to_string(), "{\"value\":7}");
    }
}
