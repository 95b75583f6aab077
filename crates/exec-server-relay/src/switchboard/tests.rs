//! Scripted tests: sockets attach, send and close; the check compares what each socket received.

mod hostile;
mod pressure;

use std::time::Duration;

use super::*;
use crate::frame::RelayData;

#[test]
fn frames_go_both_ways_by_stream() {
    check(
        "
        executor E env r1 1
        harness A env r1
        harness B env r1
        A a resume
        B b resume
        A a data one
        E a data answer
        E b data other
        E c data unknown
        ",
        "
        E: a resume, b resume, a one
        A: a answer
        B: b other
        ",
    );
}

#[test]
fn a_harness_has_only_the_stream_that_it_claimed_first() {
    check(
        "
        executor E env r1 1
        harness A env r1
        harness B env r1
        harness C env r1
        A a resume
        B b resume
        B a data forged
        B a reset forged
        C a handshake
        ",
        "
        E: a resume, b resume
        A: 
        B: 
        C: closed 1008 stream_taken
        ",
    );
}

#[test]
fn frames_stay_in_their_environment() {
    check(
        "
        executor E env r1 1
        executor F other r2 1
        harness A env r1
        harness B other r2
        A same data a
        B same data b
        F same data from-f
        ",
        "
        E: same a
        F: same b
        A: 
        B: same from-f
        ",
    );
}

#[test]
fn an_executor_gets_a_reset_after_the_last_frame_of_a_harness() {
    check(
        "
        executor E env r1 1
        harness A env r1
        harness B env r1
        A a resume
        A a data last-words
        A gone
        B gone
        E a data too-late
        harness A2 env r1
        ",
        "
        E: a resume, a last-words, a reset harness_disconnected
        A2: 
        ",
    );
}

#[test]
fn a_stream_id_can_be_reused_once_the_executor_has_the_reset() {
    check(
        "
        executor E env r1 1
        harness A env r1
        A a resume
        A gone
        harness B env r1
        B a resume
        read E
        harness C env r1
        C a resume
        ",
        "
        E: a resume, a reset harness_disconnected, a resume
        B: closed 1008 stream_taken
        C: 
        ",
    );
}

#[test]
fn harnesses_of_a_closed_executor_get_its_frames_and_are_closed() {
    check(
        "
        executor E env r1 1
        harness A env r1
        harness B env r1
        A a resume
        E a data last
        E gone
        harness C env r1
        ",
        "
        A: a last, closed 1012 executor_gone
        B: closed 1012 executor_gone
        C: refused, no executor is attached
        ",
    );
}

#[test]
fn only_a_newer_executor_replaces_another() {
    check(
        "
        executor E env r1 1
        harness A env r1
        A a resume
        executor F env r2 2
        executor G env r1 1
        harness B env r1
        harness C env r2
        C a resume
        E a data late
        E gone
        executor H env r2 2
        ",
        "
        F: closed 1008 superseded
        G: refused, the registration is not current
        H: 
        A: closed 1012 executor_gone
        B: refused, the registration is not current
        C: closed 1012 executor_gone
        ",
    );
}

#[test]
fn a_newer_registration_closes_the_executor_before_the_next_attaches() {
    check(
        "
        executor E env r1 1
        supersede env 1
        harness A env r1
        supersede env 2
        harness B env r1
        executor F env r2 2
        ",
        "
        E: closed 1008 superseded
        F: 
        A: closed 1012 executor_gone
        B: refused, no executor is attached
        ",
    );
}

#[test]
fn a_harness_is_closed_after_the_executors_reset() {
    check(
        "
        executor E env r1 1
        harness A env r1
        A a resume
        E a data x
        E a reset over
        A a data late
        ",
        "
        E: a resume, a reset harness_disconnected
        A: a x, a reset over, closed 1000 stream_ended
        ",
    );
}

#[test]
fn a_second_handshake_closes_the_harness() {
    check(
        "
        executor E env r1 1
        harness A env r1
        A a handshake
        A a handshake
        ",
        "
        E: a handshake, a reset harness_disconnected
        A: closed 1008 second_handshake
        ",
    );
}

#[test]
fn an_invalid_frame_closes_a_harness_and_is_ignored_from_an_executor() {
    check(
        "
        executor E env r1 1
        harness A env r1
        harness B env r1
        harness C env r1
        A raw 3
        B raw 262145
        C text
        E raw 3
        ",
        "
        E: 
        A: closed 1002 not_a_frame
        B: closed 1009 message_too_big
        C: closed 1003 text_message
        ",
    );
}

#[test]
fn an_unknown_body_is_forwarded() {
    check(
        "
        executor E env r1 1
        harness A env r1
        A a unknown
        A a handshake
        A a empty-data
        E a unknown
        E a broken-data
        ",
        "
        E: a unread 13, a handshake, a unread 5
        A: a unread 13, a unread 5
        ",
    );
}

#[test]
fn environments_and_tokens_have_stream_limits() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    board.attach_executor(now, ticket("env", "r1", "executor"), 1).unwrap();
    let mut attach =
        |token: &str, max| board.attach_harness(now, ticket("env", "r1", token), max).map(|_| ());
    assert_eq!(attach("one", Some(1)), Ok(()));
    assert_eq!(attach("one", Some(1)), Err(AttachError::TokenFull));
    for _ in 1..LIMITS.streams_per_environment {
        assert_eq!(attach("many", None), Ok(()));
    }
    assert_eq!(attach("many", None), Err(AttachError::Full));
    assert!(board.presence("env").unwrap().is_full);
}

#[test]
fn an_ended_token_closes_only_its_own_sockets() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "executor"), 1).unwrap();
    let one = board.attach_harness(now, ticket("env", "r1", "one"), None).unwrap();
    let two = board.attach_harness(now, ticket("env", "r1", "two"), None).unwrap();
    board.end_tokens(&BTreeMap::from([("one".to_owned(), CloseReason::Revoked)]));
    assert_eq!(board.poll_close_reason(one), Some(CloseReason::Revoked));
    assert_eq!((board.poll_close_reason(two), board.poll_close_reason(executor)), (None, None));
    board.end_tokens(&BTreeMap::from([("executor".to_owned(), CloseReason::Expired)]));
    assert_eq!(board.poll_close_reason(executor), Some(CloseReason::Expired));
    assert_eq!(board.poll_close_reason(two), Some(CloseReason::ExecutorGone));
}

#[test]
fn a_harness_that_claims_no_stream_in_time_is_closed() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harness = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    board.handle_timeout(now + LIMITS.claim, harness);
    assert_eq!(board.poll_close_reason(harness), Some(CloseReason::Silent));
}

const LIMITS: SwitchboardLimits = SwitchboardLimits {
    streams_per_environment: 6,
    claim: Duration::from_secs(10),
    slow_timeout: Duration::from_secs(5),
};

/// A budget so large that shares do not change.
fn ample() -> Arc<BufferBudget> {
    BufferBudget::new(usize::MAX / 2)
}

fn ticket(environment: &str, registration: &str, token: &str) -> Ticket {
    Ticket {
        environment: environment.into(),
        registration: registration.into(),
        token: token.into(),
    }
}

fn frame(stream: &str, body: RelayBody) -> Bytes {
    RelayFrame::new(stream, body).encode().into()
}

fn data(stream: &str, size: usize) -> Bytes {
    let payload = vec![b'x'; size].into();
    let data = RelayData { seq: 0, segment_index: 0, segment_count: 1, payload };
    frame(stream, RelayBody::Data(data))
}

/// A frame of version 1 whose body has this number and these bytes.
fn frame_with_body(stream: &str, tag: u8, body: &[u8]) -> Bytes {
    let mut bytes = vec![0x08, 1, 0x12, stream.len() as u8];
    bytes.extend_from_slice(stream.as_bytes());
    bytes.extend_from_slice(&[tag << 3 | 2, body.len() as u8]);
    bytes.extend_from_slice(body);
    bytes.into()
}

fn describe(bytes: Bytes) -> String {
    let Ok(RelayFrame { stream_id, body, .. }) = RelayFrame::decode(bytes.clone()) else {
        let stream_id = RelayHeader::decode(bytes.clone()).unwrap().stream_id;
        return format!("{stream_id} unread {}", bytes[4 + stream_id.len()] >> 3);
    };
    match body {
        RelayBody::Data(data) => format!("{stream_id} {}", String::from_utf8_lossy(&data.payload)),
        RelayBody::Reset { reason } => format!("{stream_id} reset {reason}"),
        RelayBody::Resume { .. } => format!("{stream_id} resume"),
        RelayBody::Handshake(_) => format!("{stream_id} handshake"),
        body => format!("{stream_id} {body:?}"),
    }
}

/// Runs a script and compares what each socket received; executors first, in the order of their attachment.
fn check(script: &str, expected: &str) {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let mut sockets: Vec<(String, bool, Result<SocketId, AttachError>)> = Vec::new();
    let mut got: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut read = |board: &mut Switchboard, name: &str, id: SocketId| {
        while let Some(frame) = board.poll_frame(id) {
            got.entry(name.to_owned()).or_default().push(describe(frame));
        }
    };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let id_of = |name: &str, sockets: &[(String, bool, Result<SocketId, AttachError>)]| {
            sockets.iter().find(|(known, ..)| known == name).unwrap().2.unwrap()
        };
        match words[..] {
            ["executor", name, env, registration, generation] => {
                let ticket = ticket(env, registration, "t");
                let id = board.attach_executor(now, ticket, generation.parse().unwrap());
                sockets.push((name.into(), true, id));
            }
            ["harness", name, env, registration] => {
                let id = board.attach_harness(now, ticket(env, registration, "t"), None);
                sockets.push((name.into(), false, id));
            }
            ["supersede", env, generation] => board.supersede(env, generation.parse().unwrap()),
            ["read", name] => read(&mut board, name, id_of(name, &sockets)),
            [name, "gone"] => {
                let id = id_of(name, &sockets);
                board.handle_gone(id);
                sockets.retain(|(known, ..)| known != name);
            }
            [name, "text"] => board.handle_misuse(id_of(name, &sockets), CloseReason::Text),
            [name, "raw", length] => {
                let bytes = vec![0xff; length.parse().unwrap()];
                board.handle_frame(now, id_of(name, &sockets), bytes.into());
            }
            [name, stream, ref rest @ ..] => {
                let body = match rest {
                    ["unknown"] | ["empty-data"] | ["broken-data"] => {
                        let bytes = match rest[0] {
                            "unknown" => frame_with_body(stream, 13, b"what may come"),
                            "empty-data" => frame_with_body(stream, 5, b""),
                            _ => frame_with_body(stream, 5, &[0xff]),
                        };
                        board.handle_frame(now, id_of(name, &sockets), bytes);
                        continue;
                    }
                    ["resume"] => RelayBody::Resume { next_seq: 0 },
                    ["handshake"] => RelayBody::Handshake(Bytes::from_static(b"hello")),
                    ["reset", reason] => RelayBody::Reset { reason: (*reason).into() },
                    ["data", text] => RelayBody::Data(RelayData {
                        seq: 0,
                        segment_index: 0,
                        segment_count: 1,
                        payload: text.as_bytes().to_vec().into(),
                    }),
                    _ => panic!("{line}"),
                };
                board.handle_frame(now, id_of(name, &sockets), frame(stream, body));
            }
            _ => panic!("{line}"),
        }
    }
    for (name, _, id) in &sockets {
        if let Ok(id) = id {
            read(&mut board, name, *id);
        }
    }
    sockets.sort_by_key(|(_, is_executor, _)| !is_executor);
    let mut lines = String::new();
    for (name, _, id) in sockets {
        let mut said = got.remove(&name).unwrap_or_default();
        match id {
            Err(error) => said.push(format!("refused, {error}")),
            Ok(id) => {
                let close_reason = board.poll_close_reason(id);
                said.extend(close_reason.map(|it| format!("closed {} {}", it.code(), it.reason())));
            }
        }
        lines.push_str(&format!("{name}: {}\n", said.join(", ")));
    }
    let expected: Vec<_> =
        expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    assert_eq!(lines, expected);
}
