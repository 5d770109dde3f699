//! Queues and stacks of typed items.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::time::Duration;

use larder_core::Result;
use larder_structures::queue::Claim;

use crate::undecoded::{all_encoded, decoded, encoded};
use crate::{Codec, typed};

/// An example, in which `jobs` is an open queue or stack of pairs.
macro_rules! example {
    ($raw:literal, $typed:literal; $($line:literal),*) => {
        concat!(
            "\n\n```\n# use larder_core::StoreRef;\n# use larder_structures::", $raw, ";\n# use larder_typed::", $typed, ";\n",
            "# use std::time::Duration;\n# #[tokio::main(flavor = \"current_thread\")]\n",
            "# async fn main() -> larder_core::Result<()> {\n",
            "# let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            "let jobs: ", $typed, "<(u8, String)> = ", $typed, "::new(", $raw, "::open_or_create(&store, \"jobs\").await?);\n",
            $($line, "\n",)*
            "# Ok(())\n# }\n```"
        )
    };
}

/// A queue or a stack: they differ in the order alone.
macro_rules! items {
    ($name:ident, $typed:literal, $raw:ident, $kind:literal) => {
        typed! {
            #[doc = concat!("A [`", $kind, "`](larder_structures::", $kind, ") of items of a type: a cheap clone.\n\nItems are never compared, so any codec will do.")]
            #[doc = example!($kind, $typed; "jobs.push(&(1, \"mail\".to_owned())).await?;", "assert_eq!(jobs.pop().await?.unwrap().0, 1);")]
            $name of $raw
        }

        impl<T, C: Codec<T>> $name<T, C> {
            #[doc = concat!("Pushes an item. Round trips: as [`", $kind, "::push`](larder_structures::", $kind, "::push).")]
            #[doc = example!($kind, $typed; "jobs.push(&(1, \"mail\".to_owned())).await?;")]
            ///
            /// # Errors
            /// [`BadInput`](larder_core::ErrorKind::BadInput) for an item that the codec cannot write; else as there.
            pub async fn push(&self, item: &T) -> Result<()> {
                self.raw.push(encoded::<T, C>("an item", item)?).await
            }

            #[doc = concat!("Pushes items. Round trips: as [`", $kind, "::push_all`](larder_structures::", $kind, "::push_all).")]
            #[doc = example!($kind, $typed; "jobs.push_all([(1, \"mail\".to_owned()), (2, \"print\".to_owned())]).await?;")]
            ///
            /// # Errors
            /// As `push`.
            pub async fn push_all(&self, items: impl IntoIterator<Item = impl Borrow<T>>) -> Result<()> {
                self.raw.push_all(all_encoded::<T, C>("an item", items)?).await
            }

            #[doc = concat!("Takes an item for good. Round trips: as [`", $kind, "::pop`](larder_structures::", $kind, "::pop).")]
            ///
            /// An item that is none of the type is taken as well: the error has its bytes. To look before it is gone, claim it.
            #[doc = example!($kind, $typed; "assert_eq!(jobs.pop().await?, None);")]
            ///
            /// # Errors
            /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for an item that is none of the type, see [`Undecoded`](crate::Undecoded); else as there.
            pub async fn pop(&self) -> Result<Option<T>> {
                self.raw.pop().await?.map(|item| decoded::<T, C>("an item", item)).transpose()
            }

            #[doc = concat!("Takes an item for good, and waits for one if there is none, as [`", $kind, "::pop_within`](larder_structures::", $kind, "::pop_within) does. Round trips: as there.")]
            #[doc = example!($kind, $typed; "assert_eq!(jobs.pop_within(Duration::from_millis(20)).await?, None);")]
            ///
            /// # Errors
            /// As `pop`; else as there.
            pub async fn pop_within(&self, wait: Duration) -> Result<Option<T>> {
                self.raw.pop_within(wait).await?.map(|item| decoded::<T, C>("an item", item)).transpose()
            }

            #[doc = concat!("Takes an item for a time, and waits for one if there is none, as [`", $kind, "::claim_within`](larder_structures::", $kind, "::claim_within) does. Round trips: as there.")]
            #[doc = example!($kind, $typed;
                "jobs.push(&(1, \"mail\".to_owned())).await?;",
                "let claim = jobs.claim_within(Duration::from_secs(30), Duration::from_secs(60)).await?.expect(\"a job\");",
                "assert_eq!(claim.item()?.1, \"mail\");"
            )]
            ///
            /// # Errors
            /// As there; whether it is of the type is told by [`TypedClaim::item`].
            pub async fn claim_within(&self, lease: Duration, wait: Duration) -> Result<Option<TypedClaim<T, C>>> {
                Ok(self.raw.claim_within(lease, wait).await?.map(|raw| TypedClaim { raw, of: PhantomData }))
            }

            #[doc = concat!("Takes an item for a time. Round trips: as [`", $kind, "::claim`](larder_structures::", $kind, "::claim).")]
            #[doc = example!($kind, $typed;
                "jobs.push(&(1, \"mail\".to_owned())).await?;",
                "let claim = jobs.claim(Duration::from_secs(30)).await?.expect(\"a job\");",
                "assert_eq!(claim.item()?.1, \"mail\");",
                "claim.raw().ack().await?;"
            )]
            ///
            /// # Errors
            /// As there; whether it is of the type is told by [`TypedClaim::item`].
            pub async fn claim(&self, lease: Duration) -> Result<Option<TypedClaim<T, C>>> {
                Ok(self.raw.claim(lease).await?.map(|raw| TypedClaim { raw, of: PhantomData }))
            }
        }
    };
}

items!(TypedQueue, "TypedQueue", Queue, "Queue");
items!(TypedStack, "TypedStack", Stack, "Stack");

/// A claimed item of a type.
///
/// ```
/// # use larder_typed::TypedClaim;
/// async fn work(claim: TypedClaim<u32>) -> larder_core::Result<()> {
///     println!("job {}", claim.item()?);
///     claim.raw().ack().await
/// }
/// ```
pub struct TypedClaim<T, C = crate::Postcard> {
    raw: Claim,
    of: PhantomData<fn() -> (T, C)>,
}

impl<T, C: Codec<T>> TypedClaim<T, C> {
    /// The item.
    ///
    /// ```
    /// # fn look(claim: &larder_typed::TypedClaim<u32>) -> larder_core::Result<u32> {
    /// claim.item()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) if it is none of the type, see [`Undecoded`](crate::Undecoded); it is still claimed.
    pub fn item(&self) -> Result<T> {
        decoded::<T, C>("a claimed item", self.raw.item().clone())
    }

    /// The claim underneath: to acknowledge it, to renew it, to give it back.
    ///
    /// ```
    /// # async fn done(claim: &larder_typed::TypedClaim<u32>) -> larder_core::Result<()> {
    /// claim.raw().ack().await
    /// # }
    /// ```
    pub fn raw(&self) -> &Claim {
        &self.raw
    }
}

impl<T, C> std::fmt::Debug for TypedClaim<T, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TypedClaim").field(&self.raw).finish()
    }
}
