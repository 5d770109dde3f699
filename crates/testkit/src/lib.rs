//! Real servers, a fault proxy, faulty stores and the conformance suites for Larder's tests.
//!
//! Everything here is for tests, so what cannot be provided is a panic that says what to do, never a skipped test.

mod background;
pub mod cities;
pub mod classic_fake;
pub mod conformance;
pub mod history;
pub mod lines;
pub mod nemesis;
pub mod proxy;
pub mod queue_bytes;
pub mod redis;
pub mod servers;
pub mod sessions;
pub mod yielding;

/// The store that breaks on purpose, where tests of ours have always found it.
pub use larder_layers::testing as faulty;
