//! The list behind `-o`: memcached's extended options, and ours.

use std::path::PathBuf;

use larder_core::Result;

use crate::args::{Gathered, config, number};
use crate::config::{ClientCerts, Limits, Tls};

/// What memcached 1.6.45 takes and has no meaning here: there are no slabs, no lists of use, no crawler, no storage of its own behind memory and no proxy.
const PASSED_OVER: &[&str] = &[
    "drop_privileges",
    "ext_compact_under",
    "ext_drop_under",
    "ext_drop_unread",
    "ext_io_depth",
    "ext_item_age",
    "ext_item_size",
    "ext_low_ttl",
    "ext_max_frag",
    "ext_max_sleep",
    "ext_page_size",
    "ext_path",
    "ext_recache_rate",
    "ext_threads",
    "ext_wbuf_size",
    "hash_algorithm",
    "hashpower",
    "hot_lru_pct",
    "hot_max_factor",
    "inline_ascii_resp",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "no_chunked_items",
    "no_hashexpand",
    "no_inline_ascii_resp",
    "no_lru_crawler",
    "no_lru_maintainer",
    "no_maxconns_fast",
    "no_modern",
    "no_slab_automove",
    "no_slab_reassign",
    "proxy_arg",
    "proxy_config",
    "proxy_memprofile",
    "proxy_uring",
    "resp_obj_mem_limit",
    "slab_automove",
    "slab_automove_freeratio",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "slab_reassign",
    "slab_sizes",
    "sock_cookie_id",
    "ssl_ciphers",
    "ssl_kernel_tls",
    "ssl_wbuf_size",
    "tail_repair_time",
    "temporary_ttl",
    "warm_lru_pct",
    "warm_max_factor",
    "watcher_logbuf_size",
    "worker_logbuf_size",
];

/// What is so anyway.
const SO_ANYWAY: &[&str] = &["maxconns_fast", "modern", "no_drop_privileges", "ssl_session_cache", "track_sizes"];

/// What `-o` says of TLS.
#[derive(Debug, Default)]
pub(crate) struct TlsWords {
    pub(crate) chain: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    verify_mode: u8,
    only_1_3: bool,
}

impl TlsWords {
    /// What they come to, once `-Z` is said.
    pub(crate) fn tls(self) -> Result<Tls> {
        let Some(chain) = self.chain else {
            return config("TLS needs a certificate: --tls-cert, or -o ssl_chain_cert".to_owned());
        };
        let clients = match (self.verify_mode, self.client_ca) {
            // As in memcached: a list of signers alone asks nobody.
            (0, _) => ClientCerts::Unasked,
            (_, None) => return config("-o ssl_verify_mode needs -o ssl_ca_cert, who may sign for clients".to_owned()),
            (1, Some(ca)) => ClientCerts::Asked(ca),
            (_, Some(ca)) => ClientCerts::Required(ca),
        };
        let key = self.key.unwrap_or_else(|| chain.clone());
        Ok(Tls { chain, key, clients, only_1_3: self.only_1_3 })
    }
}

/// Takes one option of the list. `ignored` gets a line for what is passed over.
///
/// # Errors
/// [`Config`](larder_core::ErrorKind::Config) for one that neither memcached nor this server knows, or a value that it does not take.
pub(crate) fn take(
    option: &str,
    limits: &mut Limits,
    gathered: &mut Gathered,
    ignored: &mut Vec<String>,
) -> Result<()> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let whole = format!("-o {name}");
    let tls = &mut gathered.tls_words;
    match name {
        "idle_timeout" => limits.idle_timeout_ms = number::<u64>(&whole, value)?.saturating_mul(1_000),
        "exit_when_idle" => limits.exit_when_idle_ms = number::<u64>(&whole, value)?.saturating_mul(1_000),
        "read_buf_mem_limit" => match number::<usize>(&whole, value)? {
            // Without a limit in memcached; here there is always one.
            0 => ignored.push(format!("-o {option}")),
            megabytes => limits.held_bytes_max = megabytes.saturating_mul(1 << 20),
        },
        "track_access" => limits.track_access = true,
        "no_track_access" => limits.track_access = false,
        "slow_timeout_ms" => limits.slow_timeout_ms = number(&whole, value)?,
        "drain_timeout_ms" => limits.drain_timeout_ms = number(&whole, value)?,
        "line_bytes_max" => limits.line_bytes_max = number(&whole, value)?,
        "ssl_chain_cert" => tls.chain = Some(path(&whole, value)?),
        "ssl_key" => tls.key = Some(path(&whole, value)?),
        "ssl_ca_cert" => tls.client_ca = Some(path(&whole, value)?),
        "ssl_verify_mode" => match number::<u8>(&whole, value)? {
            mode @ 0..=3 => tls.verify_mode = mode,
            _ => return config(format!("{whole} takes 0 to 3, not {value:?}")),
        },
        "ssl_min_version" => match number::<u8>(&whole, value)? {
            // Older ones than 1.2 are spoken by nobody here.
            0 | 1 => ignored.push(format!("-o {option}")),
            version @ (2 | 3) => tls.only_1_3 = version == 3,
            _ => return config(format!("{whole} takes 0 to 3, not {value:?}")),
        },
        "ssl_keyformat" if number::<u8>(&whole, value)? != 1 => {
            return config(format!("{whole}: a key is PEM here, format 1"));
        }
        "ssl_keyformat" => {}
        _ if SO_ANYWAY.contains(&name) => {}
        _ if PASSED_OVER.contains(&name) => ignored.push(format!("-o {option}")),
        _ => return config(format!("no option {whole}; memcached has none of that name either")),
    }
    Ok(())
}

fn path(name: &str, value: &str) -> Result<PathBuf> {
    if value.is_empty() { config(format!("{name} takes a file")) } else { Ok(PathBuf::from(value)) }
}
