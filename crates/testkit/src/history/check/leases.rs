//! Claims: what somebody holds for a while is given to nobody else before that is over, and may be held on until then.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::Checked;
use super::queue::{Allowed, QueueOp, QueueTold};
use crate::history::recorder::{Call, Moment};

/// What a claim, or a renewal of one, was told to have: a value for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Of which value.
    pub value: u64,
    /// Whose.
    pub client: usize,
    /// By this moment it was told.
    pub granted: Moment,
    /// At least until then by the time that passes for everybody: since the call began it lasts so long.
    pub until: Duration,
}

/// What is wrong with claims, in n log n and, for each lease, the calls on its value. `ended` tells, by the moment at which a call began, the time at which it was over.
///
/// A lease that was lost lets others in early, and is told to be over: so all that ends behind a loss is excused. So is a value whose push may have come twice.
pub fn check(
    calls: &[Call<QueueOp, QueueTold>],
    leases: &[Lease],
    ended: &HashMap<Moment, Duration>,
    allowed: &Allowed,
) -> Checked {
    let mut of_value: BTreeMap<u64, Vec<&Call<QueueOp, QueueTold>>> = BTreeMap::new();
    for call in calls {
        let value = match call.op {
            QueueOp::Push(value) | QueueOp::Ack(value) | QueueOp::Release(value) | QueueOp::Renew(value) => Some(value),
            QueueOp::Pop | QueueOp::Claim => call.ok().copied().flatten(),
        };
        of_value.entry(value.unwrap_or(u64::MAX)).or_default().push(call);
    }
    let mut found = Checked::default();
    for lease in leases {
        let Some(calls) = of_value.get(&lease.value) else { continue };
        let is_in_doubt = |call: &&Call<QueueOp, QueueTold>| {
            matches!(call.op, QueueOp::Push(_)) && allowed.open.contains_key(&call.invoked)
        };
        let may_be_twice = calls.iter().any(is_in_doubt);
        let given_back = given_back(calls, lease);
        for call in calls.iter().filter(|call| call.invoked > lease.granted && call.returned < given_back) {
            let Some(at) = ended.get(&call.invoked).filter(|at| **at < lease.until) else { continue };
            let is_excused = may_be_twice || call.returned > allowed.whole_until;
            let Lease { value, client, granted, until } = *lease;
            match (call.op, call.ok()) {
                (QueueOp::Pop | QueueOp::Claim, Some(Some(_))) => {
                    let what = format!(
                        "{value} was client {client}'s from {granted} until {until:?}, and client {} took it at {at:?}",
                        call.client as i64
                    );
                    found.add(what, is_excused);
                }
                (QueueOp::Renew(_), Some(None)) if call.client == client => {
                    let what = format!(
                        "client {client} had {value} from {granted} until {until:?}, and was told at {at:?} that this was over"
                    );
                    found.add(what, is_excused);
                }
                _ => {}
            }
        }
    }
    found
}

/// When somebody began to be done with the value, or to give it back, after the lease was told.
fn given_back(calls: &[&Call<QueueOp, QueueTold>], lease: &Lease) -> Moment {
    let ends = calls.iter().filter(|call| matches!(call.op, QueueOp::Ack(_) | QueueOp::Release(_)) && call.may_count());
    ends.map(|call| call.invoked).filter(|at| *at > lease.granted).min().unwrap_or(Moment::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn call(client: usize, op: QueueOp, invoked: u64, told: QueueTold) -> Call<QueueOp, QueueTold> {
        Call { client, op, invoked, returned: invoked + 1, outcome: Outcome::Ok(told) }
    }

    /// How much is wrong and how much is excused; each call is over so many seconds after the beginning as the moment at which it began. Client 0 has value 7 from 4 to 20.
    fn found(calls: &[Call<QueueOp, QueueTold>], allowed: &Allowed) -> [u64; 2] {
        let ended = calls.iter().map(|call| (call.invoked, Duration::from_secs(call.invoked))).collect();
        let lease = Lease { value: 7, client: 0, granted: 4, until: Duration::from_secs(20) };
        let Checked { bad, left_out } = check(calls, &[lease], &ended, allowed);
        [bad.len() as u64, left_out]
    }

    #[test]
    fn what_is_claimed_is_given_to_nobody_else_before_its_lease_is_over_or_it_is_given_back() {
        let of = |calls: &[_]| found(calls, &Allowed::default());
        for take in [QueueOp::Pop, QueueOp::Claim] {
            let at = |at| call(1, take, at, Some(7));
            assert_eq!([3, 5, 19, 20, 30].map(|moment| of(&[at(moment)])[0]), [0, 1, 1, 0, 0]);
            assert_eq!(of(&[call(1, take, 6, Some(8)), call(1, take, 8, None)]), [0, 0]);
            for end in [QueueOp::Ack(7), QueueOp::Release(7)] {
                let then = |end| of(&[end, at(8)])[0];
                assert_eq!(then(call(0, end, 5, None)), 0);
                assert_eq!(then(call(0, end, 2, None)), 1, "of a claim before");
                assert_eq!(then(call(0, end, 10, None)), 1, "after it was taken");
                assert_eq!(then(Call { outcome: Outcome::NotApplied, ..call(1, end, 5, None) }), 1, "it was not his");
                let open = Call { outcome: Outcome::Unknown, returned: Moment::MAX, ..call(0, end, 5, None) };
                assert_eq!(then(open), 0);
            }
        }
    }

    #[test]
    fn a_claim_can_be_renewed_until_its_lease_is_over() {
        let of = |client, at, told| found(&[call(client, QueueOp::Renew(7), at, told)], &Allowed::default())[0];
        assert_eq!([of(0, 8, Some(7)), of(0, 8, None), of(0, 21, None), of(1, 8, None)], [0, 1, 0, 0]);
        let given_back = [call(0, QueueOp::Release(7), 6, None), call(0, QueueOp::Renew(7), 8, None)];
        assert_eq!(found(&given_back, &Allowed::default()), [0, 0]);
    }

    #[test]
    fn a_loss_excuses_what_ends_behind_it_and_a_push_in_doubt_what_may_be_its_second() {
        let calls = [call(1, QueueOp::Push(7), 0, None), call(1, QueueOp::Claim, 8, Some(7))];
        let lost = |whole_until| Allowed { whole_until, ..Allowed::default() };
        assert_eq!([9, 8].map(|at| found(&calls, &lost(at))), [[1, 0], [0, 1]]);
        let open = |at| Allowed { open: HashMap::from([(at, 1)]), ..Allowed::default() };
        assert_eq!([0, 8].map(|at| found(&calls, &open(at))), [[0, 1], [1, 0]]);
    }
}
