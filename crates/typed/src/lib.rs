//! Typed values in Larder's structures.
//!
//! At the bottom, members, values, elements and events are bytes. A [`Codec`] says how values of a type become bytes: [`Raw`], [`Json`] and [`Postcard`] are here, and your own is
//! three lines. The typed handles wrap the structures' own, with the same guarantees and round trips: nothing is stored but the encoded bytes, so programs in
//! other languages, and the handle underneath ([`raw`](TypedSet::raw)), work on the same data.
//!
//! | typed | of | what is encoded |
//! |---|---|---|
//! | [`TypedSet`] | [`Set`](larder_structures::Set) | members; the encoding must be canonical: see [`Codec`] |
//! | [`TypedArray`] | [`Array`](larder_structures::Array) | elements; for `remove` and `change`, the same |
//! | [`TypedCache`] | [`Cache`](larder_structures::Cache) | values |
//! | [`TypedEventLog`] | [`EventLog`](larder_structures::EventLog) | events |
//! | [`TypedShardedHash`] | [`ShardedHash`](larder_structures::ShardedHash) | values; fields are bytes |
//! | [`TypedShardedSet`], [`TypedShardedSortedSet`] | [`ShardedSet`](larder_structures::ShardedSet), [`ShardedSortedSet`](larder_structures::ShardedSortedSet) | members; the encoding must be canonical |
//! | [`TypedTable`] | [`Table`](larder_structures::Table) | values; keys are bytes |
//! | [`TypedQueue`], [`TypedStack`] | [`Queue`](larder_structures::Queue), [`Stack`](larder_structures::Stack) | items |
//!
//! A value that cannot be written is [`BadInput`](larder_core::ErrorKind::BadInput), and nothing is sent. Bytes that are no value of the type are a [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch)
//! that names the element, and [`Undecoded`] has the bytes; the other elements can still be had.

mod array;
mod cache;
mod codec;
mod depth;
mod finite;
mod log;
mod queue;
mod set;
mod sharded;
mod table;
mod undecoded;

pub use array::TypedArray;
pub use cache::{TypedCache, TypedCached};
pub use codec::{Codec, Json, Postcard, Raw};
pub use log::{TypedEvent, TypedEventLog};
pub use queue::{TypedClaim, TypedQueue, TypedStack};
pub use set::TypedSet;
pub use sharded::{TypedShardedHash, TypedShardedSet, TypedShardedSortedSet};
pub use table::TypedTable;
pub use undecoded::Undecoded;

/// Why a codec could not do it.
///
/// ```
/// let fault: larder_typed::Fault = "three bytes are missing".into();
/// ```
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A typed handle: the handle underneath, and what every typed one has.
macro_rules! typed {
    ($(#[$doc:meta])* $name:ident of $raw:ident) => {
        $(#[$doc])*
        pub struct $name<T, C = $crate::Postcard> {
            raw: ::larder_structures::$raw,
            of: ::std::marker::PhantomData<fn() -> (T, C)>,
        }

        impl<T, C: $crate::Codec<T>> $name<T, C> {
            /// Values of a type in what is open already. **Round trips: 0.** What is there is not looked at.
            #[doc = concat!("\n\n```\n# fn typed(raw: larder_structures::", stringify!($raw), ") {\n")]
            #[doc = concat!("let typed: larder_typed::", stringify!($name), "<(u32, String)> = larder_typed::", stringify!($name), "::new(raw);")]
            #[doc = "\n# }\n```"]
            pub fn new(raw: ::larder_structures::$raw) -> $name<T, C> {
                $name { raw, of: ::std::marker::PhantomData }
            }

            /// The handle underneath, for what needs no types, and for the bytes.
            #[doc = concat!("\n\n```\n# fn bytes(typed: &larder_typed::", stringify!($name), "<u32>) {\n")]
            #[doc = concat!("let raw: &larder_structures::", stringify!($raw), " = typed.raw();")]
            #[doc = "\n# }\n```"]
            pub fn raw(&self) -> &::larder_structures::$raw {
                &self.raw
            }
        }

        impl<T, C> Clone for $name<T, C> {
            fn clone(&self) -> $name<T, C> {
                $name { raw: self.raw.clone(), of: ::std::marker::PhantomData }
            }
        }

        impl<T, C> ::std::fmt::Debug for $name<T, C> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.raw).finish()
            }
        }
    };
}
pub(crate) use typed;
