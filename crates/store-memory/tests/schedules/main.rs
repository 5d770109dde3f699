//! The store's own sources under a scheduler that decides on every step of every lock and atomic (shuttle): small programs of a few threads, many
//! schedules of each, and every history is held against a sequential model.
//!
//! The sources are compiled a second time here, with another `sync`. So what is tested is what is shipped, and neither a feature nor a flag of the
//! compiler is needed: an unlucky workspace build can never link the store over locks that only work in a test.

#![allow(dead_code, unused_imports, missing_docs, unreachable_pub)]

#[path = "../../src/budget.rs"]
mod budget;
#[path = "../../src/builder.rs"]
mod builder;
#[path = "../../src/direct.rs"]
mod direct;
#[path = "../../src/item.rs"]
mod item;
#[path = "../../src/list.rs"]
mod list;
#[path = "../../src/ops.rs"]
mod ops;
#[path = "../../src/shard.rs"]
mod shard;
#[path = "../../src/store.rs"]
mod store;
#[path = "../../src/survey.rs"]
mod survey;
#[path = "../../src/update.rs"]
mod update;

mod history;
mod programs;
mod sync;

pub use builder::Builder;
pub use direct::Direct;
pub use item::Marks;
pub use ops::View;
pub use store::{MemoryStore, Stats};
pub use update::{Next, Seen, Token, Value};

/// The sweeper is a thread of its own; here it is a step of a program, at every moment that a scheduler can think of.
mod sweep {
    use std::sync::Arc;
    use std::thread::Thread;

    use crate::store::Inner;

    pub(crate) fn start(_: &Arc<Inner>) -> Option<Thread> {
        None
    }
}

fn main() -> std::process::ExitCode {
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, programs::tests()).exit_code()
}
