//! A candidate in a process of its own: it loads its items, then does a round of work a line of standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::ours::{Direct, Dyn};
use super::peers::{Dash, Moka, Quick};
use super::table::Table;
use crate::Result;
use crate::machine::rss_bytes;

/// A life that no run outlasts.
const TTL: Duration = Duration::from_secs(3600);
/// Items with numbers, beside the others.
const NUMBERS_MAX: u64 = 1_000_000;
const TAIL: &[u8] = b"and more";
pub(super) const KEY_BYTES: usize = 16;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Candidate {
    Larder,
    LarderDyn,
    Dashmap,
    QuickCacheShared,
    QuickCacheCopied,
    Moka,
}

impl Candidate {
    pub(super) fn label(self) -> &'static str {
        match self {
            Candidate::Larder => "larder",
            Candidate::LarderDyn => "larder, dyn Store",
            Candidate::Dashmap => "dashmap",
            Candidate::QuickCacheShared => "quick_cache, Arc",
            Candidate::QuickCacheCopied => "quick_cache, Vec",
            Candidate::Moka => "moka",
        }
    }
}

/// What is done to items drawn at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Work {
    Read,
    Get,
    Set,
    Cas,
    Incr,
    AddDelete,
    Append,
}

impl Work {
    /// In this order: appends make values longer, so they come last.
    pub(super) const ALL: [Work; 7] =
        [Work::Read, Work::Get, Work::Set, Work::Cas, Work::Incr, Work::AddDelete, Work::Append];

    pub(super) fn name(self) -> &'static str {
        match self {
            Work::Read => "read",
            Work::Get => "get",
            Work::Set => "set",
            Work::Cas => "version, then cas",
            Work::Incr => "incr",
            Work::AddDelete => "add, then delete",
            Work::Append => "append of 8 bytes",
        }
    }
}

/// The arguments of a worker process.
#[derive(Args)]
pub(crate) struct WorkerArgs {
    candidate: Candidate,
    items: u64,
    value_bytes: usize,
    /// Items have lives
    #[arg(long)]
    ttl: bool,
}

/// Loads, says by how much memory grew, and works until its input ends.
pub(crate) fn work(args: &WorkerArgs) -> Result<()> {
    match args.candidate {
        Candidate::Larder => serve(args, Direct::new()),
        Candidate::LarderDyn => serve(args, Dyn::new()),
        Candidate::Dashmap => serve(args, Dash::new()),
        Candidate::QuickCacheShared => serve(args, quick::<Arc<[u8]>>(args)?),
        Candidate::QuickCacheCopied => serve(args, quick::<Vec<u8>>(args)?),
        Candidate::Moka => serve(args, Moka::new()),
    }
}

fn quick<B: super::table::Buf>(args: &WorkerArgs) -> Result<Quick<B>> {
    Ok(Quick::new(args.items + NUMBERS_MAX).ok_or("quick_cache refused its options")?)
}

fn serve<T: Table>(args: &WorkerArgs, table: T) -> Result<()> {
    let before = rss_bytes();
    let ttl = args.ttl.then_some(TTL);
    let mut value = vec![b'v'; args.value_bytes];
    for item in 0..args.items {
        value[..8].copy_from_slice(&item.to_le_bytes());
        table.set(&key(item), &value, ttl);
    }
    table.settle();
    println!("{}", rss_bytes().saturating_sub(before));
    let numbers = (args.items / 5).clamp(1, NUMBERS_MAX);
    let mut has_numbers = false;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [work, threads, ops, seed] = words[..] else { return Err(format!("no such work: {line}").into()) };
        let work = Work::from_str(work, true)?;
        if work == Work::Incr && !has_numbers {
            (0..numbers).for_each(|number| table.set(&number_key(number), b"1000000000", ttl));
            has_numbers = true;
        }
        let round = Round { table: &table, items: args.items, numbers, work, value_bytes: args.value_bytes, ttl };
        let elapsed = round.run(threads.parse()?, ops.parse()?, seed.parse()?)?;
        println!("{}", elapsed.as_nanos());
    }
    Ok(())
}

/// A round to be.
struct Round<'a, T> {
    table: &'a T,
    items: u64,
    numbers: u64,
    work: Work,
    value_bytes: usize,
    ttl: Option<Duration>,
}

impl<T: Table> Round<'_, T> {
    /// As many ops on each thread; the time from the start of all to the end of the last.
    fn run(&self, threads: usize, ops: u64, seed: u64) -> Result<Duration> {
        let start = Barrier::new(threads + 1);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads as u64)
                .map(|thread| {
                    let start = &start;
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(seed ^ (thread << 32));
                        start.wait();
                        (0..ops).all(|op| self.once(&mut rng, (thread << 40) | op))
                    })
                })
                .collect();
            start.wait();
            let from = Instant::now();
            let mut all_right = true;
            for worker in workers {
                all_right &= worker.join().map_err(|_| "a worker thread panicked")?;
            }
            if !all_right {
                return Err(format!("{:?}: an op did not answer what it must", self.work).into());
            }
            Ok(from.elapsed())
        })
    }

    /// One op; false if its answer is wrong.
    #[inline]
    fn once(&self, rng: &mut fastrand::Rng, serial: u64) -> bool {
        let item = rng.u64(..self.items);
        let key = key(item);
        let is_right = |value: &[u8]| value.get(..8) == Some(&item.to_le_bytes()[..]);
        let mut value = [b'v'; 256];
        value[..8].copy_from_slice(&item.to_le_bytes());
        let value = &value[..self.value_bytes.min(256)];
        match self.work {
            Work::Read => self.table.read(&key, is_right) == Some(true),
            Work::Get => self.table.get(&key).is_some_and(|value| is_right(value.as_ref())),
            Work::Set => {
                self.table.set(&key, value, self.ttl);
                true
            }
            // Another thread may have been there in between: rarely, and then it answers false, rightly.
            Work::Cas => self.table.version(&key).is_some_and(|version| {
                self.table.cas(&key, version, value, self.ttl);
                true
            }),
            Work::Incr => self.table.incr(&number_key(rng.u64(..self.numbers)), 1).is_some(),
            Work::AddDelete => {
                let key = fresh_key(serial);
                self.table.add(&key, value, self.ttl) && self.table.delete(&key)
            }
            Work::Append => self.table.append(&key, TAIL),
        }
    }
}

fn key(item: u64) -> [u8; KEY_BYTES] {
    spread(item)
}

fn number_key(number: u64) -> [u8; KEY_BYTES] {
    spread(number | 1 << 62)
}

fn fresh_key(serial: u64) -> [u8; KEY_BYTES] {
    spread(serial | 1 << 63)
}

/// A number and its hash (splitmix64's finaliser): no two alike, and in no order.
fn spread(number: u64) -> [u8; KEY_BYTES] {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mixed.to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

/// A worker process, seen from the one that measures.
pub(super) struct Worker {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// By how much its memory grew while it loaded.
    pub(super) grown_bytes: u64,
}

impl Worker {
    /// Starts the process and waits until it has loaded.
    pub(super) fn start(candidate: Candidate, items: u64, value_bytes: usize, ttl: bool) -> Result<Worker> {
        let name = candidate.to_possible_value().ok_or("a candidate without a name")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", name.get_name(), &items.to_string(), &value_bytes.to_string()]);
        if ttl {
            command.arg("--ttl");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().ok_or("a worker without output")?);
        let mut worker = Worker { child, requests, answers: BufReader::new(answers), grown_bytes: 0 };
        worker.grown_bytes = worker.answer()?;
        Ok(worker)
    }

    /// Has it do a round, and answers the ops a second.
    pub(super) fn round(&mut self, work: Work, threads: usize, ops: u64, seed: u64) -> Result<f64> {
        let name = work.to_possible_value().ok_or("a work without a name")?;
        let requests = self.requests.as_mut().ok_or("a worker without input")?;
        writeln!(requests, "{} {threads} {ops} {seed}", name.get_name())?;
        let nanos = self.answer()?;
        Ok((threads as u64 * ops) as f64 / (nanos as f64 / 1e9))
    }

    fn answer(&mut self) -> Result<u64> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("the worker process ended; its complaint is above".into());
        }
        Ok(line.trim().parse()?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends with its input; if it is at work yet, it has nothing to finish.
        self.requests = None;
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
