//! The store that a command works on.

use std::sync::Arc;
use std::time::Duration;

use larder::layers::Counting;
use larder::survey::SurveyRef;
use larder::{Ctx, Durability, Error, ErrorKind, ListRef, Name, Opened, StoreRef};
use serde_json::json;

use crate::address::address;
use crate::args::{Common, Named};
use crate::exit::{Failure, Where, say};
use crate::output::{Out, argument};
use crate::own::{Own, is_file};

/// How long one operation may take, unless --timeout says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a command makes the folder of a store that was named, where it is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Makes {
    Store,
    /// It asks what is there: of a path that was mistyped it would tell that nothing is.
    Nothing,
}

/// The longest that the option timeout_ms of a server takes.
const SERVER_TIMEOUT_MS_MAX: u128 = 600_000;

/// An open store, and how to work on it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) store: StoreRef,
    /// Where it is.
    pub(crate) address: String,
    pub(crate) place: Where,
    /// What lists the store's keys, where it can tell them.
    pub(crate) list: Option<ListRef>,
    /// What surveys the store, where it can be.
    pub(crate) survey: Option<SurveyRef>,
    pub(crate) timeout: Duration,
    pub(crate) out: Out,
    counting: Counting,
    trace: bool,
}

impl Session {
    /// Opens the store that the command line or the environment names. One that ends with this process is refused:
    /// whatever a command left there would be gone before the next command.
    pub(crate) async fn open(common: &Common, makes: Makes) -> Result<Session, Failure> {
        let timeout = common.timeout.unwrap_or(TIMEOUT);
        let mut url = store_url(common, makes)?;
        let mut connected = connect_all(&url, timeout).await;
        if connected.is_err() && named(common).is_none() {
            // This user's server may have ended for want of work just when it was asked.
            url = store_url(common, makes)?;
            connected = connect_all(&url, timeout).await;
        }
        let place = match named(common) {
            _ if is_file(&url) => Where::Folder,
            Some(_) => Where::Server,
            None => Where::OwnServer,
        };
        let opened = connected.map_err(|error| Failure::opening(error, place))?;
        let counting = Counting::new(opened.store);
        let store: StoreRef = Arc::new(counting.clone());
        if store.profile().durability == Durability::Process {
            let message =
                format!("the store {} ends with this command, and the data with it", larder::text::masked_url(&url));
            return Err(Failure::usage(message).hint(HOW_TO_SET_ONE));
        }
        let out = Out { json: common.json };
        for warning in &store.profile().warnings {
            out.warn(warning);
        }
        let (list, survey) = (opened.list, opened.survey);
        Ok(Session { store, address: address(&url), place, list, survey, timeout, out, counting, trace: common.trace })
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

pub(crate) const HOW_TO_SET_ONE: &str = "set one: `larder --store memcached://localhost:11211 …`, or `export LARDER_STORE=memcached://…`; \
    without one, it is the durable store in $XDG_DATA_HOME/larder";

/// The store's URL: the one that the command line or the environment names, or else this user's own, by its server or with --direct by its files. Files are opened for
/// one operation at a time, and another process that has them open is waited for, unless the URL says otherwise.
fn store_url(common: &Common, makes: Makes) -> Result<String, Failure> {
    match named(common) {
        Some(url) if makes == Makes::Nothing => Ok(unmade(as_commands_do(url, common.timeout))),
        Some(url) => Ok(as_commands_do(url, common.timeout)),
        None if common.direct => {
            let own = Own::find()?;
            own.end_server()?;
            Ok(as_commands_do(own.files(), common.timeout))
        }
        None => served(common),
    }
}

/// The URL of this user's own store by its server; by its files, in turns, where that can have no socket.
fn served(common: &Common) -> Result<String, Failure> {
    let timeout = common.timeout.unwrap_or(TIMEOUT);
    let url = Own::find()?.served(timeout)?;
    if is_file(&url) {
        return Ok(as_commands_do(url, common.timeout));
    }
    // Of a large item the store may write for longer than a server is given that is not told.
    let timeout_ms = timeout.as_millis().clamp(1, SERVER_TIMEOUT_MS_MAX);
    Ok(with_option(url, "timeout_ms", &timeout_ms.to_string()))
}

/// The URL by which a durable store is backed up: this user's own by its server, as it is.
pub(crate) fn backup_url(common: &Common) -> Result<String, Failure> {
    if named(common).is_none() && !common.direct { served(common) } else { files_url(common, Makes::Nothing) }
}

/// The URL of a durable store's files, for what is no op.
pub(crate) fn files_url(common: &Common, makes: Makes) -> Result<String, Failure> {
    let url = match named(common) {
        Some(url) => url,
        None => {
            let own = Own::find()?;
            own.end_server()?;
            own.files()
        }
    };
    let url = as_commands_do(url, common.timeout);
    Ok(if makes == Makes::Nothing { unmade(url) } else { url })
}

/// The URL as commands open it: files in turns with other processes, each waited for as long as an operation may take; unless the URL says otherwise.
pub(crate) fn as_commands_do(url: String, timeout: Option<Duration>) -> String {
    if !is_file(&url) {
        return url;
    }
    let wait = timeout.unwrap_or(TIMEOUT);
    // What no number of ms tells is as good as for ever.
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    with_option(with_option(url, "share", "yes"), "wait_ms", &wait_ms.to_string())
}

fn named(common: &Common) -> Option<String> {
    common.store.clone().filter(|url| !url.is_empty())
}

/// Files that are not made where they are not there, unless the URL says otherwise.
fn unmade(url: String) -> String {
    if is_file(&url) { with_option(url, "create", "no") } else { url }
}

/// The URL with an option, if it does not have it.
fn with_option(mut url: String, option: &str, value: &str) -> String {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    if !options.split('&').any(|given| given.split('=').next() == Some(option)) {
        let mark = if url.contains('?') { '&' } else { '?' };
        url.push_str(&format!("{mark}{option}={value}"));
    }
    url
}

/// Opens a store, in `timeout` at the most; files in the time that their URL says.
pub(crate) async fn connect(url: &str, timeout: Duration) -> Result<StoreRef, Error> {
    Ok(connect_all(url, timeout).await?.store)
}

async fn connect_all(url: &str, timeout: Duration) -> Result<Opened, Error> {
    if is_file(url) {
        // Who has it open meanwhile is told once the wait that the URL says is over.
        return larder::open_all(url).await;
    }
    match tokio::time::timeout(timeout, larder::open_all(url)).await {
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
