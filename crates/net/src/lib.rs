//! What stores on the network share: addresses and dialling, whether a server is reached, TLS, waiting for several servers, and the pieces of URLs.

mod address;
mod backoff;
mod barren;
mod health;
mod stream;
mod tls;
mod together;
pub mod url;

pub use address::{Address, Auth};
pub use backoff::Backoff;
pub use barren::{down_by_barren, is_barren};
pub use health::Health;
pub use stream::Stream;
pub use tls::{Connector, Tls};
pub use together::all_of;
