//! What a store on a cluster needs to know before it connects.

use std::fmt;

use larder_core::Result;
use larder_net::Address;

use super::map::Place;
use crate::config::Config;

/// How to reach a cluster, and how to treat its nodes.
///
/// Made from a URL by [`from_url`](ClusterConfig::from_url). Printing it masks the password.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Nodes to ask for the others, the first of them first: any that are likely to be up, primaries or replicas.
    pub seeds: Vec<(String, u16)>,
    /// How every node is treated; its address and database are not used.
    pub node: Config,
}

impl ClusterConfig {
    /// The most seeds.
    pub const SEEDS_MAX: usize = 64;

    /// Reads a URL: `redis-cluster://[user:password@]host[:port][,host[:port]…][?option=value[&…]]`, `rediss-cluster://…` for TLS with the same
    /// parts. The options are those of [`Config::from_url`], but for `database`: a cluster has one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](larder_core::ErrorKind::Config), naming the part and what it takes.
    ///
    /// ```
    /// use larder_store_redis::ClusterConfig;
    /// let config = ClusterConfig::from_url("redis-cluster://a,b:7001?timeout_ms=200")?;
    /// assert_eq!(config.seeds, [("a".to_owned(), 6_379), ("b".to_owned(), 7_001)]);
    /// let error = ClusterConfig::from_url("redis-cluster://a?database=1").unwrap_err();
    /// assert!(error.to_string().contains("a cluster has one database"));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<ClusterConfig> {
        crate::url::parse_cluster(url)
    }

    /// The configuration of a node.
    pub(crate) fn of(&self, place: &Place) -> Config {
        let address = Address::Tcp { host: place.host.clone(), port: place.port };
        Config { address, database: 0, ..self.node.clone() }
    }

    pub(crate) fn seeds(&self) -> impl Iterator<Item = Place> {
        self.seeds.iter().map(|(host, port)| Place { host: host.clone(), port: *port })
    }
}

impl fmt::Display for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, place) in self.seeds().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let Place { host, port } = place;
            write!(f, "{comma}{}", Address::Tcp { host, port })?;
        }
        Ok(())
    }
}
