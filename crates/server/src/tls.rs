//! TLS: a certificate chain and its key, in PEM.

use std::path::Path;
use std::sync::Arc;

use larder_core::{Error, ErrorKind, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Reads the two files.
///
/// # Errors
/// [`ErrorKind::Config`] for files that cannot be read, hold no certificate or key, or do not belong together.
pub(crate) fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor> {
    let config = |path: &Path, error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Config, format!("{}: {error}", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| config(chain, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| config(key, &error))?;
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| config(chain, &error))?;
    Ok(TlsAcceptor::from(Arc::new(server)))
}
