//! Who notes how far the store is on disk: in the folder, and in its witness. Each has a thread of its own: neither waits for the other's disk, nor fails with it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_core::Result;

use crate::committer::Shared;
use crate::journal;
use crate::place::{Identity, Noted, Place};
use crate::timer::Timer;
use crate::witness::Witness;

/// What is noted where.
struct Notes {
    shared: Arc<Shared>,
    place: Arc<Place>,
    witness: Option<Witness>,
    identity: Identity,
}

impl Notes {
    fn noted(&self) -> Result<Noted> {
        let sequence = self.shared.synced.load(Ordering::Acquire);
        let files = journal::files(&self.place.engine()).map_err(|fault| fault.error(&self.shared.name))?;
        let journal = files.last().map_or(0, |(number, _)| *number);
        Ok(Noted { identity: self.identity, sequence, journal })
    }

    fn in_folder(&self) -> Result<()> {
        self.place.note(&self.noted()?, false)
    }

    fn in_witness(&self) -> Result<()> {
        self.witness.as_ref().map_or(Ok(()), |witness| witness.note(&self.noted()?))
    }
}

/// The threads that note.
pub(crate) struct Noters {
    in_folder: Timer,
    in_witness: Option<Timer>,
    notes: Arc<Notes>,
}

impl Noters {
    /// Starts them. Where there is a witness, both are told at once; what fails first is the second answer.
    pub(crate) fn start(
        shared: Arc<Shared>,
        place: Arc<Place>,
        witness: Option<Witness>,
        identity: Identity,
    ) -> io::Result<(Noters, Result<()>)> {
        let notes = Arc::new(Notes { shared, place, witness, identity });
        let has_witness = notes.witness.is_some();
        let done = if has_witness {
            let in_folder = notes.in_folder();
            in_folder.and(notes.in_witness())
        } else {
            Ok(())
        };
        // A note that cannot be written leaves an older one, which only knows less.
        let start = |name: &str, note: fn(&Notes) -> Result<()>| {
            let (shared, notes) = (notes.shared.clone(), notes.clone());
            Timer::start_notes(name, shared, move || note(&notes).is_ok())
        };
        let in_folder = start("larder-notes", Notes::in_folder)?;
        let in_witness = has_witness.then(|| start("larder-witness", Notes::in_witness)).transpose()?;
        Ok((Noters { in_folder, in_witness, notes }, done))
    }

    /// Ends them, with a last note if there is something to tell. The witness may hang: it is told behind the folder.
    pub(crate) fn stop(&mut self, tells: bool) {
        self.in_folder.stop();
        if tells {
            _ = self.notes.in_folder();
        }
        if let Some(in_witness) = &mut self.in_witness {
            in_witness.stop();
            if tells {
                _ = self.notes.in_witness();
            }
        }
    }
}
