//! Which of the journal's files the engine writes to, while the store is open.
//!
//! The engine begins the next file by itself, whenever it writes a table, and removes one that its tables have: a file may be begun, filled and gone again between two looks.

use std::io;
use std::path::{Path, PathBuf};

use crate::fault::Fault;
use crate::journal::files;

/// A file that is gone when it is to be opened has a later one behind it. So often that is looked for.
const LOOKS_MAX: usize = 100;

/// The newest journal file.
pub(crate) struct Newest {
    folder: PathBuf,
    number: u64,
}

impl Newest {
    /// Looks which it is, and has `follow` open it, which says no where it is gone by then.
    pub(crate) fn find(folder: PathBuf, follow: impl FnMut(&Path) -> Result<bool, Fault>) -> Result<Newest, Fault> {
        let mut newest = Newest { folder, number: 0 };
        newest.look(0, follow)?;
        Ok(newest)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.path_of(self.number)
    }

    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Goes on to the newest one, past those that are gone again, and has `follow` open it: true if the engine has begun another since the last look.
    ///
    /// # Errors
    /// Those of `follow`; `Corrupt` where the file is gone, and none behind it is there.
    pub(crate) fn advance(&mut self, follow: impl FnMut(&Path) -> Result<bool, Fault>) -> Result<bool, Fault> {
        // The engine removes the oldest first, and never the one that it writes to.
        let has_next = self.path_of(self.number + 1).exists() || is_gone(&self.path());
        if has_next {
            self.look(self.number + 1, follow)?;
        }
        Ok(has_next)
    }

    /// Finds the newest, of which the number is no less than that.
    fn look(&mut self, least: u64, mut follow: impl FnMut(&Path) -> Result<bool, Fault>) -> Result<(), Fault> {
        for _ in 0..LOOKS_MAX {
            let newest = files(&self.folder)?.pop().filter(|(number, _)| *number >= least);
            if let Some((number, path)) = newest
                && follow(&path)?
            {
                self.number = number;
                return Ok(());
            }
        }
        let last = self.path_of(least.saturating_sub(1));
        Err(Fault::corrupt(format!("the engine's journal is gone: {}, and what follows it", last.display())))
    }

    fn path_of(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}.jnl"))
    }
}

/// True if there is certainly nothing of that name.
pub(crate) fn is_gone(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Harm;

    fn there(_: &Path) -> Result<bool, Fault> {
        Ok(true)
    }

    #[test]
    fn a_file_that_is_begun_filled_and_gone_between_two_looks_is_gone_past() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: u64| folder.path().join(format!("{number}.jnl"));
        let make = |number: u64| std::fs::write(path(number), "").unwrap();
        let remove = |number: u64| std::fs::remove_file(path(number)).unwrap();
        make(3);
        let mut newest = Newest::find(folder.path().to_owned(), there).unwrap();
        assert_eq!((newest.number(), newest.advance(there)), (3, Ok(false)));
        // 4 was begun, filled and removed.
        make(5);
        remove(3);
        assert_eq!((newest.advance(there), newest.number()), (Ok(true), 5));
        // Two were begun, and nothing is gone yet.
        [6, 7].iter().for_each(|it| make(*it));
        assert_eq!((newest.advance(there), newest.number()), (Ok(true), 7));
        assert_eq!((newest.advance(there), newest.path()), (Ok(false), path(7)));
        [5, 6].iter().for_each(|it| remove(*it));
        assert_eq!(newest.advance(there), Ok(false));
        // It is gone before it is opened.
        make(8);
        let mut opened = Vec::new();
        let advanced = newest.advance(|it| {
            opened.push(it.to_owned());
            if opened.len() == 1 {
                make(9);
                [7, 8].iter().for_each(|it| remove(*it));
            }
            Ok(!is_gone(it))
        });
        assert_eq!((advanced, newest.number(), opened), (Ok(true), 9, vec![path(8), path(9)]));
        // Nothing is written to what nobody finds again.
        remove(9);
        let told = newest.advance(there).unwrap_err();
        assert!(told.harm == Harm::Corrupt && told.detail.contains("9.jnl"), "{}", told.detail);
    }
}
