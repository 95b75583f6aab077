mod anything;
mod recordings;

use std::sync::LazyLock;

use crate::registry_types::{ConnectResponse, SECURITY_PROFILE};
use proptest::prelude::*;

use super::*;
use crate::framing::WINDOW_BYTES;
use crate::handshake_limit::{COOLDOWN, FAILURES_BEFORE_COOLDOWN, MAX_PENDING, MAX_STREAMS};
use crate::harness_stream::HarnessStream;
use crate::noise::SystemRandom;

#[test]
fn an_allowed_harness_exchanges_messages() {
    let mut link = Link::new();
    let stream = link.open("s1");
    link.harness("s1").send(Bytes::from_static(b"{\"id\":1}")).unwrap();
    link.carry();
    assert_eq!(link.outputs(), [message(stream, b"{\"id\":1}")]);
    link.mux.send(stream, Bytes::from_static(b"{}")).unwrap();
    link.carry();
    assert_eq!(link.received("s1"), [b"{}"]);
}

#[test]
fn messages_queued_before_the_answer_are_sent_after_it() {
    let mut link = Link::new();
    link.start("s1");
    link.harness("s1").send(Bytes::from_static(b"early")).unwrap();
    link.carry();
    let [MuxOutput::Validate { stream, .. }] = link.outputs()[..] else { panic!() };
    link.mux.handle_validated(link.now, stream, Verdict::Allowed);
    link.carry();
    assert!(matches!(link.outputs()[..], [MuxOutput::Opened { .. }, MuxOutput::Message { .. }]));
}

#[test]
fn a_stream_opens_only_if_the_registry_allows_it() {
    let mut link = Link::new();
    link.start("s1");
    link.carry();
    let [MuxOutput::Validate { stream, .. }] = link.outputs()[..] else { panic!() };
    assert!(!link.harness("s1").is_open());
    link.mux.handle_validated(link.now, stream, Verdict::Refused);
    link.carry();
    assert_eq!(link.ended("s1"), Some(reset()));
    assert_eq!(link.outputs(), [refused("s1", Refusal::Refused)]);
}

#[test]
fn a_late_answer_does_not_open_a_new_stream_with_the_same_id() {
    let mut link = Link::new();
    link.start("s1");
    link.carry();
    let [MuxOutput::Validate { stream: first, .. }] = link.outputs()[..] else { panic!() };
    link.inject("s1", RelayBody::Reset { reason: "harness_disconnected".into() });
    link.start("s1");
    link.carry();
    let [MuxOutput::Validate { stream: second, .. }] = link.outputs()[..] else { panic!() };
    assert_ne!(first, second);
    link.mux.handle_validated(link.now, first, Verdict::Allowed);
    link.carry();
    assert!(!link.harness("s1").is_open());
    link.mux.handle_validated(link.now, second, Verdict::Allowed);
    link.carry();
    assert!(link.harness("s1").is_open());
}

#[test]
fn data_without_a_stream_is_answered_with_a_reset() {
    let mut link = Link::new();
    link.inject("s1", data(0));
    assert_eq!(link.sent(), [("s1".to_owned(), reset_body())]);
}

#[test]
fn a_second_frame_while_the_registry_is_asked_ends_the_attempt() {
    for second in [data(0), RelayBody::Handshake(Bytes::from_static(b"again"))] {
        let mut link = Link::new();
        link.start("s1");
        link.carry();
        let [MuxOutput::Validate { stream, .. }] = link.outputs()[..] else { panic!() };
        link.inject("s1", second);
        link.mux.handle_validated(link.now, stream, Verdict::Allowed);
        assert_eq!(link.sent(), [("s1".to_owned(), reset_body())]);
        assert_eq!(link.outputs(), [refused("s1", Refusal::EarlyFrame)]);
    }
}

#[test]
fn a_second_handshake_ends_an_open_stream_on_both_sides() {
    let mut link = Link::new();
    let stream = link.open("s1");
    link.inject("s1", RelayBody::Handshake(Bytes::from_static(b"again")));
    link.carry();
    let why = StreamError::Unexpected("handshake");
    assert_eq!(link.outputs(), [MuxOutput::Ended { stream, why }]);
    assert_eq!(link.ended("s1"), Some(reset()));
}

#[test]
fn a_reset_ends_one_stream_and_no_other() {
    let mut link = Link::new();
    let (first, second) = (link.open("s1"), link.open("s2"));
    link.inject("s1", RelayBody::Reset { reason: "gone".into() });
    let why = StreamError::Reset { reason: "gone".into() };
    assert_eq!(link.outputs(), [MuxOutput::Ended { stream: first, why }]);
    assert_eq!(link.sent(), []);
    link.mux.send(first, Bytes::from_static(b"dropped")).unwrap();
    link.mux.send(second, Bytes::from_static(b"here")).unwrap();
    link.carry();
    assert_eq!(link.received("s2"), [b"here"]);
    assert_eq!(link.received("s1"), [b""; 0]);
}

#[test]
fn a_cooldown_refuses_new_handshakes_and_keeps_open_streams() {
    let mut link = Link::new();
    let stream = link.open("old");
    for at in 0..FAILURES_BEFORE_COOLDOWN {
        link.inject(&format!("bad{at}"), RelayBody::Handshake(Bytes::from_static(b"nonsense")));
    }
    assert_eq!(link.sent().len(), FAILURES_BEFORE_COOLDOWN as usize);
    assert_eq!(link.outputs()[7], refused("bad7", Refusal::BadHandshake));
    link.start("new");
    link.carry();
    assert_eq!(link.ended("new"), Some(reset()));
    assert_eq!(link.outputs(), [refused("new", Refusal::Cooldown)]);
    link.mux.send(stream, Bytes::from_static(b"still here")).unwrap();
    link.carry();
    assert_eq!(link.received("old"), [b"still here"]);

    link.now += COOLDOWN;
    link.open("newer");
}

#[test]
fn pending_validations_are_limited() {
    let mut link = Link::new();
    for at in 0..=MAX_PENDING {
        link.start(&format!("s{at:02}"));
    }
    link.carry();
    let outputs = link.outputs();
    assert_eq!(outputs.len(), MAX_PENDING + 1);
    assert_eq!(outputs[MAX_PENDING], refused("s32", Refusal::TooManyPending));
    assert_eq!(link.harnesses.values().filter(|harness| harness.why.is_some()).count(), 1);
}

#[test]
fn a_validation_counts_until_it_is_answered_even_if_its_stream_has_ended() {
    let mut link = Link::new();
    let mut asked = Vec::new();
    for at in 0..MAX_PENDING {
        link.start(&format!("s{at}"));
        link.carry();
        let [MuxOutput::Validate { stream, .. }] = link.outputs()[..] else { panic!() };
        asked.push(stream);
        link.inject(&format!("s{at}"), RelayBody::Reset { reason: "gone".into() });
    }
    link.start("more");
    link.carry();
    assert_eq!(link.outputs(), [refused("more", Refusal::TooManyPending)]);
    link.mux.handle_validated(link.now, asked[0], Verdict::Unknown);
    assert_eq!(link.outputs(), [], "the stream has ended");
    link.open("again");
}

#[test]
fn pending_streams_count_towards_the_stream_limit() {
    let mut link = Link::new();
    for at in 0..MAX_STREAMS - 1 {
        link.open(&format!("s{at}"));
    }
    // One stream is left, and the first of these two holds it while its validation is pending.
    for id in ["first", "second"] {
        link.start(id);
        link.carry();
    }
    let [MuxOutput::Validate { stream, .. }, ref second] = link.outputs()[..] else { panic!() };
    assert_eq!(*second, refused("second", Refusal::TooManyStreams));
    link.mux.handle_validated(link.now, stream, Verdict::Allowed);
    // Refusals by the stream limit do not lead to a cooldown.
    for at in 0..2 * FAILURES_BEFORE_COOLDOWN {
        link.start(&format!("late{at}"));
    }
    link.carry();
    link.outputs();
    link.mux.close(stream);
    link.open("later");
}

#[test]
fn streams_take_turns() {
    let mut link = Link::new();
    let (large, small) = (link.open("large"), link.open("small"));
    link.mux.send(large, Bytes::from(vec![0; 1 << 20])).unwrap();
    link.mux.send(small, Bytes::from_static(b"quick")).unwrap();
    let order: Vec<String> = link.sent().into_iter().map(|(id, _)| id).collect();
    assert_eq!(order[..3], ["large", "small", "large"]);
    assert_eq!(link.mux.queued_bytes(large), 0);
}

#[test]
fn a_slow_harness_holds_back_its_own_stream_only() {
    let mut link = Link::new();
    let (slow, quick) = (link.open("slow"), link.open("quick"));
    // The harness acknowledges the first message, which turns the window on.
    link.mux.send(slow, Bytes::from_static(b"hello")).unwrap();
    link.carry();
    link.carry();
    link.mux.send(slow, Bytes::from(vec![0; 4 * WINDOW_BYTES])).unwrap();
    let held_up: usize = link.sent().len();
    assert!(held_up <= WINDOW_BYTES / (60 << 10) + 1);
    link.mux.send(quick, Bytes::from_static(b"here")).unwrap();
    link.carry();
    assert_eq!(link.received("quick"), [b"here"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// A relay can end a stream, but forged or modified frames never yield a message.
    #[test]
    fn a_hostile_relay_gets_nothing_accepted(
        acts in prop::collection::vec((0..6u8, any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut link = Link::new();
        let stream = link.open("s1");
        for at in 0..6 {
            link.harness("s1").send(Bytes::from(vec![b'a' + at; 9])).unwrap();
        }
        let mut frames: Vec<Bytes> = link.frames_of("s1");
        for (act, index, value) in acts {
            if frames.is_empty() {
                break;
            }
            let at = index.index(frames.len());
            match act {
                0 => { frames.remove(at); }
                1 => { let copy = frames[at].clone(); frames.push(copy); }
                2 => { let other = usize::from(value) % frames.len(); frames.swap(at, other); }
                3 => { let cut = usize::from(value) % (frames[at].len() + 1); frames[at].truncate(cut); }
                4 if !frames[at].is_empty() => {
                    let mut bytes = frames[at].to_vec();
                    let place = usize::from(value) % bytes.len();
                    bytes[place] ^= 0x41;
                    frames[at] = bytes.into();
                }
                _ => frames.insert(at, RelayFrame::new("s1", data(u32::from(value))).encode().into()),
            }
        }
        for frame in frames {
            link.mux.handle_frame(link.now, frame);
        }
        let mut expected = (0..6u8).map(|at| Bytes::from(vec![b'a' + at; 9]));
        for output in link.outputs() {
            match output {
                MuxOutput::Message { message, .. } => prop_assert_eq!(Some(message), expected.next()),
                MuxOutput::Ended { stream: ended, .. } => prop_assert_eq!(ended, stream),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

/// An executor and its harnesses, connected by a relay that forwards every frame.
struct Link {
    mux: Mux<SystemRandom>,
    harnesses: BTreeMap<String, Harness>,
    now: Instant,
}

struct Harness {
    stream: HarnessStream<SystemRandom>,
    received: Vec<Vec<u8>>,
    why: Option<StreamError>,
}

// Shared because key generation is slow.
static EXECUTOR: LazyLock<Identity> = LazyLock::new(|| Identity::generate(&mut SystemRandom));
static HARNESS: LazyLock<Identity> = LazyLock::new(|| Identity::generate(&mut SystemRandom));

impl Link {
    fn new() -> Self {
        let mux = Mux::new(EXECUTOR.clone(), "env".into(), "registration".into());
        Self { mux, harnesses: BTreeMap::new(), now: Instant::now() }
    }

    fn start(&mut self, stream_id: &str) {
        let route = ConnectResponse {
            environment_id: "env".into(),
            url: "ws://relay".into(),
            security_profile: SECURITY_PROFILE.into(),
            executor_registration_id: "registration".into(),
            executor_public_key: EXECUTOR.public_key(),
            harness_key_authorization: "authorization".into(),
        };
        let stream =
            HarnessStream::new(stream_id.into(), &HARNESS, &route, &route.executor_public_key);
        let harness = Harness { stream: stream.unwrap(), received: Vec::new(), why: None };
        self.harnesses.insert(stream_id.into(), harness);
    }

    fn open(&mut self, stream_id: &str) -> StreamKey {
        self.start(stream_id);
        self.carry();
        let [MuxOutput::Validate { stream, .. }] = self.outputs()[..] else { panic!() };
        self.mux.handle_validated(self.now, stream, Verdict::Allowed);
        self.carry();
        assert!(matches!(self.outputs()[..], [MuxOutput::Opened { .. }]));
        assert!(self.harness(stream_id).is_open());
        stream
    }

    /// Delivers all frames in both directions until no open harness has queued messages.
    fn carry(&mut self) {
        let ids: Vec<String> = self.harnesses.keys().cloned().collect();
        for id in &ids {
            for frame in self.frames_of(id) {
                self.mux.handle_frame(self.now, frame);
            }
        }
        while let Some(frame) = self.mux.poll_frame() {
            let frame = Bytes::from(frame);
            let id = RelayFrame::decode(frame.clone()).unwrap().stream_id;
            let Some(harness) = self.harnesses.get_mut(&id) else { continue };
            let Harness { stream, received, why } = harness;
            if let Err(error) =
                stream.handle_frame(frame, |message| received.push(message.to_vec()))
            {
                why.get_or_insert(error);
            }
        }
        if ids.iter().any(|id| {
            self.harnesses[id].stream.queued_bytes() > 0 && self.harnesses[id].stream.is_open()
        }) {
            self.carry();
        }
    }

    fn frames_of(&mut self, id: &str) -> Vec<Bytes> {
        let stream = self.harness(id);
        std::iter::from_fn(|| stream.poll_frame().unwrap()).map(Bytes::from).collect()
    }

    fn inject(&mut self, stream_id: &str, body: RelayBody) {
        self.mux.handle_frame(self.now, RelayFrame::new(stream_id, body).encode().into());
    }

    fn sent(&mut self) -> Vec<(String, RelayBody)> {
        let frames = std::iter::from_fn(|| self.mux.poll_frame());
        let decoded = frames.map(|frame| RelayFrame::decode(frame.into()).unwrap());
        decoded.map(|frame| (frame.stream_id, frame.body)).collect()
    }

    fn outputs(&mut self) -> Vec<MuxOutput> {
        std::iter::from_fn(|| self.mux.poll_output()).collect()
    }

    fn harness(&mut self, id: &str) -> &mut HarnessStream<SystemRandom> {
        &mut self.harnesses.get_mut(id).unwrap().stream
    }

    fn received(&self, id: &str) -> &[Vec<u8>] {
        &self.harnesses[id].received
    }

    fn ended(&self, id: &str) -> Option<StreamError> {
        self.harnesses[id].why.clone()
    }
}

fn message(stream: StreamKey, text: &'static [u8]) -> MuxOutput {
    MuxOutput::Message { stream, message: Bytes::from_static(text) }
}

fn refused(stream_id: &str, why: Refusal) -> MuxOutput {
    MuxOutput::Refused { stream_id: stream_id.to_owned(), why }
}

fn data(seq: u32) -> RelayBody {
    let payload = Bytes::from_static(&[7; 40]);
    RelayBody::Data(RelayData { seq, segment_index: 0, segment_count: 1, payload })
}

fn reset_body() -> RelayBody {
    RelayBody::Reset { reason: RESET_PROTOCOL_ERROR.into() }
}

fn reset() -> StreamError {
    StreamError::Reset { reason: RESET_PROTOCOL_ERROR.into() }
}
