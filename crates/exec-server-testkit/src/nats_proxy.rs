//! A proxy in front of NATS that loses, doubles, swaps or replays one message that a client publishes, or adds to each of
//! them what a later version might send.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFault {
    /// It does not arrive.
    Lose,
    /// It arrives twice.
    Double,
    /// It arrives after the next one of its subject.
    Swap,
    /// It arrives, and once more whenever [`NatsProxy::replay`] is called.
    Keep,
}

/// A proxy to one NATS server.
pub struct NatsProxy {
    address: SocketAddr,
    /// The server behind the proxy.
    server: String,
    plan: Arc<Mutex<Option<Plan>>>,
    kept: Arc<Mutex<Vec<u8>>>,
    task: JoinHandle<()>,
}

/// A protobuf field that no version knows: number 1000, with the text `new`.
const UNKNOWN_FIELD: &[u8] = &[0xc2, 0x3e, 3, b'n', b'e', b'w'];

/// A trunk message of a kind that no version knows, as part of a batch: field 3, with kind 99 and link 7.
const UNKNOWN_ITEM: &[u8] = &[0x1a, 4, 0x08, 99, 0x10, 7];

#[derive(Clone)]
struct Plan {
    fault: MessageFault,
    subject_part: String,
    least_bytes: usize,
}

impl NatsProxy {
    /// Starts a proxy to the server at this URL.
    pub async fn start(url: &str) -> Self {
        Self::start_with(url, false).await
    }

    /// Starts a proxy that adds unknown fields to all messages of its clients, and unknown kinds to those on the lanes.
    pub async fn start_newer(url: &str) -> Self {
        Self::start_with(url, true).await
    }

    async fn start_with(url: &str, is_newer: bool) -> Self {
        let server = url.strip_prefix("nats://").expect("a NATS URL").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (plan, kept) = (Arc::<Mutex<Option<Plan>>>::default(), Arc::default());
        let (far_end, shared) = (server.clone(), (plan.clone(), Arc::clone(&kept)));
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&far_end).await else { continue };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((from, mut back), (mut answers, to)) = (near.into_split(), far.into_split());
                let (plan, kept) = shared.clone();
                tokio::spawn(pass_on(from, to, plan, kept, is_newer));
                tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
            }
        });
        Self { address, server, plan, kept, task }
    }

    /// The URL for `--nats`.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Applies a fault to the next published message with at least so many bytes on a subject that contains this text.
    pub fn fault_next(&self, fault: MessageFault, subject_part: &str, least_bytes: usize) {
        let plan = Plan { fault, subject_part: subject_part.to_owned(), least_bytes };
        *self.plan.lock().expect("no holder panics") = Some(plan);
    }

    /// Publishes the message that was kept last once more; when this returns, it is on its way to the subscribers.
    pub async fn replay(&self) {
        let message = self.kept.lock().expect("no holder panics").clone();
        assert!(!message.is_empty(), "no message was kept");
        crate::nats::send(&format!("nats://{}", self.server), &message).await;
    }

    /// Whether the fault has happened.
    pub fn is_done(&self) -> bool {
        self.plan.lock().expect("no holder panics").is_none()
    }
}

impl Drop for NatsProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Passes on what a client sends, message by message.
async fn pass_on(
    from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    plan: Arc<Mutex<Option<Plan>>>,
    kept: Arc<Mutex<Vec<u8>>>,
    is_newer: bool,
) {
    let mut from = BufReader::new(from);
    let mut held: Option<Vec<u8>> = None;
    loop {
        let mut line = Vec::new();
        if !matches!(from.read_until(b'\n', &mut line).await, Ok(1..)) {
            return;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        let mut words = text.split_ascii_whitespace();
        if !matches!(words.next(), Some("PUB" | "HPUB")) {
            if to.write_all(&line).await.is_err() {
                return;
            }
            continue;
        }
        let subject = words.next().unwrap_or_default();
        let length: usize = words.last().and_then(|it| it.parse().ok()).expect("a length");
        let mut payload = vec![0; length + 2];
        if from.read_exact(&mut payload).await.is_err() {
            return;
        }
        if is_newer {
            line = add_unknown(&text, subject, &mut payload);
        }
        line.extend(payload);
        let fault = {
            let mut plan = plan.lock().expect("no holder panics");
            let hits = |it: &Plan| subject.contains(&it.subject_part) && length >= it.least_bytes;
            if plan.as_ref().is_some_and(hits) { plan.take() } else { None }
        };
        let out = match fault.map(|plan| plan.fault) {
            Some(MessageFault::Lose) => Vec::new(),
            Some(MessageFault::Double) => line.repeat(2),
            Some(MessageFault::Keep) => {
                line.clone_into(&mut kept.lock().expect("no holder panics"));
                line
            }
            Some(MessageFault::Swap) => {
                held = Some(line);
                Vec::new()
            }
            None => line.into_iter().chain(held.take().into_iter().flatten()).collect(),
        };
        if to.write_all(&out).await.is_err() {
            return;
        }
    }
}

/// Adds to a message; returns its new first line.
fn add_unknown(line: &str, subject: &str, payload: &mut Vec<u8>) -> Vec<u8> {
    payload.truncate(payload.len() - 2);
    if subject.contains(".frames.") {
        payload.extend(UNKNOWN_ITEM);
    }
    payload.extend(UNKNOWN_FIELD);
    let (start, length) = line.trim_end().rsplit_once(' ').expect("a length comes last");
    let added = if subject.contains(".frames.") { UNKNOWN_ITEM.len() } else { 0 };
    let length: usize = length.parse().expect("a length");
    payload.extend(b"\r\n");
    format!("{start} {}\r\n", length + added + UNKNOWN_FIELD.len()).into_bytes()
}
