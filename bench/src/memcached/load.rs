//! The work: keys, values, and reading or writing them at random.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use larder_core::Key;

use super::clients::Tasks;
use crate::Result;
use crate::drive::Step;

pub(crate) const KEYS: usize = 10_000;
const VALUE_BYTES: usize = 100;

/// Keys and their values.
pub(crate) struct Load {
    pub(crate) keys: Vec<Key>,
    pub(crate) text_keys: Vec<String>,
    pub(crate) values: Vec<Bytes>,
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Set,
}

impl Load {
    /// `ours` and `theirs` begin the keys: the same, unless a store keeps its values otherwise than others do.
    pub(crate) fn new(ours: &str, theirs: &str) -> Result<Load> {
        let text_keys: Vec<String> = (0..KEYS).map(|at| format!("{theirs}:{at:06}")).collect();
        let keys = (0..KEYS).map(|at| Key::new(format!("{ours}:{at:06}"))).collect::<larder_core::Result<_>>()?;
        let mut rng = fastrand::Rng::with_seed(7);
        let values = (0..KEYS).map(|_| (0..VALUE_BYTES).map(|_| rng.u8(..)).collect()).collect();
        Ok(Load { keys, text_keys, values })
    }

    /// Every value is compared, byte for byte.
    pub(crate) fn check(&self, at: usize, value: &[u8]) -> Result<()> {
        if value == &self.values[at][..] {
            return Ok(());
        }
        Err(format!("{} came back with {} bytes that are not its value", self.text_keys[at], value.len()).into())
    }

    /// Writes all values, with none of the clients under test.
    pub(super) fn fill(&self, addr: SocketAddr) -> Result<()> {
        let mut stream = TcpStream::connect(addr)?;
        for (key, value) in self.text_keys.iter().zip(&self.values) {
            let mut request = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n");
            stream.write_all(&request)?;
            let mut reply = [0; 8];
            stream.read_exact(&mut reply)?;
            if &reply != b"STORED\r\n" {
                return Err(format!("the server refused {key}").into());
            }
        }
        Ok(())
    }
}

/// A task's share of the work.
pub(crate) struct Share<C> {
    client: Arc<C>,
    verb: Verb,
    task: usize,
    rng: fastrand::Rng,
}

/// One for each task.
pub(crate) fn shares<C: Tasks>(client: &Arc<C>, verb: Verb, tasks: usize) -> Vec<Share<C>> {
    let share = |task| Share { client: client.clone(), verb, task, rng: fastrand::Rng::with_seed(task as u64) };
    (0..tasks).map(share).collect()
}

impl<C: Tasks> Step for Share<C> {
    async fn step(&mut self) -> Result<()> {
        let at = self.rng.usize(..KEYS);
        match self.verb {
            Verb::Get => self.client.get(self.task, at).await,
            Verb::Set => self.client.set(self.task, at).await,
        }
    }
}
