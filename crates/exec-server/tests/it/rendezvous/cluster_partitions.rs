//! One node of a cluster that packets no longer reach: from NATS, from PostgreSQL, or from both.
//!
//! The checker opens streams in every way that a harness can, and compares the executor that each reaches with the claims:
//! once an executor is attached elsewhere, no new stream may reach its old socket, whatever a node knows.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_relay::frame::RelayBody;
use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::fault_proxy::Toward;
use exec_server_testkit::{DEADLINE, FaultProxy, RelaySocket, Relayed, eventually};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::{refusal, url};

/// From what packets are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Nats,
    Database,
    Both,
}

/// Two nodes; `a` reaches PostgreSQL and NATS through proxies.
struct Rig {
    cluster: Cluster,
    a: Node,
    b: Node,
    database: FaultProxy,
    nats: FaultProxy,
    /// The URL of the executor.
    registered: Value,
    harness: String,
}

impl Rig {
    async fn start(grace: &'static str) -> Option<Self> {
        let mut cluster = Cluster::with_nats().await?;
        cluster.more = vec!["--isolation-grace", grace];
        let (database, nats) = (cluster.database_proxy().await, cluster.nats_proxy().await);
        let a = cluster.node_behind("a", &database, &nats).await;
        let b = cluster.node("b").await;
        cluster.wait_for_members(&[&a, &b]).await;
        let executor = cluster.token(&b, "executor", "env").await;
        let harness = cluster.token(&b, "harness", "env").await;
        let registered = b.register(&executor).await;
        Some(Self { cluster, a, b, database, nats, registered, harness })
    }

    fn cut(&self, cut: Cut) {
        let proxies = [(&self.nats, Cut::Nats), (&self.database, Cut::Database)];
        for (proxy, _) in proxies.into_iter().filter(|it| cut == Cut::Both || cut == it.1) {
            proxy.stall(Toward::Server);
            proxy.stall(Toward::Client);
        }
    }

    fn heal(&self) {
        self.nats.resume();
        self.database.resume();
    }

    async fn attach(&self, node: &Node) -> Echo {
        Echo::start(RelaySocket::open(&node.at(url(&self.registered))).await)
    }

    /// Opens a stream as a harness that asks one node and arrives at another; none if that is not possible now.
    async fn open(&self, asked: &Node, arrival: &Node, stream: &str) -> Option<RelaySocket> {
        let reply = asked.try_connect(&self.harness).await;
        if reply.status != 200 {
            let (_, code) = refusal(&reply);
            assert!(matches!(reply.status, 409 | 429 | 502 | 503), "{code}: {reply:?}");
            return None;
        }
        let bundle: Value = serde_json::from_str(&reply.body).unwrap();
        let mut socket = RelaySocket::try_open(&arrival.at(url(&bundle))).await?;
        socket.resume(stream).await;
        is_echoed(&mut socket, stream).await.then_some(socket)
    }

    /// Streams that could be opened, over every pair of nodes.
    async fn open_everywhere(&self, round: usize) -> BTreeSet<String> {
        let (a, b) = (&self.a, &self.b);
        let ways = [(a, a), (a, b), (b, a), (b, b)].into_iter().enumerate();
        let opening = ways.map(|(way, (asked, arrival))| async move {
            let stream = format!("round {round} way {way}");
            self.open(asked, arrival, &stream).await.map(|_| stream)
        });
        let opened = futures_util::future::join_all(opening).await;
        opened.into_iter().flatten().collect()
    }
}

/// Sends a record; whether it comes back.
async fn is_echoed(socket: &mut RelaySocket, stream: &str) -> bool {
    if !socket.try_send_data(stream, "hello").await {
        return false;
    }
    loop {
        match socket.next().await {
            Relayed::Frame(frame) => {
                if let RelayBody::Data(data) = frame.body {
                    assert_eq!(data.payload, "hello");
                    return true;
                }
            }
            Relayed::Closed(..) | Relayed::Cut => return false,
        }
    }
}

/// An executor that echoes, and notes which streams reach it.
struct Echo {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
    streams: BTreeSet<String>,
    end: Option<Relayed>,
}

impl Echo {
    fn start(mut socket: RelaySocket) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let noted = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                match socket.next().await {
                    Relayed::Frame(frame) => {
                        noted.lock().unwrap().streams.insert(frame.stream_id.clone());
                        if let RelayBody::Data(data) = frame.body {
                            socket.try_send_data(&frame.stream_id, data.payload).await;
                        }
                    }
                    end => {
                        noted.lock().unwrap().end = Some(end);
                        return;
                    }
                }
            }
        });
        Self { seen, task }
    }

    fn streams(&self) -> BTreeSet<String> {
        self.seen.lock().unwrap().streams.clone()
    }

    fn end(&self) -> Option<Relayed> {
        self.seen.lock().unwrap().end.clone()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The executor comes to another node while its old one is cut off, and the old connection seems to live.
async fn the_newer_home_alone_gets_new_streams(cut: Cut) {
    // The grace is longer than the test: the old socket stays.
    let Some(rig) = Rig::start("10m").await else { return };
    let old = rig.attach(&rig.a).await;
    let mut before = rig.open(&rig.a, &rig.a, "before").await.expect("all is well");
    rig.cut(cut);
    rig.a.wait_for_status("/readyz", 503).await;
    rig.b.wait_for_status("/readyz", 200).await;
    // What is attached goes on.
    assert!(is_echoed(&mut before, "before").await, "{cut:?}");
    let new = rig.attach(&rig.b).await;
    let known = old.streams();
    let mut opened = BTreeSet::new();
    for round in 0..3 {
        opened.extend(rig.open_everywhere(round).await);
    }
    assert!(opened.iter().any(|it| it.ends_with("way 3")), "{cut:?}: {opened:?}");
    assert_eq!(old.streams(), known, "{cut:?}: a new stream reached the old home");
    assert!(opened.is_subset(&new.streams()), "{cut:?}");
    rig.heal();
    eventually("the old socket is closed", || old.end().is_some()).await;
    assert_eq!(old.end(), Some(Relayed::Closed(1008, "superseded".to_owned())), "{cut:?}");
    rig.a.wait_for_status("/readyz", 200).await;
    let healed = async {
        let mut round = 3;
        while rig.open_everywhere(round).await.len() < 4 {
            round += 1;
        }
    };
    tokio::time::timeout(DEADLINE, healed).await.expect("every way leads to the new home");
    assert_eq!(old.streams(), known, "{cut:?}: a new stream reached the old home");
}

#[tokio::test]
async fn while_a_node_is_cut_off_from_nats_only_the_newer_home_gets_streams() {
    the_newer_home_alone_gets_new_streams(Cut::Nats).await;
}

#[tokio::test]
async fn while_a_node_is_cut_off_from_the_database_only_the_newer_home_gets_streams() {
    the_newer_home_alone_gets_new_streams(Cut::Database).await;
}

#[tokio::test]
async fn while_a_node_is_cut_off_from_both_only_the_newer_home_gets_streams() {
    the_newer_home_alone_gets_new_streams(Cut::Both).await;
}

#[tokio::test]
async fn an_executor_does_not_stay_at_a_node_that_cannot_serve_it() {
    for cut in [Cut::Nats, Cut::Database, Cut::Both] {
        let Some(rig) = Rig::start("500ms").await else { return };
        let old = rig.attach(&rig.a).await;
        assert!(rig.open(&rig.b, &rig.a, "before").await.is_some());
        rig.cut(cut);
        eventually("its executor is closed", || old.end().is_some()).await;
        let leaving = Relayed::Closed(1012, "node_leaving".to_owned());
        assert_eq!(old.end(), Some(leaving), "{cut:?}");
        // It does not come back there, where it would be closed again.
        let socket = RelaySocket::try_open(&rig.a.at(url(&rig.registered))).await;
        assert!(socket.is_none(), "{cut:?}");
        let new = rig.attach(&rig.b).await;
        assert!(rig.open(&rig.b, &rig.b, "after").await.is_some(), "{cut:?}");
        rig.heal();
        rig.a.wait_for_status("/readyz", 200).await;
        assert!(new.end().is_none(), "{cut:?}");
        let healed = async { while rig.open(&rig.a, &rig.a, "healed").await.is_none() {} };
        tokio::time::timeout(DEADLINE, healed).await.expect("the node serves again");
    }
}

#[tokio::test]
async fn executors_stay_while_the_database_is_cut_off_from_all_nodes() {
    let Some(mut cluster) = Cluster::with_nats().await else { return };
    cluster.more = vec!["--isolation-grace", "100ms"];
    let (database, nats) = (cluster.database_proxy().await, cluster.nats_proxy().await);
    let a = cluster.node_behind("a", &database, &nats).await;
    let b = cluster.node_behind("b", &database, &nats).await;
    cluster.wait_for_members(&[&a, &b]).await;
    let executor = cluster.token(&b, "executor", "env").await;
    let harness = cluster.token(&b, "harness", "env").await;
    let registered = b.register(&executor).await;
    let old = Echo::start(RelaySocket::open(&a.at(url(&registered))).await);
    let mut stream = RelaySocket::open(&b.at(url(&b.connect(&harness).await))).await;
    stream.resume("s").await;
    assert!(is_echoed(&mut stream, "s").await, "it passes through the trunk");
    database.stall(Toward::Server);
    database.stall(Toward::Client);
    a.wait_for_status("/readyz", 503).await;
    b.wait_for_status("/readyz", 503).await;
    // Longer than two leases, and many times the grace.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(is_echoed(&mut stream, "s").await);
    assert_eq!(old.end(), None);
    database.resume();
    a.wait_for_status("/readyz", 200).await;
    b.wait_for_status("/readyz", 200).await;
    assert!(is_echoed(&mut stream, "s").await);
    assert_eq!(old.end(), None);
}

#[tokio::test]
async fn an_executor_that_left_while_its_node_was_cut_off_from_the_database_is_offline() {
    let Some(rig) = Rig::start("10m").await else { return };
    let old = rig.attach(&rig.a).await;
    assert!(rig.open(&rig.b, &rig.a, "before").await.is_some());
    rig.cut(Cut::Database);
    rig.a.wait_for_status("/readyz", 503).await;
    drop(old);
    // The answer to the release never comes.
    rig.database.stall_open_connections();
    rig.database.resume_new_connections();
    rig.a.wait_for_status("/readyz", 200).await;
    let is_offline = async {
        loop {
            let (status, code) = refusal(&rig.b.try_connect(&rig.harness).await);
            if (status, code.as_str()) == (409, "environment_offline") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(DEADLINE, is_offline).await.expect("its claim is released");
}

#[tokio::test]
async fn a_revoked_token_ends_at_a_node_that_only_one_of_the_two_reaches() {
    for cut in [Cut::Database, Cut::Nats] {
        let Some(rig) = Rig::start("10m").await else { return };
        let old = rig.attach(&rig.a).await;
        let mut stream = rig.open(&rig.a, &rig.a, "s").await.expect("all is well");
        rig.cut(cut);
        // The message alone closes it, or the look at the database.
        let admin = &rig.cluster.admin;
        let reply = rig.b.ask("GET", "/admin/tokens", admin, &Value::Null).await;
        let list: Value = serde_json::from_str(&reply.body).unwrap();
        let tokens = list["tokens"].as_array().unwrap();
        let token = tokens.iter().find(|token| token["role"] == "harness").unwrap();
        let path = format!("/admin/tokens/{}", token["id"].as_str().unwrap());
        assert_eq!(rig.b.ask("DELETE", &path, admin, &Value::Null).await.status, 200);
        stream.expect_closed(1008, "token_revoked").await;
        assert_eq!(old.end(), None, "{cut:?}");
    }
}
