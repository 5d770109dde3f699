//! A thread with a runtime of its own, for helpers that must run whatever the test's runtime does: it may be
//! single-threaded and busy, have its clock paused, or not exist at all.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// Runs one future and what it spawns; dropping it ends them all.
#[derive(Debug)]
pub(crate) struct Background {
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn run<F: Future<Output = ()>>(name: &str, main: impl FnOnce() -> F + Send + 'static) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            LocalSet::new().block_on(&runtime, async move {
                tokio::select! {
                    _ = stopped => {}
                    () = main() => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("a thread");
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, which has been printed by then.
            let _ = thread.join();
        }
    }
}

/// A listener on a free loopback port, ready for `tokio::net::TcpListener::from_std`.
pub(crate) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free loopback port");
    listener.set_nonblocking(true).expect("a non-blocking listener");
    let addr = listener.local_addr().expect("the address of a bound listener");
    (listener, addr)
}
