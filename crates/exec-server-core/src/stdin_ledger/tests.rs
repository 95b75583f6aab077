use proptest::prelude::*;

use super::*;

const ACCEPTED: Answer = Answer::Status(WriteStatus::Accepted);
const CLOSED: Answer = Answer::Status(WriteStatus::StdinClosed);

fn full() -> StdinLedger<u32> {
    let mut ledger = StdinLedger::new(true);
    let answer = ledger.handle_write(0, Some("0".into()), vec![0; MAX_QUEUED_STDIN_BYTES]);
    assert_eq!(answer, Some((0, ACCEPTED)));
    ledger
}

fn drain(ledger: &mut StdinLedger<u32>) -> (Vec<u8>, Vec<(u32, Answer)>) {
    let mut bytes = Vec::new();
    let mut answers = Vec::new();
    while let Some(pending) = ledger.pending() {
        let count = pending.len();
        bytes.extend_from_slice(pending);
        ledger.handle_taken(count, |ticket, answer| answers.push((ticket, answer)));
    }
    (bytes, answers)
}

#[test]
fn a_repeated_write_id_is_accepted_and_applied_once() {
    let mut ledger = StdinLedger::new(true);
    assert_eq!(ledger.handle_write(1, Some("a".into()), b"x".to_vec()), Some((1, ACCEPTED)));
    assert_eq!(ledger.handle_write(2, Some("a".into()), b"other".to_vec()), Some((2, ACCEPTED)));
    assert_eq!(ledger.handle_write(3, None, b"y".to_vec()), Some((3, ACCEPTED)));
    assert_eq!(ledger.handle_write(4, None, b"y".to_vec()), Some((4, ACCEPTED)));
    assert_eq!(drain(&mut ledger).0, b"xyy");
}

#[test]
fn the_oldest_of_4097_ids_is_forgotten() {
    let mut ledger = StdinLedger::new(true);
    for n in 0..=REMEMBERED_WRITE_IDS {
        ledger.handle_write(0, Some(n.to_string()), b"x".to_vec());
    }
    let before = ledger.queued_bytes;
    ledger.handle_write(0, Some("1".into()), b"x".to_vec());
    assert_eq!(ledger.queued_bytes, before, "the second is still known");
    ledger.handle_write(0, Some("0".into()), b"x".to_vec());
    assert_eq!(ledger.queued_bytes, before + 1, "the first is not");
}

#[test]
fn a_slow_child_makes_writers_wait_in_order() {
    let mut ledger = full();
    assert_eq!(ledger.handle_write(1, Some("1".into()), b"a".to_vec()), None);
    assert_eq!(
        ledger.handle_write(2, Some("1".into()), b"a".to_vec()),
        None,
        "its first copy still waits"
    );
    assert_eq!(ledger.handle_write(3, Some("0".into()), b"!".to_vec()), Some((3, ACCEPTED)));
    assert_eq!(ledger.handle_close(4), None);
    assert_eq!(ledger.handle_write(5, None, b"late".to_vec()), None);
    let (bytes, answers) = drain(&mut ledger);
    assert_eq!(&bytes[MAX_QUEUED_STDIN_BYTES..], b"a");
    assert_eq!(answers, [(1, ACCEPTED), (2, ACCEPTED), (4, ACCEPTED), (5, CLOSED)]);
    assert!(ledger.is_closed());
}

#[test]
fn close_waits_for_earlier_writes() {
    let mut ledger = StdinLedger::new(true);
    ledger.handle_write(1, None, b"abc".to_vec());
    assert_eq!(ledger.handle_close(2), Some((2, ACCEPTED)));
    assert!(!ledger.is_closed());
    assert_eq!(ledger.handle_write(3, None, b"d".to_vec()), Some((3, CLOSED)));
    assert_eq!(ledger.handle_close(4), Some((4, CLOSED)));
    assert_eq!(drain(&mut ledger).0, b"abc");
    assert!(ledger.is_closed());
}

#[test]
fn waiting_writers_are_answered_when_the_child_has_exited() {
    let mut ledger = full();
    ledger.handle_write(1, None, b"a".to_vec());
    let mut answers = Vec::new();
    ledger.close_now(|ticket, answer| answers.push((ticket, answer)));
    assert_eq!(answers, [(1, CLOSED)]);
    assert_eq!(ledger.pending(), None);
    assert_eq!(
        ledger.handle_write(2, Some("0".into()), vec![]),
        Some((2, ACCEPTED)),
        "it was accepted once"
    );
    assert_eq!(ledger.handle_write(3, None, vec![]), Some((3, CLOSED)));
}

#[test]
fn waiting_writes_are_bounded() {
    let mut ledger = full();
    assert_eq!(ledger.handle_write(1, None, vec![0; MAX_WAITING_STDIN_BYTES]), None);
    assert_eq!(ledger.handle_write(2, None, vec![0]), Some((2, Answer::Overloaded)));
    let mut ledger = full();
    for ticket in 0..MAX_WAITING_STDIN_WRITES as u32 {
        assert_eq!(ledger.handle_write(ticket, None, vec![]), None);
    }
    assert_eq!(ledger.handle_write(9, None, vec![]), Some((9, Answer::Overloaded)));
}

proptest! {
    #[test]
    fn bytes_arrive_once_and_in_order(
        writes in proptest::collection::vec((0usize..600_000, 0usize..900_000, 0u8..20), 1..60)
    ) {
        let mut ledger = StdinLedger::new(true);
        let (mut expected, mut got, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for (ticket, (len, take, id)) in writes.into_iter().enumerate() {
            let bytes = vec![ticket as u8; len];
            if seen.insert(id) {
                expected.extend_from_slice(&bytes);
            }
            ledger.handle_write(ticket as u32, Some(id.to_string()), bytes);
            if let Some(pending) = ledger.pending() {
                let take = take.min(pending.len());
                got.extend_from_slice(&pending[..take]);
                ledger.handle_taken(take, |_, _| {});
            }
        }
        got.extend(drain(&mut ledger).0);
        prop_assert_eq!(got, expected);
    }
}
