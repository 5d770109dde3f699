//! `larder backup`, `restore`, `check`, `export` and `import`: a whole store at once.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressDrawTarget};
use larder::dump::{DumpReader, DumpWriter, Exported, FileError, Head, Imported, Importing, Totals};
use larder::{ErrorKind, Portable};
use serde_json::json;

use crate::args::Common;
use crate::exit::{Exit, Failure, Where, say};
use crate::half::{self, Half};
use crate::output::Out;
use crate::own::is_file;
use crate::session::{Makes, Session, TIMEOUT, backup_url, files_url};

pub(crate) const EXPORT_HELP: &str = "\
Writes every item of the store to FILE, with flags and lives, as a portable dump (docs/durability.md says byte by byte how); - is standard output. Others go on \
working: each item is as it was when it was read. An export that was cut short is gone on with by --resume, of the store that it was begun of: by its URL, but for user, password and options, or by its kind and version alone where the dump has no URL, as those of earlier builds (--any-source goes on with any). Structures that a Redis keeps natively are written as other stores \
keep them, and stay so wherever they are imported; a counter with copies on several servers as one without. What other programs keep on a Redis, and what has lost its mark, cannot be moved: they are counted and named, and the exit code is 8.

Round trips: those of listing, 1 for every 256 items (16 where they may have 64 MiB, as in files) or some 8 MiB of them, up to 5 more at first and after each that is larger, and 1 for every 32 native keys or keys with copies.

Examples:
  larder export all.dump
  larder export - | zstd > all.dump.zst
  larder --store redis://localhost export all.dump && larder --store file:store import all.dump";

pub(crate) const IMPORT_HELP: &str = "\
Writes every item of a dump to the store, with flags and what is left of its life; - is standard input. What is there stays, and is counted, unless --replace. Items that \
the store does not take (over its limit, say) are named, the others go on, and the exit code is 8. An import that failed says how it is gone on with.

Round trips: 1 for every 256 items or 1 MiB.

Examples:
  larder import all.dump
  zstd -dc all.dump.zst | larder import -";

pub(crate) const BACKUP_HELP: &str = "\
Writes all that a durable store holds at one moment to FILE, which is there only when it is whole (FILE.<16 hexadecimal digits>.new before; the next backup to FILE removes what one that was killed left); - is standard output. A store that `larder serve` has open is named by its \
server's address, and everybody goes on working; one that another process has open (file:PATH) is waited for up to 5 s, or --timeout.

Examples:
  larder --store memcached://localhost:11211 backup monday.dump
  larder --store file:/var/lib/larder backup - | ssh elsewhere 'cat > monday.dump'";

pub(crate) const RESTORE_HELP: &str = "\
Makes a durable store (file:PATH) of a backup, or of any store's export, in a folder that is empty or not there; - is standard input. It is another incarnation of the store: \
structures that saw it further on answer `rolled back`.

Examples:
  larder --store file:/var/lib/larder restore monday.dump";

pub(crate) const CHECK_HELP: &str = "\
Reads all of a durable store (file:PATH), and holds journal, tables and items against their checksums. Damage is named, and the exit code is 4. No item is changed. As whenever the store is opened, \
the torn end of a journal that a crash left is cut off, and a folder of an older layout becomes one of the newest; as whenever it is closed, up to 1,024 items that are over are removed, and as many of what a flush_all left.

Examples:
  larder --store file:/var/lib/larder check";

/// What becomes of bytes at a journal's end that cannot be read.
pub(crate) const CUT_OFF: &str = "were cut off the journal when the store was opened: a write that a crash had cut short, or damage in what was not known to be on disk";

#[derive(Args, Debug)]
pub(crate) struct Export {
    /// The dump to write; - for standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: OsString,
    /// Go on with a dump that was cut short
    #[arg(long)]
    resume: bool,
    /// Go on though the dump was begun of a store at another URL, as the same one by another name of its server, or by another of a cluster's nodes, is
    #[arg(long, requires = "resume")]
    any_source: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Import {
    /// The dump to read; - for standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: OsString,
    /// Write over what is there
    #[arg(long)]
    replace: bool,
    /// Leave out the first blocks of the dump: those that an import before has put there
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_blocks: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Archive {
    /// The dump; - for standard input or output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: OsString,
}

/// How far something long has come: drawn on a terminal only.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        Progress(bar)
    }

    fn tell(&self, items: u64, bytes: u64) {
        self.0.set_message(format!("{items} items, {}", indicatif::HumanBytes(bytes)));
        self.0.tick();
    }

    fn bytes(&self, bytes: u64) {
        self.0.set_message(indicatif::HumanBytes(bytes).to_string());
        self.0.tick();
    }

    fn totals(&self, totals: Totals) {
        self.tell(totals.items, totals.value_bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub(crate) async fn export(session: &Session, args: &Export) -> Result<Exit, Failure> {
    let Some(list) = &session.list else {
        let message = "this store cannot tell which keys it holds";
        return Err(Failure::new(Exit::Refused, "unsupported", message));
    };
    if args.resume && is_stdin_or_stdout(&args.file) {
        let message = "a dump that goes to standard output cannot be gone on with";
        return Err(Failure::usage(message).hint("name the file that was cut short"));
    }
    // Before there is a file.
    if !session.store.profile().remaining_ttl {
        let message = "this store cannot tell how long its items live, and a dump must say so";
        return Err(Failure::new(Exit::Refused, "unsupported", message));
    }
    let head = Head::now(session.store.profile().store.to_string()).at(session.address.as_str());
    let store = Portable::new(session.store.clone());
    let progress = Progress::new();
    let mut tell = |totals| progress.totals(totals);
    let exported = if is_stdin_or_stdout(&args.file) {
        let writer = DumpWriter::new(BufWriter::new(stdout()?.lock()), &head)?;
        larder::dump::export(&store, &**list, writer, &|_| false, &mut tell).await?.1
    } else if args.resume {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&args.file)
            .map_err(|error| unreadable(&args.file, &error))?;
        let resumed = DumpWriter::resume(file, head.origin, (!args.any_source).then_some(&head));
        let resumed = resumed.map_err(|error| {
            let is_of_another = larder::dump::OtherStore::is_why(&error);
            let failure = Failure::from(error);
            let hint = "if it is the same store at another URL, --any-source goes on all the same";
            if is_of_another { failure.hint(hint) } else { failure }
        })?;
        say(&format!("{} is gone on with: it was begun of {}", args.file.display(), resumed.head.shown()));
        let known = |key: &[u8]| resumed.keys.contains(&DumpWriter::fingerprint(key));
        let (file, exported) = larder::dump::export(&store, &**list, resumed.writer, &known, &mut tell).await?;
        file.sync_all()?;
        exported
    } else {
        let file = new_file(Path::new(&args.file))?;
        // Nobody goes on with it meanwhile. A file system without locks has none to hold.
        _ = file.try_lock();
        let writer = DumpWriter::new(file, &head)?;
        let done = larder::dump::export(&store, &**list, writer, &|_| false, &mut tell).await;
        let resume =
            format!("what was read is in the file; go on with `larder export {} --resume`", args.file.display());
        let (file, exported) = done.map_err(|error| Failure::from(error).hint(resume))?;
        file.sync_all()?;
        exported
    };
    drop(progress);
    report_export(session.out, &args.file, &exported)
}

fn report_export(out: Out, file: &OsStr, exported: &Exported) -> Result<Exit, Failure> {
    let Exported { totals, gone, known, foreign } = exported;
    if !is_stdin_or_stdout(file) {
        let plain = format!("{} items, {} bytes of values", totals.items, totals.value_bytes);
        let object = json!({
            "items": totals.items, "value_bytes": totals.value_bytes, "gone": gone, "known": known, "foreign": foreign.count,
        });
        out.answer(&plain, &object)?;
    }
    if foreign.count == 0 {
        return Ok(Exit::Ok);
    }
    foreign.first.iter().for_each(|error| say(&error.to_string()));
    let message = format!("{} keys were left out: what they hold cannot be moved", foreign.count);
    Err(Failure::new(Exit::Refused, "foreign", message))
}

pub(crate) async fn import(session: &Session, args: &Import) -> Result<Exit, Failure> {
    let mut reader = DumpReader::new(input(&args.file)?)?;
    let progress = Progress::new();
    let how = Importing { replace: args.replace, skip_blocks: args.skip_blocks };
    let mut imported = Imported { blocks: args.skip_blocks, ..Imported::default() };
    let mut tell = |so_far: &Imported| progress.tell(so_far.stored + so_far.kept, so_far.value_bytes);
    let done = larder::dump::import(&*session.store, &mut reader, how, &mut imported, &mut tell).await;
    drop(progress);
    let Imported { stored, kept, expired, refused, blocks, .. } = &imported;
    let plain = format!("{stored} written, {kept} there already, {expired} over, {} refused", refused.count);
    if let Err(error) = done {
        let whole = if larder::dump::DumpFault::is_why(&error) { "with a whole copy of the dump " } else { "" };
        let is_over_the_end = error.kind() == ErrorKind::BadInput;
        let failure = Failure::from(error).after(&plain);
        return Err(match blocks {
            0 => failure,
            _ if is_over_the_end => failure,
            done => failure.hint(format!("{whole}go on with --skip-blocks {done}")),
        });
    }
    let object =
        json!({"stored": stored, "kept": kept, "expired": expired, "refused": refused.count, "blocks": blocks});
    session.out.answer(&plain, &object)?;
    if refused.count == 0 {
        return Ok(Exit::Ok);
    }
    refused.first.iter().for_each(|error| say(&error.to_string()));
    let message = format!("{} items were left out: the store does not take them", refused.count);
    Err(Failure::new(Exit::Refused, "refused", message))
}

pub(crate) fn backup(common: &Common, args: &Archive) -> Result<Exit, Failure> {
    let url = backup_url(common)?;
    if is_stdin_or_stdout(&args.file) {
        let mut out = BufWriter::new(stdout()?);
        write_backup(common, &url, &mut out)?;
        out.flush()?;
        return Ok(Exit::Ok);
    }
    let target = Path::new(&args.file);
    if target.exists() {
        return Err(taken(target));
    }
    half::sweep(target);
    // It has its name only when it is whole. Others may not read it.
    let mut half = Half::beside(target, 0o600).map_err(|error| unwritable(target, &error))?;
    write_backup(common, &url, &mut half.file)?;
    let totals = totals_of(half.path())?;
    half.name(target).map_err(|error| unwritable(target, &error))?;
    told(common, totals)
}

/// Writes a backup of the store to `out`: by its server, which others go on using, or of its files.
fn write_backup<W: Write + Send>(common: &Common, url: &str, out: &mut W) -> Result<(), Failure> {
    let progress = Progress::new();
    if is_file(url) || !url.starts_with("memcached") {
        let hint = "a store that is served is backed up by its server: --store memcached://…";
        let store = durable(url)?.open().map_err(|error| {
            let may_be_served = error.kind() == ErrorKind::Unavailable;
            let failure = Failure::opening(error, Where::Folder);
            if may_be_served { failure.hint(hint) } else { failure }
        })?;
        store.backup(out, &mut |totals| progress.totals(totals))?;
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let config = larder::memcached::Config::from_url(url)?;
        let timeout = common.timeout.unwrap_or(TIMEOUT);
        let connecting = tokio::time::timeout(timeout, larder::memcached::MemcachedStore::connect(config)).await;
        let late = |_| larder::Error::new(larder::ErrorKind::Timeout, format!("no server after {timeout:?}"));
        let store = connecting.map_err(late)??;
        let mut bytes = 0;
        let mut take = |part: &[u8]| {
            bytes += part.len() as u64;
            progress.bytes(bytes);
            out.write_all(part).map_err(|error| FileError(error).of("the dump cannot be written"))
        };
        store.backup(&mut take).await
    })?;
    Ok(())
}

/// What a dump holds, read from its beginning to its end: so it is whole.
fn totals_of(dump: &Path) -> Result<Totals, Failure> {
    let mut reader = DumpReader::new(BufReader::new(File::open(dump)?))?;
    while reader.next_block()?.is_some() {}
    Ok(reader.totals())
}

pub(crate) fn restore(common: &Common, args: &Archive) -> Result<Exit, Failure> {
    let options = durable(&files_url(common, Makes::Store)?)?;
    let progress = Progress::new();
    let restored = options.restore(input(&args.file)?, &mut |totals| progress.totals(totals));
    let totals = restored.map_err(|error| Failure::from(error).at(Where::Folder))?;
    drop(progress);
    told(common, totals)
}

pub(crate) fn check(common: &Common) -> Result<Exit, Failure> {
    let store = durable(&files_url(common, Makes::Nothing)?)?.open();
    let store = store.map_err(|error| Failure::opening(error, Where::Folder))?;
    let torn = store.stats()?.torn_bytes;
    let progress = Progress::new();
    let checked = store.check(&mut |checked| match checked.items {
        // Tables are read from end to end first.
        0 => progress.bytes(checked.table_bytes),
        items => progress.tell(items, checked.value_bytes),
    })?;
    drop(progress);
    let mut plain =
        format!("{} items, {} bytes of values, {} damaged", checked.items, checked.value_bytes, checked.damaged);
    if torn > 0 {
        plain.push_str(&format!("\n{torn} bytes {CUT_OFF}"));
    }
    let object = json!({
        "items": checked.items, "value_bytes": checked.value_bytes, "damaged": checked.damaged, "torn_bytes": torn,
        "unmatched": checked.unmatched.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
    });
    Out { json: common.json }.answer(&plain, &object)?;
    for path in &checked.unmatched {
        say(&format!(
            "{} is sound in all its parts, and not what was noted of the whole file: a write of it came short, or the file is another store's",
            path.display()
        ));
    }
    if checked.damaged == 0 {
        return Ok(Exit::Ok);
    }
    checked.first.iter().for_each(|error| say(&error.to_string()));
    let message = format!("{} items are damaged", checked.damaged);
    Err(Failure::new(Exit::Lost, "corrupt", message).hint("what is sound can be read; restore a backup for the rest"))
}

fn told(common: &Common, totals: Totals) -> Result<Exit, Failure> {
    let plain = format!("{} items, {} bytes of values", totals.items, totals.value_bytes);
    let object = json!({"items": totals.items, "value_bytes": totals.value_bytes});
    Out { json: common.json }.answer(&plain, &object)?;
    Ok(Exit::Ok)
}

/// The durable store that the command is about, waited for as the others are.
fn durable(url: &str) -> Result<larder::durable::Options, Failure> {
    let options = larder::durable_options(url);
    options.map_err(|error| Failure::from(error).hint("another store is moved by `larder export` and `larder import`"))
}

fn is_stdin_or_stdout(file: &OsStr) -> bool {
    file == "-"
}

fn input(file: &OsStr) -> Result<Box<dyn Read>, Failure> {
    if is_stdin_or_stdout(file) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(file).map_err(|error| unreadable(file, &error))?;
    Ok(Box::new(BufReader::new(file)))
}

fn stdout() -> Result<io::Stdout, Failure> {
    let out = io::stdout();
    if out.is_terminal() {
        return Err(Failure::usage("a dump is no text").hint("name a file, or pipe it somewhere"));
    }
    Ok(out)
}

/// A file that is not there yet. Others may not read it.
fn new_file(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AlreadyExists => taken(path),
        _ => Failure::usage(format!("{} cannot be written: {error}", path.display())),
    }
}

fn taken(path: &Path) -> Failure {
    Failure::usage(format!("{} is there already", path.display())).hint("take another name, or remove it")
}

fn unreadable(file: &OsStr, error: &io::Error) -> Failure {
    Failure::usage(format!("{} cannot be opened: {error}", file.display()))
}
