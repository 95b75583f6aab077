//! Holds reads of a process that wait for reply memory, because the client has not read earlier replies.
//!
//! Owner: the process task. A read whose connection closes stops counting, so that it does not delay the expiry of the
//! process record.

use exec_server_protocol::process::ProcessReadParams;
use tokio::sync::mpsc;

use crate::reply::Reply;

/// Reads that wait for memory.
#[derive(Debug)]
pub struct UnreadAnswers {
    count: usize,
    sender: mpsc::UnboundedSender<Option<Read>>,
    ready: mpsc::UnboundedReceiver<Option<Read>>,
}

type Read = (ProcessReadParams, Reply);

impl Default for UnreadAnswers {
    fn default() -> Self {
        let (sender, ready) = mpsc::unbounded_channel();
        Self { count: 0, sender, ready }
    }
}

impl UnreadAnswers {
    /// Whether a read is waiting.
    pub fn is_waiting(&self) -> bool {
        self.count > 0
    }

    /// Queues a read until memory for a reply of this many bytes is available.
    pub fn wait(&mut self, params: ProcessReadParams, reply: Reply, bytes: usize) {
        self.count += 1;
        let mut ticket = Ticket { sender: Some(self.sender.clone()) };
        reply.when_reserved(bytes, move |reply| ticket.send(Some((params, reply))));
    }

    /// The next read whose memory is reserved; `None` if a wait ended without memory.
    pub async fn next(&mut self) -> Option<Read> {
        let ready = self.ready.recv().await.flatten();
        self.count -= 1;
        ready
    }
}

/// Reports the end of one wait exactly once, also if it is dropped.
struct Ticket {
    sender: Option<mpsc::UnboundedSender<Option<Read>>>,
}

impl Ticket {
    fn send(&mut self, read: Option<Read>) {
        if let Some(sender) = self.sender.take() {
            // If the process task has stopped, the read is dropped, and its reply sends an error.
            let _ = sender.send(read);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(None);
    }
}
