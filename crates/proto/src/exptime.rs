//! How a life travels: memcached counts whole seconds, relative up to 30 days, absolute above.

use std::time::Duration;

use larder_core::{Error, ErrorKind, Result, Ttl};

/// The longest life that travels as a number of seconds from now: 30 days. A larger number is read as a Unix time.
pub const RELATIVE_S_MAX: u64 = 30 * 24 * 60 * 60;
/// The last moment an item can live to: the server keeps a signed number of 32 bits.
pub const ABSOLUTE_S_MAX: u64 = i32::MAX as u64;

/// The number that stands for a life: 0 for ever, else whole seconds, parts of one rounded up, turned into an absolute time of
/// the **server's** clock above 30 days (the client's clock may be wrong by more than the whole life).
///
/// # Errors
/// [`ErrorKind::BadInput`] for a life of zero, and for one that ends after [`ABSOLUTE_S_MAX`].
///
/// ```
/// use larder_core::Ttl;
/// use larder_proto::exptime::exptime;
/// use std::time::Duration;
/// let day = 24 * 60 * 60;
/// let after = |seconds| Ttl::After(Duration::from_secs(seconds));
/// assert_eq!(exptime(Ttl::Never, 1_000_000)?, 0);
/// assert_eq!(exptime(Ttl::After(Duration::from_millis(1_001)), 1_000_000)?, 2);
/// assert_eq!(exptime(after(30 * day), 1_000_000)?, 30 * day);
/// assert_eq!(exptime(after(31 * day), 1_000_000)?, 31 * day + 1_000_000);
/// # Ok::<(), larder_core::Error>(())
/// ```
pub fn exptime(ttl: Ttl, server_now_s: u64) -> Result<u64> {
    let Ttl::After(life) = ttl else {
        return Ok(0);
    };
    if life.is_zero() {
        return Err(Error::new(ErrorKind::BadInput, "a ttl is 0; the shortest is 1 ms (it would mean \"for ever\")"));
    }
    let seconds = life.as_secs().saturating_add(u64::from(life.subsec_nanos() > 0));
    if seconds <= RELATIVE_S_MAX {
        return Ok(seconds);
    }
    let end = seconds.saturating_add(server_now_s);
    if end > ABSOLUTE_S_MAX {
        return Err(Error::new(
            ErrorKind::BadInput,
            format!(
                "a ttl has {seconds} s; the limit is {} s, since the server's times end with 2^31 - 1 s after 1970",
                ttl_max(server_now_s).as_secs()
            ),
        ));
    }
    Ok(end)
}

/// The longest life that can be asked for when the server's clock stands at `server_now_s`.
///
/// ```
/// use larder_proto::exptime::ttl_max;
/// let now_s = 1_800_000_000;
/// assert_eq!(ttl_max(now_s).as_secs(), (1 << 31) - 1 - now_s);
/// ```
pub fn ttl_max(server_now_s: u64) -> Duration {
    Duration::from_secs(ABSOLUTE_S_MAX.saturating_sub(server_now_s).max(RELATIVE_S_MAX))
}
