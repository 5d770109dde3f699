//! Watches: where a store tells of changes, it tells of every kind of them, and of none that was not.

use std::time::Duration;

use larder_core::{Batch, Cas, Ctx, ErrorKind, Key, Op, PutMode, Reply, Ttl, Want};

use super::{Bench, cases};

cases! {
    a_watch_ends_with_whatever_changes_the_item [Watch];
    a_watch_of_an_item_that_is_another_already_ends_at_once [Watch];
    a_watch_of_an_item_that_stays_ends_at_the_deadline [Watch];
    watches_of_a_batch_end_with_the_first [Watch];
    eight_watchers_of_one_item_are_all_told [Watch];
    a_store_that_tells_of_no_changes_says_so [NoWatch];
}

/// Longer than any test should wait for what is told at once.
const PATIENCE: Duration = Duration::from_secs(20);

async fn token(t: &Bench, key: &Key) -> Option<Cas> {
    t.ok(Op::get(key.clone(), Want::CAS)).await.into_item().and_then(|item| item.cas)
}

async fn watch(t: &Bench, key: &Key, seen: Option<Cas>, patience: Duration) -> Reply {
    let replies = t.store.run(Ctx::within(patience), Batch::from_iter([Op::watch(key.clone(), seen)])).await;
    replies.into_iter().next().unwrap().unwrap()
}

async fn a_watch_ends_with_whatever_changes_the_item(t: Bench) {
    let put = |key, mode| Op::put(key, mode, "x", Ttl::Never);
    let key = |name| t.key(name);
    let changes = [
        ("set", true, put(key("set"), PutMode::Set)),
        ("append", true, put(key("append"), PutMode::Append)),
        ("delete", true, Op::delete(key("delete"))),
        ("add", false, put(key("add"), PutMode::Add)),
        ("replace", true, put(key("replace"), PutMode::Replace)),
        ("expiry", true, Op::touch(key("expiry"), Ttl::After(Duration::from_millis(100)))),
    ];
    for (name, is_there, change) in changes {
        let key = t.key(name);
        if is_there {
            t.set(&key, "before").await;
        }
        let seen = token(&t, &key).await;
        // Whichever comes first, the watch or the change: it is told.
        let (told, done) = tokio::join!(watch(&t, &key, seen, PATIENCE), t.run(change));
        done.unwrap();
        assert_eq!(told, Reply::Changed, "{name}");
    }
}

async fn a_watch_of_an_item_that_is_another_already_ends_at_once(t: Bench) {
    let key = t.key("a");
    assert_eq!(watch(&t, &key, Some(Cas { token: 7, session: 7 }), PATIENCE).await, Reply::Changed);
    t.set(&key, "one").await;
    let seen = token(&t, &key).await;
    t.set(&key, "two").await;
    assert_eq!(watch(&t, &key, seen, PATIENCE).await, Reply::Changed);
    assert_eq!(watch(&t, &key, None, PATIENCE).await, Reply::Changed, "there is one");
}

async fn a_watch_of_an_item_that_stays_ends_at_the_deadline(t: Bench) {
    let (key, other) = (t.key("a"), t.key("other"));
    t.set(&key, "one").await;
    let seen = token(&t, &key).await;
    let patience = Duration::from_millis(150);
    let (told, ()) = tokio::join!(watch(&t, &key, seen, patience), t.set(&other, "changed"));
    assert_eq!(told, Reply::Unchanged, "another item changed");
    assert_eq!(watch(&t, &t.key("none"), None, patience).await, Reply::Unchanged);
}

async fn watches_of_a_batch_end_with_the_first(t: Bench) {
    let keys: Vec<Key> = (0..5).map(|at| t.key(&format!("k{at}"))).collect();
    let batch = Batch::from_iter(keys.iter().map(|key| Op::watch(key.clone(), None)));
    let (replies, ()) = tokio::join!(t.store.run(Ctx::within(PATIENCE), batch), t.set(&keys[3], "here"));
    let told: Vec<Reply> = replies.into_iter().map(Result::unwrap).collect();
    assert_eq!(told.len(), 5);
    assert_eq!(told[3], Reply::Changed);
}

async fn eight_watchers_of_one_item_are_all_told(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    let seen = token(&t, &key).await;
    let mut watchers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (t, key) = (t.clone(), key.clone());
        watchers.spawn(async move { watch(&t, &key, seen, PATIENCE).await });
    }
    // Some of them watch by now, some not yet.
    tokio::time::sleep(Duration::from_millis(20)).await;
    t.set(&key, "two").await;
    for told in watchers.join_all().await {
        assert_eq!(told, Reply::Changed);
    }
}

async fn a_store_that_tells_of_no_changes_says_so(t: Bench) {
    let key = t.key("a");
    t.set(&key, "one").await;
    assert_eq!(t.run(Op::watch(key, None)).await.unwrap_err().kind(), ErrorKind::Unsupported);
}
