//! A run's results, as they are kept in the JSON file.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::contest::{Contest, Limit, Verdict};
use crate::machine::Machine;

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Section {
    /// Reads and writes through the network, against other clients.
    Memcached,
    /// The same on Redis, and structures against those of other crates.
    Redis,
    /// The store in the process, against maps and caches.
    Memory,
    /// Its memory, against theirs.
    Overhead,
    /// The store in a folder, against a bare log and Redis.
    Durable,
    /// Our server, against memcached.
    Server,
    /// Each structure, against the raw ops it needs.
    Structures,
    /// An op's cost, by the size of its structure.
    Growth,
    /// The chapter on memory: its three jobs.
    Chapter,
}

impl Section {
    pub(crate) const ALL: [Section; 9] = [
        Section::Memcached,
        Section::Redis,
        Section::Memory,
        Section::Overhead,
        Section::Durable,
        Section::Server,
        Section::Structures,
        Section::Growth,
        Section::Chapter,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Section::Memcached => "The memcached client",
            Section::Redis => "Redis and Valkey",
            Section::Memory => "The store in the process",
            Section::Overhead => "Memory an item",
            Section::Durable => "The store in a folder",
            Section::Server => "The server",
            Section::Structures => "Structures over raw ops",
            Section::Growth => "As structures grow",
            Section::Chapter => "The chapter on memory",
        }
    }
}

/// What one benchmark found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Findings {
    pub(crate) section: Section,
    /// How it was measured, read off the run.
    pub(crate) how: String,
    pub(crate) machine: Machine,
    pub(crate) contests: Vec<Contest>,
    /// The tries that chose each peer's pool size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pools: Vec<Contest>,
}

/// All that was found, a benchmark after the other.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) findings: Vec<Findings>,
}

impl Report {
    /// An earlier report, or an empty one where there is no such file.
    pub(crate) fn load(path: &Path) -> Result<Report> {
        if !path.exists() {
            return Ok(Report::default());
        }
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        write(path, &(serde_json::to_string_pretty(self)? + "\n"))
    }

    /// Puts contests in the place of earlier ones of the same benchmark and name. The others stay, with what is said of how and on what they were measured; those of one
    /// run stand together.
    pub(crate) fn put(&mut self, findings: Findings) {
        let Findings { section, how, machine, contests, pools } = findings;
        for earlier in self.findings.iter_mut().filter(|earlier| earlier.section == section) {
            earlier.contests.retain(|contest| contests.iter().all(|anew| anew.name != contest.name));
            earlier.pools.retain(|pool| pools.iter().all(|anew| anew.name != pool.name));
        }
        let of_this_run =
            |earlier: &&mut Findings| earlier.section == section && earlier.how == how && earlier.machine == machine;
        match self.findings.iter_mut().find(of_this_run) {
            Some(run) => {
                run.contests.extend(contests);
                run.pools.extend(pools);
            }
            None => self.findings.push(Findings { section, how, machine, contests, pools }),
        }
        self.findings.retain(|findings| !findings.contests.is_empty());
        self.findings.sort_by_key(|findings| findings.section);
    }

    /// Forgets a benchmark: all of it is measured anew.
    pub(crate) fn forget(&mut self, section: Section) {
        self.findings.retain(|earlier| earlier.section != section);
    }

    /// Goals that were missed.
    pub(crate) fn missed(&self) -> usize {
        let verdicts =
            self.findings.iter().flat_map(|findings| &findings.contests).flat_map(|contest| &contest.verdicts);
        verdicts.filter(|verdict| verdict.met == Some(false)).count()
    }
}

impl Verdict {
    /// Such as `larder 4.91x of async-memcached (4.50 to 5.30; all 3.90 to 5.70)`.
    pub(crate) fn line(&self, contest: &Contest) -> String {
        let value = self.value;
        let Some(against) = &self.against else {
            let [median, min, max] = [value.median, value.min, value.max].map(|figure| contest.unit.show(figure));
            return format!("{} {median} ({min} to {max})", self.ours);
        };
        let (low, high, min, max) = (value.low, value.high, value.min, value.max);
        format!("{} {:.2}x of {against} ({low:.2} to {high:.2}; all {min:.2} to {max:.2})", self.ours, value.median)
    }

    /// Such as `>= 4.00x`; empty without a goal.
    pub(crate) fn goal(&self) -> String {
        let suffix = if self.against.is_some() { "x" } else { "" };
        match self.limit {
            Some(Limit::AtLeast(least)) => format!(">= {least}{suffix}"),
            Some(Limit::AtMost(most)) => format!("<= {most}{suffix}"),
            None => String::new(),
        }
    }

    /// `met`, `MISSED` or nothing.
    pub(crate) fn outcome(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        }
    }
}

/// Writes a file, and the folders it stands in.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::contest::{Unit, once};
    use crate::progress::Progress;

    /// Read once: its load changes from moment to moment.
    static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::read);

    /// What a run at this time found.
    fn run(at: u64, section: Section, names: &[&str]) -> Findings {
        let contest = |name: &&str| once(&Progress::silent(), name, Unit::Millis, vec![("x", String::new(), 1.0)], &[]);
        let machine = Machine { at, ..MACHINE.clone() };
        let contests = names.iter().map(contest).collect();
        Findings { section, how: "once".to_owned(), machine, contests, pools: Vec::new() }
    }

    fn names(report: &Report) -> Vec<(u64, Vec<&str>)> {
        let of = |findings: &Findings| findings.machine.at;
        let each = report.findings.iter();
        each.map(|one| (of(one), one.contests.iter().map(|contest| &contest.name[..]).collect())).collect()
    }

    #[test]
    fn only_contests_that_were_held_anew_are_replaced() {
        let mut report = Report::default();
        report.put(run(1, Section::Chapter, &["a", "b", "c"]));
        report.put(run(1, Section::Chapter, &["d"]));
        report.put(run(1, Section::Memory, &["a"]));
        assert_eq!(names(&report), [(1, vec!["a"]), (1, vec!["a", "b", "c", "d"])]);
        report.put(run(2, Section::Chapter, &["b"]));
        report.put(run(2, Section::Chapter, &["d"]));
        assert_eq!(names(&report), [(1, vec!["a"]), (1, vec!["a", "c"]), (2, vec!["b", "d"])]);
        report.put(run(3, Section::Chapter, &["a", "c"]));
        assert_eq!(names(&report), [(1, vec!["a"]), (2, vec!["b", "d"]), (3, vec!["a", "c"])]);
        // A job that found nothing changes nothing.
        report.put(run(4, Section::Chapter, &[]));
        report.forget(Section::Memory);
        assert_eq!(names(&report), [(2, vec!["b", "d"]), (3, vec!["a", "c"])]);
    }
}
