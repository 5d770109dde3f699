//! The fast counter in a bit field: what it counts, what it refuses, and where its number is gone.

use larder_core::{Effect, ErrorKind, Key, StoreRef};
use larder_structures::Counter;

use crate::counter::support::{data_key, memory};
use crate::support::natives::{Held, Natives};

/// A counter in a bit field, and the key of that.
async fn made(items: &StoreRef) -> (std::sync::Arc<Natives>, Counter, Key) {
    let natives = Natives::over(items);
    let counter = Counter::options().fast().open_or_create(&natives.shared(), "n").await.unwrap();
    let key = data_key(items, "n", 'n', 0).await;
    (natives, counter, key)
}

/// What the bit field holds: its mark, and a value.
fn bits(natives: &Natives, key: &Key, value: i64) -> Held {
    let Some(Held::Bits(bits)) = natives.held(key) else { panic!("it is no bit field") };
    let number = (1_i64 << 62) + value;
    Held::Bits([&bits[..8], &number.to_be_bytes()].concat())
}

#[tokio::test]
async fn a_counter_in_a_bit_field_counts_for_each_who_opens_it() {
    let items = memory();
    let (natives, counter, key) = made(&items).await;
    counter.add(5).await.unwrap();
    counter.add(-7).await.unwrap();
    assert_eq!(natives.held(&key), Some(bits(&natives, &key, -2)));
    let other = Counter::open(&natives.shared(), "n").await.unwrap();
    assert_eq!(other.get().await.unwrap(), -2);
    other.add(3).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 1);
    assert_eq!(other.reset().await.unwrap(), 1);
    assert_eq!(counter.get().await.unwrap(), 0);
}

#[tokio::test]
async fn an_add_beyond_the_range_of_a_bit_field_adds_nothing() {
    let items = memory();
    let (natives, counter, key) = made(&items).await;
    // One below its end of 2^61, and one below what the bits can hold.
    for (value, said) in [((1 << 61) - 1, "nothing is added"), ((1 << 62) - 2, "would leave 63 bits; nothing is added")]
    {
        let full = bits(&natives, &key, value);
        natives.hold(&key, full.clone());
        let error = counter.add(2).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Overflow, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(natives.held(&key), Some(full));
    }
}

#[tokio::test]
async fn a_bit_field_that_another_program_writes_over_is_a_loss_and_stays_as_it_is() {
    let items = memory();
    let (natives, counter, key) = made(&items).await;
    let theirs = Held::Bits(b"another program's value".to_vec());
    natives.hold(&key, theirs.clone());
    for error in [counter.add(1).await.unwrap_err(), counter.get().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("another program's value stands under its key"), "{error}");
    }
    assert_eq!(natives.held(&key), Some(theirs));
}

#[tokio::test]
async fn a_bit_field_that_is_a_byte_longer_is_no_number() {
    let items = memory();
    let (natives, counter, key) = made(&items).await;
    let Held::Bits(ours) = bits(&natives, &key, 5) else { panic!("it is no bit field") };
    natives.hold(&key, Held::Bits([&ours[..], b"x"].concat()));
    let error = counter.get().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    natives.hold(&key, Held::Bits(ours));
    assert_eq!(counter.get().await.unwrap(), 5);
}

#[tokio::test]
async fn a_store_without_bit_fields_says_that_it_has_none() {
    let items = memory();
    let (_, counter, _) = made(&items).await;
    counter.add(1).await.unwrap();
    let error = Counter::open(&items, "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a counter in a bit field, which this store has not"), "{error}");
}
