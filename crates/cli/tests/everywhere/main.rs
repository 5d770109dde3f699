//! The structures through the command, on every store there is beside one memcached, on which the tests beside this folder run them: what is printed, as JSON too, and the exit codes.

#[path = "../common/mod.rs"]
mod common;
mod looks;
mod packed;
mod place;
mod shards;
mod shared;
mod unique;
mod verbs;

use place::Place;

/// A test for each scene and each store.
macro_rules! everywhere {
    ($($file:ident::$scene:ident;)*) => {$(
        mod $scene {
            everywhere!(@ $file $scene: redis valkey cluster folder served three);
        }
    )*};
    (@ $file:ident $scene:ident: $($store:ident)*) => {$(
        #[test]
        fn $store() {
            crate::$file::$scene(&crate::Place::$store());
        }
    )*};
}

everywhere! {
    verbs::visitors;
    verbs::log;
    verbs::array;
    verbs::table;
    shared::queue;
    shared::stack;
    shared::cache;
    shards::dense;
    packed::records;
    packed::lookup;
    unique::precisions;
    unique::integers;
    unique::zones;
    looks::inspect;
    looks::ls;
    looks::demo;
}
