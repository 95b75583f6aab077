//! Our executor retries when registries and relays fail, for a moment or for long.

use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_testkit::executor::{Signal, TestExecutor};
use exec_server_testkit::mock_registry::{registration, switch};
use exec_server_testkit::remote::join;
use exec_server_testkit::web::{Visit, WebRequest, answer};
use exec_server_testkit::{DEADLINE, MockRegistry, Web};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Pauses grow fast: fewer attempts than this precede a pause of more than a second.
const MANY: usize = 60;

#[tokio::test]
async fn a_relay_that_rejects_every_socket_is_retried_with_growing_pauses() {
    for relay in [Relay::HangsUp, Relay::Answers(404), Relay::Answers(502), Relay::Drops] {
        let web = Web::start(move |visit| serve(visit, relay)).await;
        let state = tempfile::tempdir().unwrap();
        let mut executor = join(&web.url(""), state.path(), "token").piped_stderr().spawn();
        wait_for_a_long_pause(&mut executor, &web, relay).await;
        let asked = web.requests();
        let registered = asked.iter().filter(|request| request.method == "POST").count();
        assert!(registered < MANY, "{relay:?}: {registered} registrations");
        executor.signal(Signal::TERM);
        assert_eq!(executor.wait().await.code(), Some(0));
    }
}

#[tokio::test]
async fn only_a_permanent_rejection_by_the_registry_ends_an_executor() {
    let code = |code: &str| json!({"error": {"code": code, "message": "hm"}}).to_string();
    let detail = |code: &str| json!({"detail": {"code": code, "message": "hm"}}).to_string();
    for status in [401, 403, 410] {
        for body in [code("whatever"), detail("registration_conflict"), String::new()] {
            let registry =
                MockRegistry::with_answers(move |_| Some(answer(status, &[], &body))).await;
            let state = tempfile::tempdir().unwrap();
            let (code, _, stderr) = join(&registry.url(), state.path(), TOKEN).run().await;
            assert_eq!((code, registry.count("register")), (1, 1), "{status}: {stderr}");
        }
    }
    let location = [("location", "http://127.0.0.1:1/elsewhere")];
    let mut hiccups = vec![
        answer(503, &[], code("registration_conflict")),
        answer(502, &[], code("authentication_service_unavailable")),
        answer(502, &[], detail("authentication_service_unavailable")),
        answer(302, &location, ""),
        // No response, and half of one.
        Vec::new(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{".to_vec(),
    ];
    for status in [400, 404, 408, 409, 425, 429, 500, 502, 503, 504] {
        hiccups.push(answer(status, &[], code("environment_in_use")));
        hiccups.push(answer(status, &[], "<html>"));
    }
    for hiccup in hiccups {
        comes_in_after(move |_| hiccup.clone()).await;
    }
}

#[tokio::test]
async fn a_registry_that_falls_silent_is_asked_again() {
    // Before the first byte of the response, and in the middle of it.
    let in_head = b"HTTP/1.1 2".to_vec();
    let in_body = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec();
    tokio::join!(
        comes_in_after(move |_| in_head.clone()),
        comes_in_after(move |_| in_body.clone()),
    );
}

#[tokio::test]
async fn an_answer_that_registers_something_else_is_not_believed() {
    type Change = fn(&mut Value);
    let changes: [Change; 9] = [
        |answer| answer["environment_id"] = json!("another"),
        |answer| answer["security_profile"] = json!("none"),
        |answer| answer["url"] = json!(""),
        |answer| answer["url"] = json!("nowhere"),
        |answer| answer["url"] = json!("file:///dev/null"),
        |answer| answer["url"] = json!(null),
        |answer| answer["executor_registration_id"] = json!(7),
        |answer| answer["url"] = json!(format!("{}?for={TOKEN}", answer["url"].as_str().unwrap())),
        |answer| *answer = json!([TOKEN]),
    ];
    for change in changes {
        comes_in_after(move |request| {
            let mut body: Value = serde_json::from_str(&registration(request)).unwrap();
            change(&mut body);
            answer(200, &[], body.to_string())
        })
        .await;
    }
}

#[tokio::test]
async fn registry_text_is_escaped_and_never_shows_the_token() {
    let said = json!({"error": {
        "code": format!("\u{1b}]0;{}", "c".repeat(500)),
        "message": format!("\u{1b}[2Jline\nline {}", "x".repeat(100_000)),
    }});
    let registry =
        MockRegistry::with_answers(move |_| Some(answer(403, &[], said.to_string()))).await;
    let state = tempfile::tempdir().unwrap();
    let (code, _, stderr) = join(&registry.url(), state.path(), TOKEN).run().await;
    assert_eq!(code, 1);
    assert!(stderr.contains("\\u{1b}[2Jline\\nline xxx"), "{stderr}");
    assert!(stderr.lines().count() == 1 && stderr.len() < 1000, "{stderr}");
    assert!(!stderr.trim_end().contains(char::is_control), "{stderr}");
    let said = json!({"error": {"code": TOKEN, "message": format!("bad token {TOKEN}")}});
    let registry =
        MockRegistry::with_answers(move |_| Some(answer(410, &[], said.to_string()))).await;
    let (code, _, stderr) = join(&registry.url(), state.path(), TOKEN).run().await;
    assert!(code == 1 && stderr.contains("410") && !stderr.contains(TOKEN), "{stderr}");
}

#[tokio::test]
async fn a_name_cannot_lead_the_token_elsewhere() {
    let registry = MockRegistry::with_answers(|_| Some(answer(410, &[], ""))).await;
    let state = tempfile::tempdir().unwrap();
    let builder = TestExecutor::builder().args(&["--remote", &registry.url(), "--state-dir"]);
    let builder = builder.args(&[&state.path().display().to_string()]);
    let builder = builder.args(&["--environment-id", "../../evil?x=1#ü"]);
    let (code, ..) = builder.env("EXEC_SERVER_REMOTE_TOKEN", TOKEN).run().await;
    assert_eq!(code, 1);
    let target = "/cloud/environment/..%2F..%2Fevil%3Fx=1%23%C3%BC/register";
    assert_eq!(registry.requests()[0].target, target);
}

const TOKEN: &str = "xs_exec_the-token-of-this-test";

/// The first registration gets this response; the executor retries and succeeds.
async fn comes_in_after(hiccup: impl Fn(&WebRequest) -> Vec<u8> + Send + Sync + 'static) {
    let is_first = AtomicBool::new(true);
    let registry = MockRegistry::with_answers(move |request| {
        let is_register = request.target.ends_with("/register");
        (is_register && is_first.swap(false, Ordering::Relaxed)).then(|| hiccup(request))
    })
    .await;
    let state = tempfile::tempdir().unwrap();
    let mut executor = join(&registry.url(), state.path(), TOKEN).piped_stderr().spawn();
    let line = executor.next_stderr_line().await.expect("it says so");
    assert!(line.contains("could not register; trying again"), "{line}");
    assert!(!line.contains(TOKEN), "{line}");
    registry.socket().await;
    assert_eq!(registry.count("register"), 2, "{line}");
}

/// Handling of websocket requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relay {
    /// Closes without a response.
    HangsUp,
    /// Answers with this status.
    Answers(u16),
    /// Upgrades, then closes.
    Drops,
}

async fn serve(mut visit: Visit, relay: Relay) {
    while let Some(request) = visit.request().await {
        match relay {
            _ if request.method == "POST" => {
                visit.send(&answer(200, &[], registration(&request))).await;
            }
            Relay::HangsUp => return,
            Relay::Answers(status) => {
                visit.send(&answer(status, &[], "")).await;
            }
            Relay::Drops => {
                visit.send(switch(&request)).await;
                return;
            }
        }
    }
}

/// Waits until the log says that it pauses for more than a second.
async fn wait_for_a_long_pause(executor: &mut TestExecutor, web: &Web, relay: Relay) {
    let waiting = async {
        loop {
            let line = executor.next_stderr_line().await.expect("it goes on");
            let requests = web.requests().len();
            assert!(requests < 10 * MANY, "{relay:?}: {requests} requests");
            let line: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
            let pause = line["pause"].as_str().unwrap_or_default();
            if line["message"].as_str().unwrap_or_default().ends_with("trying again")
                && !pause.ends_with("ms")
                && !pause.ends_with("µs")
            {
                return;
            }
        }
    };
    timeout(DEADLINE, waiting).await.expect("it is patient in time");
}
