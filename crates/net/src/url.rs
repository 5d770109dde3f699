//! The pieces of URLs that stores on the network share, and what is wrong with them.

use larder_core::text::{masked_url, option_takes_at, split_scheme};
use percent_encoding::percent_decode_str;

use crate::address::{Address, Auth};

/// Why a URL is wrong, without the URL.
///
/// ```
/// let wrong: larder_net::url::Wrong = larder_net::url::host("a b", 1).unwrap_err();
/// assert!(wrong.contains("no host name"));
/// ```
pub type Wrong = String;

/// As [`masked_url`], and also where the password holds a `?` that should have been percent-encoded, or the `://` was forgotten: this URL is printed
/// because something is wrong with it.
///
/// ```
/// assert!(!larder_net::url::masked("memcached://joe:sec?ret@h").contains("sec"));
/// assert_eq!(larder_net::url::masked("joe:?sec=ret@h"), "***@h");
/// ```
pub fn masked(url: &str) -> String {
    match (split_scheme(url), url.rfind('@'), url.find('?')) {
        (Some((scheme, _)), Some(at), Some(mark)) if mark < at => format!("{scheme}://***{}", &url[at..]),
        // No store on the network is given so, and which word is which nobody can tell.
        (None, Some(at), _) => format!("***{}", &url[at..]),
        _ => masked_url(url),
    }
}

/// Splits `target?options` at the first `?`, so that nothing in an option can change what is dialled. In a password a question mark is percent-encoded (`%3F`).
///
/// # Errors
/// Where what is split may be a password with a question mark, as where an option has an `@` that takes none: to go on would show parts of it in errors.
///
/// ```
/// use larder_net::url::split_options;
/// assert_eq!(split_options("u:a%3Fb@h?x=1")?, ("u:a%3Fb@h", "x=1"));
/// assert_eq!(split_options("h?tls_ca=/me@elsewhere")?, ("h", "tls_ca=/me@elsewhere"));
/// assert!(split_options("u:a?b@h").unwrap_err().contains("%3F"));
/// # Ok::<(), String>(())
/// ```
pub fn split_options(rest: &str) -> Result<(&str, &str), Wrong> {
    let (target, options) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = target.split('/').next().unwrap_or_default();
    let is_in_password = !target.contains('@') && options.contains('@') && !are_hosts(authority);
    if is_in_password || options.split('&').any(|pair| pair.contains('@') && !option_takes_at(pair)) {
        return Err("a question mark in a user or a password is written %3F, and an @ in an option %40".to_owned());
    }
    Ok((target, options))
}

/// True for what can be hosts with their ports, and no user with a password.
fn are_hosts(authority: &str) -> bool {
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = |text: &str| {
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        text.ends_with(']') || (!host.is_empty() && is_number(port))
    };
    authority.split(',').all(is_host)
}

/// The user and the password before an `@`, percent-decoded, and what follows.
///
/// # Errors
/// If there is no colon between them, or one is empty or holds what is not printable ASCII.
///
/// ```
/// let (auth, rest) = larder_net::url::user_information("joe:p%40ss@cache")?;
/// assert_eq!((auth.unwrap().password.as_str(), rest), ("p@ss", "cache"));
/// # Ok::<(), String>(())
/// ```
pub fn user_information(target: &str) -> Result<(Option<Auth>, &str), Wrong> {
    let Some((user, rest)) = target.rsplit_once('@') else {
        return Ok((None, target));
    };
    let Some((user, password)) = user.split_once(':') else {
        return Err("before the @ stands user:password".to_owned());
    };
    let auth = Auth { user: decoded(user)?, password: decoded(password)? };
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if !plain(&auth.user) || !plain(&auth.password) {
        return Err("user and password take printable ASCII without spaces, and are not empty".to_owned());
    }
    Ok((Some(auth), rest))
}

/// A host, with or without a port; an IPv6 address stands in brackets.
///
/// # Errors
/// If the host or the port is none.
///
/// ```
/// assert_eq!(larder_net::url::host("[::1]", 11_211)?.to_string(), "[::1]:11211");
/// # Ok::<(), String>(())
/// ```
pub fn host(text: &str, port_default: u16) -> Result<Address, Wrong> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(|| format!("the bracket of {text:?} is not closed"))?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("{host:?} is no IPv6 address"));
        }
        let port = match rest {
            "" => None,
            rest => {
                Some(rest.strip_prefix(':').ok_or_else(|| format!("after the bracket stands :port, not {rest:?}"))?)
            }
        };
        (host, port)
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(format!("an IPv6 address stands in brackets: [{text}]"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    if host.is_empty() || !host.chars().all(valid) {
        return Err(format!("{host:?} is no host name"));
    }
    let port = match port {
        None => port_default,
        Some(port) => digits(port)
            .and_then(|port| port.parse::<u16>().ok())
            .filter(|port| *port > 0)
            .ok_or_else(|| format!("the port {port:?} of {host} is no number of 1 to 65535"))?,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

/// A number among its limits, in digits alone.
///
/// # Errors
/// If it is none, or outside.
///
/// ```
/// assert!(larder_net::url::number("connections", "5", 1, 4).unwrap_err().contains("1 to 4"));
/// ```
pub fn number(name: &str, value: &str, min: u64, max: u64) -> Result<u64, Wrong> {
    match digits(value).map(str::parse::<u64>) {
        Some(Ok(number)) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("the option {name} takes a number of {min} to {max}, not {value:?}")),
    }
}

/// A text of digits: numbers are parsed with a sign, too.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text)
}

/// One of several words.
///
/// # Errors
/// If it is none of them, with the one that is spelled nearest.
///
/// ```
/// assert!(larder_net::url::one_of("tls_insecure", "yes", &[("yes", true), ("no", false)])?);
/// # Ok::<(), String>(())
/// ```
pub fn one_of<T: Copy>(name: &str, value: &str, choices: &[(&str, T)]) -> Result<T, Wrong> {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    match choices.iter().find(|(name, _)| *name == value) {
        Some((_, choice)) => Ok(*choice),
        None => Err(format!("the option {name} does not take {value:?}{}", suggestion(value, &names))),
    }
}

/// A percent-encoded part.
///
/// # Errors
/// If it is not UTF-8.
///
/// ```
/// assert_eq!(larder_net::url::decoded("a%20b")?, "a b");
/// # Ok::<(), String>(())
/// ```
pub fn decoded(text: &str) -> Result<String, Wrong> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err("a percent-encoded part is not UTF-8".to_owned()),
    }
}

/// What is known, and which of it is nearest to a mistyped word.
///
/// ```
/// assert!(larder_net::url::suggestion("timout_ms", &["timeout_ms"]).contains("did you mean timeout_ms?"));
/// ```
pub fn suggestion(word: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|known| (distance(word, known), *known)).min();
    let hint = match nearest {
        Some((distance, known)) if distance <= known.len() / 3 => format!("; did you mean {known}?"),
        _ => String::new(),
    };
    format!("; known are {}{hint}", known.join(", "))
}

/// Levenshtein's distance: how many letters to insert, drop or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(from != *to)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_an_option_is_never_the_host() {
        for (rest, target, options) in [
            ("good?tls_ca=a@evil", "good", "tls_ca=a@evil"),
            ("good:1,[::1]:2/3?x=1&tls_key=@evil?z", "good:1,[::1]:2/3", "x=1&tls_key=@evil?z"),
            ("joe:pw@good?tls_ca=u:p@evil", "joe:pw@good", "tls_ca=u:p@evil"),
            ("/run/a@b.sock?tls_ca=@evil", "/run/a@b.sock", "tls_ca=@evil"),
            ("joe:p%3Fw@good", "joe:p%3Fw@good", ""),
        ] {
            assert_eq!(split_options(rest), Ok((target, options)), "{rest}");
        }
    }

    #[test]
    fn a_number_is_digits_alone() {
        assert_eq!((number("n", "007", 1, 10), host("h:080", 1).unwrap().to_string()), (Ok(7), "h:80".to_owned()));
        for text in ["+5", "-5", "", " 5", "5k", "0x5", "٥", "99999999999999999999"] {
            assert!(number("n", text, 0, u64::MAX).unwrap_err().contains("takes a number of 0 to"), "{text}");
            let place = format!("h:{text}");
            assert!(host(&place, 1).unwrap_err().contains("is no number of 1 to 65535"), "{text}");
        }
    }

    #[test]
    fn a_question_mark_in_a_password_is_refused_and_not_shown() {
        for rest in [
            "joe:sec?ret@h",
            "joe:sec?ret@h?x=1",
            ":sec?ret@/run/r.sock",
            "joe:1?ret@h?x=1",
            "joe:se?c=r@h",
            "joe@h:p4?sec=w@h",
            ":1234?sec=c@h",
            "joe:1234?sec=c@h",
            "joe:1@2?sec=c@h",
            ":1234?tls_ca=c@h",
        ] {
            let wrong = split_options(rest).unwrap_err();
            assert!(wrong.contains("%3F") && !wrong.contains("sec"), "{rest}: {wrong}");
        }
    }
}
