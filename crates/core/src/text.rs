//! How bytes are shown to people: in errors, logs and tables.

use std::fmt;

/// The number of bytes of a value that [`Shown`] prints before it cuts.
pub const SHOWN_BYTES_MAX: usize = 80;

/// Bytes as people can read them: printable ASCII as it is, everything else escaped, long input cut.
///
/// ```
/// use larder_core::text::Shown;
/// assert_eq!(Shown(b"hits").to_string(), "\"hits\"");
/// assert_eq!(Shown(b"a\nb\xff").to_string(), "\"a\\nb\\xff\"");
/// assert!(Shown(&[b'x'; 500]).to_string().ends_with("\"… (500 bytes)"));
/// ```
#[derive(Clone, Copy)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            write!(f, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL with its password, if it has one, replaced by `***`: the form that may be printed.
///
/// Works on text that is not a valid URL too, since typos are printed in errors; where it is in doubt it masks too much. What
/// stands between `://` (or the first `:`) and the `@` is user information; with a `:` in it, only the user's name is
/// kept, without one all of it is masked.
///
/// ```
/// use larder_core::text::masked_url;
/// assert_eq!(masked_url("memcached://joe:secret@cache:11211"), "memcached://joe:***@cache:11211");
/// assert_eq!(masked_url("memcached://cache:11211?tls_ca=/me@here"), "memcached://cache:11211?tls_ca=/me@here");
/// assert_eq!(masked_url("redis://token@cache"), "redis://***@cache");
/// assert_eq!(masked_url("redis://joe:1?2@cache"), "redis://joe:***@cache");
/// ```
pub fn masked_url(url: &str) -> String {
    let masked = without_password(url);
    let Some((before, options)) = masked.split_once('?') else { return masked };
    let options: Vec<String> = options.split('&').map(masked_option).collect();
    format!("{before}?{}", options.join("&"))
}

/// An option with its value masked if its name sounds like a secret: there is none such, but people try.
fn masked_option(option: &str) -> String {
    const SECRETS: [&str; 4] = ["pass", "pwd", "secret", "token"];
    match option.split_once('=') {
        Some((name, _)) if SECRETS.iter().any(|word| name.to_ascii_lowercase().contains(word)) => format!("{name}=***"),
        _ => option.to_owned(),
    }
}

/// The options of a URL, `name=value` joined by `&`; one without `=` has an empty value.
///
/// ```
/// use larder_core::text::url_options;
/// assert_eq!(url_options("a=1&b"), Ok(vec![("a", "1"), ("b", "")]));
/// assert!(url_options("a=1&b&a=2").unwrap_err().contains("the option a is given twice"));
/// ```
///
/// # Errors
/// For one that is given twice: which of them counts is nobody's guess.
pub fn url_options(options: &str) -> std::result::Result<Vec<(&str, &str)>, String> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for pair in options.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if all.iter().any(|(other, _)| *other == name) {
            return Err(format!("the option {name} is given twice"));
        }
        all.push((name, value));
    }
    Ok(all)
}

/// The scheme of a URL and what follows its `://`; `None` where what stands before the first `://` is none, such as a password with it.
///
/// ```
/// use larder_core::text::split_scheme;
/// assert_eq!(split_scheme("redis+unix:///run/r.sock"), Some(("redis+unix", "/run/r.sock")));
/// assert_eq!(split_scheme("redis:joe:secret@h?x=http://y"), None);
/// ```
pub fn split_scheme(url: &str) -> Option<(&str, &str)> {
    url.split_once("://").filter(|(scheme, _)| is_scheme(scheme))
}

fn is_scheme(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// True for `name=value` where the value may have an `@`: a path or the name of a certificate. In other options that is written `%40`.
///
/// ```
/// use larder_core::text::option_takes_at;
/// assert!(option_takes_at("tls_ca=/me@here") && !option_takes_at("ab=c@h") && !option_takes_at("a@tls_ca=b"));
/// ```
pub fn option_takes_at(option: &str) -> bool {
    const TAKES: [&str; 5] = ["tls_ca", "tls_cert", "tls_key", "tls_name", "witness"];
    option.split_once('=').is_some_and(|(name, _)| TAKES.contains(&name))
}

/// In doubt the last `@` of all is the end of a password. An `@` among the options is theirs only where each is in an option that takes one, where what stands before
/// them can be `host` or `host:port` or has an `@` of its own, and where none is behind a `#`, for no store has fragments.
fn without_password(url: &str) -> String {
    let is_url = split_scheme(url).is_some();
    let start = match (split_scheme(url), url.split_once(':')) {
        (Some((scheme, _)), _) => scheme.len() + 3,
        // The `//` was forgotten.
        (None, Some((word, _))) if is_scheme(word) => word.len() + 1,
        _ => 0,
    };
    let rest = &url[start..];
    let options = rest.find(['?', '#']).unwrap_or(rest.len());
    let is_server = |part: &str| {
        let (host, port) = part.rsplit_once(':').unwrap_or((part, "0"));
        part.ends_with(']') || (!host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let behind_mark = rest.split_once('#').is_some_and(|(_, behind)| behind.contains('@'));
    let pairs = rest[options..].trim_start_matches('?').split('&');
    let at = match rest[..options].rfind('@') {
        _ if behind_mark || pairs.into_iter().any(|pair| pair.contains('@') && !option_takes_at(pair)) => {
            rest.rfind('@')
        }
        None if !rest[..options].split(',').all(is_server) => rest.rfind('@'),
        at => at,
    };
    let Some(at) = at else {
        return url.to_owned();
    };
    // Without `//` the first word may be the scheme or the user, and so the second a password with a colon behind it. What is no plain name may be the password, too.
    let user = rest[..at].split_once(':').filter(|(user, _)| is_url && !user.contains(['@', '/', '?', '#']));
    let user = user.map_or(String::new(), |(user, _)| format!("{user}:"));
    format!("{}{user}***{}", &url[..start], &rest[at..])
}

/// A number of bytes in a few characters, in units of 1,000.
///
/// ```
/// assert_eq!(larder_core::text::size(2.5e6), "2.50 MB");
/// ```
pub fn size(bytes: f64) -> String {
    match bytes {
        _ if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        _ if bytes >= 1e6 => format!("{:.2} MB", bytes / 1e6),
        _ if bytes >= 1e3 => format!("{:.1} kB", bytes / 1e3),
        _ => format!("{bytes:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [(0.0, "0 B"), (999.0, "999 B"), (1_500.0, "1.5 kB"), (2.5e6, "2.50 MB"), (3e9, "3.00 GB")]
        {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_password_is_masked_whatever_it_looks_like() {
        for (url, shown) in [
            ("redis://joe@h:p4?s=w@h", "redis://***@h"),
            ("redis://:1234?ab=c@h", "redis://:***@h"),
            ("redis://joe:1234?ab=c@h", "redis://joe:***@h"),
            ("redis://:1234?tls_ca=c@h", "redis://:***@h"),
            ("memory:joe:1234?ab=c@h", "memory:***@h"),
            ("redis:joe:secret@h?x=http://y", "redis:***@h?x=http://y"),
            ("joe:se://cret@h", "joe:***@h"),
            ("jo@e:se://cret@h", "***@h"),
            ("redis://joe:pw@h?tls_ca=/me@here", "redis://joe:***@h?tls_ca=/me@here"),
            ("file:/x?witness=/me@here", "file:/x?witness=/me@here"),
        ] {
            assert_eq!(masked_url(url), shown, "{url}");
        }
    }

    #[test]
    fn a_password_with_at_and_slash_is_masked_whole() {
        assert_eq!(masked_url("memcached://u:p@ss/w@h:1/x"), "memcached://u:***@h:1/x");
        assert_eq!(masked_url("memcached://u:p?a#s@host"), "memcached://u:***@host");
        assert_eq!(masked_url("redis://joe:se?cret=1@h"), "redis://joe:***@h");
        assert_eq!(masked_url("redis://joe:1?ret@h"), "redis://joe:***@h");
        assert_eq!(masked_url("redis://joe:#sec=ret@h:1?x=1"), "redis://joe:***@h:1?x=1");
        assert_eq!(masked_url("redis://joe:1#sec=ret@h"), "redis://joe:***@h");
        assert_eq!(masked_url("redis:joe:#secret=@127.0.0.1:0"), "redis:***@127.0.0.1:0");
        assert_eq!(masked_url("redis://joe:?sec=ret@h"), "redis://joe:***@h");
        assert_eq!(masked_url("redis://sec?ret@h"), "redis://***@h");
        assert_eq!(masked_url("redis://u:p@a?ss@h"), "redis://u:***@h");
        assert_eq!(masked_url("redis://sec?re=t&x@h?y=1"), "redis://***@h?y=1");
        assert_eq!(masked_url("memcached:u:pass@host"), "memcached:***@host");
        assert_eq!(masked_url("u:pass:@host"), "u:***@host");
        assert_eq!(masked_url("memcached://u:pass:word:@host"), "memcached://u:***@host");
        assert_eq!(masked_url("pass@host"), "***@host");
        assert_eq!(masked_url("memcached://[::1]:11211,b?tls_ca=@"), "memcached://[::1]:11211,b?tls_ca=@");
        assert_eq!(masked_url("memcached://h?a=1&Password=x&b=2"), "memcached://h?a=1&Password=***&b=2");
        assert_eq!(masked_url("no url at all"), "no url at all");
    }
}
