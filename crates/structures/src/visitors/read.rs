//! Reading figures, and telling a window that nobody hit from one that was lost.
//!
//! A part that is there counts; one that is neither there nor listed was never hit. One that is listed and not there, or there in
//! another incarnation, is read once more, *after* the ledger that lists it: only then is it certain that it was there before. One that is there and not
//! listed (its makers are about to list it, or died before; or the ledger was set back) is listed before it is told: nobody could tell its loss else.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Item, Op, Reply, Result, Want};

use super::layout::{self, COUNTER};
use super::shared::Shared;
use crate::events;
use crate::ledger::{List, Piece};
use crate::manifest::unexpected;

/// How often figures are read anew whose window was over before they came.
const TRIES_MAX: usize = 4;

/// A part of a window.
type At = (u64, u16);

/// What was found of a part.
#[derive(Clone, Copy, Debug)]
struct Sight {
    incarnation: u64,
    count: u64,
}

impl Shared {
    /// The figures of windows so far behind the one that is being filled, and the time they are of. **Round trips: 1**, 2 where a
    /// window was lost.
    pub(super) async fn read_behind<const N: usize>(self: &Arc<Self>, behind: [u64; N]) -> Result<(u64, [u64; N])> {
        for _ in 0..TRIES_MAX {
            let now_ms = self.now_ms();
            let current = self.window_of(now_ms)?;
            // Before 1970 nobody came.
            let windows: Vec<u64> = behind.iter().filter_map(|behind| current.checked_sub(*behind)).collect();
            if let Some(figures) = self.read(&windows).await? {
                let figure = |behind| current.checked_sub(behind).and_then(|window| figures.get(&window).copied());
                return Ok((now_ms, behind.map(|behind| figure(behind).unwrap_or(0))));
            }
        }
        let detail = format!("windows of {} ms ended before they were read, {TRIES_MAX} times", self.params.period_ms);
        Err(Error::new(ErrorKind::Timeout, detail))
    }

    /// The figure of one window.
    pub(super) async fn read_window(self: &Arc<Self>, window: u64) -> Result<u64> {
        match self.read(&[window]).await? {
            Some(figures) => Ok(figures.get(&window).copied().unwrap_or(0)),
            None => {
                self.expect_kept(window, self.now_ms())?;
                Err(Error::new(ErrorKind::Timeout, format!("window {window} ended before it was read")))
            }
        }
    }

    /// The figures of windows; `None` where one is missing that by now is over.
    async fn read(self: &Arc<Self>, windows: &[u64]) -> Result<Option<BTreeMap<u64, u64>>> {
        self.vigil().check()?;
        let ctx = Ctx { deadline: Some(self.deadline()) };
        let parts = windows.iter().flat_map(|&window| (0..=self.params.shards).map(move |part| (window, part)));
        let before = self.ledger.seen();
        let (listed, mut found) = self.look(ctx, parts.collect(), true).await?;
        let list = match self.ledger.list(listed.unwrap_or_else(|| Err(larder_core::ext::no_reply())), before) {
            Err(error) if error.kind() == ErrorKind::Lost => {
                self.remove_orphans(ctx).await;
                return Err(error);
            }
            list => list?,
        };
        let is_off = |at: &At, found: &BTreeMap<At, Option<Sight>>| {
            let sight = found.get(at).copied().flatten();
            list.incarnations(at.0, at.1)
                .iter()
                .any(|piece| sight.map(|sight| sight.incarnation) != Some(piece.incarnation))
        };
        let off: Vec<At> = found.keys().filter(|at| is_off(at, &found)).copied().collect();
        if !off.is_empty() {
            let (_, again) = self.look(ctx, off.clone(), false).await?;
            found.extend(again);
        }
        self.vigil().check()?;
        if let Some(at) = off.iter().find(|at| is_off(at, &found)) {
            if !self.is_kept(at.0, self.now_ms()) {
                return Ok(None);
            }
            return Err(events::loss(self.vigil().subject(), self.lost(*at, &list)));
        }
        self.enlist_found(ctx, &list, &found).await?;
        let mut figures = BTreeMap::new();
        for ((window, _), sight) in found {
            *figures.entry(window).or_insert(0) += sight.map_or(0, |sight| sight.count);
        }
        Ok(Some(figures))
    }

    /// Sees to it that what was found is listed. **Round trips: 0**, 1 where something was not.
    async fn enlist_found(self: &Arc<Self>, ctx: Ctx, list: &List, found: &BTreeMap<At, Option<Sight>>) -> Result<()> {
        let piece = |(&(number, part), sight): (&At, &Option<Sight>)| {
            let incarnation = sight.as_ref()?.incarnation;
            (!list.has(number, part)).then_some(Piece { number, part, incarnation })
        };
        let unlisted: Vec<Piece> = found.iter().filter_map(piece).collect();
        if unlisted.is_empty() {
            return Ok(());
        }
        let deadline = ctx.deadline.unwrap_or_else(|| self.deadline());
        self.enlist(deadline, list, &unlisted).await.map_err(|error| error.effect(Effect::NotApplied))
    }

    /// Reads parts, and the ledger if it is asked for, in one batch.
    async fn look(
        self: &Arc<Self>,
        ctx: Ctx,
        parts: Vec<At>,
        with_ledger: bool,
    ) -> Result<(Option<Result<Reply>>, BTreeMap<At, Option<Sight>>)> {
        let gets: Result<Vec<Op>> =
            parts.iter().map(|&(window, part)| Ok(Op::get(self.key(window, part)?, Want::VALUE | Want::CAS))).collect();
        let gets = gets?;
        let mut batch: Batch = gets.iter().cloned().collect();
        if with_ledger {
            batch.push(self.ledger.read_op());
        }
        let mut replies = self.vigil().run(ctx, batch).await;
        let listed = if with_ledger { replies.pop() } else { None };
        let mut found = BTreeMap::new();
        let mut replies = replies.into_iter();
        for (at, get) in parts.into_iter().zip(gets) {
            let sight = match replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))? {
                Reply::Item(item) => Some(self.sight(at, &get, &item)?),
                Reply::Miss => None,
                other => return Err(unexpected(&get, &other)),
            };
            found.insert(at, sight);
        }
        Ok((listed, found))
    }

    fn sight(self: &Arc<Self>, (window, part): At, get: &Op, item: &Item) -> Result<Sight> {
        let named = |error: Error| error.key(&get.key).store(self.store.profile().store.clone());
        if part == COUNTER {
            let (incarnation, count) = layout::parse_counter(&item.value).map_err(named)?;
            return Ok(Sight { incarnation, count });
        }
        let (incarnation, hashes) = layout::parse_shard(&item.value).map_err(named)?;
        let count = hashes.len() as u64;
        self.compact_behind((window, part), &get.key, item, hashes);
        Ok(Sight { incarnation, count })
    }

    fn lost(&self, (window, part): At, list: &List) -> Error {
        let what = match part.checked_sub(1) {
            None => "its counter".to_owned(),
            Some(shard) => format!("shard {shard} of {} of its visitors", self.params.shards),
        };
        let begin_ms = layout::begin_ms(window, self.params.period_ms);
        let again = if list.incarnations(window, part).len() > 1 { ", and was made again" } else { "" };
        let detail = format!(
            "window {window} of visitors {} (of {} ms, from {begin_ms} ms after 1970): {what} is gone: evicted, or lost in a \
             restart{again}; other windows are not concerned",
            self.name, self.params.period_ms
        );
        let error = Error::new(ErrorKind::Lost, detail).store(self.store.profile().store.clone());
        match self.key(window, part) {
            Ok(key) => error.key(&key),
            Err(_) => error,
        }
    }
}
