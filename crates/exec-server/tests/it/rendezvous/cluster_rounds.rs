//! What must hold every time, tried many times: single use, one home, signals that are lost or doubled.
//!
//! By default some hundred times; `EXEC_SERVER_TEST_LONG=1` tries as often as the design asks for.

use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_relay::frame::{RESET_HARNESS_DISCONNECTED, RelayBody};
use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::nats_proxy::{MessageFault, NatsProxy};
use exec_server_testkit::rendezvous::{public_key, register_body, upgrade_at};
use exec_server_testkit::{DEADLINE, RelaySocket, Relayed, eventually};
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::cluster::expect_echo;
use super::{refusal, rejected, url};

/// How often something is tried: `short` times, or `full` times if the variable is set.
pub fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("EXEC_SERVER_TEST_LONG").is_some() { full } else { short }
}

#[tokio::test]
async fn one_authorization_and_one_url_offered_to_all_nodes_at_once_are_used_once() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let nodes = [cluster.node("a").await, cluster.node("b").await, cluster.node("c").await];
    cluster.wait_for_members(&nodes.each_ref()).await;
    let executor = cluster.token(&nodes[0], "executor", "env").await;
    let harness = cluster.token(&nodes[1], "harness", "env").await;
    let registered = nodes[0].register(&executor).await;
    let _socket = RelaySocket::open(&nodes[2].at(url(&registered))).await;
    let all_opened = &AtomicUsize::new(0);
    let (nodes, executor, harness) = (&nodes, &executor, &harness);
    let offer = |round: usize| async move {
        let bundle = nodes[round % 3].connect(harness).await;
        let body = json!({
            "executor_registration_id": bundle["executor_registration_id"],
            "harness_public_key": public_key(2),
            "harness_key_authorization": bundle["harness_key_authorization"],
        });
        let path = "/cloud/environment/env/validate";
        // Each node twice, all at the same instant.
        let twice = || nodes.iter().chain(nodes);
        let validate = twice().map(|node| node.ask("POST", path, executor, &body));
        let urls: Vec<String> = twice().map(|node| node.at(url(&bundle))).collect();
        let (replies, upgrades) =
            tokio::join!(join_all(validate), join_all(urls.iter().map(|url| upgrade_at(url))));
        let valid = replies.iter().filter(|reply| reply.body.contains("true")).count();
        assert_eq!(valid, 1, "round {round}: {replies:?}");
        // The URL is admitted once, and used up everywhere else.
        let used_up = (401, "expired".to_owned());
        let mut admitted = upgrades.iter().enumerate().filter(|it| rejected(it.1) != used_up);
        let (Some((place, reply)), None) = (admitted.next(), admitted.next()) else {
            panic!("round {round}: {upgrades:?}");
        };
        // The stream opens there, unless the home node is too busy to answer another one in time.
        let is_home = place % 3 == 2;
        let is_late = !is_home && rejected(reply) == (401, "route_unavailable".to_owned());
        assert!(reply.status == 101 || is_late, "round {round}: {upgrades:?}");
        all_opened.fetch_add(usize::from(!is_late), Ordering::Relaxed);
    };
    // Some at a time, so that unclaimed streams stay below their limit.
    let count = rounds(100, 10_000);
    futures_util::stream::iter(0..count).for_each_concurrent(8, offer).await;
    let opened = all_opened.load(Ordering::Relaxed);
    assert!(opened >= count / 4, "{opened} of {count} URLs opened a stream");
}

#[tokio::test]
async fn of_two_executors_that_attach_at_two_nodes_at_once_one_is_left() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    cluster.wait_for_members(&[&a, &b]).await;
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    for round in 0..100 {
        // At two nodes, and twice at one.
        let second = if round % 4 == 3 { &a } else { &b };
        let (first, second) = (a.at(url(&registered)), second.at(url(&registered)));
        let (first, second) =
            tokio::join!(RelaySocket::try_open(&first), RelaySocket::try_open(&second));
        let mut left = None;
        let mut sockets: Vec<RelaySocket> = [first, second].into_iter().flatten().collect();
        assert!(!sockets.is_empty(), "round {round}: both were refused");
        if let [one, other] = &mut sockets[..] {
            let superseded = |ended| assert_eq!(ended, Relayed::Closed(1008, "superseded".into()));
            tokio::select! {
                ended = one.next() => {
                    superseded(ended);
                    left = Some(1);
                }
                ended = other.next() => {
                    superseded(ended);
                    left = Some(0);
                }
            }
        }
        let mut socket = sockets.swap_remove(left.unwrap_or(0));
        let asked = if round % 2 == 0 { &a } else { &b };
        let mut stream = open(asked, &a, &harness).await;
        expect_echo(&mut stream, &mut socket).await;
    }
}

/// Asks one node and arrives at another, again while an executor is on its way.
async fn open(asked: &Node, arrival: &Node, token: &str) -> RelaySocket {
    let opening = async {
        loop {
            let bundle = asked.connect(token).await;
            if let Some(socket) = RelaySocket::try_open(&arrival.at(url(&bundle))).await {
                return socket;
            }
        }
    };
    tokio::time::timeout(DEADLINE, opening).await.expect("the executor is found")
}

#[tokio::test]
async fn under_first_wins_the_executor_that_is_attached_stays() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let nodes = [cluster.node("a").await, cluster.node("b").await];
    cluster.wait_for_members(&nodes.each_ref()).await;
    let token = cluster.token(&nodes[0], "executor", "env").await;
    let harness = cluster.token(&nodes[0], "harness", "env").await;
    let policy = json!({"policy": "first-wins"});
    let reply = nodes[0].ask("PATCH", "/admin/environments/env", &cluster.admin, &policy).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let path = "/cloud/environment/env/register";
    for round in 0..100_usize {
        let (here, there) = (&nodes[round % 2], &nodes[1 - round % 2]);
        let (own, other) = (register_body(&public_key(1)), register_body(&public_key(9)));
        let registering = async {
            // The one of the round before may not be gone yet.
            loop {
                let reply = here.ask("POST", path, &token, &own).await;
                if reply.status == 200 {
                    return serde_json::from_str::<Value>(&reply.body).unwrap();
                }
                assert_eq!(refusal(&reply), (409, "environment_in_use".to_owned()));
            }
        };
        let registered = tokio::time::timeout(DEADLINE, registering).await.expect("it is free");
        let mut socket = RelaySocket::open(&here.at(url(&registered))).await;
        let tries = [there, here, there].map(|node| node.ask("POST", path, &token, &other));
        for reply in join_all(tries).await {
            assert_eq!(refusal(&reply), (409, "environment_in_use".to_owned()), "round {round}");
        }
        let mut stream = open(there, here, &harness).await;
        expect_echo(&mut stream, &mut socket).await;
    }
}

/// Two nodes whose messages pass a proxy, an executor at `home`, and its token.
struct Proxied {
    cluster: Cluster,
    proxy: NatsProxy,
    door: Node,
    home: Node,
    registered: Value,
    executor: String,
    harness: String,
}

impl Proxied {
    async fn start() -> Option<Self> {
        let mut cluster = Cluster::with_nats().await?;
        let proxy = NatsProxy::start(cluster.nats.as_deref().unwrap()).await;
        cluster.nats = Some(proxy.url());
        let (door, home) = (cluster.node("door").await, cluster.node("home").await);
        cluster.wait_for_members(&[&door, &home]).await;
        let executor = cluster.token(&door, "executor", "env").await;
        let harness = cluster.token(&door, "harness", "env").await;
        let registered = door.register(&executor).await;
        Some(Self { cluster, proxy, door, home, registered, executor, harness })
    }

    /// Waits until the home node has handled the messages that were sent to it before.
    async fn wait_for_control(&self) {
        let known = async {
            loop {
                // The other node asks it for the number of streams.
                let (admin, door) = (&self.cluster.admin, &self.door);
                let reply = door.ask("GET", "/admin/environments", admin, &Value::Null).await;
                let list: Value = serde_json::from_str(&reply.body).unwrap();
                if list["environments"][0]["streams"].is_number() {
                    break;
                }
            }
        };
        tokio::time::timeout(DEADLINE, known).await.expect("the home node answers");
    }

    /// The trunk links of the home node.
    async fn links(&self) -> u64 {
        self.home.metric(&self.cluster.admin, "exec_server_trunk_links").await
    }

    async fn wait_for_no_links(&self) {
        let gone = async { while self.links().await > 0 {} };
        tokio::time::timeout(DEADLINE, gone).await.expect("the link ends");
    }

    async fn revoke(&self, role: &str) {
        let (node, admin) = (&self.door, &self.cluster.admin);
        let reply = node.ask("GET", "/admin/tokens", admin, &Value::Null).await;
        let list: Value = serde_json::from_str(&reply.body).unwrap();
        let tokens = list["tokens"].as_array().unwrap();
        let token = tokens.iter().find(|token| token["role"] == role).unwrap();
        let path = format!("/admin/tokens/{}", token["id"].as_str().unwrap());
        assert_eq!(node.ask("DELETE", &path, admin, &Value::Null).await.status, 200);
    }
}

#[tokio::test]
async fn a_signal_that_is_lost_is_repaired_and_one_that_is_doubled_does_no_more() {
    for fault in [MessageFault::Lose, MessageFault::Double] {
        let Some(it) = Proxied::start().await else { return };
        let mut old = RelaySocket::open(&it.home.at(url(&it.registered))).await;
        // The message that the executor is elsewhere now.
        it.proxy.fault_next(fault, ".ctl", 0);
        let mut new = RelaySocket::open(&it.door.at(url(&it.registered))).await;
        old.expect_closed(1008, "superseded").await;
        assert!(it.proxy.is_done(), "{fault:?}");
        // And back, so that an old message would end a newer claim.
        let mut newest = RelaySocket::open(&it.home.at(url(&it.registered))).await;
        new.expect_closed(1008, "superseded").await;
        let mut stream = open(&it.home, &it.home, &it.harness).await;
        expect_echo(&mut stream, &mut newest).await;
        // The message that tokens have ended.
        it.proxy.fault_next(fault, ".all", 0);
        it.revoke("harness").await;
        stream.expect_closed(1008, "token_revoked").await;
        assert!(it.proxy.is_done(), "{fault:?}");
        newest.ping().await;
        // The message that there is a newer registration.
        it.proxy.fault_next(fault, ".ctl", 0);
        it.door.register(&it.executor).await;
        newest.expect_closed(1008, "superseded").await;
        eventually("the message is sent", || it.proxy.is_done()).await;
    }
}

#[tokio::test]
async fn a_signal_that_is_replayed_after_a_newer_claim_changes_nothing() {
    let Some(it) = Proxied::start().await else { return };
    let mut old = RelaySocket::open(&it.home.at(url(&it.registered))).await;
    it.proxy.fault_next(MessageFault::Keep, ".ctl", 0);
    let mut moved = RelaySocket::open(&it.door.at(url(&it.registered))).await;
    old.expect_closed(1008, "superseded").await;
    eventually("the message is kept", || it.proxy.is_done()).await;
    let mut executor = RelaySocket::open(&it.home.at(url(&it.registered))).await;
    moved.expect_closed(1008, "superseded").await;
    // It names the first claim of the node, which now has the third.
    it.proxy.replay().await;
    it.wait_for_control().await;
    executor.ping().await;
    it.proxy.fault_next(MessageFault::Keep, ".ctl", 0);
    let bundle = it.home.connect(&it.harness).await;
    let mut stream = RelaySocket::open(&it.door.at(url(&bundle))).await;
    assert!(it.proxy.is_done());
    expect_echo(&mut stream, &mut executor).await;
    // The request for the link that is open.
    it.proxy.replay().await;
    it.wait_for_control().await;
    assert_eq!(it.links().await, 1);
    stream.send_data("s", "once").await;
    assert_eq!(executor.next_data().await.1, "once");
    drop(stream);
    let reason = RESET_HARNESS_DISCONNECTED.into();
    executor.expect("s", RelayBody::Reset { reason }).await;
    it.wait_for_no_links().await;
    // The request for a link that has ended: the asking node does not know it, and says so.
    it.proxy.replay().await;
    it.wait_for_control().await;
    it.wait_for_no_links().await;
    // The request for an older claim.
    let mut executor = RelaySocket::open(&it.home.at(url(&it.registered))).await;
    it.proxy.replay().await;
    it.wait_for_control().await;
    assert_eq!(it.links().await, 0);
    let mut stream = open(&it.door, &it.door, &it.harness).await;
    expect_echo(&mut stream, &mut executor).await;
}

#[tokio::test]
async fn a_request_for_a_link_that_is_lost_is_refused_and_one_that_is_doubled_opens_one() {
    let Some(it) = Proxied::start().await else { return };
    let mut executor = RelaySocket::open(&it.home.at(url(&it.registered))).await;
    let bundle = it.home.connect(&it.harness).await;
    it.proxy.fault_next(MessageFault::Lose, ".ctl", 0);
    // A harness asks again on 401.
    let reply = upgrade_at(&it.door.at(url(&bundle))).await;
    assert_eq!(reply.status, 401, "{reply:?}");
    assert!(it.proxy.is_done());
    for round in 0..10 {
        it.proxy.fault_next(MessageFault::Double, ".ctl", 0);
        let mut stream = open(&it.home, &it.door, &it.harness).await;
        assert!(it.proxy.is_done());
        stream.resume("s").await;
        executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
        for number in 0..20 {
            stream.send_data("s", format!("{round} {number}")).await;
            assert_eq!(executor.next_data().await.1, format!("{round} {number}"));
            executor.send_data("s", format!("back {number}")).await;
            assert_eq!(stream.next_data().await.1, format!("back {number}"));
        }
        assert_eq!(it.links().await, 1);
        let attached = it.home.metric(&it.cluster.admin, "exec_server_relay_streams_active").await;
        assert_eq!(attached, 1);
        drop(stream);
        let reason = RESET_HARNESS_DISCONNECTED.into();
        executor.expect("s", RelayBody::Reset { reason }).await;
        it.wait_for_no_links().await;
    }
}
