//! A scripted server on an in-memory link.

use std::sync::Arc;

use exec_server::client::Wire;
use exec_server::{
    DialWith, ExecServerClientConnectOptions, ExecServerConnection, ExecServerError,
    RemoteExecServerClient,
};
use exec_server_testkit::DEADLINE;
use exec_server_transport::lines::LineWire;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Dialler of a client; every new link is returned by [`Peers::accept`].
pub struct Peers {
    links: mpsc::UnboundedReceiver<DuplexStream>,
}

/// The server's end of one link.
pub struct Peer {
    lines: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

/// A request of the client.
#[derive(Debug)]
pub struct Asked {
    pub id: i64,
    pub method: String,
    pub params: Value,
}

/// A client of a scripted server.
pub fn scripted_client() -> (RemoteExecServerClient, Peers) {
    scripted_client_with(ExecServerClientConnectOptions::default())
}

pub fn scripted_client_with(
    options: ExecServerClientConnectOptions,
) -> (RemoteExecServerClient, Peers) {
    let (sender, links) = mpsc::unbounded_channel();
    let dial = DialWith::new("a script", move || {
        let sender = sender.clone();
        async move { dial(&sender) }
    });
    (RemoteExecServerClient::over(Arc::new(dial), options), Peers { links })
}

fn dial(sender: &mpsc::UnboundedSender<DuplexStream>) -> Result<Box<dyn Wire>, ExecServerError> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let refused = || ExecServerError::Disconnected { reason: "no listener".into() };
    sender.send(theirs).map_err(|_| refused())?;
    let (reader, writer) = tokio::io::split(ours);
    Ok(Box::new(LineWire::new(reader, writer, 64 * 1024 * 1024)))
}

/// One connection of a scripted server, without recovery.
pub async fn scripted_connection() -> (ExecServerConnection, Peer) {
    let (sender, links) = mpsc::unbounded_channel();
    let mut peers = Peers { links };
    let dial = DialWith::new("a script", move || {
        let sender = sender.clone();
        async move { dial(&sender) }
    });
    let options = ExecServerClientConnectOptions::default();
    let serving = async {
        let mut peer = peers.accept().await;
        peer.serve_initialize("s-1").await;
        peer
    };
    let (connection, peer) = tokio::join!(ExecServerConnection::dial(&dial, &options), serving);
    (connection.expect("the script answers"), peer)
}

impl Peers {
    /// The next link that the client opens.
    pub async fn accept(&mut self) -> Peer {
        let link = timeout(DEADLINE, self.links.recv()).await.expect("the client dials in time");
        let (reader, writer) = tokio::io::split(link.expect("the client lives"));
        Peer { lines: BufReader::new(reader).lines(), writer }
    }

    /// The next link, with its session opened or resumed.
    pub async fn accept_session(&mut self, session_id: &str) -> Peer {
        let mut peer = self.accept().await;
        peer.serve_initialize(session_id).await;
        peer
    }

    /// Whether the client has dialled again.
    pub fn has_dialled(&mut self) -> bool {
        self.links.try_recv().is_ok()
    }
}

impl Peer {
    /// The next message of the client; none at its end.
    pub async fn next(&mut self) -> Option<Value> {
        let line = timeout(DEADLINE, self.lines.next_line()).await.expect("it comes in time");
        Some(serde_json::from_str(&line.ok()??).expect("the client sends JSON"))
    }

    /// The next request, which must be of this method.
    pub async fn expect(&mut self, method: &str) -> Asked {
        let message = self.next().await.expect("the client is there");
        let asked = Asked {
            id: message["id"].as_i64().unwrap_or_else(|| panic!("no request: {message}")),
            method: message["method"].as_str().expect("a method").to_owned(),
            params: message["params"].clone(),
        };
        assert_eq!(asked.method, method, "{message}");
        asked
    }

    pub async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        timeout(DEADLINE, self.writer.write_all(line.as_bytes()))
            .await
            .expect("the client reads in time")
            .expect("the link holds");
    }

    pub async fn reply(&mut self, asked: &Asked, result: Value) {
        self.send(json!({"id": asked.id, "result": result})).await;
    }

    pub async fn refuse(&mut self, asked: &Asked, code: i64, message: &str) {
        self.send(json!({"id": asked.id, "error": {"code": code, "message": message}})).await;
    }

    pub async fn notify(&mut self, method: &str, params: Value) {
        self.send(json!({"method": method, "params": params})).await;
    }

    /// Answers the handshake and returns its params.
    pub async fn serve_initialize(&mut self, session_id: &str) -> Asked {
        let asked = self.expect("initialize").await;
        self.finish_initialize(&asked, session_id).await;
        asked
    }

    pub async fn finish_initialize(&mut self, asked: &Asked, session_id: &str) {
        self.finish_initialize_with(asked, session_id, json!({})).await;
    }

    /// The same, with further capabilities.
    pub async fn finish_initialize_with(
        &mut self,
        asked: &Asked,
        session_id: &str,
        capabilities: Value,
    ) {
        let usual =
            json!({"processCloseStdin": true, "fileWriteStreaming": true, "httpCancel": true});
        let info = json!({"shell": {"name": "sh", "path": "/bin/sh"}, "cwd": "file:///",
            "capabilities": with(usual, capabilities)});
        self.reply(asked, json!({"sessionId": session_id, "environmentInfo": info})).await;
        let said = self.next().await.expect("the client is there");
        assert_eq!(said["method"], "initialized");
    }

    /// Answers the start of a process without a sandbox, and returns its id.
    pub async fn serve_start(&mut self) -> String {
        let asked = self.expect("process/start").await;
        let id = asked.params["processId"].as_str().expect("an id").to_owned();
        self.reply(&asked, json!({"processId": id, "sandboxType": "none"})).await;
        id
    }

    pub async fn output(&mut self, id: &str, seq: u64, text: &str) {
        self.notify("process/output", output(id, seq, text)).await;
    }

    pub async fn exited(&mut self, id: &str, seq: u64, code: i32) {
        let params = json!({"processId": id, "seq": seq, "exitCode": code, "sandboxDenied": false});
        self.notify("process/exited", params).await;
    }

    pub async fn closed(&mut self, id: &str, seq: u64) {
        self.notify("process/closed", json!({"processId": id, "seq": seq})).await;
    }

    /// Answers a read of a process, and returns its cursor.
    pub async fn serve_read(&mut self, answer: Value) -> u64 {
        let asked = self.expect("process/read").await;
        self.reply(&asked, answer).await;
        asked.params["afterSeq"].as_u64().expect("a cursor")
    }
}

fn output(id: &str, seq: u64, text: &str) -> Value {
    let chunk = exec_server::protocol::base64::encode(text.as_bytes());
    json!({"processId": id, "seq": seq, "stream": "stdout", "chunk": chunk})
}

/// The answer to a read: chunks by number and text, and the next number.
pub fn read_answer(chunks: &[(u64, &str)], next_seq: u64) -> Value {
    let chunks: Vec<_> = chunks
        .iter()
        .map(|(seq, text)| {
            let chunk = exec_server::protocol::base64::encode(text.as_bytes());
            json!({"seq": seq, "stream": "stdout", "chunk": chunk})
        })
        .collect();
    json!({"chunks": chunks, "nextSeq": next_seq, "exited": false, "exitCode": null,
        "closed": false, "failure": null, "sandboxDenied": false})
}

/// Overrides members of a JSON object.
pub fn with(mut base: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        base[key] = value.clone();
    }
    base
}
