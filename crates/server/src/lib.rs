//! The memcached protocol over Larder's embedded stores: classic text and meta, as the newest memcached speaks them.
//!
//! | module | what it holds |
//! |---|---|
//! | `server` | listeners, workers, limits of time, the end |
//! | `conn` | one connection: when to read, when to write, what to hold |
//! | `session` | one connection's requests, without a socket: what each command does |
//! | `engine` | what is needed of a store |
//! | `env`, `conns`, `counters` | what all connections share |
//! | `hot` | keys that are asked for most, for `stats hot` |
//! | `http` | `/metrics`, `/healthz` |
//! | `listen` | sockets that are listened on |
//! | `auth`, `tls`, `notify` | who may come in; TLS; systemd |
//! | `files` | what of that is read from files, and read again |
//!
//! # What differs from memcached
//!
//! Replies are equal byte for byte to those of memcached 1.6.45, held by `tests/differential.rs`, but for tokens, times and statistics, and what follows, of which `tests/differences.rs` holds what both answer:
//!
//! - lives are kept to the millisecond: an item lives at least as long as it was told, where memcached may end it a second early;
//! - `ms` that is too large, or finds no room, deletes the item that was there in set mode without a token only, where memcached does in every mode; and what is not to be written, as an `add` of what
//!   is there, needs no room;
//! - a key comes back by `k`, and from `me`, in the form it was asked for; in memcached in the form it was stored in;
//! - `me key b` takes the key as base64, as its documentation says; memcached 1.6.45 wants another word behind it, and takes the key as it is without one;
//! - `ma` with `E` and `T` gives token and life also where the number grows by a digit;
//! - arithmetic (`incr`, `decr`, `ma`) on an item over 512 KiB, a number with so many spaces behind it, is carried out; memcached keeps such an item in chunks, and says that it is no number;
//! - a `get` with a key that is too long is answered with the error alone; memcached drops the replies before it, and adds an empty line;
//! - an opaque token that is too long is found before anything is done; memcached has done arithmetic, made an item or given it another life by then;
//! - a `get` or `gets` ends with its connection where it has no end of a line in `line_bytes_max` bytes, 1 MiB unless told otherwise; memcached gathers however many come;
//! - there are no slabs, no lists of use and no crawler: `slabs automove` and `lru_crawler` take what is well formed, and do nothing; `slabs reassign` is refused as memcached refuses it that may
//!   not, and `lru` is `ERROR`. `lru_crawler metadump` and `mgdump` list the items, and `lru_crawler backup all`, which is our own, sends one moment of a store in a folder as a dump
//!   (`OK`, then `DATA <bytes>` with a part behind it, again and again, then `END`); `-X` forbids all three. `watch` and `stats detail` are refused as memcached refuses them with `-W` and `-X`; `stats cachedump` lists items of class 1, the only one;
//! - over a store in a folder a reply comes once what it says is as durable as the store promises, and a connection whose writes may have failed is closed without one;
//!   items do not remember that they were fetched (`h`), nor when (`la`, `t` apart); `curr_items` is about right, `bytes` those on disk a second ago or so, and a value ends at 64 MB;
//! - over memory, when an item was last used (`l`, `la`) is 0 seconds ago unless `-o track_access` is given;
//! - over a store in a folder that is full, or takes no writes any more, a read by `mg` that would mark the item as won (one that is stale, or ends within `R` seconds) shows it without `W`: nobody is
//!   told to have won;
//! - a `flush_all` with a delay, or a moment to come, removes what is there a second before that, to the millisecond: memcached may do so up to a second earlier, and with it what is stored in the same
//!   second behind it;
//! - a `flush_all` with a delay is kept by the process: over a store in a folder, one that is not due when the server ends is forgotten, and the items are there at the next start;
//! - over a store in a folder a `set` that is refused for want of room leaves the item that was there, where memcached deletes it; and damage or a disk that fails is
//!   `SERVER_ERROR the store is ...`, which ends a `get` and a listing in place of `END`, never a miss;
//! - who is full evicts by a clock, not by lists of use: of what nobody has asked for since the clock's hand last came by, the next goes; so nearly all of the newest stay, and what is asked for all the time,
//!   but an item may go before one that is a little older;
//! - SIGTERM, SIGINT and SIGUSR1 all let requests under way finish; SIGHUP reads certificate and key again beside the auth file, which is all that memcached reads then;
//! - `refresh_certs` is `ERROR` where there is no TLS, as of a memcached that was built without; one that was built with it, and not told to use it, says `Error TLS not enabled`. Where it fails it is
//!   `SERVER_ERROR`, which names no file, and what was read before stays; memcached says which file it is, and may have taken a new certificate without its key;
//! - what closes idle connections (`-o idle_timeout`) counts from the last byte that came or went, not from the last command;
//! - `verbosity` changes what `stats settings` tells of it, and not what is logged: that is `-v`;
//! - `stats slabs` and `stats items` tell of one class; `stats sizes` walks over all items, whether `track_sizes` was said or not; `stats reset` leaves `/metrics` and `stats latency` as they are;
//! - a port that is taken in one family is an error, where memcached would listen in the other alone; `-p 0` is any free port, as `-p -1` is; before an address of `-l` `proto[ascii]:`,
//!   `proto[negotiating]:` and `tag[...]:` mean nothing, and `notls:`, `btls:`, `mtls:` and `proto[binary]:` are refused, since TLS is the same for all addresses and there is one protocol;
//! - `stats hot` and `stats latency` are its own: the keys that are asked for most, by a sample, and how long requests took; `-X` forbids the first, which names keys;
//! - no UDP and no binary protocol: a connection whose first byte is 0x80 is closed; one that begins as a TLS handshake does, with 0x16, gets `ERROR` at once and is closed, where memcached waits for
//!   the end of a line;
//! - who holds more than 4 KiB of a request and sends for `slow_timeout_ms` neither its end nor 4 KiB more is closed; memcached waits.
//!
//! # What no option changes
//!
//! - a TLS handshake may take 10 seconds, and who is at one holds some 64 KiB at the most of what came, and is one of `-c`: who sends half of one is closed then, and counted in `ssl_handshake_errors`;
//! - a connection takes no further request, nor the next key of a `get` or `gat`, while 256 KiB of its replies wait to be sent: so it holds so much and one value. What may be chosen is how much all hold
//!   (`-o read_buf_mem_limit=MB`) and how long one may take nothing (`-o slow_timeout_ms=MS`);
//! - nor while 256 KiB of what it wrote wait for the disk; and limits of time are looked at every 100 ms.
#![deny(unsafe_code)]

mod args;
mod auth;
mod config;
mod conn;
mod conns;
mod counters;
mod engine;
mod env;
mod extended;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hot;
mod http;
mod listen;
mod notify;
mod process;
mod server;
mod session;
#[cfg(test)]
mod tests;
mod tls;

pub use args::Args;
pub use auth::AuthFile;
pub use config::{ClientCerts, Config, Inherited, Limits, Listen, Runtime, Tls};
pub use engine::{DurableEngine, Engine, Figures, MemoryEngine, Promises, Walk};
pub use larder_store_durable::{BackupParts, DurableStore, Options as DurableOptions};
pub use larder_store_memory::MemoryStore;
pub use server::{Server, Stopper};

/// The version that clients are told: that of the memcached whose protocol this is.
pub const VERSION: &str = "1.6.45-larder";
const VERSION_LINE: &str = "VERSION 1.6.45-larder";
