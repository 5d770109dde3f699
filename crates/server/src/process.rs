//! What the system says of this process.

/// Processor time, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user_s: f64,
    pub(crate) system_s: f64,
}

/// Times of this process; zero where the system does not tell.
pub(crate) fn usage() -> Usage {
    // Fields 14 and 15 of /proc/self/stat, counted behind the name, which may hold spaces; in ticks, of which Linux shows 100 a second.
    const TICKS_A_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut fields = fields.split(' ').skip(11).map(|field| field.parse::<f64>().unwrap_or(0.0) / TICKS_A_SECOND);
    Usage { user_s: fields.next().unwrap_or(0.0), system_s: fields.next().unwrap_or(0.0) }
}

/// The memory that this process occupies, in bytes; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib * 1_024)
}
