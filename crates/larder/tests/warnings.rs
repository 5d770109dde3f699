//! What a store that is opened warns of is told to programs that have no look at its profile.
#![cfg(all(feature = "redis", feature = "memory", feature = "tracing"))]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use larder_testkit::redis::{Eviction, RedisOptions, RedisServer, RedisVersion};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn what_a_store_warns_of_is_told_once_an_open_without_a_password() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _told = tracing::subscriber::set_default(subscriber);
    let options = RedisOptions::new().maxmemory(64 << 20, Eviction::AllKeysLru).password("s3cret");
    let server = RedisServer::start(RedisVersion::Redis7, &options);
    let told = || String::from_utf8(std::mem::take(&mut *lines.0.lock().unwrap())).unwrap();
    let url = format!("redis://:s3cret@{}", server.addr());
    for open in 0..2 {
        let store = larder::open(&url).await.unwrap();
        let said = told();
        assert_eq!(store.profile().warnings.len(), 1);
        assert_eq!(said.lines().count(), 1, "open {open}: {said}");
        for part in ["WARN larder: ", &store.profile().warnings[0], "set maxmemory-policy noeviction", "store=redis://"]
        {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
    larder::open("memory:").await.unwrap();
    let fine = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    larder::open(&fine.url()).await.unwrap();
    assert_eq!(told(), "");
}
