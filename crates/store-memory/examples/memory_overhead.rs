//! What an item costs beyond its key and value, by the resident memory of the process.
//!
//! ```text
//! cargo run --release -p larder-store-memory --example memory_overhead -- [--items 5000000] [--value 32] [--json]
//! ```
//!
//! Keys have 16 bytes. The resident memory is read from `/proc/self/statm` before the first item and after the last, so
//! this runs on Linux.

use std::process::ExitCode;
use std::time::Instant;

use larder_core::{PutMode, Ttl};
use larder_store_memory::MemoryStore;

const KEY_BYTES: usize = 16;
const USAGE: &str = "usage: memory_overhead [--items N] [--value BYTES] [--json]";

struct Args {
    items: usize,
    value_bytes: usize,
    json: bool,
}

fn main() -> ExitCode {
    match args().and_then(|args| measure(&args)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn args() -> Result<Args, String> {
    let mut args = Args { items: 5_000_000, value_bytes: 32, json: false };
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        let mut number = || given.next().and_then(|text| text.parse().ok()).ok_or(USAGE);
        match arg.as_str() {
            "--items" => args.items = number()?,
            "--value" => args.value_bytes = number()?,
            "--json" => args.json = true,
            _ => return Err(USAGE.to_owned()),
        }
    }
    if args.items == 0 { Err("--items is 0; it takes at least 1".to_owned()) } else { Ok(args) }
}

fn measure(args: &Args) -> Result<String, String> {
    let store = MemoryStore::new();
    let direct = store.direct();
    let value = vec![b'v'; args.value_bytes];
    let before = resident_bytes()?;
    let started = Instant::now();
    for item in 0..args.items {
        let key = format!("{item:0KEY_BYTES$x}");
        direct.put(key.as_bytes(), PutMode::Set, &value, 0, Ttl::Never).map_err(|error| error.to_string())?;
    }
    let ns = started.elapsed().as_nanos() / args.items as u128;
    let items = args.items as f64;
    let resident = (resident_bytes()? - before) as f64 / items;
    let accounted = store.stats().bytes as f64 / items;
    let payload = (KEY_BYTES + args.value_bytes) as f64;
    let (overhead, count) = (resident - payload, args.items);
    Ok(if args.json {
        format!(
            "{{\"items\":{count},\"payload_bytes\":{payload},\"resident_bytes\":{resident:.2},\
             \"accounted_bytes\":{accounted:.2},\"overhead_bytes\":{overhead:.2},\"load_ns\":{ns}}}"
        )
    } else {
        format!(
            "| {count} items | {payload} B payload | {resident:.2} B resident | {accounted:.2} B accounted | \
             {overhead:.2} B overhead | {ns} ns a set |"
        )
    })
}

fn resident_bytes() -> Result<usize, String> {
    // The second field counts resident pages; they have 4 KiB wherever Linux runs on x86-64 and, by default, on arm64.
    let statm = std::fs::read_to_string("/proc/self/statm").map_err(|error| format!("/proc/self/statm: {error}"))?;
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| format!("/proc/self/statm holds {statm:?}"))
}
