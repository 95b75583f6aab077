//! Session list, take-over, and linger.

use exec_server_testkit::client::chunk;
use exec_server_testkit::{DEADLINE, TestClient, TestExecutor};
use serde_json::{Value, json};
use tokio::time::timeout;

#[tokio::test]
async fn the_list_has_every_session_with_its_processes() {
    let server = TestExecutor::start().await;
    let mut first = server.client().await;
    first.start("p", &["cat"], json!({"pipeStdin": true, "cwd": "file:///tmp"})).await.unwrap();
    first.run("done", &["/bin/sh", "-c", "exit 3"], json!({})).await;
    let mut second = server.client().await;
    let sessions = directory(&mut second).await;
    let ids: Vec<&Value> = sessions.iter().map(|session| &session["sessionId"]).collect();
    assert_eq!(ids, [&json!(first.session_id), &json!(second.session_id)]);
    let seen = &sessions[0];
    assert_eq!(seen["clientName"], "test");
    assert_eq!(seen["attached"], true);
    assert_eq!(seen["sessionLingerMs"], 80_000);
    assert!(seen["openedAtMs"].as_u64().unwrap() > 1_600_000_000_000);
    let own = first.call("process/list", Value::Null).await.unwrap();
    assert_eq!(seen["processes"], own["processes"]);
    assert_eq!(seen["processes"][0]["exitCode"], 3);
    assert_eq!(seen["processes"][1]["argv"], json!(["cat"]));
    assert_eq!(seen["processes"][1]["cwd"], "file:///tmp");
    assert_eq!(seen["processes"][1]["exited"], false);
    assert_eq!(sessions[1]["processes"], json!([]));
    drop(first);
    until_detached(&mut second, 0).await;
}

#[tokio::test]
async fn output_of_another_session_can_be_read_without_taking_it() {
    let server = TestExecutor::start().await;
    let mut owner = server.client().await;
    owner.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut reader = server.client().await;
    let mut params = json!({"processId": "p", "sessionId": owner.session_id, "waitMs": 30_000});
    let waiting = reader.send("process/read", params.clone()).await;
    owner.write("p", "1", "hello\n").await.unwrap();
    let read = reader.reply(waiting).await.unwrap();
    assert_eq!(chunk(&read["chunks"][0]), b"hello\n");
    // The owner has lost no event.
    assert_eq!(owner.wait_output("p", "\n").await, "hello\n");
    owner.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    owner.finish("p").await;
    params["afterSeq"] = json!(1);
    let read = reader.call("process/read", params).await.unwrap();
    assert_eq!((&read["exitCode"], &read["closed"]), (&json!(0), &json!(true)));
}

#[tokio::test]
async fn a_read_can_wait_for_the_end_alone() {
    let server = TestExecutor::start().await;
    let mut owner = server.client().await;
    let script = "echo said; read _; sleep 1000 & exit 4";
    owner.start("p", &["/bin/sh", "-c", script], json!({"pipeStdin": true})).await.unwrap();
    owner.wait_output("p", "said").await;
    let mut other = server.client().await;
    let params = |until: &str, wait_ms: u64| {
        json!({"processId": "p", "sessionId": owner.session_id,
        "waitMs": wait_ms, "until": until})
    };
    let now = other.call("process/read", params("exited", 0)).await.unwrap();
    assert_eq!((&now["chunks"], &now["exited"]), (&json!([]), &json!(false)));
    let exited = other.send("process/read", params("exited", 60_000)).await;
    let closed = other.send("process/read", params("closed", 60_000)).await;
    owner.write("p", "1", "\n").await.unwrap();
    let exited = other.reply(exited).await.unwrap();
    assert_eq!((&exited["chunks"], &exited["exitCode"]), (&json!([]), &json!(4)));
    assert_eq!(exited["closed"], false, "its child holds the output");
    owner.terminate("p", None).await;
    let closed = other.reply(closed).await.unwrap();
    assert_eq!((&closed["chunks"], &closed["closed"]), (&json!([]), &json!(true)));
}

#[tokio::test]
async fn output_has_a_time_for_who_asks() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.sh("p", "echo hello").await;
    let plain = client.call("process/read", json!({"processId": "p"})).await.unwrap();
    assert_eq!(plain["chunks"][0].get("atMs"), None);
    let params = json!({"processId": "p", "timestamps": true});
    let timed = client.call("process/read", params).await.unwrap();
    let list = client.call("process/list", Value::Null).await.unwrap();
    let started = list["processes"][0]["startedAtMs"].as_u64().unwrap();
    let at = timed["chunks"][0]["atMs"].as_u64().unwrap();
    assert!((started..started + 3_600_000).contains(&at), "{started} {at}");
}

#[tokio::test]
async fn a_unique_id_is_refused_while_another_session_runs_it() {
    let server = TestExecutor::start().await;
    let mut first = server.client().await;
    first.start("p", &["cat"], json!({"pipeStdin": true, "uniqueId": true})).await.unwrap();
    let mut second = server.client().await;
    let unique = json!({"uniqueId": true});
    let error = second.start("p", &["/bin/true"], unique.clone()).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "name_in_use", "{error}");
    // Without `uniqueId`, ids are separate for each session.
    second.run("p", &["/bin/true"], json!({})).await;
    first.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    first.finish("p").await;
    let mut third = server.client().await;
    third.start("p", &["/bin/true"], unique).await.unwrap();
}

#[tokio::test]
async fn a_process_of_another_session_can_be_signalled_and_ended() {
    let server = TestExecutor::start().await;
    let mut owner = server.client().await;
    let script = "trap 'echo usr1; exit 7' USR1; echo ready; while :; do sleep 0.01; done";
    owner.start("trapping", &["/bin/sh", "-c", script], json!({})).await.unwrap();
    owner.start("stubborn", &["sleep", "1000"], json!({})).await.unwrap();
    owner.wait_output("trapping", "ready").await;
    let session = owner.session_id.clone();
    let mut other = server.client().await;
    let params = json!({"processId": "trapping", "signal": "usr1", "sessionId": session});
    assert_eq!(other.call("process/signal", params).await, Ok(json!({})));
    assert_eq!(owner.finish("trapping").await.exit_code, 7);
    let params = json!({"processId": "stubborn", "sessionId": session});
    let reply = other.call("process/terminate", params.clone()).await;
    assert_eq!(reply, Ok(json!({"running": true})));
    assert_eq!(owner.finish("stubborn").await.exited["signal"], "SIGKILL");
    let reply = other.call("process/terminate", params).await;
    assert_eq!(reply, Ok(json!({"running": false})));
}

#[tokio::test]
async fn unknown_sessions_and_unknown_processes_are_distinguished() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let unknown_id = "00000000-0000-4000-8000-000000000000";
    for (method, more) in [
        ("process/read", json!({})),
        ("process/signal", json!({"signal": "interrupt"})),
        ("process/terminate", json!({})),
    ] {
        let mut params = json!({"processId": "p", "sessionId": unknown_id});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = client.call(method, params).await.unwrap_err();
        let message = format!("unknown session id {unknown_id}");
        let expected =
            json!({"code": -32600, "message": message, "data": {"kind": "unknown_session"}});
        assert_eq!(error, expected, "{method}");
    }
    let own = client.session_id.clone();
    let params = json!({"processId": "p", "sessionId": own});
    let error = client.call("process/read", params).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "unknown_process");
}

#[tokio::test]
async fn a_session_can_be_taken_over_from_a_live_connection_when_asked() {
    let server = TestExecutor::start().await;
    let mut holder = server.client().await;
    let id = holder.session_id.clone();
    holder.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let mut taker = TestClient::connect(server.url()).await;
    let params = json!({"clientName": "taker", "resumeSessionId": id, "takeOver": true});
    let result = taker.call("initialize", params).await.unwrap();
    assert_eq!(result["sessionId"], id);
    taker.notify("initialized", json!({})).await;
    let (code, reason) = holder.close_frame().await.expect("the holder is told");
    assert_eq!((code, reason.as_str()), (4001, "session resumed by another connection"));
    taker.write("p", "1", "mine\n").await.unwrap();
    assert_eq!(taker.wait_output("p", "\n").await, "mine\n");
}

#[tokio::test]
async fn processes_wait_as_long_as_their_client_asked_and_the_server_allows() {
    let server =
        TestExecutor::start_with(&["--session-linger", "0", "--max-session-linger", "2h"]).await;
    let mut client = TestClient::connect(server.url()).await;
    let params = json!({"clientName": "test", "lingerMs": 1_000_000});
    let result = client.call("initialize", params).await.unwrap();
    assert_eq!(result["sessionLingerMs"], 1_000_000);
    client.notify("initialized", json!({})).await;
    let reply = client.call("session/setLinger", json!({"lingerMs": 999_999_999})).await.unwrap();
    assert_eq!(reply, json!({"sessionLingerMs": 7_200_000}));
    client.start("p", &["cat"], json!({"pipeStdin": true})).await.unwrap();
    let id = result["sessionId"].as_str().unwrap().to_owned();
    drop(client);

    let mut watcher = server.client().await;
    until_detached(&mut watcher, 0).await;
    let mut client = TestClient::connect(server.url()).await;
    // Resuming with another linger changes it.
    let params = json!({"clientName": "test", "resumeSessionId": id, "lingerMs": 0});
    let result = client.call("initialize", params).await.unwrap();
    assert_eq!(result["sessionLingerMs"], 0);
    drop(client);
    until_gone(&mut watcher, &id).await;
}

#[tokio::test]
async fn a_session_that_waits_long_goes_with_its_last_process() {
    let server = TestExecutor::start_with(&["--session-linger", "0"]).await;
    let mut client = server.client().await;
    client.call("session/setLinger", json!({"lingerMs": 1_000_000})).await.unwrap();
    let retained = json!({"pipeStdin": true, "closedRetentionMs": 0});
    client.start("p", &["cat"], retained).await.unwrap();
    let id = client.session_id.clone();
    drop(client);
    let mut watcher = server.client().await;
    until_detached(&mut watcher, 0).await;
    let params = json!({"processId": "p", "sessionId": id});
    assert_eq!(watcher.call("process/terminate", params).await, Ok(json!({"running": true})));
    until_gone(&mut watcher, &id).await;
}

#[tokio::test]
async fn output_is_retained_for_the_requested_time() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.run("short", &["echo", "hi"], json!({"closedRetentionMs": 0})).await;
    let long = json!({"closedRetentionMs": 1_000_000_000_000_u64});
    client.run("long", &["echo", "hi"], long).await;
    let gone =
        async { while client.call("process/read", json!({"processId": "short"})).await.is_ok() {} };
    timeout(DEADLINE, gone).await.expect("it is forgotten at once");
    assert_eq!(chunk(&client.read("long", 0, 0).await["chunks"][0]), b"hi\n");
}

#[tokio::test]
async fn output_waits_for_its_client_if_that_was_asked_for() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    // A hundred MiB: far more than is retained or buffered.
    let script = "i=0; while [ $i -lt 100 ]; do head -c 1048576 /dev/zero; i=$((i+1)); done";
    let more = json!({"waitWhenDetached": true, "outputRetention": 16 * 1024 * 1024});
    client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
    client.process_event("p").await;
    drop(client);
    let mut client = TestClient::connect(server.url()).await;
    while let Err(error) = client.resume(&id).await {
        assert_eq!(error["code"], -32010, "{error}");
    }
    let mut seen = 0;
    let mut total = 0;
    loop {
        let read = client.read("p", seen, 30_000).await;
        assert_eq!(read.get("evictedBytes"), None, "nothing fell out");
        for piece in read["chunks"].as_array().unwrap() {
            total += chunk(piece).len();
        }
        seen = read["nextSeq"].as_u64().unwrap() - 1;
        client.forget_order("p");
        if read["closed"] == true {
            break;
        }
    }
    assert_eq!(total, 100 * 1024 * 1024);
}

#[tokio::test]
async fn a_process_that_waits_for_its_client_ends_with_its_session() {
    let server = TestExecutor::start_with(&["--session-linger", "0"]).await;
    let mut client = server.client().await;
    let id = client.session_id.clone();
    let more = json!({"waitWhenDetached": true});
    client.start("p", &["yes"], more).await.unwrap();
    client.process_event("p").await;
    drop(client);
    let mut watcher = server.client().await;
    until_gone(&mut watcher, &id).await;
}

async fn directory(client: &mut TestClient) -> Vec<Value> {
    let list = client.call("session/list", Value::Null).await.unwrap();
    list["sessions"].as_array().expect("a list").clone()
}

async fn until_detached(client: &mut TestClient, place: usize) {
    let detached = async { while directory(client).await[place]["attached"] == true {} };
    timeout(DEADLINE, detached).await.expect("the server notices that the client is gone");
}

async fn until_gone(client: &mut TestClient, id: &str) {
    let gone =
        async { while directory(client).await.iter().any(|session| session["sessionId"] == id) {} };
    timeout(DEADLINE, gone).await.expect("the session ends");
}
