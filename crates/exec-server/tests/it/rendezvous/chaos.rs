//! The network between an executor and its rendezvous fails at every step.

use std::net::SocketAddr;
use std::time::Duration;

use exec_server_protocol::base64;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::{Signal, TestExecutor};
use exec_server_testkit::fault_proxy::{Ending, Toward};
use exec_server_testkit::harness::{receive, send};
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::remote::join;
use exec_server_testkit::{DEADLINE, FaultProxy, TestHarness, TestRendezvous, eventually};
use serde_json::{Value, json};

#[tokio::test]
async fn an_executor_attaches_wherever_its_first_attempt_is_cut() {
    let fixture = Fixture::start().await;
    // Cuts at each step: register request, response, websocket, harness handshake, first messages.
    for (toward, bytes) in [
        (Toward::Server, 1),
        (Toward::Server, 700),
        (Toward::Client, 1),
        (Toward::Client, 300),
        (Toward::Server, 2_200),
        (Toward::Client, 700),
        (Toward::Client, 1_100),
        (Toward::Client, 3_000),
        (Toward::Server, 5_000),
        (Toward::Client, 5_200),
        (Toward::Server, 7_500),
    ] {
        let state = tempfile::tempdir().unwrap();
        fixture.proxy.cut_after(toward, bytes);
        let mut executor = fixture.executor(&state).await;
        let session = fixture.insist(None, 0).await;
        assert!(!session.is_empty(), "after {bytes} bytes toward the {toward:?}");
        executor.signal(Signal::TERM);
        assert_eq!(executor.wait().await.code(), Some(0));
        fixture.proxy.wait_for_silence().await;
    }
}

#[tokio::test]
async fn a_session_survives_cuts_and_leaves_nothing_behind() {
    let fixture = Fixture::start().await;
    let state = tempfile::tempdir().unwrap();
    let executor = fixture.executor(&state).await;
    let session = fixture.insist(None, 0).await;
    fixture.rendezvous.wait_for_metric("exec_server_relay_streams_active 0").await;
    let files = || open_files(executor.serving_pid());
    let before = files();
    for number in 1..=14_u64 {
        match number % 7 {
            0 => fixture.proxy.end_all(Ending::Close),
            1 => fixture.proxy.cut(),
            2 => fixture.proxy.cut_after(Toward::Client, 1 + 700 * number),
            3 => fixture.proxy.cut_after(Toward::Server, 1 + 300 * number),
            4 => {
                fixture.proxy.unplug();
                fixture.proxy.wait_for_refused(number / 7 + 1).await;
                fixture.proxy.plug_in();
            }
            5 => fixture.proxy.half_close(Toward::Server),
            6 => fixture.proxy.half_close(Toward::Client),
            _ => unreachable!("a remainder of 7"),
        }
        assert_eq!(fixture.insist(Some(&session), number).await, session);
    }
    fixture.rendezvous.wait_for_metric("exec_server_relay_streams_active 0").await;
    eventually("no socket is left open", || files() <= before + 1).await;
    fixture.rendezvous.wait_for_metric("exec_server_relay_executors_active 1").await;
}

/// A rendezvous with executors behind a fault proxy and harnesses without one.
struct Fixture {
    rendezvous: TestRendezvous,
    proxy: FaultProxy,
    harness: TestHarness,
    address: SocketAddr,
}

impl Fixture {
    async fn start() -> Self {
        let free = free_address();
        let proxy = FaultProxy::to(&format!("ws://{free}")).await;
        let public = proxy.url().replacen("ws", "http", 1);
        let rendezvous = TestRendezvous::start_with(|config| {
            config.listen = free;
            config.public_url = Some(public);
        })
        .await;
        let token = rendezvous.token(TokenRole::Harness, "env").await;
        let harness = TestHarness::new(&format!("http://{free}"), "env", &token);
        Self { rendezvous, proxy, harness, address: free }
    }

    async fn executor(&self, state: &tempfile::TempDir) -> TestExecutor {
        let token = self.rendezvous.token(TokenRole::Executor, "env").await;
        join(self.rendezvous.url(), state.path(), &token).spawn()
    }

    /// Retries until a session is opened, or resumed and its process has answered; returns the session.
    async fn insist(&self, session: Option<&str>, number: u64) -> String {
        let trying = async {
            loop {
                match self.attempt(session, number).await {
                    Some(session) => return session,
                    None => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(2 * DEADLINE, trying).await.expect("it comes back")
    }

    async fn attempt(&self, session: Option<&str>, number: u64) -> Option<String> {
        let mut response = self.harness.connect().await;
        let straight = format!("ws://{}", self.address);
        response.url = response.url.replacen(self.proxy.url(), &straight, 1);
        let mut stream = self.harness.open_at(&response).await.ok()?;
        let mut next_id = 0;
        let mut ask = async |method: &str, params: Value| -> Option<Value> {
            if params.is_null() {
                send(&mut stream, json!({"method": method, "params": {}}).to_string())
                    .await
                    .ok()?;
                return Some(Value::Null);
            }
            next_id += 1;
            let request = json!({"id": next_id, "method": method, "params": params});
            send(&mut stream, request.to_string()).await.ok()?;
            loop {
                let message: Value =
                    serde_json::from_slice(&receive(&mut stream).await.ok()?).ok()?;
                if message["id"] == next_id {
                    return message.get("result").cloned();
                }
            }
        };
        let params = json!({"clientName": "test", "resumeSessionId": session});
        let begun = ask("initialize", params).await?;
        ask("initialized", Value::Null).await?;
        if session.is_none() {
            let start = exec_server_testkit::client::start_params(
                "p",
                &["/bin/cat"],
                json!({"pipeStdin": true}),
            );
            ask("process/start", start).await?;
            return begun["sessionId"].as_str().map(str::to_owned);
        }
        let line = format!("line {number}\n");
        let chunk = base64::encode(line.as_bytes());
        let id = number.to_string();
        ask("process/write", json!({"processId": "p", "writeId": id, "chunk": chunk})).await?;
        let expected: String = (1..=number).map(|number| format!("line {number}\n")).collect();
        loop {
            let params = json!({"processId": "p", "afterSeq": 0, "waitMs": 0});
            let read = ask("process/read", params).await?;
            let chunks = read["chunks"].as_array().expect("chunks").iter();
            let said: Vec<u8> = chunks.flat_map(exec_server_testkit::client::chunk).collect();
            if said == expected.as_bytes() {
                return Some(begun["sessionId"].as_str()?.to_owned());
            }
            assert!(expected.as_bytes().starts_with(&said), "nothing is lost and nothing twice");
        }
    }
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}
