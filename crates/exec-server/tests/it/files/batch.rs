//! `fs/batch`: many lookups in one round trip.

use exec_server_protocol::limits::MAX_MESSAGE_BYTES;
use exec_server_testkit::fs_fixture::{FsFixture, content, on_each_file_system};
use exec_server_testkit::{RawClient, raw};
use serde_json::{Value, json};

use super::{names, put_link, refused};

async fn batch(fixture: &mut FsFixture, requests: Vec<Value>) -> Result<Vec<Value>, Value> {
    let mut result = fixture.client.call("fs/batch", json!({"requests": requests})).await?;
    assert_eq!(result.as_object().unwrap().len(), 1);
    Ok(result["results"].as_array_mut().expect("a list").drain(..).collect())
}

fn request(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}

#[tokio::test]
async fn each_lookup_is_answered_in_its_place_as_if_it_were_alone() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "content");
        put_link(fixture, "link", "f");
        let mut requests = Vec::new();
        for name in ["f", "nope", "link", "", "f/x", "link", "f"] {
            let path = fixture.uri(name);
            requests.push(request("fs/readFile", json!({"path": path})));
            requests.push(request("fs/readFile", json!([path, false])));
            requests.push(request("fs/readFile", json!({"path": path, "detailed": true})));
            requests.push(request("fs/getMetadata", json!({"path": path})));
            requests.push(request("fs/getMetadata", json!({"path": path, "detailed": true})));
            requests.push(request("fs/canonicalize", json!({"path": path})));
            requests.push(request("fs/readLink", json!({"path": path})));
        }
        requests.push(request("fs/readFile", json!({"path": "/native"})));
        requests.push(request("fs/readFile", json!({"path": "file:///C:/x"})));
        requests.push(request("fs/readFile", json!({})));
        let policy =
            json!({"permissions": {"type": "managed", "file_system": {"type": "restricted"}}});
        requests.push(request("fs/readFile", json!({"path": fixture.uri("f"), "sandbox": policy})));
        let results = batch(fixture, requests.clone()).await.unwrap();
        assert_eq!(results.len(), requests.len());
        let (mut answers, mut errors) = (0, 0);
        for (one, together) in requests.iter().zip(results) {
            let method = one["method"].as_str().unwrap();
            let alone = match fixture.client.call(method, one["params"].clone()).await {
                Ok(result) => json!({"result": result}),
                Err(error) => json!({"error": error}),
            };
            if alone.get("error").is_some() {
                errors += 1
            } else {
                answers += 1
            }
            assert_eq!(together, alone, "{one}");
        }
        assert!(answers > 20 && errors > 15, "{answers} {errors}");
    })
    .await;
}

#[tokio::test]
async fn only_lookups_are_taken_and_the_others_do_nothing() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        let (f, new) = (fixture.uri("f"), fixture.uri("new"));
        let results = batch(
            fixture,
            vec![
                request("fs/writeFile", json!({"path": new, "dataBase64": ""})),
                request("fs/open", json!({"path": f, "handleId": "h"})),
                request("fs/createDirectory", json!({"path": new})),
                request("fs/batch", json!({"requests": []})),
                request("fs/close", json!({"handleId": "h"})),
                request("process/list", json!({})),
                request("initialize", json!({"clientName": "x"})),
                request("fs/nothing", json!({})),
                request("fs/readFile", json!({"path": f})),
            ],
        );
        let mut results = results.await.unwrap();
        assert_eq!(results.pop(), Some(json!({"result": {"dataBase64": "Zg=="}})));
        assert_eq!(results.len(), 8);
        for result in results {
            assert_eq!(result.get("result"), None);
            refused(Err(result["error"].clone()), -32602, "not_for_batch");
        }
        assert_eq!(names(fixture), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn a_batch_holds_up_to_1000_lookups() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "f");
        let one = request("fs/getMetadata", json!({"path": fixture.uri("f")}));
        assert_eq!(batch(fixture, vec![]).await.unwrap(), [Value::Null; 0]);
        let results = batch(fixture, vec![one.clone(); 1000]).await.unwrap();
        assert_eq!(results.len(), 1000);
        assert!(results.iter().all(|result| result["result"]["size"] == 1));
        let requests = json!({"requests": vec![one; 1001]});
        let result = fixture.client.call("fs/batch", requests).await;
        refused(result, -32600, "batch_too_long");
        for params in
            [json!({}), json!({"requests": {}}), json!({"requests": [{"method": "fs/readFile"}]})]
        {
            refused(fixture.client.call("fs/batch", params).await, -32602, "invalid_params");
        }
    })
    .await;
}

#[tokio::test]
async fn results_that_exceed_the_reply_limit_become_errors_in_their_place() {
    on_each_file_system(async |fixture| {
        let bytes = vec![b'x'; 200_000];
        fixture.put("big", &bytes);
        fixture.put("small", "small");
        std::fs::File::create(fixture.path("huge")).unwrap().set_len(1 << 30).unwrap();
        let read = |name| request("fs/readFile", json!({"path": fixture.uri(name)}));
        let mut requests = vec![read("huge")];
        requests.extend((0..998).map(|place| read(if place % 2 == 0 { "big" } else { "small" })));
        let mut client = RawClient::connect(fixture.server.url()).await;
        client.answer_pings();
        client.initialize().await;
        client.send("fs/batch", json!({"requests": requests})).await;
        let frames = client.message().await;
        let all: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        assert!(all <= MAX_MESSAGE_BYTES, "{all}");
        let reply = raw::parse(&frames);
        let results = reply["result"]["results"].as_array().unwrap();
        assert_eq!(results.len(), 999);
        refused(Err(results[0]["error"].clone()), -32600, "file_too_large");
        let mut read_whole = 0;
        for (place, result) in results[1..].iter().enumerate() {
            if place % 2 == 1 {
                assert_eq!(result["result"], json!({"dataBase64": "c21hbGw="}));
            } else if let Some(error) = result.get("error") {
                refused(Err(error.clone()), -32603, "reply_too_large");
            } else {
                assert!(content(&result["result"]["dataBase64"]) == bytes);
                read_whole += 1;
            }
        }
        assert!((100..499).contains(&read_whole), "{read_whole}");
    })
    .await;
}
