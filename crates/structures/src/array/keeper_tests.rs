//! How many numbers the commits hold before the shards are settled, and before they must be; and how one is fought for on a store that fails.

use bytes::Bytes;
use larder_core::StoreExt;
use larder_layers::Counting;
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;

use super::*;
use crate::events::tests::{listen, told};

fn keeper(shards: u16, store: MemoryStore) -> Keeper {
    let manifest = Manifest::new(Kind::Array, 1, shards, Bytes::new());
    Keeper::new(&(Arc::new(store) as StoreRef), &Name::new("a").unwrap(), &manifest).unwrap()
}

/// From which length on each of these is true, for commits that grow by numbers of which no shard has settled one.
fn turns(keeper: &Keeper, most: usize) -> [usize; 3] {
    let mut turns = [usize::MAX; 3];
    let mut commits = Commits::new(keeper.generation, keeper.shards);
    for count in 0..=most {
        let now = [keeper.is_behind(&commits), keeper.wants_tidying(&commits), keeper.is_full(&commits)];
        for (turn, is_so) in turns.iter_mut().zip(now) {
            match is_so {
                true => *turn = count.min(*turn),
                false => assert_eq!(*turn, usize::MAX, "it was so of fewer than {count}"),
            }
        }
        commits = commits.next(0, [], 0, 0);
    }
    turns
}

#[test]
fn shards_are_settled_once_in_16_to_256_numbers_and_must_be_after_eight_times_as_many() {
    // A number takes 9 bytes with up to 8 shards, 24 with 128, 136 with 1,024; some 4 KiB of them are kept, and 16 to 256.
    for (shards, settled, full) in [(2, 256, 2_048), (128, 170, 1_360), (1_024, 30, 240)] {
        let keeper = keeper(shards, MemoryStore::new());
        assert_eq!(turns(&keeper, full + 2), [settled / 2, settled, full], "{shards} shards");
    }
}

#[test]
fn a_store_of_small_items_bounds_the_numbers_by_what_one_holds() {
    let store = MemoryStore::builder().value_bytes_max(1_000).build().unwrap();
    let keeper = keeper(2, store);
    let [behind, settled, full] = turns(&keeper, 300);
    let mut commits = Commits::new(keeper.generation, keeper.shards);
    for _ in 0..full {
        commits = commits.next(0, [], 0, 0);
    }
    let bytes = commits.encode().len();
    assert!((900..=keeper.value_bytes_max).contains(&bytes), "{bytes} of {}", keeper.value_bytes_max);
    assert_eq!((behind, settled), (full / 4, full / 2));
}

#[test]
fn numbers_that_all_shards_have_settled_take_no_room_from_later_ones() {
    let keeper = keeper(2, MemoryStore::new());
    let mut commits = Commits::new(keeper.generation, keeper.shards);
    while !keeper.is_full(&commits) {
        commits = commits.next(0, [], 0, 0);
    }
    keeper.saw_mark(1, commits.last());
    assert!(keeper.is_behind(&commits) && keeper.is_full(&commits), "the other may have settled none");
    assert_eq!(keeper.behind(&commits), [0], "it alone is to be settled");
    keeper.saw_mark(0, commits.last());
    assert!(!keeper.is_behind(&commits) && !keeper.is_full(&commits));
    assert!(keeper.behind(&commits).is_empty());
}

/// A keeper of two shards whose commits are there.
async fn made(store: StoreRef) -> Keeper {
    let manifest = Manifest::new(Kind::Array, 1, 2, Bytes::new());
    let name = Name::new("a").unwrap();
    let create = Keeper::create_op(&name, &manifest).unwrap();
    assert_eq!(store.run_one(Ctx::default(), create).await.unwrap(), Reply::Stored);
    Keeper::new(&store, &name, &manifest).unwrap()
}

async fn faulty() -> (Faulty, Keeper) {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let keeper = made(faulty.shared()).await;
    keeper.current(Ctx::default()).await.unwrap();
    (faulty, keeper)
}

fn within(seconds: u64) -> Instant {
    ambient::now() + Duration::from_secs(seconds)
}

/// A change of both shards that wants this number.
fn claim(number: u64, id: u64) -> Claim<'static> {
    Claim { number, id, touched: &[0, 1], token: None }
}

/// What will not pass is not waited for.
#[tokio::test]
async fn commits_that_are_gone_are_looked_for_once_and_told() {
    let counting = Counting::new(Arc::new(MemoryStore::new()));
    let manifest = Manifest::new(Kind::Array, 1, 2, Bytes::new());
    let store: StoreRef = Arc::new(counting.clone());
    listen();
    let keeper = Keeper::new(&store, &Name::new("commits that are gone").unwrap(), &manifest).unwrap();
    for (at, deadline) in [None, Some(within(60))].into_iter().enumerate() {
        assert_eq!(keeper.current(Ctx { deadline }).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(counting.counts().round_trips, 1 + at as u64);
    }
    assert_eq!(keeper.claim(within(60), &claim(1, 7)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(counting.counts().round_trips, 3);
    assert_eq!(told("commits that are gone"), ["loss: lost"; 3]);
}

/// Each look is given up after some tries; whoever wants a number looks again, until its time is over.
#[tokio::test(start_paused = true)]
async fn a_number_is_won_once_the_commits_can_be_read_again() {
    let (faulty, keeper) = faulty().await;
    keeper.forget();
    faulty.fail_always(Fault::NotSent);
    let mends = async {
        // No look takes as long, with all its tries.
        tokio::time::sleep(Duration::from_millis(400)).await;
        faulty.heal();
    };
    let claim = claim(1, 7);
    let (outcome, ()) = tokio::join!(keeper.claim(within(60), &claim), mends);
    assert_eq!(outcome.unwrap(), Outcome::Won);
    assert!(faulty.injected() > READ_TRIES_MAX as u64, "{}", faulty.injected());
}

#[tokio::test(start_paused = true)]
async fn numbers_are_settled_for_a_while_where_the_caller_has_no_deadline() {
    let (faulty, keeper) = faulty().await;
    // The commits are read, then written.
    faulty.fail_nth(2, Fault::NotSent);
    keeper.settle(Ctx::default(), 1).await.unwrap();
    assert_eq!(faulty.injected(), 1);
    let commits = keeper.refresh(Ctx::default()).await.unwrap();
    assert_eq!((commits.last(), commits.fate(1, 7)), (1, Fate::Beaten));
}

#[tokio::test]
async fn no_change_wins_a_number_while_a_loss_is_being_accepted() {
    let keeper = made(Arc::new(MemoryStore::new())).await;
    let (commits, _) = keeper.current(Ctx::default()).await.unwrap();
    assert!(keeper.replace(Ctx::default(), &commits, commits.ended()).await.unwrap());
    let error = keeper.claim(within(60), &claim(2, 7)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::NotApplied), "{error}");
    assert_eq!(keeper.refresh(Ctx::default()).await.unwrap(), Arc::new(commits.ended()));
}

/// The token that a write went out with says nothing once it is not known whether that landed.
#[tokio::test]
async fn behind_a_write_in_doubt_the_commits_are_looked_at_before_another_number_is_chosen() {
    let (faulty, keeper) = faulty().await;
    faulty.fail_nth(1, Fault::LostReply);
    // No time is left to look what became of it.
    let error = keeper.claim(ambient::now(), &claim(1, 7)).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
    let (commits, _) = keeper.current(Ctx::default()).await.unwrap();
    assert_eq!((commits.last(), commits.fate(1, 7)), (1, Fate::Won));
}

#[test]
fn who_settled_in_vain_tries_again_half_as_many_numbers_later() {
    let keeper = keeper(2, MemoryStore::new());
    let mut commits = Commits::new(keeper.generation, keeper.shards);
    while !keeper.wants_tidying(&commits) {
        commits = commits.next(0, [], 0, 0);
    }
    let numbers = commits.len();
    keeper.tidied_in_vain(&commits);
    for later in 0..numbers / 2 {
        assert!(!keeper.wants_tidying(&commits), "{later} later");
        commits = commits.next(0, [], 0, 0);
    }
    assert!(keeper.wants_tidying(&commits));
}
