//! `connect` while an executor is away for a moment.

use std::time::Duration;

use exec_server_testkit::http::request_with_body;
use exec_server_testkit::rendezvous::{connect_body, public_key};
use exec_server_testkit::{RelaySocket, TestRendezvous};

use super::{env, refusal, url};

/// Longer than any test, so that a wait that should not happen is noticed.
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn connect_waits_for_an_executor_that_was_there_a_moment_ago() {
    let rendezvous = TestRendezvous::start_with(|config| config.timings.arrival = LONG).await;
    let env = env(&rendezvous, "env").await;
    let registered = rendezvous.register("env", &env.executor, &public_key(1)).await;
    let executor = RelaySocket::open(url(&registered)).await;
    drop(executor);
    rendezvous.wait_for_metric("exec_server_relay_executors_active 0").await;
    let coming_back = async {
        rendezvous.wait_for_metric("exec_server_connects_waiting 1").await;
        RelaySocket::open(url(&registered)).await
    };
    let key = public_key(2);
    let connecting = rendezvous.connect("env", &env.harness, &key);
    let (bundle, mut executor) = tokio::join!(connecting, coming_back);
    let mut harness = RelaySocket::open(url(&bundle)).await;
    harness.send_data("s", "hello").await;
    assert_eq!(executor.next_data().await.1, "hello");
    rendezvous.wait_for_metric("exec_server_connects_waiting 0").await;
}

#[tokio::test]
async fn connect_waits_for_an_executor_that_registers_again() {
    let rendezvous = TestRendezvous::start_with(|config| config.timings.arrival = LONG).await;
    let env = env(&rendezvous, "env").await;
    let _old = env.executor(&rendezvous).await;
    let registered = rendezvous.register("env", &env.executor, &public_key(1)).await;
    let coming_back = async {
        rendezvous.wait_for_metric("exec_server_connects_waiting 1").await;
        RelaySocket::open(url(&registered)).await
    };
    let key = public_key(2);
    let connecting = rendezvous.connect("env", &env.harness, &key);
    let (bundle, _executor) = tokio::join!(connecting, coming_back);
    let registration = &registered["executor_registration_id"];
    assert_eq!(&bundle["executor_registration_id"], registration);
}

#[tokio::test]
async fn an_executor_that_stays_away_is_offline_and_an_unknown_one_at_once() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.arrival = Duration::from_millis(50);
    })
    .await;
    let away = env(&rendezvous, "away").await;
    drop(away.executor(&rendezvous).await);
    rendezvous.wait_for_metric("exec_server_relay_executors_active 0").await;
    let ask = async |rendezvous: &TestRendezvous, token: &str, path: &str| {
        refusal(&rendezvous.post(path, token, &connect_body(&public_key(2))).await)
    };
    let offline = (409, "environment_offline".to_owned());
    assert_eq!(ask(&rendezvous, &away.harness, "away/connect").await, offline);

    let patient = TestRendezvous::start_with(|config| config.timings.arrival = LONG).await;
    let never = env(&patient, "never").await;
    assert_eq!(ask(&patient, &never.harness, "never/connect").await, offline);
}

#[tokio::test]
async fn a_waiting_connect_ends_with_the_server() {
    let mut rendezvous = TestRendezvous::start_with(|config| config.timings.arrival = LONG).await;
    let env = env(&rendezvous, "env").await;
    drop(env.executor(&rendezvous).await);
    rendezvous.wait_for_metric("exec_server_relay_executors_active 0").await;
    let (url, authorization) = (rendezvous.url().to_owned(), format!("Bearer {}", env.harness));
    let asking = tokio::spawn(async move {
        let headers = [("Authorization", authorization.as_str())];
        let body = connect_body(&public_key(2)).to_string();
        let path = "/cloud/environment/env/connect";
        request_with_body(&url, "POST", path, &headers, body.as_bytes()).await
    });
    rendezvous.wait_for_metric("exec_server_connects_waiting 1").await;
    rendezvous.begin_stop();
    assert_eq!(refusal(&asking.await.unwrap()), (503, "registration_conflict".to_owned()));
}
