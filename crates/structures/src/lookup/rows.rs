//! The rows that a version is made of, checked as they come.

use larder_core::{Error, ErrorKind, Result};

use super::key::{Family, LookupKey, network};
use super::text::TEXT_BYTES_MAX;
use crate::append::layout::{put_varint, take, take_length};

/// The most columns a row has, beside its key.
pub const COLUMNS_MAX: usize = 64;
/// The longest name of a column, in bytes.
pub const COLUMN_NAME_BYTES_MAX: usize = 64;
/// The most rows of a table.
pub const ROWS_MAX: usize = 1 << 30;

/// The rows of a packed table: ranges of addresses or numbers in ascending order, and the fields of each.
///
/// They are held in this process until the table is built: some 40 bytes a row, and its fields.
///
/// ```
/// use larder_structures::lookup::Rows;
/// let mut rows = Rows::new(["city", "country"])?;
/// rows.push_network("192.0.2.0/24", ["Toronto", "CA"])?;
/// rows.push_network("2001:db8::/32", ["Paris", "FR"])?;
/// let error = rows.push_network("192.0.2.0/25", ["Lyon", "FR"]).unwrap_err();
/// assert!(error.to_string().contains("row 3"), "{error}");
/// assert_eq!(rows.len(), 2);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    columns: Vec<String>,
    firsts: Vec<u128>,
    lasts: Vec<u128>,
    /// Where each family begins that there is.
    families: Vec<(Family, usize)>,
    /// The fields of all rows: length (LEB128) and bytes of each.
    fields: Vec<u8>,
    /// Where each row's fields end.
    ends: Vec<usize>,
}

/// A row as it was pushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRef<'r> {
    pub(super) first: u128,
    pub(super) last: u128,
    /// Its fields, encoded.
    pub(super) fields: &'r [u8],
}

impl Rows {
    /// Of rows with these columns.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) without a column, for more than [`COLUMNS_MAX`], for two of one name, and for a name that is empty or longer than
    /// [`COLUMN_NAME_BYTES_MAX`].
    pub fn new<C: Into<String>>(columns: impl IntoIterator<Item = C>) -> Result<Rows> {
        let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if !(1..=COLUMNS_MAX).contains(&columns.len()) {
            return bad(format!("{} columns beside the key; a packed table takes 1 to {COLUMNS_MAX}", columns.len()));
        }
        for (at, column) in columns.iter().enumerate() {
            if !(1..=COLUMN_NAME_BYTES_MAX).contains(&column.len()) {
                return bad(format!(
                    "the name of column {} has {} bytes; it takes 1 to {COLUMN_NAME_BYTES_MAX}",
                    at + 1,
                    column.len()
                ));
            }
            if columns[..at].contains(column) {
                return bad(format!("two columns are called {column:?}"));
            }
        }
        Ok(Rows { columns, ..Rows::default() })
    }

    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.firsts.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.firsts.is_empty()
    }

    /// Adds the row of all keys from `first` to `last`.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), with the row's number, for another number of fields than columns, a range that ends before it begins, one
    /// of two kinds of keys, one that overlaps the row before it or comes before it (IPv4 goes before IPv6), and for addresses among
    /// numbers. The rows are as before then.
    pub fn push<F: AsRef<[u8]>>(
        &mut self,
        first: impl Into<LookupKey>,
        last: impl Into<LookupKey>,
        fields: impl IntoIterator<Item = F>,
    ) -> Result<()> {
        let done = self.try_push(first.into(), last.into(), fields);
        done.map_err(|detail| self.bad_row(&detail))
    }

    /// Adds the row of one key.
    ///
    /// # Errors
    /// As [`push`](Rows::push).
    pub fn push_id<F: AsRef<[u8]>>(
        &mut self,
        id: impl Into<LookupKey>,
        fields: impl IntoIterator<Item = F>,
    ) -> Result<()> {
        let id = id.into();
        self.push(id, id, fields)
    }

    /// Adds the row of a network, as in `192.0.2.0/24`.
    ///
    /// # Errors
    /// As [`push`](Rows::push), and for what is no network.
    pub fn push_network<F: AsRef<[u8]>>(&mut self, text: &str, fields: impl IntoIterator<Item = F>) -> Result<()> {
        let done = network(text).and_then(|(first, last)| self.try_push(first, last, fields));
        done.map_err(|detail| self.bad_row(&detail))
    }

    fn bad_row(&self, detail: &str) -> Error {
        Error::new(ErrorKind::BadInput, format!("row {}: {detail}", self.len() + 1))
    }

    /// # Errors
    /// What is wrong with the row, in words; nothing is added then.
    pub(super) fn try_push<F: AsRef<[u8]>>(
        &mut self,
        first: LookupKey,
        last: LookupKey,
        fields: impl IntoIterator<Item = F>,
    ) -> Result<(), String> {
        self.check(&first, &last)?;
        let before = self.fields.len();
        let mut count = 0usize;
        for field in fields {
            let bytes = field.as_ref().len();
            if bytes > TEXT_BYTES_MAX {
                self.fields.truncate(before);
                return Err(format!("a field has {bytes} bytes; the limit is {TEXT_BYTES_MAX}"));
            }
            put_bytes(&mut self.fields, field.as_ref());
            count += 1;
        }
        if count != self.columns.len() {
            self.fields.truncate(before);
            return Err(format!("{count} fields beside its key, not {}", self.columns.len()));
        }
        if self.families.last().is_none_or(|(family, _)| *family != first.family()) {
            self.families.push((first.family(), self.len()));
        }
        self.firsts.push(first.number());
        self.lasts.push(last.number());
        self.ends.push(self.fields.len());
        Ok(())
    }

    fn check(&self, first: &LookupKey, last: &LookupKey) -> Result<(), String> {
        if self.len() >= ROWS_MAX {
            return Err(format!("a packed table takes {ROWS_MAX} rows"));
        }
        let family = first.family();
        if family != last.family() {
            return Err(format!("{first} and {last} are of two kinds"));
        }
        if first.number() > last.number() {
            return Err(format!("it ends at {last}, before it begins, at {first}"));
        }
        let Some(&(before, _)) = self.families.last() else { return Ok(()) };
        if (before == Family::Number) != (family == Family::Number) {
            return Err(format!(
                "{first} stands among {}",
                if family == Family::Number { "addresses" } else { "numbers" }
            ));
        }
        if family < before {
            return Err(format!("{first} comes after IPv6 addresses; IPv4 goes before them"));
        }
        let at = self.len();
        if let (true, Some(begin), Some(end)) = (family == before, self.firsts.last(), self.lasts.last()) {
            let shown = || format!("row {at}, {} to {}", family.key(*begin), family.key(*end));
            if last.number() < *begin {
                return Err(format!("{first} to {last} comes before {}; rows go in ascending order", shown()));
            }
            if first.number() <= *end {
                return Err(format!("{first} to {last} overlaps {}", shown()));
            }
        }
        Ok(())
    }

    pub(super) fn row(&self, at: usize) -> RowRef<'_> {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        RowRef { first: self.firsts[at], last: self.lasts[at], fields: &self.fields[begin..self.ends[at]] }
    }

    /// The rows of each family that there is.
    pub(super) fn families(&self) -> Vec<(Family, std::ops::Range<usize>)> {
        let ends = self.families.iter().skip(1).map(|(_, begin)| *begin).chain([self.len()]);
        self.families.iter().zip(ends).map(|(&(family, begin), end)| (family, begin..end)).collect()
    }
}

/// Appends bytes with their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes bytes with their length from the front.
pub(super) fn take_bytes<'b>(from: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = take_length(from)?;
    take(from, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> LookupKey {
        text.parse().unwrap()
    }

    #[test]
    fn a_field_that_could_not_be_read_back_is_refused() {
        let mut rows = Rows::new(["a", "b"]).unwrap();
        rows.push(key("10.0.0.0"), key("10.0.0.0"), ["1".to_owned(), "x".repeat(TEXT_BYTES_MAX)]).unwrap();
        let before = rows.clone();
        let error = rows.push(key("10.0.0.1"), key("10.0.0.1"), ["1".to_owned(), "x".repeat(TEXT_BYTES_MAX + 1)]);
        let said = error.unwrap_err().to_string();
        assert!(said.contains("16777217 bytes; the limit is 16777216"), "{said}");
        assert!(rows == before);
    }

    #[test]
    fn rows_that_cannot_be_are_told_by_number() {
        let mut rows = Rows::new(["a", "b"]).unwrap();
        rows.push(key("10.0.0.0"), key("10.0.0.9"), ["1", "2"]).unwrap();
        rows.push(key("10.0.0.10"), key("10.0.0.10"), ["1", ""]).unwrap();
        let before = rows.clone();
        for (first, last, fields, said) in [
            (
                "10.0.0.10",
                "10.0.0.11",
                &["1", "2"][..],
                "row 3: 10.0.0.10 to 10.0.0.11 overlaps row 2, 10.0.0.10 to 10.0.0.10",
            ),
            ("9.0.0.0", "9.0.0.1", &["1", "2"], "row 3: 9.0.0.0 to 9.0.0.1 comes before row 2"),
            ("9.0.0.0", "11.0.0.1", &["1", "2"], "overlaps row 2"),
            ("11.0.0.9", "11.0.0.1", &["1", "2"], "it ends at 11.0.0.1, before it begins, at 11.0.0.9"),
            ("11.0.0.0", "::1", &["1", "2"], "of two kinds"),
            ("17", "18", &["1", "2"], "17 stands among addresses"),
            ("11.0.0.0", "11.0.0.1", &["1"], "row 3: 1 fields beside its key, not 2"),
            ("11.0.0.0", "11.0.0.1", &["1", "2", "3"], "3 fields beside its key, not 2"),
        ] {
            let error = rows.push(key(first), key(last), fields).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput);
            assert!(error.to_string().contains(said), "{error} does not say {said}");
            assert_eq!(rows, before);
        }
        rows.push(key("::"), key("::1"), ["1", "2"]).unwrap();
        let back = rows.push(key("12.0.0.0"), key("12.0.0.1"), ["1", "2"]).unwrap_err();
        assert!(back.to_string().contains("12.0.0.0 comes after IPv6"), "{back}");
        assert_eq!(rows.families(), [(Family::V4, 0..2), (Family::V6, 2..3)]);
    }

    #[test]
    fn columns_out_of_range_are_told() {
        let long = "x".repeat(COLUMN_NAME_BYTES_MAX + 1);
        for (columns, said) in [
            (vec![], "0 columns"),
            (vec!["a".to_owned(), "a".to_owned()], "called \"a\""),
            (vec![String::new()], "column 1 has 0 bytes"),
            (vec![long], "has 65 bytes"),
            ((0..65).map(|at| at.to_string()).collect(), "65 columns"),
        ] {
            let error = Rows::new(columns).unwrap_err();
            assert!(error.to_string().contains(said), "{error} does not say {said}");
        }
    }

    #[test]
    fn a_network_is_the_row_of_all_its_addresses() {
        let mut rows = Rows::new(["a"]).unwrap();
        assert!(rows.is_empty());
        rows.push_network("192.0.2.0/24", ["x"]).unwrap();
        assert!(!rows.is_empty());
        let row = rows.row(0);
        assert_eq!((row.first, row.last), (key("192.0.2.0").number(), key("192.0.2.255").number()));
        let error = rows.push_network("192.0.2", ["y"]).unwrap_err();
        assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains("row 2: "), "{error}");
        assert_eq!(rows.len(), 1);
    }
}
