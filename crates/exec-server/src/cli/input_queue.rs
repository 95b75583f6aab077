//! Queue of stdin bytes for a process; detects local keys (detach, escape) on the way.
//!
//! Terminal keys are read even while the connection is stalled, because the user may want to leave. A pipe is read only
//! as fast as its bytes are sent.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::detach_keys::{DetachKeys, DetachWatch};
use super::escapes::{Escape, EscapeChar, EscapeWatch, Piece};
use super::stdin;

/// More than any paste; beyond it keys are checked for local sequences and dropped.
const MAX_KEYS_QUEUED: usize = 8 * 1024 * 1024;
/// Enough to saturate a link.
const MAX_PIPE_QUEUED: usize = 512 * 1024;

/// Keys that this client handles itself.
#[derive(Debug, Clone)]
pub struct LocalKeys {
    pub detach: DetachKeys,
    pub escape: EscapeChar,
}

/// Stdin bytes that wait to be sent.
pub struct InputQueue {
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
    /// None if stdin is a pipe.
    keys: Option<KeyWatch>,
    queue: BytesMut,
    events: VecDeque<Typed>,
    /// Whether the process accepts no more input.
    is_refused: bool,
    has_dropped: bool,
}

struct KeyWatch {
    escapes: EscapeWatch,
    detach: DetachWatch,
    can_detach: bool,
}

/// An event of the queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    /// Bytes were queued.
    More,
    /// A local key sequence.
    Escape(Escape),
    /// The queue is full and keys were dropped; reported once until bytes are taken.
    Dropped,
    /// Stdin ended.
    End,
}

impl InputQueue {
    /// Reads a terminal and detects local keys.
    pub fn keys(keys: LocalKeys) -> Self {
        let watch = KeyWatch {
            escapes: EscapeWatch::new(keys.escape),
            detach: DetachWatch::new(keys.detach),
            can_detach: true,
        };
        Self::new(Some(watch))
    }

    /// Reads a pipe or a file unchanged.
    pub fn pipe() -> Self {
        Self::new(None)
    }

    fn new(keys: Option<KeyWatch>) -> Self {
        Self {
            stdin: Some(stdin::read()),
            keys,
            queue: BytesMut::new(),
            events: VecDeque::new(),
            is_refused: false,
            has_dropped: false,
        }
    }

    /// Whether [`InputQueue::next`] is worth waiting for.
    pub fn wants_more(&self) -> bool {
        let has_room =
            self.keys.is_some() || (!self.is_refused && self.queue.len() < MAX_PIPE_QUEUED);
        !self.events.is_empty() || (self.stdin.is_some() && has_room)
    }

    /// The next event; cancel-safe.
    pub async fn next(&mut self) -> Typed {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let Some(stdin) = &mut self.stdin else { return std::future::pending().await };
            let held_until = self.keys.as_ref().and_then(|keys| keys.detach.poll_timeout());
            tokio::select! {
                typed = stdin.recv() => match typed {
                    Some(bytes) => self.handle_typed(&bytes),
                    None => {
                        self.stdin = None;
                        self.events.push_back(Typed::End);
                    }
                },
                () = sleep_until(held_until), if held_until.is_some() => {
                    let keys = self.keys.as_mut().expect("keys are held by it");
                    let bytes = keys.detach.handle_timeout(Instant::now());
                    self.queue(&bytes);
                }
            }
        }
    }

    /// Takes up to `most` queued bytes.
    pub fn take(&mut self, most: usize) -> Option<Bytes> {
        if self.queue.is_empty() {
            return None;
        }
        self.has_dropped = false;
        let len = self.queue.len().min(most);
        Some(self.queue.split_to(len).freeze())
    }

    /// Whether stdin has ended, and everything before its end was taken.
    pub fn is_over(&self) -> bool {
        self.stdin.is_none() && self.queue.is_empty()
    }

    /// Discards input from now on; local keys still work.
    pub fn refuse(&mut self) {
        self.is_refused = true;
        self.queue.clear();
    }

    /// Disables the detach keys: they are passed on, and input after a detach escape is not dropped.
    pub fn forbid_detach(&mut self) {
        let Some(keys) = &mut self.keys else { return };
        keys.can_detach = false;
        let none = DetachWatch::new(DetachKeys::none());
        let held = std::mem::replace(&mut keys.detach, none).into_held();
        self.queue(&held);
    }

    fn handle_typed(&mut self, typed: &[u8]) {
        let Some(keys) = &mut self.keys else { return self.queue(typed) };
        let mut passed = Vec::with_capacity(typed.len());
        for piece in keys.escapes.handle_typed(typed) {
            match piece {
                Piece::Bytes(bytes) => {
                    let typed = keys.detach.handle_typed(Instant::now(), &bytes);
                    passed.extend(typed.bytes);
                    if typed.is_detached {
                        self.events.push_back(Typed::Escape(Escape::Detach));
                        break;
                    }
                }
                Piece::Escape(escape) => {
                    self.events.push_back(Typed::Escape(escape));
                    if escape == Escape::Leave || (escape == Escape::Detach && keys.can_detach) {
                        break;
                    }
                }
            }
        }
        self.queue(&passed);
    }

    fn queue(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.is_refused {
            return;
        }
        let has_room = self.keys.is_none() || self.queue.len() + bytes.len() <= MAX_KEYS_QUEUED;
        if has_room {
            self.queue.extend_from_slice(bytes);
            self.events.push_back(Typed::More);
        } else if !std::mem::replace(&mut self.has_dropped, true) {
            self.events.push_back(Typed::Dropped);
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}
