//! Client-side limits: buffered output and pending calls.

use exec_server::{ExecServerClient, ExecServerError, ProcessEvent};
use exec_server_testkit::{DEADLINE, TestExecutor};
use serde_json::json;
use tokio::time::timeout;

use super::completion::started;
use super::peer::scripted_client;

#[tokio::test]
async fn calls_in_flight_are_limited_and_cleaning_up_is_still_possible() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let calls: Vec<_> = (0..1024)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.environment_info().await.map(drop) })
        })
        .collect();
    let mut asked = Vec::new();
    for _ in 0..1024 {
        asked.push(peer.expect("environment/info").await);
    }
    let error = client.environment_info().await.expect_err("one too many");
    assert!(matches!(error, ExecServerError::TooManyCalls { limit: 1024 }), "{error}");
    assert!(error.is_retryable());
    process.terminate_later();
    let cleanup = peer.expect("process/terminate").await;
    peer.reply(&cleanup, json!({"running": true})).await;
    for asked in &asked {
        peer.reply(asked, json!({"shell": {"name": "sh", "path": "/bin/sh"}})).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_abandoned_call_frees_its_place_and_its_late_answer_is_ignored() {
    let (client, mut peers) = scripted_client();
    let (_process, mut peer) = started(&client, &mut peers).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.environment_info().await.map(drop) }
    });
    let abandoned = peer.expect("environment/info").await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let info = json!({"shell": {"name": "sh", "path": "/bin/sh"}});
    peer.reply(&abandoned, info.clone()).await;
    let serving = async {
        let asked = peer.expect("environment/info").await;
        peer.reply(&asked, info).await;
    };
    let (answer, ()) = tokio::join!(client.environment_info(), serving);
    answer.expect("the link is fine");
}

#[tokio::test]
async fn a_reader_that_stops_blocks_no_other_and_gets_the_rest_or_a_gap() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    // Far more than is kept here or there.
    let loud = client.command("head").args(["-c", "40000000", "/dev/zero"]).spawn().await.unwrap();
    let mut stopped = loud.session().events();
    timeout(DEADLINE, loud.session().wait()).await.unwrap().unwrap();
    let output = client.command("echo").arg("others go on").output().await.unwrap();
    assert_eq!(output.stdout_text(), "others go on\n");
    let (mut bytes, mut lost, mut last) = (0, 0, 0);
    while let Some(event) = timeout(DEADLINE, stopped.next()).await.unwrap() {
        match &event {
            ProcessEvent::Output { bytes: chunk, .. } => bytes += chunk.len(),
            ProcessEvent::Gap(gap) => lost += gap.last - gap.first + 1,
            ProcessEvent::Failed(reason) => panic!("{reason}"),
            _ => {}
        }
        if let Some(seq) = event.seq() {
            assert!(seq > last);
            last = seq;
        }
    }
    assert!(bytes >= 1024 * 1024, "what was kept comes: {bytes}");
    assert!(lost > 0, "what was not is told");
    assert!(bytes < 20_000_000, "and memory was bounded: {bytes}");
}

#[tokio::test]
async fn a_reader_that_lags_a_little_loses_nothing() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let mut command = client.command("seq");
    command.arg("2000000").output_retention(64 * 1024 * 1024);
    let child = command.spawn().await.unwrap();
    let mut lagging = child.session().events();
    timeout(DEADLINE, child.session().wait()).await.unwrap().unwrap();
    let mut text = Vec::new();
    while let Some(event) = timeout(DEADLINE, lagging.next()).await.unwrap() {
        match event {
            ProcessEvent::Output { bytes, .. } => text.extend_from_slice(&bytes),
            ProcessEvent::Gap(gap) => panic!("the server has it all: {gap:?}"),
            _ => {}
        }
    }
    let expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
    assert!(text == expected.as_bytes(), "{} of {}", text.len(), expected.len());
}
