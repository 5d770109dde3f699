//! TLS: a certificate chain and its key, and what clients must show, in PEM.

use std::path::Path;
use std::sync::Arc;

use larder_core::{Error, ErrorKind, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::config::{ClientCerts, Tls};

fn config(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("{}: {error}", path.display()))
}

/// Reads the files.
///
/// # Errors
/// [`ErrorKind::Config`] for files that cannot be read, hold no certificate or key, or do not belong together.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
    let certificates = certificates(&tls.chain)?;
    let private = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| config(&tls.key, &error))?;
    let versions: &[_] = if tls.only_1_3 { &[&TLS13] } else { &[&TLS13, &TLS12] };
    let clients = match &tls.clients {
        ClientCerts::Unasked => WebPkiClientVerifier::no_client_auth(),
        ClientCerts::Asked(path) => verifier(path, false)?,
        ClientCerts::Required(path) => verifier(path, true)?,
    };
    let server = ServerConfig::builder_with_protocol_versions(versions)
        .with_client_cert_verifier(clients)
        .with_single_cert(certificates, private)
        .map_err(|error| config(&tls.chain, &error))?;
    Ok(TlsAcceptor::from(Arc::new(server)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| config(path, &error))
}

/// Takes certificates of clients that one of those in the file has signed.
fn verifier(path: &Path, required: bool) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| config(path, &error))?;
    }
    let builder = WebPkiClientVerifier::builder(Arc::new(roots));
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| config(path, &error))
}
