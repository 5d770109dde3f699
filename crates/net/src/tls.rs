//! TLS, by rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_core::{Error, ErrorKind, Result};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::stream::Stream;

/// How TLS is spoken.
///
/// ```
/// use larder_net::Tls;
/// let tls = Tls { name: Some("cache.example".into()), ..Tls::default() };
/// assert!(!tls.insecure);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file of certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// A PEM file with the client's own certificate, and those that lead to who signed it, for servers that ask for one. Goes with `key`.
    pub cert: Option<PathBuf>,
    /// A PEM file with the private key of `cert`.
    pub key: Option<PathBuf>,
    /// The name to expect in the certificate instead of the host.
    pub name: Option<String>,
    /// Trust any certificate. For tests: it keeps out nobody.
    pub insecure: bool,
}

/// Makes TLS connections as configured.
///
/// ```
/// use larder_net::{Connector, Tls};
/// assert!(Connector::new(&Tls { insecure: true, ..Tls::default() }).is_ok());
/// ```
#[derive(Clone)]
pub struct Connector {
    connector: TlsConnector,
    name: Option<String>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Connector {
    /// Reads the certificates to trust.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there are none, or the file cannot be read.
    ///
    /// ```
    /// use larder_net::{Connector, Tls};
    /// let tls = Tls { ca: Some("/no/such/file".into()), ..Tls::default() };
    /// assert!(Connector::new(&tls).unwrap_err().to_string().contains("/no/such/file"));
    /// ```
    pub fn new(tls: &Tls) -> Result<Connector> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| config_error(format!("TLS: {error}")))?;
        let builder = if tls.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnyone(provider)))
        } else {
            builder.with_root_certificates(roots(tls.ca.as_deref())?)
        };
        let config = match (&tls.cert, &tls.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let wrong = |error: &dyn std::fmt::Display| config_error(format!("tls_key={}: {error}", key.display()));
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(&error))?;
                let chain = certificates("tls_cert", cert)?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| wrong(&error))?
            }
            (Some(_), None) => return Err(config_error("tls_cert goes with tls_key, which is not given".to_owned())),
            (None, Some(_)) => return Err(config_error("tls_key goes with tls_cert, which is not given".to_owned())),
        };
        Ok(Connector { connector: TlsConnector::from(Arc::new(config)), name: tls.name.clone() })
    }

    /// Shakes hands over a connection to `host`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for what is wrong with names and certificates, [`ErrorKind::Unavailable`] for the network.
    ///
    /// ```no_run
    /// # async fn example(connector: larder_net::Connector) -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = tokio::net::TcpStream::connect("cache:11211").await?;
    /// let stream = connector.connect("cache", stream).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(&self, host: &str, stream: TcpStream) -> Result<Stream> {
        let name = self.name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|error| {
            let option = if self.name.is_some() { "tls_name=" } else { "" };
            config_error(format!("{option}{name:?} cannot be the name in a certificate: {error}"))
        })?;
        let stream = self.connector.connect(name, stream).await.map_err(|error| {
            // What rustls itself found wrong is a matter of certificates or of the wrong port; the rest is the network's.
            let is_found_wrong = error.kind() == std::io::ErrorKind::InvalidData;
            let kind = if is_found_wrong { ErrorKind::Config } else { ErrorKind::Unavailable };
            let is_no_tls = error.to_string().contains("InvalidContentType");
            let mend = if is_no_tls { "; is this the port on which the server speaks TLS?" } else { "" };
            Error::new(kind, format!("the TLS handshake failed: {error}{mend}")).source(error)
        })?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in certificates("tls_ca", path)? {
                let wrong = |error| config_error(format!("tls_ca={}: {error}", path.display()));
                roots.add(certificate).map_err(wrong)?;
            }
        }
        None => {
            let native = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(native.certs);
            if roots.is_empty() {
                return Err(config_error("the system has no root certificates; give some with tls_ca".to_owned()));
            }
        }
    }
    Ok(roots)
}

/// The certificates of a PEM file that an option names.
fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |error: &dyn std::fmt::Display| config_error(format!("{option}={}: {error}", path.display()));
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    if certificates.is_empty() {
        return Err(wrong(&"there is no certificate in it"));
    }
    Ok(certificates)
}

fn config_error(detail: String) -> Error {
    Error::new(ErrorKind::Config, detail)
}

/// For `tls_insecure=yes`: encrypts, and does not ask with whom.
#[derive(Debug)]
struct TrustAnyone(Arc<CryptoProvider>);

type Verified<T> = Result<T, tokio_rustls::rustls::Error>;

impl ServerCertVerifier for TrustAnyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Verified<ServerCertVerified> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Verified<HandshakeSignatureValid> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
