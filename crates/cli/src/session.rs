//! The store that a command works on.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder::layers::Counting;
use larder::{Ctx, Durability, Error, ErrorKind, ListRef, Name, StoreRef};
use serde_json::json;

use crate::args::{Common, Named};
use crate::exit::{Failure, say};
use crate::output::{Out, argument};

/// How long one operation may take, unless --timeout says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// An open store, and how to work on it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) store: StoreRef,
    /// What lists the store's keys, where it can tell them.
    pub(crate) list: Option<ListRef>,
    pub(crate) timeout: Duration,
    pub(crate) out: Out,
    counting: Counting,
    trace: bool,
}

impl Session {
    /// Opens the store that the command line or the environment names. One that ends with this process is refused:
    /// whatever a command left there would be gone before the next command.
    pub(crate) async fn open(common: &Common) -> Result<Session, Failure> {
        let url = store_url(common)?;
        let timeout = common.timeout.unwrap_or(TIMEOUT);
        let (opened, list) = connect_with_list(&url, timeout).await?;
        let counting = Counting::new(opened);
        let store: StoreRef = Arc::new(counting.clone());
        if store.profile().durability == Durability::Process {
            let message =
                format!("the store {} ends with this command, and the data with it", larder::text::masked_url(&url));
            return Err(Failure::usage(message).hint(HOW_TO_SET_ONE));
        }
        Ok(Session { store, list, timeout, out: Out { json: common.json }, counting, trace: common.trace })
    }

    /// For what is no method of a handle.
    pub(crate) fn ctx(&self) -> Ctx {
        Ctx::within(self.timeout)
    }

    /// Says what it cost, if that was asked for.
    pub(crate) fn report_cost(&self) {
        if !self.trace {
            return;
        }
        let cost = self.counting.counts();
        if self.out.json {
            let object = json!({"trace": {
                "round_trips": cost.round_trips,
                "ops": cost.ops,
                "sent_bytes": cost.sent_bytes,
                "received_bytes": cost.received_bytes,
                "errors": cost.errors_total(),
            }});
            say(&object.to_string());
        } else {
            say(&format!(
                "round trips: {}, ops: {}, sent: {} bytes, received: {} bytes, errors: {}",
                cost.round_trips,
                cost.ops,
                cost.sent_bytes,
                cost.received_bytes,
                cost.errors_total()
            ));
        }
    }
}

const HOW_TO_SET_ONE: &str = "set one: `larder --store memcached://localhost:11211 …`, or `export LARDER_STORE=memcached://…`; \
    without one, it is the durable store in $XDG_DATA_HOME/larder";

/// The store's URL: the one that the command line or the environment names, or else the durable store of this user. A durable one is opened for one operation at
/// a time, and another process that has it open is waited for, unless the URL says otherwise.
pub(crate) fn store_url(common: &Common) -> Result<String, Failure> {
    let named = common.store.clone().filter(|url| !url.is_empty());
    let url = named.map_or_else(default_url, Ok)?;
    if !url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
        return Ok(url);
    }
    let mut url = url;
    for (option, value) in [("share", "yes".to_owned()), ("wait_ms", TIMEOUT.as_millis().to_string())] {
        let options = url.split_once('?').map_or("", |(_, options)| options);
        if !options.split('&').any(|given| given.split('=').next() == Some(option)) {
            let mark = if url.contains('?') { '&' } else { '?' };
            url.push_str(&format!("{mark}{option}={value}"));
        }
    }
    Ok(url)
}

/// The durable store of this user, whose folder is made if need be.
fn default_url() -> Result<String, Failure> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    let none = || {
        Failure::usage("no store is set, and neither XDG_DATA_HOME nor HOME says where this user's is")
            .hint(HOW_TO_SET_ONE)
    };
    let folder = data.ok_or_else(none)?.join("larder");
    let odd = || {
        let message = format!("{} has characters that no URL of a store takes", folder.display());
        Failure::usage(message).hint(HOW_TO_SET_ONE)
    };
    let path = folder.to_str().filter(|path| !path.contains('?')).ok_or_else(odd)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| Failure::usage(format!("{path} cannot be made: {error}")).hint(HOW_TO_SET_ONE))?;
    Ok(format!("file:{path}"))
}

/// Opens a store, in `timeout` at the most.
pub(crate) async fn connect(url: &str, timeout: Duration) -> Result<StoreRef, Error> {
    Ok(connect_with_list(url, timeout).await?.0)
}

async fn connect_with_list(url: &str, timeout: Duration) -> Result<(StoreRef, Option<ListRef>), Error> {
    match tokio::time::timeout(timeout, larder::open_with_list(url)).await {
        Ok(opened) => opened,
        Err(_) => {
            let error = Error::new(ErrorKind::Timeout, format!("the store was not open after {timeout:?}"));
            Err(error.store(larder::text::masked_url(url)))
        }
    }
}

impl Named {
    /// The name, as bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        argument(&self.name)
    }

    /// The name, checked.
    pub(crate) fn checked(&self) -> Result<Name, Failure> {
        Ok(Name::new(self.bytes())?)
    }
}
