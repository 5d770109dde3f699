//! Packed records.

use larder_core::{Error, ErrorKind, Result};
use larder_structures::records::{PackedRecords, Schema, Value};

use super::drive::{self, opener};
use super::maps::{Apply, MapJob, Mix, map, nothing_else};
use crate::history::check::map::{MapOp, MapTold};
use crate::history::recorder::Call;
use crate::history::{Arena, Boxed, Run, Verdict};

fn unsupported() -> Result<MapTold> {
    Err(Error::new(ErrorKind::Unsupported, "the job does not ask for it"))
}

/// Records of 13 bits: neighbours share bytes. `All` reads them by one call; `Count` tells the highest id, and one.
pub(super) fn records(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let Ok(schema) = Schema::new().uint("v", 13).build() else { return Verdict::default() };
        let apply: Apply<PackedRecords> = |records, op| {
            Box::pin(async move {
                let value = |record: Vec<Value>| match record.first() {
                    Some(Value::Uint(value)) => Ok(*value as i64),
                    _ => Err(Error::new(ErrorKind::Corrupt, "a record without its field")),
                };
                match op {
                    MapOp::Put(id, put) => {
                        let put = put.unsigned_abs() & 0x1fff;
                        records.set(id, &[("v", put.into())]).await.map(|()| MapTold::Done)
                    }
                    MapOp::Get(id) => Ok(MapTold::Value(Some(value(records.get(id).await?)?))),
                    MapOp::Count => Ok(MapTold::Count(records.highest().await?.map_or(0, |id| id + 1))),
                    _ => unsupported(),
                }
            })
        };
        let open =
            opener!(PackedRecords::options().schema(schema.clone()).shard_bytes(64), drive::name("records", run));
        let mix = Mix { put: 10, get: 8, has_values: true, first: Some(0), ..Mix::default() };
        // A value of 13 bits stands for one write: so many.
        let run = Run { ops: run.ops.min(2_000), ..run };
        map(arena, run, MapJob { name: "packed records", open, mix, apply, also: nothing_else }).await
    })
}

/// The highest id, told while it grows.
pub(super) fn highest(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let Ok(schema) = Schema::new().uint("v", 13).build() else { return Verdict::default() };
        let apply: Apply<PackedRecords> = |records, op| {
            Box::pin(async move {
                match op {
                    MapOp::Put(id, _) => records.set(id, &[("v", 1u64.into())]).await.map(|()| MapTold::Done),
                    MapOp::All => {
                        let highest = records.highest().await?;
                        Ok(MapTold::Count(highest.map_or(0, |id| id + 1)))
                    }
                    _ => unsupported(),
                }
            })
        };
        let open =
            opener!(PackedRecords::options().schema(schema.clone()).shard_bytes(64), drive::name("highest id", run));
        let mix = Mix { put: 3, all: 1, puts_once: true, ..Mix::default() };
        let also = |calls: &[Call<MapOp, MapTold>], excuses: &drive::Excuses| {
            if excuses.set_back { Vec::new() } else { highest_ids(calls) }
        };
        let run = Run { ops: run.ops.min(2_000), ..run };
        map(arena, run, MapJob { name: "highest id", open, mix, apply, also }).await
    })
}

/// The highest id is no less than any that was acknowledged before, and none that nobody set.
fn highest_ids(calls: &[Call<MapOp, MapTold>]) -> Vec<String> {
    let ids = |is_in: &dyn Fn(&Call<MapOp, MapTold>) -> bool| {
        let puts = calls.iter().filter(|call| matches!(call.op, MapOp::Put(..)) && is_in(call));
        puts.filter_map(|call| call.op.key()).max().map_or(0, |id| id + 1)
    };
    let wrong = calls.iter().filter(|call| call.op == MapOp::All).filter_map(|read| {
        let Some(MapTold::Count(told)) = read.ok() else { return None };
        let least = ids(&|call| call.ok().is_some() && call.returned < read.invoked);
        // An id may become the highest before its record is set: by calls that then fail, too.
        let most = ids(&|call| call.invoked < read.returned);
        (!(least..=most).contains(told)).then(|| format!("the highest id, and one, is {told}; it is {least} to {most}"))
    });
    wrong.collect()
}
