//! `larder queue work`: a command for each item, several at once if told so.

use std::ffi::OsString;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueHint};
use larder::queue::Claim;
use larder::text::Shown;
use larder::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Line;
use crate::args::{Named, positive_time, time};
use crate::exit::{Exit, Failure, say};
use crate::output::os_string;
use crate::run::{End, Forwarded, Running, code_of, code_of_signal};

/// What the command finds in its environment.
const ENV_NAME: &str = "LARDER_QUEUE_NAME";
const ENV_ITEM: &str = "LARDER_ITEM";
const ENV_ATTEMPT: &str = "LARDER_ATTEMPT";
const ENV_CLAIM: &str = "LARDER_CLAIM";
/// A larger item, or one with a zero byte in it, comes on standard input only: the system does not take it as a variable.
const ENV_ITEM_BYTES_MAX: usize = 64 * 1024;
/// How long a command whose lease is gone has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// A signal that comes so soon behind the failure of a command may have been what ended that.
const TOLD_WITHIN: Duration = Duration::from_millis(100);
/// The lease is renewed after this part of it.
const RENEW_AT: u32 = 3;
/// No renewal follows another sooner.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(10);

#[derive(Args, Debug)]
pub(crate) struct Work {
    #[command(flatten)]
    pub(crate) named: Named,
    /// After how long a worker that died loses its item; renewed while the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_time)]
    pub(crate) lease: Duration,
    /// How many commands run at once
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) jobs: NonZeroU16,
    /// Work on one item and exit as its command does; 1 if there is none
    #[arg(long, conflicts_with_all = ["jobs", "idle_exit"])]
    pub(crate) once: bool,
    /// Exit with 0 when there was nothing to take for so long; 0s: as soon as there is nothing
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) idle_exit: Option<Duration>,
    /// How long to wait at the most before looking again when there is nothing, where the store does not tell of changes; and after a command that failed
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive_time)]
    pub(crate) poll: Duration,
    /// Give an item up that failed so often, unless it was this worker that was told to stop: say so, and acknowledge it
    #[arg(long, value_name = "N")]
    pub(crate) attempts_max: Option<std::num::NonZeroU32>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandName)]
    pub(crate) command: Vec<OsString>,
}

pub(super) const HELP: &str = "\
The command gets the item on standard input and in LARDER_ITEM (unless it has a zero byte or more than 64 KiB), and LARDER_QUEUE_NAME, \
LARDER_CLAIM and LARDER_ATTEMPT, which is 1 at the first delivery. It exits with 0: the item is acknowledged. Else the item is given back, for \
any worker to try again after --poll. The lease is renewed while the command runs; should it be lost, the command is ended. A worker \
that dies loses its item when the lease ends, up to 2 s late; so a command may run twice for an item, and must bear it.

Runs until it is told to stop. SIGINT, SIGTERM and SIGHUP are handed on to the commands; when they have ended, larder exits with 128 + the signal. \
An item whose command failed then is given back, also where --attempts-max is reached. What whoever started larder has it ignore, as nohup does SIGHUP, stays ignored. With --once it exits as the command does.

When there is nothing it waits until an item comes where the store tells of changes (Redis and Valkey); elsewhere it looks again after --poll, or half of it at the least.

Round trips: open 2, claim 2, acknowledge 1, renew 1 for each third of the lease; when there is nothing, 1 for each look, and 1 for each wait.

Examples:
  larder queue work jobs -- ./resize.sh
  larder queue work jobs --jobs 4 --lease 5m --idle-exit 0s -- sh -c 'convert \"$LARDER_ITEM\" out.png'
  larder stack work crawl --attempts-max 5 -- ./fetch.sh";

/// What became of an item.
enum Fate {
    Done,
    /// Its command failed; with this code.
    Failed(u8),
}

/// Works until it is told to stop; the exit code.
pub(super) async fn run(line: Line, args: Work) -> Result<u8, Failure> {
    let args = Arc::new(args);
    // From here on a signal must not end this process and leave a claim behind that others wait for.
    let mut signals = Forwarded::listen()?;
    let (stop, stopped) = watch::channel(false);
    let mut jobs = JoinSet::new();
    for _ in 0..args.jobs.get() {
        // Each hears signals from the same moment on: one that comes while it claims is not missed.
        jobs.spawn(work(line.clone(), args.clone(), stopped.clone(), Forwarded::listen()?));
    }
    let (mut ended_by, mut outcome) = (None, Ok(Exit::Ok as u8));
    loop {
        tokio::select! {
            biased;
            signal = signals.next() => {
                ended_by = ended_by.or(Some(signal));
                stop.send_replace(true);
            }
            job = jobs.join_next() => match job {
                None => break,
                Some(job) => {
                    let job = job.map_err(std::io::Error::other)?;
                    if job.is_err() {
                        // What is wrong with one is wrong with all; those under way end first.
                        stop.send_replace(true);
                    }
                    outcome = outcome.and(job);
                }
            },
        }
    }
    match (outcome, ended_by) {
        (Ok(code), None) => Ok(code),
        (Ok(_), Some(signal)) => Ok(code_of_signal(signal)),
        (Err(failure), _) => Err(failure),
    }
}

/// One command after the other.
async fn work(
    line: Line,
    args: Arc<Work>,
    mut stopped: watch::Receiver<bool>,
    mut signals: Forwarded,
) -> Result<u8, Failure> {
    let mut idle_since = Instant::now();
    while !*stopped.borrow() {
        let claim = match line.claim(args.lease).await {
            Ok(claim) => claim,
            // Told once; what is behind the loss can be taken.
            Err(error) if error.kind() == ErrorKind::Lost && !error.is_unknown() && is_passed(&line).await => {
                say(&format!("warning: {error}"));
                continue;
            }
            Err(error) if is_passing(&error) && !args.once => {
                say(&format!("warning: {error}"));
                pause(args.poll, &mut stopped).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Some(claim) = claim else {
            if args.once {
                return Ok(Exit::No as u8);
            }
            let left = args.idle_exit.map(|idle| idle.saturating_sub(idle_since.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Exit::Ok as u8);
            }
            tokio::select! {
                waited = line.changed(args.poll, left.unwrap_or(Duration::MAX)) => waited?,
                _ = stopped.changed() => {}
            }
            continue;
        };
        if *stopped.borrow() || signals.has_come().await {
            give_back(&claim).await;
            break;
        }
        let fate = handle(&args, &claim, &mut signals).await?;
        idle_since = Instant::now();
        match fate {
            Fate::Done if args.once => return Ok(Exit::Ok as u8),
            Fate::Failed(code) if args.once => return Ok(code),
            Fate::Done => {}
            // Not at once: what fails once mostly fails again.
            Fate::Failed(_) => pause(args.poll, &mut stopped).await,
        }
    }
    Ok(Exit::Ok as u8)
}

/// True if the structure itself is there: then a loss was one of items.
async fn is_passed(line: &Line) -> bool {
    line.stat().await.is_ok()
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Full | ErrorKind::Conflict)
}

async fn pause(time: Duration, stopped: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = sleep(time) => {}
        _ = stopped.changed() => {}
    }
}

/// Runs the command for an item, and says what became of it.
async fn handle(args: &Work, claim: &Claim, signals: &mut Forwarded) -> Result<Fate, Failure> {
    let item = claim.item();
    let mut env = vec![
        (ENV_NAME, os_string(args.named.bytes())),
        (ENV_ATTEMPT, claim.attempts().to_string().into()),
        (ENV_CLAIM, claim.id().to_string().into()),
    ];
    if item.len() <= ENV_ITEM_BYTES_MAX && !item.contains(&0) {
        env.push((ENV_ITEM, os_string(item)));
    }
    let mut running = match Running::start_fed(&args.command, &env, item.clone()) {
        Ok(running) => running,
        Err(failure) => {
            give_back(claim).await;
            return Err(failure);
        }
    };
    let end = running.supervise(signals, keep(claim), GRACE).await;
    let code = match end {
        Ok(End::Own(status)) => code_of(status),
        Ok(End::Ended) => {
            say(&format!("warning: the lease of {} was lost while its command ran, which was ended", claim.id()));
            return Ok(Fate::Failed(Exit::Lock as u8));
        }
        Err(error) => {
            give_back(claim).await;
            return Err(error.into());
        }
    };
    if code == 0 {
        acknowledge(claim).await;
        return Ok(Fate::Done);
    }
    let failed = format!("the command for {} exited with {code}, at attempt {}", Shown(item), claim.attempts());
    let is_last = args.attempts_max.is_some_and(|max| claim.attempts() >= max.get());
    if is_last && !is_told_to_stop(&running, signals).await {
        say(&format!("warning: {failed}: the item is given up"));
        acknowledge(claim).await;
    } else {
        say(&format!("warning: {failed}: the item is given back"));
        give_back(claim).await;
    }
    Ok(Fate::Failed(code))
}

/// True if this worker was told to stop, or is just now: whoever stops all processes of a service may tell the command first.
async fn is_told_to_stop(running: &Running, signals: &mut Forwarded) -> bool {
    running.signalled().is_some() || timeout(TOLD_WITHIN, signals.next()).await.is_ok()
}

/// Renews the lease; ends when it is lost, or is over though nobody said so: an answer is waited for no longer than it lasts.
async fn keep(claim: &Claim) {
    loop {
        // It began when the claim was sent, which may be a while ago; a renewal that fails is tried again before it is over.
        let left = claim.remaining();
        sleep((left / 2).max(RENEW_PAUSE_MIN).min(claim.lease() / RENEW_AT).min(left)).await;
        let good_until = Instant::from_std(claim.deadline());
        match timeout_at(good_until, claim.renew()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if is_passing(&error) && Instant::now() < good_until => {}
            _ => return,
        }
    }
}

/// What cannot be acknowledged is delivered again when its lease ends: at least once, as promised.
async fn acknowledge(claim: &Claim) {
    if let Err(error) = claim.ack().await {
        say(&format!("warning: {} could not be acknowledged, and may be delivered again: {error}", claim.id()));
    }
}

async fn give_back(claim: &Claim) {
    if let Err(error) = claim.release().await {
        say(&format!("warning: {} could not be given back, and waits for its lease to end: {error}", claim.id()));
    }
}
