//! systemd's notifications: a datagram to the socket that it names in the environment.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells whoever started us, if it asked: `READY=1`, `STOPPING=1`.
pub(crate) fn tell(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(name.as_encoded_bytes(), state) {
        tracing::warn!(%error, "the service manager could not be told {state}");
    }
}

fn send(name: &[u8], state: &str) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(String::from_utf8_lossy(name).as_ref())?,
    };
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_gets_the_state_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let abstract_name = format!("larder-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&abstract_name).unwrap()).unwrap();
        send(path.as_os_str().as_encoded_bytes(), "READY=1").unwrap();
        send(format!("@{abstract_name}").as_bytes(), "STOPPING=1").unwrap();
        for (socket, expected) in [(at_path, &b"READY=1"[..]), (at_name, b"STOPPING=1")] {
            let mut got = [0; 64];
            let bytes = socket.recv(&mut got).unwrap();
            assert_eq!(&got[..bytes], expected);
        }
    }
}
