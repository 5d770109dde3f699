//! A serializer that writes nothing: it tells whether JSON reads back what it writes of a value.

use std::cell::Cell;
use std::fmt::Display;

use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
use serde::ser::{SerializeSeq, SerializeStruct, SerializeStructVariant};
use serde::ser::{SerializeTuple, SerializeTupleStruct, SerializeTupleVariant};
use serde_json::{Error, Result};

/// How many lists, maps and variants may stand in one another: `serde_json` reads no more.
pub(crate) const DEPTH_MAX: u8 = 127;
/// How the names begin under which `serde_json` hands itself numbers and JSON that is written as it is.
const OWN: &str = "$serde_json::private::";

/// Fails for a value with NaN or an infinity in it, for which JSON writes `null`, and for one that is nested more deeply than is read. Tells how often something in it is nothing,
/// as in `Some(None)`: it is written as `null`, and that is read as nothing at all unless the type says otherwise.
pub(crate) fn check<T: Serialize + ?Sized>(value: &T) -> Result<u32> {
    let nothings = Cell::new(0);
    value.serialize(Finite { depth: 0, is_some: false, nothings: &nothings })?;
    Ok(nothings.get())
}

/// Passes all that is read back as it was.
#[derive(Clone, Copy)]
struct Finite<'n> {
    /// In how many lists, maps and variants it stands.
    depth: u8,
    /// It is said to be something.
    is_some: bool,
    /// Counts what is said to be something, and is nothing.
    nothings: &'n Cell<u32>,
}

impl Finite<'_> {
    fn float(value: f64) -> Result<()> {
        if value.is_finite() { Ok(()) } else { Err(Error::custom(format!("JSON has no number for {value}"))) }
    }

    /// What is written as `null`.
    fn null(self) -> Result<()> {
        self.nothings.set(self.nothings.get().saturating_add(self.is_some.into()));
        Ok(())
    }

    /// What stands in so many more lists, maps and variants.
    fn within(self, levels: u8) -> Result<Self> {
        match self.depth + levels {
            depth @ ..=DEPTH_MAX => Ok(Finite { depth, is_some: false, ..self }),
            _ => Err(Error::custom(format!("JSON of more than {DEPTH_MAX} levels is not read back"))),
        }
    }
}

/// Methods for what has no float in it.
macro_rules! passed {
    ($($name:ident($type:ty)),*) => {
        $(fn $name(self, _: $type) -> Result<()> {
            Ok(())
        })*
    };
}

impl Serializer for Finite<'_> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    passed!(serialize_bool(bool), serialize_char(char), serialize_str(&str));
    passed!(serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64), serialize_i128(i128));
    passed!(serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64), serialize_u128(u128));

    fn serialize_f32(self, value: f32) -> Result<()> {
        Finite::float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<()> {
        Finite::float(value)
    }

    /// A list of numbers.
    fn serialize_bytes(self, _: &[u8]) -> Result<()> {
        self.within(1).map(drop)
    }

    fn serialize_none(self) -> Result<()> {
        self.null()
    }

    fn serialize_unit(self) -> Result<()> {
        self.null()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<()> {
        self.null()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<()> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<()> {
        value.serialize(Finite { is_some: true, ..self })
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<()> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<()> {
        value.serialize(self.within(1)?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self> {
        self.within(1)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self> {
        self.within(1)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self> {
        self.within(1)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self> {
        self.within(2)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self> {
        self.within(1)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Self> {
        if name.starts_with(OWN) { Ok(self) } else { self.within(1) }
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self> {
        self.within(2)
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Result<()> {
        Ok(())
    }
}

/// What is made of parts, one after the other.
macro_rules! of_parts {
    ($($of:ident: $part:ident($($name:ty)?)),*) => {
        $(impl $of for Finite<'_> {
            type Ok = ();
            type Error = Error;

            fn $part<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<()> {
                value.serialize(*self)
            }

            fn end(self) -> Result<()> {
                Ok(())
            }
        })*
    };
}

of_parts!(
    SerializeSeq: serialize_element(),
    SerializeTuple: serialize_element(),
    SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(),
    SerializeStruct: serialize_field(&'static str),
    SerializeStructVariant: serialize_field(&'static str)
);

impl SerializeMap for Finite<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<()> {
        key.serialize(*self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        value.serialize(*self)
    }

    fn end(self) -> Result<()> {
        Ok(())
    }
}
