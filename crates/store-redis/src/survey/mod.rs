//! How the server keeps each key: `SCAN`, a piece at a time, on a connection of its own.
//!
//! What is asked of a key (`TYPE`, `OBJECT ENCODING`, `MEMORY USAGE`) does not count as a use of it; what counts its elements does, unless the server knows
//! `CLIENT NO-TOUCH` (Redis 7.2, Valkey). Only samples are asked that.

mod measure;
mod vitals;

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::survey::{DataType, Measured, Pace, Sample, Seen, Survey, Surveying, Told, Vitals};
use larder_core::{Ctx, Error, ErrorKind, Result};
use larder_net::all_of;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, ServerError, Value};
use tokio::task::AbortHandle;

use crate::codec::refused;
use crate::handshake::text;
use crate::node::{Node, Role};
use crate::{RedisClusterStore, RedisStore};

/// Keys that a server looks at in one piece; others are served between pieces.
const SCAN_COUNT: usize = 500;

/// `SCAN` through the database that the store uses, and for each key `TYPE` and `OBJECT ENCODING`. A key that stands there from the beginning to the end is told;
/// `SCAN` may tell one twice. **Round trips: 2** for every 500 keys.
impl Survey for RedisStore {
    fn vitals(&self, ctx: Ctx) -> Surveying<'_, Vec<Result<Vitals>>> {
        Box::pin(async move { vec![named(self.node(), vitals::ask(self.node(), ctx).await)] })
    }

    fn walk<'a>(
        &'a self,
        ctx: Ctx,
        pace: Pace,
        tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    ) -> Surveying<'a, Result<()>> {
        Box::pin(async move { named(self.node(), walk(self.node(), ctx, pace, &mut 0, tell).await) })
    }

    fn measure<'a>(&'a self, ctx: Ctx, pace: Pace, keys: &'a [Sample]) -> Surveying<'a, Result<Vec<Option<Measured>>>> {
        Box::pin(async move {
            let keys: Vec<&Sample> = keys.iter().collect();
            named(self.node(), measure::measure(self.node(), ctx, pace, &keys).await)
        })
    }
}

/// One primary after the other. What holds of a single server holds of each; a key of a slot that moves meanwhile may be told twice, or missed, as is one of a slot
/// that nobody serves. Those that were handed over are missed until the move ends: the node that takes them in refuses what is asked of them.
///
/// A primary that is demoted meanwhile is asked on, as a replica (`READONLY`); a user who may not say that misses its keys.
impl Survey for RedisClusterStore {
    fn vitals(&self, ctx: Ctx) -> Surveying<'_, Vec<Result<Vitals>>> {
        Box::pin(async move {
            // All at once: one that does not answer is not to make the others late.
            let members = self.members();
            let ask = async |node| named(node, vitals::ask(node, ctx).await);
            all_of(members.iter().map(|member| Box::pin(ask(&member.node))).collect()).await
        })
    }

    fn walk<'a>(
        &'a self,
        ctx: Ctx,
        pace: Pace,
        tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    ) -> Surveying<'a, Result<()>> {
        Box::pin(async move {
            let mut looked_at = 0;
            for member in &self.members() {
                named(&member.node, walk(&member.node, ctx, pace, &mut looked_at, tell).await)?;
            }
            Ok(())
        })
    }

    fn measure<'a>(&'a self, ctx: Ctx, pace: Pace, keys: &'a [Sample]) -> Surveying<'a, Result<Vec<Option<Measured>>>> {
        Box::pin(async move {
            let mut all = vec![None; keys.len()];
            for (member, places) in self.by_owner(keys.iter().map(|sample| &sample.key[..])) {
                let samples: Vec<&Sample> = places.iter().map(|&place| &keys[place]).collect();
                let found = named(&member.node, measure::measure(&member.node, ctx, pace, &samples).await)?;
                for (place, measured) in places.into_iter().zip(found) {
                    all[place] = measured;
                }
            }
            Ok(all)
        })
    }
}

fn named<T>(node: &Arc<Node>, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.store(node.name()))
}

/// A connection for questions; closed when it is dropped.
struct Asker {
    conn: MultiplexedConnection,
    task: AbortHandle,
    timeout: Duration,
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Asker {
    /// For questions by these commands.
    async fn open(node: &Arc<Node>, ctx: Ctx, by: &[&str]) -> Result<Asker> {
        let unknown = node.info().unwrap_or_default().unknown;
        for command in by {
            unknown.refuse(command).map_err(|refusal| needs(command, &refusal))?;
        }
        // The dial has a limit of its own, too.
        let dial = node.open_pushed(|_| (), || ());
        let opened = match ctx.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), dial).await.ok(),
            None => Some(dial.await),
        };
        let late = || Error::new(ErrorKind::Timeout, "no connection before the deadline");
        let (conn, _, task) = opened.ok_or_else(late)??;
        let mut asker = Asker { conn, task, timeout: node.config.timeout };
        let mut pipeline = Pipeline::new();
        pipeline.cmd("CLIENT").arg("NO-TOUCH").arg("ON");
        if node.role == Role::Member {
            // One that was demoted, or will be, tells of its keys all the same.
            pipeline.cmd("READONLY");
        }
        // A server that does not know it answers an error, which says nothing more.
        asker.ask(ctx, &pipeline).await?;
        Ok(asker)
    }

    /// One round trip; each command has an answer, errors among them.
    async fn ask(&mut self, ctx: Ctx, pipeline: &Pipeline) -> Result<Vec<Value>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let until = ctx.at_most(self.timeout).deadline.unwrap_or_else(Instant::now);
        let asked = self.conn.send_packed_commands(pipeline, 0, pipeline.len());
        match tokio::time::timeout_at(until.into(), asked).await {
            Ok(Ok(answers)) if answers.len() == pipeline.len() => Ok(answers),
            Ok(Ok(answers)) => Err(strange("a pipeline", &format!("{} answers", answers.len()))),
            Ok(Err(error)) => {
                Err(Error::new(ErrorKind::Unavailable, format!("the connection was lost: {error}")).source(error))
            }
            Err(_) => Err(Error::new(ErrorKind::Timeout, "no answer before the deadline")),
        }
    }
}

async fn walk(
    node: &Arc<Node>,
    ctx: Ctx,
    pace: Pace,
    looked_at: &mut u64,
    tell: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<()> {
    let mut asker = Asker::open(node, ctx, &["SCAN", "TYPE", "OBJECT"]).await?;
    let mut cursor = b"0".to_vec();
    loop {
        let begun = Instant::now();
        let (next, keys) = scan(&mut asker, ctx, &cursor).await?;
        for part in keys.chunks(SCAN_COUNT) {
            look(&mut asker, ctx, part, tell).await?;
        }
        *looked_at += keys.len() as u64;
        tell(Told::LookedAt(*looked_at));
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
        pause(ctx, pace.pause(keys.len(), begun.elapsed())).await;
        if ctx.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::new(ErrorKind::Timeout, format!("the deadline came after {looked_at} keys")));
        }
    }
}

/// A pause between pieces, to the deadline at the most.
async fn pause(ctx: Ctx, pause: Duration) {
    if let Some(until) = ctx.at_most(pause).deadline {
        tokio::time::sleep_until(until.into()).await;
    }
}

async fn scan(asker: &mut Asker, ctx: Ctx, cursor: &[u8]) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("SCAN").arg(cursor).arg("COUNT").arg(SCAN_COUNT);
    let answer = asker.ask(ctx, &pipeline).await?.pop().unwrap_or(Value::Nil);
    let Value::Array(parts) = allowed("SCAN", answer)? else { return Err(strange("SCAN", "no array")) };
    match <[Value; 2]>::try_from(parts) {
        Ok([Value::BulkString(next), Value::Array(keys)]) => Ok((next, keys.into_iter().filter_map(bytes).collect())),
        _ => Err(strange("SCAN", "something else")),
    }
}

/// Tells how keys are kept.
async fn look(asker: &mut Asker, ctx: Ctx, keys: &[Vec<u8>], tell: &mut (dyn FnMut(Told<'_>) + Send)) -> Result<()> {
    let mut pipeline = Pipeline::with_capacity(keys.len() * 2);
    for key in keys {
        pipeline.cmd("TYPE").arg(key);
        pipeline.cmd("OBJECT").arg("ENCODING").arg(key);
    }
    let mut answers = asker.ask(ctx, &pipeline).await?.into_iter();
    for key in keys {
        let (kind, kept) = (answers.next().unwrap_or(Value::Nil), answers.next().unwrap_or(Value::Nil));
        let Some(kind) = unless_moved("TYPE", kind)? else { continue };
        let kind = text(&kind);
        let kept = match kept {
            // What it answers where the key has gone since.
            Value::ServerError(error) if error.details().is_some_and(|words| words.contains("no such key")) => continue,
            kept => match unless_moved("OBJECT ENCODING", kept)? {
                Some(kept) => kept,
                None => continue,
            },
        };
        if kind == "none" || kept == Value::Nil {
            continue;
        }
        let (data_type, kept) = (DataType::named(&kind), text(&kept));
        // Of what a module made, the type says more.
        let encoding = if data_type == DataType::Other { &kind } else { &kept };
        tell(Told::Key(Seen {
            key,
            data_type,
            encoding,
            bytes: None,
            resident_bytes: None,
            value_bytes: None,
            expires: None,
        }));
    }
    Ok(())
}

/// An answer that is no refusal.
fn allowed(command: &str, answer: Value) -> Result<Value> {
    match answer {
        Value::ServerError(error) => Err(forbidden(command, &error)),
        answer => Ok(answer),
    }
}

/// The same of a question about a key; `None` where the node does not serve the key's slot, or not now: to this node it is gone.
fn unless_moved(command: &str, answer: Value) -> Result<Option<Value>> {
    match answer {
        Value::ServerError(error) if is_elsewhere(&error) => Ok(None),
        answer => allowed(command, answer).map(Some),
    }
}

/// True of a refusal for the sake of one slot. A cluster that is down as a whole refuses every key, and a report of none would be no report.
fn is_elsewhere(error: &ServerError) -> bool {
    match error.code() {
        "MOVED" | "ASK" | "TRYAGAIN" => true,
        "CLUSTERDOWN" => error.details().is_some_and(|words| words.contains("not served")),
        _ => false,
    }
}

fn forbidden(command: &str, error: &ServerError) -> Error {
    needs(command, &refused(error))
}

fn needs(command: &str, refusal: &Error) -> Error {
    let what = match refusal.kind() {
        ErrorKind::Config => "the survey needs the command",
        _ => "the survey was refused the command",
    };
    Error::new(refusal.kind(), format!("{what} {command}: {}", refusal.detail()))
}

fn strange(command: &str, what: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the server answered {command} with {what}"))
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &str) -> Result<Option<Value>> {
        unless_moved("TYPE", redis::parse_redis_value(format!("-{words}\r\n").as_bytes()).unwrap())
    }

    #[test]
    fn a_key_that_another_node_serves_is_gone_and_other_refusals_are_errors() {
        for words in [
            "MOVED 9497 127.0.0.1:7001",
            "ASK 9497 127.0.0.1:7001",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CLUSTERDOWN Hash slot not served",
        ] {
            assert_eq!(said(words).unwrap(), None, "{words}");
        }
        // Of each key: a report that has none would be taken for one of an empty store.
        let down = said("CLUSTERDOWN The cluster is down").unwrap_err();
        assert_eq!(down.kind(), ErrorKind::Unavailable);
        assert!(down.to_string().contains("the survey was refused the command TYPE: "), "{down}");
        let forbidden = said("NOPERM this user has no permissions to run the 'type' command").unwrap_err();
        assert_eq!(forbidden.kind(), ErrorKind::Config);
        assert!(forbidden.to_string().contains("the survey needs the command TYPE: "), "{forbidden}");
    }
}
