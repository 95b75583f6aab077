use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;
use exec_server_protocol::process::OutputStream;

use super::handover::CATCH_UP_TIMEOUT;
use super::*;

/// Runs one command per line on a process whose log keeps two chunks, and compares the states of the gate.
///
/// `out` reads a chunk and pushes it if a client is attached; `read A B` answers a read after A with events up to B;
/// `state` reports `open` or `shut`, with `+mark` while a mark is unanswered; times are in milliseconds.
fn check(rules: Rules, script: &str, expected: &str) {
    let started = Instant::now();
    let retain_bytes = 2 * MAX_OUTPUT_CHUNK_BYTES;
    let mut log = ProcessLog::new(retain_bytes, Duration::ZERO);
    let mut gate = OutputGate::new(GateRules {
        started,
        retain_bytes,
        is_reference_client: rules == Rules::Reference,
        waits_when_detached: rules == Rules::WaitWhenDetached,
    });
    let (mut now, mut is_attached, mut is_ending) = (started, true, false);
    let mut states = Vec::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let command = words.next().unwrap();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match command {
            "out" => {
                let chunk = [b'x'; MAX_OUTPUT_CHUNK_BYTES];
                let seq = log.handle_output(OutputStream::Stdout, &chunk, 0);
                gate.handle_output(chunk.len());
                if is_attached {
                    gate.handle_pushed(seq, chunk.len());
                }
            }
            "detach" | "attach" => {
                is_attached = command == "attach";
                gate.handle_link_changed();
            }
            "read" => gate.handle_read(number(), number(), &log),
            "pong" => {
                assert!(gate.awaits_confirmation(), "no mark was sent: {script}");
                gate.handle_confirmation(now, Confirmation::Received);
            }
            "cut" => gate.handle_confirmation(now, Confirmation::LinkLost),
            "end" => is_ending = true,
            "wait" => now += Duration::from_millis(number()),
            "timeout" => now += CATCH_UP_TIMEOUT,
            "state" => {
                let input = GateInput { now, log: &log, is_attached, is_ending };
                let state = if gate.is_open(input) { "open" } else { "shut" };
                let mark = if gate.awaits_confirmation() { "+mark" } else { "" };
                let until = gate.poll_timeout(input).map(|at| (at - now).as_millis());
                let until = until.map_or(String::new(), |ms| format!("({ms})"));
                states.push(format!("{state}{mark}{until}"));
            }
            other => panic!("unknown command {other}"),
        }
        gate.poll_mark(GateInput { now, log: &log, is_attached, is_ending });
    }
    assert_eq!(states.join(" "), expected, "{script}");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    None,
    Reference,
    WaitWhenDetached,
}

/// A client that resumed after it missed a full log of output.
const MISSED: &str = "out\n out\n detach\n attach\n";

#[test]
fn without_a_rule_the_gate_is_always_open() {
    check(
        Rules::None,
        "out\n out\n out\n state\n detach\n state\n attach\n state",
        "open open open",
    );
}

#[test]
fn the_reference_client_gets_half_a_mebibyte_before_its_listener_is_expected() {
    let seven = "out\n".repeat(7);
    let script = format!("{seven} state\n out\n state\n wait 20\n state\n wait 30\n state");
    check(Rules::Reference, &script, "open shut(50) shut(30) open");
    let script = format!("{seven} out\n detach\n state");
    check(Rules::Reference, &script, "open");
}

#[test]
fn output_waits_while_no_client_is_attached_unless_the_process_is_ending() {
    check(Rules::WaitWhenDetached, "detach\n state\n end\n state", "shut open");
    check(Rules::WaitWhenDetached, "detach\n attach\n state", "open");
}

#[test]
fn a_full_log_waits_for_confirmation_before_it_evicts() {
    check(
        Rules::WaitWhenDetached,
        "out\n state\n out\n state\n pong\n state",
        "open+mark shut+mark open+mark",
    );
}

#[test]
fn output_is_read_again_when_the_client_has_caught_up() {
    let script = format!(
        "{MISSED} state\n read 0 1\n state\n read 1 2\n state\n out\n state\n pong\n state\n pong\n state"
    );
    check(
        Rules::WaitWhenDetached,
        &script,
        "shut+mark shut+mark open+mark shut+mark shut+mark open",
    );
}

#[test]
fn the_catch_up_timeout_begins_when_the_answer_has_arrived() {
    let script = format!(
        "{MISSED} pong\n wait 5000\n state\n read 0 1\n timeout\n timeout\n state\n pong\n state"
    );
    check(Rules::WaitWhenDetached, &script, "shut(5000) shut+mark shut(10000)");
}

#[test]
fn a_client_that_does_not_read_loses_the_missed_output() {
    let script = format!("{MISSED} pong\n state\n timeout\n state\n pong\n state");
    check(Rules::WaitWhenDetached, &script, "shut(10000) shut+mark open");
}

#[test]
fn a_process_that_is_ending_does_not_wait_for_missed_output_to_be_read() {
    let script = format!("{MISSED} end\n pong\n state\n pong\n state");
    check(Rules::WaitWhenDetached, &script, "shut+mark open");
}

#[test]
fn a_lost_link_confirms_nothing() {
    let script = format!("{MISSED} cut\n attach\n state");
    check(Rules::WaitWhenDetached, &script, "shut+mark");
}
