//! What options of URLs have in common.

use std::str::FromStr;

use larder_core::{Error, ErrorKind, Result};

/// A number of bytes: `4096`, `64k`, `64m`, `2g`.
pub(crate) fn size(name: &str, text: &str) -> Result<usize> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let form = "a number of bytes such as 4096, 64k, 64m or 2g";
    let number: usize = parsed(name, digits, form).map_err(|_| not_taken(name, text, form))?;
    number.checked_mul(1 << shift).ok_or_else(|| not_taken(name, text, form))
}

/// A value of a type that is written as it is printed; `form` says what the option takes.
pub(crate) fn parsed<T: FromStr>(name: &str, text: &str, form: &str) -> Result<T> {
    text.parse().map_err(|_| not_taken(name, text, form))
}

pub(crate) fn not_taken(name: &str, text: &str, form: &str) -> Error {
    config(format!("the option {name} takes {form}, not {text:?}"))
}

pub(crate) fn config(detail: String) -> Error {
    Error::new(ErrorKind::Config, detail)
}
