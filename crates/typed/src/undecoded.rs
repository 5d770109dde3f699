//! Stored bytes that are no value of the type.

use std::fmt;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};

use crate::{Codec, Fault};

/// Stored bytes that are no value of the type: the source of an error of kind [`LayoutMismatch`](ErrorKind::LayoutMismatch), with the bytes.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Set;
/// use larder_typed::{Json, TypedSet, Undecoded};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let raw = Set::open_or_create(&store, "ports").await?;
/// raw.add(["no number"]).await?;
/// let ports: TypedSet<u16, Json> = TypedSet::new(raw);
/// let error = ports.members().await.unwrap_err();
/// let undecoded = Undecoded::of(&error).expect("the bytes that are no u16");
/// assert_eq!(undecoded.bytes(), "no number");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Undecoded {
    bytes: Bytes,
    codec: &'static str,
    cause: Fault,
}

impl Undecoded {
    /// What an error says of stored bytes that could not be decoded, if it is of that.
    ///
    /// ```
    /// use larder_core::{Error, ErrorKind};
    /// use larder_typed::Undecoded;
    /// assert!(Undecoded::of(&Error::new(ErrorKind::LayoutMismatch, "of something else")).is_none());
    /// ```
    pub fn of(error: &Error) -> Option<&Undecoded> {
        std::error::Error::source(error)?.downcast_ref()
    }

    /// The bytes as they are stored.
    ///
    /// ```
    /// # fn shown(undecoded: &larder_typed::Undecoded) -> String {
    /// format!("{:x?}", undecoded.bytes())
    /// # }
    /// ```
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The name of the codec that could not read them.
    ///
    /// ```
    /// # fn shown(undecoded: &larder_typed::Undecoded) -> String {
    /// format!("no {}", undecoded.codec())
    /// # }
    /// ```
    pub fn codec(&self) -> &'static str {
        self.codec
    }
}

impl fmt::Display for Undecoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no {} of the type: {}", Shown(&self.bytes), self.codec, self.cause)
    }
}

impl std::error::Error for Undecoded {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.cause)
    }
}

/// The bytes of a value; `what` says which, in errors.
pub(crate) fn encoded<T, C: Codec<T>>(what: impl fmt::Display, value: &T) -> Result<Bytes> {
    C::encode(value).map_err(|cause| {
        let detail = format!("{what} cannot be written as {}: {cause}", C::NAME);
        Error::new(ErrorKind::BadInput, detail).source(Unwritable(cause))
    })
}

/// The bytes of several values.
pub(crate) fn all_encoded<T, C: Codec<T>>(
    what: &str,
    values: impl IntoIterator<Item = impl std::borrow::Borrow<T>>,
) -> Result<Vec<Bytes>> {
    values.into_iter().map(|value| encoded::<T, C>(what, value.borrow())).collect()
}

/// The value of stored bytes; `what` says which, in errors.
pub(crate) fn decoded<T, C: Codec<T>>(what: impl fmt::Display, bytes: Bytes) -> Result<T> {
    C::decode(&bytes).map_err(|cause| {
        let detail = format!("{what}, {}, is no {} of the type: {cause}", Shown(&bytes), C::NAME);
        Error::new(ErrorKind::LayoutMismatch, detail).source(Undecoded { bytes, codec: C::NAME, cause })
    })
}

/// Why a value could not be written. A box of an error is none itself.
#[derive(Debug)]
struct Unwritable(Fault);

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for Unwritable {}
