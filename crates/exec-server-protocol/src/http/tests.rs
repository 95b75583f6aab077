use serde_json::json;

use super::*;

#[test]
fn a_request_needs_only_method_url_and_id() {
    let raw = r#"{"method":"GET","url":"http://a/","requestId":""}"#;
    assert_eq!(
        params::decode::<HttpRequestParams>(raw),
        Ok(HttpRequestParams::get("", "http://a/"))
    );
    let missing = params::decode::<HttpRequestParams>(r#"{"method":"GET","url":"http://a/"}"#);
    assert_eq!(missing.unwrap_err(), "missing field `requestId`");
    for wrong in [
        json!({"redirectPolicy": null}),
        json!({"redirectPolicy": "sometimes"}),
        json!({"timeoutMs": -1}),
        json!({"timeoutMs": 1.5}),
        json!({"timeoutMs": "1"}),
        json!({"bodyBase64": "?"}),
    ] {
        let mut request = json!({"method": "GET", "url": "http://a/", "requestId": "1"});
        request.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        assert!(params::decode::<HttpRequestParams>(&request.to_string()).is_err(), "{wrong}");
    }
}

#[test]
fn header_values_survive_whatever_their_bytes() {
    let text = HttpResponseHeader::from_bytes("x", "né".as_bytes());
    assert_eq!((text.value.as_str(), text.value_base64), ("né", None));
    let bytes = HttpResponseHeader::from_bytes("x", b"n\xe9");
    assert_eq!(
        (bytes.value.as_str(), bytes.value_base64),
        ("né", Some(Bytes64(b"n\xe9".to_vec())))
    );
}

#[test]
fn the_words_for_errors_are_those_that_are_serialised() {
    for kind in HttpErrorKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), json!(kind.name()));
    }
}

#[test]
fn chunks_of_a_body_are_read_alike_by_both_decoders() {
    for raw in [
        r#"{"requestId":"a","seq":1,"chunk":"aGk="}"#,
        r#"{"done":true,"chunk":"","seq":2,"requestId":"\u0061"}"#,
    ] {
        let fast = HttpRequestBodyParams::decode_fast(raw).expect("the usual form");
        assert_eq!(Ok(fast), params::decode::<HttpRequestBodyParams>(raw));
    }
    let all = HttpRequestBodyParams {
        request_id: "a".to_owned(),
        seq: 3,
        chunk: b"content".to_vec().into(),
        done: true,
    };
    params::tests::check_fast_decoder(&all, HttpRequestBodyParams::decode_fast);
    assert_eq!(
        HttpRequestBodyParams::decode(r#"{"requestId":"a","seq":1,"chunk":"aGk"}"#).unwrap_err(),
        "Invalid padding"
    );
}

#[test]
fn a_hand_written_delta_is_the_one_that_the_types_describe() {
    for id in ["http-1", "a\"b\\", ""] {
        let encoder = BodyDeltaEncoder::new(id);
        let by_hand = encoder.before(u64::MAX) + "aGk=" + BodyDeltaEncoder::AFTER;
        let params = HttpBodyDeltaNotification {
            request_id: id.to_owned(),
            seq: u64::MAX,
            delta_base64: b"hi".to_vec().into(),
            done: false,
            error: None,
            error_kind: None,
        };
        assert_eq!(by_hand, crate::envelope::notification(HTTP_BODY_DELTA, &params));
        assert!(by_hand.len() - 4 <= encoder.around_bytes());
    }
}
