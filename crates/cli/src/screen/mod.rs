//! What a store does, on a terminal: rates, times, memory, structures by kind, hot keys; or one sample of it, for scripts.

mod draw;
mod sample;
mod words;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use clap::Args;
use larder::text::size;
use larder::{Ctx, Error, ErrorKind, ListRef, StoreRef};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::args::positive_time;
use crate::exit::{Exit, Failure};
use crate::run::{Forwarded, code_of_signal};
use crate::session::Session;
use draw::State;
use sample::{Sample, Sampler, Structures};
use words::{count_or_none, duration, share, us};

/// How often structures are counted anew: it takes a listing of the store.
const STRUCTURES_EVERY: Duration = Duration::from_secs(60);
/// How long the counting may take where one sample is asked for.
const STRUCTURES_WAIT: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub(crate) struct ScreenArgs {
    /// How long between two looks [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    interval: Option<Duration>,
    /// Print one sample, over one interval, and end; so it is with --json, and where standard output is no terminal
    #[arg(long)]
    once: bool,
}

impl ScreenArgs {
    fn interval(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(1))
    }

    /// # Errors
    /// An option of the screen beside a verb, which has no use for it.
    pub(crate) fn refuse(&self) -> Result<(), Failure> {
        let given = [("--interval", self.interval.is_some()), ("--once", self.once)];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Failure::usage(format!("{name} is the screen's, and cannot be used with a verb"))),
            None => Ok(()),
        }
    }
}

pub(crate) const SCREEN_HELP: &str = "\
With a verb: the sorted set. Without one, the screen. It shows, anew every second: for each server what it runs, hits and evicts a second, what it uses of its memory, its connections and processor time; its commands with their times; how many \
structures of each kind the store holds; the keys that are asked for most, where the server is larder's own; and the latest commands that took long, on Redis and Valkey. It works with memcached, Redis, Valkey, \
clusters of them, larder's own server, and the embedded stores as far as they tell.

Round trips: one request a server for its figures and one get of nothing an interval (on memcached over one connection that is kept), and a listing of the structures once a minute. p50 and \
p99 are the server's own, since its start.

q, Esc or Ctrl-C ends it, p pauses it.

Examples:
  larder top set points ann 12 bob 7.5
  larder top list points 10
  larder top
  larder top --store redis://cache:6379 --interval 5s
  larder --json top | jq '.nodes[].ops_per_second'";

/// Shows the screen, or prints one sample.
pub(crate) async fn run(session: &Session, args: &ScreenArgs) -> Result<u8, Failure> {
    let Some(survey) = &session.survey else {
        let error = Error::new(ErrorKind::Unsupported, "this store cannot tell what it does");
        return Err(error.store(session.store.profile().store.clone()).into());
    };
    let mut sampler = Sampler::new(&session.store, &**survey, session.timeout);
    if args.once || session.out.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_one(session, args, &mut sampler).await.map(|exit| exit as u8);
    }
    let mut signals = Forwarded::listen()?;
    let mut terminal = ratatui::try_init()?;
    let ended = show(session, args, &mut sampler, &mut terminal, &mut signals).await;
    ratatui::try_restore()?;
    ended
}

/// Draws until it is told to end; the exit code.
async fn show(
    session: &Session,
    args: &ScreenArgs,
    sampler: &mut Sampler<'_>,
    terminal: &mut DefaultTerminal,
    signals: &mut Forwarded,
) -> Result<u8, Failure> {
    let mut keys = keys();
    let mut state = State::new(session.store.profile().store.clone());
    terminal.draw(|frame| state.draw(frame))?;
    let (counted, mut structures) = mpsc::channel(1);
    let counting = session.list.clone().map(|list| tokio::spawn(keep_counting(session.store.clone(), list, counted)));
    let mut known: Option<Structures> = None;
    let mut ticks = tokio::time::interval(args.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let code = loop {
        tokio::select! {
            _ = ticks.tick(), if !state.is_paused => {
                let mut sample = sampler.look().await;
                sample.structures.clone_from(&known);
                state.take(sample);
            }
            Some(found) = structures.recv() => known = Some(found),
            signal = signals.next() => break code_of_signal(signal),
            key = keys.recv() => match key {
                Some(Key::End) | None => break Exit::Ok as u8,
                Some(Key::Pause) => state.is_paused = !state.is_paused,
                Some(Key::Redraw) => {}
            },
        }
        terminal.draw(|frame| state.draw(frame))?;
    };
    if let Some(counting) = counting {
        counting.abort();
    }
    Ok(code)
}

/// What somebody typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    End,
    Pause,
    /// The terminal has another size.
    Redraw,
}

/// What is typed, from a thread of its own that ends with the process, or with the terminal.
fn keys() -> mpsc::Receiver<Key> {
    let (typed, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(key) = meaning(&event)
                && typed.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    keys
}

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) => match code {
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::End),
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Key::End),
            KeyCode::Char('p') => Some(Key::Pause),
            _ => None,
        },
        _ => None,
    }
}

/// Counts structures now and then, and tells how many there are.
async fn keep_counting(store: StoreRef, list: ListRef, counted: mpsc::Sender<Structures>) {
    loop {
        // A store that cannot tell just now may another time.
        if let Ok(structures) = count_structures(&store, &list, Ctx::within(STRUCTURES_EVERY)).await
            && counted.send(structures).await.is_err()
        {
            return;
        }
        tokio::time::sleep(STRUCTURES_EVERY).await;
    }
}

async fn count_structures(store: &StoreRef, list: &ListRef, ctx: Ctx) -> Result<Structures, Error> {
    let mut structures = Structures::new();
    for listed in larder::list(store, &**list, ctx, &mut |_| ()).await? {
        let kind = listed.manifest.as_ref().map_or("unknown", |manifest| manifest.kind.as_str());
        *structures.entry(kind).or_default() += 1;
    }
    Ok(structures)
}

async fn print_one(session: &Session, args: &ScreenArgs, sampler: &mut Sampler<'_>) -> Result<Exit, Failure> {
    sampler.look().await;
    tokio::time::sleep(args.interval()).await;
    let mut sample = sampler.look().await;
    if let Some(list) = &session.list {
        sample.structures = count_structures(&session.store, list, Ctx::within(STRUCTURES_WAIT)).await.ok();
    }
    // Where nobody answers there is nothing to print.
    if let [Err(error), rest @ ..] = &sample.nodes[..]
        && rest.iter().all(Result::is_err)
    {
        return Err(error.clone().into());
    }
    if session.out.json {
        session.out.answer("", &sample.to_json())?;
    } else {
        io::stdout().lock().write_all(plain(&sample).as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// A sample in lines.
fn plain(sample: &Sample) -> String {
    let mut out = String::new();
    for node in &sample.nodes {
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                _ = writeln!(out, "no answer: {error}");
                continue;
            }
        };
        let (vitals, rates) = (&node.vitals, &node.rates);
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| size(bytes as f64));
        _ = writeln!(
            out,
            "{} at {}, up {}",
            vitals.software,
            vitals.node,
            vitals.uptime_s.map_or_else(|| "-".to_owned(), duration)
        );
        _ = writeln!(
            out,
            "  ops/s {}, hits {}, evicted/s {}, expired/s {}, received/s {}, sent/s {}, cpu {}",
            count_or_none(rates.ops),
            share(rates.hit_share()),
            count_or_none(rates.evicted),
            count_or_none(rates.expired),
            rates.in_bytes.map_or_else(|| "-".to_owned(), size),
            rates.out_bytes.map_or_else(|| "-".to_owned(), size),
            share(rates.cpu),
        );
        _ = writeln!(
            out,
            "  used {}, resident {}, limit {}, on disk {}, keys {}, connections {}",
            bytes(vitals.used_bytes),
            bytes(vitals.resident_bytes),
            bytes(vitals.limit_bytes),
            bytes(vitals.disk_bytes),
            count_or_none(vitals.items.map(|items| items as f64)),
            count_or_none(vitals.connections.map(|connections| connections as f64)),
        );
        for command in &rates.commands {
            let told = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), us);
            let (name, a_second, mean) = (&command.name, count_or_none(Some(command.a_second)), us(command.mean_us));
            _ = writeln!(
                out,
                "  {name}: {a_second}/s, mean {mean}, p50 {}, p99 {}",
                told(command.p50_us),
                told(command.p99_us)
            );
        }
        for hot in &vitals.hot {
            _ = writeln!(out, "  hot {} ≤ {}", larder::text::Shown(&hot.key), hot.count);
        }
        for slow in &vitals.slow {
            _ = writeln!(out, "  slow {} {}", us(slow.us as f64), larder::text::Shown(&slow.what));
        }
    }
    match &sample.round_trip {
        Ok(time) => _ = writeln!(out, "a get takes {}", us(time.as_secs_f64() * 1e6)),
        Err(error) => _ = writeln!(out, "a get fails: {error}"),
    }
    for (kind, number) in sample.structures.iter().flatten() {
        _ = writeln!(out, "structures: {kind} {number}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_help_says() {
        let press = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        assert_eq!(meaning(&press(KeyCode::Char('q'), none)), Some(Key::End));
        assert_eq!(meaning(&press(KeyCode::Esc, none)), Some(Key::End));
        assert_eq!(meaning(&press(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(Key::End));
        assert_eq!(meaning(&press(KeyCode::Char('c'), none)), None);
        assert_eq!(meaning(&press(KeyCode::Char('p'), none)), Some(Key::Pause));
        assert_eq!(meaning(&Event::Resize(80, 25)), Some(Key::Redraw));
    }
}
