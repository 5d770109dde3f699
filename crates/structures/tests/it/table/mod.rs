//! Tables.

mod behind;
mod faults;
mod handle;
mod late;
mod memcached;
mod order;
mod races;
mod renewals;
pub(crate) mod support;
mod tries;
mod turning;
