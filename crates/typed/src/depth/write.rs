//! The writing half: a serializer that counts levels, and else hands on what it is given.

use std::fmt::Display;

use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant};
use serde::ser::{SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer};

use super::Levelled;

/// A part of a value: all that is in it is counted.
impl<T: Serialize + ?Sized> Serialize for Levelled<'_, &T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.inner.serialize(self.levels.of(serializer))
    }
}

/// Methods for what holds nothing else.
macro_rules! passed {
    ($($name:ident($($arg:ident: $type:ty),*)),*) => {
        $(fn $name(self, $($arg: $type),*) -> Result<S::Ok, S::Error> {
            self.inner.$name($($arg),*)
        })*
    };
}

/// Methods for what holds one thing.
macro_rules! of_one {
    ($($name:ident($($arg:ident: $type:ty),*)),*) => {
        $(fn $name<T: Serialize + ?Sized>(self, $($arg: $type,)* value: &T) -> Result<S::Ok, S::Error> {
            self.inner.$name($($arg,)* &self.levels.within(S::Error::custom)?.of(value))
        })*
    };
}

/// Methods for what holds any number.
macro_rules! of_many {
    ($($name:ident($($arg:ident: $type:ty),*) -> $of:ident),*) => {
        $(fn $name(self, $($arg: $type),*) -> Result<Self::$of, S::Error> {
            let levels = self.levels.within(S::Error::custom)?;
            Ok(levels.of(self.inner.$name($($arg),*)?))
        })*
    };
}

impl<'o, S: Serializer> Serializer for Levelled<'o, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Levelled<'o, S::SerializeSeq>;
    type SerializeTuple = Levelled<'o, S::SerializeTuple>;
    type SerializeTupleStruct = Levelled<'o, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Levelled<'o, S::SerializeTupleVariant>;
    type SerializeMap = Levelled<'o, S::SerializeMap>;
    type SerializeStruct = Levelled<'o, S::SerializeStruct>;
    type SerializeStructVariant = Levelled<'o, S::SerializeStructVariant>;

    passed!(serialize_i8(v: i8), serialize_i16(v: i16), serialize_i32(v: i32), serialize_i64(v: i64));
    passed!(serialize_u8(v: u8), serialize_u16(v: u16), serialize_u32(v: u32), serialize_u64(v: u64));
    passed!(serialize_i128(v: i128), serialize_u128(v: u128), serialize_f32(v: f32), serialize_f64(v: f64));
    passed!(serialize_bool(v: bool), serialize_char(v: char), serialize_str(v: &str), serialize_none());
    passed!(serialize_unit(), serialize_unit_struct(name: &'static str));
    passed!(serialize_unit_variant(name: &'static str, at: u32, variant: &'static str));

    of_one!(serialize_some(), serialize_newtype_struct(name: &'static str));
    of_one!(serialize_newtype_variant(name: &'static str, at: u32, variant: &'static str));

    of_many!(
        serialize_seq(len: Option<usize>) -> SerializeSeq,
        serialize_tuple(len: usize) -> SerializeTuple,
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct,
        serialize_tuple_variant(name: &'static str, at: u32, variant: &'static str, len: usize) -> SerializeTupleVariant,
        serialize_map(len: Option<usize>) -> SerializeMap,
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct,
        serialize_struct_variant(name: &'static str, at: u32, variant: &'static str, len: usize) -> SerializeStructVariant
    );

    /// As a list of numbers, as which they may be read.
    fn serialize_bytes(self, bytes: &[u8]) -> Result<S::Ok, S::Error> {
        self.levels.within(S::Error::custom)?;
        self.inner.serialize_bytes(bytes)
    }

    fn collect_str<T: Display + ?Sized>(self, text: &T) -> Result<S::Ok, S::Error> {
        self.inner.collect_str(text)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// What is made of parts, one after the other.
macro_rules! of_parts {
    ($($of:ident: $($part:ident($($name:ident)?)),*);* $(;)?) => {
        $(impl<P: $of> $of for Levelled<'_, P> {
            type Ok = P::Ok;
            type Error = P::Error;

            $(fn $part<T: Serialize + ?Sized>(&mut self, $($name: &'static str,)? value: &T) -> Result<(), P::Error> {
                self.inner.$part($($name,)? &self.levels.of(value))
            })*

            fn end(self) -> Result<P::Ok, P::Error> {
                self.inner.end()
            }
        })*
    };
}

of_parts!(
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(name);
    SerializeStructVariant: serialize_field(name);
);
