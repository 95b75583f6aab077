//! Pushed events complete a command; a read is sent only when events are missing.

use exec_server::{ExecServerClient, Output, ProcessEvent};
use exec_server_testkit::DEADLINE;
use serde_json::json;
use tokio::time::timeout;

use super::peer::{Peers, read_answer, scripted_client, with};

/// Starts a command on a scripted server, runs `script`, and returns the result.
async fn run(
    sandbox_type: Option<&str>,
    script: impl AsyncFn(&mut super::peer::Peer, &str),
) -> Output {
    let (client, mut peers) = scripted_client();
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        let asked = peer.expect("process/start").await;
        let id = asked.params["processId"].as_str().unwrap().to_owned();
        let answer = match sandbox_type {
            Some(name) => json!({"processId": id, "sandboxType": name}),
            None => json!({"processId": id}),
        };
        peer.reply(&asked, answer).await;
        script(&mut peer, &id).await;
        peer
    };
    let calling = async {
        let client = front(&client).await;
        client.command("anything").output().await.expect("the command runs")
    };
    let (output, mut peer) =
        timeout(DEADLINE, async { tokio::join!(calling, serving) }).await.expect("it ends");
    drop(client);
    assert_eq!(peer.next().await, None, "nothing else was asked");
    output
}

/// The same through `ExecServerClient`.
async fn front(client: &exec_server::RemoteExecServerClient) -> ExecServerClient {
    ExecServerClient::from_remote(client.clone()).await.expect("the script answers")
}

#[tokio::test]
async fn a_complete_stream_in_order_needs_no_read() {
    let output = run(Some("linuxSeccomp"), async |peer, id| {
        peer.output(id, 1, "a").await;
        peer.output(id, 2, "b").await;
        peer.exited(id, 3, 7).await;
        peer.closed(id, 4).await;
    })
    .await;
    assert_eq!((output.stdout_text().as_ref(), output.status.code()), ("ab", 7));
}

#[tokio::test]
async fn events_in_any_order_need_no_read_either() {
    let output = run(Some("none"), async |peer, id| {
        peer.closed(id, 4).await;
        peer.output(id, 2, "b").await;
        peer.output(id, 2, "b").await;
        peer.exited(id, 3, 0).await;
        peer.output(id, 1, "a").await;
    })
    .await;
    assert_eq!(output.stdout_text(), "ab");
}

#[tokio::test]
async fn an_exit_that_does_not_say_whether_it_was_denied_costs_exactly_one_read() {
    for sandbox_type in [None, Some("linuxSeccomp")] {
        let output = run(sandbox_type, async |peer, id| {
            peer.output(id, 1, "no").await;
            peer.notify("process/exited", json!({"processId": id, "seq": 2, "exitCode": 1})).await;
            peer.closed(id, 3).await;
            let more =
                json!({"exited": true, "exitCode": 1, "closed": true, "sandboxDenied": true});
            let after = peer.serve_read(with(read_answer(&[], 4), more)).await;
            assert_eq!(after, 1);
        })
        .await;
        assert_eq!(output.status.sandbox_denied(), Some(true));
    }
}

#[tokio::test]
async fn without_a_sandbox_nothing_can_have_been_denied_and_nothing_is_read() {
    let output = run(Some("none"), async |peer, id| {
        peer.notify("process/exited", json!({"processId": id, "seq": 1, "exitCode": 1})).await;
        peer.closed(id, 2).await;
    })
    .await;
    assert_eq!(output.status.sandbox_denied(), Some(false));
}

#[tokio::test]
async fn a_lost_notification_is_read_again_once() {
    let output = run(Some("none"), async |peer, id| {
        peer.output(id, 1, "a").await;
        peer.output(id, 3, "c").await;
        let answer = read_answer(&[(2, "b"), (3, "c")], 4);
        assert_eq!(peer.serve_read(answer).await, 1);
        peer.exited(id, 4, 0).await;
        peer.closed(id, 5).await;
    })
    .await;
    assert_eq!(output.stdout_text(), "abc");
}

#[tokio::test]
async fn unknown_notifications_processes_and_members_are_ignored_and_requests_are_refused() {
    let output = run(Some("none"), async |peer, id| {
        peer.notify("something/new", json!({"a": 1})).await;
        peer.output("nobody", 1, "x").await;
        peer.send(json!({"id": 9, "method": "network/ask", "params": {}})).await;
        let refusal = peer.next().await.unwrap();
        assert_eq!(
            (refusal["id"].as_i64(), refusal["error"]["code"].as_i64()),
            (Some(9), Some(-32601))
        );
        peer.send(json!({"jsonrpc": "2.0", "method": "process/output", "params": {
            "processId": id, "seq": 1, "stream": "stdout", "chunk": "YQ==", "more": []}}))
            .await;
        peer.exited(id, 2, 0).await;
        peer.closed(id, 3).await;
    })
    .await;
    assert_eq!(output.stdout_text(), "a");
}

#[tokio::test]
async fn a_malformed_notification_ends_the_link_and_the_session_is_resumed() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    peer.notify("process/output", json!({"processId": "p"})).await;
    let mut peer = peers.accept_session("s-1").await;
    assert_eq!(peer.serve_read(read_answer(&[(1, "a")], 2)).await, 0);
    let mut events = process.events();
    assert_eq!(events.next().await, Some(ProcessEvent::ResyncRequired));
    assert!(matches!(events.next().await, Some(ProcessEvent::Output { seq: 1, .. })));
}

/// A process on a scripted server.
pub async fn started(
    client: &exec_server::RemoteExecServerClient,
    peers: &mut Peers,
) -> (exec_server::ProcessSession, super::peer::Peer) {
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        peer.serve_start().await;
        peer
    };
    let (process, peer) = tokio::join!(client.start(start_params("p")), serving);
    (process.expect("the script starts it"), peer)
}

/// Minimal start params.
pub fn start_params(id: &str) -> exec_server::ProcessStartParams {
    let params = json!({"processId": id, "argv": ["cat"], "cwd": "file:///", "env": {}, "tty": false,
        "pipeStdin": true});
    serde_json::from_value(params).expect("valid params")
}
