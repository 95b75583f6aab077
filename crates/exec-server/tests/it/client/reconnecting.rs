//! Reconnects, step by step, with a scripted server.

use std::time::Duration;

use exec_server::{
    ExecServerClientConnectOptions, ExecServerError, HttpRequestParams, ProcessEvent,
    ProcessSignal, SessionStatus,
};
use serde_json::{Value, json};

use super::completion::{start_params, started};
use super::peer::{
    Peer, Peers, read_answer, scripted_client, scripted_client_with, scripted_connection, with,
};

#[tokio::test]
async fn a_cut_resumes_the_same_session_and_fills_the_gap_in_order() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let mut wake = process.subscribe_wake();
    peer.output("p", 1, "a").await;
    wake.wait_for(|seq| *seq == 1).await.unwrap();
    wake.mark_unchanged();
    drop(peer);
    let mut peer = peers.accept().await;
    wake.changed().await.expect("a cut is a wake-up");
    let asked = peer.expect("initialize").await;
    assert_eq!(asked.params["resumeSessionId"], "s-1");
    // Events that are pushed before the handshake reply count as well.
    peer.output("p", 3, "c").await;
    peer.finish_initialize(&asked, "s-1").await;
    assert_eq!(peer.serve_read(read_answer(&[(2, "b"), (3, "c")], 4)).await, 1);
    peer.exited("p", 4, 0).await;
    peer.closed("p", 5).await;
    let mut events = process.events();
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(match event {
            ProcessEvent::ResyncRequired => "resync".to_owned(),
            event => event.seq().unwrap().to_string(),
        });
    }
    assert_eq!(seen, ["1", "resync", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn all_callers_share_one_reconnect_attempt() {
    let (client, mut peers) = scripted_client();
    let (_process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.environment_info().await })
        })
        .collect();
    let mut peer = peers.accept_session("s-1").await;
    peer.serve_read(read_answer(&[], 1)).await;
    for _ in 0..10 {
        let asked = peer.expect("environment/info").await;
        peer.reply(&asked, json!({"shell": {"name": "sh", "path": "/bin/sh"}})).await;
    }
    for call in calls {
        call.await.unwrap().expect("the call waited for the link");
    }
    assert!(!peers.has_dialled(), "one attempt was enough");
}

#[tokio::test]
async fn all_callers_share_the_first_connection_too() {
    let (client, mut peers) = scripted_client();
    assert!(matches!(client.session().status(), SessionStatus::Idle));
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.environment_info().await })
        })
        .collect();
    let mut peer = peers.accept_session("s-1").await;
    for _ in 0..5 {
        let asked = peer.expect("environment/info").await;
        peer.reply(&asked, json!({"shell": {"name": "sh", "path": "/bin/sh"}})).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert!(!peers.has_dialled());
    assert!(matches!(client.session().status(), SessionStatus::Ready));
    assert_eq!(client.session().session_id().as_deref(), Some("s-1"));
}

#[tokio::test]
async fn a_write_is_repeated_under_the_same_name() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let writing = tokio::spawn(async move { process.write(b"line\n").await.map(|()| process) });
    let first = peer.expect("process/write").await;
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    peer.serve_read(read_answer(&[], 1)).await;
    let second = peer.expect("process/write").await;
    assert_eq!(first.params, second.params);
    assert!(!first.params["writeId"].as_str().unwrap().is_empty());
    peer.reply(&second, json!({"status": "accepted"})).await;
    writing.await.unwrap().expect("the write is done");
}

#[tokio::test]
async fn a_read_is_repeated() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let reading = tokio::spawn(async move { process.read(0, None, Duration::from_secs(60)).await });
    let first = peer.expect("process/read").await;
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    // The first read is the client's own; the second is the one that was asked for.
    peer.serve_read(read_answer(&[], 1)).await;
    let second = peer.expect("process/read").await;
    assert_eq!(first.params, second.params);
    peer.reply(&second, read_answer(&[(1, "a")], 2)).await;
    assert_eq!(reading.await.unwrap().unwrap().next_seq, 2);
}

#[tokio::test]
async fn ambiguous_calls_are_not_repeated_and_reported_as_such() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    type Call = Box<dyn Future<Output = Result<(), ExecServerError>> + Send + Unpin>;
    let fs = client.fs();
    let http = client.http();
    let second = client.clone();
    let calls: Vec<(&str, Call)> = vec![
        (
            "process/start",
            Box::new(Box::pin(async move { second.start(start_params("q")).await.map(drop) })),
        ),
        ("process/signal", {
            let process = process.clone();
            Box::new(Box::pin(async move { process.signal(ProcessSignal::Interrupt).await }))
        }),
        ("process/terminate", {
            let process = process.clone();
            Box::new(Box::pin(async move { process.terminate(None).await.map(drop) }))
        }),
        (
            "fs/writeFile",
            Box::new(Box::pin(async move { fs.write_file("/x", "y").await.map(drop) })),
        ),
        (
            "http/request",
            Box::new(Box::pin(async move {
                http.http_request(HttpRequestParams::get("", "http://h/")).await.map(drop)
            })),
        ),
    ];
    for (method, call) in calls {
        let call = tokio::spawn(call);
        peer.expect(method).await;
        drop(peer);
        let error = call.await.unwrap().expect_err("the outcome is unknown");
        let ExecServerError::Ambiguous { method: named, .. } = &error else {
            panic!("{method}: {error}");
        };
        assert_eq!(*named, method);
        assert!(!error.is_retryable());
        assert!(error.to_string().contains("may or may not"), "{error}");
        peer = peers.accept_session("s-1").await;
        peer.serve_read(read_answer(&[], 1)).await;
        if method == "process/start" {
            let asked = peer.expect("process/terminate").await;
            assert_eq!(asked.params["processId"], "q", "what may have been started is ended");
            peer.reply(&asked, json!({"running": true})).await;
        }
    }
    drop((client, process));
    assert_eq!(peer.next().await, None, "nothing was repeated");
}

#[tokio::test]
async fn a_start_without_an_answer_is_repeated_where_the_server_starts_it_once() {
    let (client, mut peers) = scripted_client();
    let starting =
        tokio::spawn(async move { (client.start(start_params("p")).await.unwrap(), client) });
    let mut first = None;
    for resumed in [json!(null), json!("s-1")] {
        let mut peer = accept_with_retries(&mut peers, resumed).await;
        let asked = peer.expect("process/start").await;
        assert_eq!(*first.get_or_insert(asked.params.clone()), asked.params);
    }
    let mut peer = accept_with_retries(&mut peers, json!("s-1")).await;
    let asked = peer.expect("process/start").await;
    assert_eq!(first, Some(asked.params.clone()));
    peer.reply(&asked, json!({"processId": "p", "sandboxType": "none"})).await;
    // What the server pushed to the lost connections is read.
    let end = json!({"exited": true, "exitCode": 4, "closed": true});
    assert_eq!(peer.serve_read(with(read_answer(&[(1, "a")], 4), end)).await, 0);
    let (process, _client) = starting.await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, 4);
}

#[tokio::test]
async fn a_start_without_an_answer_is_not_repeated_in_another_session() {
    let (client, mut peers) = scripted_client();
    let starting =
        tokio::spawn(async move { (client.start(start_params("p")).await.map(drop), client) });
    let mut peer = accept_with_retries(&mut peers, json!(null)).await;
    peer.expect("process/start").await;
    drop(peer);
    let mut peer = peers.accept().await;
    let asked = peer.expect("initialize").await;
    peer.refuse(&asked, -32600, "unknown session id s-1").await;
    let (result, _client) = starting.await.unwrap();
    let error = result.expect_err("nothing is known about it");
    assert!(matches!(error, ExecServerError::SessionLost { .. }), "{error}");
    assert!(!peers.has_dialled());
}

/// The next link, to a server that answers a repeated start with the running process.
async fn accept_with_retries(peers: &mut Peers, resumed: Value) -> Peer {
    let mut peer = peers.accept().await;
    let asked = peer.expect("initialize").await;
    assert_eq!(asked.params["resumeSessionId"], resumed);
    peer.finish_initialize_with(&asked, "s-1", json!({"processStartRetry": true})).await;
    peer
}

#[tokio::test]
async fn a_first_connection_that_is_cut_is_made_again_and_a_refused_one_is_not() {
    let (client, mut peers) = scripted_client();
    let calling = tokio::spawn(async move { (client.environment_info().await, client) });
    for _ in 0..2 {
        peers.accept().await.expect("initialize").await;
    }
    let mut peer = peers.accept_session("s-1").await;
    let asked = peer.expect("environment/info").await;
    peer.reply(&asked, json!({"shell": {"name": "sh", "path": "/bin/sh"}})).await;
    calling.await.unwrap().0.expect("the third link holds");

    let (client, mut peers) = scripted_client();
    let calling = tokio::spawn(async move { (client.environment_info().await, client) });
    for _ in 0..3 {
        peers.accept().await.expect("initialize").await;
    }
    let (result, _client) = calling.await.unwrap();
    let error = result.expect_err("each link was cut");
    assert!(matches!(error, ExecServerError::Disconnected { .. }), "{error}");
    assert!(!peers.has_dialled());
}

#[tokio::test]
async fn calls_that_were_not_sent_yet_wait_for_the_link() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut events = process.events();
    assert_eq!(events.next().await, Some(ProcessEvent::ResyncRequired));
    let signalling = tokio::spawn(async move { process.signal(ProcessSignal::Interrupt).await });
    let mut peer = peers.accept_session("s-1").await;
    peer.serve_read(read_answer(&[], 1)).await;
    let asked = peer.expect("process/signal").await;
    peer.reply(&asked, json!({})).await;
    signalling.await.unwrap().expect("it was sent once, on the new link");
}

#[tokio::test]
async fn a_session_that_is_still_attached_is_asked_for_again() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    for _ in 0..3 {
        let mut peer = peers.accept().await;
        let asked = peer.expect("initialize").await;
        peer.refuse(&asked, -32010, "session s-1 is already attached to another connection").await;
    }
    let mut peer = peers.accept_session("s-1").await;
    peer.serve_read(with(
        read_answer(&[], 3),
        json!({"exited": true, "exitCode": 5, "closed": true}),
    ))
    .await;
    assert_eq!(process.wait().await.unwrap().exit_code, 5);
}

#[tokio::test]
async fn an_unknown_session_is_final_for_its_processes_and_the_next_call_opens_a_fresh_one() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut peer = peers.accept().await;
    let asked = peer.expect("initialize").await;
    peer.refuse(&asked, -32600, "unknown session id s-1").await;
    let error = process.wait().await.expect_err("its session is gone").to_string();
    assert!(error.contains("exec-server transport disconnected"), "{error}");
    assert!(
        error.contains("failed to resume exec-server session: unknown session id s-1"),
        "{error}"
    );
    assert!(matches!(client.session().status(), SessionStatus::Lost(_)));
    let end = process.read(0, None, Duration::ZERO).await.expect("it is known what became of it");
    assert!(end.closed && end.exited && end.failure.is_some() && end.chunks.is_empty());
    assert!(process.write(b"x").await.is_err(), "nothing is sent for it any more");
    assert!(!peers.has_dialled(), "no dial without need");
    let calling = tokio::spawn(async move { client.environment_info().await.map(|_| client) });
    let mut peer = peers.accept().await;
    let asked = peer.expect("initialize").await;
    assert_eq!(asked.params["resumeSessionId"], json!(null));
    peer.finish_initialize(&asked, "s-2").await;
    let asked = peer.expect("environment/info").await;
    peer.reply(&asked, json!({"shell": {"name": "sh", "path": "/bin/sh"}})).await;
    let client = calling.await.unwrap().unwrap();
    assert_eq!(client.session().session_id().as_deref(), Some("s-2"));
    assert!(client.session().terminal_error().is_none());
}

#[tokio::test]
async fn another_session_than_the_one_asked_for_is_refused() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut peer = peers.accept().await;
    let asked = peer.expect("initialize").await;
    peer.reply(&asked, json!({"sessionId": "another"})).await;
    let error = process.wait().await.expect_err("it is not its session").to_string();
    assert!(error.contains("another session"), "{error}");
}

#[tokio::test]
async fn recovery_ends_with_its_budget() {
    let options = ExecServerClientConnectOptions {
        recovery_budget: Duration::from_millis(300),
        ..ExecServerClientConnectOptions::default()
    };
    let (client, mut peers) = scripted_client_with(options);
    let (process, peer) = started(&client, &mut peers).await;
    drop(peers);
    drop(peer);
    let error = process.wait().await.expect_err("no server answers").to_string();
    assert!(error.contains("no listener"), "{error}");
}

#[tokio::test]
async fn a_process_that_cannot_be_recovered_fails_alone() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let starting = client.start(start_params("q"));
    let (other, _) = tokio::join!(starting, peer.serve_start());
    let other = other.unwrap();
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    for _ in 0..2 {
        let asked = peer.expect("process/read").await;
        if asked.params["processId"] == "p" {
            peer.refuse(&asked, -32600, "unknown process id p").await;
        } else {
            peer.reply(&asked, read_answer(&[(1, "a")], 2)).await;
        }
    }
    let asked = peer.expect("process/terminate").await;
    assert_eq!(asked.params["processId"], "p");
    let error = process.wait().await.expect_err("the server does not know it").to_string();
    assert!(error.contains("failed to recover process p"), "{error}");
    let mut events = other.events_after(0);
    assert_eq!(events.next().await, Some(ProcessEvent::ResyncRequired));
    assert!(matches!(events.next().await, Some(ProcessEvent::Output { seq: 1, .. })));
}

#[tokio::test]
async fn evicted_output_is_a_gap_and_the_process_continues() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    let gap = json!({"evictedBytes": 99, "firstSeq": 5});
    peer.serve_read(with(read_answer(&[(5, "e")], 6), gap)).await;
    peer.output("p", 6, "f").await;
    let mut events = process.events();
    assert_eq!(events.next().await, Some(ProcessEvent::ResyncRequired));
    let Some(ProcessEvent::Gap(gap)) = events.next().await else { panic!("a gap") };
    assert_eq!((gap.first, gap.last, gap.evicted_bytes), (1, 4, Some(99)));
    assert!(matches!(events.next().await, Some(ProcessEvent::Output { seq: 5, .. })));
    assert!(matches!(events.next().await, Some(ProcessEvent::Output { seq: 6, .. })));
    assert!(process.failure().is_none());
}

#[tokio::test]
async fn a_start_whose_caller_is_dropped_is_undone() {
    let (client, mut peers) = scripted_client();
    let starting = tokio::spawn({
        let client = client.clone();
        async move { client.start(start_params("p")).await.map(drop) }
    });
    let mut peer = peers.accept_session("s-1").await;
    peer.expect("process/start").await;
    starting.abort();
    let asked = peer.expect("process/terminate").await;
    assert_eq!(asked.params["processId"], "p");
    assert_eq!(client.session().process_count(), 0, "its id is free");
    let again = client.start(start_params("p"));
    let (again, _) = tokio::join!(again, peer.serve_start());
    again.expect("the id can be used again");
}

#[tokio::test]
async fn an_id_is_free_when_its_handle_is_dropped_and_not_before() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let error = client.start(start_params("p")).await.expect_err("it is followed already");
    assert!(matches!(error, ExecServerError::ProcessIdInUse(_)), "{error}");
    drop(process);
    let again = client.start(start_params("p"));
    let (again, _) = tokio::join!(again, peer.serve_start());
    again.expect("the id can be used again");
}

#[tokio::test]
async fn a_failed_first_connection_is_tried_again_by_the_next_call() {
    let (client, mut peers) = scripted_client();
    let failing = client.environment_info();
    let refusing = async {
        let mut peer = peers.accept().await;
        let asked = peer.expect("initialize").await;
        peer.refuse(&asked, -32603, "not today").await;
    };
    let (failed, ()) = tokio::join!(failing, refusing);
    assert_eq!(failed.unwrap_err().to_string(), "not today");
    let starting = client.start(start_params("p"));
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        peer.serve_start().await;
        peer
    };
    let (started, _peer) = tokio::join!(starting, serving);
    started.expect("the second try works");
}

#[tokio::test]
async fn status_waits_for_nothing_and_starts_nothing() {
    let (client, mut peers) = scripted_client();
    let error = client.environment_status().await.expect_err("nothing is connected");
    assert!(matches!(error, ExecServerError::Disconnected { .. }), "{error}");
    assert!(!peers.has_dialled());
}

#[tokio::test]
async fn a_connection_without_recovery_fails_its_processes_with_it() {
    let (connection, mut peer) = scripted_connection().await;
    let (process, _) = tokio::join!(connection.start(start_params("p")), peer.serve_start());
    let process = process.unwrap();
    peer.output("p", 1, "a").await;
    let mut events = process.events();
    assert!(matches!(events.next().await, Some(ProcessEvent::Output { .. })));
    drop(peer);
    let Some(ProcessEvent::Failed(reason)) = events.next().await else { panic!("it fails") };
    assert!(reason.contains("exec-server transport disconnected"), "{reason}");
    assert_eq!(events.next().await, None);
    assert!(connection.is_closed());
    let error = connection.start(start_params("q")).await.expect_err("nothing can be started");
    assert!(matches!(error, ExecServerError::Disconnected { .. }), "{error}");
    let end = process.read(0, None, Duration::ZERO).await.unwrap();
    assert!(end.closed && end.failure.is_some());
}

#[tokio::test]
async fn a_server_that_leaves_everything_out_of_the_handshake_is_asked() {
    let (client, mut peers) = scripted_client();
    let serving = async {
        let mut peer = peers.accept().await;
        let asked = peer.expect("initialize").await;
        assert_eq!(asked.id, 1);
        peer.reply(&asked, json!({"sessionId": "s-1"})).await;
        assert_eq!(peer.next().await.unwrap()["method"], "initialized");
        let asked = peer.expect("environment/info").await;
        assert_eq!(asked.params, json!(null));
        peer.reply(&asked, json!({"shell": {"name": "zsh", "path": "/bin/zsh"}})).await;
        peer
    };
    let (info, _peer) = tokio::join!(client.known_environment(), serving);
    assert_eq!(info.unwrap().unwrap().shell.name, "zsh");
}

#[tokio::test]
async fn a_server_that_does_not_answer_the_handshake_is_given_up() {
    let options = ExecServerClientConnectOptions {
        initialize_timeout: Duration::from_millis(50),
        ..ExecServerClientConnectOptions::default()
    };
    let (client, mut peers) = scripted_client_with(options);
    let (result, _peer) = tokio::join!(client.environment_info(), peers.accept());
    let error = result.unwrap_err();
    assert!(matches!(error, ExecServerError::InitializeTimedOut { .. }), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_closed_client_stays_closed() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    client.close().await;
    assert_eq!(peer.next().await, None);
    assert!(process.wait().await.is_err());
    assert!(client.environment_info().await.is_err());
    assert!(!peers.has_dialled());
}
