//! How a queue or a stack is opened and made: one set of settings, a builder for each kind.

use std::time::Duration;

use larder_core::{ClockRef, Result, StoreRef};

use super::handle::{Queue, Shared, Stack};
use crate::manifest::Kind;
use crate::timeout::TIMEOUT_MAX;

/// What both builders set.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) timeout: Duration,
    pub(super) segment_bytes: Option<u32>,
    pub(super) bytes_max: Option<u64>,
    pub(super) clock: Option<ClockRef>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout: Duration::from_secs(5), segment_bytes: None, bytes_max: None, clock: None }
    }
}

/// An example of a builder of this handle.
macro_rules! example {
    ($handle:expr; $line:expr) => {
        concat!(
            "\n```\n# use larder_core::StoreRef;\n# use larder_structures::",
            $handle,
            ";\n",
            "# #[tokio::main(flavor = \"current_thread\")]\n# async fn main() -> larder_core::Result<()> {\n",
            "# let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());\n",
            $line,
            "\n# Ok(())\n# }\n```\n"
        )
    };
}

macro_rules! builder {
    ($(#[$doc:meta])* $name:ident, $handle:ident, $kind:expr) => {
        $(#[$doc])*
        #[doc = example!(stringify!($handle); concat!("let jobs = ", stringify!($handle), "::options().bytes_max(64 << 20).open_or_create(&store, \"jobs\").await?;"))]
        #[derive(Clone, Debug, Default)]
        #[must_use]
        pub struct $name(Settings);

        impl $name {
            /// How long a call may take, with all it tries again; 5 s if not given, a day at the most. Of a push of more items than one write takes it holds for each write, and
            /// of a call that waits for an item for each look.
            #[doc = example!(stringify!($handle); concat!("let options = ", stringify!($handle), "::options().timeout(std::time::Duration::from_millis(200));"))]
            pub fn timeout(mut self, timeout: Duration) -> $name {
                self.0.timeout = timeout.min(TIMEOUT_MAX);
                self
            }

            /// At which size a segment is closed, in bytes: 256 up to half of what the store takes; 32 KiB if not given. It is closed with
            /// 1,000 items, too. Fixed when it is made: opening with another is a [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch).
            #[doc = example!(stringify!($handle); concat!("let options = ", stringify!($handle), "::options().segment_bytes(64 * 1024);"))]
            pub fn segment_bytes(mut self, bytes: u32) -> $name {
                self.0.segment_bytes = Some(bytes);
                self
            }

            /// How many bytes of segments are held at the most, each counted with the size at which it is closed, which each handle that pushes may
            /// exceed by an eighth and an item: three segments at least, 1 GiB if not given. Then pushing is [`Full`](larder_core::ErrorKind::Full). Fixed when it is made.
            #[doc = example!(stringify!($handle); concat!("let options = ", stringify!($handle), "::options().bytes_max(16 << 20);"))]
            pub fn bytes_max(mut self, bytes: u64) -> $name {
                self.0.bytes_max = Some(bytes);
                self
            }

            /// Where the time comes from that looks at the manifest go by; the system's clock if not given. Leases go by the store's.
            #[doc = example!(stringify!($handle); concat!("let options = ", stringify!($handle), "::options().clock(larder_core::SystemClock::shared());"))]
            pub fn clock(mut self, clock: ClockRef) -> $name {
                self.0.clock = Some(clock);
                self
            }

            /// Opens one that is there. **Round trips: 2.**
            #[doc = example!(stringify!($handle); concat!("assert!(", stringify!($handle), "::options().open(&store, \"none\").await.is_err());"))]
            /// # Errors
            /// [`BadInput`](larder_core::ErrorKind::BadInput) for a name of 0 or more than 64 bytes and for options that are out of range,
            /// [`Absent`](larder_core::ErrorKind::Absent) if there is none, [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for another
            /// structure or other sizes, [`Unsupported`](larder_core::ErrorKind::Unsupported) on a store without cas, deletes by token, lives or batches of 5 ops,
            /// [`Lost`](larder_core::ErrorKind::Lost) if its state is gone.
            pub async fn open(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<$handle> {
                Ok($handle(Shared::open(store, name, $kind, &self.0, false).await?))
            }

            /// Opens one, and makes it if there is none. **Round trips: 2**, 4 if it is made.
            #[doc = example!(stringify!($handle); concat!("let small = ", stringify!($handle), "::options().segment_bytes(8 * 1024).open_or_create(&store, \"small\").await?;"))]
            /// # Errors
            #[doc = concat!("As [`open`](", stringify!($name), "::open), but for `Absent`.")]
            pub async fn open_or_create(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<$handle> {
                Ok($handle(Shared::open(store, name, $kind, &self.0, true).await?))
            }
        }
    };
}

builder! {
    /// How a queue is opened and made.
    QueueOptions, Queue, Kind::Queue
}

builder! {
    /// How a stack is opened and made: as a queue is.
    StackOptions, Stack, Kind::Stack
}

impl From<QueueOptions> for StackOptions {
    fn from(options: QueueOptions) -> StackOptions {
        StackOptions(options.0)
    }
}
