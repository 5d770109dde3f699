//! Crashes of the durable store: at every call by which it changes files, by a kill, a call that fails, a short write, a full disk, and by a power cut that
//! takes any of what was not synced. What is left is opened and held against what was acknowledged.
//!
//! A seed is a share of one work's crash points: [`SHARES`] seeds that follow one another, the first a multiple of it, are all of them. Shares are counted by their work,
//! so that runs that go on from one another show which works were done whole. One work in six has values of megabytes, and takes as long as all others together would: of
//! its points a twelfth is drawn, and it is told apart.

mod calls;
mod disk;
mod history;
mod tracer;
mod work;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fastrand::Rng;
use larder_store_durable::Sync;
use nix::errno::Errno;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::{Budget, Findings, Part};
use disk::{Disk, Keep, Names};
use history::{Crash, History};
use tracer::{Among, Event, Fault, Plan, Trace};
use work::{Sizes, Work};

/// Seeds that share one work's crash points.
pub const SHARES: u64 = 16;
/// Of a work with large values, only each so manyth of a share's points is taken.
const LARGE: u64 = 12;
/// Images of each moment while a store is being made: names of folders that are all new can reach a disk in many orders.
const MAKING_IMAGES: usize = 16;
/// Works that follow one another have each setting that there is.
const SETTINGS: u64 = 6;

/// The faults, by which call of which kind they come, and how they are called.
const FAULTS: &[(Fault, Among, &str)] = &[
    (Fault::KillBefore, Among::All, "faults: killed before a call"),
    (Fault::KillAfter, Among::All, "faults: killed after a call"),
    (Fault::KillHalfway, Among::Splits, "faults: killed in the middle of a write"),
    (Fault::Short, Among::Splits, "faults: short write"),
    (Fault::ShortThenFull, Among::Splits, "faults: disk full in the middle of a write"),
    (Fault::FailFromNow(Errno::ENOSPC), Among::Growing, "faults: disk full"),
    (Fault::Fails(Errno::EIO), Among::Writes, "faults: write failed (EIO)"),
    (Fault::Fails(Errno::EIO), Among::Names, "faults: making, renaming, removing or cutting a file failed (EIO)"),
    (Fault::Fails(Errno::EIO), Among::Syncs, "faults: sync failed (EIO)"),
    (
        Fault::FailsSlowly(Errno::EIO),
        Among::SyncsOfEngine,
        "faults: sync of the engine's own failed (EIO), and was heard of late",
    ),
    (Fault::FailFromNow(Errno::EIO), Among::Syncs, "faults: all syncs failed (EIO)"),
];

pub(crate) const PART: Part = Part {
    name: "crashes",
    about: "the durable store, killed, failed and cut off power at every call that changes a file",
    run,
};

fn run(budget: Budget) -> Findings {
    let program = std::env::current_exe().expect("this program's own path");
    let mut findings = Findings::default();
    for seed in budget.seeds() {
        findings.add(round(&program, seed, SHARES, None));
        findings.count(&share_of(seed / SHARES), 1);
    }
    // A setting that had no turn is told, too.
    for number in 0..SETTINGS {
        findings.count(&share_of(number), 0);
    }
    findings
}

/// What a process that is crashed does: the program calls this with the words that follow `--crash`.
pub fn child(args: &[String]) {
    work::child(args);
}

/// One share of a work's crash points: every `shares`th. `program` is the one that calls [`child`]; `planted` is a bug that is put into it.
pub fn round(program: &Path, seed: u64, shares: u64, planted: Option<Planted>) -> Findings {
    let mut round = Round::new(program, seed, shares, planted);
    round.power_cuts();
    if planted.is_none() {
        FAULTS.iter().for_each(|fault| round.faults(*fault));
    }
    round.findings
}

/// One of the faults (`FAULTS`) alone, by what it is counted as, at every `shares`th of its points.
pub fn faulted(program: &Path, seed: u64, shares: u64, name: &str) -> Findings {
    let mut round = Round::new(program, seed, shares, None);
    let fault = FAULTS.iter().find(|(.., it)| *it == name).expect("a fault of that name");
    round.faults(*fault);
    round.findings
}

/// The making of a store, cut off power after each of its calls, so many times each.
pub fn making(program: &Path, seed: u64, images: usize) -> Findings {
    let mut round = Round::new(program, seed, 1, None);
    let folder = room();
    let disk = Disk::new(folder.path());
    let trace = round.live(folder.path(), None);
    round.making(disk, &History::new(&round.work), &trace.events, images);
    round.findings
}

/// Bugs that the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Syncs that do nothing.
    NoSync,
    /// A write is acknowledged before it is synced.
    EarlyAcknowledgement,
}

fn work_of(number: u64, planted: Option<Planted>) -> Work {
    let sync = match number % SETTINGS {
        _ if planted.is_some() => Sync::Always,
        3 => Sync::Every(Duration::from_millis(2)),
        4 => Sync::Never,
        _ => Sync::Always,
    };
    let sizes = if number % SETTINGS == 5 { Sizes::Large } else { Sizes::Small };
    Work { seed: number, sync, sizes }
}

/// What is counted of each share of a work: its setting, and which it is.
fn share_of(number: u64) -> String {
    let Work { seed, sync, sizes } = work_of(number, None);
    let sizes = if sizes == Sizes::Large { ", large values (a twelfth of the points)" } else { "" };
    format!("crashed shares: sync={sync}{sizes}, work {seed}")
}

struct Round<'a> {
    program: &'a Path,
    seed: u64,
    shares: u64,
    share: u64,
    work: Work,
    runtime: Runtime,
    rng: Rng,
    planted: Option<Planted>,
    findings: Findings,
}

impl<'a> Round<'a> {
    fn new(program: &'a Path, seed: u64, shares: u64, planted: Option<Planted>) -> Round<'a> {
        let work = work_of(seed / SHARES, planted);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let mut rng = Rng::with_seed(seed);
        // Large works take their time: a sample of their points is enough.
        let (shares, share) = match work.sizes {
            Sizes::Small => (shares, seed % shares),
            Sizes::Large => (shares * LARGE, seed % shares + shares * rng.u64(0..LARGE)),
        };
        Round { program, seed, shares, share, work, runtime, rng, planted, findings: Findings::default() }
    }

    /// Runs the work in a folder, from whatever is in it.
    fn live(&self, folder: &Path, plan: Option<Plan>) -> Trace {
        let mut work = self.work;
        if self.planted == Some(Planted::EarlyAcknowledgement) {
            work.sync = Sync::Never;
        }
        let mut command = Command::new(self.program);
        tracer::run(command.arg("--crash").args(work.args(folder)), folder, plan)
    }

    fn is_mine(&self, point: u64) -> bool {
        point % self.shares == self.share
    }

    fn wrong(&mut self, what: &str, why: &str) {
        let Work { sync, sizes, .. } = self.work;
        self.findings.violation(self.seed, &format!("sync={sync}, {sizes:?}, {what}: {why}"));
    }

    /// The power goes at every moment of a life that nothing else disturbs.
    fn power_cuts(&mut self) {
        let folder = room();
        let disk = Disk::new(folder.path());
        let skips = (self.planted == Some(Planted::NoSync)).then_some(Fault::SyncsDoNothing);
        let trace = self.live(folder.path(), skips.map(|fault| Plan { fault, among: Among::Syncs, at: 1 }));
        let history = History::new(&self.work);
        if self.planted.is_none() {
            self.making(disk.clone(), &history, &trace.events, MAKING_IMAGES);
        }
        let (disk, history) = self.images((disk, history), &trace.events, 0);
        if let Some(difference) = disk.differs() {
            self.wrong("the tracer missed something", &difference);
        }
        if trace.code != Some(0) {
            self.wrong("the process without a fault", &format!("it ended with {:?}", trace.code));
        }
        self.findings.count("writes acknowledged", history.acknowledged);
        self.end(folder.path(), &history, "the process without a fault");
    }

    /// Cuts the power while the store is being made, before anything is said of it, again and again at each moment.
    fn making(&mut self, mut disk: Disk, history: &History, events: &[Event], images: usize) {
        for (number, event) in events.iter().enumerate() {
            if matches!(event, Event::Said(_)) {
                return;
            }
            disk.apply(event);
            if self.is_mine(number as u64) {
                for _ in 0..images {
                    let what = format!("power cut in the making, after event {number}");
                    self.cut((&disk, history), &what, Names::Loose, Keep::Some);
                }
            }
        }
    }

    /// Goes through a life call by call, and cuts the power at those that are this round's, from the event `from` on.
    fn images(&mut self, (mut disk, mut history): (Disk, History), events: &[Event], from: usize) -> (Disk, History) {
        for (number, event) in events.iter().enumerate() {
            let is_mine = number >= from && self.is_mine(number as u64);
            match event {
                Event::Said(said) => history.hear(said),
                // The least is on disk, and the most was said of it, just before a sync.
                Event::Synced { .. } | Event::SyncFailed { .. } if is_mine => {
                    for names in [Names::InOrder, Names::Loose] {
                        self.cut((&disk, &history), &format!("power cut before event {number}"), names, Keep::Nothing);
                    }
                }
                _ => {}
            }
            disk.apply(event);
            if is_mine && !matches!(event, Event::Said(_)) {
                self.findings.count("crash points", 1);
                for names in [Names::InOrder, Names::Loose] {
                    self.cut((&disk, &history), &format!("power cut after event {number}"), names, Keep::Some);
                }
            }
        }
        (disk, history)
    }

    fn cut(&mut self, (disk, history): (&Disk, &History), what: &str, names: Names, keep: Keep) {
        let image = room();
        disk.image(image.path(), names, keep, &mut self.rng);
        self.findings.count("power-cut images", 1);
        let what = format!("{what}, names {names:?}, unsynced: {keep:?}");
        self.judge(image, history, Crash::OfPower, &what);
    }

    /// Opens what a crash left. What is wrong is kept for whoever wants to look.
    fn judge(&mut self, folder: TempDir, history: &History, crash: Crash, what: &str) {
        match history.check(folder.path(), crash, &self.runtime) {
            Ok(torn_bytes) => self.findings.count("torn writes repaired", u64::from(torn_bytes > 0)),
            Err(why) => {
                // What a planted bug left nobody wants to look at.
                let kept = self.planted.is_none().then(|| folder.keep());
                let kept = kept.map_or_else(String::new, |kept| format!(" (left in {})", kept.display()));
                self.wrong(what, &format!("{why}{kept}"));
            }
        }
        self.findings.count("stores reopened", 1);
    }

    /// What the process itself left in its folder, and what was bad in what it said.
    fn end(&mut self, folder: &Path, history: &History, what: &str) {
        for bad in &history.bad {
            self.wrong(what, bad);
        }
        match history.check(folder, Crash::OfProcess, &self.runtime) {
            Ok(torn_bytes) => self.findings.count("torn writes repaired", u64::from(torn_bytes > 0)),
            Err(why) => self.wrong(what, &why),
        }
        self.findings.count("stores reopened", 1);
    }

    /// A fault at every call it can come at. The first life meets it; the next one begins with what that left, and in its beginning the power is cut, too.
    fn faults(&mut self, (fault, among, name): (Fault, Among, &str)) {
        // Syncs are few, and what comes after one that failed is where stores lie: a slice takes more of them.
        let step =
            if matches!(among, Among::Syncs | Among::SyncsOfEngine) { self.shares.min(SHARES) } else { self.shares };
        let mut at = 1 + (self.share + step - 1) % step;
        loop {
            let folder = room();
            let disk = Disk::new(folder.path());
            let first = self.live(folder.path(), Some(Plan { fault, among, at }));
            if !first.is_reached {
                return;
            }
            let what = format!("{name}, call {at} of {among:?}");
            self.findings.count(name, 1);
            self.findings.count("crash points", 1);
            let is_killed = first.code.is_none();
            let (mut disk, mut history) = (disk, History::new(&self.work));
            // A write that was cut short and says so is no failure: the rest of it is to be written.
            history.is_faulty = fault != Fault::Short;
            for event in &first.events {
                disk.apply(event);
                if let Event::Said(said) = event {
                    history.hear(said);
                }
            }
            self.findings.count("writes acknowledged", history.acknowledged);
            if first.code.is_some_and(|code| code != 0) {
                self.wrong(&what, &format!("the process ended with {:?}", first.code));
            }
            if is_killed {
                self.next_life(folder.path(), (disk, history), &what);
            } else {
                let what = format!("{what}; then a power cut");
                self.cut((&disk, &history), &what, Names::InOrder, Keep::Nothing);
                self.end(folder.path(), &history, &what);
            }
            at += step;
        }
    }

    /// The life after a kill: what the killed one had written and not synced is still that.
    fn next_life(&mut self, folder: &Path, (disk, history): (Disk, History), what: &str) {
        let next = self.live(folder, None);
        if next.code != Some(0) {
            self.wrong(what, &format!("the next process ended with {:?}", next.code));
        }
        let begun = next.events.iter().position(|event| matches!(event, Event::Said(said) if said.starts_with("ok")));
        let (begun, all) = (begun.unwrap_or(next.events.len()), next.events.len());
        let (mut disk, mut history) = (disk, history);
        history.is_faulty = false;
        for (number, event) in next.events.iter().enumerate() {
            if let Event::Said(said) = event {
                history.hear(said);
            }
            // One of them is enough here: the lives that are killed are many.
            if number == self.rng.usize(..=begun) || number + 1 == all {
                let what = format!("{what}; then a power cut before event {number}");
                self.cut((&disk, &history), &what, Names::InOrder, Keep::Nothing);
            }
            disk.apply(event);
        }
        self.end(folder, &history, what);
    }
}

/// An empty folder, in memory where there is such a place: the disk that is tested is one of our own making.
fn room() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    let made = tempfile::Builder::new().prefix("larder-crash").tempdir_in(memory);
    made.or_else(|_| tempfile::tempdir()).expect("a folder")
}
