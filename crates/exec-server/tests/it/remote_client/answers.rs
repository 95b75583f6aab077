//! Replies of a registry and a relay during a reconnect, and the client's reaction.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use exec_server::{ExecServerClient, ProcessEvent, Stdin};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::TestExecutor;
use exec_server_testkit::http::request_with_body;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::remote::join;
use exec_server_testkit::web::{Visit, WebRequest, answer};
use exec_server_testkit::{DEADLINE, TestRendezvous, Web};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{args, connect};

#[tokio::test]
async fn transient_errors_are_retried_and_the_session_continues() {
    let place = Place::start().await;
    let client = place.client().await;
    let session = client.session_id();
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{".to_vec();
    let mut answers =
        vec![(POST, coded(409, "environment_offline")), (POST, Vec::new()), (POST, half)];
    answers.extend([408, 425, 429, 500, 502, 503, 504].map(|it| (POST, coded(it, "whatever"))));
    // Whatever the relay replies, another connect request may succeed.
    answers.extend([401, 403, 404, 409, 410, 429, 500, 503, 200].map(|it| (GET, coded(it, ""))));
    answers.push((GET, Vec::new()));
    for (number, (method, answer)) in answers.into_iter().enumerate() {
        place.front.say_next(method, answer);
        place.front.cut_harnesses();
        stdin.write_all(format!("{number}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
        assert_eq!(line, format!("{number}\n"));
        assert!(place.front.has_said_everything(), "{number}");
    }
    assert_eq!(client.session_id(), session);
}

#[tokio::test]
async fn permanent_errors_end_the_session_at_once_with_the_reason() {
    let place = Place::start().await;
    for (answer, answers) in [
        (coded(400, "bad_request"), "answered 400 bad_request"),
        (coded(401, "invalid_token"), "refused the credential (401)"),
        (coded(403, "forbidden"), "refused the credential (403)"),
        (coded(404, "not_found"), "answered 404 not_found"),
        (coded(409, "environment_in_use"), "answered 409 environment_in_use"),
        (coded(410, "gone"), "answered 410 gone"),
        (coded(302, "moved"), "answered 302 moved"),
        (answer(200, &[], "{}"), "invalid response"),
        (answer(200, &[], "<html>"), "invalid response"),
    ] {
        let client = place.client().await;
        let child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
        let mut events = child.session().events();
        place.front.say_next(POST, answer);
        place.front.cut_harnesses();
        let failure = loop {
            match timeout(DEADLINE, events.next()).await.expect("it is noticed") {
                Some(ProcessEvent::Failed(reason)) => break reason,
                Some(_) => {}
                None => panic!("the end is told"),
            }
        };
        assert!(failure.contains(answers), "{answers}: {failure}");
        // A new request starts a new attempt.
        let output = client.command("echo").arg("again").output().await.unwrap();
        assert_eq!(output.stdout_text(), "again\n");
    }
}

/// Registry requests.
const POST: &str = "POST";
/// Websockets of harnesses.
const GET: &str = "GET";

fn coded(status: u16, code: &str) -> Vec<u8> {
    answer(status, &[], json!({"error": {"code": code}}).to_string())
}

/// A rendezvous with an HTTP proxy in front of it, and an executor.
struct Place {
    front: Arc<Front>,
    web: Web,
    rendezvous: TestRendezvous,
    state: tempfile::TempDir,
    _executor: TestExecutor,
    _executor_state: tempfile::TempDir,
}

impl Place {
    async fn start() -> Self {
        let listen = free_address();
        let front = Arc::new(Front {
            server: listen.to_string(),
            next: Mutex::default(),
            harnesses: Mutex::default(),
        });
        let serving = front.clone();
        let web = Web::start(move |visit| serve(visit, serving.clone())).await;
        let rendezvous = TestRendezvous::start_with(|config| {
            config.listen = listen;
            config.public_url = Some(web.url(""));
        })
        .await;
        let (state, executor_state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let token = rendezvous.token(TokenRole::Executor, "env").await;
        let _executor = join(&web.url(""), executor_state.path(), &token).spawn();
        Self { front, web, rendezvous, state, _executor, _executor_state: executor_state }
    }

    async fn client(&self) -> ExecServerClient {
        let token = self.rendezvous.token(TokenRole::Harness, "env").await;
        connect(args(&self.web.url(""), &token, self.state.path())).await
    }
}

/// Forwards everything, unless a reply is scripted.
struct Front {
    server: String,
    next: Mutex<VecDeque<(&'static str, Vec<u8>)>>,
    harnesses: Mutex<JoinSet<()>>,
}

impl Front {
    /// Answers the next such request of a harness with this reply; an empty reply closes the connection.
    fn say_next(&self, method: &'static str, answer: Vec<u8>) {
        self.next.lock().unwrap().push_back((method, answer));
    }

    fn has_said_everything(&self) -> bool {
        self.next.lock().unwrap().is_empty()
    }

    /// Cuts the websockets of harnesses, but not that of the executor.
    fn cut_harnesses(&self) {
        self.harnesses.lock().unwrap().abort_all();
    }

    fn own_answer(&self, request: &WebRequest) -> Option<Vec<u8>> {
        let is_harness =
            request.target.ends_with("/connect") || request.target.contains("role=harness");
        let mut next = self.next.lock().unwrap();
        let is_meant = next.front().is_some_and(|(method, _)| *method == request.method);
        (is_harness && is_meant).then(|| next.pop_front().expect("was looked at").1)
    }

    /// Forwards the request to the rendezvous, and then all bytes.
    async fn pass_websocket_on(&self, visit: Visit, request: &WebRequest) {
        let mut text = format!("GET {} HTTP/1.1\r\n", request.target);
        for (name, value) in &request.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut far = TcpStream::connect(&self.server).await.unwrap();
        far.write_all((text + "\r\n").as_bytes()).await.unwrap();
        let mut near = visit.into_link();
        let carrying = async move {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        };
        if request.target.contains("role=harness") {
            self.harnesses.lock().unwrap().spawn(carrying);
        } else {
            tokio::spawn(carrying);
        }
    }
}

async fn serve(mut visit: Visit, front: Arc<Front>) {
    let Some(request) = visit.request().await else { return };
    if let Some(answer) = front.own_answer(&request) {
        visit.send(answer).await;
        return;
    }
    if request.method == GET {
        return front.pass_websocket_on(visit, &request).await;
    }
    let authorization = request.header("authorization").unwrap_or_default();
    let headers = [("Authorization", authorization), ("Content-Type", "application/json")];
    let server = format!("http://{}", front.server);
    let reply = request_with_body(&server, POST, &request.target, &headers, &request.body).await;
    visit.send(answer(reply.status, &[], reply.body)).await;
}
