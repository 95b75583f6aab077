//! Expiry as time passes, and when the clock is set.

use std::time::Duration;

use exec_server_relay::frame::{RESET_HARNESS_DISCONNECTED, RelayBody};
use exec_server_rendezvous::admin::NewToken;
use exec_server_rendezvous::clock::{Clock, Seconds};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::rendezvous::{public_key, register_body};
use exec_server_testkit::{RelaySocket, TestRendezvous};

use super::{Env, refusal, rejection, url};

const HOUR: Seconds = 3600;

#[tokio::test]
async fn a_socket_ends_with_the_token_that_it_was_opened_with() {
    let (rendezvous, clock) = start().await;
    let env = env(&rendezvous, 2 * HOUR, HOUR).await;
    let registered = rendezvous.register("env", &env.executor, &public_key(1)).await;
    let mut executor = RelaySocket::open(url(&registered)).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;

    clock.step(HOUR);
    harness.expect_closed(1008, "token_expired").await;
    let reason = RESET_HARNESS_DISCONNECTED.to_owned();
    executor.expect("s", RelayBody::Reset { reason }).await;
    rendezvous.wait_for_metric("exec_server_relay_closes_total{reason=\"token_expired\"} 1").await;

    let lasting = rendezvous.token(TokenRole::Harness, "env").await;
    let bundle = rendezvous.connect("env", &lasting, &public_key(2)).await;
    let mut harness = RelaySocket::open(url(&bundle)).await;
    clock.step(HOUR);
    executor.expect_closed(1008, "token_expired").await;
    harness.expect_closed(1012, "executor_gone").await;
    assert_eq!(rejection(url(&registered)).await, (401, "invalid_secret".to_owned()));
    let reply =
        rendezvous.post("env/register", &env.executor, &register_body(&public_key(1))).await;
    assert_eq!(refusal(&reply), (401, "invalid_token".to_owned()));
}

#[tokio::test]
async fn connections_of_a_token_end_with_it() {
    let (rendezvous, clock) = start().await;
    let env = env(&rendezvous, 2 * HOUR, HOUR).await;
    let _executor = env.executor(&rendezvous).await;
    clock.step(HOUR - 20);
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    clock.step(20);
    assert_eq!(rejection(url(&bundle)).await, (401, "expired".to_owned()));
    let validate = super::registry::validate_body(&bundle, 2);
    assert!(!super::registry::valid(&rendezvous, &env, &validate).await);
}

#[tokio::test]
async fn a_clock_that_is_set_back_closes_no_socket_and_accepts_nothing_twice() {
    let (rendezvous, clock) = start().await;
    let env = env(&rendezvous, 2 * HOUR, HOUR).await;
    let mut executor = env.executor(&rendezvous).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let mut harness = RelaySocket::open(url(&bundle)).await;
    let validate = super::registry::validate_body(&bundle, 2);
    assert!(super::registry::valid(&rendezvous, &env, &validate).await);
    clock.step(-24 * HOUR);
    assert_eq!(rejection(url(&bundle)).await, (401, "expired".to_owned()), "it was used");
    assert!(!super::registry::valid(&rendezvous, &env, &validate).await, "it was used");
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    // A token that is expired by the new time is still cut off. The harness leaves first, so that the executor gets no
    // reset of its stream in between.
    drop(harness);
    executor.expect("s", RelayBody::Reset { reason: "harness_disconnected".into() }).await;
    super::revoke_all(&rendezvous).await;
    executor.expect_closed(1008, "token_revoked").await;
}

async fn start() -> (TestRendezvous, Clock) {
    let clock = Clock::default();
    let rendezvous = TestRendezvous::start_with(|config| {
        config.clock = clock.clone();
        config.timings.maintenance = Duration::from_millis(20);
    });
    (rendezvous.await, clock)
}

/// An environment whose tokens expire after this many seconds.
async fn env(rendezvous: &TestRendezvous, executor: Seconds, harness: Seconds) -> Env {
    let token = async |role, lasts: Seconds| {
        rendezvous
            .new_token(NewToken {
                role,
                environment: Some("env".into()),
                expires_in_seconds: u32::try_from(lasts).ok(),
                max_streams: None,
                label: None,
            })
            .await
    };
    let executor = token(TokenRole::Executor, executor).await;
    Env { name: "env", executor, harness: token(TokenRole::Harness, harness).await }
}
