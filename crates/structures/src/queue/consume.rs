//! Taking items: claims, acknowledgements and what is given back, many callers' in one conditional write of the state.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, Ttl, ambient};

use super::engine::{Engine, View};
use super::layout::{CLAIMS_MAX, Content, GIVEN_BACK, MARKS_MAX, Mark, Open, Record, State};
use super::leases::{Claimed, Lease};
use super::plan::{self, Order, Pick, SEGMENTS_AT_ONCE, Shelf};
use super::removal::Removals;
use super::request::{Answer, Asked, LOOK_WAIT, LOOK_WAIT_MAX, Request};
use crate::cell::Wrote;
use crate::combine::Driver;
use crate::events;
use crate::ids::random_id;
use crate::retry::Backoff;
use crate::wait::{WATCHED_MAX, Watched};

/// How many steps one call may take in all; most are tries that met with others.
const STEPS_MAX: usize = 512;
/// How often it may fail, in a way that passes, while nothing is in doubt.
const FAULTS_MAX: u32 = 8;
/// How many segments that were drained are looked at on the way.
const DRAINED_AT_ONCE: usize = 4;
/// How many markers of claims that have ended are removed on the way.
const MARKERS_REMOVED_AT_ONCE: usize = 32;
/// Markers beyond this are left to end by themselves.
const MARKERS_KEPT_MAX: usize = 4_096;

/// What a caller wants.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Tells it from the others of the same write.
    pub(super) ticket: u64,
    pub(super) what: What,
    pub(super) deadline: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// An item, for as long as its marker lives: under this id, or under another where the call has sent a write that is in doubt.
    Claim {
        id: u64,
        life: Duration,
        /// So long who gets it counts on it.
        term: Duration,
    },
    /// An item, for good.
    Pop,
    Ack {
        id: u64,
    },
    Release {
        id: u64,
    },
    /// Notes that a caller has heard of so many losses: nobody else is to be told of them.
    Heard {
        losses: u64,
    },
}

/// What a caller gets.
#[derive(Clone, Debug)]
pub(super) enum Given {
    /// Where it is claimed, with that.
    Item {
        bytes: Bytes,
        attempts: u32,
        claim: Option<Claimed>,
    },
    Nothing,
    /// Nothing, as far as is known: but a segment is gone, and what became of it is not known yet; or one cannot be looked at. It is to be asked for again in a moment.
    Doubt,
    /// A claim that is given up, for its lease is not known to be stored, or is over: it is to be asked for again, under another id.
    Unmarked(Error),
    Done,
    /// The losses that the state counts, so many, are to be told: this is the last of them.
    Loss {
        what: String,
        losses: u64,
    },
}

pub(super) type Outcomes = Arc<HashMap<u64, Result<Given>>>;

/// Takes items through one handle.
pub(super) struct Consumer {
    pub(super) engine: Arc<Engine>,
    writer: u64,
    /// The last sequence that was given to a write.
    seq: u64,
    /// `None`: the state must be read.
    pub(super) view: Option<View>,
    /// True if the view was read in this call.
    is_fresh: bool,
    pub(super) shelf: Shelf,
    pub(super) removals: Removals,
    /// Claims whose markers are gone.
    pub(super) expired: HashSet<u64>,
    /// Claims whose markers were looked for in this call.
    checked: HashSet<u64>,
    /// Claims that have ended, and whose markers may still be there.
    ended: Vec<u64>,
    /// Claims of this call whose writes came too late: their markers are there.
    tried: Vec<u64>,
    /// Writes of this call of which it is not known whether they landed.
    pub(super) sent: Vec<Sent>,
    /// True once there was one in this call: what it puts may come late, so no later write puts the same.
    is_in_doubt: bool,
    /// Of the claims that these make, those whose markers were asked for by the read that the view is of, and whether they were found.
    pub(super) marked: HashMap<u64, bool>,
    /// What this call came to, once its write has landed: whoever drops it after that leaves nothing to be done again.
    settled: Option<Outcomes>,
    /// Why the last look at all there is, before somebody is told that there is nothing, did not see all of it.
    missed: Option<Error>,
    /// From when on segments are looked at on the way again.
    pub(super) looks_from: Option<Instant>,
}

/// A write that may have landed.
pub(super) struct Sent {
    seq: u64,
    /// The state's sequence that it is conditional on.
    base: u64,
    outcomes: Outcomes,
    pub(super) leases: Vec<Lease>,
}

/// What one write would do.
pub(super) struct Plan {
    pub(super) state: State,
    outcomes: HashMap<u64, Result<Given>>,
    /// Of the claims that it makes.
    leases: Vec<Lease>,
    /// Claims that it ends.
    ended: Vec<u64>,
    /// How many of the losses that the state counts need not be told by it any more.
    told: u64,
    /// True if somebody is told no: that takes a state that was read in this call.
    is_no: bool,
    /// True if somebody is told that there is nothing: that takes a look at every claim's marker.
    is_empty: bool,
}

pub(super) enum Step {
    Done(Outcomes),
    Again,
    Conflict,
}

/// How much is looked at on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// With a write, or a read of the state alone.
    Few,
    /// With a read of segments.
    Some,
    /// Before anybody is told that there is nothing.
    All,
}

impl Looks {
    /// At how many claims' markers.
    fn markers(self) -> usize {
        match self {
            Looks::Few => 4,
            Looks::Some => 32,
            Looks::All => CLAIMS_MAX,
        }
    }

    /// For how long it is waited for when the rest is there.
    fn wait(self) -> Duration {
        match self {
            Looks::Few | Looks::Some => LOOK_WAIT,
            Looks::All => LOOK_WAIT_MAX,
        }
    }
}

impl Driver for Consumer {
    type Change = Change;
    type Outcome = Outcomes;

    fn weight(_: &Change) -> usize {
        1
    }

    async fn apply(&mut self, changes: &[Change], interrupted: bool) -> Result<Outcomes> {
        match self.settled.take() {
            Some(outcomes) if interrupted => {
                let overdue = Claimed::overdue(&outcomes);
                return Ok(self.give_up(outcomes, overdue));
            }
            _ => {}
        }
        if !interrupted {
            self.sent.clear();
            self.is_in_doubt = false;
        }
        self.is_fresh = false;
        self.checked.clear();
        self.shelf.begin(self.view.as_ref().map(|view| &view.state));
        let deadline = changes.iter().map(|change| change.deadline).max().unwrap_or_else(ambient::now);
        let outcome = self.settle(changes, deadline).await;
        let tried = std::mem::take(&mut self.tried);
        let outcomes = outcome.map_err(|error| {
            let is_unknown = !self.sent.is_empty();
            error.effect(if is_unknown { Effect::Unknown } else { Effect::NotApplied })
        })?;
        self.end_markers(tried);
        let is_empty = outcomes.values().any(|outcome| matches!(outcome, Ok(Given::Nothing)));
        self.settled = Some(outcomes.clone());
        // Each of them has an answer that is known.
        let deadline = changes.iter().map(|change| change.deadline).min().unwrap_or(deadline);
        self.clear_up(Ctx { deadline: Some(deadline) }, Claimed::first_end(&outcomes)).await;
        if is_empty {
            self.engine.note_sight(self.sight());
        }
        let overdue = Claimed::overdue(&outcomes);
        Ok(self.give_up(outcomes, overdue))
    }
}

impl Consumer {
    pub(super) fn new(engine: Arc<Engine>, view: View) -> Consumer {
        let writer = random_id();
        let removals = Removals::new(writer, engine.may_evict(), engine.timeout);
        Consumer {
            engine,
            writer,
            seq: 0,
            view: Some(view),
            is_fresh: false,
            shelf: Shelf::default(),
            removals,
            expired: HashSet::new(),
            checked: HashSet::new(),
            ended: Vec::new(),
            tried: Vec::new(),
            sent: Vec::new(),
            is_in_doubt: false,
            marked: HashMap::new(),
            settled: None,
            missed: None,
            looks_from: None,
        }
    }

    /// What there being nothing to take was seen from: the state, the tail, and segments that were passed, where a late push may go. What is not among them
    /// (a lease that runs out, a segment too many) is found by a look.
    fn sight(&self) -> Vec<Watched> {
        let Some(View { state, cas }) = &self.view else { return Vec::new() };
        let mut sight = vec![Watched::new(&self.engine.cell.read_op(), Some(*cas))];
        let passed = state.records.iter().rev().map(|record| record.segment).filter(|&segment| segment != state.tail);
        for segment in std::iter::once(state.tail).chain(passed).take(WATCHED_MAX - 1) {
            if let Some(content) = self.shelf.get(segment).and_then(|seen| seen.content.as_ref())
                && let Ok(read) = self.engine.segment_read(content.incarnation)
            {
                sight.push(Watched::new(&read, content.cas));
            }
        }
        sight
    }

    async fn settle(&mut self, changes: &[Change], deadline: Instant) -> Result<Outcomes> {
        let ctx = Ctx { deadline: Some(deadline) };
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        let (mut faults, mut conflicts, mut last) = (0, 0u32, None);
        for _ in 0..STEPS_MAX {
            let mut must_pause = false;
            match self.step(ctx, changes).await {
                Ok(Step::Done(outcomes)) => return Ok(outcomes),
                Ok(Step::Again) => {}
                Ok(Step::Conflict) => {
                    conflicts += 1;
                    events::conflict(self.engine.vigil.subject());
                    must_pause = conflicts > 1;
                }
                Err(error) => {
                    faults += 1;
                    self.view = None;
                    let may_pass = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
                        || (error.is_unknown() && error.kind() != ErrorKind::Conflict);
                    if !may_pass || (self.sent.is_empty() && faults >= FAULTS_MAX) {
                        return Err(error);
                    }
                    events::retry(self.engine.vigil.subject(), error.kind());
                    last = Some(error);
                    must_pause = true;
                }
            }
            let pause = if must_pause { backoff.next_pause() } else { Duration::ZERO };
            if ambient::now() + pause >= deadline {
                break;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        Err(last.unwrap_or_else(|| {
            let detail = format!("others were first {conflicts} times; the limit is {STEPS_MAX} steps or the timeout");
            self.engine.named(ErrorKind::Conflict, &detail)
        }))
    }

    async fn step(&mut self, ctx: Ctx, changes: &[Change]) -> Result<Step> {
        self.is_in_doubt |= !self.sent.is_empty();
        if self.view.is_none() || (!self.sent.is_empty() && !self.is_fresh) {
            self.read(ctx, &[], Looks::Few).await?;
        }
        if let Some(outcomes) = self.landed()? {
            return Ok(Step::Done(outcomes));
        }
        let Some(view) = self.view.clone() else { return Ok(Step::Again) };
        self.shelf.forget_unlinked(&view.state);
        self.removals.learn(self.engine.may_evict());
        self.removals.note_missed(&view.state, self.engine.order, &self.shelf);
        let mut plan = match self.plan(&view.state, changes, None) {
            Err(segments) => {
                self.read(ctx, &segments, Looks::Some).await?;
                return Ok(Step::Again);
            }
            Ok(plan) => plan,
        };
        // A marker that was found gone is not looked for again.
        let is_unchecked = |open: &Open| {
            let Open { claim, .. } = open;
            *claim != GIVEN_BACK && !self.checked.contains(claim) && !self.expired.contains(claim)
        };
        // Late pushes to segments that were passed are found by a look at them only.
        let is_unread = |record: &Record| !self.shelf.has_fresh(record.segment);
        let must_check =
            plan.is_empty && (view.state.opens.iter().any(is_unchecked) || plan.state.records.iter().any(is_unread));
        if must_check && let Some(error) = self.missed.take() {
            // What cannot be looked at keeps nobody from what there is.
            if !plan.gives() {
                return Err(error);
            }
            plan.doubt();
        } else if must_check || (plan.is_no && !self.is_fresh) {
            let segment = view.state.tail;
            self.read(ctx, &[segment], if must_check { Looks::All } else { Looks::Few }).await?;
            return Ok(Step::Again);
        }
        if plan.is_empty && self.removals.are_in_doubt(&plan.state, self.engine.order, &self.shelf) {
            plan.doubt();
        }
        if plan.state == view.state {
            return Ok(Step::Done(Arc::new(plan.outcomes)));
        }
        match self.fitted(&view.state, changes, plan)? {
            Some((plan, value)) => self.write(ctx, view, plan, value).await,
            None => {
                self.read(ctx, &[], Looks::Few).await?;
                Ok(Step::Again)
            }
        }
    }

    /// The plan, marked, and its bytes. If taking makes the state too large, that is refused, and the rest goes
    /// on without it. `None`: the state must be read first, to say so.
    pub(super) fn fitted(&mut self, base: &State, changes: &[Change], mut plan: Plan) -> Result<Option<(Plan, Bytes)>> {
        self.seq += 1;
        let mark = Mark { writer: self.writer, seq: self.seq };
        plan.state.mark(mark);
        let is_taking = |change: &Change| matches!(change.what, What::Claim { .. } | What::Pop);
        let full = match self.engine.encode(&plan.state, changes.iter().any(is_taking)) {
            Ok(value) => return Ok(Some((plan, value))),
            Err(_) if !self.is_fresh => return Ok(None),
            Err(full) => full,
        };
        let (true, Ok(mut rest)) = (changes.iter().any(is_taking), self.plan(base, changes, Some(&full))) else {
            return Err(full);
        };
        rest.state.mark(mark);
        let value = self.engine.encode(&rest.state, false)?;
        Ok(Some((rest, value)))
    }

    /// The outcomes of a write that was in doubt, if the state that was read shows it. Drops those that can't land any more.
    fn landed(&mut self) -> Result<Option<Outcomes>> {
        let Some(view) = self.view.as_ref().filter(|_| !self.sent.is_empty()) else { return Ok(None) };
        let state = &view.state;
        let last = state.last_of(self.writer);
        if let Some(at) = self.sent.iter().position(|sent| last == Some(sent.seq)) {
            if self.sent[at].leases.iter().any(|lease| !self.marked.contains_key(&lease.claim)) {
                // Whether they have their markers a read tells, which asks for those of the first.
                self.sent.swap(0, at);
                self.view = None;
                return Ok(None);
            }
            let Sent { outcomes, leases, .. } = self.sent.swap_remove(at);
            self.sent.clear();
            // Which of them this one made is not known here; what is left ends by itself.
            self.tried.clear();
            let unmarked = self.not_found(leases);
            return Ok(Some(self.give_up(outcomes, unmarked)));
        }
        // Each write since has one writer: fewer than are remembered cannot have pushed this one out.
        let is_forgotten = |sent: &Sent| last.is_none() && state.seq.saturating_sub(sent.base) > MARKS_MAX as u64;
        if self.sent.iter().any(is_forgotten) {
            let detail = format!(
                "the reply to a write was lost, and more than {MARKS_MAX} others have written since: whether it took effect \
                 cannot be told any more"
            );
            return Err(self.engine.named(ErrorKind::Conflict, &detail).effect(Effect::Unknown));
        }
        // What is conditional on a state that was overtaken never lands.
        self.sent.retain(|sent| sent.base == state.seq);
        Ok(None)
    }

    /// Works out what the changes come to; with `full`, nothing is taken, and this is said instead. `Err`: these segments must be
    /// read first.
    pub(super) fn plan(&self, base: &State, changes: &[Change], full: Option<&Error>) -> Result<Plan, Vec<u64>> {
        let mut plan = Plan {
            state: base.clone(),
            outcomes: HashMap::with_capacity(changes.len()),
            leases: Vec::new(),
            ended: Vec::new(),
            told: self.engine.heard(),
            is_no: false,
            is_empty: false,
        };
        plan::tidy(&mut plan.state, self.engine.order, &self.shelf, &self.removals);
        for change in changes {
            let is_taking = matches!(change.what, What::Claim { .. } | What::Pop);
            if let Some(full) = full.filter(|_| is_taking) {
                plan.outcomes.insert(change.ticket, Err(full.clone().effect(Effect::NotApplied)));
                continue;
            }
            let outcome = match change.what {
                What::Ack { id } => plan.end(id, None),
                What::Release { id } => plan.end(id, Some(GIVEN_BACK)),
                What::Claim { id, life, term } => {
                    let id = if self.is_in_doubt { random_id() } else { id };
                    let outcome = self.next(&mut plan, Some(Claimed::now(id, term)))?;
                    if matches!(outcome, Ok(Given::Item { .. })) {
                        plan.leases.push(Lease { ticket: change.ticket, claim: id, life });
                    }
                    outcome
                }
                What::Pop => self.next(&mut plan, None)?,
                What::Heard { losses } => {
                    plan.state.told = plan.state.told.max(losses.min(plan.state.found));
                    Ok(Given::Done)
                }
            };
            let outcome = outcome.map_err(|(kind, detail)| self.engine.named(kind, &detail));
            plan.outcomes.insert(change.ticket, outcome);
        }
        self.removals.intend(&mut plan.state, self.engine.order, &self.shelf);
        Ok(plan)
    }

    /// Takes the next item. `Err`: these segments must be read first.
    fn next(&self, plan: &mut Plan, claim: Option<Claimed>) -> Result<Outcome, Vec<u64>> {
        let state = &mut plan.state;
        let is_waiting = |open: &Open| open.claim == GIVEN_BACK || self.expired.contains(&open.claim);
        // Then no item may be claimed that nobody has claimed before.
        let again_only = claim.is_some() && state.opens.len() >= CLAIMS_MAX;
        if again_only && !state.opens.iter().any(is_waiting) {
            (plan.is_no, plan.is_empty) = (true, true);
            let detail =
                format!("{} claims are open; the limit is {CLAIMS_MAX}: acknowledge some first", state.opens.len());
            return Ok(Err((ErrorKind::Full, detail)));
        }
        let found = state.found;
        Ok(match plan::pick(self.engine.order, state, &self.shelf, &self.expired, plan.told, again_only) {
            Pick::Read(segments) => return Err(segments),
            Pick::Lost(what) => {
                plan.told = state.found;
                // Whoever hears of this one hears of all before it: those it was told to with this write may have given up.
                let all = state.found.saturating_sub(self.engine.heard().max(state.told));
                let what = match all {
                    0 | 1 => what,
                    all => format!("{what}; with it, {all} losses were found that nobody is known to have heard of"),
                };
                // What was found before may have been told by another since.
                plan.is_no |= state.found == found;
                Ok(Given::Loss { what, losses: state.found })
            }
            Pick::Nothing => {
                (plan.is_no, plan.is_empty) = (true, true);
                Ok(Given::Nothing)
            }
            Pick::Item { bytes, segment, ordinal, attempts } => {
                match claim {
                    Some(Claimed { id: claim, .. }) => state.opens.push(Open { segment, ordinal, claim, attempts }),
                    None => state.acked += 1,
                }
                Ok(Given::Item { bytes, attempts, claim })
            }
        })
    }

    /// Reads the state, these segments, and what else is worth a look, which may fail. **Round trips: 1.**
    async fn read(&mut self, ctx: Ctx, segments: &[u64], looks: Looks) -> Result<()> {
        let mut request = Request::default();
        request.add(Asked::State, self.engine.cell.read_op());
        self.ask_for_own(&mut request)?;
        // Not all of many segments need be read at once: the first come first.
        let ops_max = self.engine.store.profile().batch_ops_max;
        for &segment in segments.iter().take(ops_max.saturating_sub(request.batch.len()).max(1)) {
            self.ask(&mut request, segment)?;
        }
        let ops_max = ops_max.max(request.batch.len());
        request.need_these();
        self.ask_ahead(&mut request, segments)?;
        self.look_on_the_way(&mut request, looks)?;
        request.truncate(ops_max);
        // What is found missing is judged by what was known when it was asked for.
        let known = self.known();
        let newest = self.engine.newest();
        let (mut marked, mut missed) = (HashMap::new(), None);
        for Answer { asked, is_needed, reply } in self.ask_for(ctx, request, looks.wait()).await {
            match asked {
                Asked::State => {
                    self.view = Some(self.engine.view(reply, newest)?);
                    self.is_fresh = true;
                }
                Asked::Own(claim) => _ = marked.insert(claim, reply? != Reply::Miss),
                asked => match self.learn(asked, reply, known) {
                    Err(error) if is_needed => return Err(error),
                    learned => missed = missed.or(learned.err()),
                },
            }
        }
        self.marked = marked;
        self.missed = missed.filter(|_| looks == Looks::All);
        Ok(())
    }

    /// Reads the state and segments again. **Round trips: 1.**
    pub(super) async fn read_again(&mut self, ctx: Ctx, segments: &[u64]) -> Result<()> {
        self.read(ctx, segments, Looks::Few).await
    }

    /// Adds a read of a segment; of its link, where its incarnation is not known.
    fn ask(&self, request: &mut Request, segment: u64) -> Result<()> {
        let known = self.view.as_ref().and_then(|view| self.shelf.incarnation(&view.state, segment));
        match known {
            Some(incarnation) => request.add(Asked::Segment(segment), self.engine.segment_read(incarnation)?),
            None => request.add(Asked::Link(segment), self.engine.link_read(segment)?),
        }
        Ok(())
    }

    /// Adds a read of the link of the segment that comes next: so nobody waits for it when it does.
    fn ask_ahead(&self, request: &mut Request, segments: &[u64]) -> Result<()> {
        let (Some(view), [segment]) = (&self.view, segments) else { return Ok(()) };
        let state = &view.state;
        let next = match self.engine.order {
            Order::Fifo => Some(segment + 1).filter(|&next| next < state.tail),
            Order::Lifo => state.record_at(*segment).and_then(|at| state.records[at].below.segment),
        };
        match next.filter(|&next| self.may_look() && self.shelf.incarnation(state, next).is_none()) {
            Some(next) => self.ask(request, next),
            None => Ok(()),
        }
    }

    /// The tail and the sequence of the state that is known now.
    pub(super) fn known(&self) -> (u64, u64) {
        self.view.as_ref().map_or((0, u64::MAX), |view| (view.state.tail, view.state.seq))
    }

    /// Adds reads of segments that may be removed, and of claims' markers.
    fn look_on_the_way(&self, request: &mut Request, looks: Looks) -> Result<()> {
        let Some(view) = &self.view else { return Ok(()) };
        let state = &view.state;
        let is_wanted = |at: &usize| {
            let segment = state.records[*at].segment;
            let is_asked =
                |asked: &Asked| matches!(asked, Asked::Segment(other) | Asked::Link(other) if *other == segment);
            let is_known = self.shelf.get(segment).is_some();
            let is_drained = || plan::is_drained(state, self.engine.order, *at);
            // Where there may be nothing to take, all that were passed are looked at: a late push may have gone there.
            let is_wanted = match looks {
                Looks::Few => !is_known && is_drained(),
                Looks::Some => !self.shelf.has_fresh(segment) && is_drained(),
                Looks::All => !self.shelf.has_fresh(segment),
            };
            is_wanted && !request.asked.iter().any(is_asked)
        };
        let wanted = (0..state.records.len()).filter(is_wanted).map(|at| state.records[at].segment);
        let on_the_way = if self.may_look() { DRAINED_AT_ONCE } else { 0 };
        let max = if looks == Looks::All { SEGMENTS_AT_ONCE } else { on_the_way };
        for segment in wanted.take(max).collect::<Vec<_>>() {
            self.ask(request, segment)?;
        }
        let unknown = |claim: &u64| !self.expired.contains(claim) && !self.checked.contains(claim);
        let claims: Vec<u64> =
            state.opens.iter().map(|open| open.claim).filter(|&claim| claim != GIVEN_BACK).filter(unknown).collect();
        let markers = looks.markers();
        let from = if markers < claims.len() { fastrand::usize(0..claims.len()) } else { 0 };
        for &claim in claims.iter().cycle().skip(from).take(markers.min(claims.len())) {
            let get = self.engine.marker(claim, |key| Op::get(key, larder_core::Want::empty()))?;
            request.add(Asked::Marker(claim), get);
        }
        Ok(())
    }

    /// Takes in what was looked at on the way.
    fn learn(&mut self, asked: Asked, reply: Result<Reply>, known: (u64, u64)) -> Result<()> {
        match asked {
            Asked::Segment(segment) => {
                let item = reply?.into_item();
                let content = match item.map(|item| Content::parse(segment, &item, self.writer)) {
                    // Nothing of it is left that anybody wants: what stands in its place must not keep others from the rest.
                    Some(Err(_)) if self.is_drained(segment) => None,
                    content => content.transpose()?,
                };
                self.shelf.keep(segment, content, known.0, known.1);
            }
            Asked::Link(segment) => match self.engine.linked(segment, reply?)? {
                Some(incarnation) => self.shelf.link(segment, incarnation),
                None => self.shelf.keep_unlinked(segment, known.0, known.1),
            },
            Asked::Marker(claim) => {
                let is_gone = reply? == Reply::Miss;
                self.checked.insert(claim);
                if is_gone {
                    self.expired.insert(claim);
                }
            }
            Asked::State | Asked::Own(_) | Asked::Other => {}
        }
        Ok(())
    }

    fn is_drained(&self, segment: u64) -> bool {
        let state = self.view.as_ref().map(|view| &view.state);
        state.is_some_and(|state| {
            state.record_at(segment).is_some_and(|at| plan::is_drained(state, self.engine.order, at))
        })
    }

    /// Writes the plan, and does on the way what costs no round trip. **Round trips: 1.**
    pub(super) async fn write(&mut self, ctx: Ctx, view: View, plan: Plan, value: Bytes) -> Result<Step> {
        let Plan { outcomes, leases, ended, .. } = plan;
        let outcomes: Outcomes = Arc::new(outcomes);
        let mut request = Request::default();
        for lease in &leases {
            request.add(Asked::Other, self.engine.marker_put(lease.claim, lease.life)?);
        }
        let at = request.batch.len();
        request.batch.extend(self.engine.cell.put_ops(PutMode::Cas(view.cas), value.clone(), Ttl::Never));
        request.asked.extend([Asked::State, Asked::State]);
        request.need_these();
        self.remove_markers(&mut request)?;
        self.look_on_the_way(&mut request, Looks::Few)?;
        request.truncate(self.engine.store.profile().batch_ops_max.max(at + 2));
        let (known, newest) = (self.known(), self.engine.newest());
        // Whoever drops this future midway leaves a write that is in doubt, and a state that must be read.
        let base = view.state.seq;
        self.sent.push(Sent { seq: self.seq, base, outcomes: outcomes.clone(), leases: leases.clone() });
        self.view = None;
        self.marked.clear();
        let mut answers = self.ask_for(ctx, request, LOOK_WAIT).await.into_iter();
        let mut next = || answers.next().map_or_else(|| Err(larder_core::ext::no_reply()), |answer| answer.reply);
        let refused = |lease: &Lease| Some(lease.given_up(self.refused(next())?));
        let unmarked: Vec<_> = leases.iter().filter_map(refused).collect();
        // What was not heard of may come late, also where the write itself is known not to have landed.
        self.is_in_doubt |= !unmarked.is_empty();
        let wrote = Wrote::new(&value, next(), next());
        for Answer { asked, reply, .. } in answers {
            // What is only looked at on the way may fail.
            _ = self.learn(asked, reply, known);
        }
        if let Ok(Some(item)) = wrote.now {
            self.view = Some(self.engine.view(Ok(Reply::Item(item)), newest)?);
            self.is_fresh = true;
        }
        match wrote.landed {
            Ok(true) => {
                let outcomes = self.give_up(outcomes, unmarked);
                self.settled = Some(self.settled.take().unwrap_or_else(|| outcomes.clone()));
                self.sent.clear();
                self.tried.retain(|tried| !leases.iter().any(|lease| lease.claim == *tried));
                self.end_markers(ended);
                self.forget_claims();
                Ok(Step::Done(outcomes))
            }
            Ok(false) => {
                self.sent.pop();
                self.tried.extend(leases.iter().map(|lease| lease.claim));
                Ok(Step::Conflict)
            }
            Err(error) => {
                if !error.is_unknown() {
                    self.sent.pop();
                }
                Err(error)
            }
        }
    }

    /// Adds the removal of markers of claims that have ended.
    fn remove_markers(&mut self, request: &mut Request) -> Result<()> {
        let from = self.ended.len().saturating_sub(MARKERS_REMOVED_AT_ONCE);
        for claim in self.ended.drain(from..).collect::<Vec<_>>() {
            request.add(Asked::Other, self.engine.marker(claim, Op::delete)?);
        }
        Ok(())
    }

    /// Notes markers that a later write removes.
    pub(super) fn end_markers(&mut self, claims: impl IntoIterator<Item = u64>) {
        self.ended.extend(claims);
        self.ended.sort_unstable();
        self.ended.dedup();
        self.ended.truncate(MARKERS_KEPT_MAX);
    }

    /// Forgets what is known of claims that are over.
    fn forget_claims(&mut self) {
        if let Some(view) = &self.view
            && !self.expired.is_empty()
        {
            let open: HashSet<u64> = view.state.opens.iter().map(|open| open.claim).collect();
            self.expired.retain(|claim| open.contains(claim));
        }
    }
}

/// What one caller gets, before the error is worded.
type Outcome = Result<Given, (ErrorKind, String)>;

impl Plan {
    /// True if it does something for somebody: more than to say no.
    fn gives(&self) -> bool {
        self.outcomes.values().any(|outcome| !matches!(outcome, Ok(Given::Nothing) | Err(_)))
    }

    /// Nobody is told that there is nothing while it is open what became of a segment that is gone, or cannot be looked at: a late push may have gone there, and be lost. All else goes on.
    fn doubt(&mut self) {
        for outcome in self.outcomes.values_mut() {
            if matches!(outcome, Ok(Given::Nothing)) {
                *outcome = Ok(Given::Doubt);
            }
        }
    }

    /// Ends a claim: the item is done with, or given back.
    fn end(&mut self, id: u64, back: Option<u64>) -> Outcome {
        let Some(at) = self.state.opens.iter().position(|open| open.claim == id) else {
            self.is_no = true;
            let detail = format!(
                "nothing is claimed as {id:016x}: it was acknowledged already, or its lease ran out and the item was given to another"
            );
            return Err((ErrorKind::Fenced, detail));
        };
        match back {
            Some(nobody) => self.state.opens[at].claim = nobody,
            None => {
                self.state.opens.swap_remove(at);
                self.state.acked += 1;
            }
        }
        self.ended.push(id);
        Ok(Given::Done)
    }
}

#[cfg(test)]
#[path = "consume_tests.rs"]
mod tests;
