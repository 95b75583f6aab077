//! A scripted model: one HTTP route, answered with server-sent events.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use super::scenario::{Scenario, ToolResult};

/// A Responses API on loopback that runs a [`Scenario`].
#[derive(Debug)]
pub(super) struct ScriptedModel {
    pub address: SocketAddr,
    scenario: Arc<Mutex<Scenario>>,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    pub fn start(scenario: Scenario) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let scenario = Arc::new(Mutex::new(scenario));
        let stopping = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&scenario), Arc::clone(&stopping));
        let acceptor = thread::spawn(move || run_acceptor(&listener, &shared.0, &shared.1));
        Self { address, scenario, stopping, acceptor: Some(acceptor) }
    }

    /// Stops the model and returns the scenario; the client must have exited, because open connections are awaited.
    pub fn stop(mut self) -> Scenario {
        self.end_threads();
        std::mem::take(&mut *lock(&self.scenario))
    }

    /// The last request that the model received.
    pub fn last_request(&self) -> Option<Value> {
        lock(&self.scenario).requests.last().cloned()
    }

    /// Results so far of the calls with this label.
    pub fn result(&self, label: &str) -> Option<ToolResult> {
        lock(&self.scenario).results.get(label).cloned()
    }

    pub fn end_threads(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            self.stopping.store(true, Ordering::SeqCst);
            // Our own connection wakes the acceptor, which then sees the flag.
            drop(TcpStream::connect(self.address));
            // A panic was printed already, and the client has failed without an answer.
            let _ = acceptor.join();
        }
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.end_threads();
    }
}

fn run_acceptor(listener: &TcpListener, scenario: &Mutex<Scenario>, stopping: &AtomicBool) {
    thread::scope(|scope| {
        for connection in listener.incoming().flatten() {
            if stopping.load(Ordering::SeqCst) {
                return;
            }
            // A broken connection shows in the client's exit.
            scope.spawn(move || run_connection(&connection, scenario).unwrap_or_default());
        }
    });
}

fn run_connection(mut connection: &TcpStream, scenario: &Mutex<Scenario>) -> io::Result<()> {
    let mut reader = BufReader::new(connection);
    while let Some((target, body)) = read_request(&mut reader)? {
        if !target.starts_with("POST /v1/responses ") {
            connection.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        }
        let items = lock(scenario).handle_request(&serde_json::from_slice(&body)?);
        let events = server_sent_events(items);
        let length = events.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length:";
        write!(connection, "{head} {length}\r\n\r\n{events}")?;
    }
    Ok(())
}

/// One request with a `content-length`; `None` once the client has closed.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut target = String::new();
    if reader.read_line(&mut target)? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((target, body)))
}

fn server_sent_events(items: Vec<Value>) -> String {
    let item_done = |item| json!({"type": "response.output_item.done", "item": item});
    let usage = json!({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
    let mut events = vec![json!({"type": "response.created", "response": {"id": "scripted"}})];
    events.extend(items.into_iter().map(item_done));
    events.push(
        json!({"type": "response.completed", "response": {"id": "scripted", "usage": usage}}),
    );
    let text = |event: &Value| {
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
    };
    events.iter().map(text).collect()
}

fn lock(scenario: &Mutex<Scenario>) -> MutexGuard<'_, Scenario> {
    // A panic in a model thread must not prevent the report.
    scenario.lock().unwrap_or_else(PoisonError::into_inner)
}
