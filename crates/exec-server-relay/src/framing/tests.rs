use crate::frame::{RelayBody, RelayFrame};
use proptest::prelude::*;

use super::*;
use crate::noise::records::RecordError;

#[test]
fn a_message_of_any_length_arrives() {
    for length in [1, 61_436, 61_437, 61_440, 200_000, 3 << 20] {
        let (mut out, mut inbound) = pair();
        let message = Bytes::from((0..length).map(|at| at as u8).collect::<Vec<_>>());
        out.send(message.clone()).unwrap();
        assert_eq!(out.queued_bytes(), length);
        let frames = frames(&mut out);
        assert_eq!(frames.len(), (length + LENGTH_BYTES).div_ceil(MAX_PLAINTEXT_BYTES));
        assert_eq!(out.queued_bytes(), 0);
        assert_eq!(feed(&mut inbound, frames), Ok(vec![message]));
    }
}

#[test]
fn a_bad_length_is_rejected_before_the_message_arrives() {
    let (mut out, _) = pair();
    assert_eq!(out.send(Bytes::new()), Err(StreamError::MessageLength));
    let huge = Bytes::from(vec![0; MAX_MESSAGE_BYTES + 1]);
    assert_eq!(out.send(huge), Err(StreamError::MessageLength));
    for length in [0, MAX_MESSAGE_BYTES as u32 + 1, u32::MAX] {
        let (mut sealer, mut inbound) = raw_pair();
        let record = record(&mut sealer, 0, &length.to_be_bytes());
        assert_eq!(feed(&mut inbound, [record]), Err(StreamError::MessageLength));
    }
}

#[test]
fn a_modified_or_replayed_record_is_rejected() {
    let (mut sealer, mut inbound) = raw_pair();
    let mut changed = record(&mut sealer, 0, b"\0\0\0\x01a");
    changed.payload = changed.payload.iter().map(|byte| byte ^ 1).collect();
    let error = StreamError::Record(RecordError::NotAuthentic);
    assert_eq!(feed(&mut inbound, [changed]), Err(error.clone()));

    let (mut sealer, mut inbound) = raw_pair();
    let first = record(&mut sealer, 0, b"\0\0\0\x01a");
    let again = RelayData { seq: 1, ..first.clone() };
    assert_eq!(feed(&mut inbound, [first]), Ok(vec![Bytes::from_static(b"a")]));
    assert_eq!(feed(&mut inbound, [again]), Err(error));
}

#[test]
fn a_peer_may_number_its_records_from_one() {
    let (mut sealer, mut inbound) = raw_pair();
    let mut next = |seq: u32, text: u8| record(&mut sealer, seq, &[0, 0, 0, 1, text]);
    let records = [next(1, b'a'), next(2, b'b'), next(3, b'c')];
    let [one, two, three] = records;
    assert_eq!(feed(&mut inbound, [one.clone()]), Ok(vec![Bytes::from_static(b"a")]));
    assert_eq!(inbound.take_ack(), Ack { through: 1, bits: 0 });
    assert_eq!(feed(&mut inbound, [three, one]), Ok(vec![]));
    assert_eq!(inbound.take_ack(), Ack { through: 1, bits: 0b10 });
    let rest = [Bytes::from_static(b"b"), Bytes::from_static(b"c")];
    assert_eq!(feed(&mut inbound, [two]), Ok(rest.to_vec()));

    // In segments, and with the second record ahead of the first.
    let (mut sealer, mut inbound) = raw_pair();
    let whole = record(&mut sealer, 1, b"\0\0\0\x01a");
    let second = record(&mut sealer, 2, b"\0\0\0\x01b");
    let part = |index: u32, payload: Bytes| RelayData {
        segment_index: index,
        segment_count: 2,
        payload,
        seq: 1,
    };
    let parts = [part(1, whole.payload.slice(9..)), part(0, whole.payload.slice(..9))];
    assert_eq!(feed(&mut inbound, [second]), Ok(vec![]));
    let both = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
    assert_eq!(feed(&mut inbound, parts), Ok(both.to_vec()));
}

#[test]
fn record_one_arriving_before_record_zero_keeps_the_numbering() {
    let (mut sealer, mut inbound) = raw_pair();
    let mut next = |seq: u32, text: u8| record(&mut sealer, seq, &[0, 0, 0, 1, text]);
    let [zero, one] = [next(0, b'a'), next(1, b'b')];
    assert_eq!(feed(&mut inbound, [one]), Ok(vec![]));
    assert_eq!(inbound.take_ack(), Ack::default());
    let both = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
    assert_eq!(feed(&mut inbound, [zero]), Ok(both.to_vec()));
}

#[test]
fn a_peer_that_acknowledges_is_sent_no_more_than_a_window() {
    let (mut out, mut inbound) = pair();
    out.handle_ack(Ack::default(), true);
    out.send(Bytes::from(vec![1; 3 * WINDOW_BYTES])).unwrap();
    let first = frames(&mut out);
    let bytes: usize = first.iter().map(|data| data.payload.len()).sum();
    assert!((WINDOW_BYTES..WINDOW_BYTES + (64 << 10)).contains(&bytes));
    assert!(!out.can_send());
    assert_eq!(feed(&mut inbound, first), Ok(Vec::new()));
    assert!(inbound.owes_ack());
    out.handle_ack(inbound.take_ack(), true);
    assert!(!inbound.owes_ack());
    let mut messages = Vec::new();
    while out.can_send() {
        messages.extend(feed(&mut inbound, frames(&mut out)).unwrap());
        out.handle_ack(inbound.take_ack(), false);
    }
    assert_eq!(messages.len(), 1);
}

#[test]
fn a_peer_that_never_acknowledges_has_no_window() {
    let (mut out, _) = pair();
    out.send(Bytes::from(vec![1; 3 * WINDOW_BYTES])).unwrap();
    out.handle_ack(Ack::default(), false);
    let sent: usize = frames(&mut out).iter().map(|data| data.payload.len()).sum();
    assert!(sent > 3 * WINDOW_BYTES);
}

#[test]
fn messages_that_the_owner_has_not_taken_are_not_acknowledged() {
    let (mut out, mut inbound) = pair();
    out.handle_ack(Ack::default(), true);
    let message = Bytes::from(vec![1; UNTAKEN_BYTES + 1]);
    out.send(message.clone()).unwrap();
    assert_eq!(feed(&mut inbound, frames(&mut out)), Ok(vec![message.clone()]));
    assert!(!inbound.owes_ack());
    assert_eq!(inbound.take_ack(), Ack::default());
    inbound.take(message.len());
    assert!(inbound.owes_ack());
    assert!(inbound.take_ack().through > 0);
}

#[test]
fn a_peer_that_ignores_the_window_is_rejected() {
    let (mut out, mut inbound) = pair();
    let mut send = || {
        out.send(Bytes::from(vec![1; WINDOW_BYTES])).unwrap();
        feed(&mut inbound, frames(&mut out))
    };
    let taken = (0..100).take_while(|_| send().is_ok()).count();
    assert_eq!(taken, MAX_UNTAKEN_BYTES / WINDOW_BYTES);
}

proptest! {
    /// Record boundaries need not match message boundaries.
    #[test]
    fn messages_survive_any_record_boundaries(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 1..20),
        cuts in prop::collection::vec(0..400usize, 0..40),
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            stream.extend_from_slice(&(message.len() as u32).to_be_bytes());
            stream.extend_from_slice(message);
        }
        let (mut sealer, mut inbound) = raw_pair();
        let (mut got, mut rest, mut seq) = (Vec::new(), &stream[..], 0);
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (piece, later) = rest.split_at(cut.min(rest.len()));
            rest = later;
            got.extend(feed(&mut inbound, [record(&mut sealer, seq, piece)]).unwrap());
            seq += 1;
        }
        prop_assert_eq!(got, messages);
    }
}

fn pair() -> (Outbound, Inbound) {
    let (sealer, inbound) = raw_pair();
    (Outbound::new(sealer), inbound)
}

fn raw_pair() -> (Sealer, Inbound) {
    (Sealer::new(&[9; 32]), Inbound::new(Opener::new(&[9; 32])))
}

fn record(sealer: &mut Sealer, seq: u32, plain: &[u8]) -> RelayData {
    let mut payload = plain.to_vec();
    sealer.seal(&mut payload, 0).unwrap();
    RelayData { seq, segment_index: 0, segment_count: 1, payload: payload.into() }
}

fn frames(out: &mut Outbound) -> Vec<RelayData> {
    let next = || out.poll_frame("s", Ack::default()).unwrap();
    let data = |frame: Vec<u8>| match RelayFrame::decode(frame.into()).unwrap().body {
        RelayBody::Data(data) => data,
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(next).map(data).collect()
}

fn feed(
    inbound: &mut Inbound,
    records: impl IntoIterator<Item = RelayData>,
) -> Result<Vec<Bytes>, StreamError> {
    let mut messages = Vec::new();
    for record in records {
        inbound.handle_data(record, |message| messages.push(message))?;
    }
    Ok(messages)
}
