//! `larder lock …`

use std::pin::pin;
use std::time::{Duration, SystemTime};

use larder::lock::{Holder, LockStatus, Released};
use larder::text::Shown;
use larder::{ErrorKind, Lock, LockGuard};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::args::{LockRun, LockVerb, Named};
use crate::exit::{Exit, Failure, say};
use crate::output::{argument, bytes, os_string};
use crate::run::{End, Forwarded, Running, code_of, code_of_signal};
use crate::session::Session;

/// The environment of a command that runs under a lock.
const ENV_TOKEN: &str = "LARDER_FENCING_TOKEN";
const ENV_NAME: &str = "LARDER_LOCK_NAME";

/// How long a write that takes the lock is waited for, once nobody wants it any more. Then its lease ends what it took.
const SETTLE_MAX: Duration = Duration::from_millis(200);

/// The longest label that a lock takes.
const LABEL_BYTES_MAX: usize = 64;

pub(crate) async fn run(session: &Session, verb: LockVerb) -> Result<u8, Failure> {
    match verb {
        LockVerb::Run(args) => run_command(session, &args).await,
        LockVerb::Status(named) => status(session, &named).await.map(|exit| exit as u8),
        LockVerb::Release { named, force } => release(session, &named, force).await.map(|exit| exit as u8),
    }
}

async fn status(session: &Session, named: &Named) -> Result<Exit, Failure> {
    let lock = open(session, named).await?;
    print(session, named, &lock.status().await?)?;
    Ok(Exit::Ok)
}

async fn release(session: &Session, named: &Named, force: bool) -> Result<Exit, Failure> {
    if !force {
        let message = "only the holder of a lock gives it back; taking it away from whoever holds it takes --force";
        let hint =
            "look first who it is: `larder lock status NAME`. The holder may work on for up to a third of its lease";
        return Err(Failure::usage(message).hint(hint));
    }
    let lock = open(session, named).await?;
    print(session, named, &lock.force_release().await?)?;
    Ok(Exit::Ok)
}

async fn open(session: &Session, named: &Named) -> Result<Lock, Failure> {
    Ok(Lock::options().timeout(session.timeout).open(&session.store, named.bytes()).await?)
}

/// Prints what is, or was, known of the lock.
fn print(session: &Session, named: &Named, status: &LockStatus) -> Result<(), Failure> {
    let name = bytes(named.bytes());
    match status {
        LockStatus::Held(holder) => session.out.answer(&plain_holder(holder), &json_holder(&name, holder)),
        LockStatus::Free { token } => {
            let object = json!({"name": name, "state": "free", "token": token});
            session.out.answer(&format!("free, last token {token}"), &object)
        }
        _ => Err(Failure::absent(session, &named.checked()?).hint("nobody has taken it yet; `larder lock run` does")),
    }
}

fn plain_holder(holder: &Holder) -> String {
    let state = if holder.is_dead() { "expired, was held" } else { "held" };
    format!("{state} by {}", plain_terms(holder))
}

/// Who has it, and on what terms.
fn plain_terms(holder: &Holder) -> String {
    let time = |time: SystemTime| humantime::format_rfc3339_millis(time).to_string();
    let until = holder.until.map_or_else(|| "unknown".to_owned(), time);
    let Holder { label, token, since, lease, .. } = holder;
    let lease = humantime::format_duration(*lease);
    format!("{} with token {token} since {} until {until}, lease {lease}", Shown(label), time(*since))
}

fn json_holder(name: &Value, holder: &Holder) -> Value {
    let epoch_ms = |time: SystemTime| {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
    };
    json!({
        "name": name,
        "state": if holder.is_dead() { "expired" } else { "held" },
        "label": bytes(&holder.label),
        "owner": format!("{:016x}", holder.owner),
        "token": holder.token,
        "since_ms": epoch_ms(holder.since),
        "until_ms": holder.until.map(epoch_ms),
        "lease_ms": u64::try_from(holder.lease.as_millis()).unwrap_or(u64::MAX),
    })
}

async fn run_command(session: &Session, args: &LockRun) -> Result<u8, Failure> {
    let name = args.named.bytes();
    let label = args.label.as_deref().map_or_else(own_label, |label| argument(label).to_vec());
    let options = Lock::options().lease(args.lease).label(label).timeout(session.timeout);
    let options = if args.existing { options.existing() } else { options };
    let hint = format!("`larder lock run {}` without --existing makes it", args.named.name.to_string_lossy());
    let opened = options.open(&session.store, name).await;
    let lock = opened.map_err(|error| Failure::from(error).hint_if_absent(hint))?;
    // From here on a signal must not end this process and leave the lock behind.
    let mut signals = Forwarded::listen()?;
    let mut acquiring = pin!(acquire(&lock, args));
    let guard = tokio::select! {
        guard = &mut acquiring => guard.map_err(|failure| with_own_code(failure, args))?,
        signal = signals.next() => {
            // A write may be under way that takes the lock: what it took is given back.
            if let Ok(Ok(guard)) = timeout(SETTLE_MAX, acquiring).await {
                _ = guard.release().await;
            }
            return Ok(code_of_signal(signal));
        }
    };
    let env = [(ENV_TOKEN, guard.fencing_token().to_string().into()), (ENV_NAME, os_string(name))];
    let mut running = match Running::start(&args.command, &env) {
        Ok(running) => running,
        Err(failure) => {
            // The failure is what matters; a lock that could not be given back ends with its lease.
            _ = guard.release().await;
            return Err(failure);
        }
    };
    let lost = guard.lost();
    let until = async move { _ = lost.await };
    let end = running.supervise(&mut signals, until, args.grace).await?;
    finish(guard, end).await.map_err(|failure| with_own_code(failure, args))
}

async fn acquire(lock: &Lock, args: &LockRun) -> Result<LockGuard, Failure> {
    let tried = if args.wait.is_zero() { lock.try_acquire().await } else { lock.acquire(args.wait).await.map(Some) };
    let error = match tried {
        Ok(Some(guard)) => return Ok(guard),
        Ok(None) => None,
        Err(error) if error.is_unknown() => {
            let lease = humantime::format_duration(args.lease);
            return Err(Failure::from(error).hint(format!("it may have been taken; then its lease, {lease}, ends it")));
        }
        Err(error) if error.kind() == ErrorKind::Timeout => Some(error),
        Err(error) => return Err(error.into()),
    };
    // Was the lock held all the time, or was it the store that did not answer?
    let message = match (lock.status().await, error) {
        (Err(status), Some(error)) if is_silence(&status) => return Err(error.into()),
        (_, Some(error)) => error.detail().to_owned(),
        (Ok(LockStatus::Held(holder)), None) => format!("the lock is held by somebody else: {}", plain_terms(&holder)),
        (_, None) => "the lock is held by somebody else".to_owned(),
    };
    let hint = "`larder lock status NAME` tells who holds it; --wait waits longer";
    Err(Failure::new(Exit::Lock, "lock not obtained", message).hint(hint))
}

fn is_silence(error: &larder::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// Gives the lock back; the exit code of the command, if it ran under the lock from beginning to end.
async fn finish(guard: LockGuard, end: End) -> Result<u8, Failure> {
    let token = guard.fencing_token();
    let lost = |what: &str| Failure::new(Exit::Lock, "lock lost", format!("the lock (token {token}) was lost {what}"));
    match (end, guard.release().await) {
        (End::Ended, _) => Err(lost("while the command ran, which was ended")),
        (End::Own(_), Ok(Released::AlreadyLost)) => {
            Err(lost("before the command ended by itself; it may have overlapped with the next holder's"))
        }
        (End::Own(status), Ok(_)) => Ok(code_of(status)),
        (End::Own(status), Err(error)) => {
            say(&format!("warning: the lock could not be given back, and ends with its lease: {error}"));
            Ok(code_of(status))
        }
    }
}

fn with_own_code(failure: Failure, args: &LockRun) -> Failure {
    if failure.exit == Exit::Lock as u8 { failure.exiting(args.lock_exit_code) } else { failure }
}

/// Host and process, as long as a label may be.
fn own_label() -> Vec<u8> {
    let pid = format!("/{}", std::process::id());
    let system = rustix::system::uname();
    let host = system.nodename().to_bytes();
    let host = &host[..host.len().min(LABEL_BYTES_MAX - pid.len())];
    [host, pid.as_bytes()].concat()
}
