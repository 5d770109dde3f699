//! The options of `memory:`.

use larder_core::text::{masked_url, url_options};
use larder_core::{Error, Result};
use larder_store_memory::MemoryStore;

use crate::spelling::nearest;
use crate::url_options::{config, parsed, size};

const OPTIONS: &[&str] = &["bytes_max", "evict", "shards", "value_bytes_max"];

/// Makes the store that stands behind `memory:`.
pub(crate) fn open(rest: &str) -> Result<MemoryStore> {
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    // No option takes an `@`: what has one is the address of a server, with or without a password.
    if !place.trim_matches('/').is_empty() || rest.contains('@') {
        // All of it tells where a password ends: there may be a question mark in one.
        let url = masked_url(&format!("memory:{rest}"));
        let place = url.trim_start_matches("memory:").split('?').next().unwrap_or_default();
        return Err(config(format!("memory: takes options only, and no place: {place:?}")));
    }
    let mut store = MemoryStore::builder();
    for (name, value) in url_options(options).map_err(config)? {
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

fn unknown(name: &str) -> Error {
    let hint = nearest(name, OPTIONS).map(|meant| format!("; did you mean {meant}")).unwrap_or_default();
    config(format!("memory: has no option {name:?}; it has {}{hint}", OPTIONS.join(", ")))
}

#[cfg(test)]
mod tests {
    use larder_core::{ErrorKind, Store};

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
            ("?evict=true&evict=false", "the option evict is given twice"),
            ("?evict=yes", "evict takes true or false, not \"yes\""),
            ("?bytes_max=12q", "such as 4096, 64k, 64m or 2g, not \"12q\""),
            ("?bytes_max=99999999999999999999", "not \"99999999999999999999\""),
            ("?bytes_max=99999999999999999g", "not \"99999999999999999g\""),
            ("?bytes_max=ü", "not \"ü\""),
            ("?shards=0", "shards is 0"),
            ("localhost", "no place: \"localhost\""),
            ("joe:sec?ret@h", "no place: \"***@h\""),
            ("joe:1234?ab=c@h", "no place: \"***@h\""),
            ("?ab=c@h", "no place: \"***@h\""),
        ] {
            let error = open(options).expect_err(options);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
