//! Health, version, metrics and admin routes.

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::TestRendezvous;
use exec_server_testkit::http::request;
use serde_json::{Value, json};

use super::{env, refusal, revoke_all};

#[tokio::test]
async fn health_routes_need_no_token() {
    let rendezvous = TestRendezvous::start().await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let reply = request(rendezvous.url(), "GET", path, &[]).await;
        assert_eq!(reply.status, 200);
        let body: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["status"], "ok");
    }
    let reply = request(rendezvous.url(), "GET", "/version", &[]).await;
    assert!(reply.body.contains(env!("CARGO_PKG_VERSION")));
    let reply = request(rendezvous.url(), "GET", "/nothing", &[]).await;
    assert_eq!(refusal(&reply), (404, "not_found".to_owned()));
    let reply = request(rendezvous.url(), "GET", "/livez", &[("Origin", "http://x")]).await;
    assert_eq!(reply.status, 403, "no browser has business here");
}

#[tokio::test]
async fn metrics_need_the_admin_token_and_count_sockets() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.next().await;
    let get = async |token: &str| rendezvous.ask("GET", "/metrics", token, &Value::Null).await;
    assert_eq!(get("xs_admin_guessed").await.status, 401);
    assert_eq!(get(&env.executor).await.status, 403);
    let text = get(rendezvous.admin_token()).await.body;
    for line in [
        "exec_server_relay_executors_active 1",
        "exec_server_relay_streams_active 1",
        "exec_server_relay_frames_total{dir=\"in\"} 1",
        "exec_server_relay_frames_total{dir=\"out\"} 1",
        "exec_server_requests_total{method=\"register\",result=\"ok\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn the_owner_makes_lists_and_revokes_tokens() {
    let rendezvous = TestRendezvous::start().await;
    let admin = rendezvous.admin_token().to_owned();
    let ask = async |method: &str, path: &str, body: Value| {
        rendezvous.ask(method, path, &admin, &body).await
    };
    let wanted = json!({"role": "executor", "environment": "env", "expiresInSeconds": 60});
    let reply = ask("POST", "/admin/tokens", wanted).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    let made: Value = serde_json::from_str(&reply.body).unwrap();
    let secret = made["secret"].as_str().unwrap();
    assert!(secret.starts_with("xs_exec_"));
    let list = ask("GET", "/admin/tokens", Value::Null).await.body;
    assert!(list.contains(made["id"].as_str().unwrap()) && !list.contains(secret));

    let env = super::Env { name: "env", executor: secret.to_owned(), harness: String::new() };
    let mut executor = env.executor(&rendezvous).await;
    let path = format!("/admin/tokens/{}", made["id"].as_str().unwrap());
    assert_eq!(ask("DELETE", &path, Value::Null).await.status, 200);
    executor.expect_closed(1008, "token_revoked").await;
    assert_eq!(ask("DELETE", "/admin/tokens/tok_none", Value::Null).await.status, 404);

    for bad in [
        json!({"role": "executor"}),
        json!({"role": "admin", "environment": "env"}),
        json!({"role": "king", "environment": "env"}),
        json!({"role": "harness", "environment": "a/b"}),
        json!({"role": "executor", "environment": "env", "maxStreams": 1}),
    ] {
        assert_eq!(ask("POST", "/admin/tokens", bad.clone()).await.status, 400, "{bad}");
    }
    let harness = rendezvous.token(TokenRole::Harness, "env").await;
    for path in ["/admin/tokens", "/admin/environments"] {
        assert_eq!(rendezvous.ask("GET", path, &harness, &Value::Null).await.status, 403);
    }
}

#[tokio::test]
async fn a_token_that_another_program_revokes_is_noticed() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.maintenance = std::time::Duration::from_millis(20);
    })
    .await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    revoke_all(&rendezvous).await;
    executor.expect_closed(1008, "token_revoked").await;
}

#[tokio::test]
async fn presence_and_policy_of_environments_are_seen_and_set() {
    let rendezvous = TestRendezvous::start().await;
    let admin = rendezvous.admin_token().to_owned();
    let env = env(&rendezvous, "env").await;
    let list = async || {
        let reply = rendezvous.ask("GET", "/admin/environments", &admin, &Value::Null).await;
        serde_json::from_str::<Value>(&reply.body).unwrap()["environments"][0].clone()
    };
    assert_eq!(list().await["online"], false);
    let _executor = env.executor(&rendezvous).await;
    let _harness = env.harness(&rendezvous).await;
    let change = json!({"policy": "first-wins"});
    assert_eq!(
        rendezvous.ask("PATCH", "/admin/environments/env", &admin, &change).await.status,
        200
    );
    assert_eq!(
        rendezvous.ask("PATCH", "/admin/environments/no", &admin, &change).await.status,
        404
    );
    let found = list().await;
    assert_eq!(found["online"], true);
    assert_eq!(found["streams"], 1);
    assert_eq!(found["policy"], "first-wins");
}
