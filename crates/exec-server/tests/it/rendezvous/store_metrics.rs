//! Metrics of the store, on SQLite and on PostgreSQL.

use exec_server_testkit::TestRendezvous;
use exec_server_testkit::rendezvous::{public_key, register_body};

#[tokio::test]
async fn operations_on_sqlite_are_measured() {
    let rendezvous = TestRendezvous::start().await;
    let _socket = super::env(&rendezvous, "env").await.executor(&rendezvous).await;
    let count = "exec_server_store_duration_seconds_count{operation=\"register\"} 1";
    rendezvous.wait_for_metric(count).await;
}

#[cfg(unix)]
#[tokio::test]
async fn operations_on_postgresql_are_measured_with_their_failures() {
    use exec_server_testkit::RelaySocket;
    use exec_server_testkit::cluster::Cluster;
    use exec_server_testkit::postgres::Postgres;

    let Some(cluster) = Cluster::shared().await else { return };
    let a = cluster.node("a").await;
    let executor = cluster.token(&a, "executor", "env").await;
    let harness = cluster.token(&a, "harness", "env").await;
    let registered = a.register(&executor).await;
    let _socket = RelaySocket::open(super::url(&registered)).await;
    a.connect(&harness).await;
    for operation in
        ["authenticate", "register", "locate", "admit_executor", "claim", "authorize", "renew"]
    {
        let name = format!("exec_server_store_duration_seconds_count{{operation=\"{operation}\"}}");
        assert!(a.metric(&cluster.admin, &name).await > 0, "{operation}");
    }
    for operation in ["authenticate", "register", "claim"] {
        let name = format!("exec_server_store_batch_size_count{{operation=\"{operation}\"}}");
        assert!(a.metric(&cluster.admin, &name).await > 0, "{operation}");
    }
    let failures = "exec_server_store_failures_total{operation=\"register\"}";
    assert_eq!(a.metric(&cluster.admin, failures).await, 0);
    let store = cluster.store.clone();
    let rename = "ALTER TABLE registrations RENAME TO gone";
    tokio::task::spawn_blocking(move || drop(Postgres::run_shared_sql(&store, rename)))
        .await
        .unwrap();
    let path = "/cloud/environment/env/register";
    let reply = a.ask("POST", path, &executor, &register_body(&public_key(1))).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(a.metric(&cluster.admin, failures).await, 1);
}
