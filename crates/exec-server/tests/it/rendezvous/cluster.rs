//! Several nodes with one PostgreSQL database: any node may be asked, and any may stop.

use exec_server_relay::frame::RelayBody;
use exec_server_rendezvous::clock;
use exec_server_rendezvous::store::{NewRegistration, PostgresStore, Store};
use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::executor::Signal;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::rendezvous::{public_key, register_body};
use exec_server_testkit::{DEADLINE, RelaySocket, Relayed};
use serde_json::{Value, json};

use super::commands::run;
use super::{refusal, rejection, url};

pub async fn expect_echo(harness: &mut RelaySocket, executor: &mut RelaySocket) {
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    executor.send_data("s", "hello").await;
    assert_eq!(harness.next_data().await.1, "hello");
}

#[tokio::test]
async fn a_harness_is_sent_to_the_node_of_its_executor_whichever_node_it_asks() {
    let Some(cluster) = Cluster::shared().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&b, "harness", "env").await;
    assert_eq!(refusal(&b.try_connect(&harness).await).1, "environment_offline");
    // The registration is made at one node, and the socket opened at another.
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(&b.at(url(&registered))).await;
    let bundle = a.connect(&harness).await;
    assert!(url(&bundle).starts_with(&b.url.replacen("http", "ws", 1)), "{bundle}");
    // At the wrong node it is refused so that it asks again, and its URL is used up.
    let wrong = a.at(url(&bundle));
    assert_eq!(rejection(&wrong).await, (401, "route_unavailable".to_owned()));
    assert_eq!(rejection(url(&bundle)).await, (401, "expired".to_owned()));
    let bundle = a.connect(&harness).await;
    let mut stream = RelaySocket::open(url(&bundle)).await;
    expect_echo(&mut stream, &mut socket).await;

    // Both nodes know who is where.
    for node in [&a, &b] {
        let reply = node.ask("GET", "/admin/environments", &cluster.admin, &Value::Null).await;
        let list: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(list["environments"][0]["online"], true, "{list}");
    }
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", cluster.admin.as_str())];
    let (code, nodes, stderr) = run(&["nodes", "--remote", &a.url], &admin).await;
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<&str> = nodes.lines().collect();
    assert!(lines[1].starts_with("a ") && lines[2].starts_with("b "), "{nodes}");
    assert!(lines[2].contains("ready") && lines[2].contains(&b.url), "{nodes}");
}

#[tokio::test]
async fn an_executor_that_moves_to_another_node_is_found_there_and_closed_here() {
    let Some(cluster) = Cluster::shared().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    // The same registration, as after a connection that only one end knows to be gone.
    let mut old = RelaySocket::open(&a.at(url(&registered))).await;
    let mut new = RelaySocket::open(&b.at(url(&registered))).await;
    let bundle = a.connect(&harness).await;
    assert!(url(&bundle).starts_with(&b.url.replacen("http", "ws", 1)), "{bundle}");
    old.expect_closed(1008, "superseded").await;
    drop(old);
    // That the old socket is gone changes nothing for the new one.
    let mut stream = RelaySocket::open(url(&bundle)).await;
    expect_echo(&mut stream, &mut new).await;
    let again = b.connect(&harness).await;
    assert!(url(&again).starts_with(&b.url.replacen("http", "ws", 1)), "{again}");
}

#[tokio::test]
async fn a_registration_at_one_node_closes_the_executor_at_another() {
    for cluster in [Cluster::shared().await, Cluster::with_nats().await] {
        let Some(cluster) = cluster else { return };
        let (a, b) = (cluster.node("a").await, cluster.node("b").await);
        cluster.wait_for_members(&[&a, &b]).await;
        let executor = cluster.token(&a, "executor", "env").await;
        let harness = cluster.token(&a, "harness", "env").await;
        let mut old = RelaySocket::open(&b.at(url(&b.register(&executor).await))).await;
        // The executor that registers ends before it attaches.
        let registered = a.register(&executor).await;
        old.expect_closed(1008, "superseded").await;
        wait_until_offline(&cluster, &a).await;
        let mut new = RelaySocket::open(&b.at(url(&registered))).await;
        let mut stream = RelaySocket::open(url(&a.connect(&harness).await)).await;
        expect_echo(&mut stream, &mut new).await;
    }
}

#[tokio::test]
async fn a_registration_that_no_node_was_told_of_is_found() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let a = cluster.node("a").await;
    let executor = cluster.token(&a, "executor", "env").await;
    let mut old = RelaySocket::open(url(&a.register(&executor).await)).await;
    // As by a node that is killed before it tells the others.
    let store = PostgresStore::open(&cluster.store).await.unwrap();
    let new = NewRegistration {
        id: "newer".to_owned(),
        environment: "env".to_owned(),
        executor_key: public_key(1),
        attached: None,
    };
    assert_eq!(store.register(new, clock::now()).await.unwrap(), Ok(2));
    old.expect_closed(1008, "superseded").await;
    wait_until_offline(&cluster, &a).await;
}

/// Waits until no node is said to have the executor.
async fn wait_until_offline(cluster: &Cluster, asked: &Node) {
    let is_offline = async {
        loop {
            let reply = asked.ask("GET", "/admin/environments", &cluster.admin, &Value::Null).await;
            let list: Value = serde_json::from_str(&reply.body).unwrap();
            if list["environments"][0]["online"] == false {
                break;
            }
        }
    };
    tokio::time::timeout(DEADLINE, is_offline).await.expect("the claim is released");
}

#[tokio::test]
async fn after_the_crash_of_a_node_its_executors_are_served_by_another() {
    let Some(cluster) = Cluster::shared().await else { return };
    let address = free_address();
    let (mut a, b) = (cluster.node_at("a", address).await, cluster.node("b").await);
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(&a.at(url(&registered))).await;
    let bundle = b.connect(&harness).await;
    let mut stream = RelaySocket::open(url(&bundle)).await;
    expect_echo(&mut stream, &mut socket).await;
    a.kill().await;
    assert_eq!((socket.next().await, stream.next().await), (Relayed::Cut, Relayed::Cut));
    // The URL outlives the node: it leads to any of them.
    let mut socket = RelaySocket::open(&b.at(url(&registered))).await;
    let bundle = b.connect(&harness).await;
    let mut stream = RelaySocket::open(url(&bundle)).await;
    expect_echo(&mut stream, &mut socket).await;
    // The node comes back under its name, with nothing of what it had.
    let a = cluster.node_at("a", address).await;
    let bundle = a.connect(&harness).await;
    assert!(url(&bundle).starts_with(&b.url.replacen("http", "ws", 1)), "{bundle}");
}

#[tokio::test]
async fn a_node_that_was_stopped_gives_up_what_has_moved_on() {
    let Some(cluster) = Cluster::shared().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    let executor = cluster.token(&b, "executor", "env").await;
    let harness = cluster.token(&b, "harness", "env").await;
    let registered = b.register(&executor).await;
    let mut old = RelaySocket::open(&a.at(url(&registered))).await;
    a.process.signal(Signal::STOP);
    let is_dead = async {
        loop {
            let reply = b.ask("GET", "/admin/nodes", &cluster.admin, &Value::Null).await;
            if reply.body.contains("\"dead\"") {
                break;
            }
        }
    };
    tokio::time::timeout(DEADLINE, is_dead).await.expect("the lease lapses");
    let offline = (409, "environment_offline".to_owned());
    assert_eq!(refusal(&b.try_connect(&harness).await), offline);
    let mut new = RelaySocket::open(&b.at(url(&registered))).await;
    let bundle = b.connect(&harness).await;
    let mut stream = RelaySocket::open(url(&bundle)).await;
    expect_echo(&mut stream, &mut new).await;
    a.process.signal(Signal::CONT);
    old.expect_closed(1008, "superseded").await;
    a.wait_for_status("/readyz", 200).await;
    let again = a.connect(&harness).await;
    assert!(url(&again).starts_with(&b.url.replacen("http", "ws", 1)), "{again}");
    stream.send_data("s", "whole").await;
    assert_eq!(new.next_data().await.1, "whole");
}

#[tokio::test]
async fn a_token_that_is_revoked_at_one_node_ends_at_all() {
    let Some(cluster) = Cluster::shared().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    let executor = cluster.token(&a, "executor", "env").await;
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(&a.at(url(&registered))).await;
    let reply = b.ask("GET", "/admin/tokens", &cluster.admin, &Value::Null).await;
    let list: Value = serde_json::from_str(&reply.body).unwrap();
    let tokens = list["tokens"].as_array().unwrap();
    let token = tokens.iter().find(|token| token["role"] == "executor").unwrap();
    let path = format!("/admin/tokens/{}", token["id"].as_str().unwrap());
    assert_eq!(b.ask("DELETE", &path, &cluster.admin, &Value::Null).await.status, 200);
    socket.expect_closed(1008, "token_revoked").await;
}

#[tokio::test]
async fn one_url_and_one_authorization_are_used_once_by_all_nodes() {
    let Some(cluster) = Cluster::shared().await else { return };
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    let _socket = RelaySocket::open(&a.at(url(&registered))).await;
    for _ in 0..20 {
        let bundle = b.connect(&harness).await;
        let body = json!({
            "executor_registration_id": bundle["executor_registration_id"],
            "harness_public_key": public_key(2),
            "harness_key_authorization": bundle["harness_key_authorization"],
        });
        let path = "/cloud/environment/env/validate";
        let validate = [&a, &b, &a, &b].map(|node| node.ask("POST", path, &executor, &body));
        let replies = futures_util::future::join_all(validate).await;
        let valid = replies.iter().filter(|reply| reply.body.contains("true")).count();
        assert_eq!(valid, 1, "{replies:?}");
        let urls = [&a, &b, &a, &b].map(|node| node.at(url(&bundle)));
        let upgrades = urls.iter().map(|url| exec_server_testkit::rendezvous::upgrade_at(url));
        let upgrades = futures_util::future::join_all(upgrades).await;
        assert!(upgrades.iter().filter(|reply| reply.status == 101).count() <= 1, "{upgrades:?}");
    }
}

#[tokio::test]
async fn while_the_database_is_away_attached_streams_go_on() {
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let Some(mut server) = server else { return };
    let store = server.database();
    let cluster = Cluster::new(Some(store.clone())).await.unwrap();
    let a = cluster.node("a").await;
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(url(&registered)).await;
    let mut stream = RelaySocket::open(url(&a.connect(&harness).await)).await;
    expect_echo(&mut stream, &mut socket).await;
    let mut server = tokio::task::spawn_blocking(move || {
        server.crash();
        server
    })
    .await
    .unwrap();
    a.wait_for_status("/readyz", 503).await;
    assert_eq!(a.ask("GET", "/livez", "", &Value::Null).await.status, 200);
    stream.send_data("s", "still").await;
    assert_eq!(socket.next_data().await.1, "still");
    // Nothing was written, so the executor tries again.
    let path = "/cloud/environment/env/register";
    let reply = a.ask("POST", path, &executor, &register_body(&public_key(1))).await;
    assert!(matches!(reply.status, 502 | 503), "{reply:?}");
    let _server = tokio::task::spawn_blocking(move || {
        server.resume();
        server
    })
    .await
    .unwrap();
    a.wait_for_status("/readyz", 200).await;
    // The crash has emptied the table of executors; it is filled again.
    let mut another = RelaySocket::open(url(&a.connect(&harness).await)).await;
    another.resume("t").await;
    socket.expect("t", RelayBody::Resume { next_seq: 0 }).await;
    stream.send_data("s", "whole").await;
    assert_eq!(socket.next_data().await.1, "whole");
}

#[tokio::test]
async fn a_node_that_stops_gives_up_its_name_at_once() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut a = cluster.node("a").await;
    let (code, _, stderr) = cluster.command("a", free_address()).run().await;
    assert!(code == 1 && stderr.contains("another rendezvous runs as node `a`"), "{stderr}");
    a.process.signal(Signal::TERM);
    assert_eq!(a.process.wait().await.code(), Some(0));
    let store = PostgresStore::open(&cluster.store).await.unwrap();
    assert!(store.nodes().await.unwrap().is_empty());
}

#[tokio::test]
async fn the_data_of_a_single_node_can_be_moved_over() {
    let Some(cluster) = Cluster::shared().await else { return };
    let data = tempfile::tempdir().unwrap();
    let mut single = super::commands::Program::start(data.path(), "http://127.0.0.1:0").await;
    let executor = single.token("executor").await;
    let registered = single.register(&executor, &public_key(1)).await;
    single.kill().await;
    let place = data.path().display().to_string();
    let environment = [("EXEC_SERVER_STORE", cluster.store.as_str())];
    let import = ["rendezvous", "import", "--from", &place];
    let (code, _, stderr) = run(&import, &environment).await;
    assert!(code == 0 && stderr.contains("1 environment"), "{stderr}");
    let (code, _, stderr) = run(&import, &environment).await;
    assert!(code == 1 && stderr.contains("already has environments"), "{stderr}");
    // With the old signing keys, the executor comes back with the URL that it has.
    std::fs::copy(data.path().join("signing-keys"), cluster.keys()).unwrap();
    let a = cluster.node("a").await;
    let mut socket = RelaySocket::open(&a.at(url(&registered))).await;
    socket.ping().await;
    assert_eq!(
        a.ask("POST", "/cloud/environment/env/register", &executor, &register_body(&public_key(1)))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn what_keeps_a_node_from_starting_is_said_in_one_line() {
    let url = tokio::task::spawn_blocking(Postgres::shared_database).await.unwrap();
    let Some(url) = url else { return };
    let place = tempfile::tempdir().unwrap();
    let keys = place.path().join("keys");
    std::fs::write(&keys, format!("k1 {}\n", "ab".repeat(32))).unwrap();
    let keys = keys.display().to_string();
    let node = |more: &[&'static str]| {
        let mut arguments =
            vec!["rendezvous", "--listen", "http://127.0.0.1:0", "--public-url", "http://x"];
        arguments.extend(more);
        arguments
    };
    let full = ["--node-url", "http://x", "--node-id", "a", "--signing-keys"];
    let full = node(&full).into_iter().chain([keys.as_str()]).collect::<Vec<_>>();
    let newer = tokio::task::spawn_blocking(Postgres::shared_database).await.unwrap().unwrap();
    PostgresStore::migrate(&newer).await.unwrap();
    let changed = newer.clone();
    let change =
        move || Postgres::run_shared_sql(&changed, "UPDATE schema_version SET version = 99");
    tokio::task::spawn_blocking(change).await.unwrap();
    for (store, arguments, says) in [
        (url.as_str(), full.clone(), "exec-server rendezvous migrate"),
        (
            "postgres://nobody@127.0.0.1:1/x",
            full.clone(),
            "PostgreSQL at 127.0.0.1:1/x cannot be reached",
        ),
        ("mysql://a@b/c", full.clone(), "the store URL must be postgres://"),
        (newer.as_str(), full.clone(), "upgrade exec-server"),
        (url.as_str(), node(&["--node-id", "a"]), "--node-url"),
        (url.as_str(), node(&["--node-url", "http://x"]), "--node-id"),
        (url.as_str(), node(&["--node-url", "http://x", "--node-id", "a"]), "--signing-keys"),
    ] {
        let (code, stdout, stderr) = run(&arguments, &[("EXEC_SERVER_STORE", store)]).await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.contains(says), "{arguments:?}: {stderr}");
    }
    let secret = ["--store", "postgres://me:secret@db/x"];
    let (code, _, stderr) = run(&[&full[..], &secret].concat(), &[]).await;
    assert!(code == 1 && stderr.contains("EXEC_SERVER_STORE_FILE"), "{stderr}");
    assert!(!stderr.contains("secret"), "{stderr}");
}
