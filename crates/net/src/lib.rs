//! What stores on the network share: addresses and dialling, TLS, and the pieces of URLs.

mod address;
mod backoff;
mod stream;
mod tls;
pub mod url;

pub use address::{Address, Auth};
pub use backoff::Backoff;
pub use stream::Stream;
pub use tls::{Connector, Tls};
