//! Reading a dump.

use std::io::Read;

use bytes::Bytes;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::format::{
    BLOCK_BYTES, BLOCK_BYTES_MAX, CHECK_BYTES, DumpFault, DumpItem, END, HEAD, HEAD_BYTES_MAX, Head, ITEMS, MAGIC,
    PREFIX_BYTES, Totals, io_error,
};

/// Reads a dump, block by block, each held against its checksum first.
///
/// See [`DumpWriter`](crate::DumpWriter) for an example.
#[derive(Debug)]
pub struct DumpReader<R: Read> {
    input: R,
    head: Head,
    totals: Totals,
    /// Blocks that were read.
    blocks: u64,
    /// Bytes up to the end of the last whole block.
    whole_bytes: u64,
    is_done: bool,
    is_cut_short: bool,
}

impl<R: Read> DumpReader<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for what is no dump, or is damaged; [`ErrorKind::LayoutMismatch`] for a dump of another version;
    /// [`ErrorKind::Unavailable`] where it cannot be read.
    pub fn new(input: R) -> Result<DumpReader<R>> {
        let head = Head { source: String::new(), address: None, made_ms: 0, origin: None };
        let (totals, whole_bytes) = (Totals::default(), MAGIC.len() as u64);
        let mut reader =
            DumpReader { input, head, totals, blocks: 0, whole_bytes, is_done: false, is_cut_short: false };
        let mut magic = [0; MAGIC.len()];
        let got = read_up_to(&mut reader.input, &mut magic)?;
        if magic[..got] != MAGIC[..] {
            let is_other = got == MAGIC.len() && magic.starts_with(b"LARDER-DUMP ");
            let (kind, what) = match is_other {
                true => (ErrorKind::LayoutMismatch, "this is a dump of another version; this program knows 1"),
                false => (ErrorKind::Corrupt, "this is no dump: it does not begin with LARDER-DUMP"),
            };
            return Err(DumpFault::error(kind, what));
        }
        let (kind, body) = reader.block(HEAD_BYTES_MAX)?;
        let head = (kind == HEAD).then(|| Head::decode(&body)).flatten();
        reader.head = head.ok_or_else(|| reader.damaged("its head cannot be read"))?;
        Ok(reader)
    }

    /// What the dump is of.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// How much was read so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Blocks that were read so far, the head among them.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes up to the end of the last block that was read.
    pub fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    /// True once the dump turned out to end before its end.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// The items of the next block; `None` at the end, where the figures agree with what was read.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], with the byte, where it is damaged or cut short.
    pub fn next_block(&mut self) -> Result<Option<Vec<DumpItem>>> {
        if self.is_done {
            return Ok(None);
        }
        let (kind, mut body) = self.block(BLOCK_BYTES_MAX)?;
        match kind {
            ITEMS => {
                let (mut items, length) = (Vec::new(), body.len());
                while !body.is_empty() {
                    if length - body.len() >= BLOCK_BYTES {
                        return Err(self.damaged("a block has more items than it may"));
                    }
                    let item = DumpItem::decode(&mut body);
                    items.push(item.ok_or_else(|| self.damaged("an item cannot be read"))?);
                }
                items.iter().for_each(|item| self.totals.add(item));
                Ok(Some(items))
            }
            END if body[..] == self.totals.encode() => {
                let behind = read_up_to(&mut self.input, &mut [0])?;
                if behind > 0 {
                    return Err(self.damaged("something stands behind its end"));
                }
                self.is_done = true;
                Ok(None)
            }
            END => Err(self.damaged("its end counts other items than it holds")),
            _ => Err(self.damaged("a block is of no known kind")),
        }
    }

    /// The next block.
    fn block(&mut self, bytes_max: usize) -> Result<(u8, Bytes)> {
        let mut prefix = [0; PREFIX_BYTES];
        self.fill(&mut prefix)?;
        let [kind, length @ ..] = prefix;
        let length = u32::from_le_bytes(length) as usize;
        if length > bytes_max {
            return Err(self.damaged("a block is longer than any"));
        }
        // Grows as it comes: a length alone takes no memory.
        let mut body = Vec::new();
        let read = (&mut self.input).take(length as u64).read_to_end(&mut body);
        if read.map_err(|error| io_error("the dump cannot be read", error))? < length {
            return Err(self.cut_short());
        }
        let mut check = [0; CHECK_BYTES];
        self.fill(&mut check)?;
        let mut hasher = Xxh3::with_seed(self.blocks);
        hasher.update(&prefix);
        hasher.update(&body);
        if hasher.digest() != u64::from_le_bytes(check) {
            return Err(self.damaged("a block does not match its checksum"));
        }
        self.blocks += 1;
        self.whole_bytes += (PREFIX_BYTES + length + CHECK_BYTES) as u64;
        Ok((kind, Bytes::from(body)))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        if read_up_to(&mut self.input, buffer)? < buffer.len() { Err(self.cut_short()) } else { Ok(()) }
    }

    fn cut_short(&mut self) -> Error {
        self.is_cut_short = true;
        self.damaged("it ends here, without its end: it was cut short")
    }

    pub(crate) fn damaged(&self, what: &str) -> Error {
        let (at, items) = (self.whole_bytes, self.totals.items);
        DumpFault::error(ErrorKind::Corrupt, format!("the dump is damaged at byte {at}, after {items} items: {what}"))
    }
}

/// Fills as much of the buffer as there is.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_error("the dump cannot be read", error)),
        }
    }
    Ok(filled)
}
