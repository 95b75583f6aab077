//! Missed output is read in pages, so that a link that breaks repeatedly still delivers everything.

use std::fmt::Write;

use exec_server::{ExecServerClient, ProcessEvent, ProcessStartParams};
use exec_server_testkit::fault_proxy::FaultSchedule;
use exec_server_testkit::{DEADLINE, FaultProxy, TestExecutor};
use serde_json::json;
use tokio::time::timeout;

use super::completion::started;
use super::peer::{read_answer, scripted_client, with};

const LINES: u64 = 8_000_000;
const MEGABYTE: u64 = 1024 * 1024;

/// A process whose output waits for its client, with as much retained as can be in flight.
fn counting() -> ProcessStartParams {
    let params = json!({"processId": "count", "argv": ["seq", LINES.to_string()], "cwd": "file:///",
        "env": {}, "envPolicy": {"inherit": "core", "ignoreDefaultExcludes": false, "exclude": [], "set": {},
        "includeOnly": []}, "tty": false, "outputRetention": 16 * MEGABYTE, "waitWhenDetached": true});
    serde_json::from_value(params).expect("valid params")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_breaks_every_few_megabytes_brings_every_byte_once_and_in_order() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let client = ExecServerClient::connect(proxy.url()).await.unwrap();
    proxy.set_faults(Some(FaultSchedule {
        seed: 3,
        piece: 60_000..65_536,
        cut_every: Some(2_500_000..3_500_000),
        ..FaultSchedule::default()
    }));
    let process = client.start(counting()).await.unwrap();
    let mut events = process.paced_events_after(0);
    let mut expected = Lines::default();
    let reading = async {
        while let Some(event) = events.next().await {
            match event {
                ProcessEvent::Output { bytes, .. } => expected.check(&bytes),
                ProcessEvent::Exited { exit, .. } => assert_eq!(exit.exit_code, 0),
                ProcessEvent::Closed { .. } | ProcessEvent::ResyncRequired => {}
                event => panic!("{event:?} after line {}", expected.next),
            }
        }
    };
    let done = timeout(4 * DEADLINE, reading).await;
    assert!(done.is_ok(), "line {} after {} connections", expected.next, proxy.connections());
    assert_eq!((expected.next, expected.rest.as_str()), (LINES, ""));
    assert!(proxy.connections() > 20, "only {} connections", proxy.connections());
}

/// Numbered lines, generated on demand.
#[derive(Default)]
struct Lines {
    next: u64,
    rest: String,
}

impl Lines {
    fn check(&mut self, bytes: &[u8]) {
        while self.rest.len() < bytes.len() && self.next < LINES {
            self.next += 1;
            writeln!(self.rest, "{}", self.next).unwrap();
        }
        assert!(self.rest.as_bytes().starts_with(bytes), "wrong bytes before line {}", self.next);
        self.rest.drain(..bytes.len());
    }
}

#[tokio::test]
async fn pages_follow_each_other_until_the_last_one_tells_the_end() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    let over = json!({"exited": true, "exitCode": 4, "closed": true});
    let asked = peer.expect("process/read").await;
    assert_eq!(asked.params["maxBytes"], MEGABYTE);
    peer.reply(&asked, with(read_answer(&[(3, "c"), (4, "d")], 5), over.clone())).await;
    assert_eq!(peer.serve_read(with(read_answer(&[(5, "e")], 6), over.clone())).await, 4);
    assert_eq!(peer.serve_read(with(read_answer(&[], 8), over)).await, 5);
    let mut seen = String::new();
    let mut events = process.events();
    while let Some(event) = events.next().await {
        match event {
            ProcessEvent::Output { seq, .. } => write!(seen, "{seq} "),
            ProcessEvent::Exited { seq, exit } => write!(seen, "{seq}:exit{} ", exit.exit_code),
            ProcessEvent::Closed { seq } => write!(seen, "{seq}:closed"),
            ProcessEvent::Gap(gap) => write!(seen, "gap({}-{}) ", gap.first, gap.last),
            ProcessEvent::ResyncRequired => write!(seen, "resync "),
            ProcessEvent::Failed(reason) => write!(seen, "{reason}"),
        }
        .unwrap();
    }
    assert_eq!(seen, "resync gap(1-2) 3 4 5 6:exit4 7:closed");
}

#[tokio::test]
async fn a_page_that_comes_with_the_end_of_its_link_is_kept() {
    let (client, mut peers) = scripted_client();
    let (_process, mut peer) = started(&client, &mut peers).await;
    peer.output("p", 1, "a").await;
    peer.output("p", 3, "c").await;
    assert_eq!(peer.serve_read(read_answer(&[(2, "b"), (3, "c"), (4, "d")], 5)).await, 1);
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    assert_eq!(peer.serve_read(read_answer(&[(5, "e")], 6)).await, 4);
    assert_eq!(peer.serve_read(read_answer(&[], 6)).await, 5);
}

#[tokio::test]
async fn a_last_page_that_comes_with_the_end_of_its_link_ends_no_later_catching_up() {
    let (client, mut peers) = scripted_client();
    let (_process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    assert_eq!(peer.serve_read(read_answer(&[(1, "a")], 2)).await, 0);
    assert_eq!(peer.serve_read(read_answer(&[], 2)).await, 1);
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    assert_eq!(peer.serve_read(read_answer(&[(2, "b")], 3)).await, 1);
    assert_eq!(peer.serve_read(read_answer(&[], 3)).await, 2);
}

#[tokio::test]
async fn a_process_that_is_forgotten_between_two_pages_fails_alone() {
    let (client, mut peers) = scripted_client();
    let (process, peer) = started(&client, &mut peers).await;
    drop(peer);
    let mut peer = peers.accept_session("s-1").await;
    peer.serve_read(read_answer(&[(1, "a")], 2)).await;
    let asked = peer.expect("process/read").await;
    peer.refuse(&asked, -32600, "unknown process id p").await;
    let error = timeout(DEADLINE, process.wait()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("unknown process id p"), "{error}");
}

#[tokio::test]
async fn a_reader_that_fell_behind_reads_in_pages_too() {
    let (client, mut peers) = scripted_client();
    let (process, mut peer) = started(&client, &mut peers).await;
    let mut wake = process.subscribe_wake();
    for seq in 1..=5000 {
        peer.output("p", seq, "x").await;
    }
    wake.wait_for(|seq| *seq == 5000).await.unwrap();
    let mut events = process.events();
    let serving = async {
        let asked = peer.expect("process/read").await;
        assert_eq!(
            (&asked.params["afterSeq"], &asked.params["maxBytes"]),
            (&json!(0), &json!(MEGABYTE))
        );
        let page: Vec<_> = (1..=500).map(|seq| (seq, "x")).collect();
        peer.reply(&asked, read_answer(&page, 501)).await;
        let page: Vec<_> = (501..=5000).map(|seq| (seq, "x")).collect();
        assert_eq!(peer.serve_read(read_answer(&page, 5001)).await, 500);
    };
    let reading = async {
        for expected in 1..=5000 {
            let event = timeout(DEADLINE, events.next()).await.unwrap();
            assert!(
                matches!(event, Some(ProcessEvent::Output { seq, .. }) if seq == expected),
                "{event:?}"
            );
        }
    };
    tokio::join!(serving, reading);
}
