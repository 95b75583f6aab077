//! What is wrong with a database, and how a node says so: TLS, clocks, a full disk, a replica, no answer.

use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::fault_proxy::Toward;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::rendezvous::{public_key, register_body};
use exec_server_testkit::{DEADLINE, RelaySocket, TestExecutor};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use super::cluster::expect_echo;
use super::commands::run;
use super::{refusal, url};

/// A private authority, and a certificate of it for this name, with its key; all in PEM.
fn certificates(name: &str) -> [String; 3] {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let root = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = leaf.signed_by(&key, &issuer).unwrap();
    [root.pem(), certificate.pem(), key.serialize_pem()]
}

#[tokio::test]
async fn a_database_is_reached_over_tls_with_a_private_authority() {
    let place = tempfile::tempdir().unwrap();
    let [root, certificate, key] = certificates("127.0.0.1");
    let [other_root, ..] = certificates("127.0.0.1");
    let path = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(path("root.pem"), root).unwrap();
    std::fs::write(path("other.pem"), other_root).unwrap();
    let server = tokio::task::spawn_blocking(move || Postgres::start_tls(&certificate, &key));
    let Some(server) = server.await.unwrap() else { return };
    let database = server.database();
    let with = |host: &str, more: &str| {
        database.replace("127.0.0.1", host).replace("sslmode=disable", more)
    };
    for mode in ["require", "verify-full"] {
        let store = with("127.0.0.1", &format!("sslmode={mode}&sslrootcert={}", path("root.pem")));
        let cluster = match mode {
            "require" => Cluster::new(Some(store)).await.unwrap(),
            // The tables are there already.
            _ => cluster_beside(&server, &store).await,
        };
        let a = cluster.node("a").await;
        let executor = cluster.token(&a, "executor", "env").await;
        let harness = cluster.token(&a, "harness", "env").await;
        let registered = a.register(&executor).await;
        let mut socket = RelaySocket::open(&a.at(url(&registered))).await;
        let mut stream = RelaySocket::open(url(&a.connect(&harness).await)).await;
        expect_echo(&mut stream, &mut socket).await;
        let connections =
            "SELECT bool_and(ssl), count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
            WHERE application_name = 'exec-server rendezvous'";
        assert_eq!(server.run_sql(&cluster.store, connections), "t|t", "all of them are encrypted");
    }
    let root = path("root.pem");
    for (store, says) in [
        (
            with("127.0.0.1", &format!("sslmode=require&sslrootcert={}", path("other.pem"))),
            "name the authority of its certificate with sslrootcert=FILE",
        ),
        (with("localhost", &format!("sslmode=require&sslrootcert={root}")), "not valid for name"),
        (with("127.0.0.1", &format!("sslmode=require&sslrootcert={}", path("none"))), "none"),
        (with("127.0.0.1", "sslmode=perhaps"), "the store URL must be postgres://"),
    ] {
        let (code, stderr) = migrate(&store).await;
        assert!(code == 1 && stderr.contains(says), "{store}: {stderr}");
    }
    // A server without TLS.
    let plain = tokio::task::spawn_blocking(Postgres::shared_database).await.unwrap().unwrap();
    let store = plain.replace("sslmode=disable", &format!("sslmode=require&sslrootcert={root}"));
    let (code, stderr) = migrate(&store).await;
    assert!(code == 1 && stderr.contains("does not support TLS"), "{stderr}");
}

/// Migrates this database, again while a busy machine is too slow to connect in time.
async fn migrate(store: &str) -> (i32, String) {
    loop {
        let environment = [("EXEC_SERVER_STORE", store)];
        let (code, _, stderr) = run(&["rendezvous", "migrate"], &environment).await;
        if !stderr.contains("no connection within") {
            return (code, stderr);
        }
    }
}

/// A cluster on another database of the same server, with the options of this URL.
async fn cluster_beside(server: &Postgres, store: &str) -> Cluster {
    let name = server.database();
    let name = name.rsplit('/').next().and_then(|it| it.split('?').next()).unwrap().to_owned();
    let (start, options) = store.split_once('?').unwrap();
    let (start, _) = start.rsplit_once('/').unwrap();
    Cluster::new(Some(format!("{start}/{name}?{options}"))).await.unwrap()
}

/// A node whose log is read.
async fn node_with_log(cluster: &Cluster) -> Node {
    let address = free_address();
    let command = cluster.command("a", address).env("RUST_LOG", "info").piped_stderr();
    Node { process: command.start().await, url: format!("http://{address}") }
}

async fn wait_for_log(process: &mut TestExecutor, words: &[&str]) -> String {
    loop {
        let line = process.next_stderr_line().await.expect("it is said before the end");
        if words.iter().all(|word| line.contains(word)) {
            return line;
        }
    }
}

async fn sql(store: &str, statement: &str) {
    let (store, statement) = (store.to_owned(), statement.to_owned());
    let run = move || Postgres::run_shared_sql(&store, &statement);
    tokio::task::spawn_blocking(run).await.unwrap();
}

/// The URL's time is compared by the node, and that of the authorization by the database.
#[tokio::test]
async fn a_clock_that_differs_from_that_of_the_database_is_named_and_not_used() {
    for seconds in [3600, -3600] {
        let Some(cluster) = Cluster::shared().await else { return };
        // The database shadows its clock: every statement of ours says now().
        let name = cluster.store.rsplit('/').next().and_then(|it| it.split('?').next()).unwrap();
        let shadow = format!(
            "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS
                $$ SELECT pg_catalog.now() + interval '{seconds} seconds' $$;
            ALTER DATABASE {name} SET search_path = public, pg_catalog"
        );
        sql(&cluster.store, &shadow).await;
        let mut a = node_with_log(&cluster).await;
        let words = ["the clock of this machine differs from that of PostgreSQL", "NTP"];
        let line = wait_for_log(&mut a.process, &words).await;
        let differs = [seconds - 1, seconds, seconds + 1].map(|it| format!("\"seconds\":{it}"));
        assert!(differs.iter().any(|it| line.contains(it)), "{line}");
        assert!(line.contains(&format!("/{name}")), "{line}");
        let b = cluster.node("b").await;
        cluster.wait_for_members(&[&a, &b]).await;
        let executor = cluster.token(&a, "executor", "env").await;
        let harness = cluster.token(&b, "harness", "env").await;
        let registered = a.register(&executor).await;
        let mut socket = RelaySocket::open(&b.at(url(&registered))).await;
        let mut stream = RelaySocket::open(url(&a.connect(&harness).await)).await;
        expect_echo(&mut stream, &mut socket).await;
        let reply = a.ask("GET", "/admin/environments", &cluster.admin, &Value::Null).await;
        assert!(reply.body.contains("\"online\":true"), "{reply:?}");
    }
}

#[tokio::test]
async fn a_full_disk_of_the_database_is_named_and_what_is_attached_goes_on() {
    let Some(cluster) = Cluster::shared().await else { return };
    let mut a = node_with_log(&cluster).await;
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    let mut socket = RelaySocket::open(&a.at(url(&registered))).await;
    let mut stream = RelaySocket::open(url(&a.connect(&harness).await)).await;
    expect_echo(&mut stream, &mut socket).await;
    // What PostgreSQL answers when a table cannot grow.
    sql(
        &cluster.store,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
        END $$;
        CREATE TRIGGER full_disk BEFORE INSERT ON registrations EXECUTE FUNCTION full_disk();
        CREATE TRIGGER full_disk BEFORE INSERT ON tokens EXECUTE FUNCTION full_disk()",
    )
    .await;
    let path = "/cloud/environment/env/register";
    let reply = a.ask("POST", path, &executor, &register_body(&public_key(1))).await;
    assert_eq!(refusal(&reply), (503, "registration_conflict".to_owned()));
    let words = ["PostgreSQL at ", "No space left on device", "free space there"];
    wait_for_log(&mut a.process, &words).await;
    let wanted = json!({"role": "harness", "environment": "env"});
    let reply = a.ask("POST", "/admin/tokens", &cluster.admin, &wanted).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    stream.send_data("s", "still").await;
    assert_eq!(socket.next_data().await.1, "still");
    a.wait_for_status("/readyz", 200).await;
    sql(&cluster.store, "DROP FUNCTION full_disk CASCADE").await;
    cluster.token(&a, "harness", "env").await;
    a.register(&executor).await;
    let read_only = cluster.store.clone() + "&options=-c%20default_transaction_read_only%3Don";
    let store = [("EXEC_SERVER_STORE", read_only.as_str())];
    let (code, _, stderr) = run(&["rendezvous", "migrate"], &store).await;
    assert!(code == 1 && stderr.contains("name the primary in the store URL"), "{stderr}");
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_named_and_given_up() {
    let Some(cluster) = Cluster::with_nats().await else { return };
    let (database, nats) = (cluster.database_proxy().await, cluster.nats_proxy().await);
    let a = cluster.node_behind("a", &database, &nats).await;
    let executor = cluster.token(&a, "executor", "env").await;
    database.stall(Toward::Client);
    a.wait_for_status("/readyz", 503).await;
    // An answer within the time of a client, although the database never answers.
    let path = "/cloud/environment/env/register";
    let reply = a.ask("POST", path, &executor, &register_body(&public_key(1))).await;
    assert!(matches!(reply.status, 502 | 503), "{reply:?}");
    let stalled = database.url().strip_prefix("ws://").unwrap().trim_end_matches('/');
    let (_, direct) = cluster.store.split_once('@').unwrap();
    let store = cluster.store.replace(direct.split('/').next().unwrap(), stalled);
    let migrate = ["rendezvous", "migrate"];
    let (code, _, stderr) = run(&migrate, &[("EXEC_SERVER_STORE", store.as_str())]).await;
    assert!(code == 1 && stderr.contains("no connection within 3 s"), "{stderr}");
    assert!(stderr.contains("check the store URL"), "{stderr}");
    // Connections whose answers never come are replaced, although they never end.
    database.stall_open_connections();
    database.resume_new_connections();
    a.wait_for_status("/readyz", 200).await;
    let registered = async {
        while a.ask("POST", path, &executor, &register_body(&public_key(1))).await.status != 200 {}
    };
    tokio::time::timeout(DEADLINE, registered).await.expect("every connection is replaced");
}
