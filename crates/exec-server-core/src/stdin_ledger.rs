//! Applies writes to a process's stdin in order, each write id once, with backpressure when the child is slow.
//!
//! Owner: the process task. `T` is the reply handle of a writer.
//! Invariant: bytes reach the child in the order in which their writes arrived, including writes that waited.
//!
//! ```text
//! open ─close_after_queue▶ closing ─queue empty▶ closed
//!   └──────────── close_now (child gone) ──────────▲
//! ```

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use exec_server_protocol::limits::{
    MAX_QUEUED_STDIN_BYTES, MAX_WAITING_STDIN_BYTES, MAX_WAITING_STDIN_WRITES, REMEMBERED_WRITE_IDS,
};
use exec_server_protocol::process::WriteStatus;

/// The stdin of one process.
#[derive(Debug)]
pub struct StdinLedger<T> {
    state: State,
    accepted: HashSet<Arc<str>>,
    accepted_order: VecDeque<Arc<str>>,
    queue: VecDeque<Vec<u8>>,
    /// Bytes of the first queued write that the child has read.
    taken: usize,
    queued_bytes: usize,
    waiting: VecDeque<Waiting<T>>,
    waiting_bytes: usize,
}

/// Answer to a writer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write was accepted, or rejected with this status.
    Status(WriteStatus),
    /// The queue is full; the write was not accepted.
    Overloaded,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    Closing,
    Closed,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: T,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Write { id: Option<Arc<str>>, bytes: Vec<u8> },
    Close,
}

impl<T> StdinLedger<T> {
    /// An open stdin, or one that is closed from the start.
    pub fn new(is_open: bool) -> Self {
        Self {
            state: if is_open { State::Open } else { State::Closed },
            accepted: HashSet::new(),
            accepted_order: VecDeque::new(),
            queue: VecDeque::new(),
            taken: 0,
            queued_bytes: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Queues a write; the answer is returned now or, when the child is slow, by a later [`StdinLedger::handle_taken`].
    pub fn handle_write(
        &mut self,
        ticket: T,
        id: Option<String>,
        bytes: Vec<u8>,
    ) -> Option<(T, Answer)> {
        let id: Option<Arc<str>> = id.map(Arc::from);
        if id.as_ref().is_some_and(|id| self.accepted.contains(id)) {
            return Some((ticket, Answer::Status(WriteStatus::Accepted)));
        }
        if self.state != State::Open {
            return Some((ticket, Answer::Status(WriteStatus::StdinClosed)));
        }
        if self.waiting.is_empty() && self.has_room() {
            self.accept(id, bytes);
            return Some((ticket, Answer::Status(WriteStatus::Accepted)));
        }
        if self.waiting_bytes + bytes.len() > MAX_WAITING_STDIN_BYTES
            || self.waiting.len() >= MAX_WAITING_STDIN_WRITES
        {
            return Some((ticket, Answer::Overloaded));
        }
        self.waiting_bytes += bytes.len();
        self.waiting.push_back(Waiting { ticket, action: Action::Write { id, bytes } });
        None
    }

    /// Closes stdin after all queued writes.
    pub fn handle_close(&mut self, ticket: T) -> Option<(T, Answer)> {
        if self.state != State::Open {
            return Some((ticket, Answer::Status(WriteStatus::StdinClosed)));
        }
        if self.waiting.is_empty() {
            self.start_closing();
            return Some((ticket, Answer::Status(WriteStatus::Accepted)));
        }
        self.waiting.push_back(Waiting { ticket, action: Action::Close });
        None
    }

    /// The next bytes for the child.
    pub fn pending(&self) -> Option<&[u8]> {
        self.queue.front().map(|bytes| &bytes[self.taken..])
    }

    /// The child accepted `count` of the pending bytes; passes the answers that are due to `answer`.
    pub fn handle_taken(&mut self, count: usize, mut answer: impl FnMut(T, Answer)) {
        self.taken += count;
        self.queued_bytes -= count;
        if self.queue.front().is_some_and(|front| front.len() == self.taken) {
            self.queue.pop_front();
            self.taken = 0;
        }
        while self.has_room()
            && let Some(next) = self.waiting.pop_front()
        {
            let status = self.settle(next.action);
            answer(next.ticket, Answer::Status(status));
        }
        self.finish_closing();
    }

    /// The child accepts no more input; answers all waiting writers.
    pub fn close_now(&mut self, mut answer: impl FnMut(T, Answer)) {
        self.state = State::Closed;
        self.queue.clear();
        self.taken = 0;
        self.queued_bytes = 0;
        self.waiting_bytes = 0;
        for waiting in self.waiting.drain(..) {
            answer(waiting.ticket, Answer::Status(WriteStatus::StdinClosed));
        }
    }

    /// Whether the owner should close the pipe.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn settle(&mut self, action: Action) -> WriteStatus {
        match action {
            Action::Write { bytes, .. } if self.state != State::Open => {
                self.waiting_bytes -= bytes.len();
                WriteStatus::StdinClosed
            }
            Action::Write { id, bytes } => {
                self.waiting_bytes -= bytes.len();
                // A write repeated after a lost connection may have waited beside its first copy.
                if !id.as_ref().is_some_and(|id| self.accepted.contains(id)) {
                    self.accept(id, bytes);
                }
                WriteStatus::Accepted
            }
            Action::Close if self.state != State::Open => WriteStatus::StdinClosed,
            Action::Close => {
                self.start_closing();
                WriteStatus::Accepted
            }
        }
    }

    fn accept(&mut self, id: Option<Arc<str>>, bytes: Vec<u8>) {
        if let Some(id) = id {
            if self.accepted_order.len() == REMEMBERED_WRITE_IDS {
                let oldest = self.accepted_order.pop_front().expect("the ledger is full");
                self.accepted.remove(&oldest);
            }
            self.accepted.insert(id.clone());
            self.accepted_order.push_back(id);
        }
        if !bytes.is_empty() {
            self.queued_bytes += bytes.len();
            self.queue.push_back(bytes);
        }
    }

    fn start_closing(&mut self) {
        self.state = State::Closing;
        self.finish_closing();
    }

    fn finish_closing(&mut self) {
        if self.state == State::Closing && self.queue.is_empty() {
            self.state = State::Closed;
        }
    }

    fn has_room(&self) -> bool {
        self.queued_bytes < MAX_QUEUED_STDIN_BYTES
    }
}

#[cfg(test)]
mod tests;
