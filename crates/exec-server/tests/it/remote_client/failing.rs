//! Errors of unreachable environments, with their hints.

use std::sync::Mutex;

use exec_server::ExecServerClient;
use exec_server_relay::frame::RelayBody;
use exec_server_relay::registry_types::{ConnectResponse, SECURITY_PROFILE};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::mock_registry::switch;
use exec_server_testkit::rendezvous::public_key;
use exec_server_testkit::web::{Visit, WebRequest, answer};
use exec_server_testkit::{RelaySocket, Relayed, TestRendezvous, Web, eventually};
use serde_json::json;

use super::{RelayFixture, args, command, finish};

#[tokio::test]
async fn a_missing_executor_is_awaited_and_then_reported_as_offline() {
    let rendezvous = TestRendezvous::start().await;
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let state = tempfile::tempdir().unwrap();
    let child =
        command(&["run", "--remote", rendezvous.url(), "env:env", "--", "true"], state.path())
            .env("EXEC_SERVER_REMOTE_TOKEN", &token)
            .spawn()
            .unwrap();
    let (code, out, err) = finish(child).await;
    assert_eq!((code, out.as_str()), (255, ""), "{err}");
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    assert!(
        lines[0].contains("environment_offline") && lines[0].ends_with("; trying again"),
        "{err}"
    );
    assert!(lines[1].starts_with("exec-server: could not reach environment `env`"), "{err}");
    assert!(lines[2].contains("--environment-id env"), "{err}");
    assert!(!err.contains(&token), "{err}");
}

#[tokio::test]
async fn a_starting_executor_is_awaited() {
    let rendezvous = TestRendezvous::start().await;
    let harness = rendezvous.token(TokenRole::Harness, "env").await;
    let executor = rendezvous.token(TokenRole::Executor, "env").await;
    let (state, executor_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = command(
        &["run", "--remote", rendezvous.url(), "env:env", "--", "echo", "hi"],
        state.path(),
    )
    .env("EXEC_SERVER_REMOTE_TOKEN", &harness)
    .spawn()
    .unwrap();
    let mut stderr = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut stderr, &mut line).await.unwrap();
    assert!(line.ends_with("; trying again\n"), "{line}");
    let _executor =
        exec_server_testkit::remote::join(rendezvous.url(), executor_state.path(), &executor)
            .spawn();
    assert_eq!(finish(child).await.1, "hi\n");
}

#[tokio::test]
async fn a_wrong_token_or_registry_is_reported_at_once_with_a_hint() {
    let fixture = RelayFixture::start().await;
    let other = fixture.rendezvous.token(TokenRole::Harness, "other").await;
    let url = fixture.rendezvous.url();
    let run = |url: &str, token: &str, name: &str| {
        let arguments = ["run", "--remote", url, name, "--", "true"];
        let mut command = command(&arguments, fixture.state.path());
        command.env("EXEC_SERVER_REMOTE_TOKEN", token);
        async move { finish(command.spawn().unwrap()).await }
    };
    for (url, token, name, answers) in [
        (url, "xs_harness_wrong", "env:env", ["(401)", "token create --environment env"]),
        (url, other.as_str(), "env:env", ["(403)", "another environment or role"]),
        (url, fixture.executor_token.as_str(), "env:env", ["(403)", "--role harness"]),
        (url, fixture.harness_token.as_str(), "env:nobody", ["(403)", "--environment nobody"]),
        ("http://192.0.2.1", "t", "env:env", ["without TLS", "https://"]),
        ("ws://127.0.0.1:1", "t", "env:env", ["is not a registry URL", "https://"]),
        (url, "a b", "env:env", ["cannot carry", "token"]),
        (url, "", "env:env", ["set EXEC_SERVER_REMOTE_TOKEN", "token create"]),
    ] {
        let (code, out, err) = run(url, token, name).await;
        assert!(code == 255 || code == 125, "{code}: {err}");
        assert_eq!(out, "");
        assert!(answers.iter().all(|words| err.contains(words)), "{answers:?}: {err}");
        assert!(token.len() < 4 || !err.contains(token), "{err}");
    }
    let child = command(&["run", "env:env", "--", "true"], fixture.state.path()).spawn().unwrap();
    let (code, _, err) = finish(child).await;
    assert!(code == 125 && err.contains("EXEC_SERVER_REMOTE_URL"), "{err}");
    let arguments = ["run", "--executor-key", "any", "ws://127.0.0.1:1", "--", "true"];
    let (code, _, err) = finish(command(&arguments, fixture.state.path()).spawn().unwrap()).await;
    assert!(code == 125 && err.contains("go with a target like env:NAME"), "{err}");
}

#[tokio::test]
async fn a_rendezvous_that_is_away_is_tried_again_and_then_named() {
    let state = tempfile::tempdir().unwrap();
    // No process listens on a port that was free a moment ago.
    let free = free_address();
    let child = command(&["info", "--remote", &format!("http://{free}"), "env:env"], state.path())
        .env("EXEC_SERVER_REMOTE_TOKEN", "t")
        .spawn()
        .unwrap();
    let (code, _, err) = finish(child).await;
    assert_eq!(code, 255, "{err}");
    assert!(err.contains("; trying again") && err.contains("exec-server rendezvous"), "{err}");
}

#[tokio::test]
async fn a_missing_state_directory_is_reported() {
    let fixture = RelayFixture::start().await;
    let child = fixture
        .command(&["run", "env:env", "--", "true"])
        .env("EXEC_SERVER_STATE_DIR", "/dev/null/state")
        .spawn()
        .unwrap();
    let (code, _, err) = finish(child).await;
    assert!(code == 255 && err.contains("/dev/null/state"), "{err}");
}

#[tokio::test]
async fn a_first_connection_retries_transient_errors_only() {
    // The registry's answer to each connect request (a status and a code, or a relay URL for this environment), and the
    // relay's answer to a client that uses the URL.
    const WAY: (u16, &str) = (200, "env");
    for (answers, relay, ending) in [
        (&[(400, "whatever")][..], 0, "answered 400"),
        (&[(200, "<html>")], 0, "is not JSON"),
        (&[(200, "{}")], 0, "is missing"),
        (&[(409, "environment_offline"), (408, ""), (404, "")], 0, "answered 404"),
        (&[(500, ""), (502, "whatever"), (404, "")], 0, "answered 404"),
        (&[(504, ""), (425, ""), (404, "")], 0, "answered 404"),
        (&[(0, ""), (404, "")], 0, "answered 404"),
        (&[(404, "not_found")], 0, "answered 404"),
        (&[(409, "environment_in_use")], 0, "answered 409"),
        (&[(410, "gone")], 0, "answered 410"),
        (&[(302, "moved")], 0, "answered 302"),
        (&[(503, "environment_busy"), (401, "invalid_token")], 0, "(401)"),
        (&[(429, "too_many_authorizations"), (403, "forbidden")], 0, "(403)"),
        (&[(200, "another")], 0, "names another environment"),
        (&[WAY], 403, "HTTP status 403"),
        (&[WAY], 410, "HTTP status 410"),
        (&[WAY, (403, "forbidden")], 401, "(403)"),
        (&[WAY, (403, "forbidden")], 503, "(403)"),
    ] {
        let (status, next) = (relay, Mutex::new(answers.iter()));
        let web = Web::answering(move |request| {
            if request.method == "GET" {
                return answer(status, &[], "");
            }
            let (status, word) = *next.lock().unwrap().next().expect("it does not ask once more");
            if status == 0 {
                // Half of a reply, and then nothing.
                return b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{"
                    .to_vec();
            }
            if word.starts_with(['<', '{']) {
                return answer(status, &[], word);
            }
            if status != 200 {
                return answer(status, &[], json!({"error": {"code": word}}).to_string());
            }
            answer(200, &[], connect_response(word, request))
        })
        .await;
        let state = tempfile::tempdir().unwrap();
        let connecting = ExecServerClient::connect_relay(args(&web.url(""), "token", state.path()));
        let error = connecting.await.unwrap_err();
        let text = exec_server::logging::chain(&error);
        assert!(text.contains(ending), "{answers:?}: {text}");
        let requests = web.requests();
        let asked: Vec<_> = requests.iter().filter(|request| request.method == "POST").collect();
        assert_eq!(asked.len(), answers.len(), "{answers:?}: {text}");
        for request in &asked {
            assert_eq!(request.target, "/cloud/environment/env/connect");
            assert_eq!(request.header("authorization"), Some("Bearer token"));
            assert_eq!(request.body, asked[0].body, "it is the same harness every time");
        }
    }
}

#[tokio::test]
async fn a_first_connection_takes_no_longer_than_14_seconds_whichever_end_is_silent() {
    // The registry does not answer; or it does, and its relay does not.
    let connect = async |is_registry_silent: bool| {
        let web = Web::start(move |mut visit: Visit| async move {
            while let Some(request) = visit.request().await {
                if is_registry_silent || request.method == "GET" {
                    return visit.closed().await;
                }
                visit.send(&answer(200, &[], connect_response("env", &request))).await;
            }
        })
        .await;
        let state = tempfile::tempdir().unwrap();
        let began = std::time::Instant::now();
        let connecting = ExecServerClient::connect_relay(args(&web.url(""), "token", state.path()));
        let error = connecting.await.unwrap_err();
        // Without an overall timeout it would be more than 20 seconds.
        assert!(began.elapsed().as_secs() < 19, "{:?}", began.elapsed());
        let text = exec_server::logging::chain(&error);
        assert!(text.contains("did not answer within"), "{text}");
    };
    tokio::join!(connect(true), connect(false));
}

#[tokio::test]
async fn a_relay_that_hangs_up_is_asked_again_and_an_executor_that_refuses_is_not() {
    for is_refused in [true, false] {
        let web = Web::start(move |mut visit: Visit| async move {
            let Some(request) = visit.request().await else { return };
            if request.method == "POST" {
                visit.send(&answer(200, &[], connect_response("env", &request))).await;
                return;
            }
            visit.send(switch(&request)).await;
            let mut relay = RelaySocket::serve(visit.into_link());
            let Relayed::Frame(first) = relay.next().await else { return };
            if is_refused {
                let reason = "noise_relay_protocol_error".to_owned();
                relay.send(&first.stream_id, RelayBody::Reset { reason }).await;
            }
        })
        .await;
        let state = tempfile::tempdir().unwrap();
        let connecting = ExecServerClient::connect_relay(args(&web.url(""), "token", state.path()));
        tokio::select! {
            result = connecting => {
                assert!(is_refused, "it goes on");
                let text = exec_server::logging::chain(&result.unwrap_err());
                assert!(text.contains("the stream was reset"), "{text}");
            }
            () = eventually("it asks again", || web.requests().len() >= 3) => {
                assert!(!is_refused, "an executor bears only so many that it refuses");
            }
        }
    }
}

/// A connect response for an environment at the same address, to an executor that is not attached.
fn connect_response(environment_id: &str, request: &WebRequest) -> String {
    let host = request.header("host").expect("every request has one");
    let response = ConnectResponse {
        environment_id: environment_id.to_owned(),
        url: format!("ws://{host}/relay"),
        security_profile: SECURITY_PROFILE.to_owned(),
        executor_registration_id: "registration".to_owned(),
        executor_public_key: public_key(1),
        harness_key_authorization: "authorization".to_owned(),
    };
    serde_json::to_string(&response).unwrap()
}
