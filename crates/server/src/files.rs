//! What is read from files, and once more where that is asked for: who may come in, and the certificates.

use larder_core::Result;
use parking_lot::{Mutex, RwLock};
use tokio_rustls::TlsAcceptor;

use crate::auth::AuthFile;
use crate::config::Tls;
use crate::tls;

/// What files said when they were read last. What cannot be read again stays as it was.
#[derive(Default)]
pub(crate) struct Files {
    users: Option<RwLock<AuthFile>>,
    certificates: Option<(Tls, RwLock<TlsAcceptor>)>,
    /// Held by who reads again, so that of two who do the later one's files count.
    reading: Mutex<()>,
}

impl Files {
    /// # Errors
    /// As of [`tls::acceptor`].
    pub(crate) fn new(users: Option<AuthFile>, tls: Option<Tls>) -> Result<Files> {
        let certificates = match tls {
            Some(files) => Some((tls::acceptor(&files)?, files)),
            None => None,
        };
        Ok(Files {
            users: users.map(RwLock::new),
            certificates: certificates.map(|(acceptor, files)| (files, RwLock::new(acceptor))),
            reading: Mutex::default(),
        })
    }

    /// True if nobody comes in without a password.
    pub(crate) fn ask_who(&self) -> bool {
        self.users.is_some()
    }

    pub(crate) fn allow(&self, user: &[u8], password: &[u8]) -> bool {
        self.users.as_ref().is_none_or(|users| users.read().allows(user, password))
    }

    /// For a connection that begins; `None` where there is no TLS.
    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.certificates.as_ref().map(|(_, acceptor)| acceptor.read().clone())
    }

    /// Reads all of them again, and says in the log what came of it.
    pub(crate) fn read_again(&self) {
        match self.read_users_again() {
            Some(Ok(())) => tracing::info!("the auth file was read again"),
            Some(Err(error)) => tracing::warn!(%error, "users and passwords stay as they were"),
            None => {}
        }
        // Told where it is done: a client may ask for it, too.
        _ = self.read_certificates_again();
    }

    /// Reads the auth file again, of which those know nothing who are in; `None` where there is none.
    pub(crate) fn read_users_again(&self) -> Option<Result<()>> {
        let users = self.users.as_ref()?;
        let _reading = self.reading.lock();
        // Read while others may still log in.
        let again = users.read().clone().again()?;
        Some(again.map(|again| *users.write() = again))
    }

    /// Reads certificate, key and who signs for clients again, for connections to come; `None` where there is no TLS.
    pub(crate) fn read_certificates_again(&self) -> Option<Result<()>> {
        let (files, acceptor) = self.certificates.as_ref()?;
        let _reading = self.reading.lock();
        let again = tls::acceptor(files).map(|again| *acceptor.write() = again);
        match &again {
            Ok(()) => tracing::info!("certificate and key were read again"),
            Err(error) => tracing::warn!(%error, "certificate and key stay as they were"),
        }
        Some(again)
    }
}
