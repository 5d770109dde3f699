//! A table of typed values.

use std::time::Duration;

use bytes::Bytes;
use larder_core::Result;
use larder_core::text::Shown;

use crate::undecoded::{decoded, encoded};
use crate::{Codec, typed};

typed! {
    /// A [`Table`](larder_structures::Table) of values of a type, by keys that are bytes: a cheap clone.
    ///
    /// Values are never compared, so any codec will do.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Table;
    /// use larder_typed::{Json, TypedTable};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let users: TypedTable<(String, u8), Json> = TypedTable::new(Table::open_or_create(&store, "users").await?);
    /// users.put("joe", &("Joe".to_owned(), 33)).await?;
    /// assert_eq!(users.get("joe").await?.unwrap().1, 33);
    /// # Ok(())
    /// # }
    /// ```
    TypedTable of Table
}

/// An example, in which `ages` is an open table of numbers.
macro_rules! example {
    ($($line:literal),*) => {
        concat!(
            "\n\n```\n# use larder_core::StoreRef;\n# use larder_structures::Table;\n# use larder_typed::TypedTable;\n",
            "# #[tokio::main(flavor = \"current_thread\")]\n# async fn main() -> larder_core::Result<()> {\n",
            "# let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            "let ages: TypedTable<u8> = TypedTable::new(Table::open_or_create(&store, \"ages\").await?);\n",
            $($line, "\n",)*
            "# Ok(())\n# }\n```"
        )
    };
}

impl<T, C: Codec<T>> TypedTable<T, C> {
    /// Puts an entry. Round trips: as [`Table::put`](larder_structures::Table::put).
    #[doc = example!("ages.put(\"joe\", &33).await?;")]
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a value that the codec cannot write; else as [`Table::put`](larder_structures::Table::put).
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &T) -> Result<()> {
        self.raw.put(key.as_ref(), value_of::<T, C>(key.as_ref(), value)?).await
    }

    /// Puts an entry that goes after a time. Round trips: as [`Table::put_for`](larder_structures::Table::put_for).
    #[doc = example!(
        "let ages = TypedTable::<u8>::new(Table::options().ttl(true).open_or_create(&store, \"guests\").await?);",
        "ages.put_for(\"joe\", &33, std::time::Duration::from_secs(60)).await?;"
    )]
    ///
    /// # Errors
    /// As [`put`](TypedTable::put); else as [`Table::put_for`](larder_structures::Table::put_for).
    pub async fn put_for(&self, key: impl AsRef<[u8]>, value: &T, ttl: Duration) -> Result<()> {
        self.raw.put_for(key.as_ref(), value_of::<T, C>(key.as_ref(), value)?, ttl).await
    }

    /// The value of a key. Round trips: as [`Table::get`](larder_structures::Table::get).
    #[doc = example!("assert_eq!(ages.get(\"joe\").await?, None);")]
    ///
    /// # Errors
    /// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for a value that is none of the type, see [`Undecoded`](crate::Undecoded); else as
    /// [`Table::get`](larder_structures::Table::get).
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<T>> {
        let key = key.as_ref();
        self.raw.get(key).await?.map(|value| typed_value::<T, C>(key, value)).transpose()
    }

    /// The values of several keys, in their order. Round trips: as [`Table::get_many`](larder_structures::Table::get_many).
    #[doc = example!("assert_eq!(ages.get_many([\"joe\", \"ann\"]).await?, [None, None]);")]
    ///
    /// # Errors
    /// As [`get`](TypedTable::get), for the first value that is none of the type.
    pub async fn get_many(&self, keys: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Option<T>>> {
        let keys: Vec<_> = keys.into_iter().collect();
        let values = self.raw.get_many(&keys).await?;
        let pairs = keys.iter().zip(values);
        pairs.map(|(key, value)| value.map(|value| typed_value::<T, C>(key.as_ref(), value)).transpose()).collect()
    }

    /// All entries, in no order. Round trips: as [`Table::entries`](larder_structures::Table::entries).
    #[doc = example!("ages.put(\"joe\", &33).await?;", "assert_eq!(ages.entries().await?, [(\"joe\".into(), 33)]);")]
    ///
    /// # Errors
    /// As [`get`](TypedTable::get), for the first value that is none of the type; else as [`Table::entries`](larder_structures::Table::entries).
    pub async fn entries(&self) -> Result<Vec<(Bytes, T)>> {
        self.each().await?.into_iter().map(|(key, value)| Ok((key, value?))).collect()
    }

    /// All entries, each value by itself: those that are none of the type do not hide the others. Round trips: as [`Table::entries`](larder_structures::Table::entries).
    #[doc = example!("for (key, age) in ages.each().await? {", "    println!(\"{key:?}: {age:?}\");", "}")]
    ///
    /// # Errors
    /// As [`Table::entries`](larder_structures::Table::entries); within, as [`get`](TypedTable::get).
    pub async fn each(&self) -> Result<Vec<(Bytes, Result<T>)>> {
        let typed = |(key, value): (Bytes, Bytes)| {
            let value = typed_value::<T, C>(&key, value);
            (key, value)
        };
        Ok(self.raw.entries().await?.into_iter().map(typed).collect())
    }
}

fn value_of<T, C: Codec<T>>(key: &[u8], value: &T) -> Result<Bytes> {
    encoded::<T, C>(format_args!("the value of {}", Shown(key)), value)
}

fn typed_value<T, C: Codec<T>>(key: &[u8], value: Bytes) -> Result<T> {
    decoded::<T, C>(format_args!("the value of {}", Shown(key)), value)
}
