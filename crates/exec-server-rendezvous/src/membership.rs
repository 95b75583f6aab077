//! Which nodes of a cluster are alive, as one node sees it; without clock and I/O.
//!
//! ```text
//! unknown ─lease or heartbeat─▶ alive ⇄ suspect ⇄ silent       3 and 4 missed heartbeats
//!                                 └─ neither lease nor heartbeat for 3 s, or a newer epoch ─▶ dead, for ever
//! ```
//!
//! A node that could neither read leases nor hear heartbeats, because it was stopped or cut off, knows nothing about the
//! others meanwhile: they are silent for it, and not dead.
//! Heartbeats count only while this node hears its own: otherwise NATS is away, and the leases alone decide.
//! Invariant: an epoch that was dead once is dead for ever at this observer, whatever arrives late. A silent node serves
//! no new streams, and is alive again with its next heartbeat; that is safe, because claims are fenced by the database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lease that is not renewed for this long is lapsed; nodes renew once a second.
pub const LEASE: Duration = Duration::from_secs(3);

/// Missed heartbeats after which a node is suspect.
const SUSPECT_AFTER: u32 = 3;

/// Missed heartbeats after which a node is silent.
const SILENT_AFTER: u32 = 4;

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
    /// Whether the node does not hear its own heartbeats, or sends none.
    pub is_deaf: bool,
    /// Time since the last renewal, by the clock of the database.
    pub age: Duration,
}

/// A node's heartbeat, as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Node id.
    pub node: String,
    /// Its epoch.
    pub epoch: u64,
    /// Base URL of the node.
    pub url: Arc<str>,
    /// Whether the node is shutting down.
    pub is_leaving: bool,
    /// Time until its next heartbeat.
    pub interval: Duration,
    /// Whether the node reaches the database.
    pub has_lease: bool,
    /// What it reports about itself.
    pub load: Load,
}

/// Load and version of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// Attached executors.
    pub executors: u64,
    /// Attached harnesses.
    pub streams: u64,
    /// Version of the program.
    pub version: Arc<str>,
}

/// The state of a node's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// It heartbeats, or holds its lease.
    Alive,
    /// It has missed heartbeats.
    Suspect,
    /// It is alive, and shutting down.
    Leaving,
    /// It has missed so many heartbeats that it counts as dead until the next one.
    Silent,
    /// It has ended, or was never seen.
    Dead,
}

impl MemberState {
    /// Whether streams may be opened at the node.
    pub fn is_reachable(self) -> bool {
        matches!(self, Self::Alive | Self::Suspect | Self::Leaving)
    }

    /// Name on the wire, in metrics and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alive => "ready",
            Self::Suspect => "suspect",
            Self::Leaving => "leaving",
            Self::Silent => "silent",
            Self::Dead => "dead",
        }
    }
}

/// The known nodes.
#[derive(Debug, Default)]
pub struct Membership {
    members: BTreeMap<String, Member>,
    /// The newest epoch of each node that was found dead.
    dead: BTreeMap<String, u64>,
    own: Option<Hearing>,
    /// When all leases were read last.
    leases_read: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    epoch: u64,
    url: Arc<str>,
    is_leaving: bool,
    is_deaf: bool,
    /// As its last heartbeat says.
    has_lease: bool,
    held_until: Instant,
    beat: Option<(Instant, Duration)>,
    load: Option<Load>,
}

/// That this node hears its own heartbeats.
#[derive(Debug, Clone, Copy)]
struct Hearing {
    last: Instant,
    /// Since when without a pause that would be noticed.
    since: Instant,
    /// Since when without a pause as long as a lease.
    held: Instant,
    interval: Duration,
}

impl Hearing {
    fn is_fresh(self, now: Instant) -> bool {
        now < self.last + SUSPECT_AFTER * self.interval
    }
}

impl Membership {
    /// All leases were read at `now`.
    pub fn handle_leases(&mut self, now: Instant, leases: impl IntoIterator<Item = Lease>) {
        leases.into_iter().for_each(|lease| self.handle_lease(now, lease));
        self.leases_read = Some(now);
    }

    /// A lease was read at `now`.
    pub fn handle_lease(&mut self, now: Instant, lease: Lease) {
        let Lease { node, epoch, url, is_leaving, is_deaf, age } = lease;
        let Some(left) = LEASE.checked_sub(age).filter(|left| !left.is_zero()) else {
            self.settle(now);
            // A database that was away could not renew any lease; a node that heartbeats holds out without it.
            let is_heard =
                self.members.get(&node).is_some_and(|it| it.epoch == epoch && it.beat.is_some());
            if !is_heard {
                self.end(&node, epoch);
            }
            return;
        };
        if let Some(member) = self.touch(now, &node, epoch, &url, now + left) {
            (member.is_leaving, member.is_deaf) = (member.is_leaving | is_leaving, is_deaf);
        }
    }

    /// The heartbeat of another node arrived at `now`; returns whether its epoch is dead here, which it does not know.
    pub fn handle_beat(&mut self, now: Instant, beat: Beat) -> bool {
        let Beat { node, epoch, url, is_leaving, interval, has_lease, load } = beat;
        let Some(member) = self.touch(now, &node, epoch, &url, now + LEASE) else {
            return !self.members.contains_key(&node);
        };
        member.is_leaving |= is_leaving;
        member.beat = Some((now, interval));
        member.has_lease = has_lease;
        member.load = Some(load);
        false
    }

    /// This node's own heartbeat came back at `now`.
    pub fn handle_own_beat(&mut self, now: Instant, interval: Duration) {
        let since = self.own.filter(|own| own.is_fresh(now)).map_or(now, |own| own.since);
        let held = self.own.filter(|own| now < own.last + LEASE).map_or(now, |own| own.held);
        self.own = Some(Hearing { last: now, since, held, interval });
    }

    /// Since when heartbeats have kept this node alive at others, without a lease; none if they do not.
    pub fn held_since(&self, now: Instant) -> Option<Instant> {
        self.own.filter(|own| now < own.last + LEASE).map(|own| own.held)
    }

    /// Since when this node has heard its own heartbeats without a pause; none if it does not.
    pub fn heard_since(&self, now: Instant) -> Option<Instant> {
        self.own.filter(|own| own.is_fresh(now)).map(|own| own.since)
    }

    /// The state of a node's epoch at `now`.
    pub fn state(&mut self, now: Instant, node: &str, epoch: u64) -> MemberState {
        self.settle(now);
        match self.members.get(node) {
            Some(member) if member.epoch == epoch => self.judge(now, member),
            _ => MemberState::Dead,
        }
    }

    /// The base URL of a live node.
    pub fn url(&self, node: &str) -> Option<Arc<str>> {
        self.members.get(node).map(|member| member.url.clone())
    }

    /// Number of other nodes that have sent heartbeats and are not dead.
    pub fn heard_nodes(&self) -> usize {
        self.members.values().filter(|member| member.beat.is_some()).count()
    }

    /// Whether another node than `own` says in its lease that it hears heartbeats.
    pub fn do_others_hear(&mut self, now: Instant, own: &str) -> bool {
        self.settle(now);
        let hears = |member: &Member| !member.is_deaf && now < member.held_until;
        self.members.iter().any(|(node, member)| node != own && hears(member))
    }

    /// Whether another node can serve what this node cannot: one that reaches the database, as long as this one hears
    /// heartbeats; one that hears heartbeats, as long as this one reads leases. A node that leaves takes nothing over.
    pub fn can_another_serve(&mut self, now: Instant, own: &str) -> bool {
        self.settle(now);
        let is_heard = self.heard_since(now).is_some();
        self.members.iter().any(|(node, member)| {
            let can = if is_heard { member.has_lease } else { !member.is_deaf };
            node != own && can && self.judge(now, member) == MemberState::Alive
        })
    }

    /// State and load of the nodes that are not dead.
    pub fn list(&mut self, now: Instant) -> BTreeMap<String, (u64, MemberState, Option<Load>)> {
        self.settle(now);
        let one = |(id, member): (&String, &Member)| {
            (id.clone(), (member.epoch, self.judge(now, member), member.load.clone()))
        };
        self.members.iter().map(one).collect()
    }

    /// The member, unless this epoch is dead or replaced; creates it, and ends an older epoch.
    fn touch(
        &mut self,
        now: Instant,
        node: &str,
        epoch: u64,
        url: &Arc<str>,
        held_until: Instant,
    ) -> Option<&mut Member> {
        self.settle(now);
        if self.dead.get(node).is_some_and(|dead| epoch <= *dead) {
            return None;
        }
        match self.members.get(node) {
            Some(known) if known.epoch > epoch => return None,
            // A newer epoch shows that the old one has ended.
            Some(known) if known.epoch < epoch => {
                let old = known.epoch;
                self.end(node, old);
            }
            _ => {}
        }
        let member = self.members.entry(node.to_owned()).or_insert_with(|| Member {
            epoch,
            url: url.clone(),
            is_leaving: false,
            is_deaf: false,
            has_lease: false,
            held_until,
            beat: None,
            load: None,
        });
        // An answer that was overtaken by a newer one shortens nothing.
        member.held_until = member.held_until.max(held_until);
        member.url = url.clone();
        Some(member)
    }

    fn judge(&self, now: Instant, member: &Member) -> MemberState {
        match self.missed(now, member).unwrap_or(0) {
            _ if now >= member.held_until => MemberState::Silent,
            SILENT_AFTER.. => MemberState::Silent,
            _ if member.is_leaving => MemberState::Leaving,
            SUSPECT_AFTER.. => MemberState::Suspect,
            _ => MemberState::Alive,
        }
    }

    /// Heartbeats that a node has missed; none if nothing is known about them.
    fn missed(&self, now: Instant, member: &Member) -> Option<u32> {
        let own = self.own.filter(|own| own.is_fresh(now))?;
        let (last, interval) = member.beat?;
        // What was sent while this node heard nothing was not missed.
        let quiet = now.saturating_duration_since(last.max(own.since));
        Some((quiet.as_nanos() / interval.as_nanos().max(1)).try_into().unwrap_or(u32::MAX))
    }

    /// Ends the epochs that neither hold a lease nor heartbeat, as far as this node could have noticed.
    fn settle(&mut self, now: Instant) {
        let has_heard_all =
            self.own.is_some_and(|own| own.is_fresh(now) && now >= own.since + LEASE);
        let is_lapsed = |(node, member): (&String, &Member)| {
            let has_looked = self.leases_read.is_some_and(|at| at >= member.held_until);
            let is_over = now >= member.held_until && (has_looked || has_heard_all);
            is_over.then(|| (node.clone(), member.epoch))
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
            is_deaf: false,
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
        assert_eq!(nodes.state(late, "a", 1), MemberState::Silent, "the database was not asked");
        nodes.handle_leases(late, []);
        assert_eq!(nodes.state(late, "a", 1), MemberState::Dead);
        nodes.handle_lease(late, lease("a", 1, 0));
        assert_eq!(nodes.state(late, "a", 1), MemberState::Dead);
        nodes.handle_lease(late, lease("a", 2, 0));
        assert_eq!(nodes.state(late, "a", 2), MemberState::Alive);
        assert_eq!(nodes.list(late).len(), 1);
    }

    #[test]
    fn a_node_that_leaves_does_not_come_back_with_that_epoch() {
        let mut nodes = Membership::default();
        let now = Instant::now();
        nodes.handle_lease(now, Lease { is_leaving: true, ..lease("a", 1, 0) });
        nodes.handle_lease(now, lease("a", 1, 0));
        assert_eq!(nodes.state(now, "a", 1), MemberState::Leaving);
        assert_eq!(nodes.list(now)["a"].1, MemberState::Leaving);
    }

    const TENTH: Duration = Duration::from_millis(100);

    fn beat(node: &str, epoch: u64) -> Beat {
        Beat {
            node: node.into(),
            epoch,
            url: "http://n".into(),
            is_leaving: false,
            interval: TENTH,
            has_lease: true,
            load: Load::default(),
        }
    }

    #[test]
    fn a_node_that_was_stopped_or_cut_off_holds_the_others_for_silent_and_not_for_dead() {
        let mut nodes = Membership::default();
        let start = Instant::now();
        nodes.handle_leases(start, [lease("a", 1, 0)]);
        nodes.handle_own_beat(start, TENTH);
        nodes.handle_beat(start, beat("b", 1));
        let later = start + 10 * LEASE;
        // What waited in its socket comes first: its own heartbeat, and then that of the other.
        nodes.handle_own_beat(later, TENTH);
        assert_eq!(nodes.state(later, "a", 1), MemberState::Silent);
        assert_eq!(nodes.state(later, "b", 1), MemberState::Silent);
        assert!(!nodes.handle_beat(later, beat("b", 1)), "it must not take a new epoch for this");
        nodes.handle_leases(later, [lease("a", 1, 0)]);
        for node in ["a", "b"] {
            assert_eq!(nodes.state(later, node, 1), MemberState::Alive, "{node}");
        }
    }

    #[test]
    fn what_this_node_cannot_serve_another_can_only_if_it_is_better_off() {
        let mut nodes = Membership::default();
        let now = Instant::now();
        // Without the database: heartbeats say who reaches it.
        nodes.handle_own_beat(now, TENTH);
        assert!(!nodes.can_another_serve(now, "own"));
        nodes.handle_beat(now, Beat { has_lease: false, ..beat("a", 1) });
        assert!(!nodes.can_another_serve(now, "own"));
        nodes.handle_beat(now, beat("a", 1));
        assert!(nodes.can_another_serve(now, "own"));
        nodes.handle_beat(now, Beat { is_leaving: true, ..beat("a", 1) });
        assert!(!nodes.can_another_serve(now, "own"));
        // Without heartbeats: leases say who hears them.
        let later = now + 10 * TENTH;
        nodes.handle_lease(later, Lease { is_deaf: true, ..lease("b", 1, 0) });
        assert!(!nodes.can_another_serve(later, "own"));
        nodes.handle_lease(later, lease("b", 1, 0));
        assert!(nodes.can_another_serve(later, "own"));
    }

    #[test]
    fn a_node_that_misses_heartbeats_is_suspect_then_silent_and_alive_with_the_next_one() {
        let mut nodes = Membership::default();
        let start = Instant::now();
        nodes.handle_own_beat(start, TENTH);
        nodes.handle_beat(start, beat("a", 1));
        for tenths in 1..10 {
            let expected = match tenths {
                0..3 => MemberState::Alive,
                3 => MemberState::Suspect,
                _ => MemberState::Silent,
            };
            let now = start + tenths * TENTH;
            nodes.handle_own_beat(now, TENTH);
            // The lease is renewed all the time: the node lives, but cannot be heard.
            nodes.handle_lease(now, lease("a", 1, 0));
            assert_eq!(nodes.state(now, "a", 1), expected, "{tenths}");
        }
        nodes.handle_beat(start + 10 * TENTH, beat("a", 1));
        assert_eq!(nodes.state(start + 10 * TENTH, "a", 1), MemberState::Alive);
    }

    #[test]
    fn while_the_own_heartbeat_is_not_heard_the_leases_decide() {
        let mut nodes = Membership::default();
        let start = Instant::now();
        nodes.handle_own_beat(start, TENTH);
        nodes.handle_beat(start, beat("a", 1));
        let later = start + 20 * TENTH;
        nodes.handle_lease(later, lease("a", 1, 500));
        assert_eq!(nodes.heard_since(later), None);
        assert_eq!(nodes.state(later, "a", 1), MemberState::Alive);
        // Back again: the other node has as much time as always to be heard.
        nodes.handle_own_beat(later, TENTH);
        assert_eq!(nodes.state(later + 2 * TENTH, "a", 1), MemberState::Alive);
        nodes.handle_own_beat(later + 2 * TENTH, TENTH);
        nodes.handle_own_beat(later + 4 * TENTH, TENTH);
        assert_eq!(nodes.state(later + 4 * TENTH, "a", 1), MemberState::Silent);
        assert_eq!(nodes.heard_since(later + 4 * TENTH), Some(later));
        for tenths in (6..=30).step_by(2) {
            nodes.handle_own_beat(later + tenths * TENTH, TENTH);
        }
        assert_eq!(nodes.state(later + LEASE, "a", 1), MemberState::Dead);
        assert!(nodes.handle_beat(later + LEASE, beat("a", 1)), "the node must be told");
        assert_eq!(nodes.state(later + LEASE, "a", 1), MemberState::Dead);
        assert!(!nodes.handle_beat(later + LEASE, beat("a", 2)));
        assert!(!nodes.handle_beat(later + LEASE, beat("a", 1)), "a late one of a known past");
    }

    #[test]
    fn a_lease_that_could_not_be_renewed_does_not_end_a_node_that_is_heard() {
        let mut nodes = Membership::default();
        let now = Instant::now();
        nodes.handle_own_beat(now, TENTH);
        nodes.handle_beat(now, beat("a", 1));
        nodes.handle_lease(now, lease("a", 1, 60_000));
        assert_eq!(nodes.state(now, "a", 1), MemberState::Alive);
        nodes.handle_beat(now, beat("a", 2));
        assert_eq!(nodes.state(now, "a", 1), MemberState::Dead);
        assert_eq!(nodes.state(now, "a", 2), MemberState::Alive);
    }

    proptest! {
        /// Leases and heartbeats arrive late, twice and out of order.
        #[test]
        fn at_most_one_epoch_of_a_node_is_alive_and_the_dead_stay_dead(
            events in prop::collection::vec((0..3_u8, 0..4_u64, 0..9000_u64, 0..2000_u64), 1..100),
        ) {
            let mut nodes = Membership::default();
            let mut now = Instant::now();
            let mut dead: std::collections::BTreeSet<(u8, u64)> = Default::default();
            let mut seen: std::collections::BTreeSet<(u8, u64)> = Default::default();
            for (node, epoch, age, passed) in events {
                now += Duration::from_millis(passed);
                match age {
                    0..5000 => nodes.handle_lease(now, lease(&node.to_string(), epoch, age)),
                    5000..7000 => {
                        nodes.handle_beat(now, beat(&node.to_string(), epoch));
                    }
                    _ => nodes.handle_own_beat(now, TENTH),
                }
                if age >= 7000 {
                    continue;
                }
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
