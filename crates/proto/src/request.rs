//! Which command an op becomes, byte by byte.

use larder_core::{Arith, Error, ErrorKind, Initial, Key, Op, PutMode, Result, Ttl, Verb, Want};

use crate::abilities::Abilities;
use crate::exptime::exptime;
use crate::key::WireKey;

/// What to expect in answer to one encoded op: all that [`Decoder::decode`](crate::Decoder::decode) needs to know of it.
///
/// ```
/// use larder_core::{Key, Op, Want};
/// use larder_proto::{Abilities, Dialect};
/// let mut out = Vec::new();
/// let expect = Abilities::of(Dialect::Meta).encode(&Op::get(Key::new("k")?, Want::VALUE), 7, 0, &mut out)?;
/// assert_eq!(out, b"mg k v O7\r\n");
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Expect {
    pub(crate) shape: Shape,
    pub(crate) want: Want,
    /// The opaque number that a meta reply must carry.
    pub(crate) opaque: u32,
    /// The key that a classic reply must carry.
    pub(crate) key: Option<Key>,
}

/// The kind of command that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    MetaGet,
    MetaPut,
    MetaDelete,
    MetaTouch,
    MetaArith,
    Get,
    /// A classic plain set: if the server fails to store it, it drops the old item.
    Set,
    /// The other classic storage commands: if the server fails, the old item stays.
    Put,
    Delete,
    /// A classic `cas` that ends the item's life.
    DeleteIf,
    Touch,
    Arith,
}

impl Shape {
    pub(crate) fn is_meta(self) -> bool {
        matches!(self, Shape::MetaGet | Shape::MetaPut | Shape::MetaDelete | Shape::MetaTouch | Shape::MetaArith)
    }

    pub(crate) fn is_read(self) -> bool {
        matches!(self, Shape::MetaGet | Shape::Get)
    }
}

impl Abilities {
    /// Appends the command for `op` to `out`. `opaque` marks the reply of a meta command; `server_now_s` is the server's clock,
    /// in seconds since 1970.
    ///
    /// # Errors
    /// Nothing was appended, and the op must not be counted as sent:
    /// - [`ErrorKind::BadInput`]: the key cannot be carried (`noreply` not by a classic delete), the value is over the server's limit, or the ttl out of range;
    /// - [`ErrorKind::Unsupported`]: the server has no cas, no expiry (which a conditional delete of the classic dialect takes, too) or no initial value.
    ///
    /// ```
    /// use larder_core::{Key, Op, Want};
    /// use larder_proto::{Abilities, Dialect};
    /// let mut out = Vec::new();
    /// Abilities::of(Dialect::Meta).encode(&Op::get(Key::new("hits")?, Want::VALUE), 7, 0, &mut out)?;
    /// assert_eq!(out, b"mg hits v O7\r\n");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn encode(&self, op: &Op, opaque: u32, server_now_s: u64, out: &mut Vec<u8>) -> Result<Expect> {
        let key = WireKey::new(&op.key, self.dialect)?;
        if op.cas().is_some() && !self.cas {
            return Err(unsupported("cas tokens"));
        }
        let mut line = Line { out, opaque, key };
        let shape = match &op.verb {
            Verb::Get { want } if self.dialect.is_meta() => line.meta_get(*want),
            Verb::Get { want } => line.classic_get(*want, self.cas),
            Verb::Put { mode, value, flags, ttl } => {
                self.check_value(op.key.as_bytes().len(), value.len(), *flags)?;
                let exptime = self.exptime(*ttl, server_now_s)?;
                // An `ms` that fails deletes the old item, so it is used only where a set would too, and where nothing else is.
                if self.dialect.is_meta() && (*mode == PutMode::Set || key.is_binary()) {
                    line.meta_put(*mode, value, *flags, exptime)
                } else {
                    line.classic_put(*mode, value, *flags, exptime)
                }
            }
            Verb::Delete { cas } if self.dialect.is_meta() => line.meta_delete(cas.map(|cas| cas.token)),
            Verb::Delete { cas: None } if op.key.as_bytes() == b"noreply" => {
                let detail = "a classic delete of the key \"noreply\" is not answered by all servers; the meta dialect has one that is";
                return Err(Error::new(ErrorKind::BadInput, detail).key(&op.key));
            }
            Verb::Delete { cas: None } => line.classic_delete(),
            Verb::Delete { cas: Some(_) } if !self.ttl => return Err(unsupported("a delete by token")),
            Verb::Delete { cas: Some(cas) } => line.classic_delete_if(cas.token),
            Verb::Touch { ttl } => {
                if !self.ttl {
                    return Err(unsupported("touch"));
                }
                let exptime = exptime(*ttl, server_now_s)?;
                if self.dialect.is_meta() { line.meta_touch(exptime) } else { line.classic_touch(exptime) }
            }
            Verb::Arith { arith, initial } => {
                let initial = match initial {
                    Some(Initial { value, ttl }) => Some((*value, self.exptime(*ttl, server_now_s)?)),
                    None => None,
                };
                match initial {
                    _ if self.dialect.is_meta() => line.meta_arith(*arith, initial),
                    None => line.classic_arith(*arith),
                    Some(_) => return Err(unsupported("an initial value of arithmetic (memcached 1.6.13 does)")),
                }
            }
            Verb::GetRange { .. } | Verb::PutRange { .. } | Verb::Watch { .. } | Verb::Native(_) => {
                return Err(op.lacking());
            }
        };
        let want = match &op.verb {
            Verb::Get { want } if self.cas => *want,
            Verb::Get { want } => want.difference(Want::CAS),
            _ => Want::empty(),
        };
        let key = (shape == Shape::Get).then(|| op.key.clone());
        Ok(Expect { shape, want, opaque, key })
    }

    /// The number that stands for a life; refuses one where the server would ignore it.
    fn exptime(&self, ttl: Ttl, server_now_s: u64) -> Result<u64> {
        match ttl {
            Ttl::Never => Ok(0),
            Ttl::After(_) if !self.ttl => Err(unsupported("a ttl (it would keep the item for ever)")),
            Ttl::After(_) => exptime(ttl, server_now_s),
        }
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the server does not know {what}"))
}

/// Writes one command.
struct Line<'a> {
    out: &'a mut Vec<u8>,
    opaque: u32,
    key: WireKey<'a>,
}

impl Line<'_> {
    fn meta_get(&mut self, want: Want) -> Shape {
        self.start(b"mg ");
        for (part, flag) in [(Want::VALUE, b" v"), (Want::CAS, b" c"), (Want::FLAGS, b" f"), (Want::TTL, b" t")] {
            if want.contains(part) {
                self.out.extend_from_slice(flag);
            }
        }
        self.end_meta();
        Shape::MetaGet
    }

    fn classic_get(&mut self, want: Want, cas: bool) -> Shape {
        self.start(if want.contains(Want::CAS) && cas { b"gets " } else { b"get " });
        self.end();
        Shape::Get
    }

    fn meta_put(&mut self, mode: PutMode, value: &[u8], flags: u32, exptime: u64) -> Shape {
        self.out.reserve(value.len() + 128);
        self.start(b"ms ");
        self.number(b" ", value.len() as u64);
        // Modes are single letters: the server reads `MA` and ignores the rest of `Mappend`, or takes it for another mode.
        match mode {
            PutMode::Set => {}
            PutMode::Add => self.out.extend_from_slice(b" ME"),
            PutMode::Replace => self.out.extend_from_slice(b" MR"),
            PutMode::Append => self.out.extend_from_slice(b" MA"),
            PutMode::Prepend => self.out.extend_from_slice(b" MP"),
            PutMode::Cas(cas) => self.number(b" C", cas.token),
        }
        if flags != 0 {
            self.number(b" F", u64::from(flags));
        }
        if exptime != 0 {
            self.number(b" T", exptime);
        }
        self.end_meta();
        self.body(value);
        Shape::MetaPut
    }

    fn classic_put(&mut self, mode: PutMode, value: &[u8], flags: u32, exptime: u64) -> Shape {
        self.out.reserve(value.len() + 128);
        self.start(match mode {
            PutMode::Set => b"set ",
            PutMode::Add => b"add ",
            PutMode::Replace => b"replace ",
            PutMode::Append => b"append ",
            PutMode::Prepend => b"prepend ",
            PutMode::Cas(_) => b"cas ",
        });
        self.number(b" ", u64::from(flags));
        self.number(b" ", exptime);
        self.number(b" ", value.len() as u64);
        if let PutMode::Cas(cas) = mode {
            self.number(b" ", cas.token);
        }
        self.end();
        self.body(value);
        if mode == PutMode::Set { Shape::Set } else { Shape::Put }
    }

    fn meta_delete(&mut self, token: Option<u64>) -> Shape {
        self.start(b"md ");
        if let Some(token) = token {
            self.number(b" C", token);
        }
        self.end_meta();
        Shape::MetaDelete
    }

    fn classic_delete(&mut self) -> Shape {
        self.start(b"delete ");
        self.end();
        Shape::Delete
    }

    /// An empty value whose life is over as it is stored: the classic dialect has no delete that takes a token.
    fn classic_delete_if(&mut self, token: u64) -> Shape {
        self.start(b"cas ");
        self.number(b" 0 -1 0 ", token);
        self.end();
        self.end();
        Shape::DeleteIf
    }

    fn meta_touch(&mut self, exptime: u64) -> Shape {
        self.start(b"mg ");
        self.number(b" T", exptime);
        self.end_meta();
        Shape::MetaTouch
    }

    fn classic_touch(&mut self, exptime: u64) -> Shape {
        self.start(b"touch ");
        self.number(b" ", exptime);
        self.end();
        Shape::Touch
    }

    fn meta_arith(&mut self, arith: Arith, initial: Option<(u64, u64)>) -> Shape {
        self.start(b"ma ");
        if let Some((value, exptime)) = initial {
            self.number(b" N", exptime);
            self.number(b" J", value);
        }
        match arith {
            Arith::Incr(delta) => self.number(b" MI D", delta),
            Arith::Decr(delta) => self.number(b" MD D", delta),
        }
        self.out.extend_from_slice(b" v");
        self.end_meta();
        Shape::MetaArith
    }

    fn classic_arith(&mut self, arith: Arith) -> Shape {
        let (command, delta): (&[u8], u64) = match arith {
            Arith::Incr(delta) => (b"incr ", delta),
            Arith::Decr(delta) => (b"decr ", delta),
        };
        self.start(command);
        self.number(b" ", delta);
        self.end();
        Shape::Arith
    }

    fn start(&mut self, command: &[u8]) {
        self.out.extend_from_slice(command);
        self.key.write(self.out);
    }

    fn number(&mut self, before: &[u8], number: u64) {
        self.out.extend_from_slice(before);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn end_meta(&mut self) {
        if self.key.is_binary() {
            self.out.extend_from_slice(b" b");
        }
        self.number(b" O", u64::from(self.opaque));
        self.end();
    }

    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    fn body(&mut self, value: &[u8]) {
        self.out.extend_from_slice(value);
        self.end();
    }
}
