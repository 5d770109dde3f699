//! Where a store is, as a dump of it says.

use std::fs;
use std::path::Path;

use larder::text::masked_url;

/// What tells the store of a URL from others: its scheme, servers and path, and the number of a Redis database; no user, no password, no other option. The same store by
/// another of its names, or by another of its nodes, has another.
pub(crate) fn address(url: &str) -> String {
    let Some((scheme, place)) = url.split_once(':') else { return masked_url(url) };
    let scheme = scheme.to_ascii_lowercase();
    if scheme == "file" {
        return format!("file:{}", folder(place.split('?').next().unwrap_or_default()));
    }
    let url = masked_url(&format!("{scheme}:{place}"));
    let place = url.split_once("://").map_or("", |(_, place)| place);
    // Nothing is left of who the user is.
    let place = place.rsplit_once("***@").map_or(place, |(_, place)| place);
    let (place, options) = place.split_once('?').unwrap_or((place, ""));
    let place = place.trim_end_matches('/');
    let place = if scheme.ends_with("+unix") { place.to_owned() } else { place.to_ascii_lowercase() };
    let database = options.split('&').find(|option| option.starts_with("database="));
    format!("{scheme}://{place}{}", database.map(|option| format!("?{option}")).unwrap_or_default())
}

/// The whole path of a folder, by whatever path it is named here.
fn folder(path: &str) -> String {
    let path = path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path);
    let path = Path::new(path);
    let whole = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    whole.unwrap_or_else(|_| path.to_owned()).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_what_tells_stores_apart_and_no_secret() {
        for (url, told) in [
            ("redis://joe:se@cret@Cache:6379/3?timeout_ms=7", "redis://cache:6379/3"),
            ("REDIS://:pw@cache:6379/", "redis://cache:6379"),
            ("redis+unix://:pw@/run/R.sock?timeout_ms=7&database=4", "redis+unix:///run/R.sock?database=4"),
            ("redis-cluster://u:p@a:1,b:2?tls_ca=/me@here", "redis-cluster://a:1,b:2"),
            ("memcached://u:p?a#s@host", "memcached://host"),
            ("memcached+unix:///run/L.sock?connections=2", "memcached+unix:///run/L.sock"),
        ] {
            assert_eq!(address(url), told, "{url}");
        }
    }

    #[test]
    fn a_folder_is_the_same_by_whatever_path() {
        let folder = tempfile::tempdir().unwrap();
        let whole = fs::canonicalize(folder.path()).unwrap().join("a@b");
        fs::create_dir(&whole).unwrap();
        std::os::unix::fs::symlink(&whole, folder.path().join("link")).unwrap();
        let told = format!("file:{}", whole.display());
        for name in ["a@b", "link", "./a@b/../link/?share=yes&wait_ms=3"] {
            assert_eq!(address(&format!("file:{}/{name}", folder.path().display())), told);
            assert_eq!(address(&format!("file://{}/{name}", folder.path().display())), told);
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(address("file:none"), format!("file:{}", here.join("none").display()));
    }
}
