//! The options of `memory:`.

use std::str::FromStr;

use larder_core::text::masked_url;
use larder_core::{Error, ErrorKind, Result};
use larder_store_memory::MemoryStore;

use crate::spelling::nearest;

const OPTIONS: &[&str] = &["bytes_max", "evict", "shards", "value_bytes_max"];

/// Makes the store that stands behind `memory:`.
pub(crate) fn open(rest: &str) -> Result<MemoryStore> {
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    if !place.trim_matches('/').is_empty() {
        return Err(config(format!("memory: takes options only, and no place: {:?}", masked_url(place))));
    }
    let mut store = MemoryStore::builder();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        store = match name {
            "bytes_max" => store.bytes_max(size(name, value)?),
            "value_bytes_max" => store.value_bytes_max(size(name, value)?),
            "evict" => store.evict(parsed(name, value, "true or false")?),
            "shards" => store.shards(parsed(name, value, "a number")?),
            _ => return Err(unknown(name)),
        };
    }
    store.build()
}

/// A number of bytes: `4096`, `64k`, `64m`, `2g`.
fn size(name: &str, text: &str) -> Result<usize> {
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

fn parsed<T: FromStr>(name: &str, text: &str, form: &str) -> Result<T> {
    text.parse().map_err(|_| not_taken(name, text, form))
}

fn not_taken(name: &str, text: &str, form: &str) -> Error {
    config(format!("the option {name} takes {form}, not {text:?}"))
}

fn unknown(name: &str) -> Error {
    let hint = nearest(name, OPTIONS).map(|meant| format!("; did you mean {meant}")).unwrap_or_default();
    config(format!("memory: has no option {name:?}; it has {}{hint}", OPTIONS.join(", ")))
}

fn config(detail: String) -> Error {
    Error::new(ErrorKind::Config, detail)
}

#[cfg(test)]
mod tests {
    use larder_core::Store;

    use super::*;

    #[test]
    fn options_reach_the_store() {
        let profile = |options: &str| open(options).unwrap().profile();
        assert!(profile("?bytes_max=64m&evict=true").may_evict());
        assert!(!profile("").may_evict());
        let large = profile("?value_bytes_max=2m").item_bytes_max;
        assert_eq!(large - profile("//?value_bytes_max=1m&").item_bytes_max, 1 << 20);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (options, named) in [
            (
                "?evcit=true",
                "no option \"evcit\"; it has bytes_max, evict, shards, value_bytes_max; did you mean evict",
            ),
            ("?evict", "evict takes true or false, not \"\""),
            ("?evict=yes", "evict takes true or false, not \"yes\""),
            ("?bytes_max=12q", "such as 4096, 64k, 64m or 2g, not \"12q\""),
            ("?bytes_max=99999999999999999999", "not \"99999999999999999999\""),
            ("?bytes_max=99999999999999999g", "not \"99999999999999999g\""),
            ("?bytes_max=ü", "not \"ü\""),
            ("?shards=0", "shards is 0"),
            ("localhost", "no place: \"localhost\""),
        ] {
            let error = open(options).expect_err(options);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
