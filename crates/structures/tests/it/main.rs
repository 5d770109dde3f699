//! The tests of the structures, in one program: linking one is linking them all.

mod support;

mod array;
mod cache;
mod clocks;
mod clocks_apart;
mod counter;
mod drops;
mod eight;
mod foreign_keys;
mod foreign_redis;
mod inspect;
mod kinds;
mod lock;
mod log;
mod lookup;
mod natives;
mod observe;
mod overtaken;
mod portable;
mod queue;
mod records;
mod registry;
mod replicas_redis;
mod set;
mod sharded;
mod sharded_ends;
mod sharded_setback;
mod sizes;
mod sorted_races;
mod table;
mod unique;
mod unlisted;
mod vigil;
mod visitors;
mod waits_redis;
