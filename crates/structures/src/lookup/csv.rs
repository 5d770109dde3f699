//! Rows from CSV.

use std::io::Read;

use csv::{ByteRecord, ReaderBuilder};
use larder_core::{Error, ErrorKind, Result};

use super::key::{LookupKey, network};
use super::rows::Rows;

/// How CSV is read into [`Rows`].
///
/// The header names the columns. The first ones say which keys a row has:
///
/// | header | a row has |
/// |---|---|
/// | `start,end,…` | all keys from the one to the other: addresses, or whole numbers |
/// | `network,…` or `cidr,…` | a network, as in `192.0.2.0/24` |
/// | `id,…` | a whole number, or an address |
///
/// Fields are arbitrary bytes, and may be quoted. Rows go in ascending order, IPv4 before IPv6.
///
/// ```
/// use larder_structures::lookup::CsvOptions;
/// let rows = CsvOptions::new().read("network,city\n192.0.2.0/24,\"Paris, Texas\"\n".as_bytes())?;
/// assert_eq!((rows.len(), rows.columns()), (1, &["city".to_owned()][..]));
/// let error = CsvOptions::new().read("id,city\n1,Paris\nx,Lyon\n".as_bytes()).unwrap_err();
/// assert!(error.to_string().contains("row 2 (line 3)"), "{error}");
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CsvOptions {
    header: Option<Vec<String>>,
    delimiter: u8,
}

impl Default for CsvOptions {
    fn default() -> CsvOptions {
        CsvOptions { header: None, delimiter: b',' }
    }
}

/// Which columns say where a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyed {
    Range,
    Network,
    Id,
}

impl Keyed {
    fn columns(self) -> usize {
        match self {
            Keyed::Range => 2,
            Keyed::Network | Keyed::Id => 1,
        }
    }
}

impl CsvOptions {
    /// With a header in the first line, and commas.
    pub fn new() -> CsvOptions {
        CsvOptions::default()
    }

    /// The header of a file that has none.
    pub fn header<C: Into<String>>(mut self, columns: impl IntoIterator<Item = C>) -> CsvOptions {
        self.header = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// What stands between fields.
    pub fn delimiter(mut self, delimiter: u8) -> CsvOptions {
        self.delimiter = delimiter;
        self
    }

    /// Reads all rows.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), with the numbers of the row and of its line, for whatever cannot be a row; nothing is kept then. What the reader says is
    /// [`Unavailable`](ErrorKind::Unavailable).
    pub fn read(&self, from: impl Read) -> Result<Rows> {
        let mut reader =
            ReaderBuilder::new().has_headers(false).flexible(true).delimiter(self.delimiter).from_reader(from);
        let mut record = ByteRecord::new();
        let header = match &self.header {
            Some(header) => header.clone(),
            None => {
                if !reader.read_byte_record(&mut record).map_err(|error| failed(error, "the header"))? {
                    return Err(bad("there is no header; the first line names the columns, as in start,end,city"));
                }
                let names = record.iter().map(|name| Some(std::str::from_utf8(name).ok()?.trim().to_owned()));
                names.collect::<Option<Vec<String>>>().ok_or_else(|| bad("the header is no UTF-8 text"))?
            }
        };
        let keyed = keyed(&header)?;
        let mut rows = Rows::new(header.into_iter().skip(keyed.columns()))?;
        loop {
            let number = rows.len() + 1;
            if !reader.read_byte_record(&mut record).map_err(|error| failed(error, &format!("row {number}")))? {
                return Ok(rows);
            }
            push(&mut rows, keyed, &record).map_err(|detail| {
                let line = record.position().map_or(0, csv::Position::line);
                bad(&format!("row {number} (line {line}): {detail}"))
            })?;
        }
    }
}

fn keyed(header: &[String]) -> Result<Keyed> {
    let name = |at: usize| header.get(at).map(|name| name.to_ascii_lowercase()).unwrap_or_default();
    match (name(0).as_str(), name(1).as_str()) {
        ("start", "end") => Ok(Keyed::Range),
        ("network" | "cidr", _) => Ok(Keyed::Network),
        ("id", _) => Ok(Keyed::Id),
        _ => {
            let shown: String = header.join(",").chars().take(80).collect();
            Err(bad(&format!("the header begins {shown:?}; it takes start,end or network or id, then the columns")))
        }
    }
}

fn push(rows: &mut Rows, keyed: Keyed, record: &ByteRecord) -> Result<(), String> {
    let expected = keyed.columns() + rows.columns().len();
    if record.len() != expected {
        return Err(format!("{} fields, not {expected}", record.len()));
    }
    let text = |at: usize| std::str::from_utf8(&record[at]).map_err(|_| "its key is no UTF-8 text".to_owned());
    let key = |at: usize| text(at)?.parse::<LookupKey>().map_err(|error| error.detail().to_owned());
    let (first, last) = match keyed {
        Keyed::Range => (key(0)?, key(1)?),
        Keyed::Network => network(text(0)?)?,
        Keyed::Id => {
            let id = key(0)?;
            (id, id)
        }
    };
    rows.try_push(first, last, record.iter().skip(keyed.columns()))
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::BadInput, detail)
}

fn failed(error: csv::Error, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what} could not be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        CsvOptions::new().read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn every_form_of_a_row() {
        let read = |text: &str| CsvOptions::new().read(text.as_bytes()).unwrap();
        let ranges = read("Start, END,city\n1.0.0.0,1.0.0.255,a\n1.0.1.0,1.0.1.0,\"b\nc\"\n2001:db8::,2001:db8::ff,\n");
        let networks = read("cidr,city\n1.0.0.0/24,a\n1.0.1.0,\"b\nc\"\n2001:db8::/120,\"\"\n");
        assert_eq!(ranges, networks);
        let numbers = read("start,end,city\n16777216,16777471,a\n");
        assert_eq!((numbers.row(0).first, numbers.row(0).last), (16_777_216, 16_777_471));
        let ids = CsvOptions::new().header(["id", "city"]).delimiter(b';').read("7;a\n8;b,c\n".as_bytes()).unwrap();
        assert_eq!((ids.len(), ids.row(1).fields), (2, &b"\x03b,c"[..]));
    }

    #[test]
    fn broken_rows_are_told_by_row_and_line() {
        for (text, said) in [
            ("", "there is no header"),
            ("city,start\n", "the header begins \"city,start\""),
            ("start,city\n", "it takes start,end or network or id"),
            ("id\n1\n", "0 columns beside the key"),
            ("id,a,a\n", "two columns are called \"a\""),
            ("id,a\n1,x\n2\n", "row 2 (line 3): 1 fields, not 2"),
            ("id,a\n1,\"x\ny\"\n2,x,y\n", "row 2 (line 4): 3 fields, not 2"),
            ("id,a\n1,x\n1,y\n", "row 2 (line 3): 1 to 1 overlaps row 1, 1 to 1"),
            ("id,a\n2,x\n1,y\n", "row 2 (line 3): 1 to 1 comes before row 1"),
            ("id,a\n-1,x\n", "row 1 (line 2): \"-1\" is neither"),
            ("start,end,a\n1.0.0.0,1.0.0.256,x\n", "row 1 (line 2): \"1.0.0.256\" is neither"),
            ("start,end,a\n1.0.0.9,1.0.0.1,x\n", "it ends at 1.0.0.1, before it begins"),
            ("start,end,a\n1.0.0.0,::1,x\n", "of two kinds"),
            ("network,a\n1.0.0.1/24,x\n", "row 1 (line 2): \"1.0.0.1/24\" has bits behind its prefix"),
            ("network,a\n::/0,x\n1.0.0.0/8,y\n", "1.0.0.0 comes after IPv6"),
        ] {
            assert!(refused(text).contains(said), "{text:?}: {}", refused(text));
        }
        let broken = CsvOptions::new().read(&b"id,a\n\xff,x\n"[..]).unwrap_err();
        assert!(broken.to_string().contains("row 1 (line 2): its key is no UTF-8"), "{broken}");
    }
}
