//! Opening a store by its URL.

#[cfg(any(feature = "memory", feature = "memcached", feature = "redis", feature = "durable"))]
use larder_core::list::List;
use larder_core::list::ListRef;
#[cfg(any(feature = "memory", feature = "memcached", feature = "redis", feature = "durable"))]
use larder_core::survey::Survey;
use larder_core::survey::SurveyRef;
use larder_core::text::{masked_url, split_scheme};
use larder_core::{Error, ErrorKind, Result, StoreRef};

use crate::spelling::nearest;

/// The schemes that [`open`] knows in this build.
///
/// ```
/// # #[cfg(feature = "memory")]
/// assert!(larder::SCHEMES.contains(&"memory"));
/// ```
pub const SCHEMES: &[&str] = &[
    #[cfg(feature = "memory")]
    "memory",
    #[cfg(feature = "durable")]
    "file",
    #[cfg(feature = "memcached")]
    "memcached",
    #[cfg(feature = "memcached")]
    "memcached+tls",
    #[cfg(feature = "memcached")]
    "memcached+unix",
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "rediss",
    #[cfg(feature = "redis")]
    "redis+unix",
    #[cfg(feature = "redis")]
    "redis-cluster",
    #[cfg(feature = "redis")]
    "rediss-cluster",
];

/// Opens the store that a URL names.
///
/// | URL | store | options |
/// |---|---|---|
/// | `memory:` | in this process, a new one with each call; its data ends with it | `bytes_max` (`64m`; none), `evict` (`false`), `value_bytes_max` (`1m`), `shards` (256) |
/// | `file:PATH` | in a folder, for one process at a time; its data stay | `sync` (`always`, `every:100ms`, `never`), `value_bytes_max` (`64m`), `wait_ms` for another process (0), `create` it where there is none (`yes`), `share` it in turns with other processes (`no`), `witness`, a file elsewhere that says how far the store was (none), `reserve_bytes` that stay free on the disk (`64m`), `cache_bytes` (`64m`) |
/// | `memcached://host:port[,host:port…]` | memcached, one server or several | see the memcached store |
/// | `memcached+tls://host:port` | the same over TLS | the same |
/// | `memcached+unix:///path` | the same over a unix socket | the same |
/// | `redis://[user:password@]host:port[/database]` | Redis or Valkey, one server | see the Redis store |
/// | `rediss://host:port` | the same over TLS | the same |
/// | `redis+unix:///path` | the same over a unix socket | the same |
/// | `redis-cluster://host:port[,host:port…]` | a Redis or Valkey cluster; any of its nodes name the others | see the Redis store |
/// | `rediss-cluster://host:port` | the same over TLS | the same |
///
/// Options follow a `?`, joined by `&`: `memory:?bytes_max=64m&evict=true`. Sizes take `k`, `m` and `g`, of 1,024 each.
///
/// What a server is set up for that endangers structures, such as a policy that evicts, is no error, and neither is a primary of a cluster that is down and so tells nothing:
/// [`Profile::warnings`](crate::Profile::warnings) has it, in words that name the mend. With the feature `tracing` each is an event of that crate too, at `WARN` with the target `larder`
/// and the field `store`, once an open. Without it nobody hears of them who does not look. Later handshakes, after a server was gone, change the profile, and tell nothing.
///
/// **Round trips:** none for `memory:` and `file:`, whose files are read before this returns; a handshake with each server for the others.
///
/// # Errors
/// [`ErrorKind::Config`] for a scheme or an option that is not known, with the known ones and the one that is spelled
/// nearest, and for a value that an option does not take; no error shows a password. [`ErrorKind::Unavailable`],
/// [`ErrorKind::Timeout`] or [`ErrorKind::Protocol`] where no server answers, or not as one should.
///
/// ```
/// # #[cfg(not(feature = "memory"))] fn main() {}
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(larder::open("memory:?bytes_max=64m").await.is_ok());
/// let error = larder::open("memroy:").await.unwrap_err();
/// assert!(error.to_string().contains("did you mean memory:"), "{error}");
/// # }
/// ```
pub async fn open(url: &str) -> Result<StoreRef> {
    Ok(open_all(url).await?.store)
}

/// A store, and what can be asked beside its ops.
///
/// ```
/// # #[cfg(not(feature = "memory"))] fn main() {}
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder::Result<()> {
/// let opened = larder::open_all("memory:").await?;
/// assert!(opened.list.is_some() && opened.survey.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The store.
    pub store: StoreRef,
    /// Which keys it holds; `None` for a store that cannot tell.
    pub list: Option<ListRef>,
    /// What its servers say of their memory and work, and how they keep keys; `None` for a store that cannot tell.
    pub survey: Option<SurveyRef>,
}

/// Opens the store that a URL names, and its list: which keys it holds. `None` for a store that cannot tell.
///
/// The list is that of the whole store; seen through a namespace it is what `Namespace::list` makes of it.
///
/// **Round trips and errors** as of [`open`].
///
/// ```
/// # #[cfg(not(feature = "memory"))] fn main() {}
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder::Result<()> {
/// let (store, list) = larder::open_with_list("memory:").await?;
/// larder::Counter::open_or_create(&store, "hits").await?;
/// let list = list.expect("a store in the process can tell");
/// let all = larder::list(&store, &*list, larder::Ctx::default(), &mut |_| ()).await?;
/// assert_eq!(all[0].name.as_bytes(), b"hits");
/// # Ok(())
/// # }
/// ```
pub async fn open_with_list(url: &str) -> Result<(StoreRef, Option<ListRef>)> {
    let opened = open_all(url).await?;
    Ok((opened.store, opened.list))
}

/// Opens the store that a URL names, its list and its survey: see [`List`](larder_core::list::List) and [`Survey`](larder_core::survey::Survey).
///
/// **Round trips and errors** as of [`open`].
///
/// ```
/// # #[cfg(not(feature = "memory"))] fn main() {}
/// # #[cfg(feature = "memory")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder::Result<()> {
/// let opened = larder::open_all("memory:").await?;
/// let survey = opened.survey.expect("a store in the process can tell");
/// for vitals in survey.vitals(larder::Ctx::default()).await {
///     println!("{} uses {:?} bytes", vitals.as_ref().map_or("?", |vitals| &vitals.node), vitals.as_ref().ok().and_then(|vitals| vitals.used_bytes));
/// }
/// # Ok(())
/// # }
/// ```
pub async fn open_all(url: &str) -> Result<Opened> {
    let opened = opened(url).await?;
    #[cfg(feature = "tracing")]
    for warning in &opened.store.profile().warnings {
        tracing::warn!(target: "larder", store = %masked_url(url), "{warning}");
    }
    Ok(opened)
}

async fn opened(url: &str) -> Result<Opened> {
    let Some((scheme, rest)) = url.split_once(':') else { return Err(unknown_scheme(url, url)) };
    let scheme = scheme.to_ascii_lowercase();
    match (scheme.as_str(), rest) {
        #[cfg(feature = "memory")]
        ("memory", options) => Ok(all(crate::memory_url::open(options)?)),
        #[cfg(feature = "durable")]
        ("file", place) => {
            let place = crate::durable_url::parse(place)?;
            let given_up = GivenUp::default();
            let options = place.options.given_up(given_up.0.clone());
            // It waits for another process, and reads the journal.
            let opened =
                beside(
                    move || {
                        if place.is_shared { Ok(all(options.open_shared()?)) } else { Ok(all(options.open()?)) }
                    },
                )
                .await;
            given_up.disarmed();
            opened
        }
        #[cfg(feature = "memcached")]
        ("memcached" | "memcached+tls" | "memcached+unix", place) if place.starts_with("//") => {
            memcached(&format!("{scheme}:{place}")).await
        }
        #[cfg(feature = "redis")]
        ("redis" | "rediss" | "redis+unix", place) if place.starts_with("//") => {
            redis(&format!("{scheme}:{place}")).await
        }
        #[cfg(feature = "redis")]
        ("redis-cluster" | "rediss-cluster", place) if place.starts_with("//") => {
            redis_cluster(&format!("{scheme}:{place}")).await
        }
        _ => Err(unknown_scheme(&scheme, url)),
    }
}

/// Ends the wait for another process where whoever opens a store gives up.
#[cfg(feature = "durable")]
#[derive(Default)]
struct GivenUp(std::sync::Arc<std::sync::atomic::AtomicBool>);

#[cfg(feature = "durable")]
impl GivenUp {
    /// It was not: what is opened may wait again.
    fn disarmed(mut self) {
        self.0 = std::sync::Arc::default();
    }
}

#[cfg(feature = "durable")]
impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Does what blocks on a thread of the runtime's for that, where there is one.
#[cfg(feature = "durable")]
async fn beside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return work() };
    let ended = |error| Error::new(larder_core::ErrorKind::Unavailable, "the runtime ended meanwhile").source(error);
    runtime.spawn_blocking(work).await.map_err(ended)?
}

/// The options of a durable store by its URL, `file:PATH[?options]`: for what is no op, such as backups and restores. The option `share` says nothing here.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for another URL, or an option that there is not.
///
/// ```
/// let options = larder::durable_options("file:/var/lib/larder?sync=every:100ms")?;
/// # Ok::<(), larder::Error>(())
/// ```
#[cfg(feature = "durable")]
pub fn durable_options(url: &str) -> Result<larder_store_durable::Options> {
    match url.split_once(':') {
        Some((scheme, place)) if scheme.eq_ignore_ascii_case("file") => Ok(crate::durable_url::parse(place)?.options),
        _ => {
            let detail = format!("{} is no durable store; that is file:PATH", larder_core::text::masked_url(url));
            Err(Error::new(ErrorKind::Config, detail))
        }
    }
}

/// A store that lists its keys and can be surveyed, as all of that.
#[cfg(any(feature = "memory", feature = "memcached", feature = "redis", feature = "durable"))]
fn all(store: impl larder_core::Store + List + Survey + 'static) -> Opened {
    let store = std::sync::Arc::new(store);
    Opened { store: store.clone(), list: Some(store.clone()), survey: Some(store) }
}

#[cfg(feature = "memcached")]
async fn memcached(url: &str) -> Result<Opened> {
    let config = larder_store_memcached::Config::from_url(url)?;
    Ok(all(larder_store_memcached::MemcachedStore::connect(config).await?))
}

#[cfg(feature = "redis")]
async fn redis(url: &str) -> Result<Opened> {
    let config = larder_store_redis::Config::from_url(url)?;
    Ok(all(larder_store_redis::RedisStore::connect(config).await?))
}

#[cfg(feature = "redis")]
async fn redis_cluster(url: &str) -> Result<Opened> {
    let config = larder_store_redis::ClusterConfig::from_url(url)?;
    Ok(all(larder_store_redis::RedisClusterStore::connect(config).await?))
}

fn unknown_scheme(scheme: &str, url: &str) -> Error {
    let known: Vec<String> = SCHEMES.iter().map(|scheme| example(scheme)).collect();
    let hint = match nearest(scheme, SCHEMES) {
        Some(meant) => format!("; did you mean {}", example(meant)),
        None if is_address(url) && SCHEMES.contains(&"memcached") => format!("; did you mean memcached://{url}"),
        None => String::new(),
    };
    let detail = format!("{:?} is no URL of a store; known are {}{hint}", printable(url), known.join(", "));
    Error::new(ErrorKind::Config, detail)
}

fn example(scheme: &str) -> String {
    match scheme {
        "memory" => "memory:".to_owned(),
        "memcached+unix" | "redis+unix" => format!("{scheme}:///path"),
        "file" => "file:PATH".to_owned(),
        _ => format!("{scheme}://host:port"),
    }
}

/// True for `host:port` without a scheme.
fn is_address(url: &str) -> bool {
    let is_host = |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    url.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok())
}

/// A URL as it may be printed, even if it is none: one whose `//` was forgotten keeps its secret too.
fn printable(url: &str) -> String {
    const CHARS_MAX: usize = 200;
    let masked = match url.rsplit_once('@') {
        Some((_, rest)) if split_scheme(url).is_none() => format!("***@{rest}"),
        _ => masked_url(url),
    };
    match masked.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", &masked[..end], url.len()),
        None => masked,
    }
}

#[cfg(all(test, feature = "memory", feature = "memcached", feature = "redis", feature = "durable"))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    async fn error(url: &str) -> String {
        let error = open(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        error.to_string()
    }

    #[tokio::test]
    async fn typos_name_the_known_schemes_and_the_nearest() {
        for (url, hint) in [
            ("memcahced://cache:11211", "did you mean memcached://host:port"),
            ("memcached+unx:///x", "did you mean memcached+unix:///path"),
            ("memcached:cache:11211", "did you mean memcached://host:port"),
            ("memory", "did you mean memory:"),
            ("cache.example:11211", "did you mean memcached://cache.example:11211"),
        ] {
            let error = error(url).await;
            assert!(error.contains(hint), "{error}");
            assert!(error.contains("known are memory:, file:PATH, memcached://host:port"), "{error}");
        }
        for url in ["", ":", "://", "valk://cache", "http://[::1]:80/"] {
            assert!(!error(url).await.contains("did you mean"), "{url}");
        }
        assert!(error(&"x".repeat(10_000)).await.len() < 500);
    }

    #[tokio::test]
    async fn no_error_shows_a_password() {
        for url in [
            "redi://joe:hunter2@cache",
            "redis://joe:hunter2@cache:not-a-port",
            "memcahced://joe:hunter2@cache:11211",
            "memcachd:joe:hunter2@cache:11211",
            "memcached:joe:hunter2@cache:11211",
            "memcached://joe:hunter2@cache:not-a-port",
            "memcached://joe:hunter2@cache:1?no_such_option=1",
            "memory://joe:hunter2@cache",
            "memory:joe:hunter2@cache",
            "memory:joe:1234?hunter2=c@h",
            "redis:joe:hunter2@h?x=http://y",
            "redis://joe@h:1?hunter2=w@h",
            "redis://:1234?hunter2=c@h",
        ] {
            let error = error(url).await;
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    /// Whatever is told of a URL, where nothing is dialled for it.
    fn told_of(url: &str) -> Vec<String> {
        let of = |told: Result<String>| match told {
            Ok(debug) => vec![debug],
            Err(error) => vec![error.to_string(), format!("{error:?}")],
        };
        let debug = |config: &dyn std::fmt::Debug| format!("{config:?}");
        let mut told = vec![masked_url(url)];
        told.extend(of(larder_store_redis::Config::from_url(url).map(|config| debug(&config))));
        told.extend(of(larder_store_redis::ClusterConfig::from_url(url).map(|config| debug(&config))));
        told.extend(of(larder_store_memcached::Config::from_url(url).map(|config| debug(&config))));
        told.extend(of(Err(unknown_scheme(url.split(':').next().unwrap(), url))));
        if let Some(("memory", rest)) = url.split_once(':') {
            told.extend(of(crate::memory_url::open(rest).map(|_| String::new())));
        }
        told
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

        #[test]
        fn no_error_shows_any_part_of_a_password(
            scheme in select(vec![
                "redis://", "redis:", "REDIS://", "rdis://", "redis+unix://", "redis-cluster://", "memcached://", "memcached+unix://", "memcached:", "memory:",
                "memory://", "//",
            ]),
            user in select(vec!["", "joe", "joe@corp", "[::1]"]),
            password in vec(select(vec!["?", "=", "&", "@", "/", "#", ":", "://", ",", "%3f", "[", "]", "8642", "QZ", "WXY"]), 1..9),
            host in select(vec!["h", "h:1", "h:x", "h,i", "[::1]:2", "/run/s", ""]),
            behind in select(vec!["", "/0", "/x", "?x=http://y", "?tls_ca=/me@here", "?database=z", "?zz=1&a=b", "#x"]),
        ) {
            let url = format!("{scheme}{user}:{}@{host}{behind}", password.concat());
            for told in told_of(&url) {
                for secret in ["8642", "QZ", "WXY"] {
                    prop_assert!(!told.contains(secret), "{url} is told as {told}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_scheme_may_be_in_capitals() {
        assert!(open("MEMORY:").await.is_ok());
    }
}
