//! The work that is done on a store while it is crashed: steps drawn from a seed, so that whoever knows the seed knows what the store should hold after each;
//! and the process that does them, and says on its standard output, a line each, what was acknowledged.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use larder_core::{
    Arith, Cas, Ctx, Initial, Item, Key, Op, PutMode, Remaining, Reply, Result, Store, StoreExt, Ttl, Verb, Want,
};
use larder_store_durable::{DurableStore, Options, Sync};

use super::calls;

/// Writers, each with keys of its own.
pub(super) const WRITERS: usize = 3;
/// Keys of a writer, its counter left out.
const KEYS: usize = 4;
/// Keys of a writer that each step of a work of rounds changes besides: so many that the store writes the step as a round.
const BESIDE: usize = 12;
/// Bytes of their values at the last step before the store is settled: so many, together, that items and rounds are moved and removed by several batches.
const BESIDE_BYTES: usize = 48 << 10;
/// Steps of a writer from one opening of the store to the next.
const STEPS: usize = 10;
/// How often the store is opened.
const SESSIONS: usize = 2;
/// How often tables are written beside the writers of a later opening, at the most.
const BESIDE_TABLES: usize = 16;
/// A life that does not end while a test runs.
const LIFE: Duration = Duration::from_secs(86_400);

/// An item as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    pub(super) lives: bool,
}

/// What a writer's keys hold.
pub(super) type State = BTreeMap<String, Kept>;

/// What a writer does once.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Put { key: String, mode: Mode, value: Vec<u8>, flags: u32, lives: bool },
    Delete { key: String },
    Touch { key: String },
    Count { key: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Set,
    Add,
    Append,
    /// Over the item that was read just before.
    Cas,
}

/// The sizes of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    Small,
    /// So that the engine goes on in another journal, and writes and merges tables by itself.
    Large,
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) seed: u64,
    pub(super) sync: Sync,
    pub(super) sizes: Sizes,
}

impl Work {
    /// True if each step changes so many items that it is written as one round, at each setting of some works.
    pub(super) fn has_rounds(&self) -> bool {
        self.sizes == Sizes::Small && (self.seed % 2 == 1 || self.seed % 12 == 10)
    }

    /// What a step does besides.
    fn beside(&self, writer: usize, number: usize) -> impl Iterator<Item = Step> {
        let count = if self.has_rounds() { BESIDE } else { 0 };
        (0..count).map(move |other| {
            let key = beside(writer, other);
            if (number + other).is_multiple_of(4) {
                return Step::Delete { key };
            }
            let bytes = if number + 1 == STEPS { BESIDE_BYTES } else { 8 + other };
            let value = number.to_le_bytes().into_iter().cycle().take(bytes).collect();
            Step::Put { key, mode: Mode::Set, value, flags: 0, lives: (number + other).is_multiple_of(3) }
        })
    }

    /// All steps of a writer.
    pub(super) fn steps(&self, writer: usize) -> Vec<Step> {
        let mut rng = Rng::with_seed(self.seed ^ (writer as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        (0..STEPS * SESSIONS).map(|_| self.step(writer, &mut rng)).collect()
    }

    fn step(&self, writer: usize, rng: &mut Rng) -> Step {
        let key = format!("w{writer}-{}", rng.usize(0..KEYS));
        match rng.u8(0..10) {
            0 => Step::Delete { key },
            1 => Step::Touch { key },
            2 | 3 => Step::Count { key: format!("w{writer}-n") },
            drawn => {
                let mode = match drawn {
                    4 => Mode::Add,
                    5 => Mode::Append,
                    6 | 7 => Mode::Cas,
                    _ => Mode::Set,
                };
                let bytes = match (self.sizes, rng.u8(0..8)) {
                    (Sizes::Large, _) if mode != Mode::Append => rng.usize(1 << 20..4 << 20),
                    (_, 0) => 0,
                    (_, 1) => rng.usize(5_000..40_000),
                    _ => rng.usize(1..700),
                };
                let mut value = vec![0; bytes];
                rng.fill(&mut value);
                Step::Put { key, mode, value, flags: rng.u32(..), lives: rng.u8(0..4) == 0 }
            }
        }
    }

    /// What a writer's keys hold before its first step, and after each.
    pub(super) fn states(&self, writer: usize) -> Vec<State> {
        let mut states = vec![State::new()];
        for (number, step) in self.steps(writer).into_iter().enumerate() {
            let mut state = states[states.len() - 1].clone();
            step.apply(&mut state);
            self.beside(writer, number).for_each(|step| step.apply(&mut state));
            states.push(state);
        }
        states
    }

    /// The arguments that have a process [do](child) the work.
    pub(super) fn args(&self, folder: &Path) -> Vec<String> {
        let large = if self.sizes == Sizes::Large { "large" } else { "small" };
        vec![self.seed.to_string(), self.sync.to_string(), large.to_owned(), folder.display().to_string()]
    }
}

impl Step {
    fn key(&self) -> &str {
        match self {
            Step::Put { key, .. } | Step::Delete { key } | Step::Touch { key } | Step::Count { key } => key,
        }
    }

    fn apply(&self, state: &mut State) {
        match self {
            Step::Put { key, mode: Mode::Append, value, .. } => {
                if let Some(kept) = state.get_mut(key) {
                    kept.value.extend_from_slice(value);
                }
            }
            Step::Put { key, mode, value, flags, lives } => {
                if *mode != Mode::Add || !state.contains_key(key) {
                    state.insert(key.clone(), Kept { value: value.clone(), flags: *flags, lives: *lives });
                }
            }
            Step::Delete { key } => _ = state.remove(key),
            Step::Touch { key } => _ = state.get_mut(key).map(|kept| kept.lives = true),
            Step::Count { key } => {
                let kept = state.entry(key.clone()).or_insert(Kept { value: b"0".to_vec(), flags: 0, lives: false });
                let count: u64 = std::str::from_utf8(&kept.value).expect("digits").parse().expect("a number");
                kept.value = (count + 1).to_string().into_bytes();
            }
        }
    }

    /// The reply that the step should get.
    fn reply(&self, before: &State) -> Reply {
        let is_there = before.contains_key(self.key());
        match self {
            Step::Put { mode: Mode::Add, .. } if is_there => Reply::NotStored,
            Step::Put { mode: Mode::Append, .. } if !is_there => Reply::NotStored,
            Step::Put { .. } => Reply::Stored,
            Step::Delete { .. } if is_there => Reply::Deleted,
            Step::Touch { .. } if is_there => Reply::Touched,
            Step::Delete { .. } | Step::Touch { .. } => Reply::Miss,
            Step::Count { key } => {
                let mut after = before.clone();
                self.apply(&mut after);
                Reply::Number(String::from_utf8_lossy(&after[key].value).parse().expect("a number"))
            }
        }
    }

    /// The step as an op; `seen` is what was read for it.
    fn op(&self, seen: Option<Cas>) -> Op {
        let key = key(self.key());
        let ttl = |lives| if lives { Ttl::After(LIFE) } else { Ttl::Never };
        match self {
            Step::Put { mode, value, flags, lives, .. } => {
                let mode = match (mode, seen) {
                    (Mode::Cas, Some(cas)) => PutMode::Cas(cas),
                    (Mode::Set | Mode::Cas, _) => PutMode::Set,
                    (Mode::Add, _) => PutMode::Add,
                    (Mode::Append, _) => PutMode::Append,
                };
                let (value, flags) = (Bytes::copy_from_slice(value), *flags);
                Op::new(key, Verb::Put { mode, value, flags, ttl: ttl(*lives) })
            }
            Step::Delete { .. } => Op::delete(key),
            Step::Touch { .. } => Op::touch(key, ttl(true)),
            Step::Count { .. } => {
                let initial = Some(Initial { value: 1, ttl: Ttl::Never });
                Op::new(key, Verb::Arith { arith: Arith::Incr(1), initial })
            }
        }
    }
}

fn beside(writer: usize, other: usize) -> String {
    format!("w{writer}-beside{other}")
}

pub(super) fn key(name: &str) -> Key {
    Key::new(name.to_owned()).expect("a key")
}

/// All that a store holds under a writer's keys, and the cas token of each.
pub(super) async fn held(store: &DurableStore, writer: usize) -> Result<(State, BTreeMap<String, u64>)> {
    let (mut state, mut tokens) = (State::new(), BTreeMap::new());
    let names = (0..KEYS).map(|number| format!("w{writer}-{number}")).chain([format!("w{writer}-n")]);
    let names = names.chain((0..BESIDE).map(|other| beside(writer, other)));
    for name in names {
        let want = Want::VALUE | Want::CAS | Want::FLAGS | Want::TTL;
        let reply = store.run_one(Ctx::default(), Op::get(key(&name), want)).await?;
        if let Some(Item { value, flags, cas, ttl }) = reply.into_item() {
            let kept = Kept { value: value.to_vec(), flags, lives: ttl != Remaining::Never };
            state.insert(name.clone(), kept);
            tokens.insert(name, cas.map_or(0, |cas| cas.token));
        }
    }
    Ok((state, tokens))
}

/// Says a line, in one write.
fn say(line: &str) {
    // Nobody is there who could be told that nobody listens.
    _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// The process that works: it waits for a line, has its calls traced from then on, and does what `args` say.
pub(super) fn child(args: &[String]) {
    let [seed, sync, sizes, folder] = args else { panic!("a crashing process takes four words: {args:?}") };
    let sizes = if sizes == "large" { Sizes::Large } else { Sizes::Small };
    let work = Work { seed: seed.parse().expect("a seed"), sync: sync.parse().expect("a setting"), sizes };
    std::io::stdin().lock().read_line(&mut String::new()).expect("a line");
    seccompiler::apply_filter_all_threads(&calls::filter().expect("a filter")).expect("a filter of calls");
    // Not for ever, should something hang.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        say("bad it takes more than a minute");
        std::process::abort();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    for session in 0..SESSIONS {
        match Options::new(folder).sync(work.sync).reserve_bytes(0).open() {
            Ok(store) => {
                say("opened");
                runtime.block_on(write(&work, store, session));
                say("closed");
            }
            Err(error) => say(&format!("shut {error}")),
        }
    }
}

/// One opening's worth of steps of all writers, at the same time; tables are written when they are done, and, in later openings, beside them.
async fn write(work: &Work, store: DurableStore, session: usize) {
    let store = std::sync::Arc::new(store);
    let is_over = std::sync::Arc::new(AtomicBool::new(false));
    let beside = (session > 0).then(|| {
        let (store, is_over) = (store.clone(), is_over.clone());
        std::thread::spawn(move || tables(&store, &is_over))
    });
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (work, store) = (*work, store.clone());
        writers.push(tokio::spawn(async move { write_one(&work, &store, writer, session).await }));
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    is_over.store(true, Ordering::Release);
    let is_settled = beside.map(|beside| beside.join().expect("a thread that settles"));
    if is_settled == Some(false) {
        say("unsettled");
    }
    if session == 0 {
        say(if store.settle().is_ok() { "settled" } else { "unsettled" });
        say(if store.sync().await.is_ok() { "synced" } else { "unsynced" });
    }
}

/// Has tables written again and again: false where that fails.
fn tables(store: &DurableStore, is_over: &AtomicBool) -> bool {
    (0..BESIDE_TABLES).take_while(|_| !is_over.load(Ordering::Acquire)).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        store.settle().is_ok()
    })
}

async fn write_one(work: &Work, store: &DurableStore, writer: usize, session: usize) {
    let (steps, states) = (work.steps(writer), work.states(writer));
    let Ok((held, _)) = held(store, writer).await else { return say(&format!("bad {writer} a read failed")) };
    // The last that fits: a step that changes nothing leaves no trace.
    let Some(first) = states.iter().rposition(|state| *state == held) else {
        return say(&format!("bad {writer} the store holds what it never should"));
    };
    say(&format!("resumed {writer} {first}"));
    let end = if session + 1 == SESSIONS { steps.len() } else { (first + STEPS).min(steps.len()) };
    for number in first..end {
        let beside = work.beside(writer, number);
        match take(store, (writer, number), &steps[number], beside, &states[number]).await {
            Ok(Some(reply)) => return say(&format!("bad {writer} step {number} was answered {reply:?}")),
            Ok(None) => say(&format!("ok {writer} {}", number + 1)),
            Err(error) if error.is_unknown() => {
                say(&format!("unknown {writer} {number}"));
                return refused(store, &steps, &states, (writer, number)).await;
            }
            Err(_) => {
                say(&format!("refused {writer} {number}"));
                return refused(store, &steps, &states, (writer, number)).await;
            }
        }
    }
}

/// Takes a step, and what is done besides, as one batch: a reply that is not what it should be.
async fn take(
    store: &DurableStore,
    (writer, number): (usize, usize),
    step: &Step,
    beside: impl Iterator<Item = Step>,
    before: &State,
) -> Result<Option<Reply>> {
    let seen = match step {
        Step::Put { mode: Mode::Cas, .. } => store.get(key(step.key())).await?.and_then(|item| item.cas),
        _ => None,
    };
    if let Some(cas) = seen {
        say(&format!("token {writer} {number} {}", cas.token));
    }
    let (mut ops, mut wanted) = (vec![step.op(seen)], vec![step.reply(before)]);
    for step in beside {
        ops.push(step.op(None));
        wanted.push(step.reply(before));
    }
    let replies = store.run(Ctx::default(), ops.into_iter().collect()).await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(replies.into_iter().zip(wanted).find_map(|(reply, wanted)| (reply != wanted).then_some(reply)))
}

/// After a write that failed: no other is taken, reads go on.
async fn refused(store: &DurableStore, steps: &[Step], states: &[State], (writer, number): (usize, usize)) {
    for step in steps.iter().skip(number).take(3) {
        match store.run_one(Ctx::default(), step.op(None)).await {
            Err(error) if !error.is_unknown() => {}
            other => say(&format!("bad {writer} a write after one that failed was answered {other:?}")),
        }
    }
    match held(store, writer).await {
        Ok((held, _)) if held == states[number] => {}
        Ok(_) => say(&format!(
            "bad {writer} a read after a write that failed shows something else than what was acknowledged"
        )),
        Err(error) => say(&format!("bad {writer} a read after a write that failed: {error}")),
    }
}
