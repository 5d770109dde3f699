//! `larder cache …`

use std::ffi::OsString;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use ::bytes::Bytes;
use clap::{Args, Subcommand, ValueHint};
use larder::cache::{Cached, Lookup, Source};
use larder::{Cache, Error, ErrorKind};
use rustix::process::Signal;
use serde_json::json;

use crate::args::{Named, positive_time, time};
use crate::exit::{Exit, Failure, say};
use crate::output::{argument, bytes, os_string};
use crate::run::{Beyond, End, Forwarded, Output, Running, code_of, code_of_signal, print_unless_told};
use crate::session::Session;

/// What the command finds in its environment.
const ENV_NAME: &str = "LARDER_CACHE_NAME";
const ENV_KEY: &str = "LARDER_CACHE_KEY";

/// How long what a command left behind has to close its output when a signal has come.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub(crate) enum CacheVerb {
    /// Print the value of a key, made by a command if it is not cached: by one process at a time, over all machines
    #[command(after_help = GET_HELP)]
    Get(CacheGet),
    /// Forget the value of a key; the next who asks makes it anew
    #[command(after_help = "\
Prints nothing. A rebuild that is under way is not cached any more: what it makes may be out of date.

Round trips: open 1, invalidate 1.

Examples:
  larder cache invalidate pages /index")]
    Invalidate(CacheEntry),
}

#[derive(Args, Debug)]
pub(crate) struct CacheEntry {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The key of the value, 0 to 8192 bytes
    pub(crate) key: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct CacheGet {
    #[command(flatten)]
    pub(crate) entry: CacheEntry,
    /// How long the value is fresh, if it is made now
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    pub(crate) ttl: Duration,
    /// How much longer others are served the value while one makes it anew; else they wait
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    pub(crate) stale: Duration,
    /// How long others leave it to this command when it is heard of no more: it is renewed at each third
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = positive_time)]
    pub(crate) lease: Duration,
    /// How long to wait for somebody else's command; 0: not at all
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(crate) wait: Duration,
    /// Never create the cache: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
    /// The command whose standard output is the value, and its arguments: everything that follows
    #[arg(long = "else", value_name = "COMMAND", required = true, num_args = 1.., allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandName)]
    pub(crate) command: Vec<OsString>,
}

const GET_HELP: &str = "\
Of all who find the value missing or stale, one runs its command; the others wait for the value, or with --stale are served the last \
one meanwhile. The command's standard output, byte by byte, is the value; it finds the names in LARDER_CACHE_NAME and LARDER_CACHE_KEY. A command \
that fails caches nothing: its output is passed on, its exit code returned, and the next who asks may try at once. One that outlasts \
--lease is run a second time by somebody else.

A cached value may be gone at any time: the server evicts what it has no room for. A value that could not be cached is printed all the same, \
with a warning on standard error; exit code 0. One over the store's limit is passed on as it comes (with --json it is exit code 2). The value ends when the command has ended and \
all that it started has closed its standard output; a signal ends that wait, too, and the printing to a reader who is slow. Nobody's command ended within --wait: exit code 6.

Round trips: open 1 (2 when the cache is created), a hit 1; with the command 3: the look, the lease, the value, and 1 more at each third of --lease; 2 in all for a hit, 4 with the command, 5 when the cache is created.

Examples:
  larder cache get pages /index --ttl 5m --else ./render /index
  larder cache get rates eur --ttl 1h --stale 10m --lease 20s --else curl -fsS https://rates.example/eur
  larder --json cache get pages /index --ttl 5m --else ./render /index | jq -r .source";

pub(crate) async fn run(session: &Session, verb: CacheVerb) -> Result<u8, Failure> {
    match verb {
        CacheVerb::Get(args) => get(session, &args).await,
        CacheVerb::Invalidate(entry) => {
            let cache = Cache::options().timeout(session.timeout).open(&session.store, entry.named.bytes()).await;
            let cache = cache.map_err(explained)?;
            cache.invalidate(argument(&entry.key)).await?;
            Ok(Exit::Ok as u8)
        }
    }
}

fn explained(error: larder::Error) -> Failure {
    Failure::from(error).hint_if_absent("nothing is cached under that name; `larder cache get` creates it")
}

async fn get(session: &Session, args: &CacheGet) -> Result<u8, Failure> {
    let options = Cache::options().ttl(args.ttl).stale(args.stale).lease(args.lease).wait(args.wait);
    let options = options.timeout(session.timeout);
    let name = args.entry.named.bytes();
    let cache = if args.existing {
        options.open(&session.store, name).await.map_err(explained)?
    } else {
        options.open_or_create(&session.store, name).await?
    };
    let key = argument(&args.entry.key);
    // From here on a signal must not end this process and leave a lease behind that others wait for.
    let mut signals = Forwarded::listen()?;
    let lookup = tokio::select! {
        lookup = cache.lookup(key) => lookup,
        signal = signals.next() => return Ok(code_of_signal(signal)),
    };
    let rebuild = match lookup {
        Ok(Lookup::Found(cached)) => return print(session, args, &cached, &mut signals, None).await,
        Ok(Lookup::Rebuild(rebuild)) => rebuild.renewing(),
        Err(error) if error.kind() == ErrorKind::Timeout && !error.is_unknown() => {
            return Err(Failure::from(error).hint("--wait waits longer, --stale serves the last value meanwhile"));
        }
        Err(error) => return Err(error.into()),
    };
    let bytes_max = cache.value_bytes_max(key);
    // A JSON object cannot be begun before its value is known.
    let beyond = if session.out.json { Beyond::Dropped } else { Beyond::PassedOn };
    let Made { code, output, signalled } =
        match made(&args.command, [name, key], &mut signals, (bytes_max, beyond)).await {
            Ok(made) => made,
            Err(failure) => {
                rebuild.give_up().await;
                return Err(failure);
            }
        };
    let within = signalled.map(|signal| (GRACE, signal));
    if code == 0 && output.over().is_none() {
        return print(session, args, &rebuild.finish(output.kept()).await, &mut signals, within).await;
    }
    rebuild.give_up().await;
    if let (0, Some(bytes)) = (code, output.over()) {
        let detail = format!("a value has {bytes} bytes; the limit is {bytes_max}");
        if beyond == Beyond::Dropped {
            let hint = "without --json it is printed, and not cached";
            return Err(Failure::from(Error::new(ErrorKind::BadInput, detail)).hint(hint));
        }
        say(&format!("warning: the value was not cached: {detail}"));
    }
    if output.over().is_some() {
        // Nothing was kept; and of what was passed on a part may be left with a reader who is slow.
        return Ok(code);
    }
    let told = print_unless_told(&mut signals, within, output.kept()).await?;
    Ok(told.filter(|_| signalled.is_none()).map_or(code, code_of_signal))
}

/// What became of a command.
struct Made {
    /// Its exit code.
    code: u8,
    /// What it printed.
    output: Output,
    /// The first signal that came meanwhile.
    signalled: Option<Signal>,
}

/// Runs the command for a cache's name and a key.
async fn made(
    command: &[OsString],
    [name, key]: [&[u8]; 2],
    signals: &mut Forwarded,
    (bytes_max, beyond): (usize, Beyond),
) -> Result<Made, Failure> {
    let env = [(ENV_NAME, os_string(name)), (ENV_KEY, os_string(key))];
    let mut running = Running::start_captured(command, &env)?;
    let mut output = running.output(bytes_max, beyond);
    let (code, late) = {
        let mut reading = pin!(output.read());
        let mut read = None;
        let end = {
            let mut supervising = pin!(running.supervise(signals, pending(), Duration::ZERO));
            loop {
                tokio::select! {
                    end = &mut supervising => break end?,
                    outcome = &mut reading, if read.is_none() => read = Some(outcome),
                }
            }
        };
        let mut late = None;
        if read.is_none() {
            (read, late) = running.rest(signals, reading, GRACE).await;
        }
        read.transpose()?;
        let code = match end {
            End::Own(status) => code_of(status),
            End::Ended => Exit::Internal as u8,
        };
        (code, late)
    };
    // What a signal ended is not known to be whole.
    let code = late.filter(|_| code == 0).map_or(code, code_of_signal);
    Ok(Made { code, output, signalled: running.signalled().or(late) })
}

/// Prints a value. A signal ends that, too: who reads may be slow.
async fn print(
    session: &Session,
    args: &CacheGet,
    cached: &Cached,
    signals: &mut Forwarded,
    within: Option<(Duration, Signal)>,
) -> Result<u8, Failure> {
    let (source, kept) = match &cached.source {
        Source::Fresh => ("fresh", None),
        Source::Stale => ("stale", None),
        Source::Rebuilt(Ok(())) => ("rebuilt", None),
        Source::Rebuilt(Err(error)) => ("rebuilt", Some(error)),
        _ => ("unknown", None),
    };
    if let Some(error) = kept {
        say(&format!("warning: the value was not cached, or may not have been: {error}"));
    }
    let printed = if session.out.json {
        let CacheEntry { named, key } = &args.entry;
        let object = json!({
            "name": bytes(named.bytes()),
            "key": bytes(argument(key)),
            "value": bytes(&cached.value),
            "source": source,
            "kept": cached.is_kept(),
        });
        Bytes::from(format!("{object}\n"))
    } else {
        cached.value.clone()
    };
    let told = print_unless_told(signals, within, printed).await?;
    Ok(told.map_or(Exit::Ok as u8, code_of_signal))
}
