//! Many callers at once share a pipeline.
//!
//! The client crate takes each request through a bounded channel and brings each reply through another, which costs more than the request itself. Where so many are
//! under way that others wait anyway, the commands of all who come in the same moment go out as one request, in their order, and their replies are dealt out to them.
//! Who is alone is not held up: below [`CROWD`] everybody sends for himself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use redis::Pipeline;
use tokio::sync::oneshot;

use crate::link::{Fault, Lines, Values};

/// From so many callers under way on, those who come share pipelines.
const CROWD: usize = 8;
/// The most callers that share one: its replies are dealt out when the last has come.
const RIDERS_MAX: usize = 64;
/// Who has more commands than these sends them alone.
const COMMANDS_MAX: usize = 16;
/// Who has more bytes than these to send sends them alone: those who came along would wait until they have gone over the wire.
const BYTES_MAX: usize = 64 * 1024;
/// A party that has so many bytes leaves, for the same reason.
const PARTY_BYTES_MAX: usize = 256 * 1024;

/// Who is under way on a connection, and who is about to leave.
#[derive(Default)]
pub(crate) struct Gather {
    under_way: AtomicUsize,
    /// Never held across an await.
    next: Mutex<Party>,
}

/// Callers whose commands leave together.
#[derive(Default)]
pub(crate) struct Party {
    pub(crate) pipeline: Pipeline,
    /// The last deadline of those who share it: then nobody waits for it any more.
    pub(crate) deadline: Option<Instant>,
    riders: Vec<Rider>,
    bytes: usize,
}

struct Rider {
    ops: usize,
    told: oneshot::Sender<Result<Values, Fault>>,
}

/// What somebody who joined must do.
pub(crate) enum Joined {
    /// See to it that the party leaves, when all who are ready have joined.
    First,
    /// Send the party now: it is full.
    Full(Party),
    /// Wait.
    Rides,
}

/// A caller under way, until it is dropped.
pub(crate) struct Traveller<'a>(&'a Gather);

impl Drop for Traveller<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gather {
    /// Counts a caller in. True if it should share a pipeline with others.
    pub(crate) fn enter(&self, lines: &Lines<'_>) -> (Traveller<'_>, bool) {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        (Traveller(self), others >= CROWD && lines.len() <= COMMANDS_MAX && lines.bytes() <= BYTES_MAX)
    }

    /// Adds a caller's commands to the party that leaves next.
    pub(crate) fn join(
        &self,
        lines: Lines<'_>,
        deadline: Instant,
    ) -> (Joined, oneshot::Receiver<Result<Values, Fault>>) {
        let (told, tells) = oneshot::channel();
        let (ops, bytes) = (lines.len(), lines.bytes());
        let mut party = self.next.lock();
        lines.add_to(&mut party.pipeline);
        party.deadline = party.deadline.max(Some(deadline));
        party.riders.push(Rider { ops, told });
        party.bytes += bytes;
        let joined = match party.riders.len() {
            // No rider has as many bytes as make a party full.
            1 => Joined::First,
            riders if riders == RIDERS_MAX || party.bytes >= PARTY_BYTES_MAX => {
                Joined::Full(std::mem::take(&mut *party))
            }
            _ => Joined::Rides,
        };
        (joined, tells)
    }

    /// The party that leaves now; empty if it left already, since it was full.
    pub(crate) fn depart(&self) -> Party {
        std::mem::take(&mut *self.next.lock())
    }
}

impl Party {
    /// True if somebody waits for it still.
    pub(crate) fn is_awaited(&self) -> bool {
        self.riders.iter().any(|rider| !rider.told.is_closed())
    }

    /// Deals out what came. One reply a command, or the same fault to all.
    pub(crate) fn tell(self, answered: Result<Values, Fault>) {
        let mut values = answered.map(IntoIterator::into_iter);
        for Rider { ops, told } in self.riders {
            let own = match &mut values {
                Ok(values) => Ok(values.by_ref().take(ops).collect()),
                Err(fault) => Err(fault.clone()),
            };
            // One who stopped waiting is told nothing.
            _ = told.send(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::{Value, cmd};

    use super::*;

    #[test]
    fn everybody_gets_the_replies_to_their_own_commands() {
        let gather = Gather::default();
        let soon = Instant::now();
        let (one, two) = (cmd("GET"), cmd("SET"));
        let (first, mut a) = gather.join(Lines::Some(&[&one]), soon);
        let (second, b) = gather.join(Lines::Some(&[&two, &one]), soon);
        let (_, mut c) = gather.join(Lines::Some(&[&one]), soon);
        assert!(matches!((first, second), (Joined::First, Joined::Rides)));
        // One who left costs nobody else a reply.
        drop(b);
        let party = gather.depart();
        assert_eq!(party.pipeline.len(), 4);
        party.tell(Ok((0..4).map(Value::Int).collect()));
        assert_eq!(a.try_recv().unwrap().unwrap().to_vec(), [Value::Int(0)]);
        assert_eq!(c.try_recv().unwrap().unwrap().to_vec(), [Value::Int(3)]);
        assert_eq!(gather.depart().pipeline.len(), 0);
    }

    #[test]
    fn a_party_is_awaited_until_the_last_of_its_riders_has_left_or_may_not_wait_longer() {
        let (gather, get, now) = (Gather::default(), cmd("GET"), Instant::now());
        let later = now + Duration::from_secs(1);
        let (_, a) = gather.join(Lines::Some(&[&get]), later);
        let (_, b) = gather.join(Lines::Some(&[&get]), now);
        let party = gather.depart();
        assert_eq!(party.deadline, Some(later));
        drop(a);
        assert!(party.is_awaited());
        drop(b);
        assert!(!party.is_awaited());
        assert_eq!(gather.depart().deadline, None);
    }

    #[test]
    fn a_full_party_leaves_at_once_and_the_next_has_a_first() {
        let (gather, get, soon) = (Gather::default(), cmd("GET"), Instant::now());
        let joined: Vec<_> = (0..=RIDERS_MAX).map(|_| gather.join(Lines::Some(&[&get]), soon).0).collect();
        assert!(matches!(&joined[RIDERS_MAX - 1], Joined::Full(party) if party.pipeline.len() == RIDERS_MAX));
        assert!(matches!((&joined[0], &joined[RIDERS_MAX]), (Joined::First, Joined::First)));
        assert!(joined[1..RIDERS_MAX - 1].iter().all(|joined| matches!(joined, Joined::Rides)));
    }

    #[test]
    fn a_party_with_many_bytes_leaves_at_once_and_the_next_has_a_first() {
        let (gather, soon) = (Gather::default(), Instant::now());
        let mut large = cmd("SET");
        large.arg(vec![b'v'; BYTES_MAX - 100]);
        let fill = PARTY_BYTES_MAX / BYTES_MAX;
        let joined: Vec<_> = (0..fill + 2).map(|_| gather.join(Lines::One(&large), soon).0).collect();
        assert!(matches!((&joined[0], &joined[fill - 1]), (Joined::First, Joined::Rides)));
        assert!(matches!(&joined[fill], Joined::Full(party) if party.pipeline.len() == fill + 1));
        assert!(matches!(&joined[fill + 1], Joined::First));
        assert_eq!(gather.depart().pipeline.len(), 1);
    }

    #[test]
    fn a_few_send_for_themselves_and_so_does_who_has_much_to_send() {
        let (gather, get, mut large) = (Gather::default(), cmd("GET"), cmd("SET"));
        let one = &Lines::One(&get);
        let few: Vec<_> = (0..CROWD).map(|_| gather.enter(one)).collect();
        assert!(few.iter().all(|(_, shares)| !shares));
        let many = vec![&get; COMMANDS_MAX + 1];
        assert!(gather.enter(one).1 && !gather.enter(&Lines::Some(&many)).1);
        assert!(gather.enter(&Lines::Some(&many[1..])).1);
        large.arg(vec![b'v'; BYTES_MAX / 2]);
        assert!(gather.enter(&Lines::Some(&[&large])).1 && !gather.enter(&Lines::Some(&[&large, &large])).1);
        drop(few);
        assert!(!gather.enter(one).1);
    }
}
