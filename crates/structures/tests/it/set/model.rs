//! The set against a plain `HashSet`, in any order of changes by two handles.

use std::collections::HashSet;

use larder_structures::Set;
use proptest::prelude::*;

use crate::support::probe::Probe;

#[derive(Clone, Debug)]
enum Step {
    Add(Vec<Vec<u8>>),
    Remove(Vec<Vec<u8>>),
    Compact,
    Members,
    Has(Vec<u8>),
}

fn member() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![proptest::collection::vec(0u8..3, 0..3), proptest::collection::vec(any::<u8>(), 60..70)]
}

fn step() -> impl Strategy<Value = Step> {
    let members = || proptest::collection::vec(member(), 0..5);
    prop_oneof![
        4 => members().prop_map(Step::Add),
        3 => members().prop_map(Step::Remove),
        1 => Just(Step::Compact),
        2 => Just(Step::Members),
        2 => member().prop_map(Step::Has),
    ]
}

async fn play(steps: Vec<(bool, Step)>, shards: u16) {
    // Small enough that some runs fill it and compact on the way.
    let store = Probe::small(7_000).shared();
    let open = || Set::options().shards(shards).dirtiness(40).open_or_create(&store, "s");
    let handles = [open().await.unwrap(), open().await.unwrap()];
    let mut model: HashSet<Vec<u8>> = HashSet::new();
    for (second, step) in steps {
        let set = &handles[usize::from(second)];
        match step {
            Step::Add(members) => {
                set.add(&members).await.unwrap();
                model.extend(members);
            }
            Step::Remove(members) => {
                set.remove(&members).await.unwrap();
                members.iter().for_each(|member| _ = model.remove(member));
            }
            Step::Compact => assert_eq!(set.compact().await.unwrap().members, model.len() as u64),
            Step::Members => {
                let members = set.members().await.unwrap();
                assert_eq!(members.len(), model.len());
                assert!(members.iter().all(|member| model.contains(member)));
            }
            Step::Has(member) => assert_eq!(set.has(&member).await.unwrap(), model.contains(&member)),
        }
    }
    for set in &handles {
        let members: HashSet<Vec<u8>> = set.members().await.unwrap().iter().map(|member| member.to_vec()).collect();
        assert_eq!(members, model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_model_agrees(steps in proptest::collection::vec((any::<bool>(), step()), 0..80), shards in 1u16..4) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps, shards));
    }
}
