use std::fmt::Write;

use bytes::Bytes;
use exec_server_protocol::process::{
    ExitDetails, OutputChunk, OutputGap, OutputStream, ProcessReadResponse,
};
use proptest::prelude::*;

use super::*;

/// Runs a script, one step per line, and compares the output with `expected`.
///
/// `out 3`, `exit 4 0`, `exit? 4 0` (without `sandboxDenied`), `close 5`, `start`, `start sandboxed`, `lost`.
/// `read` expects a required read; `answer chunks=3,5 next=6 exited closed denied gap=3` answers it. An impossible
/// answer ends the script.
fn check(script: &str, expected: &str) {
    let mut order = EventOrder::new();
    let mut told = String::new();
    for step in script.lines().map(str::trim).filter(|step| !step.is_empty()) {
        let words: Vec<_> = step.split_ascii_whitespace().collect();
        let number = |place: usize| words[place].parse::<u64>().expect("a number");
        match words[0] {
            "start" if words.len() > 1 => order.handle_started(Confinement::Possible),
            "start" => order.handle_started(Confinement::None),
            "out" => order.handle_event(output(number(1))),
            "exit" => order.handle_event(exited(number(1), number(2), Some(false))),
            "exit?" => order.handle_event(exited(number(1), number(2), None)),
            "close" => order.handle_event(ProcessEvent::Closed { seq: number(1) }),
            "lost" => order.handle_lost(),
            "read" => {
                let read = order.poll_read().expect("a read is needed");
                assert_eq!(order.poll_read(), None, "one read at a time");
                let late = if read.may_be_late { "?" } else { "" };
                write!(told, "read{late}>{} ", read.after).unwrap();
            }
            "answer" => match order.handle_read(answer(&words[1..])) {
                Ok(()) => {}
                Err(error) => {
                    write!(told, "[{error}]").unwrap();
                    return assert_eq!(told, expected);
                }
            },
            "late-answer" => order.handle_late_read(answer(&words[1..])),
            "read-failed" => order.handle_read_failed(),
            word => panic!("unknown step {word}"),
        }
        while let Some(event) = order.poll_event() {
            match event {
                ProcessEvent::Output { seq, .. } => write!(told, "{seq} "),
                ProcessEvent::Exited { seq, exit } => {
                    let denied = match exit.sandbox_denied {
                        Some(true) => "!",
                        Some(false) => "",
                        None => "?",
                    };
                    write!(told, "{seq}:exit{}{denied} ", exit.exit_code)
                }
                ProcessEvent::Closed { seq } => write!(told, "{seq}:closed "),
                ProcessEvent::Gap(gap) => write!(told, "gap({}-{}) ", gap.first, gap.last),
                ProcessEvent::ResyncRequired => write!(told, "resync "),
                ProcessEvent::Failed(text) => write!(told, "failed({text}) "),
            }
            .unwrap();
        }
    }
    assert_eq!(order.poll_read(), None, "no read is left to do after: {told}");
    assert_eq!(told.trim_end(), expected);
}

fn output(seq: u64) -> ProcessEvent {
    ProcessEvent::Output { seq, stream: OutputStream::Stdout, bytes: Bytes::from_static(b"x") }
}

fn exited(seq: u64, code: u64, sandbox_denied: Option<bool>) -> ProcessEvent {
    let exit_code = i32::try_from(code).expect("a small code");
    let exit = ProcessExit { exit_code, sandbox_denied, details: ExitDetails::default() };
    ProcessEvent::Exited { seq, exit }
}

fn answer(words: &[&str]) -> ProcessReadResponse {
    let value = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let chunks = value("chunks=").map_or(Vec::new(), |list| {
        list.split(',').map(|seq| seq.parse().expect("a number")).collect()
    });
    ProcessReadResponse {
        chunks: chunks
            .into_iter()
            .map(|seq| OutputChunk {
                at_ms: None,
                offset: None,
                seq,
                stream: OutputStream::Stdout,
                chunk: b"x".to_vec().into(),
            })
            .collect(),
        next_seq: value("next=").expect("every answer says it").parse().expect("a number"),
        exited: words.contains(&"exited"),
        exit_code: words.contains(&"exited").then_some(7),
        closed: words.contains(&"closed"),
        failure: value("failure=").map(str::to_owned),
        sandbox_denied: words.contains(&"denied"),
        details: ExitDetails::default(),
        gap: value("gap=").map(|first| OutputGap {
            evicted_bytes: 10,
            first_seq: first.parse().expect("a number"),
        }),
        extent: None,
    }
}

#[test]
fn a_complete_stream_needs_no_read() {
    check("start\nout 1\nout 2\nexit 3 0\nclose 4", "1 2 3:exit0 4:closed");
}

#[test]
fn events_come_out_in_order_and_once_in_any_arrival_order() {
    check("close 4\nexit 3 0\nout 2\nout 2\nstart\nout 1\nout 1\nout 3", "1 2 3:exit0 4:closed");
}

#[test]
fn an_exit_without_a_denial_flag_costs_one_read() {
    check(
        "start sandboxed\nout 1\nexit? 2 1\nclose 3\nread\nanswer next=4 exited closed denied",
        "1 read>1 2:exit1! 3:closed",
    );
    check("start\nexit? 1 0\nclose 2", "1:exit0 2:closed");
    check("exit? 1 0\nclose 2\nstart", "1:exit0 2:closed");
    check("start sandboxed\nexit? 1 3\nread\nread-failed\nclose 2", "read>0 1:exit3? 2:closed");
}

#[test]
fn a_lost_event_is_read_again() {
    check("start\nout 1\nout 3\nread\nanswer chunks=2,3 next=4\nout 4", "1 read?>1 2 3 4");
    check("start\nout 1\nout 3\nout 2\n", "1 2 3");
}

#[test]
fn missed_events_are_read_from_retained_output() {
    check("start\nout 1\nlost\nout 4\nanswer chunks=2,3,4 next=5\nout 5", "1 resync 2 3 4 5");
}

#[test]
fn a_second_loss_before_a_read_is_reported_once() {
    let script =
        "start\nlost\nlost\nanswer next=1\nlost\nanswer chunks=1 next=2\nread\nanswer next=2";
    check(script, "resync resync 1 read>1");
}

#[test]
fn an_exit_and_a_close_during_a_cut_are_rebuilt() {
    check("start\nout 1\nlost\nanswer next=4 exited closed", "1 resync 2:exit7 3:closed");
    check("start\nlost\nanswer chunks=1,3 next=5 exited closed", "resync 1 2:exit7 3 4:closed");
    check("start\nexit 1 0\nlost\nanswer next=3 exited closed", "1:exit0 resync 2:closed");
}

#[test]
fn evicted_output_is_a_gap_and_the_process_continues() {
    let news = "start\nout 1\nlost\nanswer chunks=5,6 next=7 gap=5\nread\nanswer next=7\nout 7";
    check(news, "1 resync gap(2-4) 5 6 read>6 7");
    check(
        "start\nlost\nanswer chunks=3 next=6 exited closed gap=3",
        "resync gap(1-2) 3 4:exit7 5:closed",
    );
    check("start\nlost\nanswer next=6 exited closed gap=6", "resync gap(1-3) 4:exit7 5:closed");
}

#[test]
fn gaps_are_detected_on_a_server_that_does_not_report_them() {
    check(
        "start\nlost\nanswer chunks=9 next=12 exited closed",
        "resync gap(1-8) 9 10:exit7 11:closed",
    );
    check("start\nlost\nanswer chunks=3 next=4\nread\nanswer next=4", "resync gap(1-2) 3 read>3");
    check(
        "start\nlost\nanswer chunks=4,5 next=7 exited closed",
        "resync gap(1-2) 3:exit7 4 5 6:closed",
    );
}

#[test]
fn missed_events_are_read_in_pages_and_only_the_last_has_the_end() {
    check(
        "start\nlost\nanswer chunks=1,2 next=3 exited closed\nread\nanswer chunks=3 next=4 exited closed
         read\nanswer next=6 exited closed",
        "resync 1 2 read>2 3 read>3 4:exit7 5:closed",
    );
    check(
        "start\nlost\nanswer chunks=1,3 next=4 exited\nread\nanswer next=4 exited",
        "resync 1 2:exit7 3 read>3",
    );
    let mut order = EventOrder::attached(0);
    assert_eq!(order.poll_read(), None, "attaching reads the first page");
    order.handle_read(answer(&["chunks=1", "next=2"])).unwrap();
    assert_eq!(order.poll_read(), Some(NeededRead { after: 1, may_be_late: false }));
}

#[test]
fn no_page_is_read_beyond_the_events_pushed_on_the_new_link() {
    check("start\nout 1\nlost\nout 4\nanswer chunks=2,3 next=4\nout 5", "1 resync 2 3 4 5");
    check(
        "start\nout 1\nlost\nout 3\nanswer chunks=2 next=3\nlost\nanswer next=4",
        "1 resync 2 3 resync",
    );
    check(
        "start\nout 1\nout 3\nlost\nanswer chunks=2 next=3\nread\nanswer chunks=4 next=5\nread\nanswer next=5",
        "1 resync 2 3 read>3 4 read>4",
    );
}

#[test]
fn an_exit_that_may_be_in_a_gap_waits_for_the_last_page() {
    let evicted = "start\nlost\nanswer chunks=5,6 next=7 exited gap=5\nread\n";
    check(&format!("{evicted}answer next=7 exited"), "resync read>6 gap(1-3) 4:exit7 5 6");
    check(
        &format!("{evicted}answer next=9 exited closed"),
        "resync read>6 gap(1-4) 5 6 7:exit7 8:closed",
    );
    check(
        &format!("{evicted}exit 7 7\nanswer next=8 exited"),
        "resync read>6 gap(1-4) 5 6 7:exit7",
    );
    check(
        "start\nlost\nanswer chunks=2 next=3 exited\nread\nanswer next=3 exited",
        "resync read>2 1:exit7 2",
    );
    check(
        "start\nlost\nanswer chunks=2 next=3 exited\nlost\nanswer next=5 exited closed",
        "resync resync gap(1-1) 2 3:exit7 4:closed",
    );
}

#[test]
fn an_answer_that_outlives_its_link_brings_output_and_ends_no_catching_up() {
    check(
        "start\nlost\nanswer chunks=1 next=2\nread\nlost\nlate-answer chunks=2 next=3
        answer chunks=3 next=4\nread",
        "resync 1 read>1 resync 2 3 read>3",
    );
    check(
        "start\nlost\nanswer chunks=1 next=2\nread\nlost\nlate-answer next=2
        answer chunks=2 next=3\nread",
        "resync 1 read>1 resync 2 read>2",
    );
}

#[test]
fn as_much_may_wait_as_the_server_keeps() {
    let mut order = EventOrder::new();
    order.expect_retention(4 * 1024 * 1024);
    order.handle_started(Confinement::None);
    order.handle_lost();
    for seq in 2..=1024 {
        order.handle_event(output(seq));
    }
    order.handle_read(answer(&["chunks=1", "next=2"])).unwrap();
    assert_eq!((order.last_seq(), order.poll_read()), (1024, None));
}

#[test]
fn an_undecided_exit_delays_a_bounded_number_of_events() {
    let mut order = EventOrder::new();
    order.handle_started(Confinement::None);
    order.handle_lost();
    order.handle_read(answer(&["chunks=5", "next=6", "exited", "gap=5"])).unwrap();
    for seq in 6..=1000 {
        order.handle_event(output(seq));
    }
    assert_eq!(order.last_seq(), 1000);
}

#[test]
fn impossible_pages_are_rejected() {
    check(
        "start\nlost\nanswer chunks=5 next=3",
        "resync [process/read returned output 5 behind its own end 2]",
    );
    check(
        "start\nlost\nanswer chunks=2 next=3 exited closed\nread\nanswer next=3 exited closed",
        "resync read>2 [process/read returned output at the closing number 2]",
    );
    let same_page = "answer chunks=1 next=2\n";
    check(
        &format!("start\nlost\n{same_page}{}", format!("read\n{same_page}").repeat(8)),
        &format!("resync 1 {}[the server does not account for event 2]", "read>1 ".repeat(8)),
    );
    check("start\nlost\nanswer next=1 failure=gone\nout 1", "resync failed(gone)");
}

#[test]
fn a_denial_in_an_answer_reaches_an_exit_that_waits() {
    check(
        "start sandboxed\nout 1\nlost\nexit? 3 1\nanswer chunks=2 next=4 exited denied",
        "1 resync 2 3:exit1!",
    );
}

#[test]
fn too_many_early_events_are_dropped_and_read_again() {
    let mut order = EventOrder::new();
    order.handle_started(Confinement::None);
    for seq in 2..=1000 {
        order.handle_event(output(seq));
    }
    assert_eq!(order.pending.len(), MAX_PENDING_EVENTS);
    assert_eq!(order.poll_read(), Some(NeededRead { after: 0, may_be_late: false }));
    order.handle_event(output(1));
    let out = std::iter::from_fn(|| order.poll_event()).count();
    assert_eq!(out, MAX_PENDING_EVENTS + 1, "the event that closes the gap is always let in");
    assert!(order.still_needs_read(), "the rest was dropped");
    let all: Vec<_> = (258..=1000).map(|seq| seq.to_string()).collect();
    order.handle_read(answer(&[&format!("chunks={}", all.join(",")), "next=1001"])).unwrap();
    assert_eq!(order.last_seq(), 1000);
    assert_eq!(order.poll_read(), None);
}

#[test]
fn one_event_larger_than_everything_that_may_wait_passes_when_it_is_next() {
    let large = |seq| ProcessEvent::Output {
        seq,
        stream: OutputStream::Stdout,
        bytes: Bytes::from(vec![0; MAX_PENDING_BYTES + 1]),
    };
    let mut order = EventOrder::new();
    order.handle_event(large(2));
    assert!(order.pending.is_empty());
    order.handle_event(large(1));
    assert_eq!(order.last_seq(), 1);
    assert_eq!(order.pending_bytes, 0);
}

#[test]
fn a_server_whose_pages_never_cover_its_events_is_rejected() {
    let mut order = EventOrder::new();
    order.handle_started(Confinement::None);
    order.handle_event(output(5));
    let mut outcomes = (0..MAX_FRUITLESS_READS).map(|_| {
        order.poll_read().expect("it is still missing");
        order.handle_read(answer(&["next=1"]))
    });
    assert_eq!(outcomes.by_ref().last(), Some(Err(OrderError::NeverToldOf(1))));
}

proptest! {
    /// For any order and loss of pushed events, honest pages bring everything out once, in order.
    #[test]
    fn nothing_is_lost_or_repeated(
        count in 1u64..60,
        exit_at in 1u64..60,
        page in 1usize..70,
        order_of_arrival in proptest::collection::vec((0u64..62, any::<bool>()), 0..200),
    ) {
        let exit_at = exit_at.min(count);
        let end = count + 1;
        let event = |seq| match seq {
            seq if seq == exit_at => exited(seq, 7, Some(false)),
            seq if seq == end => ProcessEvent::Closed { seq },
            seq => output(seq),
        };
        let read = |order: &mut EventOrder| {
            let answer = honest(order.read_after(), count, exit_at, page);
            order.handle_read(answer).unwrap();
        };
        let mut order = EventOrder::new();
        order.handle_started(Confinement::None);
        let mut out = Vec::new();
        for (seq, is_cut) in order_of_arrival {
            if is_cut && seq % 7 == 0 {
                order.handle_lost();
                read(&mut order);
            } else if (1..=end).contains(&seq) {
                order.handle_event(event(seq));
            }
            if order.poll_read().is_some_and(|read| seq % 3 == 0 || !read.may_be_late) {
                read(&mut order);
            } else {
                order.is_reading = false;
            }
            out.extend(std::iter::from_fn(|| order.poll_event()));
        }
        order.handle_lost();
        read(&mut order);
        while order.poll_read().is_some() {
            read(&mut order);
        }
        out.extend(std::iter::from_fn(|| order.poll_event()));
        let numbers: Vec<_> = out.iter().filter_map(ProcessEvent::seq).collect();
        prop_assert_eq!(numbers, (1..=end).collect::<Vec<_>>());
        prop_assert!(out.iter().all(|event| !matches!(event, ProcessEvent::Gap(_))));
    }

    /// Evicted output is reported in one gap, however the rest is divided into pages.
    #[test]
    fn evicted_output_is_reported_once(
        evicted in 1u64..20,
        count in 20u64..40,
        exit_at in 1u64..40,
        page in 1usize..50,
        tells in any::<bool>(),
    ) {
        let exit_at = exit_at.min(count);
        let mut order = EventOrder::new();
        order.handle_started(Confinement::None);
        order.handle_lost();
        let mut is_first = true;
        while std::mem::take(&mut is_first) || order.poll_read().is_some() {
            let after = order.read_after();
            let mut answer = honest(after.max(evicted), count, exit_at, page);
            answer.gap = (tells && after < evicted)
                .then_some(OutputGap { evicted_bytes: 1, first_seq: evicted + 1 });
            order.handle_read(answer).unwrap();
        }
        let out: Vec<_> = std::iter::from_fn(|| order.poll_event()).collect();
        let gaps = out.iter().filter(|event| matches!(event, ProcessEvent::Gap(_))).count();
        let exits = out.iter().filter(|event| matches!(event, ProcessEvent::Exited { .. })).count();
        prop_assert!(gaps <= 1 && exits == 1, "{out:?}");
        prop_assert!(gaps == 1 || evicted == 1, "{out:?}");
        prop_assert_eq!(out.last(), Some(&ProcessEvent::Closed { seq: count + 1 }));
        let mut next = 1;
        for event in out.iter().filter(|event| event.seq().is_some()) {
            prop_assert_eq!(event.first_seq(), Some(next));
            next = event.seq().unwrap() + 1;
        }
    }
}

/// A page of `page` chunks after `after`, from a server whose process has ended.
fn honest(after: u64, count: u64, exit_at: u64, page: usize) -> ProcessReadResponse {
    let chunks: Vec<_> = (after + 1..=count).filter(|seq| *seq != exit_at).take(page).collect();
    let next = format!("next={}", chunks.last().map_or(count + 2, |last| last + 1));
    let chunks: Vec<_> = chunks.iter().map(u64::to_string).collect();
    match chunks.is_empty() {
        true => answer(&[&next, "exited", "closed"]),
        false => answer(&[&format!("chunks={}", chunks.join(",")), &next, "exited", "closed"]),
    }
}
