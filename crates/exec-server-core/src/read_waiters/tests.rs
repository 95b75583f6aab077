use exec_server_protocol::process::{ExitDetails, OutputStream};

use super::*;
use crate::process_log::Exit;

const WAIT: Duration = Duration::from_millis(100);

/// Reads that wait after event 1, until the exit and until the close; each line of the script is an event.
///
/// `gone NAME` closes a connection; the expected text has the reads that became due, by line.
fn check(script: &str, expected: &str) {
    let mut now = Instant::now();
    let mut log = ProcessLog::new(1000, Duration::ZERO);
    log.handle_output(OutputStream::Stdout, b"first", 0);
    let mut waiters = ReadWaiters::default();
    for (until, name) in
        [(None, "output"), (Some(ReadUntil::Exited), "exit"), (Some(ReadUntil::Closed), "close")]
    {
        let params = read(1, WAIT, until);
        assert!(ReadWaiters::<&str>::must_wait(&params, &log), "{name}");
        waiters.push(now, params, name);
    }
    let mut lines = Vec::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut gone = "";
        match line.split_once(' ').unwrap_or((line, "")) {
            ("out", _) => drop(log.handle_output(OutputStream::Stdout, b"x", 0)),
            ("exit", _) => {
                let details = ExitDetails::default();
                log.handle_exit(Exit { code: 0, sandbox_denied: false, details });
            }
            ("close", _) => drop(log.handle_closed(now)),
            ("wait", ms) => now += Duration::from_millis(ms.parse().unwrap()),
            ("gone", name) => gone = name,
            other => panic!("unknown event {other:?}"),
        }
        let due = waiters.take_due(now, &log, |name| *name == gone);
        lines.push(due.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join("+"));
    }
    assert_eq!(lines.join(" | "), expected, "{script}");
}

fn read(after: u64, wait: Duration, until: Option<ReadUntil>) -> ProcessReadParams {
    ProcessReadParams {
        process_id: "p".into(),
        after_seq: Some(after),
        max_bytes: None,
        wait_ms: Some(u64::try_from(wait.as_millis()).unwrap()),
        session_id: None,
        timestamps: false,
        until,
        view: None,
    }
}

#[test]
fn each_read_is_due_with_the_event_that_it_waits_for() {
    check("out\n exit\n close", "output | exit | close");
    check("exit\n close", "output+exit | close");
}

#[test]
fn every_read_is_due_at_its_deadline() {
    check("wait 99\n wait 1", " | output+exit+close");
}

#[test]
fn a_read_whose_connection_is_closed_is_due() {
    check("gone exit\n out", "exit | output");
}

#[test]
fn a_read_with_news_or_without_a_wait_is_answered_at_once() {
    let mut log = ProcessLog::new(1000, Duration::ZERO);
    assert!(!ReadWaiters::<()>::must_wait(&read(0, Duration::ZERO, None), &log));
    assert!(ReadWaiters::<()>::must_wait(&read(0, WAIT, None), &log));
    log.handle_output(OutputStream::Stdout, b"x", 0);
    assert!(!ReadWaiters::<()>::must_wait(&read(0, WAIT, None), &log));
    let until_exit = read(0, WAIT, Some(ReadUntil::Exited));
    assert!(ReadWaiters::<()>::must_wait(&until_exit, &log), "output is no news for it");
}

#[test]
fn a_deadline_beyond_the_clock_is_none() {
    let mut waiters = ReadWaiters::default();
    let mut params = read(0, WAIT, None);
    params.wait_ms = Some(u64::MAX);
    waiters.push(Instant::now(), params, ());
    assert!(!waiters.is_empty());
    let deadline = waiters.poll_timeout();
    assert!(deadline.is_none_or(|at| at > Instant::now() + WAIT * 1000));
}
