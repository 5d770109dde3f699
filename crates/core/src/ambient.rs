//! What a program takes from the machine it runs on without being given it: the moment, for deadlines, and numbers that nobody else draws.
//!
//! Whoever needs one of the two asks here and nowhere else, so that a simulation can answer instead: with the feature `simulation` a thread
//! can be put into a [`World`](simulation::World) whose time and randomness come from a seed, and then what runs on it runs the same way again.
//! Without the feature [`now`] is `Instant::now` and nothing else.

use std::time::Instant;

/// This moment: what deadlines are reckoned from and held against.
///
/// ```
/// use larder_core::ambient;
/// assert!(ambient::now() <= ambient::now());
/// ```
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = simulation::ask(|world| world.now()) {
        return now;
    }
    Instant::now()
}

/// A number that no two machines draw: for what names a writer, an owner, a generation.
///
/// SipHash of a count and the process, keyed by the system's randomness. A generator that seeds itself from the time and a thread's number is
/// good for jitter only: machines that start together would draw the same. So would the children that one process forks, which inherit key and count, without their own ids; and machines
/// do that are copied with all their memory while they run.
///
/// ```
/// use larder_core::ambient;
/// assert_ne!(ambient::random(), ambient::random());
/// ```
pub fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::atomic::{AtomicU64, Ordering};

    if let Some(drawn) = simulated_random() {
        return drawn;
    }
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((DRAWN.fetch_add(1, Ordering::Relaxed), std::process::id()))
}

/// What a simulation says in the place of the system's randomness; `None` where there is none, which is where it is asked for.
///
/// For what has a source of its own that is better there, as hashes do.
///
/// ```
/// assert_eq!(larder_core::ambient::simulated_random(), None);
/// ```
#[inline]
pub fn simulated_random() -> Option<u64> {
    #[cfg(feature = "simulation")]
    return simulation::ask(|world| world.random());
    #[cfg(not(feature = "simulation"))]
    None
}

/// True in a simulation. What is otherwise computed on another thread is computed here then: a thread is done when it likes, and nothing runs the same way twice beside it.
///
/// ```
/// assert!(!larder_core::ambient::is_simulated());
/// ```
#[inline]
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulation")]
    return simulation::ask(|_| ()).is_some();
    #[cfg(not(feature = "simulation"))]
    false
}

/// A machine that is made up.
#[cfg(feature = "simulation")]
pub mod simulation {
    use std::cell::RefCell;
    use std::fmt;
    use std::marker::PhantomData;
    use std::rc::Rc;
    use std::time::{Duration, Instant};

    /// Where a simulated thread gets time and randomness from.
    pub trait World: fmt::Debug {
        /// The moment. Never goes backwards.
        fn now(&self) -> Instant;
        /// The next random number.
        fn random(&self) -> u64;
        /// The number of a system's clock that is made now.
        fn new_clock(&self) -> u64;
        /// Time since the world began, as the clock of this number shows it: clocks may be wrong, each in its own way.
        fn monotonic(&self, clock: u64) -> Duration;
        /// Time since the Unix epoch, as the clock of this number shows it.
        fn wall(&self, clock: u64) -> Duration;
    }

    thread_local! {
        static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
    }

    /// Puts this thread into a world, until what is given back is dropped. Worlds do not nest.
    ///
    /// # Panics
    /// If the thread is in one.
    pub fn enter(world: Rc<dyn World>) -> Entered {
        let before = WORLD.replace(Some(world));
        assert!(before.is_none(), "a thread is in one world at a time");
        Entered(PhantomData)
    }

    /// What this thread's world says, if it is in one.
    pub(crate) fn ask<T>(question: impl FnOnce(&dyn World) -> T) -> Option<T> {
        // Taken out of the cell first: a world may look at a clock of ours.
        let world = WORLD.try_with(|world| world.borrow().clone()).ok().flatten()?;
        Some(question(&*world))
    }

    /// Keeps a thread in its world.
    #[derive(Debug)]
    #[must_use = "the thread leaves the world as this is dropped"]
    pub struct Entered(PhantomData<Rc<()>>);

    impl Drop for Entered {
        fn drop(&mut self) {
            _ = WORLD.try_with(|world| world.replace(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn draws_differ() {
        let drawn: HashSet<u64> = (0..10_000).map(|_| random()).collect();
        assert_eq!(drawn.len(), 10_000);
    }

    #[cfg(feature = "simulation")]
    #[test]
    fn a_thread_in_a_world_has_its_time_and_randomness_and_no_other_thread_has() {
        use std::cell::Cell;
        use std::rc::Rc;
        use std::time::Duration;

        use super::simulation::{World, enter};
        use crate::{Clock, SystemClock};

        #[derive(Debug)]
        struct Small(Instant, Cell<u64>);

        impl World for Small {
            fn now(&self) -> Instant {
                self.0
            }
            fn random(&self) -> u64 {
                self.1.set(self.1.get() + 1);
                self.1.get()
            }
            fn new_clock(&self) -> u64 {
                self.random()
            }
            fn monotonic(&self, clock: u64) -> Duration {
                Duration::from_secs(clock)
            }
            fn wall(&self, clock: u64) -> Duration {
                Duration::from_secs(clock)
            }
        }

        let then = Instant::now() + Duration::from_secs(1_000);
        let entered = enter(Rc::new(Small(then, Cell::new(0))));
        assert_eq!((now(), random()), (then, 1));
        assert!(is_simulated());
        let (one, other) = (SystemClock::new(), SystemClock::new());
        assert_eq!((one.wall().as_secs(), other.wall().as_secs()), (2, 3));
        assert_eq!(one.monotonic(), Duration::ZERO);
        assert!(std::thread::spawn(|| now() < Instant::now() + Duration::from_secs(1)).join().is_ok_and(|real| real));
        drop(entered);
        assert!(!is_simulated());
        assert!(now() < then);
    }
}
