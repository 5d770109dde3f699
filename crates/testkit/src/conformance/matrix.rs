//! The checked-in matrix: which case applies to which column.
//!
//! A file of lines `column | case | reason`, one for each pair that does **not** apply, sorted; every other pair applies. Short, and a
//! diff of it shows what a store gained or lost.

use std::collections::BTreeSet;

/// The pairs that do not apply, each with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix(BTreeSet<(String, String, String)>);

impl Matrix {
    /// Reads the file's text. Panics on a line that is not `column | case | reason`.
    pub fn parse(text: &str) -> Matrix {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Matrix(
            lines
                .map(|line| {
                    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
                    let [column, case, reason] = parts[..] else {
                        panic!("the matrix has a line of another form: {line}")
                    };
                    (column.to_owned(), case.to_owned(), reason.to_owned())
                })
                .collect(),
        )
    }

    /// Why a case does not apply to a column; `None` where it does.
    pub fn reason(&self, column: &str, case: &str) -> Option<&str> {
        self.0.iter().find(|(c, k, _)| c == column && k == case).map(|(_, _, reason)| reason.as_str())
    }

    /// Lines that name a column or a case that does not exist: left over from a rename.
    pub fn strangers(&self, columns: &[&str], cases: &[&str]) -> Vec<String> {
        let stranger = |(column, case, _): &&(String, String, String)| {
            !columns.contains(&column.as_str()) || !cases.contains(&case.as_str())
        };
        self.0.iter().filter(stranger).map(|(column, case, reason)| format!("{column} | {case} | {reason}")).collect()
    }
}

/// Holds what a store says against what the matrix says. `Ok(true)`: run the case. `Ok(false)`: it does not apply, as expected.
pub fn agree(matrix: &Matrix, column: &str, case: &str, found: Option<&str>) -> Result<bool, String> {
    match (matrix.reason(column, case), found) {
        (None, None) => Ok(true),
        (Some(expected), Some(found)) if expected == found => Ok(false),
        (Some(expected), Some(found)) => {
            Err(format!("the matrix says \"{expected}\", the store's profile says \"{found}\""))
        }
        (None, Some(found)) => {
            Err(format!("does not apply ({found}), and the matrix has no such line: {column} | {case} | {found}"))
        }
        (Some(expected), None) => Err(format!("applies by now; take the line out: {column} | {case} | {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_and_the_matrix_must_agree_both_ways() {
        let matrix = Matrix::parse("# comment\n bare | cas_wins_once | no cas\n");
        assert_eq!(agree(&matrix, "memory", "cas_wins_once", None), Ok(true));
        assert_eq!(agree(&matrix, "bare", "cas_wins_once", Some("no cas")), Ok(false));
        assert!(agree(&matrix, "bare", "cas_wins_once", Some("no ttl")).is_err());
        assert!(agree(&matrix, "bare", "cas_wins_once", None).is_err());
        assert!(agree(&matrix, "memory", "cas_wins_once", Some("no cas")).is_err());
        assert_eq!(matrix.strangers(&["bare"], &["cas_wins_once"]), Vec::<String>::new());
        assert_eq!(matrix.strangers(&["bare"], &["other"]), ["bare | cas_wins_once | no cas"]);
    }
}
