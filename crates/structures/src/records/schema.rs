//! Schemas: what a record holds, in which bits.

use std::collections::HashMap;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::{Error, ErrorKind, Result};

use super::layout::{self, Bits};

/// The most fields of a schema.
pub const FIELDS_MAX: usize = 255;
/// The widest record, in bits.
pub const RECORD_BITS_MAX: usize = 8_192;
/// The longest name of a field, and the longest label, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// What names and labels may take together, in bytes: they stand in the manifest.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// What the records of a [`PackedRecords`](super::PackedRecords) hold: fields of a few bits each, in the order they were declared, without gaps.
///
/// ```
/// use larder_structures::records::Schema;
/// let schema = Schema::new()
///     .choice("place", ["CA-BC", "CA-ON", "US-NY"])
///     .bit("paid")
///     .uint("visits", 5)
///     .build()?;
/// assert_eq!(schema.bits(), 2 + 1 + 5);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
    bits: usize,
}

/// A field of a [`Schema`].
#[derive(Clone)]
pub struct Field {
    name: String,
    kind: FieldKind,
    /// Bits of the record before it.
    offset: usize,
    /// The numbers of the labels of a choice.
    numbers: HashMap<String, u64>,
}

/// What a field can hold. Every field that was never written reads as zeros: false, 0, no choice, zero bytes.
///
/// ```
/// use larder_structures::records::FieldKind;
/// assert_eq!(FieldKind::Choice(vec!["red".into(), "green".into(), "blue".into()]).bits(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// True or false: 1 bit.
    Bit,
    /// A number from 0 to 2^bits - 1; 1 to 64 bits.
    Uint(u8),
    /// A number from -2^(bits-1) to 2^(bits-1) - 1; 1 to 64 bits.
    Int(u8),
    /// One of these labels, or none: as many bits as it takes to count them, none included.
    Choice(Vec<String>),
    /// So many bytes, 1 to 255.
    Bytes(u8),
}

impl FieldKind {
    /// How many bits it takes.
    ///
    /// ```
    /// assert_eq!(larder_structures::records::FieldKind::Bytes(3).bits(), 24);
    /// ```
    pub fn bits(&self) -> usize {
        match self {
            FieldKind::Bit => 1,
            FieldKind::Uint(bits) | FieldKind::Int(bits) => usize::from(*bits),
            FieldKind::Choice(labels) => (usize::BITS - labels.len().leading_zeros()) as usize,
            FieldKind::Bytes(bytes) => usize::from(*bytes) * 8,
        }
    }
}

/// The value of a field.
///
/// ```
/// use larder_structures::records::Value;
/// assert_eq!(Value::from(7u64).to_string(), "7");
/// assert_eq!(Value::Choice(None).to_string(), "");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// Of a bit.
    Bit(bool),
    /// Of an unsigned number.
    Uint(u64),
    /// Of a signed number.
    Int(i64),
    /// Of a choice; `None` where none was made.
    Choice(Option<String>),
    /// Of bytes.
    Bytes(Bytes),
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bit(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Uint(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Choice(Some(value.to_owned()))
    }
}

impl From<Bytes> for Value {
    fn from(value: Bytes) -> Value {
        Value::Bytes(value)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bit(bit) => write!(f, "{}", u8::from(*bit)),
            Value::Uint(number) => write!(f, "{number}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Choice(label) => f.write_str(label.as_deref().unwrap_or("")),
            Value::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// Declares the fields of a [`Schema`], in their order.
///
/// ```
/// let builder = larder_structures::records::Schema::new().bit("active");
/// assert_eq!(builder.build()?.bits(), 1);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SchemaBuilder(Vec<(String, FieldKind)>);

impl SchemaBuilder {
    /// A bit.
    pub fn bit(self, name: impl Into<String>) -> SchemaBuilder {
        self.field(name, FieldKind::Bit)
    }

    /// An unsigned number of so many bits.
    pub fn uint(self, name: impl Into<String>, bits: u8) -> SchemaBuilder {
        self.field(name, FieldKind::Uint(bits))
    }

    /// A signed number of so many bits.
    pub fn int(self, name: impl Into<String>, bits: u8) -> SchemaBuilder {
        self.field(name, FieldKind::Int(bits))
    }

    /// One of these labels, or none.
    pub fn choice<L: Into<String>>(
        self,
        name: impl Into<String>,
        labels: impl IntoIterator<Item = L>,
    ) -> SchemaBuilder {
        self.field(name, FieldKind::Choice(labels.into_iter().map(Into::into).collect()))
    }

    /// So many bytes.
    pub fn bytes(self, name: impl Into<String>, bytes: u8) -> SchemaBuilder {
        self.field(name, FieldKind::Bytes(bytes))
    }

    /// A field of any kind.
    pub fn field(mut self, name: impl Into<String>, kind: FieldKind) -> SchemaBuilder {
        self.0.push((name.into(), kind));
        self
    }

    /// The schema.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for no field or more than [`FIELDS_MAX`], for two of one name, for a name or a label that is empty, longer than
    /// [`NAME_BYTES_MAX`] or given twice, for a width out of range, for a record of more than [`RECORD_BITS_MAX`] bits, and for names and labels of more than
    /// [`SCHEMA_BYTES_MAX`] together.
    pub fn build(self) -> Result<Schema> {
        if !(1..=FIELDS_MAX).contains(&self.0.len()) {
            return bad(format!("a schema has {} fields; it takes 1 to {FIELDS_MAX}", self.0.len()));
        }
        let mut fields: Vec<Field> = Vec::with_capacity(self.0.len());
        let mut offset = 0;
        for (name, kind) in self.0 {
            check_text("the name of a field", &name)?;
            if fields.iter().any(|field| field.name == name) {
                return bad(format!("two fields are called {name:?}"));
            }
            let numbers = check_kind(&name, &kind)?;
            let bits = kind.bits();
            fields.push(Field { name, kind, offset, numbers });
            offset += bits;
        }
        if offset > RECORD_BITS_MAX {
            return bad(format!("a record has {offset} bits; the limit is {RECORD_BITS_MAX}"));
        }
        let schema = Schema { fields, bits: offset };
        let bytes = schema.encode().len();
        if bytes > SCHEMA_BYTES_MAX {
            return bad(format!("names and labels take {bytes} bytes; the limit is {SCHEMA_BYTES_MAX}"));
        }
        Ok(schema)
    }
}

fn bad<T>(detail: String) -> Result<T> {
    Err(Error::new(ErrorKind::BadInput, detail))
}

fn check_text(what: &str, text: &str) -> Result<()> {
    if !(1..=NAME_BYTES_MAX).contains(&text.len()) {
        return bad(format!("{what} has {} bytes; it takes 1 to {NAME_BYTES_MAX}: {text:?}", text.len()));
    }
    Ok(())
}

/// Checks a field's kind: the numbers of its labels.
fn check_kind(name: &str, kind: &FieldKind) -> Result<HashMap<String, u64>> {
    match kind {
        FieldKind::Uint(bits) | FieldKind::Int(bits) if !(1..=64).contains(bits) => {
            bad(format!("field {name} has {bits} bits; a number takes 1 to 64"))
        }
        FieldKind::Bytes(0) => bad(format!("field {name} has 0 bytes; it takes 1 to 255")),
        FieldKind::Choice(labels) => {
            if !(1..=usize::from(u16::MAX)).contains(&labels.len()) {
                return bad(format!("field {name} has {} labels; it takes 1 to {}", labels.len(), u16::MAX));
            }
            let mut numbers = HashMap::with_capacity(labels.len());
            for (number, label) in (1..).zip(labels) {
                check_text("a label", label)?;
                if numbers.insert(label.clone(), number).is_some() {
                    return bad(format!("field {name} has the label {label:?} twice"));
                }
            }
            Ok(numbers)
        }
        _ => Ok(HashMap::new()),
    }
}

impl Schema {
    /// Declares a schema.
    #[allow(clippy::new_ret_no_self)] // a schema is built field by field
    pub fn new() -> SchemaBuilder {
        SchemaBuilder::default()
    }

    /// Reads fields as the command takes them: `name:bit`, `name:u7`, `name:i20`, `name:bytes4`, `name:RED|GREEN|BLUE`.
    ///
    /// # Errors
    /// As [`build`](SchemaBuilder::build), and [`BadInput`](ErrorKind::BadInput) for any other form.
    ///
    /// ```
    /// use larder_structures::records::Schema;
    /// assert_eq!(Schema::parse(["age:u7", "place:CA|US", "vip:bit"])?.bits(), 10);
    /// assert!(Schema::parse(["age"]).is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn parse<'a>(fields: impl IntoIterator<Item = &'a str>) -> Result<Schema> {
        let mut builder = Schema::new();
        for text in fields {
            let Some((name, kind)) = text.split_once(':') else {
                return bad(format!("a field is {text:?}; it takes the form NAME:KIND, as in age:u7"));
            };
            let number = |digits: &str| digits.parse::<u8>().ok();
            let kind = if kind == "bit" {
                FieldKind::Bit
            } else if let Some(bits) = kind.strip_prefix('u').and_then(number) {
                FieldKind::Uint(bits)
            } else if let Some(bits) = kind.strip_prefix('i').and_then(number) {
                FieldKind::Int(bits)
            } else if let Some(bytes) = kind.strip_prefix("bytes").and_then(number) {
                FieldKind::Bytes(bytes)
            } else if kind.contains('|') {
                FieldKind::Choice(kind.split('|').map(str::to_owned).collect())
            } else {
                return bad(format!(
                    "field {name} is of kind {kind:?}; there are bit, u1 to u64, i1 to i64, bytes1 to bytes255, and labels as in A|B|C"
                ));
            };
            builder = builder.field(name, kind);
        }
        builder.build()
    }

    /// The bits of a record.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// The fields, in their order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Where a field is among the others.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) if there is none of that name; the message names those that there are.
    pub fn position(&self, name: &str) -> Result<usize> {
        self.fields.iter().position(|field| field.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.fields.iter().map(Field::name).take(10).collect();
            Error::new(ErrorKind::BadInput, format!("there is no field {name:?}; there are {}", names.join(", ")))
        })
    }

    /// The first thing that another schema has otherwise: what is printed of two may be the same, since long lists of labels are cut short.
    pub(crate) fn difference(&self, other: &Schema) -> String {
        let none = || "no more fields".to_owned();
        let at = self.fields.iter().zip(&other.fields).take_while(|(mine, theirs)| mine == theirs).count();
        let (mine, theirs) = match (self.fields.get(at), other.fields.get(at)) {
            (Some(mine), Some(theirs)) => (mine, theirs),
            (mine, theirs) => {
                let [mine, theirs] = [mine, theirs].map(|field| field.map_or_else(none, ToString::to_string));
                return format!("field {} is {mine}, not {theirs}", at + 1);
            }
        };
        match (&mine.kind, &theirs.kind) {
            (FieldKind::Choice(labels), FieldKind::Choice(others)) if mine.name == theirs.name => {
                let at = labels.iter().zip(others).take_while(|(label, other)| label == other).count();
                let [label, other] = [labels, others].map(|labels| labels.get(at).map_or("none", String::as_str));
                format!("label {} of field {} is {label}, not {other}", at + 1, mine.name)
            }
            _ => format!("field {} is {mine}, not {theirs}", at + 1),
        }
    }

    /// What the manifest keeps.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(self.fields.len() as u8);
        for field in &self.fields {
            let (kind, size) = match &field.kind {
                FieldKind::Bit => (0, 1),
                FieldKind::Uint(bits) => (1, u16::from(*bits)),
                FieldKind::Int(bits) => (2, u16::from(*bits)),
                FieldKind::Choice(labels) => (3, labels.len() as u16),
                FieldKind::Bytes(bytes) => (4, u16::from(*bytes)),
            };
            out.put_u8(kind);
            out.put_u16_le(size);
            put_text(&mut out, &field.name);
            if let FieldKind::Choice(labels) = &field.kind {
                labels.iter().for_each(|label| put_text(&mut out, label));
            }
        }
        out.freeze()
    }

    /// Reads what the manifest keeps; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Schema> {
        let mut rest = bytes;
        let mut builder = Schema::new();
        for _ in 0..take(&mut rest, 1)?[0] {
            let head = take(&mut rest, 3)?;
            let size = u16::from_le_bytes([head[1], head[2]]);
            let name = take_text(&mut rest)?;
            let kind = match head[0] {
                0 if size == 1 => FieldKind::Bit,
                1 => FieldKind::Uint(u8::try_from(size).ok()?),
                2 => FieldKind::Int(u8::try_from(size).ok()?),
                3 => FieldKind::Choice((0..size).map(|_| take_text(&mut rest)).collect::<Option<_>>()?),
                4 => FieldKind::Bytes(u8::try_from(size).ok()?),
                _ => return None,
            };
            builder = builder.field(name, kind);
        }
        if rest.is_empty() { builder.build().ok() } else { None }
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u8(text.len() as u8);
    out.put_slice(text.as_bytes());
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

fn take_text(rest: &mut &[u8]) -> Option<String> {
    let bytes = take(rest, 1)?[0];
    String::from_utf8(take(rest, usize::from(bytes))?.to_vec()).ok()
}

impl Field {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it holds.
    pub fn kind(&self) -> &FieldKind {
        &self.kind
    }

    /// How many bits of the record are before it.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Reads a value as text: `0` or `1`, digits, a label (or nothing), hex digits.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), naming the field and what it takes.
    ///
    /// ```
    /// use larder_structures::records::{Schema, Value};
    /// let schema = Schema::parse(["age:u7"])?;
    /// assert_eq!(schema.fields()[0].parse("42")?, Value::Uint(42));
    /// assert!(schema.fields()[0].parse("old").is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn parse(&self, text: &str) -> Result<Value> {
        let parsed = match &self.kind {
            FieldKind::Bit => match text {
                "0" | "false" => Some(Value::Bit(false)),
                "1" | "true" => Some(Value::Bit(true)),
                _ => None,
            },
            FieldKind::Uint(_) => text.parse().ok().map(Value::Uint),
            FieldKind::Int(_) => text.parse().ok().map(Value::Int),
            FieldKind::Choice(_) => Some(Value::Choice((!text.is_empty()).then(|| text.to_owned()))),
            FieldKind::Bytes(_) => unhex(text).map(Value::Bytes),
        };
        let value = parsed.ok_or_else(|| self.refused(&format!("{text:?}")))?;
        self.pieces(&value)?;
        Ok(value)
    }

    /// The bits of a value, from the record's first bit on.
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for one that does not fit, naming the field, the limit and the value.
    pub(crate) fn pieces(&self, value: &Value) -> Result<Vec<Bits>> {
        let refused = || self.refused(&value.to_string());
        let bits = self.kind.bits();
        let raw = match (&self.kind, value) {
            (FieldKind::Bit, Value::Bit(bit)) => u64::from(*bit),
            (FieldKind::Uint(_), Value::Uint(number)) if bits == 64 || number >> bits == 0 => *number,
            (FieldKind::Int(_), Value::Int(number)) => {
                let spare = 64 - bits as u32;
                if (number << spare) >> spare != *number {
                    return Err(refused());
                }
                ((*number as u64) << spare) >> spare
            }
            (FieldKind::Choice(_), Value::Choice(None)) => 0,
            (FieldKind::Choice(_), Value::Choice(Some(label))) => *self.numbers.get(label).ok_or_else(refused)?,
            (FieldKind::Bytes(count), Value::Bytes(bytes)) if bytes.len() == usize::from(*count) => {
                return Ok(layout::of_bytes(self.offset as u64, bytes));
            }
            _ => return Err(refused()),
        };
        Ok(layout::of_number(self.offset as u64, bits as u8, raw))
    }

    /// The widths of the numbers that its bits are read as.
    pub(crate) fn parts(&self) -> Vec<Bits> {
        match self.kind {
            FieldKind::Bytes(count) => layout::of_bytes(self.offset as u64, &vec![0; usize::from(count)]),
            _ => layout::of_number(self.offset as u64, self.kind.bits() as u8, 0),
        }
    }

    /// The value of numbers that were read as [`parts`](Field::parts) says.
    ///
    /// # Errors
    /// [`LayoutMismatch`](ErrorKind::LayoutMismatch) for a choice that there is no label of.
    pub(crate) fn value(&self, read: &[u64]) -> Result<Value> {
        let bits = self.kind.bits();
        Ok(match &self.kind {
            FieldKind::Bytes(count) => Value::Bytes(layout::to_bytes(usize::from(*count), read)),
            kind => {
                let raw = layout::to_number(bits as u8, read);
                match kind {
                    FieldKind::Bit => Value::Bit(raw != 0),
                    FieldKind::Int(_) => {
                        let spare = 64 - bits as u32;
                        Value::Int(((raw << spare) as i64) >> spare)
                    }
                    FieldKind::Choice(labels) => Value::Choice(match raw {
                        0 => None,
                        number => {
                            let label = usize::try_from(number - 1).ok().and_then(|at| labels.get(at));
                            Some(label.cloned().ok_or_else(|| {
                                let detail = format!(
                                    "field {} holds choice {number}; it has {} labels",
                                    self.name,
                                    labels.len()
                                );
                                Error::new(ErrorKind::LayoutMismatch, detail)
                            })?)
                        }
                    }),
                    _ => Value::Uint(raw),
                }
            }
        })
    }

    fn refused(&self, value: &str) -> Error {
        let takes = match &self.kind {
            FieldKind::Bit => "0 or 1".to_owned(),
            FieldKind::Uint(bits) => format!("0 to {} ({bits} bits)", u64::MAX >> (64 - bits)),
            FieldKind::Int(bits) => {
                format!("{} to {} ({bits} bits)", i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
            }
            FieldKind::Choice(labels) => match &labels[..] {
                few if few.len() <= 8 => format!("one of {}", few.join(", ")),
                many => format!("one of {} labels, as {}", many.len(), many[0]),
            },
            FieldKind::Bytes(count) => format!("{count} bytes"),
        };
        Error::new(ErrorKind::BadInput, format!("field {} takes {takes}, not {value}", self.name))
    }
}

fn unhex(text: &str) -> Option<Bytes> {
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        (&self.name, &self.kind) == (&other.name, &other.kind)
    }
}

impl Eq for Field {}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// As [`Schema::parse`] takes it.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        match &self.kind {
            FieldKind::Bit => f.write_str("bit"),
            FieldKind::Uint(bits) => write!(f, "u{bits}"),
            FieldKind::Int(bits) => write!(f, "i{bits}"),
            FieldKind::Choice(labels) if labels.len() <= 8 => f.write_str(&labels.join("|")),
            FieldKind::Choice(labels) => {
                write!(f, "{}|…|{} ({} labels)", labels[0], labels[labels.len() - 1], labels.len())
            }
            FieldKind::Bytes(count) => write!(f, "bytes{count}"),
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.fields).finish()
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, field) in self.fields.iter().enumerate() {
            write!(f, "{}{field}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let labels =
            |letter: char, count: u8| FieldKind::Choice((0..count).map(|at| format!("{letter}{at}")).collect());
        let builder = Schema::new().field("bit", FieldKind::Bit).field("u", FieldKind::Uint(9));
        let builder = builder.field("few", labels('e', 8)).field("many", labels('l', 9));
        builder.field("raw", FieldKind::Bytes(2)).build().unwrap()
    }

    #[test]
    fn fields_are_found_by_name_and_stand_one_behind_the_other() {
        let schema = schema();
        let names = ["bit", "u", "few", "many", "raw"];
        assert_eq!(names.map(|name| schema.position(name).unwrap()), [0, 1, 2, 3, 4]);
        assert_eq!(schema.fields().iter().map(Field::name).collect::<Vec<_>>(), names);
        assert_eq!(schema.fields().iter().map(Field::offset).collect::<Vec<_>>(), [0, 1, 10, 14, 18]);
        let error = schema.position("other").unwrap_err();
        assert!(error.detail().contains("there are bit, u, few, many, raw"), "{error}");
        assert_eq!(Schema::decode(&schema.encode()), Some(schema));
    }

    #[test]
    fn a_bit_of_another_size_is_none() {
        let bytes = Schema::new().field("b", FieldKind::Bit).build().unwrap().encode();
        let mut other = bytes.to_vec();
        assert_eq!(other[1..4], [0, 1, 0]);
        other[2] = 2;
        assert!(Schema::decode(&bytes).is_some() && Schema::decode(&other).is_none());
    }

    #[test]
    fn schemas_and_what_they_take_are_told_in_words() {
        let shown = "bit:bit u:u9 few:e0|e1|e2|e3|e4|e5|e6|e7 many:l0|…|l8 (9 labels) raw:bytes2";
        assert_eq!(schema().to_string(), shown);
        let refused = |field: usize| schema().fields()[field].pieces(&Value::Int(7)).unwrap_err().detail().to_owned();
        assert_eq!(refused(2), "field few takes one of e0, e1, e2, e3, e4, e5, e6, e7, not 7");
        assert_eq!(refused(3), "field many takes one of 9 labels, as l0, not 7");
    }

    #[test]
    fn fields_differ_by_name_and_by_kind() {
        let schema = |name: &str, bits| Schema::new().field(name, FieldKind::Uint(bits)).build().unwrap();
        assert_eq!(schema("a", 3), schema("a", 3));
        assert_ne!(schema("a", 3), schema("a", 4));
        assert_ne!(schema("a", 3), schema("b", 3));
    }

    #[test]
    fn what_two_schemas_have_otherwise_is_a_label_only_within_a_field_of_the_same_name() {
        let schema = |name: &str, labels: [&str; 2]| Schema::new().choice(name, labels).build().unwrap();
        let told = |other: Schema| schema("colour", ["red", "blue"]).difference(&other);
        assert_eq!(told(schema("colour", ["red", "green"])), "label 2 of field colour is blue, not green");
        assert_eq!(told(schema("tone", ["red", "blue"])), "field 1 is colour:red|blue, not tone:red|blue");
    }

    #[test]
    fn no_choice_is_the_number_zero() {
        let number = |label: Option<&str>| {
            let value = Value::Choice(label.map(str::to_owned));
            schema().fields()[2].pieces(&value).unwrap()[0].value
        };
        assert_eq!([number(None), number(Some("e0")), number(Some("e7"))], [0, 1, 8]);
    }

    #[test]
    fn hex_digits_come_in_pairs() {
        assert_eq!(unhex("0aFF").as_deref(), Some(&[10, 255][..]));
        assert_eq!(unhex("").as_deref(), Some(&[][..]));
        assert!(["0", "0a1", "0g", "ä"].iter().all(|text| unhex(text).is_none()));
    }
}
