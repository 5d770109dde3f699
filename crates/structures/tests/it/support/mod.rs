//! Stores that tests can look into and break, and real servers.

pub(crate) mod answering;
pub(crate) mod far;
pub(crate) mod hooked;
pub(crate) mod memcached;
pub(crate) mod natives;
pub(crate) mod peak;
pub(crate) mod probe;
pub(crate) mod scene;
pub(crate) mod shaped;
pub(crate) mod sieve;
pub(crate) mod slow;
pub(crate) mod steady;
pub(crate) mod stuck;
pub(crate) mod turning;
pub(crate) mod twice;
