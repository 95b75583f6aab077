//! Nodes of two versions at once: unknown fields and kinds in messages, a schema one step ahead, keys that are replaced.

use std::time::Duration;

use exec_server_relay::frame::{RESET_HARNESS_DISCONNECTED, RelayBody};
use exec_server_rendezvous::store::PostgresStore;
use exec_server_testkit::cluster::Cluster;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::nats::publish;
use exec_server_testkit::nats_proxy::NatsProxy;
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::rendezvous::upgrade_at;
use exec_server_testkit::{DEADLINE, RelaySocket};
use serde_json::Value;

use super::cluster::expect_echo;
use super::commands::run;
use super::url;

/// The step that a later version might add: a migration only adds.
const NEXT_STEP: &str = "ALTER TABLE nodes ADD COLUMN zone text;
    ALTER TABLE tokens ADD COLUMN note text DEFAULT 'x';
    CREATE TABLE quotas (token text PRIMARY KEY, most bigint);
    UPDATE schema_version SET version = version + 1";

async fn sql(store: &str, statement: &'static str) -> String {
    let store = store.to_owned();
    let running = tokio::task::spawn_blocking(move || Postgres::run_shared_sql(&store, statement));
    running.await.unwrap()
}

#[tokio::test]
async fn nodes_that_send_unknown_fields_and_kinds_serve_each_other() {
    let Some(mut cluster) = Cluster::with_nats().await else { return };
    let good = cluster.nats.clone().unwrap();
    let proxy = NatsProxy::start_newer(&good).await;
    // Each in turn is the newer one.
    for is_home_newer in [false, true] {
        let nats = |is_newer| Some(if is_newer { proxy.url() } else { good.clone() });
        cluster.nats = nats(!is_home_newer);
        let door = cluster.node("door").await;
        cluster.nats = nats(is_home_newer);
        let home = cluster.node("home").await;
        cluster.wait_for_members(&[&door, &home]).await;
        let executor = cluster.token(&door, "executor", "env").await;
        let harness = cluster.token(&door, "harness", "env").await;
        let registered = door.register(&executor).await;
        let mut socket = RelaySocket::open(&home.at(url(&registered))).await;
        let bundle = door.connect(&harness).await;
        let mut stream = RelaySocket::open(&door.at(url(&bundle))).await;
        expect_echo(&mut stream, &mut socket).await;
        for number in 0..200 {
            let text = format!("{number} ").repeat(500);
            stream.send_data("s", text.clone()).await;
            assert_eq!(socket.next_data().await.1, text);
            socket.send_data("s", text.clone()).await;
            assert_eq!(stream.next_data().await.1, text);
        }
        let gaps = home.metric(&cluster.admin, "exec_server_trunk_gaps_total").await;
        assert_eq!(gaps, 0);
        drop(stream);
        let reason = RESET_HARNESS_DISCONNECTED.into();
        socket.expect("s", RelayBody::Reset { reason }).await;
        // The message that it is elsewhere now.
        let mut moved = RelaySocket::open(&door.at(url(&registered))).await;
        socket.expect_closed(1008, "superseded").await;
        moved.ping().await;
    }
}

#[tokio::test]
async fn messages_that_no_version_knows_change_nothing() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let nats = cluster.nats.clone().unwrap();
    let (door, home) = (cluster.node("door").await, cluster.node("home").await);
    cluster.wait_for_members(&[&door, &home]).await;
    let executor = cluster.token(&door, "executor", "env").await;
    let harness = cluster.token(&door, "harness", "env").await;
    let registered = door.register(&executor).await;
    let mut socket = RelaySocket::open(&home.at(url(&registered))).await;
    let bundle = door.connect(&harness).await;
    let mut stream = RelaySocket::open(&door.at(url(&bundle))).await;
    expect_echo(&mut stream, &mut socket).await;
    let prefix = format!("xs.v1.{}", cluster.name());
    let mut subjects = vec![format!("{prefix}.heartbeat"), format!("{prefix}.all")];
    let nodes = PostgresStore::open(&cluster.store).await.unwrap().nodes().await.unwrap();
    for node in nodes {
        let (id, epoch) = (node.lease.node, node.lease.epoch);
        let own = format!("{prefix}.node.{id}.{epoch}");
        subjects.push(format!("{prefix}.node.{id}.9999999.ctl"));
        subjects.push(format!("{own}.ctl"));
        subjects.extend((0..4).map(|lane| format!("{own}.frames.{lane}")));
    }
    let messages: [&[u8]; 6] = [
        b"",
        b"not protobuf at all",
        &[0xff; 64],
        // An unknown field alone; a length beyond the end; the heartbeat of an unknown node, from no database.
        &[0xc2, 0x3e, 3, b'n', b'e', b'w'],
        &[0x0a, 0x7f, b'x'],
        &[0x0a, 1, b'z', 0x10, 1],
    ];
    for subject in &subjects {
        for message in messages {
            publish(&nats, subject, message).await;
        }
    }
    for number in 0..20 {
        stream.send_data("s", format!("{number}")).await;
        assert_eq!(socket.next_data().await.1, format!("{number}"));
        socket.send_data("s", format!("back {number}")).await;
        assert_eq!(stream.next_data().await.1, format!("back {number}"));
    }
    let reply = door.ask("GET", "/admin/nodes", &cluster.admin, &Value::Null).await;
    let list: Value = serde_json::from_str(&reply.body).unwrap();
    let ids: Vec<_> = list["nodes"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
    assert_eq!(ids, ["door", "home"]);
}

#[tokio::test]
async fn a_schema_one_step_ahead_is_served_and_two_are_refused() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let mut old = cluster.node("old").await;
    let executor = cluster.token(&old, "executor", "env").await;
    let harness = cluster.token(&old, "harness", "env").await;
    let registered = old.register(&executor).await;
    let mut socket = RelaySocket::open(&old.at(url(&registered))).await;
    // The new version migrates first; nodes of the old one go on, and start again.
    sql(&cluster.store, NEXT_STEP).await;
    let mut stream = RelaySocket::open(&old.at(url(&old.connect(&harness).await))).await;
    expect_echo(&mut stream, &mut socket).await;
    cluster.token(&old, "harness", "another").await;
    let other = cluster.node("other").await;
    cluster.wait_for_members(&[&old, &other]).await;
    old.kill().await;
    let registered = other.register(&executor).await;
    let mut socket = RelaySocket::open(&other.at(url(&registered))).await;
    let mut stream = RelaySocket::open(&other.at(url(&other.connect(&harness).await))).await;
    expect_echo(&mut stream, &mut socket).await;
    // The old program must not take its own step for the newest.
    let store = [("EXEC_SERVER_STORE", cluster.store.as_str())];
    let (code, _, stderr) = run(&["rendezvous", "migrate"], &store).await;
    assert!(code == 1 && stderr.contains("upgrade exec-server"), "{stderr}");
    sql(&cluster.store, "UPDATE schema_version SET version = version + 1").await;
    let (code, _, stderr) = cluster.command("late", free_address()).run().await;
    assert!(code == 1 && stderr.contains("upgrade exec-server"), "{stderr}");
    let error = PostgresStore::open(&cluster.store).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("schema version"), "{error}");
}

#[tokio::test]
async fn signing_keys_are_replaced_without_a_restart() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(&a.at(url(&registered))).await;
    let (old, new) = (format!("k1 {}\n", "ab".repeat(32)), format!("k2 {}\n", "cd".repeat(32)));
    // Verified by all nodes first; then it signs.
    std::fs::write(cluster.keys(), format!("{old}{new}")).unwrap();
    std::fs::write(cluster.keys(), format!("{new}{old}")).unwrap();
    let signed_by_new = async {
        for node in [&a, &b] {
            while !url(&node.connect(&harness).await).contains("key=k2") {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    tokio::time::timeout(DEADLINE, signed_by_new).await.expect("the file is read again");
    // URLs of the old key are good until it is removed.
    let mut stream = RelaySocket::open(url(&b.connect(&harness).await)).await;
    expect_echo(&mut stream, &mut socket).await;
    socket = RelaySocket::open(&b.at(url(&registered))).await;
    socket.ping().await;
    std::fs::write(cluster.keys(), &new).unwrap();
    let removed = async {
        for node in [&a, &b] {
            while upgrade_at(&node.at(url(&registered))).await.status != 401 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    tokio::time::timeout(DEADLINE, removed).await.expect("the old key is forgotten");
    // A file that cannot be used changes nothing.
    std::fs::write(cluster.keys(), "nonsense\n").unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(&b.at(url(&registered))).await;
    let mut stream = RelaySocket::open(url(&a.connect(&harness).await)).await;
    expect_echo(&mut stream, &mut socket).await;
}
