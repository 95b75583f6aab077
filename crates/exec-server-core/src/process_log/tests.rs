use exec_server_protocol::process::ExitReason;
use proptest::prelude::*;

use super::*;

fn log(retain: usize) -> ProcessLog {
    ProcessLog::new(retain, Duration::from_secs(30))
}

fn exit(code: i32) -> Exit {
    let details = ExitDetails { reason: Some(ExitReason::Exited), ..ExitDetails::default() };
    Exit { code, sandbox_denied: false, details }
}

/// Applies `out TEXT`, `exit N` and `close`, and returns the log.
fn play(retain: usize, script: &str) -> ProcessLog {
    let mut log = log(retain);
    for line in script.split(';').map(str::trim) {
        match line.split_once(' ') {
            Some(("out", text)) => {
                log.handle_output(OutputStream::Stdout, text.as_bytes(), 0);
            }
            Some(("exit", code)) => drop(log.handle_exit(exit(code.parse().unwrap()))),
            _ => drop(log.handle_closed(Instant::now())),
        }
    }
    log
}

fn shown(page: &ProcessReadResponse) -> String {
    let chunks: Vec<String> = page
        .chunks
        .iter()
        .map(|chunk| format!("{}:{}", chunk.seq, String::from_utf8_lossy(&chunk.chunk.0)))
        .collect();
    let code = page.exit_code.map_or(String::new(), |code| format!(" exit {code}"));
    let closed = if page.closed { " closed" } else { "" };
    let gap = page
        .gap
        .map_or(String::new(), |gap| format!(" gap {}<{}", gap.evicted_bytes, gap.first_seq));
    format!("[{}] next {}{code}{closed}{gap}", chunks.join(" "), page.next_seq)
}

#[test]
fn output_exit_and_close_share_one_count() {
    let log = play(100, "out a; out b; exit 7; close");
    assert_eq!(shown(&log.read(0, None)), "[1:a 2:b] next 5 exit 7 closed");
    let late = play(100, "out a; exit 0; out b; close");
    assert_eq!(shown(&late.read(1, None)), "[3:b] next 5 exit 0 closed");
}

#[test]
fn times_are_added_to_the_chunks_that_are_kept() {
    let mut log = log(4);
    for (at, text) in [(10, "aa"), (20, "bb"), (30, "cc")] {
        log.handle_output(OutputStream::Stdout, text.as_bytes(), at);
    }
    let mut page = log.read(0, None);
    assert!(page.chunks.iter().all(|chunk| chunk.at_ms.is_none()));
    log.add_times(&mut page);
    let times: Vec<_> = page.chunks.iter().map(|chunk| (chunk.seq, chunk.at_ms)).collect();
    assert_eq!(times, [(2, Some(20)), (3, Some(30))]);
    assert_eq!(shown(&log.state()), "[] next 4");
}

#[test]
fn the_cursor_follows_the_byte_budget_rules() {
    let log = play(100, "out a; out b; out c; exit 0; close");
    assert_eq!(log.read(0, None).next_seq, 6);
    assert_eq!(shown(&log.read(0, Some(1))), "[1:a] next 2 exit 0 closed");
    assert_eq!(shown(&log.read(0, Some(0))), "[1:a] next 2 exit 0 closed");
    assert_eq!(log.read(0, Some(10_000)).next_seq, 4);
    assert_eq!(shown(&log.read(3, Some(1))), "[] next 6 exit 0 closed");
    assert_eq!(shown(&log.read(99, None)), "[] next 6 exit 0 closed");
    let wide = play(100, "out aaaa; out bbbb; out c");
    assert_eq!(shown(&wide.read(0, Some(5))), "[1:aaaa] next 2");
    assert_eq!(shown(&wide.read(0, Some(8))), "[1:aaaa 2:bbbb] next 3");
}

#[test]
fn a_read_that_missed_evicted_output_reports_a_gap() {
    let log = play(4, "out aa; out bb; out cc; exit 0");
    assert_eq!(shown(&log.read(0, None)), "[2:bb 3:cc] next 5 exit 0 gap 2<2");
    assert_eq!(shown(&log.read(1, None)), "[2:bb 3:cc] next 5 exit 0");
    let nothing = play(0, "out aa; out bb");
    assert_eq!(shown(&nothing.read(0, None)), "[] next 3 gap 4<3");
}

#[test]
fn room_that_only_unconfirmed_output_could_make_is_no_room() {
    let log = play(10, "out abcd; out efgh");
    let answers = |bytes| [0, 1, 2].map(|after| log.would_evict(bytes, after));
    assert_eq!(answers(2), [false; 3], "there is room");
    assert_eq!(answers(6), [true, false, false], "the first chunk makes room");
    assert_eq!(answers(7), [true, true, false], "both are needed");
    assert!(!play(10, "out abcdefghijk").would_evict(11, 0), "what never fits evicts nothing");
}

#[test]
fn a_long_poll_ends_with_news() {
    let running = play(100, "out a");
    assert!(running.has_news(0) && !running.has_news(1));
    let exited = play(100, "out a; exit 0");
    assert!(exited.has_news(1) && !exited.has_news(2), "the exit is news until it was seen");
    let late = play(100, "out a; exit 0; out b");
    assert!(late.has_news(2) && !late.has_news(3));
    assert!(play(100, "exit 0; close").has_news(99));
}

#[test]
fn the_record_expires_after_the_close_and_not_before() {
    assert_eq!(play(100, "exit 0").poll_timeout(), None);
    let mut log = log(100);
    log.handle_exit(exit(0));
    let now = Instant::now();
    log.handle_closed(now);
    assert_eq!(log.poll_timeout(), Some(now + Duration::from_secs(30)));
}

#[test]
fn the_number_of_chunks_is_bounded_too() {
    let mut log = log(usize::MAX);
    for _ in 0..MAX_RETAINED_CHUNKS + 5 {
        log.handle_output(OutputStream::Pty, b"x", 0);
    }
    let page = log.read(0, None);
    assert_eq!(page.chunks.len(), MAX_RETAINED_CHUNKS);
    assert_eq!(page.gap, Some(OutputGap { evicted_bytes: 5, first_seq: 6 }));
}

proptest! {
    #[test]
    fn pages_put_together_are_the_retained_output(
        sizes in proptest::collection::vec(0usize..60, 0..60),
        retain in 0usize..400,
        budget in 0u64..100,
        exit_at in 0usize..60,
    ) {
        let mut log = log(retain);
        let mut model: Vec<(u64, Vec<u8>)> = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            if index == exit_at {
                log.handle_exit(exit(0));
            }
            let bytes = vec![index as u8; *size];
            model.push((log.handle_output(OutputStream::Stdout, &bytes, 0), bytes));
        }
        let full = log.read(0, None);
        let kept = &model[model.len() - full.chunks.len()..];
        let total: usize = kept.iter().map(|(_, bytes)| bytes.len()).sum();
        prop_assert!(total <= retain);
        let mut cursor = 0;
        let mut seen = Vec::new();
        loop {
            let page = log.read(cursor, Some(budget));
            if page.chunks.is_empty() {
                break;
            }
            cursor = page.next_seq - 1;
            seen.extend(page.chunks.into_iter().map(|chunk| (chunk.seq, chunk.chunk.0)));
        }
        prop_assert_eq!(seen.as_slice(), kept);
    }
}
