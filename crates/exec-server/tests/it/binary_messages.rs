//! Binary messages: bytes beside their JSON, for clients that ask, on carriers that have them.

use exec_server_protocol::{base64, binary};
use exec_server_testkit::client::start_params;
use exec_server_testkit::fs_fixture::FsFixture;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

/// More than one chunk, and every value of a byte.
fn content() -> Vec<u8> {
    (0..300_000u32).map(|number| (number % 251) as u8).collect()
}

/// A client that asks for binary messages.
async fn asking(server: &TestExecutor, more: Value) -> TestClient {
    let mut client = TestClient::connect(server.url()).await;
    let mut params = json!({"clientName": "t", "clientCapabilities": {"binaryMessages": true}});
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    let result = client.call("initialize", params).await.unwrap();
    client.session_id = result["sessionId"].as_str().unwrap().to_owned();
    assert_eq!(result["environmentInfo"]["capabilities"]["binaryMessages"], true);
    client.notify("initialized", json!({})).await;
    client
}

fn message(header: &Value, bytes: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&binary::prefix(header.len())[..], header.as_bytes(), bytes].concat()
}

async fn send(client: &mut TestClient, header: Value, bytes: &[u8]) -> Result<Value, Value> {
    let id = header["id"].as_i64().unwrap();
    client.send_binary(message(&header, bytes)).await;
    client.reply(id).await
}

#[tokio::test]
async fn output_is_binary_for_a_client_that_asks_and_json_for_others() {
    let fixture = FsFixture::new().await;
    fixture.put("f", content());
    let path = fixture.path("f").display().to_string();
    let mut plain = fixture.server.client().await;
    let expected = plain.run("p", &["cat", &path], json!({})).await;
    assert_eq!((expected.stdout, plain.binary_messages), (content(), 0));
    let mut client = asking(&fixture.server, json!({})).await;
    let finished = client.run("p", &["cat", &path], json!({})).await;
    assert_eq!((finished.stdout, finished.exit_code), (content(), 0));
    let pieces = finished.order.iter().filter(|event| *event == "output").count();
    assert_eq!(client.binary_messages, pieces);
    // A read has many chunks and stays JSON.
    assert!(!client.read("p", 0, 0).await["chunks"].as_array().unwrap().is_empty());
    assert_eq!(client.binary_messages, pieces);
}

#[tokio::test]
async fn blocks_of_a_file_are_binary_and_say_where_the_file_ends() {
    let fixture = FsFixture::new().await;
    fixture.put("f", content());
    let open = json!({"handleId": "h", "path": fixture.uri("f")});
    let read = |offset: usize, len: usize| json!({"handleId": "h", "offset": offset, "len": len});
    let mut client = asking(&fixture.server, json!({})).await;
    client.call("fs/open", open.clone()).await.unwrap();
    for (offset, len, is_end) in [
        (0, 200_000, false),
        (200_000, 100_000, false),
        (250_000, 100_000, true),
        (400_000, 1, true),
    ] {
        let before = client.binary_messages;
        let block = client.call("fs/readBlock", read(offset, len)).await.unwrap();
        let expected = content().into_iter().skip(offset).take(len).collect::<Vec<_>>();
        let chunk = base64::decode(block["chunk"].as_str().unwrap()).unwrap();
        assert_eq!((chunk, &block["eof"]), (expected, &json!(is_end)), "{offset}");
        assert_eq!(client.binary_messages, before + 1);
    }
    // Ignored members are told in JSON.
    let both = json!({"clientCapabilities": {"binaryMessages": true, "reportIgnored": true}});
    let mut client = asking(&fixture.server, both).await;
    client.call("fs/open", open).await.unwrap();
    let mut params = read(0, 3);
    params["colour"] = json!(1);
    let block = client.call("fs/readBlock", params).await.unwrap();
    assert_eq!(block, json!({"chunk": "AAEC", "eof": false, "ignored": ["colour"]}));
    assert_eq!(client.binary_messages, 0);
}

#[tokio::test]
async fn input_and_new_files_are_taken_as_bytes() {
    let fixture = FsFixture::new().await;
    let mut client = asking(&fixture.server, json!({})).await;
    let params = start_params("cat", &["cat"], json!({"pipeStdin": true}));
    client.call("process/start", params).await.unwrap();
    for _ in 0..2 {
        // The second is a repetition.
        let write = json!({"id": 900, "method": "process/write",
            "params": {"processId": "cat", "chunk": "", "writeId": "w"}});
        let answer = send(&mut client, write, &content()).await.unwrap();
        assert_eq!(answer, json!({"status": "accepted"}));
    }
    client.call("process/closeStdin", json!({"processId": "cat"})).await.unwrap();
    assert_eq!(client.finish("cat").await.stdout, content());

    let open = json!({"handleId": "h", "path": fixture.uri("new"), "mode": "replace"});
    client.call("fs/open", open).await.unwrap();
    let content = content();
    let (first, second) = content.split_at(100_000);
    for (id, offset, bytes) in [(901, 100_000, second), (902, 0, first)] {
        let write = json!({"id": id, "method": "fs/writeBlock",
            "params": {"handleId": "h", "offset": offset, "chunk": ""}});
        assert_eq!(send(&mut client, write, bytes).await.unwrap(), json!({}));
    }
    client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
    assert_eq!(fixture.get("new"), content);
}

#[tokio::test]
async fn a_binary_message_that_has_no_place_for_its_bytes_is_refused() {
    let server = TestExecutor::start().await;
    let mut client = TestClient::connect(server.url()).await;
    let initialize = json!({"id": 1, "method": "initialize", "params": {"clientName": "t"}});
    let error = send(&mut client, initialize, b"x").await.unwrap_err();
    assert_eq!(error["message"], "initialize takes no binary message; send it as JSON");
    client.initialize().await;
    let cases = [
        (
            json!({"id": 700, "method": "process/write", "params": {"processId": "p", "chunk": "eA=="}}),
            "`chunk` must be empty in the header of a binary message",
        ),
        (
            json!({"id": 701, "method": "process/write", "params": {"processId": "p"}}),
            "missing field `chunk`",
        ),
        (
            json!({"id": 702, "method": "process/terminate", "params": {"processId": "p"}}),
            "process/terminate takes no binary message; send it as JSON",
        ),
    ];
    for (header, text) in cases {
        let error = send(&mut client, header, b"bytes").await.unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(text)));
    }
    for malformed in [&b"\x01"[..], b"\x01\0\0\0\x09{}", b"\x01\0\0\0\0", b"\x01\xff\xff\xff\xff{}"]
    {
        client.send_binary(malformed.to_vec()).await;
        assert_eq!(client.malformed_reply().await["code"], -32600, "{malformed:?}");
    }
    // The connection lives on, and JSON in a binary websocket message is still JSON.
    let status = json!({"id": 703, "method": "environment/status"});
    client.send_binary(status.to_string().into_bytes()).await;
    assert_eq!(client.reply(703).await.unwrap(), json!({"status": "ready"}));
}

#[tokio::test]
async fn each_connection_of_a_session_has_the_form_that_it_asked_for() {
    let server = TestExecutor::start().await;
    let mut first = asking(&server, json!({})).await;
    let params = start_params("cat", &["cat"], json!({"pipeStdin": true}));
    first.call("process/start", params).await.unwrap();
    first.write("cat", "1", "one").await.unwrap();
    first.wait_output("cat", "one").await;
    assert_eq!(first.binary_messages, 1);
    let session = first.session_id.clone();
    drop(first);
    let mut second = TestClient::connect(server.url()).await;
    second.resume(&session).await.unwrap();
    second.forget_order("cat");
    second.write("cat", "2", "two").await.unwrap();
    second.wait_output("cat", "two").await;
    assert_eq!(second.binary_messages, 0);
    drop(second);
    let mut third = asking(&server, json!({"resumeSessionId": session})).await;
    third.forget_order("cat");
    third.write("cat", "3", "three").await.unwrap();
    third.wait_output("cat", "three").await;
    assert_eq!(third.binary_messages, 1);
}
