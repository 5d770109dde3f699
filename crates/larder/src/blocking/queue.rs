//! The queue and the stack.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{twin, wait};
use crate::queue::ClaimId;
use crate::{QueueStat, Result};

/// An example, in which `jobs` is an open queue or stack.
macro_rules! example {
    ($name:ident, $($line:literal),*) => {
        concat!(
            "\n```\n# #[cfg(feature = \"memory\")] {\n# use std::time::Duration;\n# let store = larder::blocking::open(\"memory:\").unwrap();\n",
            "let jobs = larder::blocking::", stringify!($name), "::open_or_create(&store, \"jobs\").unwrap();\n",
            $($line, "\n",)*
            "# }\n```\n"
        )
    };
}

/// The twin of a queue or a stack: they differ in the order alone.
macro_rules! items {
    ($(#[$doc:meta])* $name:ident) => {
        twin! {
            $(#[$doc])*
            $name(open_or_create);
            fn push(&self, item: impl AsRef<[u8]>) -> () = "it.push(\"job\")?;";
            fn push_all(&self, items: impl IntoIterator<Item = impl AsRef<[u8]>>) -> () = "it.push_all([\"one\", \"two\"])?;";
            fn pop(&self) -> Option<Bytes> = "it.push(\"job\")?;\nassert_eq!(it.pop()?.unwrap(), \"job\");";
            fn pop_within(&self, wait: Duration) -> Option<Bytes> = "assert!(it.pop_within(std::time::Duration::from_millis(20))?.is_none());";
            fn changed(&self, poll: Duration, most: Duration) -> () = "assert!(it.pop()?.is_none());\nit.changed(std::time::Duration::from_millis(20), std::time::Duration::from_millis(50))?;";
            fn ack(&self, id: ClaimId) -> () = "it.push(\"job\")?;\nlet claim = it.claim(std::time::Duration::from_secs(30))?.unwrap();\nit.ack(claim.id())?;";
            fn release(&self, id: ClaimId) -> () = "it.push(\"job\")?;\nlet claim = it.claim(std::time::Duration::from_secs(30))?.unwrap();\nit.release(claim.id())?;";
            fn renew(&self, id: ClaimId, lease: Duration) -> () = "let lease = std::time::Duration::from_secs(30);\nit.push(\"job\")?;\nlet claim = it.claim(lease)?.unwrap();\nit.renew(claim.id(), lease)?;";
            #[allow(clippy::len_without_is_empty, reason = "the twin of one without")]
            fn len(&self) -> u64 = "assert_eq!(it.len()?, 0);";
            fn stat(&self) -> QueueStat = "assert_eq!(it.stat()?.ready, 0);";
        }

        impl $name {
            #[doc = concat!("[`", stringify!($name), "::claim`](crate::", stringify!($name), "::claim), waited for. Round trips: as there.")]
            #[doc = example!($name, "jobs.push(\"job\").unwrap();", "let claim = jobs.claim(Duration::from_secs(30)).unwrap().expect(\"a job\");", "claim.ack().unwrap();")]
            /// # Errors
            /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
            pub fn claim(&self, lease: Duration) -> Result<Option<Claim>> {
                Ok(wait(self.handle().claim(lease))?.map(Claim))
            }

            #[doc = concat!("[`", stringify!($name), "::claim_within`](crate::", stringify!($name), "::claim_within), waited for. Round trips: as there.")]
            #[doc = example!($name, "let claim = jobs.claim_within(Duration::from_secs(30), Duration::from_millis(20)).unwrap();", "assert!(claim.is_none());")]
            /// # Errors
            /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
            pub fn claim_within(&self, lease: Duration, within: Duration) -> Result<Option<Claim>> {
                Ok(wait(self.handle().claim_within(lease, within))?.map(Claim))
            }
        }
    };
}

items! {
    /// A [`Queue`](crate::Queue) without async: a cheap clone.
    Queue
}

items! {
    /// A [`Stack`](crate::Stack) without async: a cheap clone.
    Stack
}

/// An item that was claimed: a [`Claim`](crate::queue::Claim) without async.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// # let store = larder::blocking::open("memory:").unwrap();
/// let queue = larder::blocking::Queue::open_or_create(&store, "jobs").unwrap();
/// queue.push("job").unwrap();
/// let claim = queue.claim(std::time::Duration::from_secs(30)).unwrap().expect("a job");
/// assert_eq!((&claim.item()[..], claim.attempts()), (&b"job"[..], 1));
/// claim.ack().unwrap();
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an item that is claimed and not acknowledged comes back"]
pub struct Claim(crate::queue::Claim);

impl Claim {
    /// The item.
    ///
    /// ```
    /// # fn look(claim: &larder::blocking::Claim) {
    /// println!("{:?}", claim.item());
    /// # }
    /// ```
    pub fn item(&self) -> &Bytes {
        self.0.item()
    }

    /// How often it was claimed, this time included.
    ///
    /// ```
    /// # fn look(claim: &larder::blocking::Claim) {
    /// println!("{}", claim.attempts());
    /// # }
    /// ```
    pub fn attempts(&self) -> u32 {
        self.0.attempts()
    }

    /// The claim, for [`Queue::ack`] by somebody else.
    ///
    /// ```
    /// # fn look(claim: &larder::blocking::Claim) {
    /// println!("{}", claim.id());
    /// # }
    /// ```
    pub fn id(&self) -> ClaimId {
        self.0.id()
    }

    /// How long it is the claimant's.
    ///
    /// ```
    /// # fn look(claim: &larder::blocking::Claim) {
    /// println!("{:?}", claim.lease());
    /// # }
    /// ```
    pub fn lease(&self) -> Duration {
        self.0.lease()
    }

    /// Until when it is the claimant's, as [`Claim::deadline`](crate::queue::Claim::deadline) tells it.
    ///
    /// ```
    /// # fn look(claim: &larder::blocking::Claim) {
    /// assert!(claim.deadline() <= std::time::Instant::now() + claim.lease());
    /// # }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.0.deadline()
    }

    /// How long it is until then; zero when that has passed.
    ///
    /// ```
    /// # fn look(claim: &larder::blocking::Claim) -> larder::Result<()> {
    /// if claim.remaining() < claim.lease() / 2 {
    ///     claim.renew()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// [`Claim::ack`](crate::queue::Claim::ack), waited for. Round trips: as there.
    ///
    /// ```
    /// # fn end(claim: &larder::blocking::Claim) -> larder::Result<()> {
    /// claim.ack()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn ack(&self) -> Result<()> {
        wait(self.0.ack())
    }

    /// [`Claim::release`](crate::queue::Claim::release), waited for. Round trips: as there.
    ///
    /// ```
    /// # fn end(claim: &larder::blocking::Claim) -> larder::Result<()> {
    /// claim.release()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn release(&self) -> Result<()> {
        wait(self.0.release())
    }

    /// [`Claim::renew`](crate::queue::Claim::renew), waited for. Round trips: as there.
    ///
    /// ```
    /// # fn end(claim: &larder::blocking::Claim) -> larder::Result<()> {
    /// claim.renew()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As there; [`Unsupported`](crate::ErrorKind::Unsupported) on a thread that runs async code.
    pub fn renew(&self) -> Result<()> {
        wait(self.0.renew())
    }
}
