//! The table at the head of `docs/guarantees.md`, structures by stores: made of the conformance cases and their matrix, and held against them,
//! so that it cannot say what no test shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::command::{Context, Failure, Result};

const GUARANTEES: &str = "docs/guarantees.md";
const MATRIX: &str = "crates/testkit/tests/conformance.matrix";
const COLUMNS: &str = "crates/testkit/tests/conformance/columns.rs";
const CASES: &str = "crates/testkit/src/conformance";

const BEGIN: &str = "<!-- conformance: begin. `cargo xtask guarantees` writes this table, `cargo xtask check` holds it against the matrix. -->";
const END: &str = "<!-- conformance: end -->";

/// Fewer cases of structures than this, and the reading of the sources has gone wrong.
const CASES_MIN: usize = 100;

/// The structures, as cases' names begin, and as the table names them.
const STRUCTURES: &[(&str, &str)] = &[
    ("lock", "Lock"),
    ("counter", "Counter, exact"),
    ("fast", "Counter, fast"),
    ("set", "Set"),
    ("visitors", "Visitors"),
    ("unique", "Unique visitors"),
    ("records", "Packed records"),
    ("lookup", "Packed table"),
    ("sharded", "Sharded hash, sharded set"),
    ("log", "Event log"),
    ("array", "Array"),
    ("table", "Table"),
    ("queue", "Queue"),
    ("stack", "Stack"),
    ("cache", "Cache"),
];

/// The stores as the table names them, and what the names of their columns in the matrix have in common.
const STORES: &[Store] = &[
    ("memory", |column| column.starts_with("memory")),
    ("a folder", |column| column.starts_with("durable")),
    ("memcached, one", |column| {
        column.starts_with("memcached") && !column.contains("classic") && !column.ends_with("x3")
    }),
    ("memcached, several", |column| column.ends_with("x3")),
    ("memcached, classic dialect", |column| column.starts_with("memcached") && column.contains("classic")),
    ("Redis or Valkey, one", |column| {
        (column.starts_with("redis") || column.starts_with("valkey")) && !column.ends_with("cluster")
    }),
    ("Redis or Valkey, cluster", |column| column.ends_with("-cluster")),
    ("`larder serve`", |column| column.starts_with("larder-serve")),
    ("without cas and expiry", |column| column == "classic-bare"),
];

/// A store's name, and whether a column is of it.
type Store = (&'static str, fn(&str) -> bool);

/// What does not apply to a column: case to reason.
type Matrix = BTreeMap<String, BTreeMap<String, String>>;

/// Returns a line if the table is another than the cases and the matrix make.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let text = read(root, GUARANTEES)?;
    let table = table(root)?;
    let found = between(&text)?;
    let stale = found.trim() != table.trim();
    Ok(stale
        .then(|| format!("{GUARANTEES}: its table of conformance is stale; `cargo xtask guarantees` writes it"))
        .into_iter()
        .collect())
}

/// Writes the table.
pub(crate) fn write(root: &Path) -> Result<()> {
    let text = read(root, GUARANTEES)?;
    between(&text)?;
    let (head, rest) = text.split_once(BEGIN).unwrap_or_default();
    let (_, tail) = rest.split_once(END).unwrap_or_default();
    let written = format!("{head}{BEGIN}\n\n{}\n\n{END}{tail}", table(root)?.trim());
    fs::write(root.join(GUARANTEES), written).context(|| format!("could not write {GUARANTEES}"))
}

fn between(text: &str) -> Result<&str> {
    let missing = || Failure(format!("{GUARANTEES} lacks the marks of the table of conformance: {BEGIN} … {END}"));
    let (_, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
    rest.split_once(END).map(|(table, _)| table).ok_or_else(missing)
}

fn read(root: &Path, path: &str) -> Result<String> {
    fs::read_to_string(root.join(path)).context(|| format!("could not read {path}"))
}

fn table(root: &Path) -> Result<String> {
    let matrix = matrix_of(&read(root, MATRIX)?);
    let columns = columns_of(&read(root, COLUMNS)?);
    let mut cases: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let folder = fs::read_dir(root.join(CASES)).context(|| format!("could not read {CASES}"))?;
    let mut files: Vec<_> = folder.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.to_string_lossy().ends_with("_cases.rs")) {
        let source = fs::read_to_string(file).context(|| format!("could not read {}", file.display()))?;
        for case in cases_of(&source) {
            if let Some(structure) = structure_of(&case) {
                cases.entry(structure).or_default().push(case);
            }
        }
    }
    let count: usize = cases.values().map(Vec::len).sum();
    if count < CASES_MIN || columns.len() < 5 || matrix.is_empty() {
        let found =
            format!("{count} cases of structures, {} columns, {} of them in the matrix", columns.len(), matrix.len());
        return Err(Failure(format!("the conformance suite was misread: {found}")));
    }
    Ok(rendered(&matrix, &columns, &cases))
}

fn rendered(matrix: &Matrix, columns: &[String], cases: &BTreeMap<&str, Vec<String>>) -> String {
    let heads: Vec<&str> = STORES.iter().map(|(name, _)| *name).collect();
    let mut out = format!("| | {} |\n|---{}|\n", heads.join(" | "), "|---".repeat(heads.len()));
    for (structure, name) in STRUCTURES {
        let Some(cases) = cases.get(structure) else { continue };
        let cells = STORES.iter().map(|(_, is_of)| {
            let mut told: Vec<String> =
                columns.iter().filter(|column| is_of(column)).map(|column| cell(matrix, column, cases)).collect();
            told.dedup();
            told.join("; in part ")
        });
        out.push_str(&format!("| {name} | {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    }
    out
}

/// What a structure's cases come to on one column.
fn cell(matrix: &Matrix, column: &str, cases: &[String]) -> String {
    // What is native has a portable twin, with cases of its own: a store without lacks nothing.
    let cases: Vec<&String> = cases.iter().filter(|case| !case.ends_with("_native")).collect();
    let reason = |case: &&String| matrix.get(column).and_then(|of| of.get(case.as_str())).map(String::as_str);
    // A case that shows a refusal does not apply where there is nothing to refuse: that is no lack.
    let is_lack = |reason: &&str| !reason.starts_with("has ") && !reason.starts_with("keeps ");
    let lacks: BTreeSet<&str> = cases.iter().filter_map(reason).filter(is_lack).collect();
    let runs = cases.iter().filter(|case| reason(case).is_none()).count();
    let why = lacks.iter().copied().collect::<Vec<_>>().join(", ");
    match (runs, lacks.is_empty()) {
        (_, true) => "yes".to_owned(),
        _ if runs == 0 => format!("no: {why}"),
        _ => format!("yes, but: {why}"),
    }
}

/// The names in the lists of the macros `cases!` and `budgets!`: `    name [Needs];`, `    name [Needs] = 1;`.
fn cases_of(source: &str) -> Vec<String> {
    let is_budget = source.contains("budgets! {");
    let case = |line: &str| {
        let (name, rest) = line.strip_prefix("    ")?.split_once(" [")?;
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        let is_item = rest.trim_end().ends_with(';') && rest.contains(']');
        let is_budget = is_budget && rest.contains("] = ");
        (is_name && is_item).then(|| if is_budget { format!("budget_{name}") } else { name.to_owned() })
    };
    source.lines().filter_map(case).collect()
}

/// The first structure that a case's name names. Those that show what every structure, or another store, does name none.
fn structure_of(case: &str) -> Option<&'static str> {
    if ["a_store_without", "structures_", "a_name_", "a_key_"].iter().any(|general| case.starts_with(general)) {
        return None;
    }
    let names = |word: &str| STRUCTURES.iter().map(|(name, _)| *name).find(|name| *name == word);
    let case = case.strip_prefix("budget_").unwrap_or(case);
    let case = case.strip_prefix("drop_of_").unwrap_or(case);
    let words: Vec<&str> = case.split('_').filter(|word| !["a", "an", "of", "empty", "text"].contains(word)).collect();
    names(words.first()?)
}

fn columns_of(source: &str) -> Vec<String> {
    let name = |line: &str| Some(line.split_once("Column { name: \"")?.1.split_once('"')?.0.to_owned());
    source.lines().filter_map(name).collect()
}

fn matrix_of(text: &str) -> Matrix {
    let mut matrix = Matrix::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let [column, case, reason] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            matrix.entry(column.to_owned()).or_default().insert(case.to_owned(), reason.to_owned());
        }
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn cases_are_read_from_both_macros() {
        let cases =
            "cases! {\n    set_agrees_with_a_model [];\n    lock_tokens_rise [Cas, Ttl];\n}\n    let x = [1];\n";
        assert_eq!(cases_of(cases), ["set_agrees_with_a_model", "lock_tokens_rise"]);
        let budgets = "budgets! {\n    set_add [] = 1;\n    drop_of_a_set [] = 3;\n";
        assert_eq!(cases_of(budgets), ["budget_set_add", "budget_drop_of_a_set"]);
    }

    #[test]
    fn a_case_belongs_to_the_structure_that_it_names_first() {
        for (case, structure) in [
            ("lock_tokens_rise", Some("lock")),
            ("budget_fast_counter_add", Some("fast")),
            ("budget_counter_get", Some("counter")),
            ("budget_drop_of_a_set", Some("set")),
            ("drop_of_visitors_removes_every_key_and_a_handle_notices", Some("visitors")),
            ("budget_array_change_under_a_lock", Some("array")),
            ("text_set_reads_and_writes_the_articles_encoding", Some("set")),
            ("budget_of_an_empty_queue_takes_1", Some("queue")),
            ("a_store_without_cas_refuses_a_table", None),
            ("drop_removes_every_key_and_a_handle_notices", None),
        ] {
            assert_eq!(structure_of(case), structure, "{case}");
        }
    }

    #[test]
    fn a_cell_says_what_the_matrix_says() {
        let matrix = matrix_of(
            "# comment\nbare | lock_a | no cas\nbare | lock_b | no ttl\nbare | set_b | no cas\nplain | set_r | has cas\nbare | set_b_native | no native ops for it\n",
        );
        assert_eq!(cell(&matrix, "plain", &names(&["set_a", "set_b", "set_r"])), "yes");
        assert_eq!(cell(&matrix, "bare", &names(&["set_a", "set_b", "set_c"])), "yes, but: no cas");
        assert_eq!(cell(&matrix, "bare", &names(&["set_a", "set_b_native"])), "yes");
        assert_eq!(cell(&matrix, "bare", &names(&["lock_a", "lock_b"])), "no: no cas, no ttl");
        assert_eq!(cell(&matrix, "unheard of", &names(&["lock_a"])), "yes");
    }

    #[test]
    fn a_stale_table_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cases: String = (0..CASES_MIN).map(|n| format!("    set_does_{n} [];\n")).collect();
        put(&format!("{CASES}/a_cases.rs"), &cases);
        put(MATRIX, "classic-bare | set_does_1 | no cas\n");
        put(
            COLUMNS,
            &[
                "memory",
                "durable",
                "memcached-old",
                "memcached-old-x3",
                "memcached-old-classic",
                "redis-7",
                "redis-8-cluster",
                "larder-serve-memory",
                "classic-bare",
            ]
            .map(|name| format!("    Column {{ name: \"{name}\" }},\n"))
            .concat(),
        );
        put(GUARANTEES, &format!("# Head\n{BEGIN}\n{END}\n\nTail\n"));
        assert_eq!(violations(root).unwrap().len(), 1);
        write(root).unwrap();
        assert!(violations(root).unwrap().is_empty());
        let text = read(root, GUARANTEES).unwrap();
        let row = format!("| Set |{} yes, but: no cas |\n", " yes |".repeat(STORES.len() - 1));
        assert!(text.contains(&row) && text.ends_with("Tail\n"), "{text}");
        put(MATRIX, "memory | set_does_1 | no cas\n");
        assert_eq!(violations(root).unwrap().len(), 1, "the matrix has changed");
    }
}
