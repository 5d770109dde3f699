//! What a packed table is looked up by: addresses, or numbers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use larder_core::{Error, ErrorKind};

/// An address or a number.
///
/// ```
/// use larder_structures::lookup::LookupKey;
/// let key: LookupKey = "::ffff:192.0.2.1".parse()?;
/// assert_eq!(key, "192.0.2.1".parse()?); // an IPv4 address, however it is written
/// assert_eq!("3221225985".parse::<LookupKey>()?, LookupKey::from(3_221_225_985u64));
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LookupKey {
    /// A number: an id, or an address as some files write it.
    Number(u128),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address that stands for no IPv4 address.
    V6(Ipv6Addr),
}

impl From<u64> for LookupKey {
    fn from(number: u64) -> LookupKey {
        LookupKey::Number(u128::from(number))
    }
}

impl From<IpAddr> for LookupKey {
    fn from(address: IpAddr) -> LookupKey {
        match address.to_canonical() {
            IpAddr::V4(address) => LookupKey::V4(address),
            IpAddr::V6(address) => LookupKey::V6(address),
        }
    }
}

impl From<Ipv4Addr> for LookupKey {
    fn from(address: Ipv4Addr) -> LookupKey {
        LookupKey::V4(address)
    }
}

impl From<Ipv6Addr> for LookupKey {
    fn from(address: Ipv6Addr) -> LookupKey {
        IpAddr::V6(address).into()
    }
}

impl FromStr for LookupKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<LookupKey, Error> {
        let text = text.trim();
        // Digits alone are a number: std takes no sign here, and no octet with a leading zero.
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = text.parse().map(LookupKey::Number);
            return number.map_err(|_| Error::new(ErrorKind::BadInput, format!("{text} is over 2^128 - 1")));
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(address.into()),
            Err(_) => {
                let detail = format!("{text:?} is neither an IPv4 or IPv6 address nor a whole number");
                Err(Error::new(ErrorKind::BadInput, detail))
            }
        }
    }
}

impl fmt::Display for LookupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookupKey::Number(number) => number.fmt(f),
            LookupKey::V4(address) => address.fmt(f),
            LookupKey::V6(address) => address.fmt(f),
        }
    }
}

/// Where keys are in order: each family by itself, in the order of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Family {
    Number,
    V4,
    V6,
}

impl Family {
    pub(super) fn byte(self) -> u8 {
        match self {
            Family::Number => 0,
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Family> {
        [Family::Number, Family::V4, Family::V6].into_iter().find(|family| family.byte() == byte)
    }

    /// Its last key.
    pub(super) fn last(self) -> u128 {
        match self {
            Family::V4 => u128::from(u32::MAX),
            Family::Number | Family::V6 => u128::MAX,
        }
    }

    /// The key with this number.
    pub(super) fn key(self, number: u128) -> LookupKey {
        match self {
            Family::Number => LookupKey::Number(number),
            // An IPv4 address has a number of 32 bits.
            Family::V4 => LookupKey::V4(Ipv4Addr::from_bits(number as u32)),
            Family::V6 => LookupKey::V6(Ipv6Addr::from_bits(number)),
        }
    }
}

impl LookupKey {
    pub(super) fn family(&self) -> Family {
        match self {
            LookupKey::Number(_) => Family::Number,
            LookupKey::V4(_) => Family::V4,
            LookupKey::V6(_) => Family::V6,
        }
    }

    pub(super) fn number(&self) -> u128 {
        match self {
            LookupKey::Number(number) => *number,
            LookupKey::V4(address) => u128::from(address.to_bits()),
            LookupKey::V6(address) => address.to_bits(),
        }
    }
}

/// The first and the last address of a network, as in `192.0.2.0/24`; a bare address is a network of its own.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn network(text: &str) -> Result<(LookupKey, LookupKey), String> {
    let (address, bits) = text.trim().split_once('/').unwrap_or((text.trim(), ""));
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(format!("{text:?} is no network; it takes the form 192.0.2.0/24 or 2001:db8::/32"));
    };
    let (width, number) = match address {
        IpAddr::V4(address) => (32, u128::from(address.to_bits())),
        IpAddr::V6(address) => (128, address.to_bits()),
    };
    let prefix: u32 = match bits {
        "" if !text.contains('/') => width,
        digits => digits.parse().ok().filter(|&bits| bits <= width && !digits.starts_with('+')).ok_or_else(|| {
            format!("{text:?} has a prefix of {digits:?} bits; an address of this kind takes 0 to {width}")
        })?,
    };
    // The bits behind the prefix, of which there may be none or all.
    let host = if prefix == 0 { u128::MAX } else { (1u128 << (128 - prefix)) - 1 } >> (128 - width);
    if number & host != 0 {
        return Err(format!("{text:?} has bits behind its prefix of {prefix}; the network's own address has none"));
    }
    let of = |number: u128| match address {
        // An IPv4 address has a number of 32 bits.
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
    };
    Ok((of(number).into(), of(number | host).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> String {
        network(text).map_or_else(|error| error, |(first, last)| format!("{first} {last}"))
    }

    #[test]
    fn networks_of_every_size() {
        assert_eq!(range("0.0.0.0/0"), "0.0.0.0 255.255.255.255");
        assert_eq!(range("192.0.2.128/25"), "192.0.2.128 192.0.2.255");
        assert_eq!(range(" 192.0.2.1 "), "192.0.2.1 192.0.2.1");
        assert_eq!(range("255.255.255.255/32"), "255.255.255.255 255.255.255.255");
        assert_eq!(range("::/0"), ":: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
        assert_eq!(range("2001:db8::/32"), "2001:db8:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff");
        assert_eq!(range("::1/128"), "::1 ::1");
        assert_eq!(range("::ffff:192.0.2.0/120"), "192.0.2.0 192.0.2.255");
    }

    #[test]
    fn networks_that_are_none_are_told() {
        for (text, said) in [
            ("192.0.2.1/24", "behind its prefix of 24"),
            ("192.0.2.0/33", "takes 0 to 32"),
            ("::/129", "takes 0 to 128"),
            ("192.0.2.0/", "takes 0 to 32"),
            ("192.0.2.0/+8", "takes 0 to 32"),
            ("192.0.2/24", "no network"),
            ("17", "no network"),
            ("", "no network"),
        ] {
            assert!(range(text).contains(said), "{text}: {}", range(text));
        }
    }

    #[test]
    fn keys_are_read_and_shown() {
        for text in ["0", "340282366920938463463374607431768211455", "0.0.0.0", "255.255.255.255", "::", "2001:db8::1"]
        {
            assert_eq!(text.parse::<LookupKey>().unwrap().to_string(), text);
        }
        for text in ["", "-1", "+1", "1.2.3", "1.2.3.256", "01.2.3.4", "340282366920938463463374607431768211456", "x"] {
            assert_eq!(text.parse::<LookupKey>().unwrap_err().kind(), ErrorKind::BadInput, "{text}");
        }
    }
}
