//! All that was found at a commit, as the page of results: what issue 8 asks for at its head, and what follows by part.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::MUTANTS;
use super::record::{Extent, Run, left};
use crate::mutants::Files;

/// What is counted as a fault that was caused begins so.
const FAULTS: &str = "faults: ";
/// What is counted of one planted bug begins so, and goes on with its name and one of these.
const PLANTED: &str = "planted: ";
const PLANTED_WHAT: [&str; 3] = [": hunts", ": caught", ": seeds until caught"];
/// What is counted of the shares of a work on the durable store begins so, and goes on with its setting and, behind these words, its number.
const SHARES: &str = "crashed shares: ";
const SHARES_WORK: &str = ", work ";
/// What is counted of the executions of a target that is fuzzed begins so, and goes on with its name.
const FUZZED: &str = "fuzz executions: ";
/// A work that has so many was crashed at all its points.
pub(super) const SHARES_OF_A_WORK: u64 = 16;
/// A setting that says so is of works with large values, of whose points a part is drawn.
const SHARES_DRAWN: &str = " (a twelfth of the points)";
/// Settings of `sync` that works with small values are of: always, now and then, never.
const SETTINGS: usize = 3;
/// Planted bugs that there are at the least: one that is taken away must not look like one that is caught.
const PLANTS_MIN: usize = 20;
/// What says that a plant was not found in the seeds that it is given.
const HUNTS_MISSED: &str = "hunts that missed";
/// Subjects of whose mutants so many of a hundred are to be killed.
const KILLED_SUBJECTS: [&str; 3] = ["core", "layouts", "structures"];
const KILLED_PERCENT_MIN: f64 = 95.0;

/// Of runs that do not say it.
const UNKNOWN_MACHINE: &str = "not recorded";

/// The page, of runs and of the files of each subject of mutants.
pub(super) fn page(runs: &[Run], files: &BTreeMap<&str, Files>, commit: &str) -> String {
    let (mutants, runs): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| run.part == MUTANTS);
    let parts: BTreeSet<&str> = runs.iter().map(|run| run.part.as_str()).collect();
    let mut page = format!(
        "# What the proof found\n\n`cargo xtask prove` wrote this page: all runs of its parts that count at commit {commit}, added up. \
         How it is run, and what each part does: [CONTRIBUTING.md](../CONTRIBUTING.md#the-proof).\n"
    );
    page.push_str(&machines(runs.iter().chain(&mutants)));
    let subjects = subjects(&mutants, files);
    page.push_str(&must_reach(&runs, &subjects));
    page.push_str(&table_of_parts(&runs, &parts));
    page.push_str(&fuzzed(&runs));
    page.push_str(&moved(runs.iter().chain(&mutants)));
    page.push_str(&earlier(runs.iter().chain(&mutants)));
    page.push_str(&table_of_planted(&runs));
    page.push_str(&table_of_mutants(&subjects));
    let is_done = |what: &str| ![FAULTS, PLANTED, SHARES].iter().any(|apart| what.starts_with(apart));
    page.push_str(&counts(&runs, &parts, "What was done", is_done));
    page.push_str(&counts(&runs, &parts, "Faults that were caused", |what| what.starts_with(FAULTS)));
    page.push_str(&listed("Violations", runs.iter().flat_map(|run| &run.told)));
    page.push_str(&listed("Mutants that survive", left(&mutants)));
    page
}

/// Where they ran, and with what.
fn machines<'a>(runs: impl Iterator<Item = &'a &'a Run>) -> String {
    let mut machines: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for run in runs {
        let counts = machines.entry(run.on.as_deref().unwrap_or(UNKNOWN_MACHINE)).or_default();
        counts[usize::from(run.extent.file().is_some())] += 1;
    }
    let told = |(machine, [runs, files]): (&str, [usize; 2])| match files {
        0 => format!("- {runs} of them: {machine}\n"),
        _ => format!("- {runs} of them, and {files} of mutants of a file: {machine}\n"),
    };
    let lines = machines.into_iter().map(told);
    format!("\nThe runs, and what they ran on:\n\n{}", lines.collect::<String>())
}

/// A target of issue 8, and how near it is.
struct Target {
    what: &'static str,
    figure: String,
    met: Met,
}

/// Whether a target is met.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    Yes,
    No,
    /// By all that was tried, which is not all that there is.
    OfASample,
}

impl Met {
    fn as_str(self) -> &'static str {
        match self {
            Met::Yes => "yes",
            Met::No => "**no**",
            Met::OfASample => "of a sample",
        }
    }
}

impl From<bool> for Met {
    fn from(is_met: bool) -> Met {
        if is_met { Met::Yes } else { Met::No }
    }
}

fn must_reach(runs: &[&Run], subjects: &BTreeMap<&str, Killed>) -> String {
    let mut table = "\n## Must reach\n\n| what | figure | met |\n|---|---|---|\n".to_owned();
    for Target { what, figure, met } in targets(runs, subjects) {
        // A string takes whatever is written.
        let _ = writeln!(table, "| {what} | {figure} | {} |", met.as_str());
    }
    table
}

fn targets(runs: &[&Run], subjects: &BTreeMap<&str, Killed>) -> Vec<Target> {
    let of = |what: &str| -> u64 { runs.iter().map(|run| run.count(what)).sum() };
    // Of the parts that count something, what they found that must not be.
    let wrong = |what: &str| -> u64 {
        let counting: BTreeSet<&str> =
            runs.iter().filter(|run| run.counts.contains_key(what)).map(|run| run.part.as_str()).collect();
        runs.iter().filter(|run| counting.contains(run.part.as_str())).map(|run| run.violations).sum()
    };
    let target = |what, figure, is_met: bool| Target { what, figure, met: is_met.into() };
    let with = |what: &str, wrong: u64, name: &str| format!("{}; {} {name}", grouped(of(what)), grouped(wrong));
    let ambiguous = wrong("ambiguous operations fully checked");
    let violations = runs.iter().map(|run| run.violations).sum();
    let silent = runs.iter().map(|run| run.silent_losses()).sum();
    let restarts = wrong("restart cycles");
    // Of a history with a setback most checks stop: it counts as checked, and not here.
    let (full, all) = (of("operations fully checked"), grouped(of("operations checked")));
    let unknown = of("ambiguous operations fully checked");
    let (stalls, stale) = ("faults: holder stalled past its lease", of("stale fenced writes taken"));
    vec![
        target(
            "operations fully checked ≥ 20,000,000, violations 0",
            format!("{} of {all} that were checked; {} violations, in all parts", grouped(full), grouped(violations)),
            full >= 20_000_000 && violations == 0,
        ),
        target(
            "real servers killed and started again ≥ 2,000 times, losses in silence 0",
            format!("{}, {} violations", with("restart cycles", silent, "in silence"), grouped(restarts)),
            of("restart cycles") >= 2_000 && silent == 0 && restarts == 0,
        ),
        target(
            "ambiguous operations fully checked ≥ 200,000, doubled or lost 0",
            format!(
                "{} of {} that there were; {} violations by the checkers that would tell one",
                grouped(unknown),
                grouped(of("ambiguous operations")),
                grouped(ambiguous)
            ),
            unknown >= 200_000 && ambiguous == 0,
        ),
        target(
            "holders stalled past their lease ≥ 20,000, stale fenced writes taken 0",
            with(stalls, stale, "taken"),
            of(stalls) >= 20_000 && stale == 0 && wrong(stalls) == 0,
        ),
        whole_works(runs),
        target(
            "simulation seeds ≥ 10,000",
            grouped(of("simulation seeds")),
            of("simulation seeds") >= 10_000 && wrong("simulation seeds") == 0,
        ),
        every_fault(runs),
        planted_caught(runs),
        mutants_killed(subjects),
    ]
}

/// Kinds of faults that a part can cause, of which it counts those that never came as 0.
fn every_fault(runs: &[&Run]) -> Target {
    let faults = summed(runs, |what| what.strip_prefix(FAULTS));
    let never: Vec<&str> = faults.iter().filter(|(_, times)| **times == 0).map(|(what, _)| what.as_str()).collect();
    let missed = if never.is_empty() { String::new() } else { format!("; never: {}", never.join("; ")) };
    Target {
        what: "every kind of fault that there is caused",
        figure: format!("{} of {}{missed}", faults.len() - never.len(), faults.len()),
        met: (!faults.is_empty() && never.is_empty()).into(),
    }
}

/// Crash points of the durable store's work: of each setting, the works of which all shares were done, by whatever runs. Those with small values are crashed at
/// every point then, and those with large ones at points that were drawn.
fn whole_works(runs: &[&Run]) -> Target {
    let (mut small, mut large): (BTreeMap<String, u64>, BTreeMap<String, u64>) = Default::default();
    for (work, shares) in summed(runs, |what| what.strip_prefix(SHARES)) {
        let setting = work.split(SHARES_WORK).next().unwrap_or_default();
        let (sizes, setting) = match setting.strip_suffix(SHARES_DRAWN) {
            Some(setting) => (&mut large, setting),
            None => (&mut small, setting),
        };
        *sizes.entry(setting.to_owned()).or_default() += u64::from(shares == SHARES_OF_A_WORK);
    }
    let figure = |what: &str, settings: &BTreeMap<String, u64>| {
        let works: Vec<String> = settings.iter().map(|(name, works)| format!("{name}: {}", grouped(*works))).collect();
        if works.is_empty() { format!("{what}: 0") } else { format!("{what}: {}", works.join(", ")) }
    };
    let crashing = runs.iter().filter(|run| run.counts.keys().any(|what| what.starts_with(SHARES)));
    let violations: u64 = crashing.map(|run| run.violations).sum();
    let is_whole = |settings: &BTreeMap<String, u64>| settings.values().all(|works| *works > 0);
    Target {
        what: "works on the durable store crashed: small ones at every point, of each setting, large ones at a twelfth of them, drawn",
        figure: format!("{}; {}", figure("small, complete", &small), figure("large, sampled", &large)),
        met: (small.len() >= SETTINGS && is_whole(&small) && is_whole(&large) && violations == 0).into(),
    }
}

fn planted_caught(runs: &[&Run]) -> Target {
    let plants = plants(runs);
    let caught = plants.values().filter(|[hunts, caught, _]| hunts == caught && *hunts > 0).count();
    let hunts: u64 = plants.values().map(|[hunts, ..]| hunts).sum();
    let hunting = runs.iter().filter(|run| run.counts.keys().any(|what| what.starts_with(PLANTED)));
    // What is not missed is found where no bug was planted.
    let alarms: u64 = hunting.map(|run| run.violations.saturating_sub(run.count(HUNTS_MISSED))).sum();
    let (hunts, alarms_shown) = (grouped(hunts), grouped(alarms));
    Target {
        what: "every planted bug caught, in each hunt for it, and nothing without the bug",
        figure: format!("{caught} of {}, in {hunts} hunts; {alarms_shown} without the bug", plants.len()),
        met: (plants.len() >= PLANTS_MIN && caught == plants.len() && alarms == 0).into(),
    }
}

fn mutants_killed(subjects: &BTreeMap<&str, Killed>) -> Target {
    let figure = |subject: &&str| match subjects.get(subject) {
        Some(killed) => {
            let (percent, viable) = (killed.percent(), grouped(killed.of("viable")));
            let sample = if killed.is_whole() {
                String::new()
            } else {
                format!(", a sample: {:.1} % of the code tried", killed.percent_tried())
            };
            let late = match killed.late {
                0 => String::new(),
                _ => format!(" ({:.1} % by tests that were there)", killed.percent_at_first()),
            };
            format!("{subject} {percent:.1} % of {viable}{late}{sample}")
        }
        None => format!("{subject} 0"),
    };
    let of = |is_it: fn(&Killed) -> bool| KILLED_SUBJECTS.iter().all(|name| subjects.get(name).is_some_and(is_it));
    Target {
        what: "viable mutants killed ≥ 95 % in core, layouts and structures",
        figure: KILLED_SUBJECTS.iter().map(figure).collect::<Vec<_>>().join("; "),
        met: match (of(Killed::is_enough), of(Killed::is_whole)) {
            (true, true) => Met::Yes,
            (true, false) => Met::OfASample,
            (false, _) => Met::No,
        },
    }
}

fn table_of_parts(runs: &[&Run], parts: &BTreeSet<&str>) -> String {
    let mut table = "\n## Parts\n\n| part | runs | minutes | violations | seeds |\n|---|---|---|---|---|\n".to_owned();
    for part in parts {
        let its: Vec<&&Run> = runs.iter().filter(|run| run.part == **part).collect();
        let violations = grouped(its.iter().map(|run| run.violations).sum());
        let (count, minutes) = (its.len(), minutes(its.iter().map(|run| run.seconds)));
        let _ = writeln!(table, "| {part} | {count} | {minutes} | {violations} | {} |", seeds(&its));
    }
    table
}

/// Which target was fuzzed least, and how much the server was: of its executions each is a session.
fn fuzzed(runs: &[&Run]) -> String {
    let targets = summed(runs, |what| what.strip_prefix(FUZZED));
    let Some((name, least)) = targets.iter().min_by_key(|(_, times)| **times) else { return String::new() };
    let server = grouped(targets.get("server").copied().unwrap_or(0));
    let (all, least) = (targets.len(), grouped(*least));
    format!(
        "\nOf {all} targets that were fuzzed, \"{name}\" was least, with {least} executions; the server was with {server}.\n"
    )
}

fn minutes(seconds: impl Iterator<Item = u64>) -> String {
    format!("{:.1}", seconds.sum::<u64>() as f64 / 60.0)
}

/// The seeds of runs; those that went on from one another in one piece.
fn seeds(runs: &[&&Run]) -> String {
    let ranges = runs.iter().filter_map(|run| match run.extent {
        Extent::Seeds { first, count } => Some((first, count)),
        Extent::Mutants { .. } | Extent::Left { .. } => None,
    });
    let mut ranges: Vec<(u64, u64)> = ranges.collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let goes_on = before.0.saturating_add(before.1) == next.0;
        before.1 += if goes_on { next.1 } else { 0 };
        goes_on
    });
    let shown = ranges.into_iter().map(|(first, count)| Extent::Seeds { first, count }.to_string());
    shown.collect::<Vec<_>>().join(", ")
}

/// Runs during which the tree became another.
fn moved<'a>(runs: impl Iterator<Item = &'a &'a Run>) -> String {
    let moved = runs.filter_map(|run| Some(format!("{} {} ({})", run.part, run.extent, run.moved.as_ref()?)));
    let moved: Vec<String> = moved.collect();
    if moved.is_empty() {
        return String::new();
    }
    format!("\nWhile these ran, the tree became another; what ran was of this commit: {}.\n", moved.join(", "))
}

/// Which runs are of an earlier commit, by it.
fn earlier<'a>(runs: impl Iterator<Item = &'a &'a Run>) -> String {
    let mut at: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for run in runs {
        let Some(commit) = &run.earlier else { continue };
        let what = run.extent.file().map_or_else(|| run.part.clone(), |file| format!("mutants of {}", folder_of(file)));
        at.entry(commit).or_default().insert(what);
    }
    if at.is_empty() {
        return String::new();
    }
    let list = |whats: BTreeSet<String>| whats.into_iter().collect::<Vec<_>>().join(", ");
    let at: Vec<String> = at.into_iter().map(|(commit, whats)| format!("{commit}: {}", list(whats))).collect();
    format!(
        "\nThese ran at an earlier commit, since which nothing of theirs has changed but tests and comments: of mutants, not their file. {}.\n",
        at.join("; ")
    )
}

/// The folder of the package of a file.
fn folder_of(file: &str) -> &str {
    file.split("/src/").next().unwrap_or(file)
}

/// Of each planted bug the hunts, those that caught it, and the seeds that these took.
fn plants(runs: &[&Run]) -> BTreeMap<String, [u64; 3]> {
    let mut plants: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for (at, what) in PLANTED_WHAT.iter().enumerate() {
        for (name, times) in summed(runs, |key| key.strip_prefix(PLANTED)?.strip_suffix(what)) {
            plants.entry(name).or_default()[at] = times;
        }
    }
    plants
}

fn table_of_planted(runs: &[&Run]) -> String {
    let plants = plants(runs);
    if plants.is_empty() {
        return String::new();
    }
    let mut table = "\n## Planted bugs\n\n| bug | hunts | caught | seeds a hunt |\n|---|---|---|---|\n".to_owned();
    for (name, [hunts, caught, seeds]) in &plants {
        let mean = *seeds as f64 / (*caught).max(1) as f64;
        let _ = writeln!(table, "| {name} | {} | {} | {mean:.1} |", grouped(*hunts), grouped(*caught));
    }
    table
}

/// What became of a subject's mutants.
#[derive(Default)]
struct Killed {
    /// The files that were tried, and how many there are; and their lines.
    files: [usize; 2],
    lines: [usize; 2],
    seconds: u64,
    /// How many of the killed survived all tests of the commit that they were tried at first.
    late: u64,
    counts: BTreeMap<String, u64>,
}

impl Killed {
    fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Whether all its files were tried.
    fn is_whole(&self) -> bool {
        self.files[0] == self.files[1]
    }

    fn percent_tried(&self) -> f64 {
        100.0 * self.lines[0] as f64 / self.lines[1].max(1) as f64
    }

    /// Of those that a sample leaves out this says more: tests are written for those that it has.
    fn percent_at_first(&self) -> f64 {
        self.percent_of_viable(self.of("killed") - self.late)
    }

    /// Whether enough are killed; of a sample, by the tests that were there when it was drawn.
    fn is_enough(&self) -> bool {
        KILLED_PERCENT_MIN <= if self.is_whole() { self.percent() } else { self.percent_at_first() }
    }

    fn percent(&self) -> f64 {
        self.percent_of_viable(self.of("killed"))
    }

    fn percent_of_viable(&self, mutants: u64) -> f64 {
        100.0 * mutants as f64 / self.of("viable").max(1) as f64
    }
}

/// What became of the mutants of each subject of which some were tried.
fn subjects<'a>(mutants: &[&Run], files: &BTreeMap<&'a str, Files>) -> BTreeMap<&'a str, Killed> {
    let of = |files: &Files| {
        let is_its = |run: &&&Run| run.extent.file().is_some_and(|file| files.contains_key(file));
        let its: Vec<&Run> = mutants.iter().filter(is_its).copied().collect();
        (!its.is_empty()).then(|| killed(&its, files))
    };
    files.iter().filter_map(|(subject, files)| Some((*subject, of(files)?))).collect()
}

/// What these runs of mutants of files come to.
fn killed(runs: &[&Run], files: &Files) -> Killed {
    let tried = |run: &&Run| match &run.extent {
        Extent::Mutants { file } => files.get(file).copied(),
        Extent::Left { .. } | Extent::Seeds { .. } => None,
    };
    let tried: Vec<usize> = runs.iter().filter_map(tried).collect();
    let mut killed = Killed {
        files: [tried.len(), files.len()],
        lines: [tried.iter().sum(), files.values().sum()],
        seconds: runs.iter().map(|run| run.seconds).sum(),
        ..Killed::default()
    };
    for (what, times) in runs.iter().flat_map(|run| &run.counts) {
        *killed.counts.entry(what.clone()).or_default() += times;
    }
    // Some were settled by a later run, each of them once.
    let survivors: BTreeSet<&String> = runs.iter().flat_map(|run| &run.survivors).collect();
    let settled = |names: fn(&Run) -> &Vec<String>| {
        let names = runs.iter().flat_map(|run| names(run)).filter(|name| survivors.contains(name));
        names.collect::<BTreeSet<_>>().len() as u64
    };
    let all = settled(|run| &run.killed);
    // By tests of the same commit, which were not written for it.
    let in_time = runs.iter().flat_map(|run| run.survivors.iter().map(|name| (name, &run.earlier)));
    let in_time = in_time
        .filter(|&(name, commit)| runs.iter().any(|other| other.earlier == *commit && other.killed.contains(name)));
    killed.late = all - in_time.map(|(name, _)| name).collect::<BTreeSet<_>>().len() as u64;
    *killed.counts.entry("killed".to_owned()).or_default() += all;
    *killed.counts.entry("argued".to_owned()).or_default() += settled(|run| &run.argued);
    killed.counts.insert("survive".to_owned(), left(runs).count() as u64);
    killed
}

fn table_of_mutants(subjects: &BTreeMap<&str, Killed>) -> String {
    if subjects.is_empty() {
        return String::new();
    }
    let mut table = "\n## Mutants\n\nKilled are those that a test failed on, or never ended with: one of their own package's, or, of structures and layouts, of the conformance suite over the memory store; at a second trial, one that came since. Such come for the very mutants that survive: of a sample it says what the tests did that were there when it was tried first. They are tried by the file, and what came of one counts while the file is the same but for its tests, and all tests are there that failed on its mutants. The files of layouts are structures', too. Those that survive, and why no test can see it: [mutants.md](mutants.md).\n\n\
                     | subject | files | minutes | of the code | killed of viable | | argued | survive | do not build |\n\
                     |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (subject, killed) in subjects {
        let of = |what| grouped(killed.of(what));
        let ([tried, files], minutes, percent) =
            (killed.files, minutes([killed.seconds].into_iter()), killed.percent_tried());
        let (share, viable) = (format!("{} of {}", of("killed"), of("viable")), killed.percent());
        let rest = ["argued", "survive", "do not build"].map(of).join(" | ");
        let _ = writeln!(
            table,
            "| {subject} | {tried} of {files} | {minutes} | {percent:.1} % | {share} | {viable:.1} % | {rest} |"
        );
    }
    table
}

/// The sums of what is counted under names of which `name` makes something.
fn summed<'a>(runs: &[&'a Run], name: impl Fn(&'a str) -> Option<&'a str>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (what, times) in runs.iter().flat_map(|run| &run.counts) {
        if let Some(name) = name(what) {
            *sums.entry(name.to_owned()).or_default() += times;
        }
    }
    sums
}

/// A table of counts, a column a part and one for their sum; a part that counts no such thing has no figure there.
fn counts(runs: &[&Run], parts: &BTreeSet<&str>, title: &str, wanted: impl Fn(&str) -> bool) -> String {
    let whats: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.counts.keys()).map(String::as_str).filter(|what| wanted(what)).collect();
    if whats.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = parts.iter().copied().collect();
    let mut table =
        format!("\n## {title}\n\n| what | all | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for what in whats {
        let of = |part: Option<&str>| -> Option<u64> {
            let its = runs.iter().filter(|run| part.is_none_or(|part| run.part == part));
            its.filter_map(|run| run.counts.get(what).copied()).reduce(|sum, times| sum + times)
        };
        let cell = |part| of(part).map(grouped).unwrap_or_default();
        let cells: Vec<String> = parts.iter().map(|part| cell(Some(part))).collect();
        let _ = writeln!(table, "| {} | {} | {} |", what.trim_start_matches(FAULTS), cell(None), cells.join(" | "));
    }
    table
}

fn listed(title: &str, lines: impl Iterator<Item = impl AsRef<str>>) -> String {
    let lines: Vec<String> = lines.map(|line| format!("- {}\n", line.as_ref().replace('\n', " "))).collect();
    if lines.is_empty() { String::new() } else { format!("\n## {title}\n\n{}", lines.concat()) }
}

/// A count as it is read: `1,234,567`.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(run: Value) -> Run {
        Run::parse(&run.to_string()).unwrap()
    }

    fn counted(part: &str, seed: u64, violations: u64, counts: Value) -> Run {
        let told: &[&str] = if violations > 0 { &["seed 3: lost\nin silence"] } else { &[] };
        let findings = json!({"counts": counts, "violations": violations, "told": told});
        parsed(json!({"part": part, "seed": seed, "seeds": 10, "seconds": 90, "findings": findings}))
    }

    fn run(part: &str, seed: u64, violations: u64) -> Run {
        counted(part, seed, violations, json!({"operations checked": 1_500_000, "faults: cut": 7}))
    }

    fn mutants(file: &str, counts: [u64; 3], survivors: &[&str]) -> Run {
        let [viable, killed, argued] = counts;
        let survive = viable - killed - argued;
        let counts =
            json!({"viable": viable, "killed": killed, "argued": argued, "survive": survive, "do not build": 0});
        let findings = json!({"counts": counts, "violations": 0, "told": [], "survivors": survivors});
        parsed(json!({"part": "mutants", "file": file, "seconds": 60, "findings": findings}))
    }

    /// Of two subjects one file is the same.
    fn page_of(runs: &[Run]) -> String {
        let files = |files: &[(&str, usize)]| files.iter().map(|(file, lines)| ((*file).to_owned(), *lines)).collect();
        let core = files(&[("a.rs", 30), ("b.rs", 10), ("c.rs", 40)]);
        let (layouts, structures) = (files(&[("l.rs", 1)]), files(&[("l.rs", 1), ("s.rs", 4)]));
        page(runs, &BTreeMap::from([("core", core), ("layouts", layouts), ("structures", structures)]), "abc")
    }

    /// The line of a target.
    fn target<'p>(page: &'p str, what: &str) -> &'p str {
        page.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {page}"))
    }

    #[test]
    fn runs_are_counted_by_what_they_ran_on() {
        let on = |machine: &str| Run { on: Some(machine.to_owned()), ..run("histories", 1, 0) };
        let file = Run { on: Some("one".to_owned()), ..mutants("a.rs", [1, 1, 0], &[]) };
        let page = page_of(&[on("one"), on("another"), run("crashes", 1, 0), on("one"), file]);
        let told =
            "\n\n- 1 of them: another\n- 1 of them: not recorded\n- 2 of them, and 1 of mutants of a file: one\n\n";
        assert!(page.contains(told), "{page}");
    }

    #[test]
    fn runs_of_a_part_add_up_and_violations_are_told() {
        let page = page_of(&[run("histories", 1, 0), run("histories", 40, 1), run("crashes", 3, 0)]);
        assert!(page.contains("| histories | 2 | 3.0 | 1 | 1 to 10, 40 to 49 |"), "{page}");
        assert!(page.contains("| operations checked | 4,500,000 | 1,500,000 | 3,000,000 |"), "{page}");
        assert!(page.contains("| cut | 21 | 7 | 14 |"), "{page}");
        assert!(page.contains("- seed 3: lost in silence"), "{page}");
        let gone_on = page_of(&[run("histories", 11, 0), run("histories", 1, 0), run("histories", 30, 0)]);
        assert!(gone_on.contains("| 0 | 1 to 20, 30 to 39 |"), "{gone_on}");
    }

    #[test]
    fn the_target_that_was_fuzzed_least_is_told_over_all_runs() {
        let fuzz = |seed, server, urls| {
            let counts =
                json!({"fuzz executions": 99, "fuzz executions: server": server, "fuzz executions: URLs": urls});
            counted("fuzz", seed, 0, counts)
        };
        let page = page_of(&[fuzz(1, 5_000, 10), fuzz(20, 7, 9_000)]);
        let told =
            "Of 2 targets that were fuzzed, \"server\" was least, with 5,007 executions; the server was with 5,007.";
        assert!(page.contains(told), "{page}");
        assert!(!page_of(&[run("histories", 1, 0)]).contains("fuzzed"));
    }

    #[test]
    fn a_zero_that_was_counted_is_shown_and_what_nobody_counted_is_not() {
        let runs = [counted("restarts", 1, 0, json!({"silent losses": 0})), run("histories", 1, 0)];
        let page = page_of(&runs);
        assert!(page.contains("| silent losses | 0 |  | 0 |"), "{page}");
        assert!(target(&page, "losses in silence 0").ends_with("| 0; 0 in silence, 0 violations | **no** |"), "{page}");
    }

    #[test]
    fn what_must_be_reached_is_met_by_figures_without_a_fault() {
        let all = |violations: u64, silent: u64, stale: u64| {
            let histories = json!({"operations checked": 21_000_000, "operations fully checked": 20_000_000,
                "ambiguous operations": 300_000, "ambiguous operations fully checked": 200_000});
            let restarts = json!({"restart cycles": 2_000, "silent losses": silent});
            let stalls = json!({"faults: holder stalled past its lease": 20_000, "stale fenced writes taken": stale});
            page_of(&[
                counted("histories", 1, violations, histories),
                counted("restarts", 1, 0, restarts),
                counted("stalls", 1, 0, stalls),
                counted("simulation", 1, 0, json!({"simulation seeds": 10_000})),
            ])
        };
        let whats =
            ["operations fully checked ≥", "killed and started", "ambiguous", "stalled past", "simulation seeds ≥"];
        let is_met = |page: &str| whats.map(|what| target(page, what).ends_with("| yes |"));
        assert_eq!(is_met(&all(0, 0, 0)), [true; 5]);
        assert_eq!(is_met(&all(1, 0, 0)), [false, true, false, true, true]);
        assert_eq!(is_met(&all(0, 1, 0)), [true, false, true, true, true]);
        assert_eq!(is_met(&all(0, 0, 1)), [true, true, true, false, true]);
        assert_eq!(is_met(&page_of(&[run("histories", 1, 0)])), [false; 5]);
    }

    #[test]
    fn operations_of_which_most_checks_stopped_do_not_count_as_checked() {
        let row = |full: u64| {
            let counts = json!({"operations checked": 30_000_000, "operations fully checked": full});
            target(&page_of(&[counted("histories", 1, 0, counts)]), "operations fully checked ≥").to_owned()
        };
        let few = row(19_999_999);
        assert!(
            few.ends_with("| 19,999,999 of 30,000,000 that were checked; 0 violations, in all parts | **no** |"),
            "{few}"
        );
        assert!(row(20_000_000).ends_with("| yes |"));
    }

    #[test]
    fn a_restart_with_a_violation_is_not_met_though_nothing_was_lost_in_silence() {
        let row = |violations| {
            let counts = json!({"restart cycles": 2_000, "silent losses": 0});
            target(&page_of(&[counted("restarts", 1, violations, counts)]), "killed and started").to_owned()
        };
        assert!(row(0).ends_with("| 2,000; 0 in silence, 0 violations | yes |"));
        assert!(row(1).ends_with("| 2,000; 0 in silence, 1 violations | **no** |"));
    }

    /// A run of hunts for so many planted bugs, the last of which was caught so often of 3 times, and that found so much without a bug.
    fn hunted(plants: usize, caught: u64, alarms: u64) -> String {
        let mut counts = serde_json::Map::new();
        for plant in 0..plants {
            let caught = if plant + 1 == plants { caught } else { 3 };
            for (what, times) in [("hunts", 3), ("caught", caught), ("seeds until caught", 6)] {
                counts.insert(format!("{PLANTED}{plant}: {what}"), times.into());
            }
        }
        counts.insert(HUNTS_MISSED.to_owned(), (3 - caught).into());
        page_of(&[counted("planted", 1, 3 - caught + alarms, Value::Object(counts))])
    }

    #[test]
    fn a_planted_bug_that_one_hunt_missed_is_not_caught() {
        let row = |page: &str| target(page, "every planted bug").to_owned();
        let (all, missed) = (hunted(PLANTS_MIN, 3, 0), row(&hunted(PLANTS_MIN, 2, 0)));
        let hunts = 3 * PLANTS_MIN;
        let (most, of) = (PLANTS_MIN - 1, PLANTS_MIN);
        assert!(row(&all).ends_with(&format!("| {of} of {of}, in {hunts} hunts; 0 without the bug | yes |")), "{all}");
        assert!(
            missed.ends_with(&format!("| {most} of {of}, in {hunts} hunts; 0 without the bug | **no** |")),
            "{missed}"
        );
        assert!(all.contains("| 0 | 3 | 3 | 2.0 |"));
    }

    #[test]
    fn a_kind_of_fault_that_never_came_is_named() {
        let of = |cut: u64| {
            let counts = json!({"faults: cut": cut, "faults: kill": 2, "operations checked": 0});
            let page = page(&[counted("nemesis", 1, 0, counts)], &BTreeMap::new(), "abc");
            target(&page, "every kind of fault").to_owned()
        };
        assert!(of(1).ends_with("| 2 of 2 | yes |"), "{}", of(1));
        assert!(of(0).ends_with("| 1 of 2; never: cut | **no** |"), "{}", of(0));
    }

    #[test]
    fn what_is_found_without_the_bug_and_a_bug_that_is_planted_no_more_are_not_met() {
        let row = |page: &str| target(page, "every planted bug").to_owned();
        let alarmed = row(&hunted(PLANTS_MIN, 3, 1));
        assert!(alarmed.ends_with("; 1 without the bug | **no** |"), "{alarmed}");
        let fewer = row(&hunted(PLANTS_MIN - 1, 3, 0));
        assert!(fewer.ends_with("; 0 without the bug | **no** |"), "{fewer}");
    }

    #[test]
    fn works_count_by_their_setting_once_all_their_shares_are_done_by_whatever_runs() {
        let run = |seed: u64, always: u64, never: u64| {
            let share = |work: &str| format!("{SHARES}sync={work}");
            let large = share("always, large values (a twelfth of the points), work 5");
            let counts = json!({share("always, work 6"): always, share("always, work 7"): 16, large: 16,
                share("every:2ms, work 8"): 16, share("never, work 4"): never});
            counted("crashes", seed, 0, counts)
        };
        let told = |runs: &[Run]| target(&page_of(runs), "store crashed").to_owned();
        let row = told(&[run(0, 10, 16), counted("crashes", 99, 0, json!({"crashed shares: sync=always, work 6": 6}))]);
        let large = "large, sampled: sync=always, large values: 1";
        let whole = format!("| small, complete: sync=always: 2, sync=every:2ms: 1, sync=never: 1; {large} | yes |");
        assert!(row.ends_with(&whole), "{row}");
        let row = told(&[run(0, 10, 15)]);
        let lacks = format!("| small, complete: sync=always: 1, sync=every:2ms: 1, sync=never: 0; {large} | **no** |");
        assert!(row.ends_with(&lacks), "{row}");
        let row = told(&[counted("crashes", 1, 0, json!({"crashed shares: sync=always, work 6": 16}))]);
        assert!(
            row.ends_with("| small, complete: sync=always: 1; large, sampled: 0 | **no** |"),
            "two settings lack: {row}"
        );
    }

    #[test]
    fn mutants_are_told_by_subject_and_survivors_are_no_violations() {
        let mut all = vec![
            mutants("a.rs", [100, 96, 3], &["a.rs:1:2: replace + with - in y"]),
            mutants("b.rs", [100, 99, 1], &[]),
        ];
        let of = |runs: &[Run]| target(&page_of(runs), "viable mutants killed").to_owned();
        assert!(
            of(&all).ends_with(
                "| core 97.5 % of 200, a sample: 50.0 % of the code tried; layouts 0; structures 0 | **no** |"
            )
        );
        all.push(mutants("l.rs", [40, 38, 2], &[]));
        let page = page_of(&all);
        assert!(page.contains("| core | 2 of 3 | 2.0 | 50.0 % | 195 of 200 | 97.5 % | 4 | 1 | 0 |"), "{page}");
        assert!(page.contains("| structures | 1 of 2 | 1.0 | 20.0 % | 38 of 40 | 95.0 % | 2 | 0 | 0 |"), "{page}");
        assert!(page.contains("## Mutants that survive\n\n- a.rs:1:2: replace + with - in y"), "{page}");
        assert!(!page.contains("## Violations"), "{page}");
        let last =
            "; layouts 95.0 % of 40; structures 95.0 % of 40, a sample: 20.0 % of the code tried | of a sample |";
        assert!(of(&all).ends_with(last), "{}", of(&all));
        all.extend([mutants("c.rs", [0, 0, 0], &[]), mutants("s.rs", [20, 19, 0], &[])]);
        assert!(of(&all).ends_with("; layouts 95.0 % of 40; structures 95.0 % of 60 | yes |"), "{}", of(&all));
        all.push(mutants("gone.rs", [900, 0, 0], &[]));
        assert!(of(&all).ends_with("; structures 95.0 % of 60 | yes |"), "one of a file that is no more");
    }

    #[test]
    fn mutants_that_were_left_and_are_settled_by_now_survive_no_more() {
        let left = |killed: Value, argued: &[&str]| {
            let findings = json!({"counts": {}, "violations": 0, "killed": killed, "argued": argued});
            parsed(json!({"part": "mutants", "file": "a.rs", "left": true, "seconds": 30, "findings": findings}))
        };
        let mut all = [
            mutants("a.rs", [100, 96, 1], &["a.rs: x", "a.rs: y", "a.rs: z"]),
            left(json!({"a.rs: x": "a test", "b.rs: of a run that counts no more": "a test"}), &[]),
            left(json!({"a.rs: x": "another"}), &["a.rs: z"]),
        ];
        let page = page_of(&all);
        let sample = "a sample: 37.5 % of the code tried";
        assert!(page.contains(&format!("core 97.0 % of 100, {sample}")), "by a test of the same commit: {page}");
        all[0].earlier = Some("e1".to_owned());
        let page = page_of(&all);
        assert!(page.contains("| core | 1 of 3 | 2.0 | 37.5 % | 97 of 100 | 97.0 % | 2 | 1 | 0 |"), "{page}");
        assert!(page.contains("## Mutants that survive\n\n- a.rs: y\n"), "{page}");
        assert!(!page.contains("a.rs: x") && !page.contains("a.rs: z"), "{page}");
        assert!(page.contains(&format!("core 97.0 % of 100 (96.0 % by tests that were there), {sample}")), "{page}");
    }

    #[test]
    fn runs_of_an_earlier_commit_are_told() {
        let mut all = [
            run("histories", 1, 0),
            run("histories", 40, 0),
            run("crashes", 3, 0),
            mutants("crates/core/src/a.rs", [1, 1, 0], &[]),
            mutants("crates/core/src/b.rs", [1, 1, 0], &[]),
        ];
        assert!(!page_of(&all).contains("an earlier commit"));
        for (at, commit) in [(1, "e1"), (2, "e1"), (3, "d0"), (4, "d0")] {
            all[at].earlier = Some(commit.to_owned());
        }
        let page = page_of(&all);
        assert!(page.contains("not their file. d0: mutants of crates/core; e1: crashes, histories.\n"), "{page}");
    }

    #[test]
    fn a_tree_that_moved_is_told() {
        let mut moved = run("histories", 1, 0);
        moved.moved = Some("def-changed".to_owned());
        let page = page_of(&[moved]);
        assert!(page.contains("histories 1 to 10 (def-changed)"), "{page}");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!([0, 7, 1_000, 12_345_678].map(grouped), ["0", "7", "1,000", "12,345,678"]);
    }
}
