//! The cache.

use bytes::Bytes;

use super::{twin, wait};
use crate::cache::{Cached, Lookup};
use crate::{Error, Result};

twin! {
    /// A [`Cache`](crate::Cache) without async: a cheap clone.
    Cache(open_or_create);
    fn get(&self, key: impl AsRef<[u8]>) -> Option<Cached> = "assert!(it.get(\"/index\")?.is_none());";
    fn invalidate(&self, key: impl AsRef<[u8]>) -> () = "it.invalidate(\"/index\")?;";
}

impl Cache {
    /// [`Cache::get_or_rebuild`](crate::Cache::get_or_rebuild), waited for. **Round trips: 1** for a hit, 3 with a rebuild.
    ///
    /// `rebuild` runs on the caller's thread, outside the runtime: it may use other handles of this module, this one too for another key.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// let pages = larder::blocking::Cache::open_or_create(&store, "pages").unwrap();
    /// let page = pages.get_or_rebuild("/index", || Ok::<_, larder::Error>("<html>")).unwrap();
    /// assert_eq!(page.value, "<html>");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `rebuild`, and as there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn get_or_rebuild<V, E>(
        &self,
        key: impl AsRef<[u8]>,
        rebuild: impl FnOnce() -> Result<V, E>,
    ) -> Result<Cached, E>
    where
        V: Into<Bytes>,
        E: From<Error>,
    {
        let lease = match wait(self.handle().lookup(key))? {
            Lookup::Found(cached) => return Ok(cached),
            Lookup::Rebuild(lease) => lease.renewing(),
        };
        match rebuild() {
            Ok(value) => Ok(wait(async { Ok(lease.finish(value).await) })?),
            Err(error) => {
                // If it cannot wait any more, the lease is given up in the background.
                _ = wait(async {
                    lease.give_up().await;
                    Ok(())
                });
                Err(error)
            }
        }
    }
}
