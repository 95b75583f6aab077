//! Which nodes of a cluster are alive, as one node sees it; without clock and I/O.
//!
//! ```text
//! unknown ─lease─▶ alive ⇄ leaving
//!                    └─ lease lapsed, or a newer epoch ─▶ dead, for ever
//! ```
//!
//! Invariant: an epoch that was dead once is dead for ever at this observer, whatever arrives late. A node that was
//! stopped takes a new epoch before it serves again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lease that is not renewed for this long is lapsed; nodes renew once a second.
pub const LEASE: Duration = Duration::from_secs(3);

/// A node's lease, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Node id.
    pub node: String,
    /// New at every start of the node.
    pub epoch: u64,
    /// Base URL of the node.
    pub url: Arc<str>,
    /// Whether the node is shutting down.
    pub is_leaving: bool,
    /// Time since the last renewal, by the clock of the database.
    pub age: Duration,
}

/// The state of a node's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Its lease is held.
    Alive,
    /// Its lease is held, and it is shutting down.
    Leaving,
    /// Its lease has lapsed, or it was never seen.
    Dead,
}

/// The known nodes.
#[derive(Debug, Default)]
pub struct Membership {
    members: BTreeMap<String, Member>,
    /// The newest epoch of each node that was found dead.
    dead: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Member {
    epoch: u64,
    url: Arc<str>,
    is_leaving: bool,
    held_until: Instant,
}

impl Membership {
    /// A lease was read at `now`.
    pub fn handle_lease(&mut self, now: Instant, lease: Lease) {
        self.settle(now);
        let Lease { node, epoch, url, is_leaving, age } = lease;
        if self.dead.get(&node).is_some_and(|dead| epoch <= *dead) {
            return;
        }
        let Some(left) = LEASE.checked_sub(age).filter(|left| !left.is_zero()) else {
            return self.end(&node, epoch);
        };
        match self.members.get(&node) {
            Some(known) if known.epoch > epoch => return,
            // A newer epoch shows that the old one has ended.
            Some(known) if known.epoch < epoch => {
                let old = known.epoch;
                self.end(&node, old);
            }
            _ => {}
        }
        let held_until = now + left;
        let member = self.members.entry(node);
        let member =
            member.or_insert_with(|| Member { epoch, url: url.clone(), is_leaving, held_until });
        // An answer that was overtaken by a newer one shortens nothing.
        member.held_until = member.held_until.max(held_until);
        (member.url, member.is_leaving) = (url, member.is_leaving | is_leaving);
    }

    /// The state of a node's epoch at `now`.
    pub fn state(&mut self, now: Instant, node: &str, epoch: u64) -> MemberState {
        self.settle(now);
        match self.members.get(node) {
            Some(member) if member.epoch == epoch && member.is_leaving => MemberState::Leaving,
            Some(member) if member.epoch == epoch => MemberState::Alive,
            _ => MemberState::Dead,
        }
    }

    /// The base URL of a live node.
    pub fn url(&self, node: &str) -> Option<Arc<str>> {
        self.members.get(node).map(|member| member.url.clone())
    }

    /// The numbers of live and of leaving nodes.
    pub fn counts(&mut self, now: Instant) -> (usize, usize) {
        self.settle(now);
        let leaving = self.members.values().filter(|member| member.is_leaving).count();
        (self.members.len() - leaving, leaving)
    }

    /// Ends the epochs whose lease has lapsed.
    fn settle(&mut self, now: Instant) {
        let is_lapsed = |(node, member): (&String, &Member)| {
            (now >= member.held_until).then(|| (node.clone(), member.epoch))
        };
        let lapsed: Vec<_> = self.members.iter().filter_map(is_lapsed).collect();
        for (node, epoch) in lapsed {
            self.end(&node, epoch);
        }
    }

    fn end(&mut self, node: &str, epoch: u64) {
        if self.members.get(node).is_some_and(|member| member.epoch <= epoch) {
            self.members.remove(node);
        }
        let dead = self.dead.entry(node.to_owned()).or_insert(epoch);
        *dead = epoch.max(*dead);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease(node: &str, epoch: u64, age_ms: u64) -> Lease {
        Lease {
            node: node.into(),
            epoch,
            url: "http://n".into(),
            is_leaving: false,
            age: Duration::from_millis(age_ms),
        }
    }

    #[test]
    fn a_node_is_alive_until_its_lease_lapses_and_then_dead_for_ever() {
        let mut nodes = Membership::default();
        let now = Instant::now();
        assert_eq!(nodes.state(now, "a", 1), MemberState::Dead);
        nodes.handle_lease(now, lease("a", 1, 500));
        assert_eq!(nodes.state(now, "a", 1), MemberState::Alive);
        assert_eq!(nodes.state(now, "a", 2), MemberState::Dead, "an epoch that was never seen");
        let later = now + LEASE - Duration::from_millis(501);
        assert_eq!(nodes.state(later, "a", 1), MemberState::Alive);
        let late = later + Duration::from_millis(1);
        assert_eq!(nodes.state(late, "a", 1), MemberState::Dead);
        nodes.handle_lease(late, lease("a", 1, 0));
        assert_eq!(nodes.state(late, "a", 1), MemberState::Dead);
        nodes.handle_lease(late, lease("a", 2, 0));
        assert_eq!(nodes.state(late, "a", 2), MemberState::Alive);
        assert_eq!(nodes.counts(late), (1, 0));
    }

    #[test]
    fn a_node_that_leaves_does_not_come_back_with_that_epoch() {
        let mut nodes = Membership::default();
        let now = Instant::now();
        nodes.handle_lease(now, Lease { is_leaving: true, ..lease("a", 1, 0) });
        nodes.handle_lease(now, lease("a", 1, 0));
        assert_eq!(nodes.state(now, "a", 1), MemberState::Leaving);
        assert_eq!(nodes.counts(now), (0, 1));
    }

    proptest! {
        /// Answers of the database arrive late, twice and out of order.
        #[test]
        fn at_most_one_epoch_of_a_node_is_alive_and_the_dead_stay_dead(
            events in prop::collection::vec((0..3_u8, 0..4_u64, 0..5000_u64, 0..2000_u64), 1..100),
        ) {
            let mut nodes = Membership::default();
            let mut now = Instant::now();
            let mut dead: std::collections::BTreeSet<(u8, u64)> = Default::default();
            let mut seen: std::collections::BTreeSet<(u8, u64)> = Default::default();
            for (node, epoch, age, passed) in events {
                now += Duration::from_millis(passed);
                nodes.handle_lease(now, lease(&node.to_string(), epoch, age));
                seen.insert((node, epoch));
                for node in 0..3 {
                    let state = |nodes: &mut Membership, epoch| {
                        nodes.state(now, &node.to_string(), epoch)
                    };
                    let alive: Vec<u64> =
                        (0..4).filter(|it| state(&mut nodes, *it) != MemberState::Dead).collect();
                    prop_assert!(alive.len() <= 1, "{alive:?}");
                    for epoch in 0..4 {
                        if alive.contains(&epoch) {
                            prop_assert!(!dead.contains(&(node, epoch)), "it came back");
                        } else if seen.contains(&(node, epoch)) {
                            dead.insert((node, epoch));
                        }
                    }
                }
            }
        }
    }
}
