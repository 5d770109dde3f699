//! An array of which a part went back, as by one primary's failover, and was built on since: half a change is never read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Replies, Reply, StoreExt, StoreRef, Verb};
use larder_structures::{Array, ArrayOptions, Name, registry};

use crate::array::support::{NOTHING, Scattered, sorted, whole};
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, dies_at, fail};
use crate::support::probe::{Probe, set_value, value_of};

const SHARDS: u16 = 4;

fn options() -> ArrayOptions {
    // Nothing is compacted but by the tests.
    Array::options().shards(SHARDS).dirtiness(1 << 30)
}

/// An array in parts, whose items are put back one by one.
struct Parts {
    store: StoreRef,
    keys: Vec<Key>,
    commits: Key,
}

impl Parts {
    /// With [`whole`] 0 in it.
    async fn make() -> (Parts, Array) {
        Parts::make_in(Probe::new().shared()).await
    }

    async fn make_in(store: StoreRef) -> (Parts, Array) {
        let array = options().open_or_create(&store, "a").await.unwrap();
        array.change(whole(0), NOTHING).await.unwrap();
        let manifest = registry::find(&store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap().unwrap();
        let key = |index: String| Key::new(format!("L.a.a.{:016x}.{index}", manifest.generation)).unwrap();
        let keys = (0..SHARDS).map(|shard| key(shard.to_string())).collect();
        (Parts { store, keys, commits: key("commits".to_owned()) }, array)
    }

    /// A handle that knows nothing of what was.
    async fn fresh(&self) -> Array {
        options().open(&self.store, "a").await.unwrap()
    }

    async fn shards(&self) -> Vec<Bytes> {
        let mut all = Vec::new();
        for key in &self.keys {
            all.push(value_of(&self.store, key).await);
        }
        all
    }

    /// Compacts some shards, and leaves the others as they are: as where others wrote to them meanwhile.
    async fn compact_only(&self, array: &Array, compacted: &[usize]) {
        let before = self.shards().await;
        array.compact().await.unwrap();
        for (shard, value) in before.into_iter().enumerate().filter(|(shard, _)| !compacted.contains(shard)) {
            set_value(&self.store, &self.keys[shard], value).await;
        }
    }
}

async fn refusal(array: &Array) -> ErrorKind {
    match array.elements().await {
        Ok(elements) => panic!("it was read without a word: {elements:?}"),
        Err(error) => error.kind(),
    }
}

/// The commits went back behind a change that some shards have settled, and the next one took its number.
#[tokio::test]
async fn commits_that_went_back_alone_and_were_built_on_are_told_to_everybody() {
    for compacted in [&[0][..], &[1, 2], &[0, 1, 2, 3]] {
        let (parts, array) = Parts::make().await;
        let older = value_of(&parts.store, &parts.commits).await;
        array.change(whole(1), whole(0)).await.unwrap();
        parts.compact_only(&array, compacted).await;
        set_value(&parts.store, &parts.commits, older).await;
        // Who knows nothing of it cannot see it yet, and goes on.
        parts.fresh().await.change(whole(2), whole(0)).await.unwrap();
        for array in [parts.fresh().await, array] {
            assert_eq!(refusal(&array).await, ErrorKind::RolledBack, "{compacted:?}");
            assert_eq!(array.compact().await.unwrap_err().kind(), ErrorKind::RolledBack, "{compacted:?}");
        }
    }
}

/// The same where no shard had settled it: what went is gone as a whole, which only who saw it can tell.
#[tokio::test]
async fn a_handle_that_saw_a_change_which_the_commits_lost_is_told_also_once_others_took_its_number() {
    let (parts, array) = Parts::make().await;
    let older = value_of(&parts.store, &parts.commits).await;
    array.change(whole(1), whole(0)).await.unwrap();
    set_value(&parts.store, &parts.commits, older).await;
    let others = parts.fresh().await;
    others.change(whole(2), whole(0)).await.unwrap();
    // It knows which change won the number, and must not settle it so in the shards.
    assert_eq!(array.compact().await.unwrap_err().kind(), ErrorKind::RolledBack);
    assert_eq!(array.change(whole(3), whole(1)).await.unwrap_err().kind(), ErrorKind::RolledBack);
    assert_eq!(refusal(&array).await, ErrorKind::RolledBack);
    for array in [others, parts.fresh().await] {
        assert_eq!(sorted(&array).await, whole(2));
        array.compact().await.unwrap();
        assert_eq!(sorted(&array).await, whole(2));
    }
}

/// A shard went back behind a change, and is written anew before somebody reads it.
#[tokio::test]
async fn a_shard_that_went_back_alone_is_told_to_everybody_also_once_it_was_to_be_compacted() {
    for shard in 0..usize::from(SHARDS) {
        let (parts, array) = Parts::make().await;
        let older = value_of(&parts.store, &parts.keys[shard]).await;
        array.change(whole(1), whole(0)).await.unwrap();
        set_value(&parts.store, &parts.keys[shard], older).await;
        let fresh = parts.fresh().await;
        assert_eq!(refusal(&fresh).await, ErrorKind::RolledBack);
        // It knows the commits now, and not what the shard lacks.
        for array in [fresh, parts.fresh().await] {
            assert_eq!(array.compact().await.unwrap_err().kind(), ErrorKind::RolledBack);
        }
        assert_eq!(refusal(&parts.fresh().await).await, ErrorKind::RolledBack, "shard {shard}");
    }
}

/// The commits go back behind a change that the first shard has settled, and others, who cannot see it, make the next one. What is torn by that, and the handle that lost.
async fn torn(store: StoreRef) -> (Parts, Array) {
    let (parts, array) = Parts::make_in(store).await;
    let older = value_of(&parts.store, &parts.commits).await;
    array.change(whole(1), whole(0)).await.unwrap();
    parts.compact_only(&array, &[0]).await;
    set_value(&parts.store, &parts.commits, older).await;
    parts.fresh().await.change(whole(2), whole(0)).await.unwrap();
    (parts, array)
}

/// Whether all of one whole is there.
fn has(elements: &[Bytes], number: u32) -> bool {
    whole(number).iter().all(|part| elements.iter().any(|element| element == part.as_bytes()))
}

#[tokio::test]
async fn a_loss_that_is_accepted_leaves_an_array_that_works_for_everybody() {
    let probe = Probe::new();
    let (parts, array) = torn(probe.shared()).await;
    let (fresh, reader) = (parts.fresh().await, parts.fresh().await);
    fresh.push(["pushed"]).await.unwrap();
    assert_eq!(refusal(&fresh).await, ErrorKind::RolledBack);
    probe.round_trips();
    assert!(fresh.accept_loss().await.unwrap());
    assert_eq!(probe.round_trips(), 6);
    assert!(!fresh.accept_loss().await.unwrap());
    assert_eq!(probe.round_trips(), 1, "nothing is left to accept");
    let elements = sorted(&fresh).await;
    assert!(has(&elements, 2), "what was changed since is kept: {elements:?}");
    assert!(elements.contains(&Bytes::from("pushed")) && !has(&elements, 1), "{elements:?}");
    // Who knew more is told of it, until he accepts it as well; who knew nothing goes on.
    assert_eq!(refusal(&array).await, ErrorKind::RolledBack);
    assert!(!array.accept_loss().await.unwrap());
    for (number, array) in [(3, &array), (4, &fresh), (5, &reader), (6, &parts.fresh().await)] {
        let before = array.elements().await.unwrap();
        array.change(whole(number), before).await.unwrap();
        assert_eq!(sorted(array).await, whole(number));
        array.compact().await.unwrap();
        assert_eq!(sorted(&parts.fresh().await).await, whole(number));
    }
}

#[tokio::test]
async fn a_shard_that_went_back_alone_is_accepted_with_what_it_holds() {
    for shard in 0..usize::from(SHARDS) {
        let (parts, array) = Parts::make().await;
        let older = value_of(&parts.store, &parts.keys[shard]).await;
        array.change(whole(1), whole(0)).await.unwrap();
        set_value(&parts.store, &parts.keys[shard], older).await;
        assert!(array.accept_loss().await.unwrap());
        let elements = sorted(&array).await;
        let known = [whole(0), whole(1)].concat();
        assert!(elements.iter().all(|element| known.iter().any(|part| element == part.as_bytes())), "{elements:?}");
        assert!(elements.iter().any(|element| element.starts_with(b"1-")), "what the others hold: {elements:?}");
        assert_eq!(elements, sorted(&parts.fresh().await).await);
        array.change(whole(2), &elements).await.unwrap();
        assert_eq!(sorted(&parts.fresh().await).await, whole(2));
    }
}

/// The commits went back by several changes that no shard has settled: nobody reads half of one, but their numbers stand in the way of compactions.
#[tokio::test]
async fn changes_that_the_commits_lost_are_no_obstacle_once_that_is_accepted() {
    let (parts, array) = Parts::make().await;
    let older = value_of(&parts.store, &parts.commits).await;
    for number in 1..4 {
        array.change(whole(number), whole(number - 1)).await.unwrap();
    }
    set_value(&parts.store, &parts.commits, older).await;
    let fresh = parts.fresh().await;
    assert_eq!(sorted(&fresh).await, whole(0));
    assert_eq!(fresh.compact().await.unwrap_err().kind(), ErrorKind::RolledBack);
    assert!(fresh.accept_loss().await.unwrap());
    assert_eq!(sorted(&fresh).await, whole(0));
    assert_eq!(fresh.compact().await.unwrap().stale_bytes, 0);
    // A handle of before writes under its own numbers yet: they count nowhere, and stand in nobody's way.
    assert_eq!(array.change(whole(5), whole(3)).await.unwrap_err().kind(), ErrorKind::RolledBack);
    fresh.compact().await.unwrap();
    fresh.change(whole(6), whole(0)).await.unwrap();
    assert_eq!(sorted(&parts.fresh().await).await, whole(6));
}

#[tokio::test]
async fn what_fits_is_left_alone_and_what_is_gone_stays_lost() {
    let probe = Probe::new();
    let (parts, array) = Parts::make_in(probe.shared()).await;
    let before = (value_of(&parts.store, &parts.commits).await, parts.shards().await);
    probe.round_trips();
    assert!(!array.accept_loss().await.unwrap());
    assert_eq!(probe.round_trips(), 1);
    assert_eq!(before, (value_of(&parts.store, &parts.commits).await, parts.shards().await));
    let one = Array::options().shards(1).open_or_create(&parts.store, "one").await.unwrap();
    one.push(["a"]).await.unwrap();
    probe.round_trips();
    assert!(!one.accept_loss().await.unwrap());
    assert_eq!((probe.round_trips(), one.elements().await.unwrap()), (1, vec![Bytes::from("a")]));
    for key in [&parts.keys[2], &parts.commits] {
        let kept = value_of(&parts.store, key).await;
        parts.store.delete(key.clone()).await.unwrap();
        assert_eq!(array.accept_loss().await.unwrap_err().kind(), ErrorKind::Lost);
        set_value(&parts.store, key, kept).await;
    }
}

/// An array of one shard that went back: only the handle's memory tells, and that is what is given up.
#[tokio::test]
async fn an_array_of_one_shard_goes_on_where_it_is() {
    let store = Probe::new().shared();
    let array = Array::open_or_create(&store, "a").await.unwrap();
    let manifest = registry::find(&store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap().unwrap();
    let key = Key::new(format!("L.a.a.{:016x}.0", manifest.generation)).unwrap();
    array.push(["a"]).await.unwrap();
    let older = value_of(&store, &key).await;
    array.push(["b"]).await.unwrap();
    assert_eq!(array.elements().await.unwrap().len(), 2);
    set_value(&store, &key, older).await;
    assert_eq!(refusal(&array).await, ErrorKind::RolledBack);
    array.accept_loss().await.unwrap();
    array.push(["c"]).await.unwrap();
    assert_eq!(array.elements().await.unwrap(), ["a", "c"]);
}

/// Whoever accepts a loss dies after any op of any batch: the next who does it finds all that was kept.
#[tokio::test]
async fn a_loss_whose_accepter_dies_anywhere_is_accepted_by_the_next() {
    let mut died = 0;
    for nth in 1..7 {
        for ops in 0..=usize::from(SHARDS) {
            let inner: StoreRef = Probe::new().shared();
            let (parts, _) = torn(inner.clone()).await;
            let hooked = Hooked::new(&inner);
            let dying = options().timeout(std::time::Duration::from_millis(100));
            let dying = dying.open(&hooked.shared(), "a").await.unwrap();
            hooked.at(nth, move |store, batch| async move {
                let first: larder_core::Batch = batch.iter().take(ops).cloned().collect();
                store.run(Ctx::default(), first).await;
                std::future::pending().await
            });
            died += u32::from(dying.accept_loss().await.is_err());
            let next = parts.fresh().await;
            // Either it had been accepted, or nobody is told anything but that it was lost.
            match next.elements().await {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::RolledBack, "batch {nth}, {ops} ops: {error}"),
            }
            next.accept_loss().await.unwrap();
            let elements = sorted(&next).await;
            assert!(has(&elements, 2), "batch {nth}, {ops} ops: {elements:?}");
            next.change(whole(3), elements).await.unwrap();
            assert_eq!(sorted(&parts.fresh().await).await, whole(3), "batch {nth}, {ops} ops");
        }
    }
    assert!(died >= 20, "{died}");
}

/// Several accept it at a time, while others push, change, compact and read: whatever was acknowledged is there, and nobody reads half of anything that was changed since.
#[tokio::test]
async fn a_loss_is_accepted_beside_everybody_else() {
    for round in 0..20 {
        let (parts, _) = torn(Scattered::shared()).await;
        let parts = Arc::new(parts);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut others = tokio::task::JoinSet::new();
        for writer in 0..3u32 {
            let (parts, is_over) = (parts.clone(), is_over.clone());
            others.spawn(async move {
                let (mut array, mut kept) = (parts.fresh().await, Vec::new());
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) && number > 3 {
                        break;
                    }
                    let mine = whole(100 * (writer + 1) + number);
                    let told = match writer {
                        0 => array.push(&mine).await,
                        _ => array.change(&mine, NOTHING).await,
                    };
                    match told {
                        Ok(()) => kept.extend(mine),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::RolledBack, "round {round}: {error}");
                            assert_eq!(error.known_effect(), larder_core::Effect::NotApplied, "{error}");
                            array = parts.fresh().await;
                            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                        }
                    }
                    if writer == 2 {
                        _ = array.compact().await;
                    }
                }
                kept
            });
        }
        let mut accepters = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let array = parts.fresh().await;
            accepters.spawn(async move { array.accept_loss().await.unwrap() });
        }
        let accepted = accepters.join_all().await;
        assert!(accepted.contains(&true), "{accepted:?}");
        is_over.store(true, Ordering::Relaxed);
        let kept: Vec<String> = others.join_all().await.concat();
        let elements = sorted(&parts.fresh().await).await;
        let missing: Vec<&String> =
            kept.iter().filter(|kept| !elements.iter().any(|one| one == kept.as_bytes())).collect();
        assert!(missing.is_empty() && has(&elements, 2), "round {round}: {missing:?} of {elements:?}");
    }
}

/// A shard went back behind a change that it had settled and the commits have forgotten; what was changed since did not touch it.
#[tokio::test]
async fn a_shard_that_went_back_behind_what_the_commits_have_forgotten_is_told_as_well() {
    let (parts, array) = Parts::make().await;
    array.change(whole(1), whole(0)).await.unwrap();
    let older = parts.shards().await;
    array.compact().await.unwrap();
    assert_eq!(sorted(&array).await, whole(1));
    let mut number = 0;
    let untouched = loop {
        let before = parts.shards().await;
        number += 1;
        array.change([format!("one {number}"), format!("other {number}")], NOTHING).await.unwrap();
        let after = parts.shards().await;
        let same: Vec<usize> = (0..before.len()).filter(|&shard| before[shard] == after[shard]).collect();
        if same.len() == before.len() - 2 {
            break same[0];
        }
    };
    set_value(&parts.store, &parts.keys[untouched], older[untouched].clone()).await;
    assert_eq!(refusal(&parts.fresh().await).await, ErrorKind::RolledBack, "shard {untouched}");
}

/// The commits answer, then two changes are made, then the shards answer: they hold a change that is two ahead, and nothing was lost.
#[tokio::test]
async fn an_array_that_is_changed_while_its_loss_is_to_be_accepted_has_lost_nothing() {
    let (parts, array) = Parts::make().await;
    let hooked = Hooked::new(&parts.store);
    let accepting = options().open(&hooked.shared(), "a").await.unwrap();
    let before = value_of(&parts.store, &parts.commits).await.len();
    hooked.at(1, |store, batch| async move {
        let shards = batch.len() - 1;
        let commits = store.run(Ctx::default(), batch.iter().skip(shards).cloned().collect()).await;
        array.change(whole(1), whole(0)).await.unwrap();
        array.change(whole(2), whole(1)).await.unwrap();
        let mut replies = store.run(Ctx::default(), batch.iter().take(shards).cloned().collect()).await;
        replies.extend(commits);
        replies
    });
    assert!(!accepting.accept_loss().await.unwrap());
    let after = value_of(&parts.store, &parts.commits).await.len();
    assert_eq!(after, before + 2 * 9, "two numbers were given, and none to the end of an era");
    assert_eq!(sorted(&accepting).await, whole(2));
}

/// The same, and a third change is in the shards without its number, since who made it died.
#[tokio::test]
async fn a_change_that_is_open_behind_others_is_no_loss() {
    let (parts, _) = Parts::make().await;
    let hooked = Hooked::new(&parts.store);
    let accepting = options().open(&hooked.shared(), "a").await.unwrap();
    let before = value_of(&parts.store, &parts.commits).await.len();
    hooked.at(1, |store, batch| async move {
        let shards = batch.len() - 1;
        let commits = store.run(Ctx::default(), batch.iter().skip(shards).cloned().collect()).await;
        let dies = Hooked::new(&store);
        let dying = options().open(&dies.shared(), "a").await.unwrap();
        dying.change(whole(1), whole(0)).await.unwrap();
        // The shards have it, and then its number would be written.
        dies_at(&dies, 2, dying.change(whole(2), whole(1))).await;
        let mut replies = store.run(Ctx::default(), batch.iter().take(shards).cloned().collect()).await;
        replies.extend(commits);
        replies
    });
    assert!(!accepting.accept_loss().await.unwrap());
    let after = value_of(&parts.store, &parts.commits).await.len();
    assert_eq!(after, before + 9, "a number was given, and none to the end of an era");
    assert_eq!(sorted(&accepting).await, whole(1));
}

/// The commits as they were are told, and the shards after two changes more: whether that fits is said by a second look at the commits.
async fn at_the_second_look<F>(act: impl FnOnce(StoreRef, Batch, Key, Bytes) -> F + Send + 'static) -> (Parts, Array)
where
    F: Future<Output = Replies> + Send + 'static,
{
    let (parts, array) = Parts::make().await;
    let older = value_of(&parts.store, &parts.commits).await;
    array.change(whole(1), whole(0)).await.unwrap();
    let hooked = Hooked::new(&parts.store);
    let accepting = options().open(&hooked.shared(), "a").await.unwrap();
    hooked.at(1, |store, batch| async move {
        let shards = batch.len() - 1;
        let commits = store.run(Ctx::default(), batch.iter().skip(shards).cloned().collect()).await;
        array.change(whole(2), whole(1)).await.unwrap();
        array.change(whole(3), whole(2)).await.unwrap();
        let mut replies = store.run(Ctx::default(), batch.iter().take(shards).cloned().collect()).await;
        replies.extend(commits);
        replies
    });
    let commits = parts.commits.clone();
    hooked.at(2, |store, batch| act(store, batch, commits, older));
    (parts, accepting)
}

#[tokio::test]
async fn commits_that_go_back_between_two_looks_are_a_loss_that_is_accepted() {
    let (parts, accepting) = at_the_second_look(|store, batch, commits, older| async move {
        set_value(&store, &commits, older).await;
        store.run(Ctx::default(), batch).await
    })
    .await;
    assert!(accepting.accept_loss().await.unwrap());
    assert_eq!(sorted(&accepting).await, whole(0));
    assert_eq!(sorted(&parts.fresh().await).await, whole(0));
}

#[tokio::test]
async fn a_look_that_fails_accepts_nothing_and_says_so() {
    let (parts, accepting) = at_the_second_look(|_, batch, _, _| async move { fail(&batch, Effect::NotApplied) }).await;
    let hooked = Hooked::new(&parts.store);
    let other = options().open(&hooked.shared(), "a").await.unwrap();
    hooked.refuse(1);
    for array in [accepting, other] {
        let error = array.accept_loss().await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert_eq!(sorted(&parts.fresh().await).await, whole(3));
        assert!(!array.accept_loss().await.unwrap(), "nothing was lost");
    }
}

/// A connection that breaks at any batch behind the two looks that tell the loss; of that batch the request or the reply is lost.
#[tokio::test(start_paused = true)]
async fn a_loss_is_accepted_though_the_connection_breaks_meanwhile() {
    for (nth, is_sent) in (3..=6).flat_map(|nth| [(nth, false), (nth, true)]) {
        let (parts, _) = torn(Probe::new().shared()).await;
        let hooked = Hooked::new(&parts.store);
        let array = options().open(&hooked.shared(), "a").await.unwrap();
        if is_sent {
            hooked.lose_replies(nth)
        } else {
            hooked.refuse(nth)
        }
        assert!(array.accept_loss().await.unwrap(), "batch {nth}, sent: {is_sent}");
        let elements = sorted(&parts.fresh().await).await;
        assert!(has(&elements, 2), "batch {nth}, sent: {is_sent}: {elements:?}");
    }
}

/// A rule for what is written to the shards by token.
fn swaps_a_shard(parts: &Parts) -> impl Fn(&Op) -> bool + Send + Sync + 'static {
    let keys = parts.keys.clone();
    move |op| matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. }) && keys.contains(&op.key)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_to_have_a_loss_accepted_for_good_is_asked_once() {
    let (parts, _) = torn(Probe::new().shared()).await;
    let answering = Answering::new(&parts.store);
    let (swaps, asked) = (swaps_a_shard(&parts), Arc::new(AtomicUsize::new(0)));
    let counted = asked.clone();
    answering.by(move |op| {
        swaps(op).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Unsupported, "as the test wants").effect(Effect::NotApplied))
        })
    });
    let array = options().open(&answering.shared(), "a").await.unwrap();
    let error = array.accept_loss().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(asked.load(Ordering::Relaxed) <= usize::from(SHARDS), "it was not tried again");
}

/// Others write shards at each try, and at the first the connection breaks beside that.
#[tokio::test(start_paused = true)]
async fn a_loss_that_others_keep_from_being_accepted_at_each_try_is_a_conflict() {
    let (parts, _) = torn(Probe::new().shared()).await;
    let answering = Answering::new(&parts.store);
    let (swaps, asked) = (swaps_a_shard(&parts), AtomicUsize::new(0));
    answering.by(move |op| {
        swaps(op).then(|| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::NotApplied)),
            _ => Ok(Reply::Exists),
        })
    });
    let options = options().timeout(std::time::Duration::from_secs(60));
    let array = options.open(&answering.shared(), "a").await.unwrap();
    let error = array.accept_loss().await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::Unknown), "{error}");
    assert!(error.to_string().contains("64 tries"), "{error}");
}

#[tokio::test]
async fn who_reads_a_shard_that_went_back_is_told_which_change_it_lacks() {
    for shard in 0..usize::from(SHARDS) {
        let (parts, array) = Parts::make().await;
        let older = value_of(&parts.store, &parts.keys[shard]).await;
        array.change(whole(1), whole(0)).await.unwrap();
        set_value(&parts.store, &parts.keys[shard], older).await;
        let error = parts.fresh().await.elements().await.unwrap_err();
        let words = format!("shard {shard} lacks change 2, which had been committed");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

/// A store whose items take so many bytes, key and all.
#[derive(Debug)]
struct Limited(StoreRef, usize);

impl larder_core::Store for Limited {
    fn profile(&self) -> Arc<larder_core::Profile> {
        let profile = self.0.profile();
        let item_bytes_max = self.1 + profile.item_overhead_bytes;
        Arc::new(larder_core::Profile { item_bytes_max, ..(*profile).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: larder_core::Batch) -> larder_core::Run<'a> {
        self.0.run(ctx, batch)
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_accepted_where_its_shards_fill_an_item_to_the_last_byte_and_told_at_once_where_one_more_is_needed() {
    let probe = Probe::new();
    let (parts, _) = torn(probe.shared()).await;
    parts.fresh().await.push([vec![b'x'; 6_000]]).await.unwrap();
    let (shards, commits) = (parts.shards().await, value_of(&parts.store, &parts.commits).await);
    assert!(parts.fresh().await.accept_loss().await.unwrap());
    let largest = parts.shards().await.iter().map(Bytes::len).max().unwrap();
    for (short, is_accepted) in [(1, false), (0, true)] {
        for (key, value) in parts.keys.iter().zip(&shards) {
            set_value(&parts.store, key, value.clone()).await;
        }
        set_value(&parts.store, &parts.commits, commits.clone()).await;
        let item_bytes = largest + parts.keys[0].as_bytes().len() - short;
        let store: StoreRef = Arc::new(Limited(parts.store.clone(), item_bytes));
        probe.round_trips();
        match options().open(&store, "a").await.unwrap().accept_loss().await {
            Ok(accepted) => assert!(accepted && is_accepted, "{short} bytes short"),
            Err(error) => assert_eq!((error.kind(), is_accepted), (ErrorKind::Full, false), "{error}"),
        }
        assert!(probe.round_trips() <= 7, "it was not tried again");
    }
}
