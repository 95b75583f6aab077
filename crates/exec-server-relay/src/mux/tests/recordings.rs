//! Replays recorded conversations of earlier versions, which this version must still decode.
//!
//! A recording has one line per frame: `h` from the harness or `e` from the executor. Keys and randomness are fixed in
//! this file. Recordings are never changed; a version with different framing adds one.

use exec_server_protocol::hex::encode as hex;

use super::*;
use crate::noise::testing::Scripted;

const RECORDINGS: [&str; 1] = [include_str!("recordings/1.txt")];

const SAID: [&[u8]; 3] = [b"{\"id\":1,\"method\":\"initialize\"}", b"{}", b"{\"method\":\"x\"}"];
const ANSWERED: [&[u8]; 2] = [b"{\"id\":1,\"result\":{}}", b"[1,2,3]"];

#[test]
fn recordings_of_earlier_versions_are_understood() {
    for recording in RECORDINGS {
        let (mut mux, mut stream) = both_ends();
        // The recording contains the opening frames, so the generated ones are discarded.
        while stream.poll_frame().unwrap().is_some() {}
        let (mut said, mut answered) = (Vec::new(), Vec::new());
        for line in recording.lines() {
            let (from, frame) = line.split_once(' ').expect("sender and frame");
            let frame = Bytes::from(unhex(frame));
            if from == "h" {
                mux.handle_frame(Instant::now(), frame);
            } else {
                stream.handle_frame(frame, |message| answered.push(message)).unwrap();
            }
            while let Some(output) = mux.poll_output() {
                match output {
                    MuxOutput::Validate { stream, authorization, .. } => {
                        assert_eq!(authorization, "authorization");
                        Scripted::expect(&EXECUTOR_RANDOMNESS);
                        mux.handle_validated(Instant::now(), stream, Verdict::Allowed);
                    }
                    MuxOutput::Opened { .. } => {}
                    MuxOutput::Message { message, .. } => said.push(message),
                    MuxOutput::Ended { why, .. } => panic!("{why}"),
                    MuxOutput::Refused { why, .. } => panic!("{why}"),
                }
            }
        }
        assert_eq!(
            (said, answered),
            (SAID.map(Bytes::from).into(), ANSWERED.map(Bytes::from).into())
        );
    }
}

/// `cargo test -p exec-server-relay -- --ignored --nocapture record_a_conversation | grep '^[he] '`
#[test]
#[ignore = "prints a recording of this version"]
fn record_a_conversation() {
    let (mut mux, mut stream) = both_ends();
    let mut key = None;
    stream.send(Bytes::from(SAID[0])).unwrap();
    for round in 0..4 {
        while let Some(frame) = stream.poll_frame().unwrap() {
            println!("h {}", hex(&frame));
            mux.handle_frame(Instant::now(), frame.into());
        }
        while let Some(output) = mux.poll_output() {
            if let MuxOutput::Validate { stream, .. } = output {
                Scripted::expect(&EXECUTOR_RANDOMNESS);
                mux.handle_validated(Instant::now(), stream, Verdict::Allowed);
                key = Some(stream);
            }
        }
        if let Some(answer) = ANSWERED.get(round) {
            mux.send(key.unwrap(), Bytes::from(*answer)).unwrap();
        }
        while let Some(frame) = mux.poll_frame() {
            println!("e {}", hex(&frame));
            stream.handle_frame(frame.into(), |_| {}).unwrap();
        }
        if let Some(message) = SAID.get(round + 1) {
            stream.send(Bytes::from(*message)).unwrap();
        }
    }
}

const EXECUTOR_RANDOMNESS: [u8; 5] = [0x41, 0x42, 0x43, 0x44, 0x45];

fn both_ends() -> (Mux<Scripted>, HarnessStream<Scripted>) {
    let harness = Identity::generate(&mut Scripted::expect(&[0x11, 0x12, 0x13]));
    let executor = Identity::generate(&mut Scripted::expect(&[0x21, 0x22, 0x23]));
    let route = ConnectResponse {
        environment_id: "env".into(),
        url: "ws://relay".into(),
        security_profile: SECURITY_PROFILE.into(),
        executor_registration_id: "registration".into(),
        executor_public_key: executor.public_key(),
        harness_key_authorization: "authorization".into(),
    };
    Scripted::expect(&[0x31, 0x32, 0x33, 0x34]);
    let stream = HarnessStream::new("stream".into(), &harness, &route, &route.executor_public_key);
    (Mux::new(executor, "env".into(), "registration".into()), stream.unwrap())
}

fn unhex(text: &str) -> Vec<u8> {
    exec_server_protocol::hex::decode(text).expect("digits")
}
