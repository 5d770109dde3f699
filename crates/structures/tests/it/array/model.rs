//! The array against a plain `Vec`, in any order of changes by two handles.

use larder_structures::Array;
use proptest::prelude::*;

use crate::support::probe::Probe;

#[derive(Clone, Debug)]
enum Step {
    Push(Vec<Vec<u8>>),
    Remove(Vec<Vec<u8>>),
    Change(Vec<Vec<u8>>, Vec<Vec<u8>>),
    Compact,
    Read,
}

fn element() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![proptest::collection::vec(0u8..3, 0..3), proptest::collection::vec(any::<u8>(), 60..70)]
}

fn step() -> impl Strategy<Value = Step> {
    let elements = || proptest::collection::vec(element(), 0..5);
    prop_oneof![
        4 => elements().prop_map(Step::Push),
        3 => elements().prop_map(Step::Remove),
        3 => (elements(), elements()).prop_map(|(add, delete)| Step::Change(add, delete)),
        1 => Just(Step::Compact),
        2 => Just(Step::Read),
    ]
}

/// In one shard in order; over several the order within each is that of the elements that belong to it, which a sort hides.
async fn read(array: &Array, shards: u16) -> Vec<Vec<u8>> {
    let mut elements: Vec<Vec<u8>> = array.elements().await.unwrap().iter().map(|element| element.to_vec()).collect();
    if shards > 1 {
        elements.sort();
    }
    elements
}

fn expected(model: &[Vec<u8>], shards: u16) -> Vec<Vec<u8>> {
    let mut elements = model.to_vec();
    if shards > 1 {
        elements.sort();
    }
    elements
}

async fn play(steps: Vec<(bool, Step)>, shards: u16) {
    // Small enough that some runs fill it and compact on the way.
    let store = Probe::small(9_000).shared();
    let open = || Array::options().shards(shards).dirtiness(40).open_or_create(&store, "a");
    let handles = [open().await.unwrap(), open().await.unwrap()];
    let mut model: Vec<Vec<u8>> = Vec::new();
    for (second, step) in steps {
        let array = &handles[usize::from(second)];
        match step {
            Step::Push(elements) => {
                array.push(&elements).await.unwrap();
                model.extend(elements);
            }
            Step::Remove(elements) => {
                array.remove(&elements).await.unwrap();
                model.retain(|element| !elements.contains(element));
            }
            Step::Change(add, delete) => {
                array.change(&add, &delete).await.unwrap();
                model.retain(|element| !delete.contains(element));
                model.extend(add);
            }
            Step::Compact => assert_eq!(array.compact().await.unwrap().elements, model.len() as u64),
            Step::Read => assert_eq!(read(array, shards).await, expected(&model, shards)),
        }
    }
    for array in &handles {
        assert_eq!(read(array, shards).await, expected(&model, shards));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_model_agrees(steps in proptest::collection::vec((any::<bool>(), step()), 0..60), shards in 1u16..4) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps, shards));
    }
}

/// Over several shards the elements of one shard keep their order: here all of each letter are one element's, so of one shard.
#[tokio::test]
async fn equal_elements_keep_their_number_and_shards_their_order() {
    let store = Probe::new().shared();
    let array = Array::options().shards(5).open_or_create(&store, "a").await.unwrap();
    let pushed: Vec<String> = (0..200u32).map(|number| format!("{}", number % 40)).collect();
    for part in pushed.chunks(7) {
        array.push(part).await.unwrap();
    }
    let elements = array.elements().await.unwrap();
    let again = Array::open(&store, "a").await.unwrap();
    array.compact().await.unwrap();
    assert_eq!(again.elements().await.unwrap(), elements);
    // Of any two elements of one shard the listing has the order of the pushes: element 0 to 39, five times over.
    let mut seen = std::collections::HashMap::new();
    for element in &elements {
        *seen.entry(element.clone()).or_insert(0) += 1;
    }
    assert!(seen.len() == 40 && seen.values().all(|&count| count == 5), "{seen:?}");
    let wraps = elements.windows(2).filter(|pair| number(&pair[0]) > number(&pair[1])).count();
    assert!(wraps <= 5 * 5, "{wraps} times the order falls back: once a round and shard at the most");
}

fn number(element: &[u8]) -> u32 {
    std::str::from_utf8(element).unwrap().parse().unwrap()
}
