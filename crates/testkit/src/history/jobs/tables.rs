//! Packed tables: some build versions, others read rows.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_structures::PackedTable;
use larder_structures::lookup::{LookupKey, Rows};

use super::drive::{self, Client, LAST, Times, opener, play};
use crate::history::check::Checked;
use crate::history::check::versions::{VersionOp, VersionTold, check, stale};
use crate::history::recorder::Moment;
use crate::history::{Arena, Boxed, Run, Verdict};

/// So many that they fill several blocks.
const ROWS: u64 = 40;
/// "Every handle that can read the head reads it, at the latest a second later"; some more, lest a machine that is busy count.
const SEEN_WITHIN: Duration = Duration::from_millis(1_250);
/// In every third run clients rest now and then, as long as this, so that there are reads so much later; and there are no more calls.
const REST_MS_MAX: u64 = 700;
const RESTED_OPS_MAX: usize = 150;

pub(super) fn packed(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let open = opener!(PackedTable::options().block_bytes(256), drive::name("packed table", run));
        // A build is some ten ops a block.
        let rests = run.habits().u8(..3) == 0;
        let run = Run { ops: run.ops.min(if rests { RESTED_OPS_MAX } else { 400 }), ..run };
        let times = Arc::new(Times::default());
        let shared = times.clone();
        let ended = play("packed table", arena, run, open, move |client| work(client, rests, shared.clone())).await;
        ended.read(VersionOp::Read, read).await;
        ended.judge(|calls, excuses| {
            // Who cannot read the head goes by the version that it has.
            let until = excuses.whole_until.min(excuses.smooth_until);
            let mut bad = stale(calls, &times.take(), SEEN_WITHIN, until);
            bad.extend(if excuses.set_back { Vec::new() } else { check(calls, LAST) });
            Checked { bad, left_out: u64::from(until < Moment::MAX) }
        })
    })
}

async fn read(table: PackedTable) -> Result<VersionTold> {
    let keys: Vec<LookupKey> = (0..ROWS).step_by(7).map(LookupKey::from).collect();
    let rows = table.get_many(&keys).await?;
    let told: Vec<Option<&[u8]>> = rows.iter().map(|row| row.as_ref()?.fields.first().map(AsRef::as_ref)).collect();
    let strange = |detail: String| Error::new(ErrorKind::Corrupt, detail);
    if told.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(strange(format!("rows of two versions were read at once: {told:?}")));
    }
    let Some(Some(first)) = told.first() else { return Ok(VersionTold::Rows(None)) };
    let value = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok());
    value.map(|value| VersionTold::Rows(Some(value))).ok_or_else(|| strange("a field nobody built".to_owned()))
}

async fn build(table: &PackedTable, value: u64) -> Result<VersionTold> {
    let mut rows = Rows::new(["v"])?;
    for id in 0..ROWS {
        rows.push(id, id, [value.to_string()])?;
    }
    Ok(VersionTold::Built(table.build(rows).await?.version.into()))
}

async fn work(mut client: Client<PackedTable, VersionOp, VersionTold>, rests: bool, times: Arc<Times>) {
    let table = client.handle.clone();
    for call in 0..client.ops as u64 {
        let value = (client.number as u64) << 32 | call;
        if rests && client.rng.u8(..4) == 0 {
            tokio::time::sleep(Duration::from_millis(client.rng.u64(..REST_MS_MAX))).await;
        }
        times.note(&client.history);
        if client.rng.usize(..12) == 0 && client.number < 2 {
            client.history.call(client.number, VersionOp::Build(value), build(&table, value)).await;
        } else {
            client.history.call(client.number, VersionOp::Read, read(table.clone())).await;
        }
        times.note(&client.history);
    }
}
