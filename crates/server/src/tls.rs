//! TLS: a certificate chain and its key, and what clients must show, in PEM.

use std::path::Path;
use std::sync::Arc;

use larder_core::{Error, ErrorKind, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::{Accept, TlsAcceptor};

use crate::config::{ClientCerts, Tls};

fn config(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Config, format!("{}: {error}", path.display()))
}

/// Bytes of replies that a connection may have encrypted and not sent: those of one record. They are in no count, and rustls would take 64 KiB.
const UNSENT_BYTES_MAX: usize = 16 << 10;

/// Begins a handshake.
pub(crate) fn accept<S: AsyncRead + AsyncWrite + Unpin>(acceptor: &TlsAcceptor, stream: S) -> Accept<S> {
    acceptor.accept_with(stream, |connection| connection.set_buffer_limit(Some(UNSENT_BYTES_MAX)))
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use rustls_pki_types::ServerName;
    use tokio::io::AsyncReadExt;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;

    use super::*;

    /// What rustls takes of replies to one who reads nothing is in no count: it is a record's, and all of it comes once he reads.
    #[tokio::test]
    async fn who_reads_nothing_has_one_record_of_replies_encrypted() {
        const SOCKET_BYTES: usize = 1 << 10;
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (chain, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        certificates(&chain).unwrap().into_iter().for_each(|certificate| roots.add(certificate).unwrap());
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let acceptor = acceptor(&Tls::new(chain, key)).unwrap();
        let (ours, theirs) = tokio::io::duplex(SOCKET_BYTES);
        let name = ServerName::try_from("localhost").unwrap();
        let (served, client) =
            tokio::join!(accept(&acceptor, ours), TlsConnector::from(Arc::new(config)).connect(name, theirs));
        let (mut served, mut client) = (served.unwrap(), client.unwrap());
        let (reply, mut taken) = (vec![b'v'; 1 << 20], 0);
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(bytes) = Pin::new(&mut served).poll_write(&mut cx, &reply) {
            taken += bytes.unwrap();
        }
        assert!((1..=UNSENT_BYTES_MAX + SOCKET_BYTES).contains(&taken), "{taken} bytes");
        let mut got = vec![0; taken];
        let flushed = tokio::io::AsyncWriteExt::flush(&mut served);
        let (flushed, read) = tokio::join!(flushed, client.read_exact(&mut got));
        flushed.unwrap();
        assert_eq!(read.unwrap(), taken);
    }
}
