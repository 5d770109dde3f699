//! Wall clocks of clients that are minutes off, and are set while they work. How fast time passes is right on all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use larder::Kind;
use larder_core::{Clock, ClockRef, SystemClock};
use larder_testkit::history::Caused;

/// Of so many rounds one has wrong clocks.
const ONE_IN: u64 = 8;
/// How often a clock is set in a round, at the most.
const JUMPS_MAX: usize = 3;
/// The last jump comes within this time.
const WITHIN_MS: u64 = 300;
/// How far off a clock is: two hours, either way.
const OFF_S_MAX: i64 = 7_200;
/// The same where structures promise for five minutes between two clocks.
const VISITORS_OFF_S_MAX: i64 = 140;

/// From when on a clock is off by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    at: Duration,
    off_s: i64,
}

/// What a round's clock does: mostly nothing.
pub(super) fn jumps(seed: u64, kind: Kind) -> Vec<Jump> {
    let off_s_max = if matches!(kind, Kind::Visitors | Kind::UniqueVisitors) { VISITORS_OFF_S_MAX } else { OFF_S_MAX };
    // Another stream than the round's.
    let mut rng = Rng::with_seed(seed.rotate_left(32) ^ 0x636c_6f63_6b73);
    if rng.u64(..ONE_IN) != 0 {
        return Vec::new();
    }
    let mut jumps: Vec<Jump> = (0..rng.usize(1..=JUMPS_MAX))
        .map(|_| Jump { at: Duration::from_millis(rng.u64(..=WITHIN_MS)), off_s: rng.i64(-off_s_max..=off_s_max) })
        .collect();
    jumps.sort_by_key(|jump| jump.at);
    jumps
}

/// The clock of a round, from now on.
pub(super) fn set(caused: &Caused, jumps: &[Jump]) -> ClockRef {
    caused.clock_jumps.fetch_add(jumps.len() as u64, Ordering::SeqCst);
    let right = SystemClock::new();
    Arc::new(Jumping { start: right.monotonic(), right, jumps: jumps.to_vec() })
}

#[derive(Debug)]
struct Jumping {
    right: SystemClock,
    start: Duration,
    jumps: Vec<Jump>,
}

impl Clock for Jumping {
    fn monotonic(&self) -> Duration {
        self.right.monotonic()
    }

    fn wall(&self) -> Duration {
        let passed = self.right.monotonic() - self.start;
        let off_s = self.jumps.iter().rev().find(|jump| jump.at <= passed).map_or(0, |jump| jump.off_s);
        let off = Duration::from_secs(off_s.unsigned_abs());
        let right = self.right.wall();
        if off_s < 0 { right.saturating_sub(off) } else { right + off }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_right_until_its_first_jump_and_off_by_the_last() {
        let caused = Caused::default();
        let off = |off_s| Jump { at: Duration::ZERO, off_s };
        let minutes = |jumps: &[Jump]| {
            let wall = set(&caused, jumps).wall().as_secs_f64();
            ((wall - SystemClock::new().wall().as_secs_f64()) / 60.0).round()
        };
        assert_eq!((minutes(&[]), minutes(&[off(600)]), minutes(&[off(600), off(-1_200)])), (0.0, 10.0, -20.0));
        let later = Jump { at: Duration::from_secs(60), off_s: 600 };
        assert_eq!(minutes(&[later]), 0.0);
        assert_eq!(caused.clock_jumps.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn one_round_of_eight_has_wrong_clocks() {
        let wrong = (0..800).filter(|&seed| !jumps(seed, Kind::Lock).is_empty()).count();
        assert!((60..150).contains(&wrong), "{wrong}");
        assert_eq!(jumps(7, Kind::Set), jumps(7, Kind::Set));
        let off = (0..800).flat_map(|seed| jumps(seed, Kind::Visitors)).map(|jump| jump.off_s.abs()).max();
        assert!(off.is_some_and(|off| off <= VISITORS_OFF_S_MAX));
    }
}
