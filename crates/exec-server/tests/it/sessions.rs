//! Sessions: handshake, resume, and retained output.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use exec_server_testkit::client::{chunk, start_params};
use exec_server_testkit::raw::{CLOSE, PING, PONG, parse};
use exec_server_testkit::{DEADLINE, RawClient, TestClient, TestExecutor};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Counts forever, slowly.
const COUNTING: &[&str] = &["/bin/sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; done"];

#[tokio::test]
async fn the_handshake_returns_session_and_environment_info() {
    let server = TestExecutor::start_with(&["--session-linger", "12s"]).await;
    let mut client = TestClient::connect(server.url()).await;
    let result = client.try_initialize(None).await.unwrap();
    let id = result["sessionId"].as_str().unwrap();
    let uuid = uuid::Uuid::parse_str(id).unwrap();
    assert_eq!(uuid.get_version_num(), 4);
    assert_eq!(id, id.to_lowercase());
    assert_eq!(result["sessionLingerMs"], 12_000);
    client.notify("initialized", json!({})).await;
    let info = client.call("environment/info", Value::Null).await.unwrap();
    assert_eq!(info, result["environmentInfo"]);
    assert!(info["shell"]["path"].is_string());
    let other = server.client().await;
    assert_ne!(other.session_id, client.session_id);
}

#[tokio::test]
async fn methods_before_the_handshake_name_the_missing_step() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    for (step, is_named) in
        [("client must call initialize", false), ("client must send initialized", true)]
    {
        if is_named {
            client.try_initialize(None).await.unwrap();
        }
        for (method, params, family) in family_methods() {
            let error = client.call(method, params).await.unwrap_err();
            let message = format!("{step} before using {family} methods");
            assert_eq!(error, lifecycle_error(&message), "{method}");
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_judged_by_the_handshake_before_them() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    let too_early = client.send("environment/info", Value::Null).await;
    let initialize = client.send("initialize", json!({"clientName": "x"})).await;
    let early = client.send("environment/info", Value::Null).await;
    client.notify("initialized", json!({})).await;
    let in_time = client.send("environment/info", Value::Null).await;
    let mut order = Vec::new();
    for _ in 0..4 {
        let reply = client.next_json().await;
        order.push((reply["id"].as_i64().unwrap(), reply["error"]["message"].clone()));
    }
    let must =
        |what: &str| json!(format!("client must {what} before using environment info methods"));
    assert_eq!(
        order,
        [
            (too_early, must("call initialize")),
            (initialize, Value::Null),
            (early, must("send initialized")),
            (in_time, Value::Null),
        ]
    );
}

#[tokio::test]
async fn initialize_succeeds_once_per_connection() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let error = client.try_initialize(None).await.unwrap_err();
    assert_eq!(error, lifecycle_error("initialize may only be sent once per connection"));
    let own = client.session_id.clone();
    let error = client.try_initialize(Some(&own)).await.unwrap_err();
    assert_eq!(error, lifecycle_error("initialize may only be sent once per connection"));
    assert_eq!(client.sh("p", "echo fine").await.text(), "fine\n");
}

#[tokio::test]
async fn a_failed_initialize_leaves_the_next_attempt_free() {
    let server = TestExecutor::start().await;
    let holder = server.client().await;
    let held = holder.session_id.clone();
    let _holder = keep_alive(holder);
    let mut client = TestClient::connect(server.url()).await;
    let upper = held.to_uppercase();
    let missing = "00000000-0000-4000-8000-000000000000";
    for id in [missing, "", &upper, "not a uuid"] {
        let error = client.try_initialize(Some(id)).await.unwrap_err();
        assert_eq!(error, unknown_session(id));
    }
    client.call("initialize", json!({"clientName": 5})).await.unwrap_err();
    assert_eq!(client.try_initialize(Some(&held)).await.unwrap_err()["code"], -32010);
    client.initialize().await;
    assert_eq!(client.sh("p", "echo fine").await.text(), "fine\n");
}

#[tokio::test]
async fn a_session_whose_holder_answers_pings_is_not_moved() {
    let server = TestExecutor::start().await;
    let mut holder = server.client().await;
    let id = holder.session_id.clone();
    holder.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let alive = keep_alive(holder);
    let mut client = TestClient::connect(server.url()).await;
    for _ in 0..3 {
        let error = client.resume(&id).await.unwrap_err();
        let message = format!("session {id} is already attached to another connection");
        let data = json!({"kind": "session_attached", "retryable": true});
        assert_eq!(error, json!({"code": -32010, "message": message, "data": data}));
    }
    drop(alive);
    let mut client = come_back(&server, &id).await;
    let list = client.call("process/list", Value::Null).await.unwrap();
    assert_eq!(list["processes"][0]["processId"], "p");
}

#[tokio::test]
async fn of_concurrent_resumes_one_gets_the_session() {
    let server = TestExecutor::start().await;
    for _ in 0..10 {
        let mut client = server.client().await;
        let id = client.session_id.clone();
        // All of its messages are read before the other connections open.
        client.call("environment/status", Value::Null).await.unwrap();
        drop(client);
        let all_answered = Arc::new(tokio::sync::Barrier::new(4));
        let mut attempts = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let mut client = TestClient::connect(server.url()).await;
            let (id, all_answered) = (id.clone(), all_answered.clone());
            attempts.spawn(async move {
                let result = client.resume(&id).await;
                // The winner answers pings for as long as the others ask.
                tokio::select! {
                    _ = all_answered.wait() => {}
                    _ = client.notification() => panic!("an unrequested notification"),
                }
                (client, result)
            });
        }
        let mut winners = Vec::new();
        for (client, result) in attempts.join_all().await {
            match result {
                Ok(_) => winners.push(client),
                Err(error) => assert_eq!(error["code"], -32010, "{error}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(winners[0].sh("p", "echo mine").await.text(), "mine\n");
    }
}

#[tokio::test]
async fn a_holder_without_pongs_loses_its_session_with_a_close_reason() {
    let server = TestExecutor::start().await;
    let mut silent = RawClient::connect(server.url()).await;
    let id = silent.initialize().await;
    let start = start_params("p", &["cat"], json!({"pipeStdin": true}));
    let started = silent.send("process/start", start).await;
    silent.reply(started).await;
    // From here on the client neither reads nor answers.
    let mut client = TestClient::connect(server.url()).await;
    let result = client.resume(&id).await.expect("the holder gives no sign of life");
    assert_eq!(result["sessionId"], id);
    client.write("p", "1", "to the new holder\n").await.unwrap();
    client.wait_output("p", "to the new holder").await;
    assert_eq!(
        silent.close_frame().await,
        Some((4001, "session resumed by another connection".to_owned()))
    );
}

#[tokio::test]
async fn a_holder_that_lost_its_session_cannot_pull_the_events_back() {
    let server = TestExecutor::start().await;
    let mut silent = RawClient::connect_with_little_room(server.url()).await;
    let id = silent.initialize().await;
    let started = silent.send("process/start", start_params("p", &["yes"], json!({}))).await;
    silent.reply(started).await;
    // The client reads nothing more, so the close frame is stuck behind the output.
    let mut client = TestClient::connect(server.url()).await;
    client.resume(&id).await.expect("the holder gives no sign of life");
    client.wait_output("p", "\n").await;
    silent.send("initialize", json!({"clientName": "again"})).await;
    silent.send("process/terminate", json!({"processId": "p"})).await;
    // Far more than all buffers hold.
    let mut taken = 0;
    while taken < 16 << 20 {
        let event = client.process_event("p").await;
        assert_eq!(event["method"], "process/output", "{event}");
        taken += chunk(&event["params"]).len();
    }
}

#[tokio::test]
async fn output_produced_while_detached_is_read_later_without_a_gap() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    let script = "echo one; read line; echo two; echo three >&2; read line; echo $line; exit 3";
    client.start("p", &["/bin/sh", "-c", script], json!({"pipeStdin": true})).await.unwrap();
    client.wait_output("p", "one\n").await;
    client.write("p", "1", "go\n").await.unwrap();
    drop(client);

    let mut client = come_back(&server, &id).await;
    let mut seen = Vec::new();
    let mut text = String::new();
    let mut after = 0;
    while !(text.contains("two\n") && text.contains("three\n")) {
        let read = client.read("p", after, 10_000).await;
        for one in read["chunks"].as_array().unwrap() {
            seen.push(one["seq"].as_u64().unwrap());
            text.push_str(&String::from_utf8(chunk(one)).unwrap());
        }
        after = read["nextSeq"].as_u64().unwrap() - 1;
        assert_eq!((&read["exited"], &read["closed"]), (&json!(false), &json!(false)));
    }
    assert_eq!(seen, (1..=after).collect::<Vec<_>>());

    let written = client.write("p", "2", "last\n").await.unwrap();
    assert_eq!(written["status"], "accepted");
    while client.read("p", after, 10_000).await["closed"] == false {
        after = client.read("p", after, 0).await["nextSeq"].as_u64().unwrap() - 1;
    }
    let whole = client.read("p", 0, 0).await;
    let chunks = whole["chunks"].as_array().unwrap();
    let texts: String = chunks.iter().map(|one| String::from_utf8(chunk(one)).unwrap()).collect();
    assert!(texts.starts_with("one\n") && texts.ends_with("last\n"), "{texts}");
    assert_eq!((&whole["exited"], &whole["exitCode"]), (&json!(true), &json!(3)));
    // Every number is a chunk, except one exit and one close at the end.
    assert_eq!(whole["nextSeq"].as_u64().unwrap(), chunks.len() as u64 + 3);
}

#[tokio::test]
async fn a_write_repeated_after_a_reconnect_is_applied_once() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    client.write("p", "1", "first\n").await.unwrap();
    let lost = json!({"processId": "p", "writeId": "2", "chunk": "c2Vjb25kCg=="});
    client.send("process/write", lost.clone()).await;
    drop(client);

    let mut client = come_back(&server, &id).await;
    for _ in 0..2 {
        assert_eq!(client.write("p", "1", "first\n").await.unwrap()["status"], "accepted");
        let again = client.call("process/write", lost.clone()).await.unwrap();
        assert_eq!(again["status"], "accepted");
    }
    client.write("p", "3", "third\n").await.unwrap();
    let closed = client.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    assert_eq!(closed["status"], "accepted");
    assert_eq!(retained(&mut client, "p").await, "first\nsecond\nthird\n");
}

#[tokio::test]
async fn a_start_repeated_after_a_reconnect_finds_its_process() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    let argv = ["/bin/sh", "-c", "echo started; exec cat"];
    client.start("p", &argv, json!({"pipeStdin": true})).await.unwrap();
    let error = client.start("p", &argv, json!({"pipeStdin": true})).await.unwrap_err();
    let duplicate = json!({
        "code": -32600, "message": "process p already exists", "data": {"kind": "process_exists"}
    });
    assert_eq!(error, duplicate, "on the same connection it cannot be a retry");
    drop(client);

    let mut client = come_back(&server, &id).await;
    let again = client.start("p", &argv, json!({"pipeStdin": true})).await;
    assert_eq!(again.unwrap(), json!({"processId": "p", "sandboxType": "none"}));
    let other = client.start("p", &["true"], json!({})).await.unwrap_err();
    assert_eq!(other, duplicate, "another request is no retry");
    client.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    assert_eq!(retained(&mut client, "p").await, "started\n");
}

#[tokio::test]
async fn a_connection_lost_right_after_a_start_leaves_nothing_stuck() {
    let server = TestExecutor::start().await;
    for round in 0..20 {
        let mut client = server.client().await;
        let id = client.session_id.clone();
        let params =
            start_params("p", &["/bin/sh", "-c", "echo $$; exec cat"], json!({"pipeStdin": true}));
        let sent = client.send("process/start", params.clone()).await;
        if round % 2 == 0 {
            // Some connections end before the start is over, some after.
            client.reply(sent).await.unwrap();
        }
        drop(client);

        let mut client = come_back(&server, &id).await;
        // Whether or not the first start was still read, the process is there now, once, and can be ended.
        let again = client.call("process/start", params).await;
        assert_eq!(again.unwrap(), json!({"processId": "p", "sandboxType": "none"}));
        let running = client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
        assert_eq!(running, json!({"running": true}));
        let text = retained(&mut client, "p").await;
        assert!(text.lines().count() <= 1, "{text:?}");
    }
}

#[tokio::test]
async fn without_linger_processes_end_with_their_connection() {
    processes_end_with_their_session("0").await;
}

#[tokio::test]
async fn after_the_linger_processes_end_and_the_session_is_unknown() {
    processes_end_with_their_session("300ms").await;
}

async fn processes_end_with_their_session(linger: &str) {
    let server = TestExecutor::start_with(&["--session-linger", linger]).await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    // One of them left the process group, and one had ended long ago and left a child behind.
    client.start("a", &["sleep", "1000"], json!({})).await.unwrap();
    let script = "setsid sleep 1001 & echo $!; exec sleep 1002";
    client.start("b", &["/bin/sh", "-c", script], json!({})).await.unwrap();
    let detached = client.wait_output("b", "\n").await.trim().parse().unwrap();
    let left = client.sh("c", "setsid sleep 1003 >/dev/null 2>&1 & echo $!").await;
    let left = left.text().trim().parse().unwrap();
    let list = client.call("process/list", Value::Null).await.unwrap();
    let mut ends = vec![end_of(detached), end_of(left)];
    for process in list["processes"].as_array().unwrap() {
        if process["exited"] == false {
            let pid = process["pid"].as_u64().unwrap();
            ends.push(end_of(i32::try_from(pid).unwrap()));
        }
    }
    assert_eq!(ends.len(), 4);
    drop(client);
    for end in ends {
        end.wait().await;
    }
    let mut client = TestClient::connect(server.url()).await;
    assert_eq!(client.resume(&id).await.unwrap_err(), unknown_session(&id));
}

#[tokio::test]
async fn a_session_that_is_resumed_in_time_outlives_many_lingers() {
    let server = TestExecutor::start_with(&["--session-linger", "2s"]).await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    for round in 0..30 {
        drop(client);
        client = come_back(&server, &id).await;
        client.write("p", &round.to_string(), &format!("{round}\n")).await.unwrap();
    }
    client.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    let all: String = (0..30).map(|round| format!("{round}\n")).collect();
    assert_eq!(retained(&mut client, "p").await, all);
}

#[tokio::test]
async fn only_the_credential_that_opened_a_session_can_resume_it() {
    let secret = "a secret that is long enough to sign tokens with";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, secret).unwrap();
    let arguments =
        ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", file.to_str().unwrap()];
    let server = TestExecutor::start_with(&arguments).await;
    let connect = async |claims: Value| {
        let bearer = format!("Bearer {}", sign(secret, claims));
        TestClient::try_connect(server.url(), &[("Authorization", &bearer)]).await.unwrap()
    };
    let mut alice = connect(json!({"sub": "alice", "jti": 1})).await;
    alice.initialize().await;
    let id = alice.session_id.clone();
    alice.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    for claims in
        [json!({"sub": "mallory"}), json!({}), json!({"sub": "alice", "iss": "somebody else"})]
    {
        let mut other = connect(claims.clone()).await;
        let error = other.resume(&id).await.unwrap_err();
        assert_eq!(error, unknown_session(&id), "while it is held: {claims}");
    }
    drop(alice);
    let mut mallory = connect(json!({"sub": "mallory"})).await;
    assert_eq!(mallory.resume(&id).await.unwrap_err(), unknown_session(&id));
    // Another token of the same subject is equivalent.
    let mut alice = connect(json!({"sub": "alice", "jti": 2})).await;
    resume_patiently(&mut alice, &id).await;
    alice.write("p", "1", "still here\n").await.unwrap();
    alice.wait_output("p", "still here").await;
}

#[tokio::test]
async fn nothing_comes_before_the_reply_to_a_resume_in_the_middle_of_a_flood() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    client.start("p", COUNTING, json!({})).await.unwrap();
    for _ in 0..20 {
        client.wait_output("p", "\n").await;
        drop(client);
        client = TestClient::connect(server.url()).await;
        let first = loop {
            let params = json!({"clientName": "x", "resumeSessionId": id});
            let asked = client.send("initialize", params).await;
            let first = client.next_json().await;
            assert_eq!(first["id"], asked, "{first}");
            if first["error"]["code"] != -32010 {
                break first;
            }
        };
        assert_eq!(first["result"]["sessionId"], id);
        client.notify("initialized", json!({})).await;
    }
    client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
    client.finish("p").await;
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_given_up_and_its_session_is_free() {
    let server =
        TestExecutor::start_with(&["--ping-interval", "200ms", "--pong-timeout", "300ms"]).await;
    let mut silent = RawClient::connect(server.url()).await;
    let id = silent.initialize().await;
    let pings = timeout(DEADLINE, async {
        let mut pings = 0;
        while let Some(frame) = silent.frame().await {
            match frame.opcode {
                PING => pings += 1,
                CLOSE => break,
                opcode => panic!("an unexpected frame of kind {opcode}"),
            }
        }
        pings
    });
    let pings = pings.await.expect("the server gives up in time");
    assert!(pings > 0);
    come_back(&server, &id).await;
}

#[tokio::test]
async fn a_peer_stuck_behind_output_is_given_up_too() {
    let pings = ["--ping-interval", "200ms", "--pong-timeout", "300ms"];
    // Without linger, the end of the connection is the end of the process.
    let server =
        TestExecutor::builder().args(&pings).args(&["--session-linger", "0"]).start().await;
    let mut stuck = RawClient::connect_with_little_room(server.url()).await;
    stuck.initialize().await;
    let script = ["/bin/sh", "-c", "echo $$; read line; exec yes"];
    stuck.send("process/start", start_params("p", &script, json!({"pipeStdin": true}))).await;
    let pid = loop {
        let event = parse(&stuck.message().await);
        if event["method"] == "process/output" {
            break String::from_utf8(chunk(&event["params"])).unwrap();
        }
    };
    let end = end_of(pid.trim().parse().unwrap());
    stuck.send("process/write", json!({"processId": "p", "chunk": "Cg=="})).await;
    end.wait().await;
}

#[tokio::test]
async fn a_slow_peer_that_keeps_reading_is_kept() {
    /// At this pace a pong stands behind more output than two seconds can take.
    const BYTES_PER_SECOND: usize = 1_000_000;
    let server =
        TestExecutor::start_with(&["--ping-interval", "200ms", "--pong-timeout", "2s"]).await;
    let mut slow = RawClient::connect_with_little_room(server.url()).await;
    slow.initialize().await;
    let started = slow.send("process/start", start_params("p", &["yes"], json!({}))).await;
    slow.reply(started).await;
    let start = Instant::now();
    let mut taken = 0;
    while start.elapsed() < Duration::from_secs(8) {
        let frame = slow.frame().await.expect("the link holds");
        assert_ne!(frame.opcode, CLOSE, "{:?}", frame.close_reason());
        if frame.opcode == PING {
            slow.send_frame(PONG, true, &frame.payload).await;
        }
        taken += frame.payload.len();
        let due = Duration::from_secs_f64(taken as f64 / BYTES_PER_SECOND as f64);
        tokio::time::sleep_until((start + due).into()).await;
    }
    let asked = slow.send("process/terminate", json!({"processId": "p"})).await;
    assert_eq!(slow.reply(asked).await["result"]["running"], true);
}

#[tokio::test]
async fn a_peer_that_answers_pings_is_kept() {
    let server =
        TestExecutor::start_with(&["--ping-interval", "100ms", "--pong-timeout", "2s"]).await;
    let mut client = RawClient::connect(server.url()).await;
    client.initialize().await;
    for _ in 0..30 {
        let frame = client.frame().await.expect("the link holds");
        assert_eq!((frame.opcode, frame.payload.len()), (PING, 0));
        client.send_frame(PONG, true, b"").await;
    }
    let asked = client.send("environment/status", Value::Null).await;
    assert_eq!(client.reply(asked).await["result"]["status"], "ready");
}

/// A new connection that resumes a session.
pub async fn come_back(server: &TestExecutor, id: &str) -> TestClient {
    let mut client = TestClient::connect(server.url()).await;
    resume_patiently(&mut client, id).await;
    client
}

/// Retries while the server takes buffered data of the lost connection as activity, as clients do.
async fn resume_patiently(client: &mut TestClient, id: &str) {
    let resumed = timeout(DEADLINE, async {
        loop {
            match client.resume(id).await {
                Ok(result) => break result,
                Err(error) => assert_eq!(error["code"], -32010, "{error}"),
            }
        }
    });
    let result = resumed.await.expect("the session is free in time");
    assert_eq!(result["sessionId"], id);
}

/// A client that reads, and so answers pings, until dropped.
struct KeptAlive {
    _stop: tokio::sync::oneshot::Sender<()>,
}

fn keep_alive(mut client: TestClient) -> KeptAlive {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = stopped => {}
            _ = client.notification() => panic!("an unrequested notification"),
        }
    });
    KeptAlive { _stop: stop }
}

/// Waits for the end of a process that is not a child of ours.
struct End(std::os::fd::OwnedFd);

fn end_of(pid: i32) -> End {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
    let flags = rustix::process::PidfdFlags::empty();
    End(rustix::process::pidfd_open(pid, flags).expect("the process is there"))
}

impl End {
    async fn wait(self) {
        let wait = tokio::task::spawn_blocking(move || {
            let deadline = DEADLINE.try_into().expect("a short time");
            let readable = rustix::event::PollFlags::IN;
            let mut fds = [rustix::event::PollFd::new(&self.0, readable)];
            rustix::event::poll(&mut fds, Some(&deadline)).expect("a pidfd can be waited for")
        });
        assert_eq!(wait.await.unwrap(), 1, "the process ends in time");
    }
}

/// All output of a process, once it is closed.
async fn retained(client: &mut TestClient, id: &str) -> String {
    let mut after = 0;
    loop {
        let read = client.read(id, after, 10_000).await;
        after = read["nextSeq"].as_u64().unwrap() - 1;
        if read["closed"] == true {
            break;
        }
    }
    let read = client.read(id, 0, 0).await;
    let chunks = read["chunks"].as_array().unwrap();
    chunks.iter().map(|one| String::from_utf8(chunk(one)).unwrap()).collect()
}

fn family_methods() -> Vec<(&'static str, Value, &'static str)> {
    let process = json!({"processId": "p"});
    vec![
        ("process/start", start_params("p", &["true"], json!({})), "exec"),
        ("process/read", process.clone(), "exec"),
        ("process/write", json!({"processId": "p", "chunk": "", "writeId": "1"}), "exec"),
        ("process/signal", json!({"processId": "p", "signal": "interrupt"}), "exec"),
        ("process/terminate", process.clone(), "exec"),
        ("process/closeStdin", process, "exec"),
        ("process/list", Value::Null, "exec"),
        ("session/list", Value::Null, "session"),
        ("session/setLinger", json!({"lingerMs": 1}), "session"),
        ("environment/info", Value::Null, "environment info"),
        ("environment/status", Value::Null, "environment status"),
        (
            "environmentConfig/read",
            json!({"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []}),
            "environment config",
        ),
        ("capabilityRoots/discoverV1", json!({"roots": []}), "capability discovery"),
        ("capabilities/discoverV2", json!({"cwd": "file:///"}), "capability discovery"),
    ]
}

fn lifecycle_error(message: &str) -> Value {
    json!({"code": -32600, "message": message, "data": {"kind": "lifecycle"}})
}

fn unknown_session(id: &str) -> Value {
    let message = format!("unknown session id {id}");
    json!({"code": -32600, "message": message, "data": {"kind": "unknown_session"}})
}

/// A token that is valid for an hour.
fn sign(secret: &str, mut claims: Value) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    claims["exp"] = json!((now + Duration::from_secs(3600)).as_secs());
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
}
