//! The file in which a node keeps what it knows of its cluster. Written in advance for all nodes, it saves the meeting, the handing
//! out of slots and the joining of replicas: a cluster serves 2 seconds after its start, which the servers themselves wait.

use std::net::SocketAddr;

/// Slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;
/// Primaries; as many replicas follow them in the list of nodes.
pub(super) const PRIMARIES: usize = 3;
/// All nodes.
pub(super) const NODES: usize = 2 * PRIMARIES;

/// A node: its name in the cluster and where it listens.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: String,
    pub(super) addr: SocketAddr,
}

impl Member {
    pub(super) fn new(addr: SocketAddr) -> Self {
        let id = std::iter::repeat_with(|| format!("{:08x}", fastrand::u32(..))).take(5).collect();
        Self { id, addr }
    }
}

/// The first and last slot of a primary.
pub(super) fn slots(primary: usize) -> (u16, u16) {
    let bound = |place: usize| u16::try_from(place * usize::from(SLOTS) / PRIMARIES).unwrap_or(SLOTS);
    (bound(primary), bound(primary + 1) - 1)
}

/// The file of the node `me`.
pub(super) fn file(members: &[Member], me: usize) -> String {
    let mut text = String::new();
    for (place, Member { id, addr }) in members.iter().enumerate() {
        let bus = addr.port() + super::BUS_OFFSET;
        let myself = if place == me { "myself," } else { "" };
        let epoch = place % PRIMARIES + 1;
        let rest = if place < PRIMARIES {
            let (first, last) = slots(place);
            format!("{myself}master - 0 0 {epoch} connected {first}-{last}")
        } else {
            format!("{myself}slave {} 0 0 {epoch} connected", members[place - PRIMARIES].id)
        };
        text.push_str(&format!("{id} {addr}@{bus} {rest}\n"));
    }
    text.push_str(&format!("vars currentEpoch {PRIMARIES} lastVoteEpoch 0\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_one_primary() {
        assert_eq!((slots(0).0, slots(2).1), (0, SLOTS - 1));
        assert!((1..PRIMARIES).all(|place| slots(place).0 == slots(place - 1).1 + 1));
    }

    #[test]
    fn a_node_knows_itself_and_its_primary() {
        let members: Vec<Member> =
            (0..6u16).map(|place| Member::new(SocketAddr::from(([127, 0, 0, 1], 11_000 + place)))).collect();
        let text = file(&members, 4);
        let line = text.lines().nth(4).unwrap();
        assert!(line.starts_with(&members[4].id) && members[4].id.len() == 40);
        assert!(line.contains(&format!("127.0.0.1:11004@21004 myself,slave {} ", members[1].id)), "{line}");
    }
}
