//! Where a server listens, and dialling it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use larder_core::{Error, ErrorKind, Result};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::stream::Stream;
use crate::tls::Connector;

/// How long an address may keep silent before the next is tried beside it.
const STAGGER: Duration = Duration::from_millis(250);

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
    /// Connects, over TLS if there is a connector. Takes as long as the system does: give it a deadline. Of a name with several addresses each is tried beside those before that
    /// have not answered within 250 ms, and the first that answers is taken (RFC 8305, without its sorting).
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
                    None => connect(host, *port).await,
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

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
    match addresses[..] {
        [only] => TcpStream::connect(only).await,
        _ => first_of(&addresses).await,
    }
}

/// Connects to the first that answers.
///
/// # Errors
/// That of the first that failed, if all do.
async fn first_of(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let (mut left, mut tried, mut failed) = (addresses.iter(), JoinSet::new(), None);
    loop {
        if let Some(address) = left.next() {
            tried.spawn(TcpStream::connect(*address));
        }
        let ended = match left.len() {
            0 => tried.join_next().await,
            _ => match timeout(STAGGER, tried.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            },
        };
        let Some(ended) = ended else {
            return Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        };
        match ended.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => return Ok(stream),
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn an_address_that_keeps_silent_hides_no_other() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(200), TcpStream::connect(silent)).await {
            held.push(stream);
        }
        let (_listener, real) = listener().await;
        let began = Instant::now();
        let stream = timeout(Duration::from_secs(5), first_of(&[silent, real])).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), real);
        assert!(began.elapsed() >= STAGGER, "the first had its time");
    }

    #[tokio::test]
    async fn one_that_refuses_is_passed_over_and_all_that_do_are_told() {
        let (gone, refusing) = listener().await;
        drop(gone);
        let (_listener, real) = listener().await;
        assert_eq!(first_of(&[refusing, real]).await.unwrap().peer_addr().unwrap(), real);
        let error = first_of(&[refusing, refusing]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(first_of(&[]).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
