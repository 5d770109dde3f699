//! The witness: a file elsewhere that says how far the store was, so that an older copy of the folder is told.

use std::path::PathBuf;

use larder_core::{Error, ErrorKind, Result};

use crate::place::{Identity, Noted, read_small, write_small};

/// A witness's file.
#[derive(Debug)]
pub(crate) struct Witness {
    path: PathBuf,
}

impl Witness {
    pub(crate) fn new(path: PathBuf) -> Witness {
        Witness { path }
    }

    /// Looks whether a store may go on, of which the last batch is `sequence`.
    ///
    /// # Errors
    /// `RolledBack` where the witness saw it further on; `Config` where it is another store's; `Corrupt` where it is damaged.
    pub(crate) fn agrees(&self, identity: Identity, sequence: u64) -> Result<()> {
        let Some(noted) = self.noted()? else { return Ok(()) };
        let (seen, path) = (noted.identity, self.path.display());
        let rolled_back = |what: String| {
            let mend = "it is an older copy; put the right one back, restore a backup, or remove the witness to take it as it is";
            Err(Error::new(ErrorKind::RolledBack, format!("the store {what}: {mend}")))
        };
        if seen.store != identity.store {
            let detail = format!("{path} is the witness of another store; give each store one of its own");
            return Err(Error::new(ErrorKind::Config, detail));
        }
        if seen.restores > identity.restores {
            let (had, has) = (seen.restores, identity.restores);
            return rolled_back(format!("has {has} restores behind it, and its witness {path} saw {had}"));
        }
        if seen.restores == identity.restores && seen.incarnation != identity.incarnation {
            return rolled_back(format!("was restored apart from the one that its witness {path} saw"));
        }
        if seen.incarnation == identity.incarnation && noted.sequence > sequence {
            let had = noted.sequence;
            return rolled_back(format!("ends with batch {sequence}, and its witness {path} saw batch {had}"));
        }
        Ok(())
    }

    /// The store that it saw last, as it was.
    ///
    /// # Errors
    /// `Corrupt` where it is damaged.
    pub(crate) fn saw(&self) -> Result<Option<Identity>> {
        Ok(self.noted()?.map(|noted| noted.identity))
    }

    /// Looks whether a store may be made where there is none.
    ///
    /// # Errors
    /// `Lost` where the witness saw one.
    pub(crate) fn knows_nothing(&self) -> Result<()> {
        let Some(noted) = self.noted()? else { return Ok(()) };
        let (path, had) = (self.path.display(), noted.sequence);
        let detail = format!(
            "there is no store, and its witness {path} saw batch {had}: restore a backup, or remove the witness to begin anew"
        );
        Err(Error::new(ErrorKind::Lost, detail))
    }

    /// Brings it up to date.
    pub(crate) fn note(&self, noted: &Noted) -> Result<()> {
        write_small(&self.path, &noted.text(), true)
    }

    fn noted(&self) -> Result<Option<Noted>> {
        let path = self.path.display();
        let text = read_small(&self.path).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the witness {path} cannot be read: {error}")).source(error)
        })?;
        let damaged = || Error::new(ErrorKind::Corrupt, format!("the witness {path} is damaged, or no witness"));
        text.map(|text| Noted::parse(&text).ok_or_else(damaged)).transpose()
    }
}
