//! The options of `file:`.

use std::time::Duration;

use larder_core::text::url_options;
use larder_core::{Error, Result};
use larder_store_durable::{NoSync, Options};

use crate::spelling::nearest;
use crate::url_options::{config, not_taken, parsed, size};

const OPTIONS: &[&str] =
    &["cache_bytes", "create", "reserve_bytes", "share", "sync", "value_bytes_max", "wait_ms", "witness"];

/// What stands behind `file:`.
pub(crate) struct Place {
    pub(crate) options: Options,
    /// To be used in turns with other processes.
    pub(crate) is_shared: bool,
}

/// Reads what stands behind `file:`.
pub(crate) fn parse(rest: &str) -> Result<Place> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    // `file:///var/lib/larder` is `file:/var/lib/larder`.
    let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
    if path.is_empty() || path.starts_with("//") {
        return Err(config("file: takes the path of a folder: file:/var/lib/larder, file:larder.store".to_owned()));
    }
    let (mut store, mut is_shared) = (Options::new(path), false);
    for (name, value) in url_options(options).map_err(config)? {
        store = match name {
            "sync" => store.sync(value.parse().map_err(|_| not_taken(name, value, NoSync::FORM))?),
            "value_bytes_max" => store.value_bytes_max(size(name, value)?),
            "cache_bytes" => store.cache_bytes(size(name, value)? as u64),
            "reserve_bytes" => store.reserve_bytes(size(name, value)? as u64),
            "wait_ms" => store.wait(Duration::from_millis(parsed(name, value, "a number of ms")?)),
            "create" => store.create(yes_or_no(name, value)?),
            "share" => {
                is_shared = yes_or_no(name, value)?;
                store
            }
            "witness" if !value.is_empty() => store.witness(value),
            "witness" => return Err(not_taken(name, value, "the path of a file")),
            _ => return Err(unknown(name)),
        };
    }
    Ok(Place { options: store, is_shared })
}

fn yes_or_no(name: &str, value: &str) -> Result<bool> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(not_taken(name, value, "yes or no")),
    }
}

fn unknown(name: &str) -> Error {
    let hint = nearest(name, OPTIONS).map(|meant| format!("; did you mean {meant}")).unwrap_or_default();
    config(format!("file: has no option {name:?}; it has {}{hint}", OPTIONS.join(", ")))
}

#[cfg(test)]
mod tests {
    use larder_core::{Durability, ErrorKind, Store};

    use super::*;

    #[test]
    fn options_reach_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s").display().to_string();
        let open = |rest: &str| parse(rest).unwrap().options.open();
        let profile = |options: &str| open(&format!("{path}{options}")).unwrap().profile();
        assert_eq!(profile("?sync=every:50ms").durability, Durability::Recent);
        let large = profile("?value_bytes_max=2m&cache_bytes=1m&reserve_bytes=0&wait_ms=5");
        assert_eq!((large.durability, large.item_bytes_max), (Durability::Disk, (2 << 20) + 250));
        assert!(open(&format!("//{path}")).is_ok());
        let witness = folder.path().join("witness");
        let place = parse(&format!("{path}?share=yes&witness={}", witness.display())).unwrap();
        assert!(place.is_shared);
        place.options.open_shared().unwrap();
        assert!(witness.exists());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (rest, named) in [
            ("", "takes the path of a folder"),
            ("//host/path", "takes the path of a folder"),
            (
                "x?snyc=always",
                "no option \"snyc\"; it has cache_bytes, create, reserve_bytes, share, sync, value_bytes_max, wait_ms, witness; did you mean sync",
            ),
            ("x?sync=every:2h", "sync takes always, never or every:100ms (1 ms to 1 h, in ms or s), not"),
            (
                "x?sync=sometimes",
                "sync takes always, never or every:100ms (1 ms to 1 h, in ms or s), not \"sometimes\"",
            ),
            ("x?sync=always&sync=never", "the option sync is given twice"),
            ("x?share=maybe", "share takes yes or no, not \"maybe\""),
            ("x?create=", "create takes yes or no, not \"\""),
            ("no/such/folder?create=no", "no/such/folder holds no store, and none is to be made there"),
            ("x?witness=", "witness takes the path of a file"),
            ("x?sync=every:0ms", "not \"every:0ms\""),
            ("x?value_bytes_max=65m", "value_bytes_max is 68157440; it takes 1 to 67108864"),
        ] {
            let error = parse(rest).and_then(|place| place.options.open()).expect_err(rest);
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
