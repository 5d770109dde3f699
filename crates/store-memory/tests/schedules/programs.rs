//! Small programs, drawn from seeds, and the schedules they run under.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Arith, Cas, ErrorKind, ManualClock, PutMode, Reply, Result, Ttl, Want};
use libtest_mimic::{Failed, Trial};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::history::{Act, Allowed, Came, Event, is_linearizable};
use crate::{Builder, MemoryStore};

/// Programs of each sort, unless [`PROGRAMS_VARIABLE`] says another number.
const PROGRAMS: u64 = 60;
const PROGRAMS_VARIABLE: &str = "LARDER_SCHEDULES_PROGRAMS";
const THREADS: usize = 3;
const ACTS: usize = 4;
/// Schedules of each program, under each scheduler.
const SCHEDULES: usize = 20;
/// How many changes of plan PCT looks for.
const DEPTH: usize = 3;
const LIFE: Duration = Duration::from_secs(10);

/// A kind of program.
#[derive(Clone, Copy)]
struct Sort {
    name: &'static str,
    keys: u8,
    /// The budget and whether the store evicts.
    budget: Option<(usize, bool)>,
    /// Values of so many bytes.
    value_bytes: usize,
    acts: &'static [&'static str],
}

const SORTS: &[Sort] = &[
    Sort {
        name: "appends_deletes_and_expiry_on_one_key",
        keys: 1,
        budget: None,
        value_bytes: 3,
        acts: &["append", "append", "delete", "set for a while", "expire", "sweep", "get", "add"],
    },
    Sort {
        name: "conditional_writes",
        keys: 1,
        budget: None,
        value_bytes: 3,
        acts: &["get", "cas", "cas", "set", "delete", "append", "incr", "clear"],
    },
    Sort { name: "counts", keys: 2, budget: None, value_bytes: 1, acts: &["incr", "incr", "get", "number", "delete"] },
    Sort {
        name: "a_budget_that_refuses",
        keys: 8,
        budget: Some((1 << 10, false)),
        value_bytes: 400,
        acts: &["set", "set", "append", "delete", "get", "set for a while", "expire", "sweep"],
    },
    Sort {
        name: "a_budget_that_evicts",
        keys: 8,
        budget: Some((1 << 10, true)),
        value_bytes: 400,
        acts: &["set", "set", "append", "get", "cas", "delete", "set for a while", "expire", "sweep"],
    },
];

/// One test a sort of program and scheduler.
pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = Vec::new();
    for sort in SORTS {
        for (scheduler, is_pct) in [("random", false), ("pct", true)] {
            tests.push(Trial::test(format!("{}_{scheduler}", sort.name), move || run_all(sort, is_pct)));
        }
    }
    tests
}

fn run_all(sort: &'static Sort, is_pct: bool) -> Result<(), Failed> {
    let mut refused_or_vanished = 0;
    let programs = std::env::var(PROGRAMS_VARIABLE).ok().and_then(|number| number.parse().ok()).unwrap_or(PROGRAMS);
    for seed in 0..programs {
        let program = draw(sort, seed);
        let told = Arc::new(AtomicU64::new(0));
        let body = {
            let (program, told) = (program.clone(), told.clone());
            move || told.fetch_add(run(sort, &program), Ordering::Relaxed)
        };
        let body = move || _ = body();
        // A store has more on the stack of a thread than shuttle gives by default.
        let mut config = Config::new();
        config.stack_size = 1 << 18;
        let outcome = catch_unwind(AssertUnwindSafe(|| match is_pct {
            true => Runner::new(PctScheduler::new_from_seed(seed, DEPTH, SCHEDULES), config).run(body),
            false => Runner::new(RandomScheduler::new_from_seed(seed, SCHEDULES), config).run(body),
        }));
        if outcome.is_err() {
            return Err(format!("program {seed}: {program:#?}").into());
        }
        refused_or_vanished += told.load(Ordering::Relaxed);
    }
    if sort.budget.is_some() && refused_or_vanished == 0 {
        return Err("no write was refused and nothing evicted: the budget was not tested".into());
    }
    Ok(())
}

/// What each thread does.
fn draw(sort: &Sort, seed: u64) -> Vec<Vec<Act>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut written = 0_u8;
    let mut act = || {
        let key = random.u8(..sort.keys);
        written += 1;
        let value = vec![b'a' + written % 26; random.usize(sort.value_bytes.div_ceil(2)..=sort.value_bytes)];
        match sort.acts[random.usize(..sort.acts.len())] {
            "get" => Act::Get(key),
            "set" => Act::Set { key, value, expires: false },
            "set for a while" => Act::Set { key, value, expires: true },
            "number" => Act::Set { key, value: b"9".to_vec(), expires: false },
            "add" => Act::Add { key, value },
            "append" => Act::Append { key, more: value },
            "cas" => Act::Cas { key, value, token: None },
            "delete" => Act::Delete { key },
            "incr" => Act::Incr { key },
            "expire" => Act::Expire,
            "sweep" => Act::Sweep,
            "clear" => Act::Clear,
            other => panic!("no act is called {other}"),
        }
    };
    (0..THREADS).map(|_| (0..ACTS).map(|_| act()).collect()).collect()
}

/// Runs a program once and checks what came of it: how often a write was refused or an item evicted.
fn run(sort: &Sort, program: &[Vec<Act>]) -> u64 {
    let clock = Arc::new(ManualClock::default());
    let mut builder = Builder::new().clock(clock.clone()).shards(if sort.budget.is_some() { 2 } else { 1 });
    if let Some((bytes, evicts)) = sort.budget {
        builder = builder.bytes_max(bytes).evict(evicts);
    }
    let store = Arc::new(builder.build().expect("a store"));
    let time = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = program
        .iter()
        .map(|acts| {
            let (store, clock, time, acts) = (store.clone(), clock.clone(), time.clone(), acts.clone());
            thread::spawn(move || work(&store, &clock, &time, acts))
        })
        .collect();
    let mut events: Vec<Event> = Vec::new();
    for thread in threads {
        events.extend(thread.join().expect("no thread panics"));
    }
    let stats = store.stats();
    if let Some((bytes_max, _)) = sort.budget {
        assert_eq!(store.inner.shared.budget.used(), stats.bytes, "what the budget counts is what the shards hold");
        assert!(stats.bytes <= bytes_max);
    }
    // What is there in the end belongs to the history.
    let keys: Vec<Act> = (0..sort.keys).map(Act::Get).collect();
    events.extend(work(&store, &clock, &time, keys));
    store.clear();
    assert_eq!((store.stats().bytes, store.inner.shared.budget.used()), (0, 0), "an empty store holds nothing");
    let allowed = Allowed { evictions: sort.budget.is_some_and(|(_, evicts)| evicts), full: sort.budget.is_some() };
    assert!(is_linearizable(&events, allowed), "no order explains {events:#?}");
    stats.evicted + events.iter().filter(|event| event.came == Came::Full).count() as u64
}

fn work(store: &MemoryStore, clock: &ManualClock, time: &AtomicU64, acts: Vec<Act>) -> Vec<Event> {
    let mut read: Option<(u8, Cas)> = None;
    let mut events = Vec::new();
    for mut act in acts {
        let begun = time.fetch_add(1, Ordering::SeqCst);
        let known = read.filter(|(key, _)| matches!(act, Act::Cas { key: of, .. } if of == *key)).map(|(_, cas)| cas);
        if let Act::Cas { token, .. } = &mut act {
            *token = known.map(|cas| cas.token);
        }
        let came = perform(store, clock, &act, known);
        if let (Act::Get(key), Came::Reply(Reply::Item(item))) = (&act, &came) {
            read = item.cas.map(|cas| (*key, cas));
        }
        let over = time.fetch_add(1, Ordering::SeqCst);
        events.push(Event { begun, over, act, came });
    }
    events
}

fn perform(store: &MemoryStore, clock: &ManualClock, act: &Act, known: Option<Cas>) -> Came {
    let direct = store.direct();
    let name = |key: &u8| [b'k', *key];
    let replied = match act {
        Act::Get(key) => direct.get(&name(key), Want::VALUE | Want::CAS).map(|item| match item {
            Some(item) => Reply::Item(item),
            None => Reply::Miss,
        }),
        Act::Set { key, value, expires } => {
            let ttl = if *expires { Ttl::After(LIFE) } else { Ttl::Never };
            direct.put(&name(key), PutMode::Set, value, 0, ttl)
        }
        Act::Add { key, value } => direct.put(&name(key), PutMode::Add, value, 0, Ttl::Never),
        Act::Append { key, more } => direct.put(&name(key), PutMode::Append, more, 0, Ttl::Never),
        Act::Cas { key, value, .. } => {
            let cas = known.unwrap_or(Cas { token: 1, session: 0 });
            direct.put(&name(key), PutMode::Cas(cas), value, 0, Ttl::Never)
        }
        Act::Delete { key } => direct.delete(&name(key), None),
        Act::Incr { key } => direct.arith(&name(key), Arith::Incr(1), None),
        Act::Expire => {
            clock.advance(2 * LIFE);
            return Came::Done;
        }
        Act::Sweep => {
            store.reclaim_expired();
            return Came::Done;
        }
        Act::Clear => {
            store.clear();
            return Came::Done;
        }
    };
    match replied {
        Ok(reply) => Came::Reply(reply),
        Err(error) if error.kind() == ErrorKind::Full => Came::Full,
        Err(error) if error.kind() == ErrorKind::BadInput => Came::NoNumber,
        Err(error) => panic!("{error}"),
    }
}
