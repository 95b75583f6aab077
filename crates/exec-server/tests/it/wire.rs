//! Message envelopes: requests, errors and size limits.

use exec_server_testkit::client::start_params;
use exec_server_testkit::raw::{BINARY, CONTINUATION, PING, PONG, TEXT, parse};
use exec_server_testkit::{RawClient, TestClient, TestExecutor};
use serde_json::{Value, json};

const STATUS: &str = r#""method":"environment/status""#;
const PREFIX: &str =
    "failed to parse websocket JSON-RPC message from exec-server websocket 127.0.0.1:";

#[tokio::test]
async fn replies_have_the_members_of_the_protocol_and_no_others() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let text = raw_answer(&mut client, format!("{{\"id\":5,{STATUS}}}")).await;
    assert_eq!(text, r#"{"id":5,"result":{"status":"ready"}}"#);
    let text = raw_answer(&mut client, r#"{"id":"x","method":"nope"}"#.into()).await;
    let expected = concat!(
        r#"{"error":{"code":-32601,"message":"unknown method `nope`","#,
        r#""data":{"kind":"unknown_method"}},"id":"x"}"#
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn unknown_members_are_ignored() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for extra in [
        r#""jsonrpc":[1,{}]"#,
        r#""x":null"#,
        r#""x":123456789012345678901234567890.5e999"#,
        r#""trace":null"#,
        r#""trace":{}"#,
        r#""trace":{"traceparent":"not a trace","tracestate":null,"more":1}"#,
        r#""result":1,"error":2"#,
    ] {
        let reply = answer(&mut client, format!("{{{extra},\"id\":1,{STATUS}}}")).await;
        assert_eq!(reply, json!({"id": 1, "result": {"status": "ready"}}), "{extra}");
    }
}

#[tokio::test]
async fn strings_and_integers_of_64_bits_are_ids() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for id in [
        "0",
        "-1",
        "-7",
        "9223372036854775807",
        "-9223372036854775808",
        "\"\"",
        "\"1\"",
        "\"ü\\n\"",
    ] {
        let text = raw_answer(&mut client, format!("{{\"id\":{id},{STATUS}}}")).await;
        assert_eq!(text, format!("{{\"id\":{id},\"result\":{{\"status\":\"ready\"}}}}"));
    }
    for id in [
        "null",
        "true",
        "1.5",
        "1.0",
        "1e3",
        "[]",
        "{}",
        "9223372036854775808",
        "-9223372036854775809",
    ] {
        let reply = answer(&mut client, format!("{{\"id\":{id},{STATUS}}}")).await;
        assert_malformed(&reply, "`id`");
    }
}

#[tokio::test]
async fn one_id_used_twice_gets_two_replies() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for _ in 0..2 {
        client.send_text(format!("{{\"id\":9,{STATUS}}}")).await;
    }
    for _ in 0..2 {
        assert_eq!(client.next_json().await["id"], 9);
    }
    assert_alive(&mut client).await;
}

#[tokio::test]
async fn malformed_messages_get_an_error_and_the_connection_stays_open() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let deep = format!("{{\"id\":1,{STATUS},\"x\":{}{}}}", "[".repeat(127), "]".repeat(127));
    let many = many_values(262_145);
    let cases: &[(&str, &str)] = &[
        ("not-json", ""),
        ("", ""),
        (" \r\n\t ", ""),
        ("1", "expected a JSON-RPC object"),
        ("null", "expected a JSON-RPC object"),
        ("\"x\"", "expected a JSON-RPC object"),
        ("[]", "expected a JSON-RPC object"),
        (r#"[{"id":1,"method":"environment/status"}]"#, "expected a JSON-RPC object"),
        (r#"{"id":1,"method":"environment/status"} x"#, "trailing characters"),
        (r#"{"id":1,"method":"environment/status"}{}"#, "trailing characters"),
        (r#"{"id":1,"method":"environment/status""#, ""),
        (r#"{"id":1,"method":"environment/status",}"#, ""),
        (r#"{"id":1,"method":5}"#, "`method`"),
        (r#"{"id":1,"method":null}"#, "`method`"),
        (r#"{"id":1,"method":"environment/status","trace":5}"#, "`trace`"),
        (r#"{"id":1,"method":"environment/status","trace":{"traceparent":5}}"#, "`trace`"),
        ("{}", "missing field `error`"),
        (r#"{"id":1}"#, "missing field `error`"),
        (r#"{"error":{"code":1,"message":"x"}}"#, "missing field `id`"),
        (r#"{"id":1,"error":5}"#, "`error`"),
        (r#"{"result":1}"#, "missing field `id`"),
        (r#"{"id":1,"id":1,"method":"environment/status"}"#, "duplicate JSON object key `id`"),
        (
            r#"{"id":1,"method":"nope","params":{"a":1,"\u0061":2}}"#,
            "duplicate JSON object key `a`",
        ),
        (r#"{"id":1,"method":"nope","x":[{"b":{"c":1,"c":1}}]}"#, "duplicate JSON object key `c`"),
        (&deep, "recursion limit exceeded"),
        (&many, "JSON-RPC message exceeds the limit of 262144 JSON values"),
        (r#"{"id":1,"method":"nope","x":NaN}"#, ""),
        (r#"{"id":1,"method":"nope","x":01}"#, ""),
        (r#"{"id":1,"method":"nope","x":+1}"#, ""),
        (r#"{"id":1,"method":"nope","x":"\ud800"}"#, ""),
        (r#"{"id":1,"method":"nope","x":"\udc00\ud800"}"#, ""),
        (r#"{"id":1,"method":"nope","x":"\q"}"#, ""),
        ("{\"id\":1,\"method\":\"nope\",\"x\":\"a\nb\"}", ""),
        ("\u{feff}{\"id\":1,\"method\":\"environment/status\"}", ""),
        ("{'id':1}", ""),
    ];
    for (text, reason) in cases {
        let reply = answer(&mut client, (*text).to_owned()).await;
        assert_malformed(&reply, reason);
        assert_alive(&mut client).await;
    }
}

#[tokio::test]
async fn messages_just_within_the_limits_are_answered() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let nested = format!("{{\"id\":1,{STATUS},\"x\":{}{}}}", "[".repeat(126), "]".repeat(126));
    for text in [
        nested,
        many_values(262_144),
        format!(" \r\n\t{{\"id\":1,{STATUS}}}\r\n"),
        format!("{{\"id\":1,{STATUS},\"x\":\"\\ud83d\\ude00 \\u0000\"}}"),
        "{\"id\":1,\"\\u006dethod\":\"environment\\/status\"}".to_owned(),
    ] {
        let reply = answer(&mut client, text.clone()).await;
        assert_eq!(reply["result"]["status"], "ready", "{}", &text[..text.len().min(100)]);
    }
}

#[tokio::test]
async fn invalid_utf_8_is_malformed_in_a_binary_message_and_ends_the_connection_in_a_text() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.send_binary(b"{\"id\":1,\"method\":\"\xff\"}".to_vec()).await;
    assert_malformed(&client.next_json().await, "UTF-8");
    assert_alive(&mut client).await;

    let mut raw = RawClient::connect(server.url()).await;
    raw.send_frame(TEXT, true, b"{\"id\":1,\"method\":\"\xff\"}").await;
    let (code, reason) = raw.close_frame().await.expect("a close frame");
    assert_eq!(code, 1007);
    assert!(!reason.is_empty());
}

#[tokio::test]
async fn params_that_do_not_fit_are_named() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for params in [r#","params":null"#, r#","params":{}"#, ""] {
        let reply = answer(&mut client, format!("{{\"id\":1,{STATUS}{params}}}")).await;
        assert_eq!(reply["result"]["status"], "ready", "{params}");
    }
    let cases = [
        ("environment/status", json!([]), "invalid type: sequence, expected unit"),
        ("environment/info", json!({"x": 1}), "invalid type: map, expected unit"),
        ("process/terminate", json!({}), "missing field `processId`"),
        ("process/terminate", json!(null), ""),
        ("process/terminate", json!({"processId": 5}), "expected a string"),
        ("process/read", json!({"processId": "p", "waitMs": -1}), ""),
        ("process/read", json!({"processId": "p", "afterSeq": 1.5}), ""),
        (
            "process/signal",
            json!({"processId": "p", "signal": "x"}),
            "unknown variant `x`, expected",
        ),
        ("process/write", json!({"processId": "p", "writeId": "1", "chunk": "!"}), ""),
        ("process/write", json!({"processId": "p", "writeId": "1", "chunk": "YQ"}), ""),
        ("process/write", json!({"processId": "p", "writeId": "1", "chunk": "_-8="}), ""),
        (
            "process/write",
            json!({"processId": "p", "writeId": "", "chunk": ""}),
            "writeId must not be empty",
        ),
        ("process/start", json!({"processId": "p"}), "missing field `argv`"),
        ("initialize", json!({}), "missing field `clientName`"),
    ];
    for (method, params, message) in cases {
        let error = client.call(method, params.clone()).await.unwrap_err();
        assert_error(&error, -32602, "invalid_params");
        let text = error["message"].as_str().unwrap();
        assert!(text.contains(message) && !text.is_empty(), "{method} {params}: {text}");
        assert!(!text.contains(" line "), "the place means nothing to the caller: {text}");
    }
    // A decoder that is more lenient than the reference would show here.
    let lenient = client.call("process/terminate", json!({"processId": "p", "more": [1]})).await;
    assert_eq!(lenient.unwrap(), json!({"running": false}));
}

#[tokio::test]
async fn bad_params_are_found_before_the_lifecycle_is_asked() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    for method in ["process/terminate", "process/start", "process/write", "initialize"] {
        let error = client.call(method, json!({"processId": 1})).await.unwrap_err();
        assert_error(&error, -32602, "invalid_params");
    }
    let error = client.call("process/terminate", json!({"processId": "p"})).await.unwrap_err();
    assert_error(&error, -32600, "lifecycle");
}

#[tokio::test]
async fn the_error_for_an_unknown_method_has_the_text_of_the_reference() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    let params = json!({"clientName": "codex-environment", "resumeSessionId": null});
    client.call("initialize", params).await.unwrap();
    let error = client.call("nope", json!({})).await.unwrap_err();
    assert_error(&error, -32601, "unknown_method");
    assert_eq!(error["message"], "exec-server stub does not implement `nope` yet");
}

#[tokio::test]
async fn an_unknown_method_is_rejected_in_every_phase() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    for is_ready in [false, true] {
        if is_ready {
            client.initialize().await;
        }
        for method in ["initialized", "process/Start", "", "process/output", "ü\n"] {
            let error = client.call(method, json!([])).await.unwrap_err();
            assert_error(&error, -32601, "unknown_method");
            let text = format!("unknown method `{method}`");
            assert_eq!(error["message"], text);
        }
    }
}

#[tokio::test]
async fn an_unknown_notification_gets_an_error_and_the_connection_stays_open() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for method in ["cancel", "process/terminate", "initialize"] {
        client.notify(method, json!({"processId": "p"})).await;
        let reply = client.next_json().await;
        assert_eq!(reply["id"], -1);
        assert_error(&reply["error"], -32600, "unknown_notification");
        let text = reply["error"]["message"].as_str().unwrap();
        assert!(text.contains(&format!("`{method}`")), "{text}");
        assert_alive(&mut client).await;
    }
}

#[tokio::test]
async fn initialized_takes_any_params_and_may_be_repeated() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    client.try_initialize(None).await.unwrap();
    for params in ["", r#","params":[1]"#, r#","params":null"#, r#","params":"x""#] {
        client.send_text(format!("{{\"method\":\"initialized\"{params}}}")).await;
        assert_alive(&mut client).await;
    }
}

#[tokio::test]
async fn initialized_before_initialize_closes_with_a_reason() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    client.notify("initialized", json!({})).await;
    let (code, reason) = client.close_frame().await.expect("a close frame");
    assert_eq!(
        (code, reason.as_str()),
        (1002, "client must call initialize before sending initialized")
    );
}

#[tokio::test]
async fn an_unexpected_reply_closes_the_connection_after_earlier_replies() {
    let server = TestExecutor::start().await;
    for text in [
        r#"{"id":7,"result":{}}"#,
        r#"{"id":"x","result":null}"#,
        r#"{"id":7,"error":{"code":1,"message":"no"}}"#,
    ] {
        let mut client = server.client().await;
        client.send_text(format!("{{\"id\":3,{STATUS}}}")).await;
        client.send_text(text.to_owned()).await;
        assert_eq!(client.next_json().await["id"], 3);
        let (code, reason) = client.close_frame().await.expect("a close frame");
        assert_eq!((code, reason.as_str()), (1002, "a reply to a request that was never sent"));
    }
}

#[tokio::test]
async fn a_close_reaches_a_client_that_is_still_sending() {
    let server = TestExecutor::start().await;
    for _ in 0..10 {
        let mut client = RawClient::connect(server.url()).await;
        client.send_frame(TEXT, true, br#"{"id":7,"result":{}}"#).await;
        // The server has these in its socket when it closes; it must not answer them with a reset.
        for _ in 0..50 {
            let text = format!("{{\"id\":1,{STATUS},\"x\":\"{}\"}}", "x".repeat(10_000));
            if client.try_send_frame(TEXT, true, text.as_bytes()).await.is_err() {
                break;
            }
        }
        let close = client.close_frame().await.expect("a close frame");
        assert_eq!(close.0, 1002);
    }
}

#[tokio::test]
async fn a_close_frame_is_answered_with_a_close_frame() {
    let server = TestExecutor::start().await;
    let mut client = RawClient::connect(server.url()).await;
    client.initialize().await;
    let mut payload = 1000_u16.to_be_bytes().to_vec();
    payload.extend(b"bye");
    client.send_frame(exec_server_testkit::raw::CLOSE, true, &payload).await;
    assert_eq!(client.close_frame().await.expect("a close frame").0, 1000);
    assert_eq!(client.frame().await, None);
}

#[tokio::test]
async fn text_binary_and_fragments_are_all_messages() {
    let server = TestExecutor::start().await;
    let mut client = RawClient::connect(server.url()).await;
    let initialize = br#"{"id":1,"method":"initialize","params":{"clientName":"b"}}"#;
    client.send_frame(BINARY, true, initialize).await;
    let frames = client.message().await;
    assert_eq!(frames[0].opcode, TEXT);
    assert!(uuid::Uuid::parse_str(parse(&frames)["result"]["sessionId"].as_str().unwrap()).is_ok());

    let text = "{\"method\":\"initialized\",\"x\":\"ü\"}";
    let inside_ü = text.find('ü').unwrap() + 1;
    client.send_frame(TEXT, false, &text.as_bytes()[..inside_ü]).await;
    client.send_frame(PING, true, b"in between").await;
    let pong = client.frame().await.unwrap();
    assert_eq!((pong.opcode, pong.payload.as_slice()), (PONG, b"in between".as_slice()));
    client.send_frame(CONTINUATION, false, b"").await;
    client.send_frame(CONTINUATION, true, &text.as_bytes()[inside_ü..]).await;

    let text = format!("{{\"id\":2,{STATUS}}}");
    for (index, byte) in text.bytes().enumerate() {
        let opcode = if index == 0 { BINARY } else { CONTINUATION };
        client.send_frame(opcode, index + 1 == text.len(), &[byte]).await;
    }
    assert_eq!(client.reply(2).await["result"]["status"], "ready");
}

#[tokio::test]
async fn frames_against_the_websocket_rules_close_with_a_reason() {
    let server = TestExecutor::start().await;
    for (opcode, is_last, payload) in [
        (CONTINUATION, true, b"x".as_slice()),
        (3, true, b"x".as_slice()),
        (PING, false, b"x".as_slice()),
        (PING, true, [0; 126].as_slice()),
        (TEXT | 0x40, true, b"{}".as_slice()),
    ] {
        let mut client = RawClient::connect(server.url()).await;
        client.send_frame(opcode, is_last, payload).await;
        let (code, reason) = client.close_frame().await.expect("a close frame");
        assert!(code == 1002 && !reason.is_empty(), "{code} {reason}");
    }
}

#[tokio::test]
async fn a_message_over_the_limit_closes_with_1009() {
    let server = TestExecutor::start_with(&["--max-message-bytes", "100000"]).await;
    let mut client = RawClient::connect(server.url()).await;
    client.initialize().await;
    let fits = padded_status(10, 100_000);
    client.send_frame(TEXT, true, &fits).await;
    assert_eq!(client.reply(10).await["result"]["status"], "ready");
    client.send_frame(TEXT, true, &padded_status(11, 100_001)).await;
    assert_eq!(client.close_frame().await.expect("a close frame").0, 1009);

    let mut client = RawClient::connect(server.url()).await;
    client.initialize().await;
    send_in_fragments(&mut client, &fits, 40_000).await;
    assert_eq!(client.reply(10).await["result"]["status"], "ready");
    send_in_fragments(&mut client, &padded_status(11, 100_001), 40_000).await;
    assert_eq!(client.close_frame().await.expect("a close frame").0, 1009);
}

#[tokio::test]
async fn by_default_a_message_has_64_mib() {
    let server = TestExecutor::start().await;
    let mut client = RawClient::connect(server.url()).await;
    client.initialize().await;
    send_in_fragments(&mut client, &padded_status(10, 67_108_864), 8 << 20).await;
    assert_eq!(client.reply(10).await["result"]["status"], "ready");
    send_in_fragments(&mut client, &padded_status(11, 67_108_865), 8 << 20).await;
    assert_eq!(client.close_frame().await.expect("a close frame").0, 1009);
}

#[tokio::test]
async fn a_large_reply_is_sent_in_frames_of_at_most_8_mib() {
    const SIZE: usize = 12 << 20;
    let server = TestExecutor::start().await;
    let mut client = RawClient::connect(server.url()).await;
    client.answer_pings();
    client.initialize().await;
    let params = exec_server_testkit::client::start_params(
        "p",
        &["head", "-c", &SIZE.to_string(), "/dev/zero"],
        json!({"outputRetention": SIZE}),
    );
    client.send("process/start", params).await;
    loop {
        let event = parse(&client.message().await);
        if event["method"] == "process/closed" {
            break;
        }
    }
    let id = client.send("process/read", json!({"processId": "p"})).await;
    let frames = client.message().await;
    assert!(frames.len() > 1, "the reply is larger than a frame");
    assert!(frames.iter().all(|frame| frame.payload.len() <= 8 << 20));
    let reply = parse(&frames);
    assert_eq!(reply["id"], id);
    let chunks = reply["result"]["chunks"].as_array().unwrap();
    let size: usize = chunks.iter().map(|c| exec_server_testkit::client::chunk(c).len()).sum();
    assert_eq!(size, SIZE);
}

#[tokio::test]
async fn a_reply_over_64_mib_is_a_clear_error() {
    const SIZE: usize = 51 << 20;
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let size = SIZE.to_string();
    let argv = ["head", "-c", &size, "/dev/zero"];
    let finished = client.run("p", &argv, json!({"outputRetention": SIZE})).await;
    assert_eq!(finished.stdout.len(), SIZE);
    let error = client.call("process/read", json!({"processId": "p"})).await.unwrap_err();
    assert_error(&error, -32603, "reply_too_large");
    let params = json!({"processId": "p", "maxBytes": 100_000});
    let part = client.call("process/read", params).await.unwrap();
    assert!(!part["chunks"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn two_thousand_requests_before_the_first_read_are_all_answered() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut ids = Vec::new();
    for index in 0..2000 {
        let id = match index % 4 {
            0 => client.send("environment/status", json!({})).await,
            1 => client.send("process/read", json!({"processId": "none"})).await,
            2 => client.send("environment/info", json!(null)).await,
            _ => client.send("process/list", json!(null)).await,
        };
        ids.push(id);
    }
    for (index, id) in ids.into_iter().enumerate() {
        let reply = client.reply(id).await;
        if index % 4 == 1 {
            assert_error(&reply.unwrap_err(), -32600, "unknown_process");
        } else {
            reply.unwrap();
        }
    }
}

/// Sends a text and returns the next message as it is on the wire.
async fn raw_answer(client: &mut TestClient, text: String) -> String {
    client.send_text(text).await;
    let message = client.raw_message().await.expect("the link holds").expect("a message");
    message.as_text().expect("a text message").to_owned()
}

async fn answer(client: &mut TestClient, text: String) -> Value {
    client.send_text(text).await;
    client.next_json().await
}

async fn assert_alive(client: &mut TestClient) {
    let reply = answer(client, format!("{{\"id\":\"alive\",{STATUS}}}")).await;
    assert_eq!(reply, json!({"id": "alive", "result": {"status": "ready"}}));
}

/// The reply to a malformed message.
#[track_caller]
fn assert_malformed(reply: &Value, reason: &str) {
    assert_eq!(reply["id"], -1, "{reply}");
    assert_error(&reply["error"], -32600, "malformed_message");
    let message = reply["error"]["message"].as_str().expect("a message");
    let rest = message.strip_prefix(PREFIX).expect("the text that clients know");
    let (port, said) = rest.split_once(": ").expect("the peer, then the reason");
    assert!(port.parse::<u16>().is_ok(), "{message}");
    assert!(!said.is_empty() && said.contains(reason), "{message}");
}

#[track_caller]
fn assert_error(error: &Value, code: i64, kind: &str) {
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(code), &json!(kind)), "{error}");
}

/// A valid request with this many JSON values.
fn many_values(count: usize) -> String {
    // The object, its id, its method and the array are values too.
    format!("{{\"id\":1,{STATUS},\"x\":[0{}]}}", ",0".repeat(count - 5))
}

/// A valid request of exactly `size` bytes.
fn padded_status(id: i64, size: usize) -> Vec<u8> {
    let start = format!("{{\"id\":{id},{STATUS},\"x\":\"");
    let mut text = start.into_bytes();
    text.resize(size - 2, b'x');
    text.extend(b"\"}");
    text
}

/// Sends a message in fragments, to a server that may close the connection meanwhile.
async fn send_in_fragments(client: &mut RawClient, message: &[u8], size: usize) {
    let count = message.len().div_ceil(size);
    for (index, piece) in message.chunks(size).enumerate() {
        let opcode = if index == 0 { TEXT } else { CONTINUATION };
        if client.try_send_frame(opcode, index + 1 == count, piece).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_client_that_names_the_version_gets_it_in_every_message() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    let ask = |id: i64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    client.send_text(ask(1, "initialize", json!({"clientName": "v"}))).await;
    client.send_text(json!({"jsonrpc": "2.0", "method": "initialized"}).to_string()).await;
    client.send_text(ask(2, "no/such", json!({}))).await;
    client.send_text("not json".to_owned()).await;
    let start = start_params("p", &["/bin/echo", "hi"], json!({}));
    client.send_text(ask(3, "process/start", start)).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "process/closed") {
        let message = client.next_json().await;
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        let id = message["id"].as_i64().map(|id| id.to_string());
        seen.push(id.unwrap_or_else(|| message["method"].as_str().unwrap().to_owned()));
    }
    for expected in ["1", "2", "-1", "3", "process/output", "process/exited", "process/closed"] {
        assert!(seen.iter().any(|seen| seen == expected), "{expected}: {seen:?}");
    }
    // A client without `jsonrpc` gets replies without it.
    let mut plain = server.client().await;
    plain.send_text(json!({"id": 77, "method": "environment/info"}).to_string()).await;
    assert_eq!(plain.next_json().await.get("jsonrpc"), None);
}
