//! Where a server listens, and dialling it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use larder_core::{Error, ErrorKind, Result};
use tokio::net::{TcpStream, UnixStream};

use crate::stream::Stream;
use crate::tls::Connector;

/// Where a server listens.
///
/// ```
/// use larder_net::Address;
/// assert_eq!(Address::Tcp { host: "::1".to_owned(), port: 7 }.to_string(), "[::1]:7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or address, resolved at each dial, and a port.
    Tcp {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// User and password. Printing masks the password.
///
/// ```
/// use larder_net::Auth;
/// let auth = Auth { user: "joe".into(), password: "secret".into() };
/// assert!(!format!("{auth:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Auth {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("user", &self.user).field("password", &"***").finish()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    /// Connects, over TLS if there is a connector. Takes as long as the system does: give it a deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if nobody listens there, and those of [`Connector::connect`].
    ///
    /// ```no_run
    /// # async fn example() -> larder_core::Result<()> {
    /// let address = larder_net::Address::Tcp { host: "127.0.0.1".to_owned(), port: 6379 };
    /// let stream = address.dial(None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dial(&self, tls: Option<&Connector>) -> Result<Stream> {
        self.dial_at(None, tls).await
    }

    /// Connects to the very address that another connection has reached ([`Stream::peer`]), since a name may stand for several
    /// machines. Without one, and for a unix socket, as [`dial`](Address::dial).
    ///
    /// # Errors
    /// As [`dial`](Address::dial).
    ///
    /// ```no_run
    /// # async fn example(address: larder_net::Address) -> larder_core::Result<()> {
    /// let first = address.dial(None).await?;
    /// let second = address.dial_at(first.peer(), None).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dial_at(&self, peer: Option<SocketAddr>, tls: Option<&Connector>) -> Result<Stream> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, format!("the dial failed: {error}")).source(error)
        };
        match self {
            Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await.map_err(failed)?)),
            Address::Tcp { host, port } => {
                let connected = match peer {
                    None => TcpStream::connect((host.as_str(), *port)).await,
                    Some(peer) => TcpStream::connect(peer).await,
                };
                let stream = connected.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                match tls {
                    None => Ok(Stream::Tcp(stream)),
                    Some(connector) => connector.connect(host, stream).await,
                }
            }
        }
    }
}
