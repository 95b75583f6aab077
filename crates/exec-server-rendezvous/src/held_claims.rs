//! The executors that a node holds, and what it does when it learns about claims; without clock and I/O.
//!
//! ```text
//! asked ──claimed──▶ held ──socket ends──▶ released
//!   └─replaced─▶ refused └─replaced─▶ closed
//! ```
//!
//! Invariant: the claims of an environment only grow, so what is said of one claim holds for all older ones, whenever it is
//! said, and how often.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::{ClaimId, HeldClaim};

/// Unanswered claims that are looked up; beyond that, an entry stays until the executor is claimed again.
const MOST_UNANSWERED: usize = 16_384;

/// The executors of a node, and those that it claims at the moment.
#[derive(Debug, Default)]
pub struct HeldClaims {
    held: BTreeMap<String, Held>,
    /// Bounded by the sockets, each of which waits for one answer.
    asked: BTreeMap<String, Asked>,
    /// Environments of claims that may have been made although there was no answer.
    unanswered: BTreeSet<String>,
}

#[derive(Debug)]
struct Held {
    claim: ClaimId,
    registration: String,
}

/// Claims of an environment whose answers have not been handled yet.
#[derive(Debug, Default)]
struct Asked {
    count: usize,
    /// The newest claim that was replaced meanwhile.
    replaced: Option<ClaimId>,
}

/// What the database says about an environment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// The number of registrations; none if the environment was deleted.
    pub generation: Option<u64>,
    /// The newest claim, if one is known.
    pub claim: Option<ClaimId>,
    /// Whether that claim is of this node and its epoch.
    pub is_here: bool,
}

/// What becomes of an executor whose claim was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is where the database says, or not at this node at all.
    Keep,
    /// It was replaced: its socket is closed.
    Close,
    /// The database has forgotten it, or names an older claim or an older epoch: the claim is made again.
    ClaimAgain,
}

impl HeldClaims {
    /// An executor is about to be claimed. [`HeldClaims::end_asking`] must follow its answer.
    pub fn begin_asking(&mut self, environment: &str) {
        self.asked.entry(environment.to_owned()).or_default().count += 1;
    }

    /// The answer was handled, or is not awaited any more.
    pub fn end_asking(&mut self, environment: &str) {
        if let Some(asked) = self.asked.get_mut(environment) {
            asked.count -= 1;
            if asked.count == 0 {
                self.asked.remove(environment);
            }
        }
    }

    /// There was no answer to a claim, which may have been made.
    pub fn handle_unanswered(&mut self, environment: &str) {
        if self.unanswered.len() < MOST_UNANSWERED {
            self.unanswered.insert(environment.to_owned());
        }
    }

    /// Whether an executor whose claim was made may attach; not if it was replaced meanwhile, here or elsewhere.
    pub fn may_attach(&self, environment: &str, claim: ClaimId) -> bool {
        let replaced = self.asked.get(environment).and_then(|asked| asked.replaced);
        self.claim(environment) <= Some(claim) && replaced < Some(claim)
    }

    /// An executor has attached.
    pub fn hold(&mut self, environment: &str, registration: &str, claim: ClaimId) {
        let registration = registration.to_owned();
        self.held.insert(environment.to_owned(), Held { claim, registration });
    }

    /// The socket of a claim has ended. The claim must be released even if a newer socket has attached here: after a crash
    /// of the database, the table may name the older claim.
    pub fn handle_gone(&mut self, environment: &str, claim: ClaimId) {
        if self.claim(environment) == Some(claim) {
            self.held.remove(environment);
        }
    }

    /// A claim was replaced; returns whether the executor is to be closed. The message may be old, or arrive before the
    /// answer to the claim.
    pub fn handle_replaced(&mut self, environment: &str, claim: ClaimId) -> bool {
        if let Some(asked) = self.asked.get_mut(environment) {
            asked.replaced = asked.replaced.max(Some(claim));
        }
        self.claim(environment).is_some_and(|held| held <= claim)
    }

    /// Compares an executor with the database, which may have changed since it was asked.
    pub fn check(&self, environment: &str, entry: Entry) -> Verdict {
        let Some(held) = self.claim(environment) else { return Verdict::Keep };
        if entry.generation.is_some_and(|current| current > held.generation) {
            return Verdict::Close;
        }
        match entry.claim {
            // A socket that is about to attach here closes the older one.
            Some(claim) if claim > held && entry.is_here && self.is_asked(environment) => {
                Verdict::Keep
            }
            Some(claim) if claim > held => Verdict::Close,
            Some(claim) if claim == held && entry.is_here => Verdict::Keep,
            _ => Verdict::ClaimAgain,
        }
    }

    /// Environments of unanswered claims, to be looked up; [`HeldClaims::check_unanswered`] must follow.
    pub fn take_unanswered(&mut self) -> Vec<String> {
        let unanswered = std::mem::take(&mut self.unanswered).into_iter();
        let (later, now) = unanswered.partition(|it| self.is_held_or_asked(it));
        self.unanswered = later;
        now.into_iter().collect()
    }

    /// Returns the claim that the database has for this node, if no socket has it, so that it must be released.
    pub fn check_unanswered(&mut self, environment: &str, entry: Entry) -> Option<ClaimId> {
        if self.is_held_or_asked(environment) {
            self.handle_unanswered(environment);
            return None;
        }
        entry.claim.filter(|_| entry.is_here)
    }

    /// The claim of an executor of this node.
    pub fn claim(&self, environment: &str) -> Option<ClaimId> {
        self.held.get(environment).map(|held| held.claim)
    }

    /// The executors of this node.
    pub fn list(&self) -> Vec<HeldClaim> {
        let held = self.held.iter().map(|(environment, held)| HeldClaim {
            environment: environment.clone(),
            registration: held.registration.clone(),
            claim: held.claim,
        });
        held.collect()
    }

    fn is_asked(&self, environment: &str) -> bool {
        self.asked.contains_key(environment)
    }

    fn is_held_or_asked(&self, environment: &str) -> bool {
        self.held.contains_key(environment) || self.is_asked(environment)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENV: &str = "env";
    const NODES: usize = 3;

    fn claim(generation: u64, sequence: u64) -> ClaimId {
        ClaimId { generation, sequence }
    }

    fn holding(held: ClaimId) -> HeldClaims {
        let mut claims = HeldClaims::default();
        claims.hold(ENV, "r", held);
        claims
    }

    #[test]
    fn what_is_said_of_an_older_claim_changes_nothing() {
        let mut claims = holding(claim(1, 7));
        assert!(!claims.handle_replaced(ENV, claim(1, 6)));
        claims.handle_gone(ENV, claim(1, 6));
        assert_eq!(claims.claim(ENV), Some(claim(1, 7)));
        assert!(!claims.may_attach(ENV, claim(1, 6)));
        assert!(!claims.handle_replaced("other", claim(9, 9)));
        assert!(claims.handle_replaced(ENV, claim(1, 7)));
        assert!(claims.handle_replaced(ENV, claim(2, 1)));
        claims.handle_gone(ENV, claim(1, 7));
        assert_eq!(claims.claim(ENV), None);
    }

    #[test]
    fn a_claim_that_is_replaced_before_its_answer_arrives_does_not_attach() {
        let mut claims = HeldClaims::default();
        claims.begin_asking(ENV);
        claims.begin_asking(ENV);
        assert!(!claims.handle_replaced(ENV, claim(1, 6)));
        claims.end_asking(ENV);
        assert!(!claims.may_attach(ENV, claim(1, 5)));
        assert!(!claims.may_attach(ENV, claim(1, 6)));
        assert!(claims.may_attach(ENV, claim(1, 7)));
        claims.end_asking(ENV);
        assert!(claims.asked.is_empty());
    }

    #[test]
    fn a_check_tells_what_was_replaced_from_what_was_forgotten() {
        let mut claims = holding(claim(2, 7));
        let entry = |sequence, is_here| Entry {
            generation: Some(2),
            claim: Some(claim(2, sequence)),
            is_here,
        };
        let gone = Entry { generation: Some(2), ..Entry::default() };
        for (entry, verdict) in [
            (entry(7, true), Verdict::Keep),
            (entry(7, false), Verdict::ClaimAgain),
            (entry(6, true), Verdict::ClaimAgain),
            (entry(6, false), Verdict::ClaimAgain),
            (gone, Verdict::ClaimAgain),
            (entry(8, false), Verdict::Close),
            (entry(8, true), Verdict::Close),
            (Entry { generation: Some(3), ..entry(7, true) }, Verdict::Close),
        ] {
            assert_eq!(claims.check(ENV, entry), verdict, "{entry:?}");
        }
        assert_eq!(claims.check("other", entry(8, true)), Verdict::Keep);
        claims.begin_asking(ENV);
        assert_eq!(claims.check(ENV, entry(8, true)), Verdict::Keep);
        assert_eq!(claims.check(ENV, entry(8, false)), Verdict::Close);
    }

    #[test]
    fn a_claim_without_an_answer_is_released_unless_a_socket_has_it() {
        let mut claims = holding(claim(1, 5));
        let made = Entry { generation: Some(1), claim: Some(claim(1, 6)), is_here: true };
        let none = Vec::<String>::new();
        claims.handle_unanswered(ENV);
        assert_eq!(claims.take_unanswered(), none);
        assert_eq!(claims.check(ENV, made), Verdict::Close);
        claims.handle_gone(ENV, claim(1, 5));
        assert_eq!(claims.take_unanswered(), [ENV]);
        claims.begin_asking(ENV);
        assert_eq!(claims.check_unanswered(ENV, made), None);
        assert_eq!(claims.take_unanswered(), none);
        claims.end_asking(ENV);
        assert_eq!(claims.take_unanswered(), [ENV]);
        assert_eq!(claims.check_unanswered(ENV, Entry { is_here: false, ..made }), None);
        assert_eq!(claims.check_unanswered(ENV, made), Some(claim(1, 6)));
        assert_eq!(claims.take_unanswered(), none);
    }

    /// A node: the socket that it serves, those that it is closing, and what it has not handled yet.
    #[derive(Default)]
    struct Node {
        epoch: u64,
        claims: HeldClaims,
        open: Option<ClaimId>,
        closing: Vec<ClaimId>,
        answers: Vec<ClaimId>,
        told: Vec<ClaimId>,
        entry: Option<Entry>,
        unanswered: Vec<String>,
        again: Option<ClaimId>,
    }

    struct Row {
        claim: ClaimId,
        /// Node and epoch; none once it was released.
        home: Option<(usize, u64)>,
    }

    /// One environment. The database does what the statements in `store/postgres/cluster.rs` do.
    #[derive(Default)]
    struct Model {
        nodes: [Node; NODES],
        epochs: u64,
        sequence: u64,
        generation: u64,
        row: Option<Row>,
        superseded: Vec<(usize, u64, ClaimId)>,
        messages: Vec<(usize, u64, ClaimId)>,
        /// The newest claim, and whether its socket still exists.
        newest: Option<(ClaimId, bool)>,
    }

    impl Node {
        fn close(&mut self) {
            self.closing.extend(self.open.take());
        }

        fn handle_replaced(&mut self, claim: ClaimId) {
            if self.claims.handle_replaced(ENV, claim) {
                self.close();
            }
        }
    }

    impl Model {
        fn start() -> Self {
            let mut model = Self { generation: 1, ..Self::default() };
            (0..NODES).for_each(|node| model.restart(node));
            model
        }

        fn end_socket(&mut self, claim: ClaimId) {
            if let Some((newest, is_alive)) = &mut self.newest {
                *is_alive &= *newest != claim;
            }
        }

        /// Notes that a claim was replaced, for its node and with a message to it.
        fn tell(&mut self, by: usize) {
            if let Some(Row { claim, home: Some((node, epoch)) }) = &self.row
                && *node != by
            {
                self.superseded.push((*node, *epoch, *claim));
                self.messages.push((*node, *epoch, *claim));
            }
        }

        fn ask(&mut self, node: usize) {
            self.nodes[node].claims.begin_asking(ENV);
            self.tell(node);
            self.sequence += 1;
            let claim = claim(self.generation, self.sequence);
            let before = self.row.as_ref().map(|row| row.claim);
            assert!(before < Some(claim));
            self.row = Some(Row { claim, home: Some((node, self.nodes[node].epoch)) });
            self.nodes[node].answers.push(claim);
            self.newest = Some((claim, true));
        }

        fn claim_again(&mut self, node: usize) {
            let Some(claim) = self.nodes[node].again.take() else { return };
            let epoch = self.nodes[node].epoch;
            let is_newest = self.row.as_ref().is_none_or(|row| {
                row.claim < claim
                    || row.claim == claim && row.home.is_some_and(|home| home.0 == node)
            });
            if !is_newest || claim.generation != self.generation {
                return self.nodes[node].handle_replaced(claim);
            }
            self.tell(node);
            self.row = Some(Row { claim, home: Some((node, epoch)) });
            // The socket may have ended, and its claim have been released, before the statement.
            if self.nodes[node].claims.claim(ENV) != Some(claim) {
                self.release(node, claim);
            }
        }

        fn release(&mut self, node: usize, claim: ClaimId) {
            if let Some(row) = &mut self.row
                && row.claim == claim
                && row.home.is_some_and(|home| home.0 == node)
            {
                row.home = None;
            }
        }

        fn answer(&mut self, node: usize, index: usize) {
            let Some(claim) = take(&mut self.nodes[node].answers, index) else { return };
            let it = &mut self.nodes[node];
            if it.claims.may_attach(ENV, claim) {
                it.close();
                it.open = Some(claim);
                it.claims.hold(ENV, "r", claim);
            } else {
                self.release(node, claim);
            }
            self.nodes[node].claims.end_asking(ENV);
        }

        fn gone(&mut self, node: usize, index: usize) {
            let Some(claim) = take(&mut self.nodes[node].closing, index) else { return };
            self.nodes[node].claims.handle_gone(ENV, claim);
            self.release(node, claim);
        }

        fn look(&mut self, node: usize) {
            let home = Some((node, self.nodes[node].epoch));
            let unanswered = self.nodes[node].claims.take_unanswered();
            self.nodes[node].unanswered.extend(unanswered);
            self.nodes[node].entry = Some(Entry {
                generation: Some(self.generation),
                claim: self.row.as_ref().map(|row| row.claim),
                is_here: self.row.as_ref().is_some_and(|row| row.home == home),
            });
        }

        fn judge(&mut self, node: usize) {
            let it = &mut self.nodes[node];
            let Some(entry) = it.entry.take() else { return };
            match it.claims.check(ENV, entry) {
                Verdict::Keep => {}
                Verdict::Close => it.close(),
                Verdict::ClaimAgain => it.again = it.claims.claim(ENV),
            }
            if it.unanswered.pop().is_some()
                && let Some(claim) = it.claims.check_unanswered(ENV, entry)
            {
                self.release(node, claim);
            }
        }

        /// The node's next process, or the same one with a new epoch.
        fn restart(&mut self, node: usize) {
            self.epochs += 1;
            let ended: Vec<_> =
                self.nodes[node].answers.iter().chain(&self.nodes[node].open).copied().collect();
            ended.into_iter().for_each(|claim| self.end_socket(claim));
            self.nodes[node] = Node { epoch: self.epochs, ..Node::default() };
        }

        fn step(&mut self, (kind, node, index): (u8, usize, usize)) {
            match kind {
                0..4 => self.ask(node),
                4..8 => self.answer(node, index),
                8 => {
                    // The connection has ended before the answer.
                    if let Some(claim) = take(&mut self.nodes[node].answers, index) {
                        self.end_socket(claim);
                        self.nodes[node].claims.end_asking(ENV);
                        self.release(node, claim);
                    }
                }
                9 => {
                    // The statement was executed, but its answer is lost.
                    if let Some(claim) = take(&mut self.nodes[node].answers, index) {
                        self.end_socket(claim);
                        self.nodes[node].claims.handle_unanswered(ENV);
                        self.nodes[node].claims.end_asking(ENV);
                    }
                }
                10 => {
                    if let Some(claim) = self.nodes[node].open {
                        self.end_socket(claim);
                        self.nodes[node].close();
                    }
                }
                11 => self.gone(node, index),
                // Messages arrive late, in any order and again, or never.
                12 | 13 => {
                    if !self.messages.is_empty() {
                        let (to, epoch, claim) = self.messages[index % self.messages.len()];
                        if self.nodes[to].epoch == epoch {
                            self.nodes[to].handle_replaced(claim);
                        }
                    }
                }
                14 => self.take_superseded(node),
                15 => std::mem::take(&mut self.nodes[node].told)
                    .into_iter()
                    .for_each(|claim| self.nodes[node].handle_replaced(claim)),
                16 => self.look(node),
                17 => self.judge(node),
                18 => self.claim_again(node),
                19 => self.restart(node),
                20 => {
                    // Others have declared the epoch dead.
                    self.epochs += 1;
                    let it = &mut self.nodes[node];
                    (it.epoch, it.again) = (self.epochs, it.claims.claim(ENV));
                }
                21 => {
                    // The node that registers may stop before it tells the others.
                    self.generation += 1;
                    if index.is_multiple_of(2) {
                        self.tell(node);
                        let all = claim(self.generation - 1, u64::MAX);
                        self.nodes[node].handle_replaced(all);
                    }
                }
                _ => {
                    // A crash of the database empties these tables.
                    self.row = None;
                    self.superseded.clear();
                }
            }
        }

        fn take_superseded(&mut self, node: usize) {
            let (epoch, rows) = (self.nodes[node].epoch, std::mem::take(&mut self.superseded));
            let (ours, others): (Vec<_>, Vec<_>) =
                rows.into_iter().partition(|row| (row.0, row.1) == (node, epoch));
            self.superseded = others;
            self.nodes[node].told.extend(ours.into_iter().map(|row| row.2));
        }

        /// Every node does what it does by itself; messages between them are lost.
        fn settle(&mut self) {
            for _ in 0..4 {
                for node in 0..NODES {
                    while !self.nodes[node].answers.is_empty() {
                        self.answer(node, 0);
                    }
                    for kind in [14, 15, 16, 17, 18] {
                        self.step((kind, node, 0));
                    }
                    while !self.nodes[node].closing.is_empty() {
                        self.gone(node, 0);
                    }
                }
            }
        }

        /// Nodes whose executor gets new streams, as the table says.
        fn serving(&self) -> Vec<usize> {
            let claim = self.row.as_ref().map(|row| row.claim);
            let serves = |node: &usize| {
                let it = &self.nodes[*node];
                it.open.is_some() && it.claims.claim(ENV) == claim
            };
            (0..NODES).filter(serves).collect()
        }
    }

    fn take<T>(list: &mut Vec<T>, index: usize) -> Option<T> {
        let index = index.checked_rem(list.len())?;
        Some(list.remove(index))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Nodes claim, stop and go on, sockets end, messages are late, lost and repeated, the database loses its table.
        #[test]
        fn an_executor_has_one_home_and_it_is_the_newest(
            events in prop::collection::vec((0..23_u8, 0..NODES, 0..8_usize), 1..60),
        ) {
            let mut model = Model::start();
            for event in events {
                model.step(event);
                prop_assert!(model.serving().len() <= 1, "two homes get new streams");
            }
            model.settle();
            let open: Vec<usize> = (0..NODES).filter(|it| model.nodes[*it].open.is_some()).collect();
            prop_assert!(open.len() <= 1, "two homes are left: {open:?}");
            prop_assert_eq!(model.serving(), open.clone(), "an executor cannot be reached");
            // The table names no live node that has no executor.
            let home = model.row.as_ref().and_then(|row| row.home);
            let live = home.filter(|(node, epoch)| model.nodes[*node].epoch == *epoch);
            prop_assert_eq!(live.map(|home| home.0), open.first().copied());
            if let Some((newest, is_alive)) = model.newest {
                let is_current = newest.generation == model.generation;
                let held = open.first().and_then(|node| model.nodes[*node].open);
                prop_assert!(!is_alive || !is_current || held == Some(newest), "an older one won");
                prop_assert!(held.is_none_or(|held| held.generation == model.generation));
            }
        }
    }
}
