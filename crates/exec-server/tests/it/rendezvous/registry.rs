//! Register, connect and validate: every reply that decides a peer's next step.

use std::time::Duration;

use exec_server_rendezvous::admin::NewToken;
use exec_server_rendezvous::store::{RegistrationPolicy, TokenRole};
use exec_server_testkit::http::request_with_body;
use exec_server_testkit::rendezvous::{connect_body, public_key, register_body};
use exec_server_testkit::{RelaySocket, Relayed, TestRendezvous};
use serde_json::{Value, json};

use super::{Env, env, refusal, rejection, revoke_all, url};

#[tokio::test]
async fn an_executor_registers_and_a_harness_is_sent_to_it() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env-1").await;
    let registered = rendezvous.register("env-1", &env.executor, &public_key(1)).await;
    assert_eq!(registered["environment_id"], "env-1");
    assert_eq!(registered["security_profile"], "noise_hybrid_ik_v1");
    let url = url(&registered);
    let path = "/cloud-agent/default/ws/environment/env-1?role=environment&";
    assert!(url.starts_with(&rendezvous.url().replacen("http", "ws", 1)) && url.contains(path));
    assert!(!registered.to_string().contains(&env.executor), "the token is not echoed");

    let offline =
        rendezvous.post("env-1/connect", &env.harness, &connect_body(&public_key(2))).await;
    assert_eq!(refusal(&offline), (409, "environment_offline".to_owned()));

    let _executor = RelaySocket::open(url).await;
    let bundle = rendezvous.connect("env-1", &env.harness, &public_key(2)).await;
    assert_eq!(bundle["environment_id"], "env-1");
    assert_eq!(bundle["executor_registration_id"], registered["executor_registration_id"]);
    assert_eq!(bundle["executor_public_key"], json!(public_key(1)));
    let authorization = bundle["harness_key_authorization"].as_str().unwrap();
    assert!(!authorization.is_empty() && authorization.len() <= 4096);
    assert!(!super::url(&bundle).contains(authorization), "the relay never sees it");
}

#[tokio::test]
async fn ids_that_need_encoding_are_the_same_environment() {
    let rendezvous = TestRendezvous::start().await;
    let token = rendezvous.token(TokenRole::Executor, "büro 1").await;
    for id in ["b%C3%BCro%201", "b%c3%bcr%6f%201"] {
        let answer = rendezvous.register(id, &token, &public_key(1)).await;
        assert_eq!(answer["environment_id"], "büro 1");
        let _executor = RelaySocket::open(url(&answer)).await;
    }
}

#[tokio::test]
async fn missing_permissions_are_reported_by_status() {
    let rendezvous = TestRendezvous::start().await;
    let one = env(&rendezvous, "one").await;
    let two = env(&rendezvous, "two").await;
    let body = register_body(&public_key(1));
    let code = async |path: &str, token: &str| refusal(&rendezvous.post(path, token, &body).await);
    let unauthorized = (401, "invalid_token".to_owned());
    let forbidden = (403, "forbidden".to_owned());
    assert_eq!(code("one/register", "xs_exec_guessed").await, unauthorized);
    assert_eq!(code("one/register", &two.executor).await, forbidden, "another environment's");
    assert_eq!(code("one/register", &one.harness).await, forbidden, "another role's");
    assert_eq!(code("one/register", rendezvous.admin_token()).await, forbidden);
    assert_eq!(code("one/connect", &one.executor).await, forbidden);
    assert_eq!(code("one/validate", &one.harness).await, forbidden);
    assert_eq!(code("none/register", &one.executor).await, forbidden);
    let path = "/cloud/environment/one/register";
    for headers in [&[][..], &[("Authorization", "Basic eDp5")]] {
        let reply = request_with_body(rendezvous.url(), "POST", path, headers, b"{}").await;
        assert_eq!(refusal(&reply), (401, "missing_token".to_owned()));
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
}

#[tokio::test]
async fn expired_and_revoked_tokens_open_nothing() {
    let rendezvous = TestRendezvous::start().await;
    let expired = rendezvous
        .new_token(NewToken {
            role: TokenRole::Executor,
            environment: Some("env".into()),
            expires_in_seconds: Some(0),
            max_streams: None,
            label: None,
        })
        .await;
    let revoked = rendezvous.token(TokenRole::Executor, "env").await;
    revoke_all(&rendezvous).await;
    for token in [expired, revoked] {
        let reply = rendezvous.post("env/register", &token, &register_body(&public_key(1))).await;
        assert_eq!(refusal(&reply), (401, "invalid_token".to_owned()));
    }
}

#[tokio::test]
async fn requests_that_cannot_be_understood_are_refused() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut odd_key = register_body(&public_key(1));
    odd_key["executor_public_key"]["also"] = json!(1);
    let mut odd_profile = register_body(&public_key(1));
    odd_profile["security_profile"] = json!("plain");
    let large = json!({"x": "x".repeat(40_000)});
    for body in [json!({}), json!([]), odd_key, odd_profile, large] {
        let reply = rendezvous.post("env/register", &env.executor, &body).await;
        assert_eq!(refusal(&reply), (400, "invalid_request".to_owned()), "{body}");
    }
    let reply =
        rendezvous.ask("GET", "/cloud/environment/env/register", &env.executor, &Value::Null);
    let reply = reply.await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
}

#[tokio::test]
async fn an_authorization_opens_one_door_once() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let other = super::env(&rendezvous, "other").await;
    let _executor = env.executor(&rendezvous).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let good = validate_body(&bundle, 2);
    let is_valid = async |body: &Value| valid(&rendezvous, &env, body).await;
    let mut wrong_registration = good.clone();
    wrong_registration["executor_registration_id"] = json!("reg_other");
    let mut wrong_words = good.clone();
    wrong_words["harness_key_authorization"] = json!("x".repeat(5000));
    assert!(!is_valid(&validate_body(&bundle, 3)).await, "another harness's key");
    assert!(!is_valid(&wrong_registration).await);
    assert!(!is_valid(&wrong_words).await);
    let _other = other.executor(&rendezvous).await;
    assert!(!valid(&rendezvous, &other, &good).await, "another environment's executor");
    assert!(is_valid(&good).await);
    assert!(!is_valid(&good).await, "a second time");
    for code in [
        "other_key",
        "stale_registration",
        "unknown_authorization",
        "other_environment",
        "used_authorization",
    ] {
        let labels = format!("{{method=\"validate\",code=\"{code}\"}}");
        let line = format!("exec_server_request_refusals_total{labels} 1");
        rendezvous.wait_for_metric(&line).await;
    }
}

#[tokio::test]
async fn an_authorization_is_used_by_one_of_many_who_try_at_once() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let body = validate_body(&bundle, 2);
    let all: Vec<_> = (0..16).map(|_| valid(&rendezvous, &env, &body)).collect();
    let mut winners = 0;
    for one in futures_util::future::join_all(all).await {
        winners += usize::from(one);
    }
    assert_eq!(winners, 1);
}

#[tokio::test]
async fn an_authorization_and_a_way_do_not_last() {
    let rendezvous =
        TestRendezvous::start_with(|config| config.timings.harness_bundle = Duration::ZERO).await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    assert!(!valid(&rendezvous, &env, &validate_body(&bundle, 2)).await);
    assert_eq!(rejection(url(&bundle)).await, (401, "expired".to_owned()));
}

#[tokio::test]
async fn a_newer_registration_ends_everything_of_the_older_one() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let first = rendezvous.register("env", &env.executor, &public_key(1)).await;
    let mut executor = RelaySocket::open(url(&first)).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let unused = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let mut harness = RelaySocket::open(url(&bundle)).await;
    let second = rendezvous.register("env", &env.executor, &public_key(1)).await;
    assert_ne!(first["executor_registration_id"], second["executor_registration_id"]);
    executor.expect_closed(1008, "superseded").await;
    harness.expect_closed(1012, "executor_gone").await;
    assert_eq!(rejection(url(&first)).await, (401, "expired".to_owned()));
    assert_eq!(rejection(url(&unused)).await, (401, "expired".to_owned()));
    assert!(!valid(&rendezvous, &env, &validate_body(&unused, 2)).await, "a stale registration");
    let _executor = RelaySocket::open(url(&second)).await;
}

#[tokio::test]
async fn concurrent_registrations_succeed_or_report_that_nothing_was_written() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let body = register_body(&public_key(1));
    let all = (0..16).map(|_| rendezvous.post("env/register", &env.executor, &body));
    let replies = futures_util::future::join_all(all).await;
    let mut registered = 0;
    for reply in &replies {
        match refusal(reply) {
            (200, _) => registered += 1,
            refused => assert_eq!(refused, (503, "registration_conflict".to_owned())),
        }
    }
    let stored = rendezvous.store().environment("env".to_owned()).await.unwrap().unwrap();
    assert_eq!(stored.generation, registered);
    let current = stored.registration.unwrap().id;
    let is_current = |reply: &&exec_server_testkit::HttpReply| reply.body.contains(&current);
    let reply = replies.iter().find(is_current).expect("the last one was told");
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    let _executor = RelaySocket::open(url(&answer)).await;
}

#[tokio::test]
async fn with_first_wins_another_executor_waits_until_the_first_is_gone() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let first_wins = RegistrationPolicy::FirstWins;
    assert!(rendezvous.store().set_policy("env".to_owned(), first_wins).await.unwrap());
    let executor = env.executor(&rendezvous).await;
    let taken =
        rendezvous.post("env/register", &env.executor, &register_body(&public_key(9))).await;
    assert_eq!(refusal(&taken), (409, "environment_in_use".to_owned()));
    // The same executor may register again.
    let again = rendezvous.register("env", &env.executor, &public_key(1)).await;
    let again = RelaySocket::open(url(&again)).await;
    drop((executor, again));
    let deadline = tokio::time::Instant::now() + exec_server_testkit::DEADLINE;
    loop {
        let body = register_body(&public_key(9));
        let reply = rendezvous.post("env/register", &env.executor, &body).await;
        if reply.status == 200 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{reply:?}");
    }
}

#[tokio::test]
async fn a_connect_url_works_once_and_only_while_the_executor_is_attached() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    let connect_url = url(&bundle).to_owned();
    let mut harness = RelaySocket::open(&connect_url).await;
    assert_eq!(rejection(&connect_url).await, (401, "expired".to_owned()), "a second time");
    assert_eq!(
        rejection(&connect_url.replace("harness", "king")).await,
        (401, "invalid_role".to_owned())
    );
    let more = format!("{connect_url}&more=1");
    assert_eq!(rejection(&more).await, (401, "extra_query_param".to_owned()));
    let elsewhere = connect_url.replace("/environment/env?", "/environment/other?");
    assert_eq!(rejection(&elsewhere).await, (401, "invalid_signature".to_owned()));
    assert_eq!(rejection(&connect_url.replace("sig=", "sig=0")).await.1, "invalid_signature");

    let bundle = rendezvous.connect("env", &env.harness, &public_key(2)).await;
    harness.resume("a").await;
    assert!(matches!(executor.next().await, Relayed::Frame(_)));
    drop(executor);
    harness.expect_closed(1012, "executor_gone").await;
    assert_eq!(rejection(url(&bundle)).await, (401, "route_unavailable".to_owned()));
}

#[tokio::test]
async fn a_token_has_no_more_streams_than_it_may_have() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let token = rendezvous
        .new_token(NewToken {
            role: TokenRole::Harness,
            environment: Some("env".into()),
            expires_in_seconds: None,
            max_streams: Some(1),
            label: None,
        })
        .await;
    let bundle = rendezvous.connect("env", &token, &public_key(2)).await;
    let _harness = RelaySocket::open(url(&bundle)).await;
    let bundle = rendezvous.connect("env", &token, &public_key(2)).await;
    assert_eq!(rejection(url(&bundle)).await.0, 429);
    let _other = env.harness(&rendezvous).await;
}

#[tokio::test]
async fn unused_connect_urls_are_limited() {
    let rendezvous =
        TestRendezvous::start_with(|config| config.limits.unused_authorizations = 2).await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    for _ in 0..2 {
        rendezvous.connect("env", &env.harness, &public_key(2)).await;
    }
    let reply = rendezvous.post("env/connect", &env.harness, &connect_body(&public_key(2))).await;
    assert_eq!(refusal(&reply), (429, "too_many_authorizations".to_owned()));
}

#[tokio::test]
async fn a_full_environment_rejects_harnesses_as_retryable() {
    let rendezvous =
        TestRendezvous::start_with(|config| config.limits.streams_per_environment = 1).await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let _harness = env.harness(&rendezvous).await;
    let reply = rendezvous.post("env/connect", &env.harness, &connect_body(&public_key(2))).await;
    assert_eq!(refusal(&reply), (503, "environment_busy".to_owned()));
}

/// Body of a validate request for a harness with this key.
pub(super) fn validate_body(bundle: &Value, key: u8) -> Value {
    json!({
        "executor_registration_id": bundle["executor_registration_id"],
        "harness_public_key": public_key(key),
        "harness_key_authorization": bundle["harness_key_authorization"],
    })
}

pub(super) async fn valid(rendezvous: &TestRendezvous, env: &Env, body: &Value) -> bool {
    let reply = rendezvous.post(&format!("{}/validate", env.name), &env.executor, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    answer["valid"].as_bool().unwrap()
}
