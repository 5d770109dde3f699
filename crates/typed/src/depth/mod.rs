//! Postcard with a limit on how deeply parts of a value stand in one another: bytes from anywhere must not overflow the stack of who reads them.

mod read;
mod write;

use std::cell::Cell;
use std::fmt::Display;

use bytes::Bytes;
use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed};

use crate::{Fault, finite};

/// How many levels there may be: as many as of JSON.
const LEVELS_MAX: u8 = finite::DEPTH_MAX;

/// The bytes of a value.
///
/// # Errors
/// More levels than [`decode`] reads; what postcard has to say.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Fault> {
    let is_over = Cell::new(false);
    let written = postcard::to_stdvec(&Levelled { inner: value, levels: Levels::new(&is_over) });
    told(written, &is_over)
}

/// The value that the bytes begin with, and how many bytes stand behind it.
///
/// # Errors
/// More than [`LEVELS_MAX`] levels; what postcard has to say.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &Bytes) -> Result<(T, usize), Fault> {
    let is_over = Cell::new(false);
    let mut reader = postcard::Deserializer::from_bytes(bytes);
    let whole = Levelled { inner: std::marker::PhantomData::<T>, levels: Levels::new(&is_over) };
    let value = told(whole.deserialize(&mut reader), &is_over)?;
    Ok((value, reader.finalize()?.len()))
}

/// What came of it, unless there were too many levels: postcard's errors have no words of their own, and a type may pass over one.
fn told<T>(outcome: postcard::Result<T>, is_over: &Cell<bool>) -> Result<T, Fault> {
    if is_over.get() { Err(TooDeep.to_string().into()) } else { Ok(outcome?) }
}

/// A serializer, a deserializer, or what one of them is handed, and how deeply it stands.
///
/// A level is an option that is something, a list, a tuple, a map, a struct, or a variant with something in it. Bytes are one where they are written, as they may be read as a list.
/// They are those that the type itself says: one whose `Serialize` leaves out a level that its `Deserialize` has may write what it does not read.
#[derive(Clone, Copy)]
struct Levelled<'o, X> {
    inner: X,
    levels: Levels<'o>,
}

/// How many levels are left.
#[derive(Clone, Copy)]
struct Levels<'o> {
    left: u8,
    /// Set where there were too many.
    is_over: &'o Cell<bool>,
}

impl<'o> Levels<'o> {
    fn new(is_over: &'o Cell<bool>) -> Levels<'o> {
        Levels { left: LEVELS_MAX, is_over }
    }

    /// Within one level more; an error, made by `error`, where there are too many.
    fn within<E>(self, error: fn(TooDeep) -> E) -> Result<Levels<'o>, E> {
        match self.left.checked_sub(1) {
            Some(left) => Ok(Levels { left, ..self }),
            None => {
                self.is_over.set(true);
                Err(error(TooDeep))
            }
        }
    }

    /// What stands as deeply.
    fn of<X>(self, inner: X) -> Levelled<'o, X> {
        Levelled { inner, levels: self }
    }
}

/// The error of a value with too many levels.
struct TooDeep;

impl Display for TooDeep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {LEVELS_MAX} levels of nesting")
    }
}
