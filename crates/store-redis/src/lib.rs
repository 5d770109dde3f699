//! Larder's store on Redis and Valkey: one round trip a batch, honest about unknown outcomes.
//!
//! The client crate is `redis`: its multiplexed connection and its codec, on a transport of ours. What is ours is what an item is
//! (`layout`), where it lives (`place`), how ops become commands and scripts and replies become outcomes (`codec`, without a
//! connection), and the keeping of a connection (`node`, `link`). See [`RedisStore`] for how to use it and [`Config::from_url`] for the options.

mod cluster;
mod codec;
mod config;
mod counters;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod handshake;
mod layout;
mod link;
mod list;
mod node;
mod order;
mod place;
mod profile;
mod replicas;
mod scripts;
mod slices;
mod store;
mod survey;
mod traffic;
mod url;
mod watch;

pub use cluster::{ClusterConfig, RedisClusterStore};
pub use config::{Config, WaitReplicas};
pub use counters::Stats;
pub use larder_net::{Address, Auth, Tls};
pub use profile::BATCH_OPS_MAX;
pub use store::RedisStore;
