//! Claims of executors in PostgreSQL, made by several nodes at once.
//!
//! A session of the test holds locks, so that the statements of the nodes overlap in a known order.

use std::sync::Arc;

use exec_server_rendezvous::held_claims::Entry;
use exec_server_rendezvous::store::{
    ClaimId, ClaimRequest, Claimed, HeldClaim, NewRegistration, NodeReport, PostgresStore, Store,
    Token, TokenRole,
};
use exec_server_testkit::eventually;
use exec_server_testkit::postgres::{Postgres, PostgresSession};
use exec_server_testkit::rendezvous::public_key;
use tokio::task::JoinHandle;

/// Environments; each has the registration `r-ENVIRONMENT`.
const ENVIRONMENTS: [&str; 2] = ["env-1", "env-2"];

/// A new database, two nodes on it, and a session of the test.
struct Rig {
    a: TestNode,
    b: TestNode,
    session: PostgresSession,
    url: String,
}

/// What a node asks the database.
#[derive(Clone)]
struct TestNode {
    name: &'static str,
    epoch: u64,
    store: Arc<PostgresStore>,
}

impl Rig {
    async fn start() -> Option<Self> {
        let url = tokio::task::spawn_blocking(Postgres::shared_database).await.unwrap()?;
        PostgresStore::migrate(&url).await.unwrap();
        let (a, b) = (TestNode::join("a", &url).await, TestNode::join("b", &url).await);
        for (number, environment) in (0..).zip(ENVIRONMENTS) {
            let token = Token {
                id: format!("token-{environment}"),
                role: TokenRole::Executor,
                environment: Some(environment.into()),
                created_at: 0,
                expires_at: None,
                revoked_at: None,
                last_used_at: None,
                max_streams: None,
                label: None,
            };
            a.store.add_token(token, [number; 32]).await.unwrap();
            let new = NewRegistration {
                id: format!("r-{environment}"),
                environment: environment.into(),
                executor_key: public_key(1),
                attached: None,
            };
            assert_eq!(a.store.register(new, 0).await.unwrap(), Ok(1));
        }
        let session = Postgres::shared_session(&url);
        Some(Self { a, b, session, url })
    }

    /// Waits until so many statements of the nodes wait for a lock.
    async fn wait_for_blocked(&self, count: usize) {
        let asked = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let is_so = || Postgres::run_shared_sql(&self.url, asked) == count.to_string();
        eventually("the statements wait", is_so).await;
    }

    /// The claim in the table, and its node.
    fn current(&self, environment: &str) -> (String, u64) {
        let asked =
            format!("SELECT node, sequence FROM presence WHERE environment = '{environment}'");
        let row = Postgres::run_shared_sql(&self.url, &asked);
        let (node, sequence) = row.split_once('|').expect("one row");
        (node.to_owned(), sequence.parse().unwrap())
    }
}

impl TestNode {
    async fn join(name: &'static str, url: &str) -> Self {
        let store = Arc::new(PostgresStore::open(url).await.unwrap());
        let epoch = store.join(name, "http://n").await.unwrap().expect("the name is free");
        Self { name, epoch, store }
    }

    /// Claims executors; all of them are granted.
    async fn claim(&self, environments: &[&str]) -> Vec<Claimed> {
        let request = |environment: &&str| ClaimRequest {
            environment: (*environment).to_owned(),
            registration: format!("r-{environment}"),
            generation: 1,
        };
        let asked: Vec<_> = environments.iter().map(request).collect();
        let claims = self.store.claim(self.name, self.epoch, &asked).await.unwrap();
        claims.into_iter().map(|it| it.expect("the registration is current")).collect()
    }

    fn spawn_claim(&self, environments: &'static [&'static str]) -> JoinHandle<Vec<Claimed>> {
        let node = self.clone();
        tokio::spawn(async move { node.claim(environments).await })
    }

    /// Makes claims of `env-1` again.
    async fn claim_again(&self, claim: ClaimId) -> Option<Claimed> {
        let environment = "env-1".to_owned();
        let held = HeldClaim { environment, registration: "r-env-1".to_owned(), claim };
        self.store.claim_again(self.name, self.epoch, &[held]).await.unwrap().remove(0)
    }

    /// What the database says about `env-1`, for this node.
    async fn entry(&self) -> Entry {
        self.store.entries(self.name, self.epoch, &["env-1"]).await.unwrap()["env-1"]
    }

    /// A claim of this node, as the node that replaces it learns.
    fn holder(&self, claim: ClaimId) -> Option<(String, u64, ClaimId)> {
        Some((self.name.to_owned(), self.epoch, claim))
    }

    /// The claims of this node that the table says were replaced.
    async fn superseded(&self) -> Vec<(String, ClaimId)> {
        let report = NodeReport {
            node: self.name.to_owned(),
            epoch: self.epoch,
            is_leaving: false,
            is_deaf: false,
            executors: 0,
            streams: 0,
        };
        let mut superseded = self.store.renew(&report).await.unwrap().superseded;
        superseded.sort();
        superseded
    }
}

#[tokio::test]
async fn a_statement_that_waits_for_another_claims_with_a_newer_token() {
    // With rows, and before there are any.
    for is_claimed_before in [true, false] {
        let Some(mut rig) = Rig::start().await else { return };
        let lock = if is_claimed_before {
            rig.a.claim(&ENVIRONMENTS).await;
            "SELECT 1 FROM presence WHERE environment = 'env-1' FOR UPDATE"
        } else {
            "INSERT INTO presence VALUES ('env-1', 0, 0, '', '', 0, 0)"
        };
        rig.session.run(&format!("BEGIN; {lock}"));
        let late = rig.a.spawn_claim(&ENVIRONMENTS);
        rig.wait_for_blocked(1).await;
        let early = rig.b.claim(&["env-2"]).await.remove(0);
        rig.session.run("ROLLBACK");
        let late = late.await.unwrap().remove(1);
        assert!(late.claim > early.claim, "{late:?} {early:?}");
        assert_eq!(late.previous, rig.b.holder(early.claim));
        assert_eq!(rig.b.superseded().await, [("env-2".to_owned(), early.claim)]);
        assert_eq!(rig.current("env-2"), ("a".to_owned(), late.claim.sequence));
    }
}

#[tokio::test]
async fn of_many_claims_at_once_each_replaces_the_one_before() {
    let Some(mut rig) = Rig::start().await else { return };
    rig.a.claim(&["env-1"]).await;
    rig.session.run("BEGIN; SELECT 1 FROM presence WHERE environment = 'env-1' FOR UPDATE");
    let nodes = [&rig.a, &rig.b].repeat(4);
    let claims: Vec<_> = nodes.iter().map(|node| node.spawn_claim(&["env-1"])).collect();
    rig.wait_for_blocked(claims.len()).await;
    rig.session.run("COMMIT");
    let mut made = Vec::new();
    for (node, claim) in nodes.iter().zip(claims) {
        made.push((claim.await.unwrap().remove(0), *node));
    }
    made.sort_by_key(|it| it.0.claim);
    let mut replaced = Vec::new();
    for pair in made.windows(2) {
        let ((old, from), (new, to)) = (&pair[0], &pair[1]);
        // A node replaces its own socket by itself.
        let is_told = from.name != to.name;
        let previous = if is_told { from.holder(old.claim) } else { None };
        assert_eq!(new.previous, previous);
        replaced.extend(is_told.then(|| ("env-1".to_owned(), old.claim)));
    }
    let mut told = [rig.a.superseded().await, rig.b.superseded().await].concat();
    told.sort();
    // The first of them has replaced a claim of `a`, made before.
    told.retain(|it| it.1 >= made[0].0.claim);
    assert_eq!(told, replaced);
    let (newest, node) = made.last().unwrap();
    assert_eq!(rig.current("env-1"), (node.name.to_owned(), newest.claim.sequence));
}

#[tokio::test]
async fn a_release_and_a_claim_do_not_wait_for_each_other_in_a_circle() {
    let Some(mut rig) = Rig::start().await else { return };
    let held = rig.b.claim(&ENVIRONMENTS).await;
    rig.session.run("BEGIN; SELECT 1 FROM presence WHERE environment = 'env-1' FOR UPDATE");
    let claim = rig.a.spawn_claim(&ENVIRONMENTS);
    rig.wait_for_blocked(1).await;
    let ended = ENVIRONMENTS.iter().zip(held).rev();
    let ended: Vec<_> = ended.map(|(name, it)| ((*name).to_owned(), it.claim)).collect();
    let node = rig.b.clone();
    let release = tokio::spawn(async move { node.store.release("b", &ended).await });
    rig.wait_for_blocked(2).await;
    rig.session.run("COMMIT");
    // The claim comes first, so nothing is left to release.
    let claims = claim.await.unwrap();
    release.await.unwrap().unwrap();
    for (environment, claimed) in ENVIRONMENTS.iter().zip(claims) {
        assert_eq!(rig.current(environment), ("a".to_owned(), claimed.claim.sequence));
    }
}

#[tokio::test]
async fn a_claim_that_is_made_again_stays_the_same_and_replaces_only_older_ones() {
    let Some(rig) = Rig::start().await else { return };
    let old = rig.a.claim(&["env-1"]).await.remove(0).claim;
    let new = rig.b.claim(&["env-1"]).await.remove(0).claim;
    assert_eq!(rig.a.claim_again(old).await, None);
    let here = Entry { generation: Some(1), claim: Some(new), is_here: true };
    assert_eq!(rig.b.entry().await, here);
    assert_eq!(rig.a.entry().await, Entry { is_here: false, ..here });
    // A crash of the database empties the tables; the nodes come in any order.
    let empty = "TRUNCATE presence, superseded";
    for older_comes_first in [true, false] {
        Postgres::run_shared_sql(&rig.url, empty);
        assert_eq!(rig.a.entry().await, Entry { generation: Some(1), ..Entry::default() });
        let first = Claimed { claim: old, previous: None };
        let previous = if older_comes_first { rig.a.holder(old) } else { None };
        if older_comes_first {
            assert_eq!(rig.a.claim_again(old).await, Some(first));
        }
        assert_eq!(rig.b.claim_again(new).await, Some(Claimed { claim: new, previous }));
        assert_eq!(rig.a.claim_again(old).await, None);
        assert_eq!(rig.current("env-1"), ("b".to_owned(), new.sequence));
        assert_eq!(rig.a.superseded().await.len(), usize::from(older_comes_first));
    }
    // With a new epoch of its node, and not after its release.
    let later = TestNode { epoch: rig.b.epoch + 100, ..rig.b.clone() };
    assert!(!later.entry().await.is_here);
    assert_eq!(later.claim_again(new).await, Some(Claimed { claim: new, previous: None }));
    assert!(later.entry().await.is_here);
    rig.b.store.release("b", &[("env-1".to_owned(), new)]).await.unwrap();
    assert_eq!(later.claim_again(new).await, None);
    // A sequence that a crash has set back draws no older token.
    Postgres::run_shared_sql(&rig.url, "SELECT setval('claim_sequence', 1)");
    assert!(rig.a.claim(&["env-1"]).await.remove(0).claim > new);
}

#[tokio::test]
async fn a_newer_registration_finds_the_claim_of_an_older_one_at_another_node() {
    let Some(rig) = Rig::start().await else { return };
    let claim = rig.a.claim(&["env-1"]).await.remove(0).claim;
    let supersede = async |node: &TestNode, generation| {
        node.store.supersede(node.name, "env-1", generation).await.unwrap()
    };
    assert_eq!(supersede(&rig.b, 1).await, None, "it is not older");
    assert_eq!(supersede(&rig.a, 2).await, None, "a node closes its own");
    assert_eq!(rig.a.superseded().await, []);
    assert_eq!(supersede(&rig.b, 2).await, rig.a.holder(claim));
    assert_eq!(rig.a.superseded().await, [("env-1".to_owned(), claim)]);
    rig.a.store.release("a", &[("env-1".to_owned(), claim)]).await.unwrap();
    assert_eq!(supersede(&rig.b, 2).await, None, "it has left");
}
