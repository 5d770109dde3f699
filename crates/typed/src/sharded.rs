//! Sharded structures of typed values and members.

use std::borrow::Borrow;

use bytes::Bytes;
use larder_core::Result;
use larder_core::text::Shown;

use crate::undecoded::{all_encoded, decoded, encoded};
use crate::{Codec, typed};

/// An example, in which `it` is an open typed handle.
macro_rules! example {
    ($typed:literal, $of:literal, $raw:literal, $($line:literal),*) => {
        concat!(
            "\n\n```\n# use larder_core::StoreRef;\n# use larder_structures::", $raw, ";\n# use larder_typed::", $typed, ";\n",
            "# #[tokio::main(flavor = \"current_thread\")]\n# async fn main() -> larder_core::Result<()> {\n",
            "# let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            "let it: ", $typed, "<", $of, "> = ", $typed, "::new(", $raw, "::open_or_create(&store, \"name\").await?);\n",
            $($line, "\n",)*
            "# Ok(())\n# }\n```"
        )
    };
}

typed! {
    /// A [`ShardedHash`](larder_structures::ShardedHash) of values of a type, by fields that are bytes: a cheap clone.
    ///
    /// Values are never compared, so any codec will do.
    #[doc = example!("TypedShardedHash", "(String, u8)", "ShardedHash", "it.set([(\"joe\", (\"Joe\".to_owned(), 33))]).await?;", "assert_eq!(it.get(\"joe\").await?.unwrap().1, 33);")]
    TypedShardedHash of ShardedHash
}

impl<T, C: Codec<T>> TypedShardedHash<T, C> {
    /// Sets fields. Round trips: as [`ShardedHash::set`](larder_structures::ShardedHash::set).
    #[doc = example!("TypedShardedHash", "u8", "ShardedHash", "assert_eq!(it.set([(\"joe\", 33), (\"ann\", 34)]).await?, [true, true]);")]
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a value that the codec cannot write; nothing was set then. Else as
    /// [`ShardedHash::set`](larder_structures::ShardedHash::set).
    pub async fn set(
        &self,
        entries: impl IntoIterator<Item = (impl AsRef<[u8]>, impl Borrow<T>)>,
    ) -> Result<Vec<bool>> {
        let entry = |(field, value): (_, _)| {
            let field = Bytes::copy_from_slice(AsRef::<[u8]>::as_ref(&field));
            let value = encoded::<T, C>(format_args!("the value of {}", Shown(&field)), Borrow::borrow(&value))?;
            Ok((field, value))
        };
        let entries: Result<Vec<(Bytes, Bytes)>> = entries.into_iter().map(entry).collect();
        self.raw.set(entries?).await
    }

    /// The value of a field. Round trips: as [`ShardedHash::get`](larder_structures::ShardedHash::get).
    #[doc = example!("TypedShardedHash", "u8", "ShardedHash", "assert_eq!(it.get(\"joe\").await?, None);")]
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for a value that is none of the type, see [`Undecoded`](crate::Undecoded); else as
    /// [`ShardedHash::get`](larder_structures::ShardedHash::get).
    pub async fn get(&self, field: impl AsRef<[u8]>) -> Result<Option<T>> {
        let field = field.as_ref();
        self.raw.get(field).await?.map(|value| typed_value::<T, C>(field, value)).transpose()
    }

    /// The values of several fields, in their order. Round trips: as [`ShardedHash::get_many`](larder_structures::ShardedHash::get_many).
    #[doc = example!("TypedShardedHash", "u8", "ShardedHash", "assert_eq!(it.get_many([\"joe\", \"ann\"]).await?, [None, None]);")]
    ///
    /// # Errors
    /// As [`get`](TypedShardedHash::get), for the first value that is none of the type.
    pub async fn get_many(&self, fields: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Option<T>>> {
        let fields: Vec<_> = fields.into_iter().collect();
        let values = self.raw.get_many(&fields).await?;
        let pairs = fields.iter().zip(values);
        pairs.map(|(field, value)| value.map(|value| typed_value::<T, C>(field.as_ref(), value)).transpose()).collect()
    }

    /// All entries, in no order. Round trips: as [`ShardedHash::entries`](larder_structures::ShardedHash::entries).
    #[doc = example!("TypedShardedHash", "u8", "ShardedHash", "it.set([(\"joe\", 33)]).await?;", "assert_eq!(it.entries().await?, [(\"joe\".into(), 33)]);")]
    ///
    /// # Errors
    /// As [`get`](TypedShardedHash::get), for the first value that is none of the type; else as [`ShardedHash::entries`](larder_structures::ShardedHash::entries).
    pub async fn entries(&self) -> Result<Vec<(Bytes, T)>> {
        self.each().await?.into_iter().map(|(field, value)| Ok((field, value?))).collect()
    }

    /// All entries, each value by itself: those that are none of the type do not hide the others. Round trips: as [`ShardedHash::entries`](larder_structures::ShardedHash::entries).
    #[doc = example!("TypedShardedHash", "u8", "ShardedHash", "for (field, age) in it.each().await? {", "    println!(\"{field:?}: {age:?}\");", "}")]
    ///
    /// # Errors
    /// As [`ShardedHash::entries`](larder_structures::ShardedHash::entries); within, as [`get`](TypedShardedHash::get).
    pub async fn each(&self) -> Result<Vec<(Bytes, Result<T>)>> {
        let typed = |(field, value): (Bytes, Bytes)| {
            let value = typed_value::<T, C>(&field, value);
            (field, value)
        };
        Ok(self.raw.entries().await?.into_iter().map(typed).collect())
    }
}

typed! {
    /// A [`ShardedSet`](larder_structures::ShardedSet) of members of a type: a cheap clone.
    ///
    /// Members are the same if their bytes are: the encoding must be canonical, see [`Codec`].
    #[doc = example!("TypedShardedSet", "(u16, String)", "ShardedSet", "assert_eq!(it.add([(1, \"red\".to_owned())]).await?, [true]);", "assert!(it.has(&(1, \"red\".to_owned())).await?);")]
    TypedShardedSet of ShardedSet
}

impl<T, C: Codec<T>> TypedShardedSet<T, C> {
    /// Adds members; for each, true if it is new. Round trips: as [`ShardedSet::add`](larder_structures::ShardedSet::add).
    #[doc = example!("TypedShardedSet", "u32", "ShardedSet", "assert_eq!(it.add([1, 2, 1]).await?, [true, true, false]);")]
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a member that the codec cannot write; nothing was added then. Else as
    /// [`ShardedSet::add`](larder_structures::ShardedSet::add).
    pub async fn add(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<Vec<bool>> {
        self.raw.add(all_encoded::<T, C>("a member", members)?).await
    }

    /// Removes members; for each, true if it was there. Round trips: as [`ShardedSet::remove`](larder_structures::ShardedSet::remove).
    #[doc = example!("TypedShardedSet", "u32", "ShardedSet", "assert_eq!(it.remove([1]).await?, [false]);")]
    ///
    /// # Errors
    /// As [`add`](TypedShardedSet::add).
    pub async fn remove(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<Vec<bool>> {
        self.raw.remove(all_encoded::<T, C>("a member", members)?).await
    }

    /// True if this is a member. Round trips: as [`ShardedSet::has`](larder_structures::ShardedSet::has).
    #[doc = example!("TypedShardedSet", "u32", "ShardedSet", "assert!(!it.has(&1).await?);")]
    ///
    /// # Errors
    /// As [`add`](TypedShardedSet::add).
    pub async fn has(&self, member: &T) -> Result<bool> {
        self.raw.has(encoded::<T, C>("a member", member)?).await
    }

    /// Which of these are members. Round trips: as [`ShardedSet::has_many`](larder_structures::ShardedSet::has_many).
    #[doc = example!("TypedShardedSet", "u32", "ShardedSet", "assert_eq!(it.has_many([1, 2]).await?, [false, false]);")]
    ///
    /// # Errors
    /// As [`add`](TypedShardedSet::add).
    pub async fn has_many(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<Vec<bool>> {
        self.raw.has_many(all_encoded::<T, C>("a member", members)?).await
    }

    /// All members, in no order. Round trips: as [`ShardedSet::members`](larder_structures::ShardedSet::members).
    #[doc = example!("TypedShardedSet", "u32", "ShardedSet", "assert!(it.members().await?.is_empty());")]
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for the first member that is none of the type, see [`Undecoded`](crate::Undecoded); else as
    /// [`ShardedSet::members`](larder_structures::ShardedSet::members).
    pub async fn members(&self) -> Result<Vec<T>> {
        self.each().await?.into_iter().collect()
    }

    /// All members, each by itself: those that are none of the type do not hide the others. Round trips: as [`ShardedSet::members`](larder_structures::ShardedSet::members).
    #[doc = example!("TypedShardedSet", "u32", "ShardedSet", "for member in it.each().await? {", "    println!(\"{member:?}\");", "}")]
    ///
    /// # Errors
    /// As [`ShardedSet::members`](larder_structures::ShardedSet::members); within, as [`members`](TypedShardedSet::members).
    pub async fn each(&self) -> Result<Vec<Result<T>>> {
        let members = self.raw.members().await?;
        Ok(members.into_iter().map(|member| decoded::<T, C>("a member", member)).collect())
    }
}

typed! {
    /// A [`ShardedSortedSet`](larder_structures::ShardedSortedSet) of members of a type: a cheap clone.
    ///
    /// Members are the same if their bytes are: the encoding must be canonical, see [`Codec`]; and members of one score are in the order of those bytes.
    #[doc = example!("TypedShardedSortedSet", "(u16, String)", "ShardedSortedSet", "it.set([((1, \"ann\".to_owned()), 12.0)]).await?;", "assert_eq!(it.top(1).await?, [((1, \"ann\".to_owned()), 12.0)]);")]
    TypedShardedSortedSet of ShardedSortedSet
}

impl<T, C: Codec<T>> TypedShardedSortedSet<T, C> {
    /// Gives members scores; for each, true if it is new. Round trips: as [`ShardedSortedSet::set`](larder_structures::ShardedSortedSet::set).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "assert_eq!(it.set([(17, 1.5)]).await?, [true]);")]
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a member that the codec cannot write; nothing was set then. Else as
    /// [`ShardedSortedSet::set`](larder_structures::ShardedSortedSet::set).
    pub async fn set(&self, entries: impl IntoIterator<Item = (impl Borrow<T>, f64)>) -> Result<Vec<bool>> {
        self.raw.set(scored::<T, C>(entries)?).await
    }

    /// Adds to the scores of members; what they are then. Round trips: as [`ShardedSortedSet::add`](larder_structures::ShardedSortedSet::add).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "assert_eq!(it.add([(17, 1.5)]).await?, [1.5]);")]
    ///
    /// # Errors
    /// As [`set`](TypedShardedSortedSet::set); else as [`ShardedSortedSet::add`](larder_structures::ShardedSortedSet::add).
    pub async fn add(&self, entries: impl IntoIterator<Item = (impl Borrow<T>, f64)>) -> Result<Vec<f64>> {
        self.raw.add(scored::<T, C>(entries)?).await
    }

    /// Removes members; for each, true if it was there. Round trips: as [`ShardedSortedSet::remove`](larder_structures::ShardedSortedSet::remove).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "assert_eq!(it.remove([17]).await?, [false]);")]
    ///
    /// # Errors
    /// As [`set`](TypedShardedSortedSet::set).
    pub async fn remove(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<Vec<bool>> {
        self.raw.remove(all_encoded::<T, C>("a member", members)?).await
    }

    /// The score of a member. Round trips: as [`ShardedSortedSet::score`](larder_structures::ShardedSortedSet::score).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "assert_eq!(it.score(&17).await?, None);")]
    ///
    /// # Errors
    /// As [`set`](TypedShardedSortedSet::set).
    pub async fn score(&self, member: &T) -> Result<Option<f64>> {
        self.raw.score(encoded::<T, C>("a member", member)?).await
    }

    /// The scores of members, in their order. Round trips: as [`ShardedSortedSet::scores`](larder_structures::ShardedSortedSet::scores).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "assert_eq!(it.scores([17, 18]).await?, [None, None]);")]
    ///
    /// # Errors
    /// As [`set`](TypedShardedSortedSet::set).
    pub async fn scores(&self, members: impl IntoIterator<Item = impl Borrow<T>>) -> Result<Vec<Option<f64>>> {
        self.raw.scores(all_encoded::<T, C>("a member", members)?).await
    }

    /// The `n` members of the highest scores, the highest first. Round trips: as [`ShardedSortedSet::top`](larder_structures::ShardedSortedSet::top).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "it.set([(17, 1.5), (18, 2.0)]).await?;", "assert_eq!(it.top(1).await?, [(18, 2.0)]);")]
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for the first member that is none of the type, see [`Undecoded`](crate::Undecoded); else as
    /// [`ShardedSortedSet::top`](larder_structures::ShardedSortedSet::top).
    pub async fn top(&self, n: usize) -> Result<Vec<(T, f64)>> {
        members::<T, C>(self.raw.top(n).await?)
    }

    /// The `n` members of the lowest scores, the lowest first. Round trips: as [`ShardedSortedSet::bottom`](larder_structures::ShardedSortedSet::bottom).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "it.set([(17, 1.5), (18, 2.0)]).await?;", "assert_eq!(it.bottom(1).await?, [(17, 1.5)]);")]
    ///
    /// # Errors
    /// As [`top`](TypedShardedSortedSet::top).
    pub async fn bottom(&self, n: usize) -> Result<Vec<(T, f64)>> {
        members::<T, C>(self.raw.bottom(n).await?)
    }

    /// All members and their scores, in no order. Round trips: as [`ShardedSortedSet::entries`](larder_structures::ShardedSortedSet::entries).
    #[doc = example!("TypedShardedSortedSet", "u32", "ShardedSortedSet", "assert!(it.entries().await?.is_empty());")]
    ///
    /// # Errors
    /// As [`top`](TypedShardedSortedSet::top); else as [`ShardedSortedSet::entries`](larder_structures::ShardedSortedSet::entries).
    pub async fn entries(&self) -> Result<Vec<(T, f64)>> {
        members::<T, C>(self.raw.entries().await?)
    }
}

fn scored<T, C: Codec<T>>(entries: impl IntoIterator<Item = (impl Borrow<T>, f64)>) -> Result<Vec<(Bytes, f64)>> {
    let entry = |(member, score): (_, f64)| Ok((encoded::<T, C>("a member", Borrow::borrow(&member))?, score));
    entries.into_iter().map(entry).collect()
}

fn members<T, C: Codec<T>>(entries: Vec<(Bytes, f64)>) -> Result<Vec<(T, f64)>> {
    entries.into_iter().map(|(member, score)| Ok((decoded::<T, C>("a member", member)?, score))).collect()
}

fn typed_value<T, C: Codec<T>>(field: &[u8], value: Bytes) -> Result<T> {
    decoded::<T, C>(format_args!("the value of {}", Shown(field)), value)
}
