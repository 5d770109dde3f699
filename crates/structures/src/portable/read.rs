//! Reading: the store's own answers, and in the place of those that a native key gave what its counterpart would say.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::native::NativeReply;
use larder_core::{Batch, Ctx, Error, ErrorKind, Item, Key, Op, Remaining, Replies, Reply, Result, Route, Verb, Want};

use super::{Portable, Seen, is_native, portable_manifest};
use crate::manifest::{Kind, Manifest};
use crate::name::{DataKey, Name};
use crate::owned::GONE;
use crate::records::portable::Part;
use crate::unique::portable::Periods;
use crate::{copies, counter, records, registry, sharded, unique};

/// Native keys that are read in one batch: their values come whole.
const KEYS_A_BATCH: usize = 32;
/// What the first byte of an item is on a server that has native keys: of a fast counter's bit field it may be that, too, by chance.
const ITEM_MAGIC: u64 = 0xC1;

/// A key that may be native, or have copies: its place in the batch, and whose it is.
struct Native {
    at: usize,
    key: Key,
    of: (Name, u64),
    role: char,
    index: String,
}

impl Native {
    /// `None` for a reply that stands, and for a key that no native structure has, and none with copies on `nodes` servers.
    fn of(at: usize, op: &Op, reply: &Result<Reply>, nodes: usize) -> Option<Native> {
        if !matches!(op.verb, Verb::Get { .. }) {
            return None;
        }
        let (name, Some(DataKey { role, life, index })) = Name::parts_of_key(op.key.as_bytes())? else { return None };
        let may_be = match reply {
            // What one server says, or has lost, is not all.
            reply if role == Kind::Counter.role() => nodes > 1 && reply.is_ok(),
            _ if !Kind::NATIVE.iter().any(|kind| kind.role() == role) => false,
            Err(error) => matches!(error.kind(), ErrorKind::LayoutMismatch | ErrorKind::BadInput),
            Ok(_) => role == Kind::FastCounter.role() && life >> 56 == ITEM_MAGIC,
        };
        let index = index.to_owned();
        may_be.then(|| Native { at, key: op.key.clone(), of: (name, life), role, index })
    }

    /// The error for a key that holds what cannot be read.
    fn strange(&self, why: &str) -> Error {
        Error::new(ErrorKind::LayoutMismatch, format!("{}: {why}", self.of.0)).key(&self.key)
    }
}

impl Portable {
    pub(super) async fn read(&self, ctx: Ctx, batch: Batch) -> Replies {
        let ops: Vec<Op> = batch.iter().cloned().collect();
        let mut replies = self.store.run(ctx, batch).await;
        let nodes = self.store.profile().nodes;
        let mut natives = Vec::new();
        for (at, (op, reply)) in ops.iter().zip(&mut replies).enumerate() {
            if matches!(op.verb, Verb::Get { .. })
                && let Some(name) = Name::of_manifest_key(op.key.as_bytes())
            {
                if nodes > 1 && matches!(reply, Ok(Reply::Miss)) {
                    let found = copies::look(&self.store, ctx, &name).await;
                    *reply = found.map(|found| found.map_or(Reply::Miss, |(found, _)| Reply::Item(found.item)));
                }
                if let Ok(Reply::Item(item)) = reply
                    && let Ok(manifest) = Manifest::decode(&item.value)
                {
                    if usize::from(manifest.copies) > nodes {
                        *reply = Err(few_servers(&name, &manifest, nodes, &op.key));
                    } else if let Some(manifest) = portable_manifest(&manifest) {
                        item.value = manifest.encode();
                    }
                }
            }
            natives.extend(Native::of(at, op, reply, nodes));
        }
        for part in natives.chunks(KEYS_A_BATCH) {
            let read = self.read_natives(ctx, part).await;
            for (native, item) in part.iter().zip(read) {
                if let Some(item) = item
                    && let Some(reply) = replies.get_mut(native.at)
                {
                    *reply = item;
                }
            }
        }
        replies
    }

    /// What native keys are read as; `None` where the store's own answer stands.
    async fn read_natives(&self, ctx: Ctx, natives: &[Native]) -> Vec<Option<Result<Reply>>> {
        if let Err(error) = self.look(ctx, natives).await {
            return natives.iter().map(|_| Some(Err(error.clone()))).collect();
        }
        let plans: Vec<Plan> = natives.iter().map(|native| native.plan(self.seen(&native.of))).collect();
        let asks = plans.iter().filter_map(|plan| if let Plan::Ask(ask) = plan { Some(&ask.ops) } else { None });
        let batch: Batch = asks.flatten().cloned().collect();
        let replies = if batch.is_empty() { Replies::new() } else { self.store.run(ctx, batch).await };
        let mut replies = replies.into_iter();
        let mut answer = |native: &Native, plan: Plan| match plan {
            Plan::Keep => None,
            Plan::Answer(reply) => Some(reply),
            Plan::Ask(ask) => {
                let mut told = Vec::with_capacity(ask.ops.len());
                for _ in &ask.ops {
                    told.push(replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply())));
                }
                Some(told.into_iter().collect::<Result<_>>().and_then(|replies| native.reply(&ask, replies)))
            }
        };
        natives.iter().zip(plans).map(|(native, plan)| answer(native, plan)).collect()
    }

    /// Reads the manifests of structures that are not known yet, and the periods of unique visitors. **Round trips: 1**, and 2 for each of the latter; over several servers
    /// 1 more for each manifest that is missing where it should stand.
    async fn look(&self, ctx: Ctx, natives: &[Native]) -> Result<()> {
        let mut new: Vec<&Native> = natives.iter().filter(|native| !native.is_known(self.seen(&native.of))).collect();
        new.sort_by(|one, other| one.of.cmp(&other.of));
        new.dedup_by(|one, other| one.of == other.of);
        if new.is_empty() {
            return Ok(());
        }
        let gets = new.iter().map(|native| Ok(Op::get(native.of.0.manifest_key()?, Want::VALUE)));
        for (native, reply) in new.iter().zip(self.store.run(ctx, gets.collect::<Result<Batch>>()?).await) {
            match self.understood(ctx, native, reply).await {
                Ok(Some(seen)) => self.see(native.of.clone(), seen),
                Ok(None) => {}
                // Another program's value in the place of what tells of one structure says nothing of the others.
                Err(error) if registry::is_of_its_item(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a structure is by the reply to a read of its manifest; `None` for one that is not there.
    async fn understood(&self, ctx: Ctx, native: &Native, reply: Result<Reply>) -> Result<Option<Seen>> {
        // What is no manifest is told where it is read itself, and a manifest of another life says nothing of this one.
        let found = match reply?.into_item() {
            Some(item) => Manifest::decode(&item.value).ok(),
            None if self.store.profile().nodes > 1 => {
                copies::look(&self.store, ctx, &native.of.0).await?.map(|(found, _)| found.manifest)
            }
            None => None,
        };
        let Some(manifest) = found.filter(|manifest| manifest.generation == native.of.1) else { return Ok(None) };
        if !is_native(&manifest) {
            return Ok(Some(Seen::Items));
        }
        if manifest.kind != Kind::UniqueVisitors {
            return Ok(Some(Seen::Native(Arc::new(manifest), None)));
        }
        let periods = Periods::read(&self.store, ctx, &native.of.0, &manifest).await?;
        Ok(periods.map(|periods| Seen::Native(Arc::new(manifest), Some(Arc::new(periods)))))
    }
}

/// What is done about a key.
enum Plan {
    /// The store's own answer stands.
    Keep,
    Answer(Result<Reply>),
    Ask(Ask),
}

/// What is asked for a key.
struct Ask {
    manifest: Arc<Manifest>,
    what: What,
    ops: Vec<Op>,
}

/// What a key is.
enum What {
    Copies,
    Number,
    Record(u32),
    Elements,
    Visitors { periods: Arc<Periods>, tag: u32, shard: u32 },
}

impl Native {
    /// True if nothing more need be known of its structure.
    fn is_known(&self, seen: Option<Seen>) -> bool {
        match seen {
            None => false,
            // A period that was made since.
            Some(Seen::Native(_, Some(periods))) => {
                unique::portable::shard_of_index(&self.index).is_none_or(|(tag, _)| periods.has(tag))
            }
            Some(_) => true,
        }
    }

    fn plan(&self, seen: Option<Seen>) -> Plan {
        let (manifest, periods) = match seen {
            Some(Seen::Native(manifest, periods)) => (manifest, periods),
            Some(Seen::Items) => return Plan::Keep,
            // It may be an item of its own right: see `ITEM_MAGIC`.
            None if [Kind::Counter, Kind::FastCounter].iter().any(|kind| kind.role() == self.role) => {
                return Plan::Keep;
            }
            None => {
                return Plan::Answer(Err(
                    self.strange("what is left of a structure that is not there, or is being made")
                ));
            }
        };
        if manifest.kind.role() != self.role {
            return Plan::Keep;
        }
        let key = self.key.clone();
        let asked = match (manifest.kind, periods) {
            (Kind::Counter, _) => {
                let get = |rank| Op::get(key.clone(), Want::VALUE).routed(Route { with: None, rank });
                Some((What::Copies, (0..manifest.copies).map(get).collect()))
            }
            (Kind::FastCounter, _) => Some((What::Number, vec![counter::number_op(key)])),
            (Kind::Records, _) => match Part::of_index(&self.index) {
                Some(Part::Highest) => return Plan::Answer(Ok(Reply::Miss)),
                Some(Part::Shard(shard)) => {
                    records::portable::read_ops(&self.of.0, &manifest, key).map(|ops| (What::Record(shard), ops.into()))
                }
                None => None,
            },
            (Kind::UniqueVisitors, Some(periods)) => match unique::portable::shard_of_index(&self.index) {
                Some((tag, _)) if !periods.has(tag) => {
                    return Plan::Answer(Err(self.strange("a shard of a period that is not there, or is being made")));
                }
                Some((tag, shard)) => {
                    Some((What::Visitors { periods, tag, shard }, vec![unique::portable::read_op(key)]))
                }
                None => None,
            },
            (kind, _) => Some((What::Elements, vec![sharded::portable::read_op(kind, key)])),
        };
        match asked {
            Some((what, ops)) => Plan::Ask(Ask { manifest, what, ops }),
            None => Plan::Keep,
        }
    }

    /// What the replies to the ops are as an item.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for what is not as the structure left it.
    fn reply(&self, ask: &Ask, replies: Vec<Reply>) -> Result<Reply> {
        let for_ever = |(value, flags): (Bytes, u32)| (value, flags, Remaining::Never);
        let item = match &ask.what {
            What::Copies => counter::portable_slot(&values(replies)).map(|value| for_ever((value, 0))),
            What::Number => match natives(replies) {
                [Some(NativeReply::Bytes(bytes)), _] => {
                    counter::portable_number(&ask.manifest, &bytes).map(|value| for_ever((value, 0)))
                }
                _ => None,
            },
            What::Record(shard) => {
                let [first, second] = natives(replies);
                records::portable::item(&ask.manifest, *shard, first, second).map(|value| for_ever((value, 0)))
            }
            What::Elements => {
                let [first, _] = natives(replies);
                sharded::portable::item(ask.manifest.kind, first).map(for_ever)
            }
            What::Visitors { periods, tag, shard } => {
                let [first, _] = natives(replies);
                periods.item(*tag, *shard, first)
            }
        };
        let Some((value, flags, ttl)) = item else {
            let what = ask.manifest.kind.with_article();
            return Err(self.strange(&format!("this is not what {what} has here: {GONE}")));
        };
        Ok(Reply::Item(Item { value, flags, cas: None, ttl }))
    }
}

/// The error for a structure of which this store has too few servers to know what its copies say.
fn few_servers(name: &Name, manifest: &Manifest, nodes: usize, key: &Key) -> Error {
    let detail = format!(
        "{name} has copies on {} servers, and this store is {nodes} of them: name all of them",
        manifest.copies
    );
    Error::new(ErrorKind::LayoutMismatch, detail).key(key)
}

/// What items hold; `None` for those that are not there.
fn values(replies: Vec<Reply>) -> Vec<Option<Bytes>> {
    replies.into_iter().map(|reply| reply.into_item().map(|item| item.value)).collect()
}

/// What two native ops answered, of which there may be one.
fn natives(replies: Vec<Reply>) -> [Option<NativeReply>; 2] {
    let mut natives = replies.into_iter().map(Reply::into_native);
    [natives.next().flatten(), natives.next().flatten()]
}
