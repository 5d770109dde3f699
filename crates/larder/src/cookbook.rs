//! The cookbook's pages: the programs on them are compiled and run as documentation tests. A page, a line.

#[doc = include_str!("../../../docs/cookbook/src/introduction.md")]
struct Introduction;

#[doc = include_str!("../../../docs/cookbook/src/log.md")]
struct Log;

#[doc = include_str!("../../../docs/cookbook/src/lock.md")]
struct Lock;

#[doc = include_str!("../../../docs/cookbook/src/counter.md")]
struct Counter;

#[doc = include_str!("../../../docs/cookbook/src/set.md")]
struct Set;

#[doc = include_str!("../../../docs/cookbook/src/cache.md")]
struct Cache;

#[doc = include_str!("../../../docs/cookbook/src/visitors.md")]
struct Visitors;

#[doc = include_str!("../../../docs/cookbook/src/unique.md")]
struct UniqueVisitors;

#[doc = include_str!("../../../docs/cookbook/src/records.md")]
struct PackedRecords;

#[doc = include_str!("../../../docs/cookbook/src/lookup.md")]
struct PackedTable;

#[doc = include_str!("../../../docs/cookbook/src/sharded.md")]
struct Sharded;

#[doc = include_str!("../../../docs/cookbook/src/top.md")]
struct Top;

#[doc = include_str!("../../../docs/cookbook/src/array.md")]
struct Array;

#[doc = include_str!("../../../docs/cookbook/src/table.md")]
struct Table;
#[doc = include_str!("../../../docs/cookbook/src/queue.md")]
struct Queue;

#[doc = include_str!("../../../docs/cookbook/src/stack.md")]
struct Stack;

#[doc = include_str!("../../../docs/cookbook/src/memory.md")]
struct Memory;

#[cfg(feature = "testing")]
#[doc = include_str!("../../../docs/cookbook/src/testing.md")]
struct Testing;
