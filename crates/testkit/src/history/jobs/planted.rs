//! Small structures as people first write them, each with a flaw that can be left out: what the checkers must find, and what they must not.
//!
//! Nothing of this is any good. The flaws are those of the documents that Larder began with, and of every second program that keeps its data in
//! a store of keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_core::{
    Arith, Batch, Ctx, Effect, Error, ErrorKind, Initial, Key, Op, PutMode, Reply, Result, StoreExt, StoreRef, Ttl,
    Want,
};

use super::counters::{Habits, Seen, counter};
use super::drive::{self, Opener, Opening};
use super::maps::{MapJob, Mix, map, nothing_else};
use crate::history::check::counter::CounterOp;
use crate::history::check::map::{MapOp, MapTold};
use crate::history::{Arena, Boxed, Run, Verdict};

/// What is wrong with a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing that a checker may find.
    None,
    /// An append that finds no key makes it: a key that was evicted comes back with one member.
    AppendCreates,
    /// An append whose reply is lost is sent again: an element comes back that others removed in between.
    RetriedAppend,
    /// The two outcomes of an append are swapped: what failed is told done.
    SwappedOutcomes,
    /// A counter that is not there reads as zero.
    LostReadsAsZero,
    /// Entry and list are written in turn, and a failure between them is told as if nothing had been written.
    TwoKeysInTurn,
    /// The members are written, then their number: a crash in between is never made good.
    CountBesideSet,
    /// A reset reads the number and then writes a zero: what was added in between is in neither.
    ResetByPut,
    /// An append that finds no key makes it, and where another was faster it is left at that: the element is nowhere.
    NoSecondTry,
    /// The first look of a handle says that the list is lost, whatever is there.
    CriesLost,
}

/// Turns of the others between a try and the next: some five calls.
const RETRIED_AFTER_TURNS: usize = 20;
/// Appends to a key that is made by whoever is first: the second finds it.
const GROW_TRIES_MAX: usize = 3;
/// The keys that a structure is made with.
const MADE: &[(&str, &str)] = &[("all", "set "), ("count", "0")];

/// A handle of any of them: two keys.
#[derive(Clone)]
struct Toy {
    store: StoreRef,
    name: String,
    flaw: Flaw,
    has_looked: Arc<AtomicBool>,
}

impl Toy {
    fn key(&self, part: &str) -> Result<Key> {
        Key::new(format!("{}/{part}", self.name.replace(' ', "-")))
    }

    async fn run(&self, part: &str, op: impl FnOnce(Key) -> Op) -> Result<Reply> {
        self.store.run_one(Ctx::default(), op(self.key(part)?)).await
    }

    async fn append(&self, text: String) -> Result<Reply> {
        let append = || {
            Op::put(
                self.key("all").unwrap_or_else(|_| unreachable!("short")),
                PutMode::Append,
                text.clone(),
                Ttl::Never,
            )
        };
        let told = self.store.run_one(Ctx::default(), append()).await;
        match (told, self.flaw) {
            (Err(error), Flaw::RetriedAppend) if error.is_unknown() => {
                // As clients do, a while later: others go on meanwhile.
                for _ in 0..RETRIED_AFTER_TURNS {
                    tokio::task::yield_now().await;
                }
                self.store.run_one(Ctx::default(), append()).await
            }
            (Err(_), Flaw::SwappedOutcomes) => Ok(Reply::Stored),
            (Ok(Reply::NotStored), Flaw::AppendCreates) => {
                self.run("all", |key| Op::put(key, PutMode::Add, format!("set {text}"), Ttl::Never)).await
            }
            (told, _) => told,
        }
    }

    /// Appends, or makes the key where there is none; who was overtaken in between appends after all.
    async fn grow(&self, text: String) -> Result<()> {
        for _ in 0..GROW_TRIES_MAX {
            let append = |key| Op::put(key, PutMode::Append, text.clone(), Ttl::Never);
            if self.run("all", append).await? != Reply::NotStored {
                return Ok(());
            }
            let make = |key| Op::put(key, PutMode::Add, format!("set {text}"), Ttl::Never);
            if self.run("all", make).await? != Reply::NotStored || self.flaw == Flaw::NoSecondTry {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Conflict, "neither there nor not there"))
    }

    async fn number(&self) -> Result<i128> {
        match self.store.get(self.key("count")?).await? {
            Some(item) => Ok(number(&item.value)),
            None if self.flaw == Flaw::LostReadsAsZero => Ok(0),
            None => Err(lost("the number")),
        }
    }

    /// Takes the number away, if nobody has added since it was read.
    async fn reset(&self, count: Key) -> Result<i128> {
        loop {
            let read = Op::get(count.clone(), Want::VALUE | Want::CAS);
            let Some(item) = self.store.run_one(Ctx::default(), read).await?.into_item() else {
                return self.number().await;
            };
            let mode = match item.cas {
                Some(cas) if self.flaw != Flaw::ResetByPut => PutMode::Cas(cas),
                _ => PutMode::Set,
            };
            match self.store.run_one(Ctx::default(), Op::put(count.clone(), mode, "0", Ttl::Never)).await? {
                Reply::Exists => {}
                reply => return stored(Ok(reply)).map(|()| number(&item.value)),
            }
        }
    }

    /// The words that were appended; the first says that there is anything.
    async fn words(&self) -> Result<Vec<String>> {
        if !self.has_looked.swap(true, Ordering::SeqCst) && self.flaw == Flaw::CriesLost {
            return Err(lost("the list"));
        }
        self.words_if_any().await?.ok_or_else(|| lost("the list"))
    }

    async fn words_if_any(&self) -> Result<Option<Vec<String>>> {
        let item = self.store.get(self.key("all")?).await?;
        let text = item.map(|item| String::from_utf8_lossy(&item.value).into_owned());
        Ok(text.map(|text| text.split_whitespace().skip(1).map(str::to_owned).collect()))
    }
}

fn lost(what: &str) -> Error {
    Error::new(ErrorKind::Lost, format!("{what} is gone"))
}

fn stored(told: Result<Reply>) -> Result<()> {
    match told? {
        Reply::NotStored | Reply::Miss => Err(lost("the list")),
        _ => Ok(()),
    }
}

fn opener(flaw: Flaw, job: &str, run: Run, made: &'static [(&str, &str)]) -> Opener<Toy> {
    let name = drive::name(job, run);
    Arc::new(move |store: StoreRef, how| {
        let toy = Toy { store, name: name.clone(), flaw, has_looked: Arc::default() };
        Box::pin(async move {
            if how == Opening::Make {
                for (part, value) in made {
                    toy.run(part, |key| Op::put(key, PutMode::Add, *value, Ttl::Never)).await?;
                }
            }
            Ok(toy)
        })
    })
}

fn unsupported() -> Result<MapTold> {
    Err(Error::new(ErrorKind::Unsupported, "a toy"))
}

/// A set by appends.
pub fn set(flaw: Flaw) -> impl Fn(Arena, Run) -> Boxed<Verdict> {
    move |arena, run| {
        let open = opener(flaw, "planted set", run, MADE);
        let mix = Mix { put: 6, remove: 5, get: 5, all: 1, ..Mix::default() };
        Box::pin(map(arena, run, MapJob { name: "planted set", open, mix, apply: set_call, also: nothing_else }))
    }
}

/// The same set, of few members that all clients put, remove and, most of the time, look at: what comes back is seen.
pub fn watched_set(flaw: Flaw) -> impl Fn(Arena, Run) -> Boxed<Verdict> {
    move |arena, run| {
        let open = opener(flaw, "watched set", run, MADE);
        let mix = Mix { put: 2, remove: 2, get: 8, keys: Some(3), ..Mix::default() };
        Box::pin(map(arena, run, MapJob { name: "watched set", open, mix, apply: set_call, also: nothing_else }))
    }
}

fn set_call(toy: Toy, op: MapOp) -> Boxed<Result<MapTold>> {
    Box::pin(async move {
        match op {
            MapOp::Put(key, _) => stored(toy.append(format!("+{key} ")).await).map(|()| MapTold::Done),
            MapOp::Remove(key) => {
                // Removed twice is removed: that one may be tried again.
                let op = |name| Op::put(name, PutMode::Append, format!("-{key} "), Ttl::Never);
                stored(toy.run("all", op).await).map(|()| MapTold::Done)
            }
            MapOp::Get(_) | MapOp::All => Ok(members(op, toy.words().await?)),
            _ => unsupported(),
        }
    })
}

/// What a set's words come to: one member, or all.
fn members(op: MapOp, words: Vec<String>) -> MapTold {
    let mut members = std::collections::BTreeSet::new();
    for word in words {
        let Ok(key) = word[1..].parse::<u64>() else { continue };
        if word.starts_with('+') {
            members.insert(key)
        } else {
            members.remove(&key)
        };
    }
    match op {
        MapOp::Get(key) => MapTold::Value(members.contains(&key).then_some(1)),
        _ => MapTold::All(members.into_iter().map(|key| (key, 1)).collect()),
    }
}

/// A set whose key is made by whoever puts first, as all clients do at once; each member is put once, so that what is lost stays lost.
pub fn grown_set(flaw: Flaw) -> impl Fn(Arena, Run) -> Boxed<Verdict> {
    move |arena, run| {
        let open = opener(flaw, "grown set", run, &[]);
        let mix = Mix { put: 8, get: 4, all: 1, puts_once: true, ..Mix::default() };
        Box::pin(map(arena, run, MapJob { name: "grown set", open, mix, apply: grown_call, also: nothing_else }))
    }
}

fn grown_call(toy: Toy, op: MapOp) -> Boxed<Result<MapTold>> {
    Box::pin(async move {
        match op {
            MapOp::Put(key, _) => toy.grow(format!("+{key} ")).await.map(|()| MapTold::Done),
            MapOp::Get(_) | MapOp::All => Ok(members(op, toy.words_if_any().await?.unwrap_or_default())),
            _ => unsupported(),
        }
    })
}

/// A table: an entry a key, and a list of keys.
pub fn table(flaw: Flaw) -> impl Fn(Arena, Run) -> Boxed<Verdict> {
    move |arena, run| {
        let open = opener(flaw, "planted table", run, MADE);
        let mix = Mix { put: 6, get: 6, all: 1, has_values: true, is_table: true, ..Mix::default() };
        Box::pin(map(arena, run, MapJob { name: "planted table", open, mix, apply: table_call, also: nothing_else }))
    }
}

fn table_call(toy: Toy, op: MapOp) -> Boxed<Result<MapTold>> {
    Box::pin(async move {
        let value = |reply: Reply| {
            let item = reply.into_item();
            item.and_then(|item| String::from_utf8_lossy(&item.value).parse::<i64>().ok())
        };
        let get = |key| Op::get(key, larder_core::Want::VALUE);
        match op {
            MapOp::Put(key, put) => {
                let entry = toy.key(&key.to_string())?;
                toy.store.run_one(Ctx::default(), Op::put(entry, PutMode::Set, put.to_string(), Ttl::Never)).await?;
                let listed = stored(toy.append(format!("+{key} ")).await);
                let honest = |error: Error| error.effect(Effect::Unknown);
                listed
                    .map_err(|error| if toy.flaw == Flaw::None { honest(error) } else { error })
                    .map(|()| MapTold::Done)
            }
            MapOp::Get(key) => Ok(MapTold::Value(value(toy.run(&key.to_string(), get).await?))),
            MapOp::All => {
                let mut all = std::collections::BTreeMap::new();
                for word in toy.words().await? {
                    let Ok(key) = word[1..].parse::<u64>() else { continue };
                    if let Some(value) = value(toy.run(&key.to_string(), get).await?) {
                        all.insert(key, value);
                    }
                }
                Ok(MapTold::All(all.into_iter().collect()))
            }
            _ => unsupported(),
        }
    })
}

/// Members under keys of their own, and their number beside them. A failed call is tried again, since members are there once anyway.
pub fn unique(flaw: Flaw) -> impl Fn(Arena, Run) -> Boxed<Verdict> {
    move |arena, run| {
        let open = opener(flaw, "planted unique", run, MADE);
        let mix = Mix { put: 10, count: 2, ..Mix::default() };
        Box::pin(map(arena, run, MapJob { name: "planted unique", open, mix, apply: unique_call, also: nothing_else }))
    }
}

fn unique_call(toy: Toy, op: MapOp) -> Boxed<Result<MapTold>> {
    Box::pin(async move {
        match op {
            MapOp::Put(key, _) => {
                let mut told = unsupported();
                for _ in 0..3 {
                    told = unique_try(&toy, key).await;
                    if told.is_ok() {
                        break;
                    }
                }
                told
            }
            MapOp::Count => {
                let item = toy.store.get(toy.key("count")?).await?.ok_or_else(|| lost("the number"))?;
                let count = String::from_utf8_lossy(&item.value).trim().parse().unwrap_or(0);
                Ok(MapTold::Count(count))
            }
            _ => unsupported(),
        }
    })
}

async fn unique_try(toy: &Toy, key: u64) -> Result<MapTold> {
    let add = Op::put(toy.key(&key.to_string())?, PutMode::Add, "1", Ttl::Never);
    if toy.store.run_one(Ctx::default(), add).await? == Reply::Stored {
        toy.run("count", |key| Op::arith(key, Arith::Incr(1))).await?;
    }
    Ok(MapTold::Done)
}

fn number(digits: &[u8]) -> i128 {
    String::from_utf8_lossy(digits).trim().parse().unwrap_or(-1)
}

/// A number on the store's arithmetic.
pub fn count(flaw: Flaw) -> impl Fn(Arena, Run) -> Boxed<Verdict> {
    move |arena, run| {
        let open = opener(flaw, "planted number", run, MADE);
        let habits = Habits { resets: true, takes_twice: true, ..Habits::default() };
        Box::pin(counter("planted number", arena, run, open, habits, number_call))
    }
}

fn number_call(toy: Toy, op: CounterOp, _: Seen) -> Boxed<Result<i128>> {
    Box::pin(async move {
        let is_zero = toy.flaw == Flaw::LostReadsAsZero;
        let count = toy.key("count")?;
        match op {
            CounterOp::Add(by) => {
                let mut add = Op::arith(count, Arith::Incr(by.unsigned_abs()));
                if let (larder_core::Verb::Arith { initial, .. }, true) = (&mut add.verb, is_zero) {
                    *initial = Some(Initial { value: by.unsigned_abs(), ttl: Ttl::Never });
                }
                let told = toy.store.run(Ctx::default(), Batch::from_iter([add])).await.pop();
                stored(told.unwrap_or_else(|| Err(lost("the reply")))).map(|()| 0)
            }
            CounterOp::Read => toy.number().await,
            CounterOp::Reset => toy.reset(count).await,
        }
    })
}
