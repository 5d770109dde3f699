//! Fuzzing, in process: whatever comes in by a socket, a store, a file, a URL or a command line gets an answer or an error. Never a panic, never more memory
//! than it has bytes for, never another value than the one that was written.
//!
//! Each execution draws one input: a valid one by a grammar, one that was mutated (bits, splices, words of a dictionary, its check put right again), or garbage.

mod cli;
mod dump;
mod durable;
mod input;
mod layouts;
mod protocol;
mod redis;
mod server;
mod url;
mod watchdog;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub(crate) use input::Input;

use crate::{Budget, Findings, Part};
use watchdog::Watchdog;

pub(crate) const PART: Part = Part {
    name: "fuzz",
    about: "whatever comes in by a socket, a store, a file, a URL or a command line gets an answer or an error",
    run,
};

/// What is counted of every target, and in all.
const EXECUTIONS: &str = "fuzz executions";
/// How long a target is at it before the next one's turn.
const TURN: Duration = Duration::from_millis(100);
/// So many times as long are those at it that read what comes by a socket.
const OF_A_SOCKET: u32 = 5;
/// And the server, of which all of that is a part, and of which an execution is a whole session.
const OF_THE_SERVER: u32 = 25;
/// Executions of a turn at the least, however dear they are.
const FEWEST: u64 = 64;
/// An execution that takes longer hangs: the cheap ones take a microsecond, the dearest some milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(10);

/// Something that takes input from outside.
struct Target {
    name: &'static str,
    /// How long its turns are.
    turn: Duration,
    /// Makes what its executions share, anew each turn.
    begin: Begin,
}

type Begin = Box<dyn Fn() -> Box<dyn Execute>>;

impl Target {
    fn new<E: Execute + 'static>(name: &'static str, begin: impl Fn() -> E + 'static) -> Target {
        Target { name, turn: TURN, begin: Box::new(move || Box::new(begin())) }
    }

    /// With turns so many times as long.
    fn times(self, times: u32) -> Target {
        Target { turn: self.turn * times, ..self }
    }
}

/// Draws an input, and feeds it.
trait Execute {
    /// # Errors
    /// What must not be.
    fn execute(&mut self, input: &mut Input) -> Result<(), String>;
}

impl<F: FnMut(&mut Input) -> Result<(), String>> Execute for F {
    fn execute(&mut self, input: &mut Input) -> Result<(), String> {
        self(input)
    }
}

fn targets() -> Vec<Target> {
    let all = [
        protocol::targets,
        server::targets,
        dump::targets,
        durable::targets,
        url::targets,
        cli::targets,
        layouts::targets,
        redis::targets,
    ];
    all.into_iter().flat_map(|some| some()).collect()
}

/// The part: turns of all targets until the time is over.
fn run(budget: Budget) -> Findings {
    let mut findings = Findings::default();
    let targets = targets();
    for (round, seed) in budget.seeds().enumerate() {
        for target in &targets {
            // The first round is a look at every target, however short the time.
            let now = Instant::now();
            let until = if round == 0 { now + target.turn / 4 } else { (now + target.turn).min(budget.until) };
            turn(target, seed, &mut findings, fewest_and(until));
        }
    }
    findings
}

/// As long as a turn goes on: until then, and for the fewest executions whatever they take.
fn fewest_and(until: Instant) -> impl Fn(u64, Instant) -> bool {
    move |done, now| done < FEWEST || now < until
}

/// A target's turn: executions, each from a seed of its own, one at the least, as long as `goes_on`.
fn turn(target: &Target, seed: u64, findings: &mut Findings, goes_on: impl Fn(u64, Instant) -> bool) {
    let mut execute = (target.begin)();
    let watchdog = Watchdog::of(target.name, HANGS_AFTER, watchdog::end);
    let (mut done, mut now) = (0, Instant::now());
    while done == 0 || goes_on(done, now) {
        let seed = execution(seed, done);
        let mut input = Input::new(seed, target.name);
        done += 1;
        watchdog.begins(seed);
        let outcome = caught(|| execute.execute(&mut input));
        let began = std::mem::replace(&mut now, Instant::now());
        let outcome = if now - began > HANGS_AFTER { Err(format!("took {:?}", now - began)) } else { outcome };
        if let Err(what) = outcome {
            findings.violation(seed, &format!("fuzz {}: {what}", target.name));
            execute = (target.begin)();
        }
    }
    findings.count(EXECUTIONS, done);
    findings.count(&format!("{EXECUTIONS}: {}", target.name), done);
}

/// What an execution draws from: the first of a turn from the turn's own seed, so that a violation is shown again by the first execution of a run from its seed.
fn execution(seed: u64, done: u64) -> u64 {
    if done == 0 { seed } else { fastrand::Rng::with_seed(seed.wrapping_add(done << 40)).u64(..) }
}

thread_local! {
    /// True while a panic is expected to be caught: it is told once, by whoever catches it.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs it, and makes an error of a panic.
fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    silence_caught_panics();
    IS_QUIET.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(false);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {} ({})", text.unwrap_or("of something"), PLACE.take()))
    })
}

thread_local! {
    /// Where the last panic was.
    static PLACE: Cell<String> = const { Cell::new(String::new()) };
}

/// Panics that are caught here go to the findings alone; all others are told as ever.
fn silence_caught_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match IS_QUIET.get() {
            true => PLACE.set(panic.location().map(ToString::to_string).unwrap_or_default()),
            false => before(panic),
        }));
    });
}

/// Memory that an input of so many bytes may take: what a decoder holds grows with what it was given.
fn bounded<T>(what: &str, input_bytes: usize, factor: u64, run: impl FnOnce() -> T) -> Result<T, String> {
    /// Tables that do not depend on the input: those of a code, a sketch.
    const FREE_BYTES: u64 = 1 << 20;
    let mut out = None;
    let taken = allocation_counter::measure(|| out = Some(run())).bytes_max;
    let most = FREE_BYTES + factor * input_bytes as u64;
    match out {
        Some(out) if taken <= most => Ok(out),
        _ => Err(format!("{what} of {input_bytes} bytes took {taken} bytes of memory; {most} is the most")),
    }
}

/// Bytes as they are shown in a violation, cut where they are many.
fn shown(bytes: &[u8]) -> String {
    const BYTES_MAX: usize = 600;
    let cut = if bytes.len() > BYTES_MAX { format!("… ({} bytes)", bytes.len()) } else { String::new() };
    format!("\"{}\"{cut}", bytes[..bytes.len().min(BYTES_MAX)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slice of the normal tests: up to a thousand executions of every target.
    #[test]
    fn no_target_panics_hangs_or_misreads() {
        let mut findings = Findings::default();
        for target in targets() {
            let until = Instant::now() + Duration::from_millis(150);
            turn(&target, 1, &mut findings, |done, now| done < FEWEST || (done < 1_024 && now < until));
        }
        assert_eq!(findings.told, [""; 0]);
        for target in targets() {
            assert!(findings.counts[&format!("{EXECUTIONS}: {}", target.name)] >= FEWEST, "{}", target.name);
        }
    }

    #[test]
    fn a_violation_is_shown_again_by_its_seed() {
        let target = Target::new("planted", || {
            |input: &mut Input| if input.one_in(1_000) { Err("it is drawn".to_owned()) } else { Ok(()) }
        });
        let mut found = Findings::default();
        turn(&target, 1, &mut found, |done, _| done < 20_000);
        let told = found.told.first().expect("one of twenty thousand");
        let seed: u64 = told.split([' ', ':']).nth(1).and_then(|seed| seed.parse().ok()).expect("a seed");
        let mut again = Findings::default();
        turn(&target, seed, &mut again, |_, _| false);
        assert_eq!(again.told.first(), Some(told));
    }

    #[test]
    fn a_dear_target_has_its_fewest_executions() {
        let mut found = Findings::default();
        let dear = Target::new("planted", || |_: &mut Input| Ok(()));
        turn(&dear, 1, &mut found, fewest_and(Instant::now()));
        assert_eq!((found.counts["fuzz executions: planted"], found.counts[EXECUTIONS]), (FEWEST, FEWEST));
        assert_eq!((dear.turn, dear.times(3).turn), (TURN, 3 * TURN));
    }

    fn fails_by(execute: fn(&mut Input) -> Result<(), String>) -> Findings {
        let mut findings = Findings::default();
        let mut shown = caught(|| execute(&mut Input::new(1, "planted")));
        if let Err(what) = &mut shown {
            findings.violation(1, what);
        }
        findings
    }

    #[test]
    fn a_panic_a_violation_and_a_greedy_decoder_are_told() {
        let told = |findings: Findings| findings.told.concat();
        assert!(
            told(fails_by(|_| panic!("index {} out of range", 7))).contains("panicked: index 7 out of range (prove")
        );
        assert!(told(fails_by(|_| Err("misread".to_owned()))).contains("misread"));
        let greedy = |_: &mut Input| bounded("a decoder", 10, 8, || Vec::<u8>::with_capacity(64 << 20)).map(drop);
        assert!(told(fails_by(greedy)).contains("took 67108864 bytes of memory"));
        assert_eq!(fails_by(|_| bounded("one", 10, 8, || vec![0u8; 80]).map(drop)).violations, 0);
    }
}
