//! Codecs: how a value becomes bytes, and back.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Fault, depth, finite};

/// How values of a type become bytes, and back.
///
/// A codec has no state: it is a name for a format. It must read what it wrote, on every machine and in every later release of the program.
///
/// # Canonical encodings
/// A set and an array find an element by its bytes: `has`, `remove` and "is it a member already" compare encoded bytes, not values. That is right as long as **equal values
/// have equal bytes** (the encoding is canonical), and only then:
///
/// | codec | canonical |
/// |---|---|
/// | [`Raw`] | always |
/// | [`Postcard`] | for integers, strings, tuples, structs, enums, options, vectors, `BTreeMap` and `BTreeSet` of these |
/// | [`Json`] | for the same: fields stand in the order of the struct |
/// | any of them | **not** for `HashMap` and `HashSet`, whose order is of each process, nor for floats that are equal and differ in bits (`0.0`, `-0.0`) |
///
/// A struct that gains a field has other bytes than it had: members that were added before are then other members. The values of a cache and the events of a log are
/// never compared: any codec will do there.
///
/// ```
/// use bytes::Bytes;
/// use larder_typed::{Codec, Fault};
///
/// /// Numbers, the highest byte first: they sort as they count.
/// struct BigEndian;
///
/// impl Codec<u32> for BigEndian {
///     const NAME: &'static str = "big endian";
///
///     fn encode(number: &u32) -> Result<Bytes, Fault> {
///         Ok(Bytes::copy_from_slice(&number.to_be_bytes()))
///     }
///
///     fn decode(bytes: &Bytes) -> Result<u32, Fault> {
///         Ok(u32::from_be_bytes(bytes[..].try_into()?))
///     }
/// }
/// assert_eq!(BigEndian::decode(&BigEndian::encode(&7).unwrap()).unwrap(), 7);
/// ```
pub trait Codec<T>: 'static {
    /// The codec's name, for errors.
    const NAME: &'static str;

    /// The bytes of a value.
    ///
    /// # Errors
    /// What the codec has to say of a value that it cannot write.
    fn encode(value: &T) -> Result<Bytes, Fault>;

    /// The value of bytes, all of them. Other programs may have written them: a type that holds itself needs a limit on how deeply, since a stack that overflows ends the process.
    /// [`Json`] and [`Postcard`] have one.
    ///
    /// # Errors
    /// What the codec has to say of bytes that are no value of this type.
    fn decode(bytes: &Bytes) -> Result<T, Fault>;
}

/// Bytes as they are: for `Bytes`, `Vec<u8>`, `[u8; N]`, and `String`, whose bytes must be UTF-8 to be read.
///
/// ```
/// use larder_typed::{Codec, Raw};
/// let bytes = Raw::encode(&"grün".to_owned()).unwrap();
/// let text: String = Raw::decode(&bytes).unwrap();
/// assert_eq!(text, "grün");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Raw;

/// JSON, through serde: for other programs and for people. Not canonical for unordered maps: see [`Codec`]. Floats come back as they were, to the bit; NaN and the infinities, for which
/// JSON has no number, are refused, and so are `Some(None)`, which would come back as `None`, and more than 127 levels, which are not read.
///
/// ```
/// use larder_typed::{Codec, Json};
/// assert_eq!(Json::encode(&(1, 'a')).unwrap(), "[1,\"a\"]");
/// assert!(Json::encode(&[0.5, f64::NAN]).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Json;

/// Postcard, through serde: compact, and canonical but for unordered maps and floats: see [`Codec`]. It does not describe itself: a type that changes cannot
/// read what was written before.
///
/// Neither written nor read are more than 127 levels of nesting, so that a few bytes of a type that holds itself cannot overflow the stack of who reads them. A level is a struct, a
/// tuple, a list, a map, an option that is something, or a variant that holds something; a `Box` is none. So a chain of `struct Node { next: Option<Box<Node>> }` has at most 64 nodes.
///
/// ```
/// use larder_typed::{Codec, Postcard};
/// assert_eq!(&Postcard::encode(&(1u32, 'a')).unwrap()[..], b"\x01\x01a");
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Node {
///     next: Option<Box<Node>>,
/// }
/// let chain = |nodes| (1..nodes).fold(Node { next: None }, |node, _| Node { next: Some(Box::new(node)) });
/// assert!(Postcard::encode(&chain(64)).is_ok());
/// assert!(Postcard::encode(&chain(65)).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl Codec<Bytes> for Raw {
    const NAME: &'static str = "raw";

    fn encode(value: &Bytes) -> Result<Bytes, Fault> {
        Ok(value.clone())
    }

    fn decode(bytes: &Bytes) -> Result<Bytes, Fault> {
        Ok(bytes.clone())
    }
}

impl Codec<Vec<u8>> for Raw {
    const NAME: &'static str = "raw";

    fn encode(value: &Vec<u8>) -> Result<Bytes, Fault> {
        Ok(Bytes::copy_from_slice(value))
    }

    fn decode(bytes: &Bytes) -> Result<Vec<u8>, Fault> {
        Ok(bytes.to_vec())
    }
}

impl<const N: usize> Codec<[u8; N]> for Raw {
    const NAME: &'static str = "raw";

    fn encode(value: &[u8; N]) -> Result<Bytes, Fault> {
        Ok(Bytes::copy_from_slice(value))
    }

    fn decode(bytes: &Bytes) -> Result<[u8; N], Fault> {
        bytes[..].try_into().map_err(|_| format!("{} bytes, not {N}", bytes.len()).into())
    }
}

impl Codec<String> for Raw {
    const NAME: &'static str = "raw text";

    fn encode(value: &String) -> Result<Bytes, Fault> {
        Ok(Bytes::copy_from_slice(value.as_bytes()))
    }

    fn decode(bytes: &Bytes) -> Result<String, Fault> {
        Ok(std::str::from_utf8(bytes)?.to_owned())
    }
}

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    const NAME: &'static str = "JSON";

    fn encode(value: &T) -> Result<Bytes, Fault> {
        let nothings = finite::check(value)?;
        let written = serde_json::to_vec(value)?;
        // Some types tell it apart, such as one whose absent field is nothing, and whose null is something.
        if nothings > 0 && finite::check(&serde_json::from_slice::<T>(&written)?)? != nothings {
            return Err("JSON has no word for something that is nothing: Some(None) would come back as None".into());
        }
        Ok(written.into())
    }

    fn decode(bytes: &Bytes) -> Result<T, Fault> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl<T: Serialize + DeserializeOwned> Codec<T> for Postcard {
    const NAME: &'static str = "postcard";

    fn encode(value: &T) -> Result<Bytes, Fault> {
        Ok(depth::encode(value)?.into())
    }

    fn decode(bytes: &Bytes) -> Result<T, Fault> {
        // What stands behind the value is not let be: another type's bytes could pass for one of this.
        match depth::decode(bytes)? {
            (value, 0) => Ok(value),
            (_, rest) => Err(format!("{rest} bytes stand behind the value").into()),
        }
    }
}
