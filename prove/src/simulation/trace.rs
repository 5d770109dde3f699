//! What happened in a simulation, in order, as text: two runs of a seed are the same if these bytes are.

use std::fmt::Arguments;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Writes a line for each thing that happens; clones write on. One that is off costs nothing.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    begun: Instant,
    text: Option<Arc<Mutex<String>>>,
}

impl Trace {
    /// One that begins now.
    pub(super) fn new(is_on: bool) -> Trace {
        Trace { begun: Instant::now(), text: is_on.then(Arc::default) }
    }

    /// Writes a line, with the time before it.
    pub(super) fn line(&self, what: Arguments<'_>) {
        let Some(text) = &self.text else { return };
        let at = self.begun.elapsed();
        let mut text = text.lock().unwrap_or_else(PoisonError::into_inner);
        _ = writeln!(text, "{}.{:09} {what}", at.as_secs(), at.subsec_nanos());
    }

    /// All that was written.
    pub(super) fn text(&self) -> String {
        let text = self.text.as_ref().map(|text| text.lock().unwrap_or_else(PoisonError::into_inner).clone());
        text.unwrap_or_default()
    }
}
