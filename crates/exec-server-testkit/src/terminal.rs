//! Runs a program on a pseudoterminal and scripts its input and output.
//!
//! The terminal belongs to a separate exec-server, so this fixture relies on what the terminal tests check.

use serde_json::{Value, json};

use crate::client::{TestClient, chunk};
use crate::executor::TestExecutor;
use crate::isolation::{home, state_home};

/// A program that runs on a terminal.
pub struct Terminal {
    client: TestClient,
    /// All output so far.
    shown: String,
    /// Length of the output that was already waited for.
    read: usize,
    writes: u32,
    _host: TestExecutor,
}

const ID: &str = "terminal";

impl Terminal {
    /// Starts a program on a terminal of 24 by 80, with these additional variables.
    pub async fn start(argv: &[&str], env: &[(&str, &str)]) -> Self {
        let host = TestExecutor::start().await;
        let mut client = host.client().await;
        let mut variables = json!({"TERM": "xterm", "PATH": std::env::var("PATH").unwrap_or_default(),
                "HOME": home(), "XDG_STATE_HOME": state_home()});
        for (name, value) in env {
            variables[*name] = json!(value);
        }
        let more = json!({"tty": true, "env": variables, "outputRetention": 64 * 1024 * 1024});
        client.start(ID, argv, more).await.expect("the program starts");
        Self { client, shown: String::new(), read: 0, writes: 0, _host: host }
    }

    /// Types keys.
    pub async fn type_keys(&mut self, keys: &str) {
        self.writes += 1;
        let reply = self.client.write(ID, &self.writes.to_string(), keys).await;
        assert_eq!(reply, Ok(json!({"status": "accepted"})));
    }

    /// Waits until `text` appears after the output waited for before; returns the output up to its end.
    pub async fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(place) = self.shown[self.read..].find(text) {
                let end = self.read + place + text.len();
                let seen = self.shown[self.read..end].to_owned();
                self.read = end;
                return seen;
            }
            let event = self.client.process_event(ID).await;
            if event["method"] != "process/output" {
                panic!("the program ended before it showed {text:?}: {:?}", self.shown);
            }
            self.show(&event);
        }
    }

    /// Changes the size.
    pub async fn resize(&mut self, rows: u16, cols: u16) {
        let params = json!({"processId": ID, "rows": rows, "cols": cols});
        self.client.call("process/resize", params).await.expect("it is a terminal");
    }

    /// Sends a signal to the program and its descendants.
    pub async fn signal(&mut self, name: &str) {
        self.client.signal(ID, name).await;
    }

    /// Waits for the exit of the program; returns exit code and all output.
    pub async fn finish(mut self) -> (i64, String) {
        let mut code = -1;
        loop {
            let event = self.client.process_event(ID).await;
            match event["method"].as_str() {
                Some("process/output") => self.show(&event),
                Some("process/exited") => {
                    code = event["params"]["exitCode"].as_i64().expect("a number");
                }
                _ => return (code, self.shown),
            }
        }
    }

    fn show(&mut self, event: &Value) {
        self.shown.push_str(&String::from_utf8_lossy(&chunk(&event["params"])));
    }
}
