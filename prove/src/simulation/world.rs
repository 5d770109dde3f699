//! The machine that a simulated thread runs on: its time is the runtime's, which stands still but for sleeps; its randomness and its clocks' faults
//! come from the seed.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use larder_core::ambient::simulation::World;
use tokio::runtime::Handle;

/// What the wall clocks show as a simulation begins: 2026-01-01.
const WALL_BEGIN: Duration = Duration::from_secs(1_767_225_600);
/// How far a wrong wall clock is off, to either side, and as far again once it was set: two of them differ by less than the 5 minutes that windows
/// of time put up with.
const WALL_OFF_MAX_S: i64 = 70;
/// When a wall clock jumps, at the latest.
const JUMP_AT_MAX_MS: u64 = 120_000;
/// How wrong the rate of a clock is, to either side, in parts of a million: two clocks differ by a hundredth, which a lock's margin covers up to
/// its longest (a tenth of a lease, at most 1 s).
const RATE_OFF_MAX_PPM: i64 = 5_000;

/// A machine, with as many clocks as are asked for.
#[derive(Debug)]
pub(super) struct Machine {
    begun: Instant,
    latest: Cell<Instant>,
    random: RefCell<fastrand::Rng>,
    clocks: RefCell<Vec<Faults>>,
    are_clocks_wrong: bool,
}

/// What is wrong with a clock.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    wall_off_ms: i64,
    rate_off_ppm: i64,
    /// When the wall clock is set, and by how much.
    jump: Option<(Duration, i64)>,
}

impl Machine {
    /// A machine that starts now. To be called on the runtime that it shows the time of.
    pub(super) fn new(seed: u64, are_clocks_wrong: bool) -> Machine {
        let begun = tokio::time::Instant::now().into_std();
        let random = RefCell::new(fastrand::Rng::with_seed(seed));
        Machine { begun, latest: Cell::new(begun), random, clocks: RefCell::default(), are_clocks_wrong }
    }

    /// How many clocks are wrong, and how many of them were set while they ran.
    pub(super) fn wrong_clocks(&self, elapsed: Duration) -> (u64, u64) {
        let clocks = self.clocks.borrow();
        let wrong = clocks.iter().filter(|clock| clock.wall_off_ms != 0 || clock.rate_off_ppm != 0).count();
        let set = clocks.iter().filter(|clock| clock.jump.is_some_and(|(at, _)| at <= elapsed)).count();
        (wrong as u64, set as u64)
    }

    /// How long the simulation has run.
    pub(super) fn elapsed(&self) -> Duration {
        self.now().duration_since(self.begun)
    }

    fn draw_faults(&self) -> Faults {
        let mut random = self.random.borrow_mut();
        if !self.are_clocks_wrong || random.bool() {
            return Faults::default();
        }
        let mut off_ms = || random.i64(-WALL_OFF_MAX_S..=WALL_OFF_MAX_S) * 1_000;
        let (wall_off_ms, jump_ms) = (off_ms(), off_ms());
        let rate_off_ppm = random.i64(-RATE_OFF_MAX_PPM..=RATE_OFF_MAX_PPM);
        let jump = random.bool().then(|| (Duration::from_millis(random.u64(..JUMP_AT_MAX_MS)), jump_ms));
        Faults { wall_off_ms, rate_off_ppm, jump }
    }

    fn faults(&self, clock: u64) -> Faults {
        let at = usize::try_from(clock).unwrap_or(usize::MAX);
        self.clocks.borrow().get(at).copied().unwrap_or_default()
    }
}

impl World for Machine {
    fn now(&self) -> Instant {
        // Outside of the runtime, as its tasks are dropped, time stands still.
        if Handle::try_current().is_ok() {
            self.latest.set(tokio::time::Instant::now().into_std());
        }
        self.latest.get()
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().u64(..)
    }

    fn new_clock(&self) -> u64 {
        let faults = self.draw_faults();
        let mut clocks = self.clocks.borrow_mut();
        clocks.push(faults);
        clocks.len() as u64 - 1
    }

    fn monotonic(&self, clock: u64) -> Duration {
        let (elapsed, off_ppm) = (self.elapsed(), self.faults(clock).rate_off_ppm);
        let off = elapsed.mul_f64(off_ppm.unsigned_abs() as f64 / 1e6);
        if off_ppm < 0 { elapsed - off } else { elapsed + off }
    }

    fn wall(&self, clock: u64) -> Duration {
        let faults = self.faults(clock);
        let jump_ms = faults.jump.filter(|(at, _)| *at <= self.elapsed()).map_or(0, |(_, jump_ms)| jump_ms);
        let off_ms = faults.wall_off_ms + jump_ms;
        let (right, off) = (WALL_BEGIN + self.monotonic(clock), Duration::from_millis(off_ms.unsigned_abs()));
        if off_ms < 0 { right - off } else { right + off }
    }
}
