//! Sockets that are listened on.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use larder_core::{Error, ErrorKind, Result};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};

use crate::config::{Config, Inherited, Listen};

/// How often a port that the system chose is given up because it is taken on another address.
const PORTS_TRIED_MAX: usize = 16;

/// Listeners that are open, and not served yet.
pub(crate) struct Open {
    pub(crate) tcp: Vec<(TcpListener, String)>,
    pub(crate) unix: Vec<(UnixListener, String)>,
    pub(crate) metrics: Option<TcpListener>,
}

fn failed(place: &dyn std::fmt::Display, error: io::Error) -> Error {
    Error::new(ErrorKind::Config, format!("could not listen on {place}: {error}")).source(error)
}

impl Open {
    pub(crate) fn all(config: &Config) -> Result<Open> {
        let mut open = Open { tcp: Vec::new(), unix: Vec::new(), metrics: None };
        let backlog = config.limits.backlog;
        for listen in &config.listen {
            match listen {
                Listen::Tcp(addr) => {
                    let listener = bind_tcp(*addr, backlog).map_err(|error| failed(addr, error))?;
                    open.add_tcp(listener).map_err(|error| failed(addr, error))?;
                }
                Listen::TcpAny(addrs) => {
                    for listener in bind_any(addrs, backlog)? {
                        open.add_tcp(listener).map_err(|error| failed(&"a port", error))?;
                    }
                }
                Listen::Unix(path, mode) => {
                    let listener = bind_unix(path, *mode, backlog).map_err(|error| failed(&path.display(), error))?;
                    open.unix.push((listener, format!("unix:{}", path.display())));
                }
            }
        }
        for inherited in &config.inherited {
            open.add_inherited(inherited).map_err(|error| failed(&"an inherited socket", error))?;
        }
        if let Some(addr) = config.metrics {
            let listener = TcpListener::bind(addr).map_err(|error| failed(&addr, error))?;
            listener.set_nonblocking(true).map_err(|error| failed(&addr, error))?;
            // As many may wait as elsewhere: where 128 do, the system lets whoever comes next wait for a second.
            let waiting_max = i32::try_from(backlog).unwrap_or(i32::MAX);
            listen(&listener, waiting_max).map_err(|error| failed(&addr, error.into()))?;
            open.metrics = Some(listener);
        }
        Ok(open)
    }

    fn add_tcp(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let name = format!("tcp:{}", listener.local_addr()?);
        self.tcp.push((listener, name));
        Ok(())
    }

    fn add_inherited(&mut self, inherited: &Inherited) -> io::Result<()> {
        let socket = match inherited {
            Inherited::Tcp(listener) => listener.as_fd(),
            Inherited::Unix(listener) => listener.as_fd(),
        };
        if !sockopt::socket_acceptconn(socket)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a connection, not a listener"));
        }
        match inherited {
            Inherited::Tcp(listener) => {
                sockopt::set_socket_keepalive(listener, true)?;
                self.add_tcp(listener.try_clone()?)
            }
            Inherited::Unix(listener) => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                let addr = listener.local_addr()?;
                let place =
                    addr.as_pathname().map_or_else(|| "inherited".to_owned(), |path| path.display().to_string());
                self.unix.push((listener, format!("unix:{place}")));
                Ok(())
            }
        }
    }
}

/// A socket of IPv6 takes no IPv4, as in memcached: so both can have the same port. Its connections inherit that the system asks now and then whether their other ends are still there, so that those that went
/// without a word end, too.
fn bind_tcp(addr: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &addr)?;
    listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Listens on those of the addresses that this machine has: a system may have no IPv6.
fn bind_any(addrs: &[SocketAddr], backlog: u32) -> Result<Vec<TcpListener>> {
    let mut tried = 1;
    loop {
        match bind_all(addrs, backlog) {
            // The port that the system chose for one address is taken on another.
            Err((addr, error)) if error.kind() == io::ErrorKind::AddrInUse && addr.port() == 0 => {
                if tried == PORTS_TRIED_MAX {
                    return Err(failed(&addr, error));
                }
                tried += 1;
            }
            Err((addr, error)) => return Err(failed(&addr, error)),
            Ok(listeners) => return Ok(listeners),
        }
    }
}

/// All have one port. The error of the first that is there and cannot be had, or of the last if none is there.
fn bind_all(addrs: &[SocketAddr], backlog: u32) -> std::result::Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let (mut listeners, mut port, mut none) = (Vec::new(), 0, None);
    for &asked in addrs {
        let mut addr = asked;
        if addr.port() == 0 {
            addr.set_port(port);
        }
        let bound = bind_tcp(addr, backlog).and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
        match bound {
            Ok((bound, listener)) => {
                port = bound;
                listeners.push(listener);
            }
            Err(error) if is_not_here(&error) => none = Some((asked, error)),
            Err(error) => return Err((asked, error)),
        }
    }
    match none {
        Some(none) if listeners.is_empty() => Err(none),
        _ => Ok(listeners),
    }
}

fn is_not_here(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// A socket that a server before us left is removed; anything else in its place is not.
fn bind_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
        }
        fs::remove_file(path)?;
    }
    let socket = place_unix(path, mode)?;
    listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A socket with the access that it is to have, which nobody is let in by before it is listened on: whoever has come meanwhile, while the umask alone said who may, is refused.
fn place_unix(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_over_tcp_are_looked_after_by_the_system_whoever_opened_the_listener() {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let inherited = TcpListener::bind(anywhere).unwrap();
        let config = Config {
            listen: vec![Listen::Tcp(anywhere), Listen::TcpAny(vec![anywhere])],
            inherited: vec![Inherited::Tcp(inherited.into())],
            ..Config::default()
        };
        let open = Open::all(&config).unwrap();
        assert_eq!(open.tcp.len(), 3);
        for (listener, name) in &open.tcp {
            listener.set_nonblocking(false).unwrap();
            let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert!(sockopt::socket_keepalive(&accepted).unwrap(), "{name}");
        }
    }

    #[test]
    fn a_unix_socket_lets_nobody_in_before_its_access_is_as_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let refused = || UnixStream::connect(&path).unwrap_err().kind();
        let socket = place_unix(&path, 0o600).unwrap();
        assert_eq!((mode(), refused()), (0o600, io::ErrorKind::ConnectionRefused));
        listen(&socket, 1).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(socket);
        // More than a umask leaves, and one that was left behind is replaced.
        let listener = bind_unix(&path, 0o777, 8).unwrap();
        assert_eq!(mode(), 0o777);
        UnixStream::connect(&path).unwrap();
        assert_eq!(bind_unix(&path, 0o700, 8).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
    }
}
