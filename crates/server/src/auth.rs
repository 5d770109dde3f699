//! The file of users and passwords (`-Y`): `user:password`, one a line.

use std::path::{Path, PathBuf};

use larder_core::{Error, ErrorKind, Result};

/// The most users; memcached has 8.
const USERS_MAX: usize = 1_024;

/// Who may come in.
///
/// ```
/// let file = larder_server::AuthFile::parse(b"joe:secret\n")?;
/// assert_eq!(format!("{file:?}"), "AuthFile { users: 1, .. }"); // and no password
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone)]
pub struct AuthFile {
    users: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where it was read, if it was.
    path: Option<PathBuf>,
}

impl std::fmt::Debug for AuthFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthFile").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

impl AuthFile {
    /// Reads the text of such a file.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a line without a colon, a file without users, and one of over 1,024. No error shows a password.
    ///
    /// ```
    /// let file = larder_server::AuthFile::parse(b"joe:secret\nann:other\n")?;
    /// assert!(file.allows(b"ann", b"other") && !file.allows(b"ann", b"secret"));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn parse(text: &[u8]) -> Result<AuthFile> {
        let config = |detail: String| Err(Error::new(ErrorKind::Config, detail));
        let mut users = Vec::new();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                return config(format!("line {} of the auth file is not user:password", number + 1));
            };
            users.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
        }
        if users.is_empty() || users.len() > USERS_MAX {
            return config(format!("the auth file has {} users; it takes 1 to {USERS_MAX}", users.len()));
        }
        Ok(AuthFile { users, path: None })
    }

    /// Reads such a file. A server that is told by signals (`Config::signals`) reads it again at SIGHUP.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a file that cannot be read, and as of [`parse`](AuthFile::parse).
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("users");
    /// std::fs::write(&path, "joe:secret\n")?;
    /// assert!(larder_server::AuthFile::read(&path)?.allows(b"joe", b"secret"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(path: impl AsRef<Path>) -> Result<AuthFile> {
        let path = path.as_ref();
        let failed = |error| Error::new(ErrorKind::Config, format!("{}: {error}", path.display())).source(error);
        let file = AuthFile::parse(&std::fs::read(path).map_err(failed)?)?;
        Ok(AuthFile { path: Some(path.to_owned()), ..file })
    }

    /// The same file as it is now; `None` of one that was not read from a path.
    pub(crate) fn again(&self) -> Option<Result<AuthFile>> {
        self.path.as_ref().map(AuthFile::read)
    }

    /// True if the user has that password. Takes as long for a wrong one as for a right one of its length.
    ///
    /// ```
    /// let file = larder_server::AuthFile::parse(b"joe:secret\n")?;
    /// assert!(file.allows(b"joe", b"secret") && !file.allows(b"ann", b"secret"));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn allows(&self, user: &[u8], password: &[u8]) -> bool {
        self.users.iter().fold(false, |found, (name, secret)| found | (same(name, user) & same(secret, password)))
    }
}

fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
