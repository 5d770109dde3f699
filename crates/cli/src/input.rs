//! Elements, from the command line or from standard input.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Seek};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::exit::{Failure, graver};
use crate::output::argument;

/// How many elements of standard input go out together.
pub(crate) const BATCH_ELEMENTS_MAX: usize = 1024;
/// How many bytes of elements go out together, unless a single one has more.
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// How many batches are under way at once; as many again are read ahead. So memory stays bounded, whatever comes in.
const BATCHES_UNDER_WAY_MAX: usize = 4;
/// The longest line of standard input.
const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Nothing is shown of what takes less.
const PROGRESS_AFTER: Duration = Duration::from_millis(500);

/// How long what has come waits for more to go out with it, where that does not fill a batch before. Whoever writes into a pipe as fast as he can is slower than who reads.
const GATHER: Duration = Duration::from_millis(50);

/// How much of standard input goes out together: less where no more has come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSize {
    pub(crate) elements_max: usize,
    /// Unless a single element has more.
    pub(crate) bytes_max: usize,
}

pub(crate) const BATCH: BatchSize = BatchSize { elements_max: BATCH_ELEMENTS_MAX, bytes_max: BATCH_BYTES_MAX };

/// Elements that belong together.
pub(crate) type Elements = Vec<Vec<u8>>;

/// Where elements come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The command line.
    Typed(Elements),
    /// Standard input, which `-` alone stands for.
    Stdin,
}

impl Source {
    /// # Errors
    /// A `-` among others could be meant either way.
    pub(crate) fn of(elements: &[OsString]) -> Result<Source, Failure> {
        let is_dash = |element: &OsString| element == "-";
        match elements {
            [only] if is_dash(only) => Ok(Source::Stdin),
            many if many.iter().any(is_dash) => {
                let hint = "an element that is `-` itself comes from standard input: `echo - | larder set add NAME -`";
                Err(Failure::usage("`-` stands alone: it reads all elements from standard input").hint(hint))
            }
            many => Ok(Source::Typed(many.iter().map(|element| argument(element).to_vec()).collect())),
        }
    }
}

/// Lines of a name, a tab and a value each, apart. `what` is what the name is called.
///
/// # Errors
/// For a line without a tab.
pub(crate) fn by_tabs(lines: Elements, what: &str) -> larder::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    lines.iter().map(|line| by_tab(line, what)).collect()
}

/// The same of one line.
///
/// # Errors
/// As [`by_tabs`].
pub(crate) fn by_tab(line: &[u8], what: &str) -> larder::Result<(Vec<u8>, Vec<u8>)> {
    match line.iter().position(|&byte| byte == b'\t') {
        Some(at) => Ok((line[..at].to_vec(), line[at + 1..].to_vec())),
        None => {
            let shown = larder::text::Shown(line);
            let detail = format!("a line of standard input has no tab between {what} and value: {shown}");
            Err(larder::Error::new(larder::ErrorKind::BadInput, detail))
        }
    }
}

/// Counts the lines of standard input, by the batch as they come.
pub(crate) struct LineCount {
    are_lines: bool,
    read: Cell<u64>,
}

impl LineCount {
    pub(crate) fn of(source: &Source) -> LineCount {
        LineCount { are_lines: matches!(source, Source::Stdin), read: Cell::new(0) }
    }

    /// A batch's lines with their numbers; none of what stands on the command line.
    pub(crate) fn next(&self, batch: &Elements) -> Numbered {
        let first = self.read.get() + 1;
        self.read.set(self.read.get() + batch.len() as u64);
        Numbered { first, lines: if self.are_lines { batch.clone() } else { Elements::new() } }
    }
}

/// Lines of standard input, from a number on.
pub(crate) struct Numbered {
    first: u64,
    lines: Elements,
}

impl Numbered {
    /// What failed, with the number of the line that is wrong: the first one that `check` refuses, or those of all where it refuses none.
    pub(crate) fn failure(&self, error: larder::Error, check: impl Fn(&[u8]) -> larder::Result<()>) -> Failure {
        if error.kind() != larder::ErrorKind::BadInput || self.lines.is_empty() {
            return error.into();
        }
        let refused = (self.first..).zip(&self.lines).find_map(|(number, line)| Some((number, check(line).err()?)));
        if let Some((number, error)) = refused {
            return Failure::from(error).after(&format!("line {number}"));
        }
        let last = self.first + self.lines.len() as u64 - 1;
        let which = if last == self.first { format!("line {last}") } else { format!("lines {} to {last}", self.first) };
        Failure::from(error).after(&which)
    }
}

/// How many elements of a batch are acted on at once, where each takes round trips of its own: each must be done within --timeout.
const AT_ONCE_MAX: usize = 128;

/// Acts on each element, several at once, or until one fails: what is under way then is waited for.
pub(crate) async fn each_at_once<T, F>(
    elements: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    act: impl Fn(T) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = larder::Result<()>> + Send + 'static,
{
    let mut under_way: JoinSet<larder::Result<()>> = JoinSet::new();
    let mut elements = elements.into_iter().fuse();
    let (mut outcome, mut done, all) = (Ok(()), 0, elements.len());
    loop {
        let is_free = outcome.is_ok() && under_way.len() < AT_ONCE_MAX;
        if let Some(element) = is_free.then(|| elements.next()).flatten() {
            under_way.spawn(act(element));
            continue;
        }
        let Some(next) = under_way.join_next().await else { break };
        let next = next.map_err(|error| io::Error::other(error).into()).and_then(|next| Ok(next?));
        done += usize::from(next.is_ok());
        outcome = graver(outcome, next);
    }
    outcome.map_err(|failure| failure.after_part(done, all))
}

/// Calls `act` with the elements: once with those of the command line, or with a batch of standard input at a time, several at
/// once.
pub(crate) async fn for_each_batch<F>(source: Source, act: impl FnMut(Elements) -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    for_each_batch_in_turn(BATCH, source, act, |()| Ok(())).await
}

/// The same, with batches of a size of their own, and what came of each given to `take`: in the order of the elements, whichever is done first.
pub(crate) async fn for_each_batch_in_turn<T, F>(
    size: BatchSize,
    source: Source,
    act: impl FnMut(Elements) -> F,
    take: impl FnMut(T) -> Result<(), Failure>,
) -> Result<(), Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    for_each_batch_by_key(size, source, None, act, take).await
}

/// What lines are about, as a number: those with different numbers are about different things. Lines about the same are acted on in their
/// order.
pub(crate) type KeyOf = fn(&[u8]) -> u64;

/// The number of a key, for a [`KeyOf`]. Two keys with one only wait for each other.
pub(crate) fn number_of(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The same, where a later line may change what an earlier one did: a batch waits for those before it that are about the same as any of its
/// lines.
pub(crate) async fn for_each_batch_by_key<T, F>(
    size: BatchSize,
    source: Source,
    key_of: Option<KeyOf>,
    mut act: impl FnMut(Elements) -> F,
    mut take: impl FnMut(T) -> Result<(), Failure>,
) -> Result<(), Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    if let Source::Typed(elements) = source {
        return take(act(elements).await?);
    }
    Turns::new(key_of, take).run(read_batches_of(size), act).await
}

/// Batches that are acted on, in the order in which they were read.
struct Turns<T, K> {
    under_way: VecDeque<UnderWay<T>>,
    key_of: Option<KeyOf>,
    take: K,
    /// How many elements are done, or were tried.
    begun: u64,
    done: Amount,
    meter: Meter,
}

/// A batch that is acted on.
struct UnderWay<T> {
    amount: Amount,
    /// What it is about, where that matters.
    keys: HashSet<u64>,
    action: AbortOnDropHandle<Result<T, Failure>>,
}

/// How much of standard input.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    elements: u64,
    bytes: u64,
}

impl Amount {
    /// With the ends of the lines.
    fn of(batch: &Elements) -> Amount {
        let bytes = batch.iter().map(|line| line.len() as u64 + 1).sum();
        Amount { elements: batch.len() as u64, bytes }
    }
}

impl<T: Send + 'static, K: FnMut(T) -> Result<(), Failure>> Turns<T, K> {
    fn new(key_of: Option<KeyOf>, take: K) -> Turns<T, K> {
        Turns { under_way: VecDeque::new(), key_of, take, begun: 0, done: Amount::default(), meter: Meter::new() }
    }

    /// Acts on all batches that come, or until something fails: what is under way then is waited for.
    async fn run<F>(
        mut self,
        mut batches: mpsc::Receiver<Result<Elements, Failure>>,
        mut act: impl FnMut(Elements) -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let mut outcome = Ok(());
        while outcome.is_ok() {
            // What is done is taken though no more comes: it may have failed, and the next line be long in coming.
            tokio::select! {
                biased;
                taken = self.take_one(), if !self.under_way.is_empty() => outcome = taken,
                batch = batches.recv(), if self.under_way.len() < BATCHES_UNDER_WAY_MAX => match batch {
                    Some(Ok(batch)) => {
                        let keys = self.keys_of(&batch);
                        while outcome.is_ok() && self.is_about_any(&keys) {
                            outcome = self.take_one().await;
                        }
                        if outcome.is_ok() {
                            self.begin(Amount::of(&batch), keys, act(batch));
                        }
                    }
                    Some(Err(failure)) => outcome = Err(failure),
                    None => break,
                },
            }
        }
        while !self.under_way.is_empty() {
            outcome = graver(outcome, self.take_one().await);
        }
        let (done, begun) = (self.done.elements, self.begun);
        drop(self);
        outcome.map_err(|failure| failure.after_input(done, begun, "elements are done"))
    }

    fn keys_of(&self, batch: &Elements) -> HashSet<u64> {
        self.key_of.map(|key_of| batch.iter().map(|line| key_of(line)).collect()).unwrap_or_default()
    }

    /// True if a batch that is under way is about any of these.
    fn is_about_any(&self, keys: &HashSet<u64>) -> bool {
        self.under_way.iter().any(|batch| !batch.keys.is_disjoint(keys))
    }

    fn begin(
        &mut self,
        amount: Amount,
        keys: HashSet<u64>,
        action: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) {
        let action = AbortOnDropHandle::new(tokio::spawn(action));
        self.begun += amount.elements;
        self.under_way.push_back(UnderWay { amount, keys, action });
    }

    /// Waits for the first of them and takes what came of it. Who stops waiting leaves it under way.
    async fn take_one(&mut self) -> Result<(), Failure> {
        let Some(first) = self.under_way.front_mut() else { return Ok(()) };
        let outcome = (&mut first.action).await;
        let Some(UnderWay { amount, .. }) = self.under_way.pop_front() else { return Ok(()) };
        let outcome = outcome.map_err(io::Error::other)??;
        self.done.elements += amount.elements;
        self.done.bytes += amount.bytes;
        self.meter.show(self.done);
        (self.take)(outcome)
    }
}

/// Reads batches of lines on a thread of its own, since reading standard input blocks.
pub(crate) fn read_batches() -> mpsc::Receiver<Result<Elements, Failure>> {
    read_batches_of(BATCH)
}

fn read_batches_of(size: BatchSize) -> mpsc::Receiver<Result<Elements, Failure>> {
    let (sender, receiver) = mpsc::channel(BATCHES_UNDER_WAY_MAX);
    std::thread::spawn(move || {
        let input = BufReader::with_capacity(BATCH_BYTES_MAX, io::stdin());
        let mut lines = Lines { input, size, has_more: stdin_has_more, begun: Vec::new(), ahead: None, failed: None };
        loop {
            let batch = lines.next_batch();
            let is_last = batch.as_ref().is_ok_and(Vec::is_empty);
            let has_failed = batch.is_err();
            // Nobody receives when the command has failed meanwhile.
            if is_last || sender.blocking_send(batch).is_err() || has_failed {
                return;
            }
        }
    });
    receiver
}

/// True if reading standard input returns at once, or comes to within so long: with more of it, its end, or an error.
fn stdin_has_more(within: Duration) -> bool {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    // No more than GATHER.
    let within = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    poll(&mut fds, Some(&within)).is_ok_and(|ready| ready > 0)
}

/// Lines, by the batch: as many as there are, up to its size. What is there already does not wait for what comes later.
struct Lines<R> {
    input: BufReader<R>,
    size: BatchSize,
    /// True if reading returns within so long.
    has_more: fn(Duration) -> bool,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    /// A line that was read and found too long for the last batch.
    ahead: Option<Vec<u8>>,
    /// What went wrong behind the last batch.
    failed: Option<Failure>,
}

impl<R: Read> Lines<R> {
    /// The next lines: as many as have come when the first has been there for [`GATHER`], if they do not fill the batch before; none at the end.
    fn next_batch(&mut self) -> Result<Elements, Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        let mut batch = Elements::new();
        let (mut batch_bytes, mut until) = (0, None);
        while batch.len() < self.size.elements_max {
            let next = match self.ahead.take() {
                Some(line) => Ok(Some(line)),
                None => self.next_line(until),
            };
            let line = match next {
                Ok(Some(line)) => line,
                Ok(None) => break,
                // What came before it is done first.
                Err(failure) if !batch.is_empty() => {
                    self.failed = Some(failure);
                    break;
                }
                Err(failure) => return Err(failure),
            };
            batch_bytes += line.len();
            if batch_bytes > self.size.bytes_max && !batch.is_empty() {
                self.ahead = Some(line);
                break;
            }
            batch.push(line);
            until.get_or_insert_with(|| Instant::now() + GATHER);
        }
        Ok(batch)
    }

    /// The next line, once its end has come; none at the end, or if it has to be waited for longer than `until` then.
    fn next_line(&mut self, until: Option<Instant>) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(until) = until
                && self.input.buffer().is_empty()
                && !(self.has_more)(until.saturating_duration_since(Instant::now()))
            {
                return Ok(None);
            }
            let read = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?,
            };
            let is_over = read.is_empty();
            let end = read.iter().position(|&byte| byte == b'\n');
            self.begun.extend_from_slice(&read[..end.unwrap_or(read.len())]);
            let used = end.map_or(read.len(), |end| end + 1);
            self.input.consume(used);
            if self.begun.len() > LINE_BYTES_MAX {
                let message = format!("a line of standard input is longer than the limit of {LINE_BYTES_MAX} bytes");
                return Err(Failure::usage(message));
            }
            if end.is_some() || (is_over && !self.begun.is_empty()) {
                return Ok(Some(std::mem::take(&mut self.begun)));
            }
            if is_over {
                return Ok(None);
            }
        }
    }
}

/// How far standard input is done: of a file its share, of what has no end yet the elements.
struct Meter {
    bar: ShareBar,
    all_bytes: Option<u64>,
}

impl Meter {
    fn new() -> Meter {
        let all_bytes = bytes_of_a_file();
        let count = || ShareBar { bar: progress(), start: Instant::now() };
        Meter { bar: all_bytes.map_or_else(count, |_| share_bar("bytes of input")), all_bytes }
    }

    fn show(&self, done: Amount) {
        match self.all_bytes {
            Some(all) => self.bar.show(done.bytes.min(all), all),
            None => self.bar.show(done.elements, done.elements),
        }
    }
}

/// How many bytes are to come on standard input, if that is a file.
fn bytes_of_a_file() -> Option<u64> {
    let mut file = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(metadata.len().saturating_sub(file.stream_position().ok()?)).filter(|&bytes| bytes > 0)
}

/// A bar of what is done of how much, on standard error, if that is a terminal and it takes long; gone when dropped.
pub(crate) struct ShareBar {
    bar: ProgressBar,
    start: Instant,
}

pub(crate) fn share_bar(what: &'static str) -> ShareBar {
    let bar = progress();
    if let Ok(style) =
        ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}, {{eta}}"))
    {
        bar.set_style(style);
    }
    ShareBar { bar, start: Instant::now() }
}

impl ShareBar {
    pub(crate) fn show(&self, done: u64, all: u64) {
        if self.start.elapsed() > PROGRESS_AFTER {
            // Drawn once, with both.
            self.bar.update(|state| {
                state.set_len(all);
                state.set_pos(done);
            });
        }
    }
}

impl Drop for ShareBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A count on standard error, if that is a terminal and it takes long.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} elements") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines<R: Read>(input: R) -> Lines<R> {
        lines_of(input, |_| true)
    }

    fn lines_of<R: Read>(input: R, has_more: fn(Duration) -> bool) -> Lines<R> {
        let input = BufReader::with_capacity(BATCH_BYTES_MAX, input);
        Lines { input, size: BATCH, has_more, begun: Vec::new(), ahead: None, failed: None }
    }

    #[test]
    fn lines_are_elements_whatever_bytes_they_have() {
        let mut lines = lines(&b"red\n\n\xff\0\r\nlast"[..]);
        assert_eq!(lines.next_batch().unwrap(), [&b"red"[..], b"", b"\xff\0\r", b"last"]);
        assert!(lines.next_batch().unwrap().is_empty());
    }

    #[test]
    fn batches_are_bounded_and_nothing_falls_between_them() {
        let many = "x\n".repeat(BATCH_ELEMENTS_MAX + 1);
        let mut many = lines(many.as_bytes());
        assert_eq!(many.next_batch().unwrap().len(), BATCH_ELEMENTS_MAX);
        assert_eq!(many.next_batch().unwrap().len(), 1);
        let long = "y".repeat(BATCH_BYTES_MAX);
        let large = format!("a\n{long}\n{long}\nb\n");
        let mut large = lines(large.as_bytes());
        for expected in [vec!["a"], vec![&long], vec![&long], vec!["b"], vec![]] {
            let batch = large.next_batch().unwrap();
            assert!(batch == expected.iter().map(|line| line.as_bytes().to_vec()).collect::<Elements>());
        }
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_one_at_the_limit_is_not() {
        for (extra, ok) in [(0, true), (1, false), (5, false)] {
            for end in ["", "\n"] {
                let line = format!("{}{end}", "z".repeat(LINE_BYTES_MAX + extra));
                assert_eq!(lines(line.as_bytes()).next_batch().is_ok(), ok, "{extra} {end:?}");
            }
        }
    }

    /// A producer that writes a piece at a time; after each no more is there for now.
    struct Pieces(VecDeque<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().unwrap_or_default();
            buffer[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn whole_lines_that_are_there_wait_for_no_others() {
        let pieces = Pieces(VecDeque::from([&b"a\nb\nc"[..], b"c", b"\nd\n", b"e"]));
        let mut lines = lines_of(pieces, |_| false);
        for expected in [&["a", "b"][..], &["cc", "d"], &["e"], &[]] {
            assert_eq!(lines.next_batch().unwrap(), expected.iter().map(|line| line.as_bytes()).collect::<Vec<_>>());
        }
    }

    fn turns<T: Send + 'static, K: FnMut(T) -> Result<(), Failure>>(take: K) -> Turns<T, K> {
        Turns::new(None, take)
    }

    #[tokio::test]
    async fn batches_about_the_same_key_keep_their_order_and_others_wait_for_none() {
        let (sender, receiver) = mpsc::channel(8);
        // The first of all is the slowest.
        for (at, lines) in [["a", "b"], ["c", "d"], ["e", "b"]].into_iter().enumerate() {
            let wait = [600, 100, 10][at].to_string();
            let batch = [wait.as_str()].into_iter().chain(lines).map(|line| line.as_bytes().to_vec()).collect();
            sender.send(Ok(batch)).await.unwrap();
        }
        drop(sender);
        let ended = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut turns = turns(|()| Ok(()));
        turns.key_of = Some(number_of);
        let act = |batch: Elements| {
            let ended = ended.clone();
            async move {
                let wait = std::str::from_utf8(&batch[0]).unwrap().parse().unwrap();
                tokio::time::sleep(Duration::from_millis(wait)).await;
                ended.lock().unwrap().push(wait);
                Ok(())
            }
        };
        turns.run(receiver, act).await.unwrap();
        assert_eq!(*ended.lock().unwrap(), [100, 600, 10]);
    }

    #[tokio::test]
    async fn a_batch_that_failed_is_told_though_no_more_comes() {
        let (sender, receiver) = mpsc::channel(BATCHES_UNDER_WAY_MAX);
        sender.send(Ok(vec![b"a".to_vec()])).await.unwrap();
        let failing = turns(|()| Ok(())).run(receiver, |_| async { Err(Failure::usage("refused")) });
        let outcome = tokio::time::timeout(Duration::from_secs(10), failing).await;
        assert!(outcome.expect("it waits for more").unwrap_err().message().contains("refused"));
        drop(sender);
    }

    /// What fails after so many milliseconds.
    async fn fails(after_ms: u64, error: larder::Error) -> larder::Result<()> {
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        Err(error)
    }

    fn unreachable() -> larder::Error {
        larder::Error::new(larder::ErrorKind::Unavailable, "refused")
    }

    fn unknown() -> larder::Error {
        larder::Error::new(larder::ErrorKind::Timeout, "lost").effect(larder::Effect::Unknown)
    }

    #[tokio::test]
    async fn of_batches_that_fail_at_once_one_whose_outcome_is_unknown_is_told() {
        for (first, second) in [(unreachable(), unknown()), (unknown(), unreachable())] {
            let (sender, receiver) = mpsc::channel(BATCHES_UNDER_WAY_MAX);
            for line in [b"a", b"b"] {
                sender.try_send(Ok(vec![line.to_vec()])).unwrap();
            }
            drop(sender);
            let act = |batch: Elements| {
                let error = if batch[0] == b"a" { first.clone() } else { second.clone() };
                async { Ok(fails(50, error).await?) }
            };
            let failure = turns(|()| Ok(())).run(receiver, act).await.unwrap_err();
            assert_eq!(failure.exit, 7);
            assert!(
                failure
                    .message()
                    .starts_with("no elements of standard input are done for certain, some may be: timeout: lost")
            );
        }
    }

    #[tokio::test]
    async fn of_elements_that_fail_at_once_one_whose_outcome_is_unknown_is_told_and_how_many_are_done() {
        for at in [1, 100] {
            let act = |n| async move {
                match n {
                    0 => fails(at, unreachable()).await,
                    1 => fails(51, unknown()).await,
                    _ => Ok(()),
                }
            };
            let failure = each_at_once(0..10u32, act).await.unwrap_err();
            assert_eq!(failure.exit, 7);
            assert!(failure.message().starts_with("8 of 10 elements are done: timeout: lost"));
        }
    }
}
