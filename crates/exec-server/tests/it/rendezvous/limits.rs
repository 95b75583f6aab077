//! Peers that do not read, and what they may hold up.

use std::time::Duration;

use exec_server_relay::frame::RelayBody;
use exec_server_testkit::{Relayed, TestRendezvous};
use serde_json::Value;

use super::env;

#[tokio::test]
async fn an_executor_that_reads_nothing_is_closed_with_1013() {
    let rendezvous = TestRendezvous::start_with(|config| {
        config.timings.slow_timeout = Duration::from_millis(200);
        config.timings.close = Duration::from_secs(60);
    })
    .await;
    let env = env(&rendezvous, "env").await;
    let mut executor = env.executor(&rendezvous).await;
    let mut harness = env.harness(&rendezvous).await;
    let flood =
        tokio::spawn(async move { while harness.try_send_data("s", vec![7; 60_000]).await {} });
    rendezvous.wait_for_metric("exec_server_relay_executors_active 0").await;
    // It reads again, and learns why it was closed.
    loop {
        match executor.next().await {
            Relayed::Frame(_) => {}
            Relayed::Closed(code, reason) => {
                assert_eq!((code, reason.as_str()), (1013, "too_slow"));
                break;
            }
            Relayed::Cut => panic!("the close frame is missing"),
        }
    }
    flood.abort();
    rendezvous.wait_for_metric("exec_server_relay_closes_total{reason=\"too_slow\"} 1").await;
    rendezvous.wait_for_metric("exec_server_relay_buffered_bytes 0").await;
}

#[tokio::test]
async fn a_small_budget_slows_streams_down_and_stops_none() {
    const FRAMES: usize = 60;
    const HARNESSES: usize = 6;
    let rendezvous =
        TestRendezvous::start_with(|config| config.limits.buffer_budget = 256 * 1024).await;
    rendezvous.wait_for_metric("exec_server_relay_buffer_budget_bytes 262144").await;
    let environments = ["one", "two"].map(|name| {
        let rendezvous = &rendezvous;
        async move {
            let env = env(rendezvous, name).await;
            let mut executor = env.executor(rendezvous).await;
            let mut harnesses = Vec::new();
            for number in 0..HARNESSES {
                let mut harness = env.harness(rendezvous).await;
                let stream = format!("s{number}");
                harness.resume(&stream).await;
                executor.expect(&stream, RelayBody::Resume { next_seq: 0 }).await;
                harnesses.push((harness, stream));
            }
            let echo = async {
                for _ in 0..FRAMES * HARNESSES {
                    let (stream, payload) = executor.next_data().await;
                    executor.send_data(&stream, payload).await;
                }
            };
            // Each frame is above its share, and the largest that is allowed is among them.
            let peers = harnesses.iter_mut().map(|(harness, stream)| async move {
                for number in 0..FRAMES {
                    let payload = vec![number as u8; 100_000 + number * 2600];
                    harness.send_data(stream, payload.clone()).await;
                    assert_eq!(harness.next_data().await.1, payload);
                }
            });
            tokio::join!(echo, futures_util::future::join_all(peers));
        }
    });
    futures_util::future::join_all(environments).await;
    rendezvous.wait_for_metric("exec_server_relay_buffered_bytes 0").await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_start_announces_as_many_connections_as_there_are_descriptors_for() {
    use exec_server_testkit::executor::TestExecutor;

    let data = tempfile::tempdir().unwrap();
    let place = data.path().display().to_string();
    let arguments = ["rendezvous", "--listen", "http://127.0.0.1:0", "--data", &place];
    for (more, expected) in [(&[][..], 1000 - 256), (&["--max-connections", "12"], 12)] {
        let builder = TestExecutor::builder().after("ulimit -n 1000").args(&arguments).args(more);
        let mut program = builder.env("RUST_LOG", "info").piped_stderr().start().await;
        let listening = loop {
            let line = program.next_stderr_line().await.expect("it says that it listens");
            if line.contains("\"listening\"") {
                break line;
            }
        };
        let line: Value = serde_json::from_str(&listening).unwrap();
        let text = line.to_string();
        assert!(text.contains(&format!("\"max_connections\":{expected}")), "{text}");
        assert!(text.contains("\"buffer_budget\":268435456"), "{text}");
    }
}
