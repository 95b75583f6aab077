//! Frames through the rendezvous, and every close reason.

use std::time::Duration;

use exec_server_relay::frame::{RESET_HARNESS_DISCONNECTED, RelayBody};
use exec_server_testkit::{Relayed, TestRendezvous};

use super::env;

#[tokio::test]
async fn frames_pass_in_order_and_unchanged_in_both_directions() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    for number in 0..200_u32 {
        harness.send_data("s", number.to_be_bytes().repeat(1 + number as usize * 50)).await;
        executor.send_data("s", number.to_be_bytes().repeat(1 + number as usize * 50)).await;
        let expected = number.to_be_bytes().repeat(1 + number as usize * 50);
        assert_eq!(executor.next_data().await, ("s".to_owned(), expected.clone().into()));
        assert_eq!(harness.next_data().await, ("s".to_owned(), expected.into()));
    }
}

#[tokio::test]
async fn frames_for_a_foreign_stream_are_dropped() {
    let rendezvous = TestRendezvous::start().await;
    let one = env(&rendezvous, "one").await;
    let two = env(&rendezvous, "two").await;
    let mut executor = one.executor(&rendezvous).await;
    let mut foreign = two.executor(&rendezvous).await;
    let mut victim = one.harness(&rendezvous).await;
    let mut attacker = one.harness(&rendezvous).await;
    victim.resume("victim").await;
    executor.expect("victim", RelayBody::Resume { next_seq: 0 }).await;
    attacker.resume("attacker").await;
    attacker.send("victim", RelayBody::Reset { reason: "forged".into() }).await;
    attacker.send_data("victim", "forged").await;
    attacker.send_data("attacker", "own").await;
    foreign.send_data("victim", "forged").await;
    executor.expect("attacker", RelayBody::Resume { next_seq: 0 }).await;
    assert_eq!(executor.next_data().await, ("attacker".to_owned(), "own".into()));
    executor.send_data("nobody", "lost").await;
    executor.send_data("victim", "real").await;
    assert_eq!(victim.next_data().await, ("victim".to_owned(), "real".into()));

    let mut thief = one.harness(&rendezvous).await;
    thief.resume("victim").await;
    thief.expect_closed(1008, "stream_taken").await;
}

#[tokio::test]
async fn an_executor_gets_a_reset_for_every_harness_that_disconnects() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    harness.send_data("s", "last words").await;
    // Without a close frame, as peers of this protocol disconnect.
    drop(harness);
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    assert_eq!(executor.next_data().await.1, "last words");
    let reason = RESET_HARNESS_DISCONNECTED.to_owned();
    executor.expect("s", RelayBody::Reset { reason }).await;
}

#[tokio::test]
async fn a_reconnected_executor_replaces_its_old_socket() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let key = exec_server_testkit::rendezvous::public_key(1);
    let registered = rendezvous.register("env", &env.executor, &key).await;
    let mut old = exec_server_testkit::RelaySocket::open(super::url(&registered)).await;
    let mut harness = env.harness(&rendezvous).await;
    let mut new = exec_server_testkit::RelaySocket::open(super::url(&registered)).await;
    old.expect_closed(1008, "superseded").await;
    harness.expect_closed(1012, "executor_gone").await;
    // The end of the old socket does not affect the new one.
    drop(old);
    rendezvous.wait_for_metric("exec_server_relay_closes_total{reason=\"superseded\"} 1").await;
    rendezvous.wait_for_metric("exec_server_relay_executors_active 1").await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    new.expect("s", RelayBody::Resume { next_seq: 0 }).await;
}

#[tokio::test]
async fn a_stream_that_its_executor_resets_is_over() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    executor.send_data("s", "before").await;
    executor.send("s", RelayBody::Reset { reason: "over".into() }).await;
    assert_eq!(harness.next_data().await.1, "before");
    harness.expect("s", RelayBody::Reset { reason: "over".into() }).await;
    harness.expect_closed(1000, "stream_ended").await;
}

#[tokio::test]
async fn invalid_frames_close_a_socket_with_their_code() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.send_text("hello").await;
    harness.expect_closed(1003, "text_message").await;
    let mut harness = env.harness(&rendezvous).await;
    harness.send_bytes(vec![0xff; 3]).await;
    harness.expect_closed(1002, "not_a_frame").await;
    let mut harness = env.harness(&rendezvous).await;
    harness.send_bytes(vec![0; 256 * 1024 + 1]).await;
    assert!(matches!(harness.next().await, Relayed::Closed(1009, _)));
    let mut harness = env.harness(&rendezvous).await;
    harness.send("s", RelayBody::Handshake("one".into())).await;
    harness.send("s", RelayBody::Handshake("two".into())).await;
    harness.expect_closed(1008, "second_handshake").await;
    executor.expect("s", RelayBody::Handshake("one".into())).await;
    let reason = RESET_HARNESS_DISCONNECTED.to_owned();
    executor.expect("s", RelayBody::Reset { reason }).await;
    executor.send_text("hello").await;
    executor.expect_closed(1003, "text_message").await;
}

#[tokio::test]
async fn a_harness_that_claims_nothing_is_sent_away() {
    let rendezvous =
        TestRendezvous::start_with(|config| config.timings.claim = Duration::from_millis(50)).await;
    let env = env(&rendezvous, "env").await;
    let _executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.expect_closed(1008, "no_stream_claimed").await;
}

#[tokio::test]
async fn a_harness_that_reads_nothing_is_closed_and_delays_no_other_for_long() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.slow_timeout = Duration::from_millis(200)
    })
    .await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut stuck = env.harness(&rendezvous).await;
    let mut lively = env.harness(&rendezvous).await;
    stuck.resume("stuck").await;
    executor.expect("stuck", RelayBody::Resume { next_seq: 0 }).await;
    lively.resume("lively").await;
    executor.expect("lively", RelayBody::Resume { next_seq: 0 }).await;
    // More than all buffers between the two hold; accepted because the slow harness is closed.
    for _ in 0..400 {
        executor.send_data("stuck", vec![7; 60_000]).await;
    }
    executor.send_data("lively", "still here").await;
    assert_eq!(lively.next_data().await.1, "still here");
    let reason = RESET_HARNESS_DISCONNECTED.to_owned();
    executor.expect("stuck", RelayBody::Reset { reason }).await;
}

#[tokio::test]
async fn a_large_transfer_waits_for_a_harness_that_reads() {
    let rendezvous = TestRendezvous::start().await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    harness.resume("s").await;
    executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
    let frames = 500;
    let sending = async {
        for number in 0..frames {
            executor.send_data("s", vec![number as u8; 60_000]).await;
        }
    };
    let reading = async {
        for number in 0..frames {
            let (_, payload) = harness.next_data().await;
            assert!(payload.len() == 60_000 && payload.iter().all(|byte| *byte == number as u8));
        }
    };
    tokio::join!(sending, reading);
}

#[tokio::test]
async fn a_peer_without_a_sign_of_life_is_given_up() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.ping_interval = Duration::from_millis(50);
        config.timings.pong_deadline = Duration::from_millis(100);
    })
    .await;
    let env = env(&rendezvous, "env").await;
    // It opens the socket and never reads, so it answers no ping.
    let executor = env.executor(&rendezvous).await;
    let offline = async || {
        let path = "/admin/environments";
        let token = rendezvous.admin_token();
        let reply = rendezvous.ask("GET", path, token, &serde_json::Value::Null).await;
        reply.body.contains("\"online\":false")
    };
    let deadline = tokio::time::Instant::now() + exec_server_testkit::DEADLINE;
    while !offline().await {
        assert!(tokio::time::Instant::now() < deadline, "it is still online");
    }
    drop(executor);
}
