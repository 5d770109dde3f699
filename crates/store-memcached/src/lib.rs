//! Larder's memcached client: multiplexed, pipelined, honest about unknown outcomes.
//!
//! One connection a server carries the ops of all tasks: callers append to a shared buffer, one task writes whatever has
//! gathered and matches the replies in order. Many reads at a time get a second one ([`Connections::Auto`]). See [`MemcachedStore`] for
//! how to use it and [`Config::from_url`] for the options.

mod backup;
mod config;
mod conn;
mod counters;
mod driver;
pub mod fleet;
mod lane;
mod list;
mod node;
mod part;
mod probe;
mod profile;
pub mod ring;
mod sending;
mod store;
mod stream;
mod survey;
mod traffic;
mod url;

pub use config::{Config, Connections, DialectMode, FleetMode, Hash, Server};
pub use counters::Stats;
pub use larder_net::{Address, Auth, Tls};
pub use profile::BATCH_OPS_MAX;
pub use store::MemcachedStore;
