use proptest::prelude::*;

use super::*;
use crate::errors::ErrorCode;

fn refused(text: &str) -> String {
    decode(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn members_determine_the_kind_of_message() {
    let request = |params| Incoming::Request {
        id: RequestId::Integer(1),
        method: "m".into(),
        params,
        has_version: false,
        trace: None,
    };
    assert_eq!(decode(br#"{"id":1,"method":"m"}"#).unwrap(), request("null"));
    assert_eq!(
        decode(br#"{"jsonrpc":2,"id":1,"method":"m","params":[1],"result":3,"x":{}}"#).unwrap(),
        request("[1]"),
        "method wins over result, unknown members are ignored"
    );
    assert!(matches!(decode(br#"{"method":"m"}"#).unwrap(), Incoming::Notification { .. }));
    assert!(matches!(
        decode(br#"{"id":1,"result":null}"#).unwrap(),
        Incoming::Response { result: "null", .. }
    ));
    assert!(matches!(
        decode(br#"{"id":1,"error":{"code":1,"message":""}}"#).unwrap(),
        Incoming::Error { .. }
    ));
}

#[test]
fn incomplete_messages_say_what_is_missing() {
    assert_eq!(refused("{}"), "missing field `error`");
    assert_eq!(refused(r#"{"id":1}"#), "missing field `error`");
    assert_eq!(refused(r#"{"error":{"code":1,"message":""}}"#), "missing field `id`");
    assert_eq!(refused("[]"), "expected a JSON-RPC object");
    assert!(refused(r#"{"method":5,"id":1}"#).contains("method"));
    assert!(decode(b"{\"method\":\"\xff\"}").unwrap_err().to_string().contains("UTF-8"));
}

#[test]
fn ids_are_strings_and_whole_numbers() {
    let id = |raw: &str| match decode(format!(r#"{{"id":{raw},"method":"m"}}"#).as_bytes()) {
        Ok(Incoming::Request { id, .. }) => Some(id),
        _ => None,
    };
    for (raw, number) in [
        ("0", 0),
        ("-1", -1),
        ("9223372036854775807", i64::MAX),
        ("-9223372036854775808", i64::MIN),
    ] {
        assert_eq!(id(raw), Some(RequestId::Integer(number)));
    }
    assert_eq!(id("\"\""), Some(RequestId::String(String::new())));
    assert_eq!(id("\"a\\u0062\""), Some(RequestId::String("ab".into())));
    for raw in ["null", "true", "1.5", "1.0", "1e3", "[]", "{}", "9223372036854775808", "-0"] {
        assert_eq!(id(raw), None, "{raw}");
    }
}

#[test]
fn a_trace_of_the_wrong_type_spoils_the_message() {
    let with = |trace: &str| {
        decode(format!(r#"{{"id":1,"method":"m","trace":{trace}}}"#).as_bytes()).is_ok()
    };
    assert!(with("null") && with("{}") && with(r#"{"traceparent":"nonsense","tracestate":null}"#));
    assert!(!with("5") && !with("[]") && !with(r#"{"traceparent":5}"#));
}

#[test]
fn sent_messages_have_their_members_in_the_usual_order() {
    let id = RequestId::String("a\"b".into());
    assert_eq!(response(&id, &serde_json::json!({"x": 1})), r#"{"id":"a\"b","result":{"x":1}}"#);
    let refusal = RpcError::new(
        ErrorCode::SessionAttached,
        crate::error_kinds::ErrorKind::SessionAttached,
        "no",
    )
    .retryable();
    assert_eq!(
        error(&MALFORMED_ID, &refusal),
        r#"{"error":{"code":-32010,"message":"no","data":{"kind":"session_attached","retryable":true}},"id":-1}"#
    );
    assert_eq!(notification("m", &()), r#"{"method":"m","params":null}"#);
}

#[test]
fn a_request_carries_its_trace_context() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = TraceContext::parse(parent, None).unwrap();
    let sent = request(&RequestId::Integer(1), "m", &(), Some(&context));
    assert_eq!(
        sent,
        format!(r#"{{"id":1,"method":"m","params":null,"trace":{{"traceparent":"{parent}"}}}}"#)
    );
    let Incoming::Request { trace, params, .. } = decode_text(&sent).unwrap() else {
        panic!("a request")
    };
    assert_eq!(TraceContext::of_request(trace, params), Some(context));
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn no_member_soup_makes_the_decoder_panic(
        members in proptest::collection::vec(
            ("(id|method|params|result|error|trace|jsonrpc)", r#"(null|1|-1|1\.5|"x"|\[\]|\{\}|\{"code":1,"message":"m"\})"#),
            0..5,
        )
    ) {
        let text: Vec<String> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        let _ = decode(format!("{{{}}}", text.join(",")).as_bytes());
    }

    #[test]
    fn requests_round_trip(id in any::<i64>(), method in ".{0,20}", text in ".{0,40}") {
        let sent = request(&RequestId::Integer(id), &method, &text, None);
        let Incoming::Request { id: got, method: name, params, .. } = decode(sent.as_bytes()).unwrap() else {
            panic!("a request was read as something else");
        };
        prop_assert_eq!(got, RequestId::Integer(id));
        prop_assert_eq!(name, method);
        prop_assert_eq!(serde_json::from_str::<String>(params).unwrap(), text);
    }
}

#[test]
fn a_request_may_name_the_version_and_its_replies_then_do() {
    for (text, expected) in [
        (r#"{"id":1,"method":"m"}"#, false),
        (r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#, true),
        (r#"{"id":1,"method":"m","jsonrpc":"2.0"}"#, true),
        (r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#, false),
        (r#"{"jsonrpc":2.0,"id":1,"method":"m"}"#, false),
    ] {
        let Incoming::Request { has_version, .. } = decode_text(text).unwrap() else {
            panic!("a request")
        };
        assert_eq!(has_version, expected, "{text}");
    }
    let reply = response(&RequestId::Integer(1), &());
    assert_eq!(with_version(reply.as_bytes()), br#"{"jsonrpc":"2.0","id":1,"result":null}"#);
}
