//! What a store's memory goes into, and what would save some.
//!
//! [`report`] lists the keys of a store by its [`Survey`](larder_core::survey::Survey), puts those together that are alike (of one structure, or with one pattern; of one type; kept in
//! one encoding), and looks closer at some of each. It says which collections are not packed and which limit of the server keeps them out ([`why`]), and works out what would save memory, and
//! how much ([`advise`], a pure function). It is meant for servers that are in use: see [`report`].
//!
//! | what | how it is known |
//! |---|---|
//! | keys, by type and encoding | counted, each |
//! | bytes, on memcached and embedded stores | summed, of each |
//! | bytes, on Redis and Valkey | by `MEMORY USAGE` of a sample of each group, with the [error](Estimate) of that |
//! | resident bytes | memcached: the chunk of each item; what is free on its pages is told by class; Redis: by the allocator's own figures, for the server as a whole |
//! | why a collection is not packed | of the sample: its number of elements, and up to 128 of them |
//! | what a change would save | computed, by the encodings' layouts and the allocator's size classes |
//!
//! Source of the idea: J. Carlson, "Redis in Action", 2013, section 9.1 (short structures, and how to see that they still are).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
//! use larder_core::{Key, PutMode, StoreExt, StoreRef, Ttl};
//! let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
//! let store: StoreRef = memory.clone();
//! for id in 0..100 {
//!     store.put(Key::new(format!("user:{id}:name"))?, PutMode::Set, "somebody", Ttl::Never).await?;
//! }
//! let report = larder_footprint::report(&store, &*memory, &Default::default(), &mut |_| ()).await?;
//! let group = &report.groups[0];
//! assert_eq!((group.owner.to_string().as_str(), group.keys), ("user:*:name", 100));
//! assert_eq!(group.bytes.error, 0.0); // each was told
//! # Ok(()) }
//! ```

mod advice;
#[cfg(test)]
mod advice_tests;
mod dense;
mod estimate;
mod group;
mod groups;
mod packed;
mod pattern;
mod plot;
mod report;
mod reshard;
mod slabs;

pub use advice::{Act, Advice, Setting, advise, settings};
pub use estimate::Estimate;
pub use group::Group;
pub use packed::{Allocator, Reason, is_unpacked, packed, why};
pub use pattern::Owner;
pub use plot::svg;
pub use report::{Footprint, Options, Report, Step, report};
pub use slabs::{Slabs, best_factor};
