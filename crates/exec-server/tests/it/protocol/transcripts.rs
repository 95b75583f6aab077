//! Runs the transcripts of the page against a real server, and checks every message against the schema.
//!
//! `->` is sent, `<-` is received, `--` cuts the connection and connects again. `…` matches anything, also as the rest of an
//! object; `$name` is a value that is remembered. `/srv/app` is a directory with a few files.

use std::collections::BTreeMap;
use std::path::Path;

use exec_server_testkit::web::Web;
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use super::{read, validator};

#[tokio::test]
async fn the_transcripts_of_the_page_are_what_a_server_says() {
    let page = read("protocol.md");
    let mut count = 0;
    for block in page.split("```text\n").skip(1) {
        let (text, _) = block.split_once("```").expect("a block ends");
        run(text).await;
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

async fn run(transcript: &str) {
    let server = TestExecutor::start().await;
    let app = tempfile::tempdir().unwrap();
    fill(app.path());
    let web = Web::answering(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()).await;
    let text = transcript
        .replace("file:///srv/app", &format!("file://{}", app.path().display()))
        .replace("http://127.0.0.1:8080", &web.url(""));
    let mut player = Player::new(&server, &text).await;
    for line in text.lines() {
        player.play(line).await;
    }
    player.settle().await;
}

fn fill(app: &Path) {
    std::fs::create_dir(app.join("src")).unwrap();
    std::fs::write(app.join("app.conf"), "port = 80\nhost = web\n").unwrap();
    std::fs::write(app.join("notes.txt"), "later\n").unwrap();
    std::fs::write(app.join("src/main.rs"), "// TODO: one\nfn main() {}\n// TODO: two\n").unwrap();
}

struct Player<'a> {
    server: &'a TestExecutor,
    client: TestClient,
    names: BTreeMap<String, Value>,
    /// Methods by request id.
    asked: BTreeMap<String, String>,
    /// What has to come next; replies may come in any order, notifications may not.
    expected: Vec<Value>,
}

impl<'a> Player<'a> {
    async fn new(server: &'a TestExecutor, transcript: &str) -> Self {
        let mut client = TestClient::connect(server.url()).await;
        if !transcript.contains("\"initialize\"") {
            client.initialize().await;
        }
        let (names, asked, expected) = Default::default();
        Self { server, client, names, asked, expected }
    }

    async fn play(&mut self, line: &str) {
        if let Some(message) = line.strip_prefix("-> ") {
            self.settle().await;
            self.send(message).await;
        } else if let Some(message) = line.strip_prefix("<- ") {
            self.expected.push(pattern(message));
        } else {
            assert!(line.starts_with("-- "), "not a line of a transcript: {line}");
            self.settle().await;
            self.client = TestClient::connect(self.server.url()).await;
            self.asked.clear();
        }
    }

    async fn send(&mut self, text: &str) {
        let mut text = text.to_owned();
        for (name, value) in &self.names {
            text = text.replace(&format!("\"{name}\""), &value.to_string());
        }
        if let Ok(message) = serde_json::from_str::<Value>(&text) {
            if message.get("id").is_none() {
                validator::check("ClientNotification", &message);
            } else if validator::document()["x-methods"]
                .get(message["method"].as_str().unwrap())
                .is_some()
            {
                validator::check_request(&message);
            }
            let method = message["method"].as_str().unwrap_or_default().to_owned();
            self.asked.insert(message["id"].to_string(), method);
        }
        self.client.send_text(text).await;
    }

    /// Receives everything that is expected.
    async fn settle(&mut self) {
        while !self.expected.is_empty() {
            let message = self.client.next_json().await;
            self.check(&message);
            let is_reply = message.get("id").is_some();
            let place = self.expected.iter().position(|expected| match is_reply {
                true => expected["id"] == message["id"],
                false => expected.get("id").is_none(),
            });
            let place = place.unwrap_or_else(|| panic!("not in the transcript: {message}"));
            let expected = self.expected.remove(place);
            let is_match = matches(&expected, &message, &mut self.names);
            assert!(is_match, "expected {expected}\nreceived {message}");
        }
    }

    fn check(&self, message: &Value) {
        if let Some(result) = message.get("result") {
            let method = &self.asked[&message["id"].to_string()];
            validator::check_result(method, result);
        } else if let Some(error) = message.get("error") {
            validator::check_error(error);
        } else {
            validator::check_notification(message);
        }
    }
}

/// An expected message with `…` as JSON.
fn pattern(text: &str) -> Value {
    let text = text
        .replace("{…}", "{\"…\":\"…\"}")
        .replace(",…}", ",\"…\":\"…\"}")
        .replace(":…", ":\"…\"");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn matches(expected: &Value, received: &Value, names: &mut BTreeMap<String, Value>) -> bool {
    match (expected, received) {
        (Value::String(text), _) if text == "…" => true,
        (Value::String(text), _) if text.starts_with('$') => {
            names.entry(text.clone()).or_insert_with(|| received.clone()) == received
        }
        (Value::Array(expected), Value::Array(received)) => {
            expected.len() == received.len()
                && expected.iter().zip(received).all(|(a, b)| matches(a, b, names))
        }
        (Value::Object(expected), Value::Object(received)) => {
            let is_open = expected.contains_key("…");
            let is_known = |name: &String| is_open || expected.contains_key(name);
            received.keys().all(is_known)
                && expected.iter().filter(|(name, _)| *name != "…").all(|(name, value)| {
                    received.get(name).is_some_and(|received| matches(value, received, names))
                })
        }
        _ => expected == received,
    }
}

#[test]
fn a_pattern_matches_what_it_names_and_nothing_else() {
    let does = |expected: &str, received: Value| {
        matches(&pattern(expected), &received, &mut BTreeMap::new())
    };
    assert!(does(r#"{"a":1,…}"#, json!({"a": 1, "b": 2})));
    assert!(!does(r#"{"a":1}"#, json!({"a": 1, "b": 2})));
    assert!(!does(r#"{"a":1,…}"#, json!({"b": 2})));
    assert!(does(r#"{"a":…,"b":{…}}"#, json!({"a": [1], "b": {}})));
    assert!(does(r#"["$x","$x"]"#, json!([5, 5])));
    assert!(!does(r#"["$x","$x"]"#, json!([5, 6])));
    assert!(!does(r#"[1]"#, json!([1, 2])));
}
