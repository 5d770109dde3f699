//! The lock.

use std::time::Duration;

use super::{Array, twin, wait};
use crate::lock::{Lease, LockStatus, Released};
use crate::{Error, ErrorKind, Result};

twin! {
    /// A [`Lock`](crate::Lock) without async: a cheap clone.
    Lock();
    fn status(&self) -> LockStatus = "println!(\"{:?}\", it.status()?);";
    fn force_release(&self) -> LockStatus = "let guard = it.acquire(std::time::Duration::from_secs(1))?;\nit.force_release()?;\nassert!(guard.renew().is_err());";
}

impl Lock {
    /// [`Lock::try_acquire`](crate::Lock::try_acquire), waited for. Round trips: as there.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// let nightly = larder::blocking::Lock::open(&store, "nightly").unwrap();
    /// let guard = nightly.try_acquire().unwrap().expect("nobody has it");
    /// assert!(nightly.try_acquire().unwrap().is_none());
    /// # drop(guard);
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
    pub fn try_acquire(&self) -> Result<Option<LockGuard>> {
        Ok(wait(self.handle().try_acquire())?.map(LockGuard::new))
    }

    /// [`Lock::acquire`](crate::Lock::acquire), waited for. Round trips: as there.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// let nightly = larder::blocking::Lock::open(&store, "nightly").unwrap();
    /// let guard = nightly.acquire(std::time::Duration::from_secs(10)).unwrap();
    /// println!("fencing token {}", guard.fencing_token());
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
    pub fn acquire(&self, patience: Duration) -> Result<LockGuard> {
        Ok(LockGuard::new(wait(self.handle().acquire(patience))?))
    }
}

/// The lock, held: a [`LockGuard`](crate::LockGuard) without async. Its lease is renewed in the background while the caller computes.
///
/// Dropped, it waits until the lock is given back; on a thread that runs async code it is given back in the background. If that fails, the lease ends the lock.
/// As with every lock of this kind, look at [`is_held`](LockGuard::is_held) at times, and hand the fencing token to what the lock guards.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # let store = larder::blocking::open("memory:").unwrap();
/// let nightly = larder::blocking::Lock::open(&store, "nightly").unwrap();
/// {
///     let _guard = nightly.acquire(std::time::Duration::from_secs(10)).unwrap();
/// }
/// assert!(nightly.try_acquire().unwrap().is_some(), "given back at the end of the block");
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back"]
pub struct LockGuard {
    /// `None` once it was given back.
    guard: Option<crate::LockGuard>,
    fencing_token: u64,
}

impl LockGuard {
    fn new(guard: crate::LockGuard) -> LockGuard {
        LockGuard { fencing_token: guard.fencing_token(), guard: Some(guard) }
    }

    /// A number that grows with every grant of this lock: what the lock guards refuses a smaller one than it has seen.
    ///
    /// ```
    /// # fn store(guard: &larder::blocking::LockGuard) {
    /// println!("with token {}", guard.fencing_token());
    /// # }
    /// ```
    pub fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    /// What names this grant to others: [`LockGuard::owner`](crate::LockGuard::owner). **Round trips: 0.**
    ///
    /// ```
    /// # fn tell(guard: &larder::blocking::LockGuard) {
    /// println!("owner {:?}", guard.owner());
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) where it was given back.
    pub fn owner(&self) -> Result<u64> {
        Ok(self.held()?.owner())
    }

    /// The lease as it stands now: [`LockGuard::lease`](crate::LockGuard::lease). **Round trips: 0.**
    ///
    /// ```
    /// # fn tell(guard: &larder::blocking::LockGuard) -> larder::Result<()> {
    /// println!("{:?} are left", guard.lease()?.remaining());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) where it was given back.
    pub fn lease(&self) -> Result<Lease> {
        Ok(self.held()?.lease())
    }

    /// True as long as the lease runs by this process's clock, and no renewal has found the lock in other hands.
    ///
    /// ```
    /// # fn work(guard: &larder::blocking::LockGuard) {
    /// while guard.is_held() {
    ///     // a part of the work
    /// #   break;
    /// }
    /// # }
    /// ```
    pub fn is_held(&self) -> bool {
        self.guard.as_ref().is_some_and(crate::LockGuard::is_held)
    }

    /// [`LockGuard::renew`](crate::LockGuard::renew), waited for: makes sure, now, that the lock is still held. **Round trips: 1.**
    ///
    /// ```
    /// # fn work(guard: &larder::blocking::LockGuard) -> larder::Result<()> {
    /// guard.renew()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
    pub fn renew(&self) -> Result<()> {
        wait(self.held()?.renew())
    }

    fn held(&self) -> Result<&crate::LockGuard> {
        self.guard.as_ref().ok_or_else(given_back)
    }

    /// [`LockGuard::release`](crate::LockGuard::release), waited for: gives the lock back, and tells whether it was held until then. **Round trips: 1.**
    ///
    /// ```
    /// # fn end(guard: larder::blocking::LockGuard) -> larder::Result<()> {
    /// use larder::lock::Released;
    /// assert_eq!(guard.release()?, Released::Released);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code: then it is given back in the background.
    pub fn release(mut self) -> Result<Released> {
        match self.guard.take() {
            Some(guard) => wait(guard.release()),
            None => Err(given_back()),
        }
    }
}

impl Array {
    /// [`Array::change_under`](crate::Array::change_under), waited for: a change by the holder of a lock, with its fencing token. **Round trips: 2.**
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// # let store = larder::blocking::open("memory:").unwrap();
    /// let hosts = larder::blocking::Array::open_or_create(&store, "hosts").unwrap();
    /// let nightly = larder::blocking::Lock::open(&store, "hosts-lock").unwrap();
    /// let guard = nightly.acquire(std::time::Duration::from_secs(10)).unwrap();
    /// hosts.change_under(&guard, ["10.0.0.3"], ["10.0.0.1"]).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](ErrorKind::Unsupported) on a thread that runs async code.
    pub fn change_under(
        &self,
        guard: &LockGuard,
        add: impl IntoIterator<Item = impl AsRef<[u8]>>,
        delete: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        wait(self.handle().change_under(guard.held()?, add, delete))
    }
}

fn given_back() -> Error {
    Error::new(ErrorKind::Fenced, "the lock was given back already")
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            // Where it may not wait, the guard within gives the lock back in the background; if it fails, the lease ends the lock.
            _ = wait(guard.release());
        }
    }
}
