//! The real Redis and Valkey servers start, stop, die and come back as asked, and so do clusters of them.

use std::time::Duration;

use larder_testkit::redis::{Eviction, RedisCluster, RedisOptions, RedisServer, RedisVersion, Value, shared_cluster};

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn each_is_the_version_it_says() {
    for (version, field, majors) in [
        (RedisVersion::Redis7, "redis_version", 7..=7),
        (RedisVersion::Redis8, "redis_version", 8..=8),
        (RedisVersion::Valkey, "valkey_version", 8..=u32::MAX),
    ] {
        let server = RedisServer::start(version, &RedisOptions::new());
        let said = server.info("server", field);
        let major: Option<u32> = said.split('.').next().and_then(|major| major.parse().ok());
        assert!(major.is_some_and(|major| majors.contains(&major)), "{version:?}: {said:?}");
        assert_eq!(server.info("server", "process_id"), server.pid().to_string());
        let pid = server.pid();
        drop(server);
        assert!(!is_alive(pid));
    }
}

#[test]
fn options_reach_the_server() {
    for version in RedisVersion::ALL {
        let options = RedisOptions::new().password("secret").maxmemory(16 << 20, Eviction::VolatileLru);
        let server = RedisServer::start(version, &options);
        assert_eq!(server.config("maxmemory"), (16 << 20).to_string());
        assert_eq!(server.config("maxmemory-policy"), "volatile-lru");
        assert_eq!(server.config("requirepass"), "secret");
    }
}

#[test]
fn an_acl_file_and_a_unix_socket_work() {
    let lines = "user default off\nuser app on >pw ~* +@all -flushall\nuser root on >pw ~* &* +@all\n";
    let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new().acl(lines, "app", "pw").unix());
    assert!(server.url().starts_with("redis+unix:///"));
    assert_eq!(server.command(&["SET", "k", "v"]).text(), "OK");
    assert!(server.command(&["FLUSHALL"]).text().starts_with("NOPERM"));
}

#[test]
fn data_survive_a_crash_with_persistence_and_not_without() {
    for (options, after) in [(RedisOptions::new().appendonly(), "v"), (RedisOptions::new(), "")] {
        let mut server = RedisServer::start(RedisVersion::Redis7, &options);
        server.command(&["SET", "k", "v"]);
        let addr = server.addr();
        server.kill9();
        assert!(server.try_command(&["PING"]).is_err());
        server.restart();
        assert_eq!((server.addr(), server.command(&["GET", "k"]).text().as_str()), (addr, after));
        server.restart_empty();
        assert_eq!(server.command(&["GET", "k"]), Value::Nil);
    }
}

#[test]
fn a_stopped_server_answers_only_after_cont() {
    let server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    server.stop();
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| told.send(server.command(&["PING"]).text()));
        assert!(hears.recv_timeout(Duration::from_millis(100)).is_err());
        server.cont();
        assert_eq!(hears.recv_timeout(Duration::from_secs(5)).unwrap(), "PONG");
    });
}

#[test]
fn a_cluster_fails_over_and_takes_the_old_primary_back() {
    let mut cluster = RedisCluster::start(RedisVersion::Redis7);
    assert_eq!([0, 5_461, 16_383].map(|slot| cluster.primary_of(slot)), [0, 1, 2]);
    cluster.node_mut(0).kill9();
    cluster.wait_failover(0, 0);
    assert_eq!(cluster.primary_of(0), 3);
    cluster.node_mut(0).restart();
    cluster.wait_ok();
    assert_eq!(cluster.nodes()[0].info("replication", "role"), "slave");
    cluster.fail_over_to(0);
    cluster.wait_ok();
    assert_eq!(cluster.primary_of(0), 0);
}

#[test]
fn a_slot_moves_with_its_keys() {
    let cluster = RedisCluster::start(RedisVersion::Valkey);
    let key = "{move}key";
    let slot: u16 = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", key]).text().parse().unwrap();
    let (from, to) = (cluster.primary_of(slot), (cluster.primary_of(slot) + 1) % 3);
    assert_eq!(cluster.nodes()[from].command(&["SET", key, "v"]).text(), "OK");
    cluster.begin_move(slot, to);
    assert!(cluster.nodes()[from].command(&["GET", "{move}other"]).text().starts_with("ASK "));
    cluster.move_keys(slot, to);
    cluster.end_move(slot, to);
    assert_eq!(cluster.nodes()[to].command(&["GET", key]).text(), "v");
    assert!(cluster.nodes()[from].command(&["GET", key]).text().starts_with("MOVED "));
}

#[test]
fn processes_of_a_run_share_a_cluster() {
    let url = shared_cluster(RedisVersion::Redis8).url();
    assert_eq!(shared_cluster(RedisVersion::Redis8).url(), url);
}
