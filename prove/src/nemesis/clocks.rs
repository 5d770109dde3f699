//! Wall clocks of clients that are minutes off, each by as much as it likes, and are set while they work. How fast time passes is right on all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use larder::Kind;
use larder_core::{Clock, ClockRef, SystemClock};
use larder_testkit::history::{Caused, Job};

/// Of so many rounds one has wrong clocks.
const ONE_IN: u64 = 8;
/// How often a clock is set in a round, at the most; some are right.
const JUMPS_MAX: usize = 3;
/// The last jump comes within this time.
const WITHIN_MS: u64 = 300;
/// How far off a clock is: two hours, either way.
const OFF_S_MAX: i64 = 7_200;
/// The same where structures promise for five minutes between two clocks.
const WINDOWS_OFF_S_MAX: i64 = 140;

/// A job of a kind that promises elsewhere whatever the clocks show, and here for as much.
const LIVES: &str = "table with lives";

/// From when on a clock is off by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    at: Duration,
    off_s: i64,
}

/// The clocks of a round: one for each handle that asks.
pub(super) struct Clocks {
    seed: u64,
    off_s_max: i64,
    given: AtomicU64,
    jumps: Arc<AtomicU64>,
    caused: Arc<Caused>,
}

impl Clocks {
    /// Those of a job's round.
    pub(super) fn of(seed: u64, job: &Job, caused: Arc<Caused>) -> Clocks {
        let goes_by_windows = matches!(job.kind, Kind::Visitors | Kind::UniqueVisitors | Kind::EventLog);
        let off_s_max = if goes_by_windows || job.name == LIVES { WINDOWS_OFF_S_MAX } else { OFF_S_MAX };
        // Another stream than the round's.
        let seed = seed.rotate_left(32) ^ 0x636c_6f63_6b73;
        Clocks { seed, off_s_max, given: AtomicU64::new(0), jumps: Arc::default(), caused }
    }

    /// What gives one clock after the other, each from now on.
    pub(super) fn giving(self: &Arc<Clocks>) -> impl Fn() -> ClockRef + Send + Sync + 'static {
        let clocks = self.clone();
        move || Arc::new(clocks.next())
    }

    /// How often the clocks that were given were set, and read after that.
    pub(super) fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::SeqCst)
    }

    fn next(&self) -> Jumping {
        let jumps = self.draw(self.given.fetch_add(1, Ordering::SeqCst));
        self.caused.clock_jumps.fetch_add(jumps.len() as u64, Ordering::SeqCst);
        let right = SystemClock::new();
        Jumping { start: right.monotonic(), right, jumps, seen: AtomicU64::new(0), all_seen: Arc::clone(&self.jumps) }
    }

    /// What a clock does: in most rounds nothing.
    fn draw(&self, number: u64) -> Vec<Jump> {
        let mut round = Rng::with_seed(self.seed);
        if round.u64(..ONE_IN) != 0 {
            return Vec::new();
        }
        let mut rng = Rng::with_seed(round.u64(..).wrapping_add(number));
        let mut jumps: Vec<Jump> = (0..rng.usize(0..=JUMPS_MAX))
            .map(|_| {
                let at = Duration::from_millis(rng.u64(..=WITHIN_MS));
                Jump { at, off_s: rng.i64(-self.off_s_max..=self.off_s_max) }
            })
            .collect();
        jumps.sort_by_key(|jump| jump.at);
        jumps
    }
}

#[derive(Debug)]
struct Jumping {
    right: SystemClock,
    start: Duration,
    jumps: Vec<Jump>,
    /// Those behind which it was read; of all clocks of the round.
    seen: AtomicU64,
    all_seen: Arc<AtomicU64>,
}

impl Clock for Jumping {
    fn monotonic(&self) -> Duration {
        self.right.monotonic()
    }

    fn wall(&self) -> Duration {
        let passed = self.right.monotonic() - self.start;
        let due = self.jumps.iter().take_while(|jump| jump.at <= passed).count();
        let before = self.seen.fetch_max(due as u64, Ordering::SeqCst);
        self.all_seen.fetch_add((due as u64).saturating_sub(before), Ordering::SeqCst);
        let off_s = due.checked_sub(1).map_or(0, |last| self.jumps[last].off_s);
        let off = Duration::from_secs(off_s.unsigned_abs());
        let right = self.right.wall();
        if off_s < 0 { right.saturating_sub(off) } else { right + off }
    }
}

#[cfg(test)]
mod tests {
    use larder_testkit::history::JOBS;

    use super::*;

    fn clocks(seed: u64, job: &str) -> Clocks {
        let job = JOBS.iter().find(|known| known.name == job).expect("a job that there is");
        Clocks::of(seed, job, Arc::default())
    }

    fn minutes_off(jumps: &[Jump]) -> f64 {
        let right = SystemClock::new();
        let all_seen = Arc::new(AtomicU64::new(0));
        let start = right.monotonic();
        let clock = Jumping { start, right, jumps: jumps.to_vec(), seen: AtomicU64::new(0), all_seen };
        let wall = clock.wall().as_secs_f64();
        ((wall - clock.right.wall().as_secs_f64()) / 60.0).round()
    }

    #[test]
    fn a_clock_is_right_until_its_first_jump_and_off_by_the_last() {
        let off = |off_s| Jump { at: Duration::ZERO, off_s };
        let offs = [minutes_off(&[]), minutes_off(&[off(600)]), minutes_off(&[off(600), off(-1_200)])];
        assert_eq!(offs, [0.0, 10.0, -20.0]);
        assert_eq!(minutes_off(&[Jump { at: Duration::from_secs(60), off_s: 600 }]), 0.0);
    }

    #[test]
    fn one_round_of_eight_has_wrong_clocks_and_no_two_are_set_alike() {
        let drawn = |seed, job| -> Vec<Vec<Jump>> { (0..4).map(|number| clocks(seed, job).draw(number)).collect() };
        let is_wrong = |seed: &u64| drawn(*seed, "lock").iter().any(|jumps| !jumps.is_empty());
        let wrong: Vec<u64> = (0..800).filter(is_wrong).collect();
        assert!((60..150).contains(&wrong.len()), "{wrong:?}");
        for &seed in &wrong {
            let mut all = drawn(seed, "lock");
            assert_eq!(all, drawn(seed, "lock"), "a seed shows the same again");
            all.retain(|jumps| !jumps.is_empty());
            assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}: {all:?}");
        }
        for job in ["visitors", "unique visitors", "event log", LIVES] {
            let off = (0..800).flat_map(|seed| drawn(seed, job)).flatten().map(|jump| jump.off_s.abs()).max();
            assert!(off.is_some_and(|off| off <= WINDOWS_OFF_S_MAX), "two of them are up to five minutes apart");
        }
    }

    #[test]
    fn what_is_set_is_a_cause() {
        let seed = (0..).find(|&seed| !clocks(seed, "lock").draw(1).is_empty()).unwrap();
        let clocks = Arc::new(clocks(seed, "lock"));
        let give = clocks.giving();
        let given = [give(), give()];
        let set = clocks.caused.clock_jumps.load(Ordering::SeqCst);
        assert!(set > 0, "the second will be");
        std::thread::sleep(Duration::from_millis(WITHIN_MS + 1));
        assert_eq!(clocks.jumps(), 0, "nobody has read one");
        given.iter().for_each(|clock| _ = (clock.wall(), clock.wall()));
        assert_eq!(clocks.jumps(), set, "and once is enough");
    }
}
