//! The command line: what can be typed, and the help for it.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

use crate::archive;
use crate::array::ArrayVerb;
use crate::cache::CacheVerb;
use crate::exit;
use crate::inspect;
use crate::log::LogVerb;
use crate::lookup::LookupVerb;
use crate::memory::MemoryVerb;
use crate::queue::LineVerb;
use crate::records::RecordsVerb;
use crate::screen;
use crate::serve;
use crate::sharded;
use crate::table::TableVerb;
use crate::top;
use crate::unique::UniqueVerb;
use crate::visitors::VisitorsVerb;

/// Shared data structures in the stores people already run.
#[derive(Debug, Parser)]
#[command(name = "larder", version, long_about = LONG_ABOUT, after_help = AFTER_HELP, after_long_help = exit::AFTER_LONG_HELP)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const LONG_ABOUT: &str = "\
Shared data structures in the stores people already run.

A lock, a counter or a set has a name of 1 to 64 bytes and stands in a store, where every process that knows the name works on the \
same one. The store is set by --store or LARDER_STORE:

  memcached://host:port[,host:port…]   memcached, one server or several
  memcached+tls://host:port            the same over TLS
  memcached+unix:///path               the same over a unix socket
  redis://host:port[/database]         Redis or Valkey, one server
  rediss://host:port                   the same over TLS
  redis+unix:///path                   the same over a unix socket
  redis-cluster://host:port[,…]        a Redis or Valkey cluster; rediss-cluster over TLS
  file:PATH                            a durable store in a folder of this machine

A user and a password stand before the host, as user:password@host.

Without one, it is this user's own: a durable store in $XDG_DATA_HOME/larder, or ~/.local/share/larder, behind a server on a unix socket beside it that the first command starts, and that ends when \
nobody was connected for a minute (--direct opens the files instead). Several commands use files in turns: each has them open for one operation at a time, and waits up to 5 s for the others, or --timeout.

Names and elements are taken as the bytes that the shell hands over; they need not be text.";

const AFTER_HELP: &str = "\
Examples:
  larder demo                                    try every structure, here and now, without a server
  larder counter add hits 5                      in this user's own store
  export LARDER_STORE=memcached://localhost:11211
  larder set add tags red green                  in one that machines share
  larder lock run nightly -- ./report.sh

`larder --help` says more, as does --help after any verb; `larder exit-codes` lists the exit codes.";

#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The store's URL, such as memcached://localhost:11211 or redis://localhost:6379 [default: this user's own, on disk]
    #[arg(long, global = true, env = "LARDER_STORE", hide_env_values = true, value_name = "URL")]
    #[arg(value_hint = ValueHint::Url, help_heading = "Common options")]
    pub(crate) store: Option<String>,
    /// Without a store: open the files of this user's own, not by its server
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) direct: bool,
    /// Print JSON, one object or array a line; errors too, to standard error
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) json: bool,
    /// How long one operation may take, with all its attempts, and how long another process is waited for that has a store's files open [default: 5s]
    #[arg(long, global = true, value_name = "TIME", value_parser = positive_time, help_heading = "Common options")]
    pub(crate) timeout: Option<Duration>,
    /// Print without colours, as with NO_COLOR=1
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) no_color: bool,
    /// Say on standard error what it cost: round trips, ops and bytes, connecting left out
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) trace: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// A lock that many processes share: run a command under it, look at it, break it
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder lock run nightly -- ./report.sh
  larder lock status nightly
  larder lock release nightly --force"
    )]
    Lock(LockVerb),
    /// A counter that many processes add to
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder counter add hits 5
  larder counter get hits
  larder counter reset hits"
    )]
    Counter(CounterVerb),
    /// A set of byte strings that many processes add to
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder set add tags red green
  larder set has tags red
  larder set members tags"
    )]
    Set(SetVerb),
    /// An ordered list that many processes append to and change at once
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder array push jobs sweep cook sweep
  larder array change jobs --add eat --delete cook
  larder array get jobs"
    )]
    Array(ArrayVerb),
    /// A cache of what is costly to make: one process at a time makes it, over all machines
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder cache get pages /index --ttl 5m --else ./render /index
  larder cache invalidate pages /index"
    )]
    Cache(CacheVerb),
    /// How many came in the last minutes, counted in windows of time by many processes
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder visitors hit site --period 5m
  larder visitors get site
  larder visitors watch site"
    )]
    Visitors(VisitorsVerb),
    /// How many different visitors came in a day, and who of them is new
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder unique add site alice bob
  larder unique count site
  larder unique union shop blog --days 7"
    )]
    Unique(UniqueVerb),
    /// A few bits for each of millions of dense ids: set, read, and counted by any field
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder records define users 'place:CA-ON|US-NY' visits:u7
  larder records set users 17 place=US-NY visits=3
  larder records aggregate users place"
    )]
    Records(RecordsVerb),
    /// Rows by ranges of addresses, or by ids: built from CSV, and read in one round trip
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder lookup build cities cities.csv
  larder lookup get cities 192.0.2.7"
    )]
    Lookup(LookupVerb),
    /// Values by fields, as many as you like, in many small shards
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder hash set cities 17 Lund 18 Umeå
  larder hash get cities 17
  larder hash len cities"
    )]
    Hash(sharded::HashVerb),
    /// A set as large as you like, in many small shards, that tells who is new
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder sharded-set add seen a b c
  larder sharded-set has seen a
  larder sharded-set len seen"
    )]
    ShardedSet(sharded::ShardedSetVerb),
    /// Members by scores, the highest and the lowest of which are one read; without a verb, a screen of what the store does
    #[command(after_help = screen::SCREEN_HELP)]
    Top(top::Top),
    /// Spread a sharded hash, set or sorted set over another number of shards, while it is used
    #[command(after_help = sharded::RESHARD_HELP)]
    Reshard(sharded::Reshard),
    /// Tell what a structure is, takes and promises, of whatever kind
    #[command(after_help = inspect::INSPECT_HELP)]
    Inspect(inspect::Inspect),
    /// List the structures that a store holds
    #[command(after_help = inspect::LS_HELP)]
    Ls(inspect::Ls),
    /// Values by keys, each an item of its own, and a list of the keys
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder table put prices apple 3.20
  larder table get prices apple
  larder table keys prices"
    )]
    Table(TableVerb),
    /// A log of events by time: put, fetch a range, follow what comes
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder log put audit 'ann signed in'
  larder log fetch audit --since 1h
  larder log tail audit -f"
    )]
    Log(LogVerb),
    /// A queue of items: pushed, claimed with a lease, acknowledged; first in, first out
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder queue push jobs 'resize 1.png'
  larder queue work jobs -- ./resize.sh
  larder queue len jobs"
    )]
    Queue(LineVerb),
    /// A stack of items: the same as a queue, last in, first out
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder stack push undo first second
  larder stack pop undo"
    )]
    Stack(LineVerb),
    /// Remove a structure, of whatever kind, and all its keys
    #[command(after_help = "\
Prints the kind of what was removed. Handles that other processes have open answer `lost` from then on.

Round trips: 3 in all; 2 in all for a lock; 5 in all for what made keys as it went, such as visitors, logs and tables.

Examples:
  larder drop hits")]
    Drop(Named),
    /// What a store's memory goes into, and what would save some
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "\
Examples:
  larder memory report
  larder memory report --store redis://cache:6379 --plot memory.svg
  larder memory advise"
    )]
    Memory(MemoryVerb),
    /// Write all that a store holds to a file, from any store
    #[command(after_help = archive::EXPORT_HELP)]
    Export(archive::Export),
    /// Put what a file holds into a store, any store
    #[command(after_help = archive::IMPORT_HELP)]
    Import(archive::Import),
    /// Write one moment of a durable store to a file
    #[command(after_help = archive::BACKUP_HELP)]
    Backup(archive::Archive),
    /// Make a durable store of a backup
    #[command(after_help = archive::RESTORE_HELP)]
    Restore(archive::Archive),
    /// Read all of a durable store, and look for damage
    #[command(after_help = archive::CHECK_HELP)]
    Check,
    /// Serve memcached's protocol over a store of this machine
    #[command(after_help = serve::SERVE_HELP)]
    Serve(serve::Serve),
    /// Stand in for memcached: its command line as it is, evicting when full unless -M
    #[command(after_help = serve::MEMCACHED_HELP)]
    Memcached(serve::Serve),
    /// Drive every structure from several workers, check every total, and print a table
    #[command(after_help = DEMO_HELP)]
    Demo(Demo),
    /// Print a script that completes larder's commands in a shell
    #[command(after_help = "\
Examples:
  larder completions bash > ~/.local/share/bash-completion/completions/larder
  larder completions zsh > ~/.zfunc/_larder
  larder completions fish > ~/.config/fish/completions/larder.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages to a folder
    #[command(after_help = "\
A page for larder and one for each verb, in section 1.

Examples:
  larder man /usr/local/share/man/man1")]
    Man {
        /// The folder, which must be there
        #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folder: std::path::PathBuf,
    },
    /// List the exit codes
    #[command(
        name = "exit-codes",
        long_about = exit::table(),
        after_help = "\
Examples:
  larder exit-codes
  larder --json exit-codes | jq -r '.[3].meaning'"
    )]
    ExitCodes,
}

#[derive(Args, Debug)]
pub(crate) struct Named {
    /// The structure's name, 1 to 64 bytes
    pub(crate) name: OsString,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LockVerb {
    /// Run a command only while the lock is held
    #[command(after_help = LOCK_RUN_HELP)]
    Run(LockRun),
    /// Print who holds the lock, since when and until when
    #[command(after_help = "\
Prints `held by …`, `expired, was held by …` or `free, …` and what is known of the holder; all exit with 0. A lock that was \
never taken is absent: exit code 3. The state is in the field `state` of --json.

Round trips: open 1, status 1.

Examples:
  larder lock status nightly
  larder --json lock status nightly | jq -r .state")]
    Status(Named),
    /// Break the lock, whoever holds it
    #[command(after_help = "\
The holder is not asked. It finds out when it next renews its lease, a third of the lease later at the most, and may work on \
until then; only a resource that checks fencing tokens turns its late writes away.

Round trips: open 1, release 2; 1 where nobody has it.

Examples:
  larder lock release nightly --force")]
    Release {
        #[command(flatten)]
        named: Named,
        /// Yes, take it away from its holder
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct LockRun {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How long the lock outlives a holder that died; it is renewed every third of that while the command runs
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) lease: Duration,
    /// How long to wait for the lock; 0 tries once
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(crate) wait: Duration,
    /// How long the command may take to end after SIGTERM, once the lock is lost, before SIGKILL
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(crate) grace: Duration,
    /// What `lock status` shows of the holder [default: host and process id]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<OsString>,
    /// The exit code for a lock that was not obtained, or was lost
    #[arg(long, value_name = "CODE", default_value_t = exit::Exit::Lock as u8)]
    pub(crate) lock_exit_code: u8,
    /// Never make it: a lock that nobody has taken yet is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

const LOCK_RUN_HELP: &str = "\
The command finds the fencing token in LARDER_FENCING_TOKEN and the lock's name in LARDER_LOCK_NAME. The token grows with every \
grant: hand it to the resource that the lock guards, and let that refuse a smaller one than it has seen. That, and no lock \
whatever, stops a holder that slept through its lease.

Exits with the command's exit code, or 128 + n if signal n ended it; 126 and 127 are a command that cannot be run or found. If the lock \
is not obtained, or is lost meanwhile, it exits with 5 (--lock-exit-code). When the lock is lost, the command gets SIGTERM, and \
SIGKILL after --grace. SIGINT, SIGTERM and SIGHUP are handed on to the command, and the lock is released after it ended.

From a terminal's foreground the command shares larder's process group; else it leads one of its own, and signals reach all of it.

Round trips: open 1, acquire 1 (2 where there is no record yet), release 1: 3 in all; more while somebody else holds it, and 1 every third of the lease. \
A server that speaks memcached's classic dialect only does not tell how old a record is: there a first try at a lock that somebody holds, \
--wait 0 too, observes it for one lease of its holder.

Examples:
  larder lock run nightly -- ./report.sh
  larder lock run deploy --wait 0 -- make deploy || echo 'somebody else deploys'
  larder lock run nightly --existing -- ./report.sh || echo 'no such lock'
  larder lock run ledger --lease 10s -- sh -c './book --token \"$LARDER_FENCING_TOKEN\"'";

#[derive(Debug, Subcommand)]
pub(crate) enum CounterVerb {
    /// Add to the counter, which is created if need be
    #[command(after_help = "\
Prints nothing. Without --fast the counter is exact: nothing is lost and nothing counted twice, even when replies are lost. With \
--fast it is the server's own arithmetic: one round trip an add, and an add whose reply was lost exits with 7, outcome unknown.

Round trips: open 1 (3 when it is created), the first add of a process 2, giving its slot back 1: 4 in all. A fast one: 2 in all (4 when it is created).

Examples:
  larder counter add hits
  larder counter add stock -- -5
  larder counter add views 100 --fast
  larder counter add hits --existing || echo 'no such counter'")]
    Add(CounterAdd),
    /// Print the counter's value
    #[command(after_help = "\
A counter that is not there is no zero: the exit code is 3.

Round trips: open 1, get 1.

Examples:
  larder counter get hits")]
    Get(Named),
    /// Set the counter to zero and print what it was
    #[command(after_help = "\
Adds that run meanwhile count either before or after it; none is lost.

Round trips: open 1, reset 2; 1 where it is zero already.

Examples:
  larder counter reset hits")]
    Reset(Named),
}

#[derive(Args, Debug)]
pub(crate) struct CounterAdd {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How much, -9223372036854775808 to 9223372036854775807
    #[arg(default_value_t = 1, value_name = "N", allow_negative_numbers = true)]
    pub(crate) n: i64,
    /// If it is created: on the server's own arithmetic, unknown outcomes reported
    #[arg(long)]
    pub(crate) fast: bool,
    /// If it is created: how many processes can add at once in one round trip each
    #[arg(long, value_name = "COUNT", conflicts_with = "fast")]
    pub(crate) slots: Option<u16>,
    /// If it is created: on how many servers it stands
    #[arg(long, value_name = "COUNT", conflicts_with = "fast")]
    pub(crate) copies: Option<u8>,
    /// Never create it: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SetVerb {
    /// Add elements to the set, which is created if need be
    #[command(after_help = "\
Prints nothing. `-` alone reads elements from standard input, one a line, in batches; an element that is `-` itself can only come \
from there. Elements that begin with a dash go behind `--`.

Round trips: open 1 (3 when it is created), add 1; from standard input at most 1 for every batch of up to 1024 elements or 256 KiB. Once in some \
16 KiB that a process writes, 1 more looks whether the set wants compacting.

Examples:
  larder set add tags red green
  larder set add tags -- -v
  cut -f1 access.log | larder set add visitors -
  larder set add visitors --shards 64 - < ids.txt")]
    Add(SetAdd),
    /// Remove elements from the set
    #[command(after_help = "\
Prints nothing; an element that is not in the set is no error. `-` reads elements from standard input, one a line.

Round trips: open 1, remove 1 (for every batch).

Examples:
  larder set remove tags red
  larder set members old | larder set remove tags -")]
    Remove(SetElements),
    /// Tell whether elements are in the set
    #[command(after_help = "\
Prints `true` or `false`, a line for each element; exits with 0 if all are in the set, with 1 if one is not. `-` reads elements from \
standard input, one a line.

Round trips: open 1, has 1; for several elements the whole set is read once.

Examples:
  larder set has tags red
  if larder set has blocked \"$user\" > /dev/null; then exit; fi")]
    Has(SetElements),
    /// Print the elements of the set, one a line, in no order
    #[command(after_help = "\
Elements are printed as they are, whatever bytes they have. With --json they are one array; one that is not UTF-8 is an object \
{\"base64\": …} in it.

Round trips: open 1, members 1.

Examples:
  larder set members tags | sort
  larder --json set members tags | jq length")]
    Members(SetNamed),
    /// Rewrite the set without what was removed or added twice, and print the figures
    #[command(after_help = "\
Sets are compacted by those who read them when it pays; this does it at once.

Round trips: open 1, compact 1 to read and 1 to write.

Examples:
  larder set compact tags")]
    Compact(SetNamed),
    /// Print the set's figures: members, bytes, live and stale
    #[command(after_help = "\
Round trips: open 1, stat 1.

Examples:
  larder set stat tags")]
    Stat(SetNamed),
}

#[derive(Args, Debug)]
pub(crate) struct SetNamed {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The name is a raw key that holds a set in the text encoding of other programs (`+a -b …`)
    #[arg(long)]
    pub(crate) text: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SetElements {
    #[command(flatten)]
    pub(crate) set: SetNamed,
    /// The elements; `-` alone: from standard input, one a line
    #[arg(required = true, value_name = "ELEMENT")]
    pub(crate) elements: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct SetAdd {
    #[command(flatten)]
    pub(crate) elements: SetElements,
    /// If it is created: over how many keys it is spread
    #[arg(long, value_name = "COUNT", conflicts_with = "text")]
    pub(crate) shards: Option<u16>,
    /// Never create it: one that is not there is an error, exit code 3
    #[arg(long)]
    pub(crate) existing: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// How many workers drive each structure, each with a handle (and, on a server, a connection) of its own
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// How many operations each structure gets in all, instead of --seconds
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    pub(crate) ops: Option<NonZeroU32>,
    /// How long each structure is driven
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Spoil one structure's total behind the demo's back, which must then find it out
    #[arg(long, hide = true)]
    pub(crate) sabotage: Option<Subject>,
}

/// What the demo drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// The lock.
    Lock,
    /// The exact counter.
    Counter,
    /// The counter on the server's own arithmetic.
    FastCounter,
    /// The set.
    Set,
    /// The array.
    Array,
    /// The cache.
    Cache,
    /// Visitors in windows of time.
    Visitors,
    /// Different visitors a day.
    Unique,
    /// The log.
    Log,
    /// Packed records.
    Records,
    /// The packed table.
    Lookup,
    /// The table.
    Table,
    /// The queue.
    Queue,
    /// The stack.
    Stack,
    /// The sharded hash.
    Hash,
    /// The sharded set.
    ShardedSet,
    /// The sharded sorted set.
    Top,
}

const DEMO_HELP: &str = "\
Without a store it runs on an embedded one, in this process. Several workers at once take a lock around a plain number, add to an \
exact and to a fast counter, add to and remove from a set, push to and change an array, rebuild and invalidate what a cache holds, \
count visitors and different visitors, put events into a log and entries into a table, set packed records, look rows up in a packed table while it is built anew, push to, claim from and acknowledge a queue and a stack, and change a sharded hash, set and sorted set while they are resharded; then it \
checks that every total is what the workers did, removes what it made, also when it is interrupted, and prints a table. Exits with 0 \
if every total is right, with 1 if any is off.

Examples:
  larder demo
  larder demo --store memcached://localhost:11211 --workers 16 --seconds 5
  larder --json demo --ops 1000";

/// A time such as `500ms`, `30s`, `1m 30s`; a bare number counts seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; a time is such as 500ms, 30s or 1m30s"))
}

pub(crate) fn positive_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("it must be longer than 0".to_owned()),
        positive => Ok(positive),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    const SECONDS_MAX: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("it takes a number of seconds over 0, {SECONDS_MAX} at the most")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_read_with_and_without_a_unit() {
        assert_eq!(time("90"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        for wrong in ["", "-1s", "soon", "99999999999999999999", "99999999999999999999d"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(positive_time("0ms").is_err());
        assert!(seconds("nan").is_err() && seconds("0").is_err() && seconds("1e300").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    }
}
