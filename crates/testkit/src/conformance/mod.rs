//! The conformance suites: cases as data, run against every store.
//!
//! A [`Case`] says what it needs of a store, and a body that panics where the store does otherwise. A column is a store, opened the
//! way users open it. Whether a case applies to a column is computed from the store's [`Profile`] and must agree with the
//! checked-in [`matrix`]: a store that loses a capability, or gains one, fails until the matrix says so.

pub mod array_cases;
pub mod budget_cases;
pub mod cache_cases;
pub mod lock_cases;
pub mod log_cases;
pub mod lookup_budget_cases;
pub mod lookup_cases;
pub mod matrix;
pub mod model_cases;
pub mod native_cases;
pub mod op_cases;
pub mod queue_cases;
pub mod queue_fault_cases;
pub mod range_cases;
pub mod records_cases;
pub mod reshard_cases;
pub mod sharded_cases;
pub mod sorted_cases;
pub mod structure_cases;
pub mod table_budget_cases;
pub mod table_cases;
pub mod unique_cases;
pub mod visitors_cases;
pub mod watch_cases;

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use larder_core::native::{Families, Native};
use larder_core::{
    Ctx, Effect, Error, ErrorKind, Item, Key, Op, Profile, Ranges, Reply, Result, StoreExt, StoreRef, Ttl, TtlSupport,
    Want,
};

/// Makes the list of a suite's cases: the name of the function that is the body, and what it needs.
macro_rules! cases {
    ($($name:ident [$($need:ident $(($of:expr))?),*];)*) => {
        /// All of them.
        pub const CASES: &[$crate::conformance::Case] = &[$(
            $crate::conformance::Case {
                name: stringify!($name),
                needs: &[$($crate::conformance::Need::$need $(($of))?),*],
                body: |bench| Box::pin($name(bench)),
            },
        )*];
    };
}
pub(crate) use cases;

/// The cases of all suites.
pub const CASES: &[&[Case]] = &[
    op_cases::CASES,
    range_cases::CASES,
    native_cases::CASES,
    watch_cases::CASES,
    structure_cases::CASES,
    lock_cases::CASES,
    array_cases::CASES,
    cache_cases::CASES,
    visitors_cases::CASES,
    unique_cases::CASES,
    log_cases::CASES,
    lookup_cases::CASES,
    model_cases::CASES,
    queue_cases::CASES,
    queue_fault_cases::CASES,
    records_cases::CASES,
    sharded_cases::CASES,
    reshard_cases::CASES,
    sorted_cases::CASES,
    table_cases::CASES,
    budget_cases::CASES,
    lookup_budget_cases::CASES,
    table_budget_cases::CASES,
];

/// One thing that every store must do, or say that it cannot.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: what is true of a store that passes.
    pub name: &'static str,
    /// What it needs of a store.
    pub needs: &'static [Need],
    /// What is checked. Panics where it does not hold.
    pub body: fn(Bench) -> Body,
}

/// The body of a case under way.
pub type Body = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a case can need of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Conditional writes.
    Cas,
    /// The opposite: a store where conditional writes cannot be had.
    NoCas,
    /// Deletes by token.
    DeleteCas,
    /// Lives.
    Ttl,
    /// The opposite: a store where items stay for ever.
    NoTtl,
    /// Lives told by a get.
    RemainingTtl,
    /// Arithmetic that creates.
    ArithInitial,
    /// Keys of any bytes.
    BinaryKeys,
    /// Reads and writes of parts of a value.
    Ranges,
    /// The opposite: a store that has them of whole reads and conditional writes only.
    NoRanges,
    /// Being told of changes.
    Watch,
    /// The opposite.
    NoWatch,
    /// A family of native ops.
    Native(Families),
    /// The opposite: a store that has not all of these families.
    Lacks(Families),
}

impl Need {
    /// Why a store without it cannot run a case, as the matrix words it.
    pub fn missing(self) -> &'static str {
        match self {
            Need::Cas => "no cas",
            Need::NoCas => "has cas",
            Need::DeleteCas => "no delete by cas",
            Need::Ttl => "no ttl",
            Need::NoTtl => "keeps ttls",
            Need::RemainingTtl => "remaining ttl not told",
            Need::ArithInitial => "no arithmetic that creates",
            Need::BinaryKeys => "printable keys only",
            Need::Ranges => "no ranges",
            Need::NoRanges => "has ranges",
            Need::Watch => "no watches",
            Need::NoWatch => "has watches",
            Need::Native(_) => "no native ops for it",
            Need::Lacks(_) => "has native ops for it",
        }
    }

    fn met_by(self, profile: &Profile) -> bool {
        match self {
            Need::Cas => profile.cas,
            Need::NoCas => !profile.cas,
            Need::DeleteCas => profile.delete_cas,
            Need::Ttl => profile.ttl != TtlSupport::None,
            Need::NoTtl => profile.ttl == TtlSupport::None,
            Need::RemainingTtl => profile.remaining_ttl,
            Need::ArithInitial => profile.arith_initial,
            Need::BinaryKeys => profile.keys_binary,
            Need::Ranges => profile.ranges == Ranges::Native,
            Need::NoRanges => profile.ranges != Ranges::Native,
            Need::Watch => profile.watch,
            Need::NoWatch => !profile.watch,
            Need::Native(families) => profile.natives.contains(families),
            Need::Lacks(families) => !profile.natives.contains(families),
        }
    }
}

impl Case {
    /// Why the case does not apply to a store; `None` where it does.
    pub fn not_applicable(&self, profile: &Profile) -> Option<&'static str> {
        self.needs.iter().find(|need| !need.met_by(profile)).map(|need| need.missing())
    }
}

/// A byte more than what a store's items hold, where that is little enough to be tried.
fn one_over(limit: usize) -> Option<Vec<u8>> {
    (limit < 100_000_000).then(|| vec![b'z'; limit + 1])
}

/// Asserts that what is too large was refused, by a word that names the limit, before anything was written.
fn assert_too_large(error: &Error, limit: usize) {
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains(&limit.to_string()), "{error} does not name the limit");
}

/// What a case works on: a store, keys of its own, and short ways to say things.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The store under test.
    pub store: StoreRef,
    unique: u64,
}

impl Bench {
    /// A bench over a store that others may use at the same time.
    pub fn new(store: StoreRef) -> Bench {
        Bench { store, unique: fastrand::u64(..) }
    }

    /// A key of this case alone.
    pub fn key(&self, name: &str) -> Key {
        Key::new(format!("case-{:016x}-{name}", self.unique)).expect("a short key")
    }

    /// A name of a structure of this case alone.
    pub fn name(&self, name: &str) -> String {
        format!("case-{:016x}-{name}", self.unique)
    }

    /// Runs one op.
    pub async fn run(&self, op: Op) -> Result<Reply> {
        self.store.run_one(Ctx::default(), op).await
    }

    /// Runs one op that must not fail.
    pub async fn ok(&self, op: Op) -> Reply {
        let shown = format!("{} {}", op.name(), op.key);
        self.run(op).await.unwrap_or_else(|error| panic!("{shown}: {error}"))
    }

    /// Removes a key, whatever it holds: an item, or what native ops made.
    pub async fn remove(&self, key: Key) {
        let is_native = self.store.profile().natives.contains(Families::KEYS);
        let op = if is_native { Op::native(key, Native::Remove) } else { Op::delete(key) };
        assert_eq!(self.ok(op).await, Reply::Deleted);
    }

    /// Sets an item for ever.
    pub async fn set(&self, key: &Key, value: impl Into<Bytes>) {
        let reply = self.ok(Op::put(key.clone(), larder_core::PutMode::Set, value, Ttl::Never)).await;
        assert_eq!(reply, Reply::Stored, "set {key}");
    }

    /// Gets an item, all parts of it that the store can tell.
    pub async fn get(&self, key: &Key) -> Option<Item> {
        self.ok(Op::get(key.clone(), Want::all())).await.into_item()
    }

    /// Gets a value.
    pub async fn value(&self, key: &Key) -> Option<Bytes> {
        self.get(key).await.map(|item| item.value)
    }

    /// The token of an item that must be there.
    pub async fn cas(&self, key: &Key) -> larder_core::Cas {
        self.get(key).await.and_then(|item| item.cas).unwrap_or_else(|| panic!("{key} has no token"))
    }
}
