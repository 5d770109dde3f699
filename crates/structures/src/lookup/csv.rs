//! Rows from CSV.

use std::io::Read;

use csv::{ByteRecord, ReaderBuilder};
use larder_core::{Error, ErrorKind, Result};

use super::key::{LookupKey, network};
use super::rows::Rows;
use super::strict::Strict;

/// What some programs write in front of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
/// Fields are arbitrary bytes. One that begins with a quote is quoted (RFC 4180): it ends with a quote, and a quote in it is written twice; elsewhere a quote is data. Rows
/// go in ascending order, IPv4 before IPv6. A record has up to [`CSV_RECORD_BYTES_MAX`](super::CSV_RECORD_BYTES_MAX) bytes, 64 MiB, and is refused where it gets longer.
///
/// ```
/// use larder_structures::lookup::CsvOptions;
/// let rows = CsvOptions::new().read("network,city\n192.0.2.0/24,\"Paris, Texas\"\n".as_bytes())?;
/// assert_eq!((rows.len(), rows.columns()), (1, &["city".to_owned()][..]));
/// let error = CsvOptions::new().read("id,city\n1,Paris\nx,Lyon\n".as_bytes()).unwrap_err();
/// assert!(error.to_string().contains("row 2 (line 3)"), "{error}");
/// let error = CsvOptions::new().read("id,city\n1,\"Paris\n2,Lyon\n".as_bytes()).unwrap_err();
/// assert!(error.to_string().contains("row 1 (line 2): its quotes are not closed"), "{error}");
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CsvOptions {
    header: Option<Vec<String>>,
    delimiter: u8,
    is_quoting: bool,
}

impl Default for CsvOptions {
    fn default() -> CsvOptions {
        CsvOptions { header: None, delimiter: b',', is_quoting: true }
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

    /// Whether fields may be quoted; if not, a quote is data like any other byte, as in most files whose delimiter is a tab.
    ///
    /// ```
    /// use larder_structures::lookup::CsvOptions;
    /// let tabs = "id\tsize\n1\t\"A\" and \"B\"\n2\t\"C\n";
    /// let options = CsvOptions::new().delimiter(b'\t');
    /// assert_eq!(options.clone().quoting(false).read(tabs.as_bytes())?.len(), 2);
    /// assert!(options.read(tabs.as_bytes()).is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn quoting(mut self, is_quoting: bool) -> CsvOptions {
        self.is_quoting = is_quoting;
        self
    }

    /// Reads all rows.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), with the numbers of the row and of its line, for whatever cannot be a row, or is not closed or too long to be one; nothing is kept
    /// then. What the reader says is [`Unavailable`](ErrorKind::Unavailable).
    pub fn read(&self, mut from: impl Read) -> Result<Rows> {
        let mut begin = Vec::new();
        let mark_bytes = BYTE_ORDER_MARK.len() as u64;
        from.by_ref().take(mark_bytes).read_to_end(&mut begin).map_err(|error| unread(&error, "the first line"))?;
        let begin = begin.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&begin);
        let strict = Strict::new(begin.chain(from), self.delimiter, self.is_quoting);
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true).delimiter(self.delimiter).quoting(self.is_quoting);
        let mut reader = builder.from_reader(strict);
        let mut record = ByteRecord::new();
        let header = match &self.header {
            Some(header) => header.clone(),
            None => {
                if !next(&mut reader, &mut record, "the header")? {
                    return Err(bad("there is no header; the first line names the columns, as in start,end,city"));
                }
                let names = record.iter().map(|name| Some(std::str::from_utf8(name).ok()?.trim().to_owned()));
                names.collect::<Option<Vec<String>>>().ok_or_else(|| bad("the header is no UTF-8 text"))?
            }
        };
        let keyed = keyed(&header)?;
        let mut rows = Rows::new(header.into_iter().skip(keyed.columns()))?;
        loop {
            let what = format!("row {}", rows.len() + 1);
            if !next(&mut reader, &mut record, &what)? {
                return Ok(rows);
            }
            push(&mut rows, keyed, &record).map_err(|detail| broken(&record, &what, &detail))?;
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

/// Reads a record; false at the end.
fn next<R: Read>(reader: &mut csv::Reader<Strict<R>>, record: &mut ByteRecord, what: &str) -> Result<bool> {
    reader.read_byte_record(record).map_err(|error| match reader.get_ref().broken() {
        Some(detail) => broken(record, what, detail),
        None => unread(&error, what),
    })
}

fn broken(record: &ByteRecord, what: &str, detail: &str) -> Error {
    let line = record.position().map_or(0, csv::Position::line);
    bad(&format!("{what} (line {line}): {detail}"))
}

fn unread(error: &dyn std::error::Error, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what} could not be read: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io;

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
    fn quotes_are_text_where_there_are_none() {
        let text = "id\tsize\n1\t\"A\" and \"B\"\n2\t\"C\n";
        let options = CsvOptions::new().delimiter(b'\t');
        assert!(options.clone().read(text.as_bytes()).is_err());
        let read = options.quoting(false).read(text.as_bytes()).unwrap();
        assert_eq!((read.len(), read.row(1).fields), (2, &b"\x02\"C"[..]));
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
            ("id,a\n1,x\n2,\"y\n3,z\n", "row 2 (line 3): its quotes are not closed"),
            ("id,a\n1,\"x\ny\"\n2,\"\"\"", "row 2 (line 4): its quotes are not closed"),
            ("id,\"a\n1,x\n", "the header (line 1): its quotes are not closed"),
            ("id,a\n1,x\n2,\"y\"z\n", "row 2 (line 3): text stands behind a closing quote"),
            ("id,a\n1\n2,\"y\"z\n", "row 1 (line 2): 1 fields, not 2"),
            (&format!("id,a\n1{}\n", ",".repeat(66)), "row 1 (line 2): it has more than 66 fields"),
        ] {
            assert!(refused(text).contains(said), "{text:?}: {}", refused(text));
        }
        let broken = CsvOptions::new().read(&b"id,a\n\xff,x\n"[..]).unwrap_err();
        assert!(broken.to_string().contains("row 1 (line 2): its key is no UTF-8"), "{broken}");
    }

    #[test]
    fn a_byte_order_mark_is_none_of_the_header_however_it_comes() {
        let text = b"\xef\xbb\xbf\"id\",\"a\"\n1,x\n";
        for at in 0..text.len() {
            let (begin, rest) = text.split_at(at);
            let rows = CsvOptions::new().read(begin.chain(rest)).unwrap();
            assert_eq!((rows.len(), rows.columns()), (1, &["a".to_owned()][..]));
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_broken_row() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("as the test wants"))
            }
        }
        for (text, said) in
            [("", "the first line could"), ("id,a\n", "row 1 could"), ("id,a\n1,x\n2,\"y", "row 2 could")]
        {
            let error = CsvOptions::new().read(text.as_bytes().chain(Failing)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains(said) && error.to_string().contains("as the test wants"), "{error}");
        }
    }
}
