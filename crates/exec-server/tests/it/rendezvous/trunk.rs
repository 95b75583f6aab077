//! Streams whose two ends are at different nodes: their frames pass through NATS.

use exec_server_relay::frame::{RESET_HARNESS_DISCONNECTED, RelayBody};
use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::executor::Signal;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::nats::Nats;
use exec_server_testkit::nats_proxy::{MessageFault, NatsProxy};
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::{DEADLINE, RelaySocket, Relayed};
use serde_json::Value;

use super::cluster::expect_echo;
use super::url;

/// Two nodes: the executor is at `home`, harnesses arrive at `door`.
struct Pair {
    cluster: Cluster,
    door: Node,
    home: Node,
    executor: RelaySocket,
    harness_token: String,
}

impl Pair {
    async fn start() -> Option<Self> {
        Self::of(Cluster::with_nats().await?).await
    }

    async fn of(cluster: Cluster) -> Option<Self> {
        let (door, home) = (cluster.node("door").await, cluster.node("home").await);
        cluster.wait_for_members(&[&door, &home]).await;
        let token = cluster.token(&door, "executor", "env").await;
        let harness_token = cluster.token(&door, "harness", "env").await;
        let registered = door.register(&token).await;
        let executor = RelaySocket::open(&home.at(url(&registered))).await;
        Some(Self { cluster, door, home, executor, harness_token })
    }

    /// Opens a harness's websocket at the node that is not the executor's.
    async fn harness(&self) -> RelaySocket {
        let bundle = self.door.connect(&self.harness_token).await;
        RelaySocket::open(&self.door.at(url(&bundle))).await
    }

    async fn links(&self, node: &Node) -> u64 {
        node.metric(&self.cluster.admin, "exec_server_trunk_links").await
    }

    async fn wait_for_links(&self, node: &Node, count: u64) {
        let asking = async { while self.links(node).await != count {} };
        tokio::time::timeout(DEADLINE, asking).await.expect("links come and go in time");
    }
}

fn reset(why: &str) -> RelayBody {
    RelayBody::Reset { reason: why.into() }
}

#[tokio::test]
async fn a_stream_through_two_nodes_carries_every_frame_in_order() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    assert_eq!((pair.links(&pair.door).await, pair.links(&pair.home).await), (1, 1));
    let frame = |number: usize| {
        let mut frame = format!("{number} ").into_bytes();
        frame.resize(1 + number * 7919 % 100_000, b'x');
        frame
    };
    for is_back in [false, true] {
        let (from, to) = match is_back {
            false => (&mut harness, &mut pair.executor),
            true => (&mut pair.executor, &mut harness),
        };
        for first in (0..300).step_by(10) {
            for number in first..first + 10 {
                from.send_data("s", frame(number)).await;
            }
            for number in first..first + 10 {
                assert!(to.next_data().await.1 == frame(number), "frame {number}");
            }
        }
    }
    // Another stream beside it, which the executor ends.
    let mut other = pair.harness().await;
    other.resume("t").await;
    pair.executor.expect("t", RelayBody::Resume { next_seq: 0 }).await;
    pair.executor.send_data("t", "last words").await;
    pair.executor.send("t", reset("enough")).await;
    assert_eq!(other.next_data().await.1, "last words");
    other.expect("t", reset("enough")).await;
    other.expect_closed(1000, "stream_ended").await;
    pair.executor.expect("t", reset(RESET_HARNESS_DISCONNECTED)).await;
    // The executor learns that the harness has gone, after its last frame.
    harness.send_data("s", "bye").await;
    drop(harness);
    assert_eq!(pair.executor.next_data().await.1, "bye");
    pair.executor.expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;
    pair.wait_for_links(&pair.door, 0).await;
    pair.wait_for_links(&pair.home, 0).await;
}

#[tokio::test]
async fn what_a_harness_does_wrong_is_told_to_it_through_the_trunk() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    harness.send_bytes("no frame").await;
    harness.expect_closed(1002, "not_a_frame").await;
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    let mut second = pair.harness().await;
    second.resume("s").await;
    second.expect_closed(1008, "stream_taken").await;
    harness.send_text("text").await;
    harness.expect_closed(1003, "text_message").await;
    pair.executor.expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;
}

#[tokio::test]
async fn a_harness_that_does_not_read_is_closed_and_others_go_on() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut stuck = pair.harness().await;
    stuck.resume("stuck").await;
    pair.executor.expect("stuck", RelayBody::Resume { next_seq: 0 }).await;
    let mut other = pair.harness().await;
    expect_echo(&mut other, &mut pair.executor).await;
    // The kernel's buffers, the trunk's credits and the queue of the home node fill up, and then nothing is read.
    let flood = async {
        loop {
            pair.executor.try_send_data("stuck", vec![0; 60_000]).await;
        }
    };
    let closed = async {
        let name = "exec_server_trunk_links_ended_total{reason=\"too_slow\"}";
        while pair.door.metric(&pair.cluster.admin, name).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = flood => unreachable!("it goes on for ever"),
        closed = tokio::time::timeout(DEADLINE, closed) => closed.expect("the stall timeout passes"),
    }
    let reset = reset(RESET_HARNESS_DISCONNECTED);
    loop {
        let next = pair.executor.next().await;
        let Relayed::Frame(frame) = next else { panic!("{next:?}") };
        if frame.stream_id == "stuck" {
            assert_eq!(frame.body, reset);
            break;
        }
    }
    pair.executor.send_data("s", "still here").await;
    assert_eq!(other.next_data().await.1, "still here");
    drop(stuck);
}

#[tokio::test]
async fn an_executor_that_does_not_read_slows_its_harness_down_and_loses_nothing() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    let sending = async {
        for number in 0..400_u32 {
            let mut frame = number.to_be_bytes().to_vec();
            frame.resize(60_000, 7);
            harness.send_data("s", frame).await;
        }
    };
    let reading = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        for number in 0..400_u32 {
            let (_, frame) = pair.executor.next_data().await;
            assert_eq!(frame[..4], number.to_be_bytes());
        }
    };
    tokio::join!(sending, reading);
}

#[tokio::test]
async fn the_end_of_either_node_ends_the_stream_at_the_other() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    pair.door.kill().await;
    assert_eq!(harness.next().await, Relayed::Cut);
    pair.executor.expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;

    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    pair.home.kill().await;
    harness.expect_closed(1012, "trunk_lost").await;

    // One that hangs is treated like one that is gone.
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    pair.home.process.signal(Signal::STOP);
    harness.expect_closed(1012, "trunk_lost").await;
    pair.home.process.signal(Signal::CONT);
    pair.executor.expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;
    pair.cluster.wait_for_members(&[&pair.door, &pair.home]).await;
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
}

#[tokio::test]
async fn a_node_that_goes_on_passes_no_frame_of_a_claim_that_was_replaced() {
    let Some(mut pair) = Pair::start().await else { return };
    // One stream inside the node of the executor, and one through the trunk.
    let bundle = pair.door.connect(&pair.harness_token).await;
    let mut inside = RelaySocket::open(&pair.home.at(url(&bundle))).await;
    expect_echo(&mut inside, &mut pair.executor).await;
    let mut through = pair.harness().await;
    through.resume("t").await;
    pair.executor.expect("t", RelayBody::Resume { next_seq: 0 }).await;
    pair.home.process.signal(Signal::STOP);
    through.expect_closed(1012, "trunk_lost").await;
    // These wait in the kernel.
    pair.executor.send_data("s", "late").await;
    inside.send_data("s", "late").await;
    let token = pair.cluster.token(&pair.door, "executor", "env").await;
    let registered = pair.door.register(&token).await;
    let mut new = RelaySocket::open(&pair.door.at(url(&registered))).await;
    let mut stream = pair.harness().await;
    expect_echo(&mut stream, &mut new).await;
    pair.home.process.signal(Signal::CONT);
    for socket in [&mut pair.executor, &mut inside] {
        while let Relayed::Frame(frame) = socket.next().await {
            assert!(!matches!(frame.body, RelayBody::Data(_)), "{frame:?}");
        }
    }
    stream.send_data("s", "whole").await;
    assert_eq!(new.next_data().await.1, "whole");
}

#[tokio::test]
async fn a_token_that_is_revoked_ends_its_streams_through_the_trunk() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    let admin = pair.cluster.admin.clone();
    let reply = pair.door.ask("GET", "/admin/tokens", &admin, &Value::Null).await;
    let list: Value = serde_json::from_str(&reply.body).unwrap();
    let tokens = list["tokens"].as_array().unwrap();
    let token = tokens.iter().find(|token| token["role"] == "harness").unwrap();
    let path = format!("/admin/tokens/{}", token["id"].as_str().unwrap());
    assert_eq!(pair.door.ask("DELETE", &path, &admin, &Value::Null).await.status, 200);
    harness.expect_closed(1008, "token_revoked").await;
    pair.executor.expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;
}

#[tokio::test]
async fn nodes_and_environments_are_listed_with_what_other_nodes_say() {
    let Some(mut pair) = Pair::start().await else { return };
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    let admin = &pair.cluster.admin;
    let reply = pair.door.ask("GET", "/admin/environments", admin, &Value::Null).await;
    let list: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(list["environments"][0]["streams"], 1, "{list}");
    let listed = async {
        loop {
            let reply = pair.door.ask("GET", "/admin/nodes", admin, &Value::Null).await;
            let list: Value = serde_json::from_str(&reply.body).unwrap();
            let home = list["nodes"].as_array().unwrap().iter().find(|it| it["id"] == "home");
            if home.is_some_and(|it| it["executors"] == 1 && it["streams"] == 1) {
                break;
            }
        }
    };
    tokio::time::timeout(DEADLINE, listed).await.expect("heartbeats carry the load");
    let name = "exec_server_cluster_nodes{state=\"ready\"}";
    assert_eq!(pair.door.metric(admin, name).await, 2);
}

#[tokio::test]
async fn a_message_that_is_lost_doubled_or_swapped_ends_the_stream_and_never_changes_it() {
    let Some(mut cluster) = Cluster::with_nats().await else { return };
    let proxy = NatsProxy::start(cluster.nats.as_deref().unwrap()).await;
    cluster.nats = Some(proxy.url());
    let Some(mut pair) = Pair::of(cluster).await else { return };
    for fault in [MessageFault::Lose, MessageFault::Double, MessageFault::Swap] {
        for is_back in [false, true] {
            let mut harness = pair.harness().await;
            expect_echo(&mut harness, &mut pair.executor).await;
            proxy.fault_next(fault, ".frames.", 1000);
            // The last message of all may be the one that is missing: a mark finds that, too.
            let count = if fault == MessageFault::Lose { 1 } else { 20 };
            let (mut next, mut has_ended) = (0, false);
            for number in 0..count {
                let frame = format!("{number} ").repeat(1000);
                match is_back {
                    false => {
                        harness.try_send_data("s", frame).await;
                    }
                    true => pair.executor.send_data("s", frame).await,
                }
            }
            let socket = if is_back { &mut harness } else { &mut pair.executor };
            while !has_ended {
                match socket.next().await {
                    Relayed::Frame(frame) => match frame.body {
                        RelayBody::Data(data) => {
                            let expected = format!("{next} ").repeat(1000);
                            assert_eq!(data.payload, expected, "{fault:?}: a prefix arrives");
                            next += 1;
                        }
                        body => {
                            assert_eq!(body, reset(RESET_HARNESS_DISCONNECTED), "{fault:?}");
                            has_ended = true;
                        }
                    },
                    Relayed::Closed(code, reason) => {
                        assert_eq!((code, reason.as_str()), (1012, "trunk_lost"), "{fault:?}");
                        has_ended = true;
                    }
                    Relayed::Cut => panic!("{fault:?}: a close frame says why"),
                }
            }
            assert!(
                proxy.is_done() && (fault != MessageFault::Lose || next == 0),
                "{fault:?}: {next}"
            );
            if is_back {
                // Frames that were on their way meet no stream.
                pair.executor.expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;
            } else {
                harness.expect_closed(1012, "trunk_lost").await;
            }
        }
    }
}

#[tokio::test]
async fn an_executor_that_attaches_at_two_nodes_is_left_at_one() {
    let Some(mut pair) = Pair::start().await else { return };
    let token = pair.cluster.token(&pair.door, "executor", "env").await;
    let registered = pair.door.register(&token).await;
    let (door, home) = (pair.door.at(url(&registered)), pair.home.at(url(&registered)));
    let mut sockets = vec![RelaySocket::open(&home).await];
    pair.executor.expect_closed(1008, "superseded").await;
    for round in 0..20 {
        // The older socket is closed, whichever node it is at, and harnesses find the newer one.
        let next = if round % 2 == 0 { &door } else { &home };
        sockets.push(RelaySocket::open(next).await);
        let mut old = sockets.remove(0);
        old.expect_closed(1008, "superseded").await;
        let mut harness = pair.harness().await;
        expect_echo(&mut harness, &mut sockets[0]).await;
        drop(harness);
        sockets[0].expect("s", reset(RESET_HARNESS_DISCONNECTED)).await;
    }
}

#[tokio::test]
async fn streams_through_a_trunk_go_on_while_the_database_is_away() {
    let nats = tokio::task::spawn_blocking(Nats::shared).await.unwrap();
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let (Some(nats), Some(mut server)) = (nats, server) else { return };
    let mut cluster = Cluster::new(Some(server.database())).await.unwrap();
    cluster.nats = Some(nats);
    let mut pair = Pair::of(cluster).await.unwrap();
    let mut harness = pair.harness().await;
    expect_echo(&mut harness, &mut pair.executor).await;
    let mut server = tokio::task::spawn_blocking(move || {
        server.crash();
        server
    })
    .await
    .unwrap();
    // Longer than a lease: nodes that hear each other do not need it.
    pair.home.wait_for_status("/readyz", 503).await;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    harness.send_data("s", "without a database").await;
    assert_eq!(pair.executor.next_data().await.1, "without a database");
    let _server = tokio::task::spawn_blocking(move || {
        server.resume();
        server
    })
    .await
    .unwrap();
    // The crash has emptied the table of executors; it is filled again.
    pair.home.wait_for_status("/readyz", 200).await;
    let mut another = pair.harness().await;
    another.resume("t").await;
    pair.executor.expect("t", RelayBody::Resume { next_seq: 0 }).await;
    harness.send_data("s", "with it").await;
    assert_eq!(pair.executor.next_data().await.1, "with it");
}

#[tokio::test]
async fn what_keeps_a_node_from_using_nats_is_said_in_one_line() {
    let Some(mut cluster) = Cluster::with_nats().await else { return };
    let good = cluster.nats.clone().unwrap();
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("small.conf");
    std::fs::write(&config, "max_payload: 100000\n").unwrap();
    let small = tokio::task::spawn_blocking(move || Nats::configured(&config)).await.unwrap();
    let small = small.expect("NATS is installed");
    let config = place.path().join("secret.conf");
    let user = "authorization { user: me, password: secret }\n";
    std::fs::write(&config, user).unwrap();
    let secret = tokio::task::spawn_blocking(move || Nats::configured(&config)).await.unwrap();
    let secret = secret.expect("NATS is installed");
    for (nats, says) in [
        ("http://x", "--nats must be nats://HOST"),
        ("nats://me:secret@x", "EXEC_SERVER_NATS_CREDENTIALS"),
        ("nats://127.0.0.1:1", "NATS at 127.0.0.1:1 cannot be reached"),
        (&small.url(), "raise max_payload"),
        (&secret.url(), "refuses the credentials"),
    ] {
        cluster.nats = Some(nats.to_owned());
        let (code, _, stderr) = cluster.command("a", free_address()).run().await;
        let last = stderr.lines().last().unwrap_or_default();
        assert!(code == 1 && last.contains(says), "{nats}: {stderr}");
        assert!(!stderr.contains("secret@"), "{stderr}");
    }
    let file = place.path().join("credentials");
    std::fs::write(&file, "me:secret\n").unwrap();
    let builder = cluster.command("a", free_address());
    let mut node = builder.env("EXEC_SERVER_NATS_CREDENTIALS", &file).start().await;
    node.signal(Signal::TERM);
    assert_eq!(node.wait().await.code(), Some(0));

    cluster.nats = Some(good);
    let (code, _, stderr) = cluster.command("a.b", free_address()).run().await;
    assert!(code == 1 && stderr.contains("--node-id must be"), "{stderr}");
    // Another database under the same name, on the same NATS.
    let a = cluster.node("a").await;
    let mut other = Cluster::with_nats().await.unwrap();
    other.set_name(cluster.name());
    let (code, _, stderr) = other.command("b", free_address()).run().await;
    assert!(code == 1 && stderr.contains("uses another database"), "{stderr}");
    // The same database under another name.
    other.store.clone_from(&cluster.store);
    other.set_name("other");
    let (code, _, stderr) = other.command("b", free_address()).run().await;
    assert!(code == 1 && stderr.contains("belongs to the cluster"), "{stderr}");
    drop(a);
}
