//! Reports and advice on real memcached servers.

use std::sync::Arc;

use larder_core::survey::{Pace, Survey};
use larder_core::{Batch, Ctx, Key, Op, PutMode, StoreExt, StoreRef, Ttl, Want};
use larder_footprint::{Act, Options, Report, report};
use larder_store_memcached::{Config, MemcachedStore};
use larder_structures::{Counter, Set};
use larder_testkit::servers::{Memcached, Version};

async fn open(urls: &str) -> Arc<MemcachedStore> {
    Arc::new(MemcachedStore::connect(Config::from_url(urls).unwrap()).await.unwrap())
}

async fn look(store: &Arc<MemcachedStore>) -> Report {
    let plain: StoreRef = store.clone();
    let options = Options { pace: Pace::UNBOUNDED, elements: true, ..Options::default() };
    report(&plain, &**store, &options, &mut |_| ()).await.unwrap()
}

/// Puts items of a size each.
async fn fill(store: &Arc<MemcachedStore>, prefix: &str, count: usize, value_bytes: impl Fn(usize) -> usize) {
    let plain: StoreRef = store.clone();
    let ops: Vec<Op> = (0..count)
        .map(|number| {
            let key = Key::new(format!("{prefix}:{number:06}")).unwrap();
            Op::put(key, PutMode::Set, vec![b'v'; value_bytes(number)], Ttl::Never)
        })
        .collect();
    for part in ops.chunks(500) {
        for reply in plain.run(Ctx::default(), part.iter().cloned().collect::<Batch>()).await {
            reply.unwrap();
        }
    }
}

/// What its chunks that are in use take.
fn chunks(server: &Memcached) -> f64 {
    let slabs = server.stats("slabs");
    let of = |class: u32, what: &str| {
        let line = slabs.lines().find_map(|line| line.strip_prefix(&format!("STAT {class}:{what} ")));
        line.map_or(0.0, |value| value.trim().parse().unwrap())
    };
    (1..64).map(|class| of(class, "chunk_size") * of(class, "used_chunks")).sum()
}

#[tokio::test]
async fn sizes_add_up_to_what_the_server_counts() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let store = open(&server.url()).await;
        fill(&store, "page", 3_000, |number| number % 900).await;
        fill(&store, "user", 500, |_| 20).await;
        let plain: StoreRef = store.clone();
        Set::open_or_create(&plain, "tags").await.unwrap().add(["red", "green"]).await.unwrap();
        let report = look(&store).await;
        assert_eq!((report.keys, report.bytes.error), (3_502, 0.0), "{version:?}");
        assert_eq!(report.bytes.value, server.stat("bytes") as f64, "{version:?}");
        let resident: f64 = report.groups.iter().map(|group| group.resident_bytes.unwrap()).sum();
        assert_eq!(resident, chunks(&server), "{version:?}");
        let users = report.groups.iter().find(|group| group.owner.to_string() == "user:*").unwrap();
        assert_eq!((users.keys, users.value_bytes, users.expiring), (500, Some(20.0), Some(0.0)), "{version:?}");
        let tags = &report.structures[0];
        assert_eq!((tags.name.as_bytes(), tags.keys, tags.elements), (&b"tags"[..], 2, Some(2.0)), "{version:?}");
        // Asked again, on the connection that was kept.
        let connections = server.stat("total_connections");
        for _ in 0..3 {
            let vitals = store.vitals(Ctx::default()).await.pop().unwrap().unwrap();
            assert_eq!(vitals.items, Some(3_502));
        }
        assert_eq!(server.stat("total_connections"), connections + 1, "this one");
    }
}

#[tokio::test]
async fn what_advice_claims_of_a_growth_factor_is_what_applying_it_saves() {
    for version in Version::ALL {
        let server = Memcached::start(version, &["-m", "256"]);
        let store = open(&server.url()).await;
        // 1,000 to 1,060 bytes: just over a chunk of 944, in one of 1,184.
        fill(&store, "page", 20_000, |number| 900 + number % 60).await;
        let report = look(&store).await;
        let advice = &report.advice[0];
        let Act::Options(options) = &advice.act else { panic!("{advice:?}") };
        assert_eq!(options[0].name, "-f", "{version:?}");
        let better = Memcached::start(version, &["-m", "256", "-f", &options[0].value]);
        let other = open(&better.url()).await;
        fill(&other, "page", 20_000, |number| 900 + number % 60).await;
        let saved = chunks(&server) - chunks(&better);
        let off = advice.saves_bytes / saved - 1.0;
        println!("{version:?} -f {}: claimed {:.0}, measured {saved:.0}", options[0].value, advice.saves_bytes);
        assert!(
            off.abs() < 0.15,
            "{version:?} -f {}: claimed {:.0}, measured {saved:.0}",
            options[0].value,
            advice.saves_bytes
        );
    }
}

#[tokio::test]
async fn refused_items_call_for_a_larger_limit() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&server.url()).await;
    use std::io::{Read, Write};
    // Past our own client, which asks no server for what it refuses.
    let mut socket = std::net::TcpStream::connect(server.addr()).unwrap();
    socket.write_all(b"set large 0 0 2000000\r\n").unwrap();
    socket.write_all(&vec![b'v'; 2_000_000]).unwrap();
    socket.write_all(b"\r\n").unwrap();
    let mut answer = [0; 12];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"SERVER_ERROR");
    let report = look(&store).await;
    assert_eq!(report.advice.iter().map(|one| one.act.to_string()).collect::<Vec<_>>(), ["-I 2m"]);
}

#[tokio::test]
async fn every_server_of_a_fleet_is_told_and_one_that_is_down_too() {
    let mut servers: Vec<Memcached> = (0..3).map(|_| Memcached::start(Version::New, &[])).collect();
    let addrs: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let store = open(&format!("memcached://{}", addrs.join(","))).await;
    fill(&store, "page", 900, |_| 10).await;
    let report = look(&store).await;
    let group = report.groups.iter().find(|group| group.owner.to_string() == "page:*").unwrap();
    assert_eq!((report.nodes.len(), group.keys), (3, 900));
    servers[1].kill9();
    let plain: StoreRef = store.clone();
    let error = larder_footprint::report(&plain, &*store, &Options::default(), &mut |_| ()).await.unwrap_err();
    assert!(error.to_string().contains(&addrs[1]), "a part is not told for the whole: {error}");
    let told = store.vitals(Ctx::default()).await;
    assert_eq!(told.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
}

/// A server that came back empty has lost the manifests that belong to it; their copies stand on others.
#[tokio::test]
async fn a_manifest_that_stands_as_a_copy_only_is_not_gone() {
    let servers: Vec<Memcached> = (0..2).map(|_| Memcached::start(Version::New, &[])).collect();
    let addrs: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let store = open(&format!("memcached://{}", addrs.join(","))).await;
    let plain: StoreRef = store.clone();
    Counter::options().copies(2).open_or_create(&plain, "hits").await.unwrap().add(1).await.unwrap();
    let manifest = Key::new("L.hits.m").unwrap();
    store.run_one(Ctx::default(), Op::delete(manifest.clone())).await.unwrap();
    let report = report(&plain, &*store, &Options::default(), &mut |_| ()).await.unwrap();
    let owners: Vec<String> = report.groups.iter().map(|group| group.owner.to_string()).collect();
    assert!(owners.contains(&"\"hits\"".to_owned()), "{owners:?}");
    assert!(!owners.iter().any(|owner| owner.contains("gone")), "{owners:?}");
    let left = store.run_one(Ctx::default(), Op::get(manifest, Want::VALUE)).await.unwrap();
    assert!(left.into_item().is_none(), "a report puts nothing back");
}
