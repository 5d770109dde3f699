//! Versions of memcached, and the commands each understands.

use std::fmt;

/// A version of memcached, as `version` answers it.
///
/// ```
/// use larder_proto::Version;
/// assert_eq!(Version::parse("1.6.18"), Some(Version { major: 1, minor: 6, patch: 18 }));
/// assert_eq!(Version::parse("1.6.0-rc1_3"), Some(Version { major: 1, minor: 6, patch: 0 }));
/// assert_eq!(Version::parse("mcrouter"), None);
/// assert!(Version::parse("1.6.9") < Version::parse("1.6.13"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
    /// The third.
    pub patch: u32,
}

impl Version {
    /// The first release whose meta commands answer correctly: `c` returns, `md` fixed.
    pub const META_FLOOR: Version = Version { major: 1, minor: 6, patch: 13 };
    /// The first release with the whole meta protocol that Larder knows of.
    pub const META_FULL: Version = Version { major: 1, minor: 6, patch: 20 };
    /// The first release whose TLS does not hang on pipelined sets.
    pub const TLS_PIPELINES: Version = Version { major: 1, minor: 6, patch: 39 };

    /// Reads `1.6.18` and `1.6.38-3_g1a2b`; three numbers, then anything.
    ///
    /// ```
    /// use larder_proto::Version;
    /// assert_eq!(Version::parse("1.6.38-3_g1a2b"), Some(Version { major: 1, minor: 6, patch: 38 }));
    /// assert_eq!(Version::parse("1.6"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Version> {
        let mut rest = text;
        let mut number = |last: bool| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let value = rest[..end].parse().ok()?;
            rest = &rest[end..];
            if !last {
                rest = rest.strip_prefix('.')?;
            }
            Some(value)
        };
        Some(Version { major: number(false)?, minor: number(false)?, patch: number(true)? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The commands a server understands. Chosen by version, never by trying: 1.6.18 ignores what it does not know, silently.
///
/// ```
/// use larder_proto::{Dialect, Version};
/// assert_eq!(Dialect::of(Version::parse("1.6.38")), Dialect::Meta);
/// assert_eq!(Dialect::of(Version::parse("1.6.18")), Dialect::Meta13);
/// assert_eq!(Dialect::of(Version::parse("1.6.12")), Dialect::Classic);
/// assert_eq!(Dialect::of(None), Dialect::Classic);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// `get`, `set`, `incr` and their kin only.
    Classic,
    /// Meta commands as of 1.6.13 to 1.6.19: no `N` on append.
    Meta13,
    /// Meta commands as of 1.6.20 and later.
    Meta,
}

impl Dialect {
    /// The dialect of a version; what has no version we can read gets the classic one.
    ///
    /// ```
    /// use larder_proto::{Dialect, Version};
    /// assert_eq!(Dialect::of(Some(Version::META_FLOOR)), Dialect::Meta13);
    /// assert_eq!(Dialect::of(Version::parse("1.6.12")), Dialect::Classic);
    /// assert_eq!(Dialect::of(Version::parse("1.6.19")), Dialect::Meta13);
    /// assert_eq!(Dialect::of(Version::parse("1.6.20")), Dialect::Meta);
    /// ```
    pub fn of(version: Option<Version>) -> Dialect {
        match version {
            Some(version) if version >= Version::META_FULL => Dialect::Meta,
            Some(version) if version >= Version::META_FLOOR => Dialect::Meta13,
            _ => Dialect::Classic,
        }
    }

    /// True for the dialects that have `mg`, `ms`, `md` and `ma`.
    ///
    /// ```
    /// use larder_proto::Dialect;
    /// assert!(Dialect::Meta13.is_meta() && !Dialect::Classic.is_meta());
    /// ```
    pub fn is_meta(self) -> bool {
        self != Dialect::Classic
    }

    /// The name, as URLs and profiles spell it.
    ///
    /// ```
    /// assert_eq!(larder_proto::Dialect::Meta13.as_str(), "meta13");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::Classic => "classic",
            Dialect::Meta13 => "meta13",
            Dialect::Meta => "meta",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
