//! Later protocol versions: records numbered from 1, and unknown bodies.

use exec_server_relay::frame::{RelayBody, RelayFrame};
use exec_server_testkit::Leg;

use super::trust::Fixture;

#[tokio::test]
async fn both_ends_take_records_that_are_numbered_from_one() {
    let fixture = Fixture::start().await;
    // Outgoing records are renumbered from 1, and acknowledgements are mapped back.
    fixture.relay.set_filter(|leg, bytes| {
        let Ok(mut frame) = RelayFrame::decode(bytes.clone()) else { return vec![bytes] };
        match leg {
            Leg::FromHarness | Leg::FromExecutor => {
                if let RelayBody::Data(data) = &mut frame.body {
                    data.seq += 1;
                }
            }
            Leg::ToHarness | Leg::ToExecutor => {
                frame.ack.through = frame.ack.through.saturating_sub(1);
            }
        }
        vec![frame.encode().into()]
    });
    let mut client = fixture.client().await;
    let output = client.sh("count", "seq 1 200000").await.text();
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert!(output == expected, "{} of {} bytes", output.len(), expected.len());
    let mut second = fixture.client().await;
    assert_eq!(second.sh("again", "echo hello").await.text(), "hello\n");
}

#[tokio::test]
async fn a_frame_with_an_unknown_body_passes_the_relay_without_harm() {
    let fixture = Fixture::start().await;
    fixture.relay.set_filter(|leg, bytes| match leg {
        Leg::FromHarness | Leg::FromExecutor => {
            let stream = RelayFrame::decode(bytes.clone()).map(|frame| frame.stream_id);
            let unknown = stream.map(|stream| with_unknown_body(&stream).into());
            [Ok(bytes), unknown].into_iter().flatten().collect()
        }
        _ => vec![bytes],
    });
    let mut client = fixture.client().await;
    assert_eq!(client.sh("p", "seq 1 2000 | tail -1").await.text(), "2000\n");
    for leg in [Leg::ToExecutor, Leg::ToHarness] {
        let captured = fixture.relay.captured();
        let is_unknown =
            |(at, frame): &&(Leg, bytes::Bytes)| *at == leg && frame.ends_with(b"what may come");
        assert!(captured.iter().filter(is_unknown).count() > 1, "{leg:?}");
    }
}

/// A frame of this version and stream with body number 13.
fn with_unknown_body(stream: &str) -> Vec<u8> {
    let body = b"what may come";
    let mut bytes = vec![0x08, 1, 0x12, stream.len() as u8];
    bytes.extend_from_slice(stream.as_bytes());
    bytes.extend_from_slice(&[13 << 3 | 2, body.len() as u8]);
    bytes.extend_from_slice(body);
    bytes
}
