//! What CSV must keep to while it is read, so that no row swallows others: quotes that close, and records of a bounded size.

use std::io::{self, Read};

use super::rows::COLUMNS_MAX;

/// The most bytes of a record of CSV, its quotes and delimiters among them.
pub const CSV_RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most fields: those of a range, and the columns.
const FIELDS_MAX: usize = 2 + COLUMNS_MAX;

/// Where the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the begin of a field.
    Begin,
    /// In a field without quotes.
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: it closes, or is the first of two.
    Closed,
}

/// A reader of CSV that fails at the first byte with which a record cannot be right; what comes before that byte is read.
#[derive(Debug)]
pub(super) struct Strict<R> {
    from: R,
    delimiter: u8,
    is_quoting: bool,
    bytes_max: usize,
    place: Place,
    /// Of the record so far.
    bytes: usize,
    delimiters: usize,
    broken: Option<String>,
}

impl<R: Read> Strict<R> {
    pub(super) fn new(from: R, delimiter: u8, is_quoting: bool) -> Strict<R> {
        Strict {
            from,
            delimiter,
            is_quoting,
            bytes_max: CSV_RECORD_BYTES_MAX,
            place: Place::Begin,
            bytes: 0,
            delimiters: 0,
            broken: None,
        }
    }

    /// Why it failed, if it was not what it reads from: the record that is read is wrong.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn take(&mut self, byte: u8) -> Result<(), String> {
        self.place = match (self.place, byte) {
            (Place::Quoted, b'"') => Place::Closed,
            (Place::Quoted, _) | (Place::Closed, b'"') => Place::Quoted,
            (Place::Begin, b'"') if self.is_quoting => Place::Quoted,
            (_, b'\n' | b'\r') => {
                (self.place, self.bytes, self.delimiters) = (Place::Begin, 0, 0);
                return Ok(());
            }
            (_, byte) if byte == self.delimiter => {
                self.delimiters += 1;
                if self.delimiters >= FIELDS_MAX {
                    return Err(format!("it has more than {FIELDS_MAX} fields, the limit"));
                }
                Place::Begin
            }
            (Place::Closed, _) => return Err("text stands behind a closing quote".to_owned()),
            (Place::Begin | Place::Plain, _) => Place::Plain,
        };
        self.bytes += 1;
        if self.bytes > self.bytes_max {
            return Err(format!("it has more than {} bytes, the limit", self.bytes_max));
        }
        Ok(())
    }

    fn failed(&self) -> io::Result<usize> {
        Err(io::Error::other(self.broken.clone().unwrap_or_default()))
    }
}

impl<R: Read> Read for Strict<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.broken.is_some() {
            return self.failed();
        }
        let count = self.from.read(buffer)?;
        if count == 0 && self.place == Place::Quoted {
            self.broken = Some("its quotes are not closed at the end of the input".to_owned());
            return self.failed();
        }
        for (at, &byte) in buffer[..count].iter().enumerate() {
            if let Err(detail) = self.take(byte) {
                self.broken = Some(detail);
                // The rows before it are read first, and one of them may be wrong, too.
                return if at == 0 { self.failed() } else { Ok(at) };
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use csv::{ByteRecord, QuoteStyle, ReaderBuilder, Terminator, WriterBuilder};
    use proptest::prelude::*;

    use super::*;

    /// Comes a few bytes at a time.
    struct Trickle<'b>(&'b [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = self.1.min(buffer.len());
            self.0.read(&mut buffer[..most])
        }
    }

    fn records(from: impl Read, delimiter: u8, is_quoting: bool) -> csv::Result<Vec<ByteRecord>> {
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true).delimiter(delimiter).quoting(is_quoting);
        builder.from_reader(from).into_byte_records().collect()
    }

    fn strict(bytes: &[u8], step: usize) -> Result<Vec<ByteRecord>, String> {
        let mut strict = Strict::new(Trickle(bytes, step), b',', true);
        records(&mut strict, b',', true).map_err(|_| strict.broken().expect("it is the text").to_owned())
    }

    fn written(records: &[Vec<Vec<u8>>], style: QuoteStyle, terminator: Terminator) -> Vec<u8> {
        let mut writer =
            WriterBuilder::new().flexible(true).quote_style(style).terminator(terminator).from_writer(Vec::new());
        records.iter().for_each(|record| writer.write_byte_record(&ByteRecord::from(record.clone())).unwrap());
        writer.into_inner().unwrap()
    }

    fn bytes() -> impl Strategy<Value = u8> {
        prop_oneof![Just(b','), Just(b'"'), Just(b'\n'), Just(b'\r'), Just(b'a'), any::<u8>()]
    }

    fn texts() -> impl Strategy<Value = (Vec<Vec<Vec<u8>>>, Vec<u8>, usize)> {
        let field = prop::collection::vec(bytes(), 0..6);
        let records = prop::collection::vec(prop::collection::vec(field, 1..5), 0..6);
        let style = prop_oneof![Just(QuoteStyle::Always), Just(QuoteStyle::Necessary)];
        let terminator = prop_oneof![Just(Terminator::CRLF), Just(Terminator::Any(b'\n'))];
        (records, style, terminator, 1usize..9).prop_map(|(records, style, terminator, step)| {
            let text = written(&records, style, terminator);
            (records, text, step)
        })
    }

    proptest! {
        #[test]
        fn what_is_well_formed_is_read_as_without_it((pushed, text, step) in texts()) {
            let read = strict(&text, step).unwrap();
            prop_assert_eq!(&read, &records(&text[..], b',', true).unwrap());
            let read: Vec<Vec<&[u8]>> = read.iter().map(|record| record.iter().collect()).collect();
            prop_assert_eq!(read, pushed);
        }

        /// In quotes is where an odd number of them stands before.
        #[test]
        fn what_is_cut_off_in_quotes_is_refused((_, text, step) in texts()) {
            for end in 0..text.len() {
                let quotes = text[..end].iter().filter(|&&byte| byte == b'"').count();
                prop_assert_eq!(strict(&text[..end], step).is_ok(), quotes.is_multiple_of(2), "{} of {:?}", end, text);
            }
        }

        #[test]
        fn without_quotes_whatever_comes_is_read(text in prop::collection::vec(bytes(), 0..99), step in 1usize..9) {
            let strict = Strict::new(Trickle(&text, step), b'\t', false);
            prop_assert_eq!(records(strict, b'\t', false).unwrap(), records(Trickle(&text, step), b'\t', false).unwrap());
        }
    }

    #[test]
    fn text_behind_a_closing_quote_is_refused_and_a_quote_in_plain_text_is_none() {
        for step in 1..9 {
            for text in ["\"a\"b", "\"a\" ,b", "a,\"\"\"\"b\"", "a\n\"b\"\"\"c\"\n"] {
                assert_eq!(strict(text.as_bytes(), step).unwrap_err(), "text stands behind a closing quote", "{text}");
            }
            let read = strict(b"5\" disk, \"b\"\n\"\",\"\"\"\"", step).unwrap();
            assert_eq!(read, [vec!["5\" disk", " \"b\""], vec!["", "\""]]);
        }
    }

    #[test]
    fn a_quote_is_none_where_there_are_none() {
        let mut strict = Strict::new(Trickle(b"\"a\nb\t\"c\"d\n", 3), b'\t', false);
        let read = records(&mut strict, b'\t', false).unwrap();
        assert_eq!(read, [vec!["\"a"], vec!["b", "\"c\"d"]]);
    }

    #[test]
    fn a_record_of_two_megabytes_is_read() {
        const BYTES: u64 = 2 << 20;
        let strict = &mut Strict::new(io::repeat(b'a').take(BYTES), b',', true);
        assert_eq!(io::copy(strict, &mut io::sink()).unwrap(), BYTES);
    }

    #[test]
    fn a_record_ends_at_its_limits() {
        let read = |text: &str| {
            let mut strict = Strict::new(Trickle(text.as_bytes(), 4), b',', true);
            strict.bytes_max = 8;
            io::copy(&mut strict, &mut io::sink()).map_err(|error| error.to_string())
        };
        for text in
            ["12345678\n12345678\r\n\n1,3,5,78\n", "\"2345\"8\"", "12345678"].map(|text| text.replace("8\"", "\"\""))
        {
            assert_eq!(read(&text), Ok(text.len() as u64), "{text}");
        }
        for text in ["1\n123456789", "\"2\n4\n6\n8\n", "1,3,5,7,9"] {
            assert_eq!(read(text).unwrap_err(), "it has more than 8 bytes, the limit", "{text}");
        }
        let fields = |count: usize| format!("a\n{}\nb\n", vec!["1"; count].join(","));
        assert_eq!(strict(fields(FIELDS_MAX).as_bytes(), 7).unwrap().len(), 3);
        let refused = strict(fields(FIELDS_MAX + 1).as_bytes(), 7).unwrap_err();
        assert_eq!(refused, "it has more than 66 fields, the limit");
    }
}
