//! What the tests on real memcached servers share.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::proxy::Rates;
use larder_testkit::servers::Version;

/// Servers and the dialects they are spoken to in.
pub(crate) const COLUMNS: [(Version, &str); 4] =
    [(Version::Old, "auto"), (Version::Old, "classic"), (Version::New, "auto"), (Version::New, "classic")];

/// A network that cuts connections, and each of whose three other faults befalls the share `each` of the requests.
pub(crate) fn bad_network(each: f64) -> Rates {
    Rates {
        lost_request: each,
        lost_reply: each,
        late_delivery: each,
        cut_request: 0.02,
        cut_reply: 0.02,
        late_ms_max: 50,
        ..Rates::default()
    }
}

/// A client of its own, with connections of its own: another process.
pub(crate) async fn client(addr: SocketAddr, options: &str) -> StoreRef {
    let config = Config::from_url(&format!("memcached://{addr}?{options}")).unwrap();
    Arc::new(MemcachedStore::connect(config).await.unwrap())
}

/// Sends a command as another program would.
pub(crate) fn command(addr: SocketAddr, request: &str, reply: &str) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), reply);
}
