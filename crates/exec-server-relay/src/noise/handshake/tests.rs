use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::noise::SystemRandom;
use crate::noise::cipher::aws_lc::AwsLcCipher;
use crate::noise::cipher::portable::PortableCipher;
use crate::noise::testing::Scripted;

const BINDING: Binding<'static> =
    Binding { environment_id: "env-1", registration_id: "registration-1", stream_id: "stream-1" };

#[test]
fn messages_match_the_peers_test_vectors() {
    check_vectors::<AwsLcCipher>();
}

#[test]
fn messages_match_the_peers_test_vectors_without_c_code() {
    check_vectors::<PortableCipher>();
}

fn check_vectors<C: RecordCipher>() {
    let vectors: Value = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let bytes = |value: &Value| unhex(value.as_str().unwrap());

    let harness = Identity::generate(&mut Scripted::expect(&[0x11, 0x12, 0x13]));
    let executor = Identity::generate(&mut Scripted::expect(&[0x21, 0x22, 0x23]));
    let public = |identity: &Identity| serde_json::to_value(identity.public_key()).unwrap();
    assert_eq!(public(&harness), vectors["harness_pub"]);
    assert_eq!(public(&executor), vectors["executor_pub"]);
    assert_eq!(harness.mlkem768_secret_key(), bytes(&vectors["harness_dk"]));
    assert_eq!(executor.mlkem768_secret_key(), bytes(&vectors["executor_dk"]));
    assert_eq!(BINDING.prologue(), bytes(&vectors["prologue"]));

    Scripted::expect(&[0x31, 0x32, 0x33, 0x34]);
    let (initiator, first) =
        Initiator::<Scripted>::start(&harness, &executor.public_key(), BINDING, "authorization-1")
            .unwrap();
    assert!(Scripted::is_used_up());
    assert_eq!(first, bytes(&vectors["msg1"]));

    let hello = Hello::<Scripted>::read(&executor, BINDING, &first).unwrap();
    assert_eq!(hello.harness, harness.public_key());
    assert_eq!(hello.authorization, "authorization-1");
    Scripted::expect(&[0x41, 0x42, 0x43, 0x44, 0x45]);
    let (second, mut there) = hello.accept_with::<C>().unwrap();
    assert!(Scripted::is_used_up());
    assert_eq!(second, bytes(&vectors["msg2"]));

    let mut here = initiator.finish_with::<C>(&second).unwrap();
    let to_executor: [&[u8]; 2] = [b"\0\0\0\x02{}", b""];
    let to_harness: [&[u8]; 2] = [b"\0\0\0\x02[]", b"hello"];
    exchange(&mut here.sealer, &mut there.opener, to_executor, &vectors["i2r"]);
    exchange(&mut there.sealer, &mut here.opener, to_harness, &vectors["r2i"]);
}

#[test]
fn a_handshake_for_another_key_binding_or_session_is_rejected() {
    let [harness, executor, other] = [(); 3].map(|()| Identity::generate(&mut SystemRandom));
    let start = |to: &Identity, binding| {
        Initiator::<SystemRandom>::start(&harness, &to.public_key(), binding, "a").unwrap()
    };
    let read = |message: &[u8]| {
        Hello::<SystemRandom>::read(&executor, BINDING, message).map(|_| ()).unwrap_err()
    };
    assert_eq!(read(&start(&other, BINDING).1), HandshakeError::NotAuthentic);
    for moved in [
        Binding { environment_id: "env-2", ..BINDING },
        Binding { registration_id: "registration-2", ..BINDING },
        Binding { stream_id: "stream-2", ..BINDING },
    ] {
        assert_eq!(read(&start(&executor, moved).1), HandshakeError::NotAuthentic);
    }

    let (initiator, first) = start(&executor, BINDING);
    let answer = Hello::<SystemRandom>::read(&executor, BINDING, &first).unwrap().accept();
    let second_of_another_handshake = {
        let (_, first) = start(&executor, BINDING);
        Hello::<SystemRandom>::read(&executor, BINDING, &first).unwrap().accept().unwrap().0
    };
    assert!(initiator.finish(&second_of_another_handshake).is_err());
    assert!(answer.is_ok());
}

#[test]
fn a_too_long_authorization_is_rejected_at_both_ends() {
    let [harness, executor] = [(); 2].map(|()| Identity::generate(&mut SystemRandom));
    let start = |text: &str| {
        Initiator::<SystemRandom>::start(&harness, &executor.public_key(), BINDING, text)
    };
    let longest = "x".repeat(MAX_AUTHORIZATION_BYTES);
    let (_, first) = start(&longest).unwrap();
    let hello = Hello::<SystemRandom>::read(&executor, BINDING, &first).unwrap();
    assert_eq!(hello.authorization, longest);
    assert_eq!(start(&format!("{longest}x")).map(|_| ()), Err(HandshakeError::Authorization));
    let too_long = vec![0; MESSAGE_1_OVERHEAD + MAX_AUTHORIZATION_BYTES + 1];
    let read = Hello::<SystemRandom>::read(&executor, BINDING, &too_long).map(|_| ());
    assert_eq!(read, Err(HandshakeError::Authorization));
}

#[test]
fn a_low_order_point_is_rejected() {
    let [harness, executor] = [(); 2].map(|()| Identity::generate(&mut SystemRandom));
    let mut weak = executor.public_key();
    weak.x25519 = [0; 32];
    let started = Initiator::<SystemRandom>::start(&harness, &weak, BINDING, "a").map(|_| ());
    assert_eq!(started, Err(HandshakeError::NotAuthentic));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn modified_or_random_messages_are_rejected(
        mut first in prop::collection::vec(any::<u8>(), 0..9000),
        at in 0..MESSAGE_1_OVERHEAD, bit in 0..8u8,
    ) {
        let [harness, executor] = [(); 2].map(|()| Identity::generate(&mut SystemRandom));
        let read = |message: &[u8]| Hello::<SystemRandom>::read(&executor, BINDING, message).is_err();
        prop_assert!(read(&first));
        let (initiator, good) = Initiator::<SystemRandom>::start(
            &harness, &executor.public_key(), BINDING, "authorization").unwrap();
        let (mut second, _) =
            Hello::<SystemRandom>::read(&executor, BINDING, &good).unwrap().accept().unwrap();
        first.clone_from(&good);
        first[at] ^= 1u8 << bit;
        prop_assert!(read(&first));
        prop_assert!(read(&good[..at]));
        second[at % MESSAGE_2_BYTES] ^= 1u8 << bit;
        prop_assert!(initiator.finish(&second).is_err());
    }
}

fn exchange<C: RecordCipher>(
    sealer: &mut Sealer<C>,
    opener: &mut Opener<C>,
    texts: [&[u8]; 2],
    expected: &Value,
) {
    for (text, expected) in texts.into_iter().zip(expected.as_array().unwrap()) {
        let mut record = text.to_vec();
        sealer.seal(&mut record, 0).unwrap();
        assert_eq!(record, unhex(expected.as_str().unwrap()));
        let mut opened = Vec::new();
        opener.open(&record, &mut opened).unwrap();
        assert_eq!(opened, text);
    }
}

fn unhex(text: &str) -> Vec<u8> {
    exec_server_protocol::hex::decode(text).expect("digits")
}
