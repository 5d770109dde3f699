//! Reading: of the shards of the map in force, or of those that elements still come from.
//!
//! | a shard of the map in force is | what is read |
//! |---|---|
//! | live | it |
//! | unfilled | the shards that its elements come from: nothing was written to it when it was looked at, so what they say was so then, or is so now |
//! | sealed, or missing | the map anew: this handle's is old, or the shard is lost |

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use larder_core::{Ctx, Result};

use super::core::{Ask, Core, Found, Sight, Unusable, WHOLE_A_BATCH, coming_from};
use super::layout::{self, Map, Mark, Plan};

/// Elements by their shards: which of those asked for, and what they are called there.
type Grouped = BTreeMap<u16, (Vec<usize>, Vec<Bytes>)>;

/// What a reading of all shards found.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) count: u64,
    /// The most elements of one shard, and which one.
    pub(super) largest: (u64, u16),
    pub(super) elements: Vec<(Bytes, Bytes)>,
}

impl Core {
    /// The values of elements. **Round trips: 1**; where elements are being moved, 2 more for those whose shard nothing came to yet or
    /// whose map is old.
    pub(super) async fn get(&self, names: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        Ok(self.find(self.deadline(), names).await?.into_iter().map(|(value, _)| value).collect())
    }

    /// The same, each with the version of the ends that stands in its shard.
    pub(super) async fn find(&self, deadline: Instant, names: &[Bytes]) -> Result<Vec<(Option<Bytes>, u64)>> {
        self.check()?;
        let ctx = Ctx { deadline: Some(deadline) };
        let mut out = vec![(None, 0); names.len()];
        let mut todo: Vec<usize> = (0..names.len()).collect();
        let mut strikes = 0;
        while !todo.is_empty() {
            let plan = self.plan();
            let groups = match self.grouped(&plan.map, names, &todo) {
                // More shards may have been made since.
                Err(error) if self.params.is_dense && strikes == 0 => {
                    strikes += 1;
                    let now = self.refresh(ctx).await?;
                    if now == plan {
                        return Err(error);
                    }
                    continue;
                }
                groups => groups?,
            };
            todo.clear();
            let from = coming_from(&plan);
            let (mut unusable, mut unfilled) = (Unusable::default(), Vec::new());
            for (shard, at, sight) in self.look_for(ctx, &plan.map, groups).await? {
                match (sight.mark, sight.found) {
                    (Mark::Live, Found::Values(values)) => {
                        at.iter().zip(values).for_each(|(&at, value)| out[at] = (value, sight.seen))
                    }
                    (Mark::Unfilled, _) if from.is_some() => unfilled.extend(at),
                    (mark, _) => {
                        unusable.add(shard, mark);
                        todo.extend(at);
                    }
                }
            }
            if let (false, Some(from)) = (unfilled.is_empty(), from) {
                // The map in force has room for all of them: the others are numbers behind the end of the old one, and were never there.
                unfilled.retain(|&at| self.place(&from, &names[at]).is_ok());
                let groups = self.grouped(&from, names, &unfilled)?;
                unfilled.clear();
                for (source, at, sight) in self.look_for(ctx, &from, groups).await? {
                    match (sight.mark, sight.found) {
                        (Mark::Live | Mark::Sealed, Found::Values(values)) => {
                            at.iter().zip(values).for_each(|(&at, value)| out[at] = (value, sight.seen))
                        }
                        // It was filled meanwhile, and what it came from removed.
                        _ => {
                            unusable.stuck = Some(source);
                            unfilled.extend(at);
                        }
                    }
                }
            }
            todo.extend(unfilled);
            if !todo.is_empty() {
                self.look_again(ctx, &plan, &unusable, &mut strikes).await?;
            }
        }
        self.check()?;
        Ok(out)
    }

    /// Elements by their shards: which of `names`, and what they are called there.
    fn grouped(&self, map: &Map, names: &[Bytes], of: &[usize]) -> Result<Grouped> {
        let mut groups = Grouped::new();
        for &at in of {
            let (shard, stored) = self.place(map, &names[at])?;
            let group = groups.entry(shard).or_default();
            group.0.push(at);
            group.1.push(stored);
        }
        Ok(groups)
    }

    async fn look_for(&self, ctx: Ctx, map: &Map, groups: Grouped) -> Result<Vec<(u16, Vec<usize>, Sight)>> {
        let (mut places, mut asks) = (Vec::with_capacity(groups.len()), Vec::with_capacity(groups.len()));
        for (shard, (at, stored)) in groups {
            places.push((shard, at));
            asks.push((shard, Ask::Names(stored)));
        }
        let sights = self.look(ctx, map, &asks).await?;
        Ok(places.into_iter().zip(sights).map(|((shard, at), sight)| (shard, at, sight)).collect())
    }

    /// Reads all shards, or counts what is in them. Begun anew where the map changes meanwhile: two maps count an element in different shards.
    ///
    /// **Round trips: 1** for every 1,024 shards, 128 that are read whole; and 1 more for those that nothing came to yet.
    pub(super) async fn sweep(&self, whole: bool) -> Result<Sweep> {
        self.check()?;
        'anew: loop {
            let plan = self.plan();
            let mut sweep = Sweep::default();
            let shards: Vec<u16> = (0..plan.map.shards).collect();
            for part in shards.chunks(WHOLE_A_BATCH * if whole { 1 } else { 8 }) {
                // As long for each part: there may be many.
                let ctx = Ctx { deadline: Some(self.deadline()) };
                // Of each part, too: while others fill shards, every part may meet one that is filled at that moment.
                let (mut todo, mut strikes) = (part.to_vec(), 0);
                while !todo.is_empty() {
                    let (left, unusable) = self.sweep_some(ctx, &plan, &todo, whole, &mut sweep).await?;
                    todo = left;
                    if !todo.is_empty() {
                        self.look_again(ctx, &plan, &unusable, &mut strikes).await?;
                        if self.plan() != plan {
                            continue 'anew;
                        }
                    }
                }
            }
            self.check()?;
            return Ok(sweep);
        }
    }

    /// Those that are to be looked at again, and why.
    async fn sweep_some(
        &self,
        ctx: Ctx,
        plan: &Plan,
        shards: &[u16],
        whole: bool,
        sweep: &mut Sweep,
    ) -> Result<(Vec<u16>, Unusable)> {
        let asks: Vec<(u16, Ask)> =
            shards.iter().map(|&shard| (shard, if whole { Ask::All } else { Ask::Count })).collect();
        let (mut left, mut unusable, mut unfilled) = (Vec::new(), Unusable::default(), Vec::new());
        for (&shard, sight) in shards.iter().zip(self.look(ctx, &plan.map, &asks).await?) {
            match sight.mark {
                Mark::Live => self.tally(&plan.map, shard, sight.found, sweep)?,
                Mark::Unfilled => unfilled.push(shard),
                mark => {
                    left.push(shard);
                    unusable.add(shard, mark);
                }
            }
        }
        let Some(from) = coming_from(plan) else {
            unfilled.iter().for_each(|&shard| unusable.add(shard, Mark::Unfilled));
            left.extend(unfilled);
            return Ok((left, unusable));
        };
        if !unfilled.is_empty() {
            let sources = self.sources(ctx, &plan.map, &from, &unfilled).await?;
            for shard in unfilled {
                match self.gathered(&plan.map, &from, shard, &sources)? {
                    Ok(elements) => self.tally(&plan.map, shard, Found::All(elements), sweep)?,
                    Err(source) => {
                        unusable.stuck = Some(source);
                        left.push(shard);
                    }
                }
            }
        }
        Ok((left, unusable))
    }

    fn tally(&self, map: &Map, shard: u16, found: Found, sweep: &mut Sweep) -> Result<()> {
        let count = match found {
            Found::Count(count) => count,
            Found::All(all) => {
                let count = all.iter().filter(|(_, value)| layout::counts(self.of, value)).count() as u64;
                for (stored, value) in all {
                    let name = self.named(map, shard, &stored)?;
                    sweep.elements.extend(name.map(|name| (name, value)));
                }
                count
            }
            Found::Values(_) => 0,
        };
        sweep.count += count;
        if count >= sweep.largest.0 {
            sweep.largest = (count, shard);
        }
        Ok(())
    }
}
