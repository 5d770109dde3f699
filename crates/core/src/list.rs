//! Listing: which keys a store holds, where it can tell.
//!
//! Apart from [`Store`](crate::Store), which has one method so that no wrapper can be bypassed. There is no way from a store to a [`List`]: whoever
//! opened the store has the list beside it, and a layer that changes keys says what a list looks like through it (`Namespace::list`). So a wrapper
//! that knows nothing of lists hides nothing and shows nothing by accident.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Result;
use crate::store::Ctx;

/// Where each of several memcached servers carries the list of them: no data, and in another fleet it would lock its clients out. Listings of a fleet, exports and imports leave it out.
/// A structure's keys begin with `L.`, so that this is none of theirs.
pub const FLEET_KEY: &str = "L!fleet";

/// Something that can tell which keys it holds. For looking around and for maintenance, not for programs to work by.
///
/// # Contract
/// - **No snapshot.** A key that is there from before the listing begins until it ends is told, unless the implementation says why not; one that comes or
///   goes meanwhile may be or not.
/// - A key may be told more than once: copies on several nodes, or a table that was rebuilt meanwhile.
/// - Items that have expired are not told.
/// - It takes as long as the store is large, and other work goes on meanwhile.
///
/// ```
/// use larder_core::list::{List, Listed};
/// use larder_core::{Ctx, Result};
///
/// async fn keys(list: &dyn List, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
///     let mut keys = Vec::new();
///     let mut tell = |told: Listed<'_>| {
///         if let Listed::Key(key) = told {
///             keys.push(key.to_vec());
///         }
///     };
///     list.list(Ctx::default(), prefix, &mut tell).await?;
///     Ok(keys)
/// }
/// ```
pub trait List: Send + Sync + fmt::Debug {
    /// Tells every key that begins with `prefix`, and how far it has come.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the store cannot tell; [`Timeout`](crate::ErrorKind::Timeout) when the deadline comes first;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) where a server cannot be reached, or the connection, or what the server was, ended midway. What was told until then stands, and is not all.
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a>;
}

/// A list that is shared.
pub type ListRef = Arc<dyn List>;

/// A listing under way.
pub type Listing<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// What a listing tells.
///
/// ```
/// let told = larder_core::list::Listed::Key(b"greeting");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed<'a> {
    /// A key, as an op without a route names it.
    Key(&'a [u8]),
    /// What stands under no such key, as the server has it: another program's, where a server takes keys that are none here, or an item that is routed with another key. Told
    /// where everything is listed, and not by a prefix.
    Other(&'a [u8]),
    /// So many items were looked at so far, of whatever key: told now and then, for progress.
    LookedAt(u64),
}
