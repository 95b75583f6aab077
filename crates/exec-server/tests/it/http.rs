//! `http/*`: requests to local web servers, valid and hostile.

mod bodies;
mod deltas;
mod egress_policy;
mod failures;
mod hostile;
#[cfg(unix)]
mod mcp;
#[cfg(target_os = "linux")]
mod pressure;
mod proxies;
mod redirects;
mod requests;
mod tls;

use exec_server_protocol::base64;
use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

/// A server that does not inherit the proxies and certificate authorities of the test environment.
async fn server() -> TestExecutor {
    without_proxies().start().await
}

fn without_proxies() -> ExecutorBuilder {
    ignorant(TestExecutor::builder())
}

fn ignorant(mut builder: ExecutorBuilder) -> ExecutorBuilder {
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "request_method"] {
        builder.command().env_remove(name).env_remove(name.to_uppercase());
    }
    builder.command().env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    builder
}

/// Params of a `GET`; `more` overrides them.
fn get(url: &str, more: Value) -> Value {
    let mut params = json!({"method": "GET", "url": url, "requestId": "r"});
    if let (Some(params), Value::Object(more)) = (params.as_object_mut(), more) {
        params.extend(more);
    }
    params
}

async fn request(client: &mut TestClient, url: &str, more: Value) -> Result<Value, Value> {
    client.call("http/request", get(url, more)).await
}

/// Sends a request and expects an error; returns code, kind and message.
async fn refusal(client: &mut TestClient, url: &str, more: Value) -> (i64, String, String) {
    let error = request(client, url, more).await.expect_err("it cannot work");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (error["code"].as_i64().unwrap(), text(&error["data"]["kind"]), text(&error["message"]))
}

fn decode(base64_text: &Value) -> Vec<u8> {
    base64::decode(base64_text.as_str().expect("a text")).expect("base64")
}

/// The body of a buffered answer, as text.
fn body(answer: &Value) -> String {
    String::from_utf8(decode(&answer["bodyBase64"])).expect("a text")
}

/// A streamed body: all deltas before the last one, and the last one.
async fn deltas(client: &mut TestClient, id: &str) -> (Vec<Vec<u8>>, Value) {
    let mut pieces = Vec::new();
    loop {
        let params = delta(client, id).await;
        assert_eq!(params["seq"], pieces.len() + 1, "deltas come in order");
        if params["done"] == true {
            assert_eq!(params["deltaBase64"], "");
            return (pieces, params);
        }
        assert_eq!(params["error"], Value::Null);
        pieces.push(decode(&params["deltaBase64"]));
    }
}

/// The next delta.
async fn delta(client: &mut TestClient, id: &str) -> Value {
    let notification = client.notification().await;
    assert_eq!(notification["method"], "http/request/bodyDelta");
    assert_eq!(notification["params"]["requestId"], id);
    notification["params"].clone()
}
