//! Feeds random frames and calls to both ends: no panic, and the limits hold.

use crate::frame::Ack;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn random_input_never_panics_either_end(
        acts in prop::collection::vec(
            (0..12u8, 0..3usize, any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)), 1..60),
    ) {
        let mut fuzz = Fuzz { link: Link::new(), asked: Vec::new(), open: Vec::new() };
        for (kind, stream, number, bytes) in acts {
            let id = ["s0", "s1", "s2"][stream];
            let payload = Bytes::from(bytes);
            match body(kind, number, &payload) {
                Some(body) => fuzz.inject(id, body, number, payload),
                None => fuzz.act(kind, id, number, payload),
            }
            fuzz.collect_outputs();
            prop_assert!(fuzz.asked.len() <= MAX_PENDING);
        }
    }
}

/// A body with arbitrary values for the kinds 0 to 6, none for the other kinds.
fn body(kind: u8, number: u32, payload: &Bytes) -> Option<RelayBody> {
    let payload = payload.clone();
    Some(match kind {
        0 => RelayBody::Data(RelayData {
            seq: number % 70,
            segment_index: number % 3,
            segment_count: 1 + number % 4,
            payload,
        }),
        1 => {
            RelayBody::Data(RelayData { seq: number, segment_index: 0, segment_count: 1, payload })
        }
        2 => RelayBody::Handshake(payload),
        3 => RelayBody::Reset { reason: format!("{payload:?}") },
        4 => RelayBody::Resume { next_seq: number },
        5 => RelayBody::Heartbeat,
        6 => RelayBody::Ack,
        _ => return None,
    })
}

struct Fuzz {
    link: Link,
    /// Streams whose validation is pending.
    asked: Vec<StreamKey>,
    open: Vec<StreamKey>,
}

impl Fuzz {
    /// Feeds the same frame to both ends, and then raw bytes to the harness.
    fn inject(&mut self, id: &str, body: RelayBody, number: u32, payload: Bytes) {
        let ack = Ack { through: number, bits: number.rotate_left(7) };
        let frame = Bytes::from(RelayFrame { ack, ..RelayFrame::new(id, body) }.encode());
        self.link.mux.handle_frame(self.link.now, frame.clone());
        if let Some(harness) = self.link.harnesses.get_mut(id) {
            let _ = harness.stream.handle_frame(frame, |_| {});
            let _ = harness.stream.handle_frame(payload, |_| {});
            let _ = harness.stream.poll_frame();
        }
    }

    /// Valid actions of owners and harnesses, raw bytes, or the passing of time.
    fn act(&mut self, kind: u8, id: &str, number: u32, payload: Bytes) {
        let Self { link, asked, open } = self;
        let at = number as usize;
        match kind {
            7 => {
                link.start(id);
                for frame in link.frames_of(id) {
                    link.mux.handle_frame(link.now, frame);
                }
            }
            8 => link.mux.handle_frame(link.now, payload),
            9 if !asked.is_empty() => {
                let key = asked.swap_remove(at % asked.len());
                let verdicts = [Verdict::Allowed, Verdict::Refused, Verdict::Unknown];
                link.mux.handle_validated(link.now, key, verdicts[at % verdicts.len()]);
            }
            10 if !open.is_empty() => {
                let key = open[at % open.len()];
                let _ = link.mux.send(key, payload);
                if number.is_multiple_of(5) {
                    link.mux.close(key);
                }
            }
            _ => link.now += COOLDOWN / 2,
        }
    }

    fn collect_outputs(&mut self) {
        for output in self.link.outputs() {
            match output {
                MuxOutput::Validate { stream, .. } => self.asked.push(stream),
                MuxOutput::Opened { stream, .. } => self.open.push(stream),
                _ => {}
            }
        }
        while self.link.mux.poll_frame().is_some() {}
    }
}
