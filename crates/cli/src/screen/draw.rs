//! The screen: figures, lines and bars, drawn anew with each look.

use std::collections::VecDeque;

use larder::text::Shown;
use larder::text::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::sample::{Command, Node, Sample};
use super::words::{count, count_or_none, duration, share, us};

/// Looks that the line of rates shows at the most.
const HISTORY_MAX: usize = 240;
/// Rows of a list that are told.
const ROWS_MAX: usize = 24;

/// What is drawn.
#[derive(Debug)]
pub(super) struct State {
    store: String,
    sample: Option<Sample>,
    /// Ops a second of the looks so far.
    history: VecDeque<u64>,
    pub(super) is_paused: bool,
}

impl State {
    pub(super) fn new(store: String) -> State {
        State { store, sample: None, history: VecDeque::new(), is_paused: false }
    }

    pub(super) fn take(&mut self, sample: Sample) {
        if let Some(ops) = sample.sum(|rates| rates.ops) {
            self.history.push_back(ops.round() as u64);
        }
        while self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
        self.sample = Some(sample);
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(sample) = &self.sample else {
            frame.render_widget(Paragraph::new(format!("{}: asking…", self.store)), frame.area());
            return;
        };
        let servers = u16::try_from(sample.nodes.len()).unwrap_or(u16::MAX).saturating_add(3).min(12);
        let parts = [Constraint::Length(2), Constraint::Length(servers), Constraint::Length(6), Constraint::Min(6)];
        let [head, nodes, rates, lists] = Layout::vertical(parts).areas(frame.area());
        self.head(frame, head, sample);
        draw_nodes(frame, nodes, sample);
        self.rates(frame, rates);
        draw_lists(frame, lists, sample);
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
        let round_trip = match &sample.round_trip {
            Ok(time) => format!("a get takes {}", us(time.as_secs_f64() * 1e6)),
            Err(error) => format!("no answer: {error}"),
        };
        let paused = if self.is_paused { ", PAUSED" } else { "" };
        let title = format!("larder top: {}{paused}", self.store);
        let keys = format!("{round_trip}; q ends, p pauses");
        let lines = vec![Line::styled(title, Style::new().add_modifier(Modifier::BOLD)), Line::raw(keys)];
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = usize::from(area.width.saturating_sub(2));
        let shown: Vec<u64> = self.history.iter().rev().take(width).rev().copied().collect();
        let most = shown.iter().max().copied().unwrap_or(0);
        let title = format!("ops/s, {} at the most", count(most as f64));
        let line = Sparkline::default().data(&shown).style(Style::new().fg(Color::Cyan));
        frame.render_widget(line.block(Block::bordered().title(title)), area);
    }
}

const NODES: [&str; 11] =
    ["server", "software", "up", "ops/s", "hits", "used", "resident", "keys", "conns", "evicted/s", "cpu"];

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let row = |node: &Result<Node, larder::Error>| match node {
        Ok(node) => Row::new(cells(node)),
        Err(error) => Row::new(vec![error.to_string()]).style(Style::new().fg(Color::Red)),
    };
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(18),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(6),
    ];
    let header = Row::new(NODES).style(Style::new().add_modifier(Modifier::BOLD));
    let table = Table::new(sample.nodes.iter().map(row), widths).header(header);
    frame.render_widget(table.block(Block::bordered().title("servers")), area);
}

fn cells(node: &Node) -> Vec<String> {
    let Node { vitals, rates } = node;
    let used = match (vitals.used_bytes.or(vitals.disk_bytes), vitals.limit_bytes) {
        (Some(used), Some(limit)) => format!("{} of {}", size(used as f64), size(limit as f64)),
        (Some(used), None) => size(used as f64),
        (None, _) => String::new(),
    };
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| count(number as f64));
    vec![
        vitals.node.clone(),
        vitals.software.clone(),
        vitals.uptime_s.map_or_else(String::new, duration),
        count_or_none(rates.ops),
        share(rates.hit_share()),
        used,
        vitals.resident_bytes.map_or_else(String::new, |bytes| size(bytes as f64)),
        number(vitals.items),
        number(vitals.connections),
        count_or_none(rates.evicted),
        share(rates.cpu),
    ]
}

fn draw_lists(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let parts = [Constraint::Fill(5), Constraint::Fill(3), Constraint::Fill(4)];
    let [commands, structures, right] = Layout::horizontal(parts).areas(area);
    draw_commands(frame, commands, sample);
    draw_structures(frame, structures, sample);
    let is_hot = sample.nodes.iter().flatten().any(|node| !node.vitals.hot.is_empty());
    let is_slow = sample.nodes.iter().flatten().any(|node| !node.vitals.slow.is_empty());
    match (is_hot, is_slow) {
        (true, true) => {
            let [top, bottom] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(right);
            draw_hot(frame, top, sample);
            draw_slow(frame, bottom, sample);
        }
        (false, true) => draw_slow(frame, right, sample),
        _ => draw_hot(frame, right, sample),
    }
}

fn draw_commands(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let commands = sample.nodes.iter().flatten().flat_map(|node| &node.rates.commands).take(ROWS_MAX);
    let rows = commands.map(|command| {
        let told = |time: Option<f64>| time.map_or_else(String::new, us);
        let Command { name, a_second, mean_us, .. } = command;
        Row::new(vec![name.clone(), count(*a_second), us(*mean_us), told(command.p50_us), told(command.p99_us)])
    });
    let header = Row::new(["command", "/s", "mean", "p50", "p99"]).style(Style::new().add_modifier(Modifier::BOLD));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let block = Block::bordered().title("commands, by the time they took");
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

fn draw_structures(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let block = Block::bordered().title("structures");
    let Some(structures) = &sample.structures else {
        frame.render_widget(Paragraph::new("not counted yet").block(block), area);
        return;
    };
    let rows = structures.iter().map(|(kind, number)| Row::new(vec![(*kind).to_owned(), count(*number as f64)]));
    frame.render_widget(Table::new(rows, [Constraint::Fill(1), Constraint::Length(9)]).block(block), area);
}

fn draw_hot(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let mut hot: Vec<_> = sample.nodes.iter().flatten().flat_map(|node| &node.vitals.hot).collect();
    hot.sort_by_key(|hot| std::cmp::Reverse(hot.count));
    let block = Block::bordered().title("hot keys");
    if hot.is_empty() {
        let text = "this server does not tell; `larder serve` does";
        frame.render_widget(Paragraph::new(text).block(block), area);
        return;
    }
    let row = |hot: &larder::survey::Hot| {
        Row::new(vec![Shown(&hot.key).to_string(), format!("≤ {}", count(hot.count as f64))])
    };
    let rows = hot.into_iter().take(ROWS_MAX).map(row);
    frame.render_widget(Table::new(rows, [Constraint::Fill(1), Constraint::Length(11)]).block(block), area);
}

fn draw_slow(frame: &mut Frame<'_>, area: Rect, sample: &Sample) {
    let mut slow: Vec<_> = sample.nodes.iter().flatten().flat_map(|node| &node.vitals.slow).collect();
    slow.sort_by_key(|slow| std::cmp::Reverse(slow.at_s));
    let row = |slow: &larder::survey::Slow| Row::new(vec![us(slow.us as f64), Shown(&slow.what).to_string()]);
    let rows = slow.into_iter().take(ROWS_MAX).map(row);
    let block = Block::bordered().title("slow commands, the latest first");
    frame.render_widget(Table::new(rows, [Constraint::Length(9), Constraint::Fill(1)]).block(block), area);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder::survey::{CommandTimes, Hot, Slow, Vitals};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::screen::sample::Rates;

    fn drawn(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| state.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn sample() -> Sample {
        let mut vitals = Vitals::of("cache:6379", "redis 7.0.15");
        (vitals.used_bytes, vitals.limit_bytes, vitals.uptime_s) = (Some(1_500_000), Some(3_000_000), Some(3_700));
        vitals.commands = vec![CommandTimes::default()];
        vitals.hot = vec![Hot { key: b"ho\x1b[2Jt".to_vec(), count: 6_400, over: 64 }];
        vitals.slow = vec![Slow { at_s: 1, us: 12_000, what: b"KEYS *".to_vec() }];
        let command =
            Command { name: "get".to_owned(), a_second: 900.0, mean_us: 1.5, p50_us: None, p99_us: Some(9.0) };
        let rates = Rates {
            ops: Some(1_000.0),
            hits: Some(3.0),
            misses: Some(1.0),
            commands: vec![command],
            ..Rates::default()
        };
        let down = larder::Error::new(larder::ErrorKind::Unavailable, "connection refused");
        let structures = Some([("counter", 12), ("set", 3)].into());
        let nodes = vec![Ok(Node { vitals, rates }), Err(down)];
        Sample { interval: Duration::from_secs(1), nodes, round_trip: Ok(Duration::from_micros(80)), structures }
    }

    #[test]
    fn all_that_was_measured_is_on_the_screen_and_nothing_that_a_key_says_to_a_terminal() {
        let mut state = State::new("redis 7.0.15".to_owned());
        assert!(drawn(&state, 60, 5).contains("asking"));
        state.take(sample());
        let screen = drawn(&state, 140, 40);
        for word in [
            "cache:6379",
            "1,000",
            "75 %",
            "1.50 MB of 3.00 MB",
            "1h 1m",
            "connection refused",
            "get",
            "900",
            "1.5 µs",
            "9.0 µs",
            "counter",
            "12",
            "6,400",
            "KEYS *",
            "12.0 ms",
            "a get takes 80.0 µs",
        ] {
            assert!(screen.contains(word), "{word} is not in:\n{screen}");
        }
        assert!(!screen.contains('\x1b'), "{screen}");
    }

    #[test]
    fn a_small_terminal_does_no_harm() {
        let mut state = State::new("memory".to_owned());
        (0..500).for_each(|_| state.take(sample()));
        assert_eq!(state.history.len(), HISTORY_MAX);
        for (width, height) in [(1, 1), (20, 3), (80, 10), (300, 100)] {
            drawn(&state, width, height);
        }
    }
}
