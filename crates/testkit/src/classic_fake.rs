//! A server that knows nine classic commands and nothing else: the least that Larder's classic dialect can live on.
//!
//! It stands for MemcacheDB and its like: `get` (several keys), `set`, `add`, `replace`, `append`, `prepend`, `incr`,
//! `decr`, `delete`. Expiry times are accepted and ignored. There is no `gets`, `cas`, `touch`, `version`, `stats`,
//! `noreply`, and no meta command: all that is answered `ERROR`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::background::{Background, listen};

/// As in memcached of that time.
const KEY_BYTES_MAX: usize = 250;
const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// A longer line ends the connection: `get` may name some hundreds of keys.
const LINE_BYTES_MAX: u64 = 64 * 1024;

/// A running server on a loopback port of its own; dropping it ends it.
///
/// ```
/// use larder_testkit::classic_fake::ClassicFake;
/// use std::io::{Read, Write};
///
/// let server = ClassicFake::start();
/// let mut stream = std::net::TcpStream::connect(server.addr())?;
/// stream.write_all(b"gets k\r\n")?;
/// let mut reply = [0; 7];
/// stream.read_exact(&mut reply)?;
/// assert_eq!(&reply, b"ERROR\r\n");
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ClassicFake {
    addr: SocketAddr,
    _thread: Background,
}

impl ClassicFake {
    /// Starts an empty server on a thread of its own: no runtime is needed.
    ///
    /// # Panics
    /// When no port or thread is to be had.
    pub fn start() -> Self {
        let (listener, addr) = listen();
        let thread = Background::run("classic-fake", move || async move {
            let listener = TcpListener::from_std(listener).expect("a listener on this runtime");
            let items = Rc::new(RefCell::new(Items::default()));
            while let Ok((stream, _)) = listener.accept().await {
                let items = Rc::clone(&items);
                // An error is the client's going away, which concerns nobody here.
                spawn_local(async move { drop(serve(stream, &items).await) });
            }
        });
        Self { addr, _thread: thread }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The store URL.
    pub fn url(&self) -> String {
        format!("memcached://{}", self.addr)
    }
}

/// Flags and value a key.
type Items = HashMap<Vec<u8>, (u32, Vec<u8>)>;

async fn serve(stream: TcpStream, items: &RefCell<Items>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    let mut reply = Vec::new();
    loop {
        line.clear();
        (&mut read).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if line.pop() != Some(b'\n') {
            return Ok(());
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        if let Some(header) = StoreHeader::parse(&words) {
            let answer = match header {
                Ok(header) => {
                    // A value that is too large is read past, so that it is not taken for commands.
                    let mut value = vec![0; header.value_bytes + 2];
                    read.read_exact(&mut value).await?;
                    store(&header, &mut value, &mut items.borrow_mut())
                }
                Err(complaint) => complaint,
            };
            reply.extend_from_slice(answer);
        } else {
            command(&words, &mut items.borrow_mut(), &mut reply);
        }
        // Commands that came together are answered together. A command not here yet may be waiting for these replies.
        if !read.buffer().contains(&b'\n') {
            write.write_all(&reply).await?;
            reply.clear();
        }
    }
}

/// `<verb> <key> <flags> <exptime> <bytes>`, a value behind it.
struct StoreHeader<'a> {
    verb: &'a [u8],
    key: &'a [u8],
    flags: u32,
    value_bytes: usize,
}

impl<'a> StoreHeader<'a> {
    /// `None` for what is no storage command of five words; such a line is followed by no value.
    fn parse(words: &[&'a [u8]]) -> Option<Result<Self, &'static [u8]>> {
        let &[verb, key, flags, exptime, value_bytes] = words else { return None };
        if !matches!(verb, b"set" | b"add" | b"replace" | b"append" | b"prepend") {
            return None;
        }
        let header = || {
            number(exptime)?;
            Some(Self {
                verb,
                key,
                flags: number(flags)?.try_into().ok()?,
                value_bytes: number(value_bytes)?.try_into().ok()?,
            })
        };
        match header() {
            Some(header) if header.value_bytes <= HEADER_VALUE_BYTES_MAX && key.len() <= KEY_BYTES_MAX => {
                Some(Ok(header))
            }
            _ => Some(Err(BAD_FORMAT)),
        }
    }
}

/// A value larger than this is not even read past.
const HEADER_VALUE_BYTES_MAX: usize = 64 * VALUE_BYTES_MAX;
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";

fn store(header: &StoreHeader<'_>, value: &mut Vec<u8>, items: &mut Items) -> &'static [u8] {
    if !value.ends_with(b"\r\n") {
        return b"CLIENT_ERROR bad data chunk\r\n";
    }
    value.truncate(header.value_bytes);
    let old = items.get(header.key);
    let (flags, new) = match (header.verb, old) {
        (b"set", _) | (b"add", None) | (b"replace", Some(_)) => (header.flags, std::mem::take(value)),
        (b"append", Some((flags, old))) => (*flags, [old, value].map(|part| part.as_slice()).concat()),
        (b"prepend", Some((flags, old))) => (*flags, [value, old].map(|part| part.as_slice()).concat()),
        _ => return b"NOT_STORED\r\n",
    };
    if new.len() > VALUE_BYTES_MAX {
        // memcached tells a value that is too large; one that would become so by joining looks like a miss.
        let joins = matches!(header.verb, b"append" | b"prepend");
        return if joins { b"NOT_STORED\r\n" } else { b"SERVER_ERROR object too large for cache\r\n" };
    }
    items.insert(header.key.to_vec(), (flags, new));
    b"STORED\r\n"
}

/// The commands without a value.
fn command(words: &[&[u8]], items: &mut Items, reply: &mut Vec<u8>) {
    match words {
        [b"get" | b"incr" | b"decr" | b"delete", keys @ ..] if keys.iter().any(|key| key.len() > KEY_BYTES_MAX) => {
            reply.extend_from_slice(BAD_FORMAT);
        }
        [b"get", keys @ ..] if !keys.is_empty() => {
            for key in keys {
                if let Some((flags, value)) = items.get(*key) {
                    reply.extend_from_slice(b"VALUE ");
                    reply.extend_from_slice(key);
                    reply.extend_from_slice(format!(" {flags} {}\r\n", value.len()).as_bytes());
                    reply.extend_from_slice(value);
                    reply.extend_from_slice(b"\r\n");
                }
            }
            reply.extend_from_slice(b"END\r\n");
        }
        [verb @ (b"incr" | b"decr"), key, delta] => {
            reply.extend_from_slice(&arithmetic(*verb == b"incr", key, delta, items));
            reply.extend_from_slice(b"\r\n");
        }
        [b"delete", key] | [b"delete", key, b"0"] => {
            let found = items.remove(*key).is_some();
            reply.extend_from_slice(if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
        }
        _ => reply.extend_from_slice(b"ERROR\r\n"),
    }
}

/// Unsigned; up wraps, down stops at zero and keeps the length, padded with spaces.
fn arithmetic(up: bool, key: &[u8], delta: &[u8], items: &mut Items) -> Vec<u8> {
    let Some((_, value)) = items.get_mut(key) else { return b"NOT_FOUND".to_vec() };
    let Some(delta) = number(delta) else { return b"CLIENT_ERROR invalid numeric delta argument".to_vec() };
    let Some(old) = number(value.trim_ascii_end()) else {
        return b"CLIENT_ERROR cannot increment or decrement non-numeric value".to_vec();
    };
    let new = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
    let text = new.to_string().into_bytes();
    let length = value.len().max(text.len());
    value.clone_from(&text);
    value.resize(length, b' ');
    text
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
