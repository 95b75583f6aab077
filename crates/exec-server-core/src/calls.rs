//! Table of the calls of one client connection that have no answer yet.
//!
//! Owner: the client's connection. Ids count from 1, as all servers of this protocol expect.
//! Invariant: at most `limit` ordinary calls are in flight, plus one cleanup call.

use std::collections::HashMap;

/// Limit of pending calls; a caller that reaches it does not wait for answers.
pub const MAX_CALLS: usize = 1024;

/// Pending calls of one connection.
#[derive(Debug)]
pub struct Calls<T> {
    limit: usize,
    last_id: i64,
    waiting: HashMap<i64, Waiting<T>>,
    ordinary: usize,
    cleanups: usize,
}

/// Purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// The caller waits for the result.
    Ordinary,
    /// Releases a server resource, so it is sent even when the limit is reached.
    Cleanup,
}

/// The limit of pending calls is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reached the limit of {limit} pending requests")]
pub struct TooManyCalls {
    /// The limit.
    pub limit: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    kind: CallKind,
    answer: T,
}

impl<T> Calls<T> {
    /// An empty table for at most `limit` calls.
    pub fn new(limit: usize) -> Self {
        Self { limit, last_id: 0, waiting: HashMap::new(), ordinary: 0, cleanups: 0 }
    }

    /// Adds a call and returns its id.
    pub fn begin(&mut self, kind: CallKind, answer: T) -> Result<i64, TooManyCalls> {
        let is_full = self.ordinary + self.cleanups >= self.limit;
        let has_room = match kind {
            CallKind::Ordinary => !is_full,
            CallKind::Cleanup => !is_full || self.cleanups == 0,
        };
        if !has_room {
            return Err(TooManyCalls { limit: self.limit });
        }
        *self.count(kind) += 1;
        self.last_id += 1;
        self.waiting.insert(self.last_id, Waiting { kind, answer });
        Ok(self.last_id)
    }

    /// Removes a call that was answered or cancelled; returns its waiter.
    pub fn end(&mut self, id: i64) -> Option<T> {
        let Waiting { kind, answer } = self.waiting.remove(&id)?;
        *self.count(kind) -= 1;
        Some(answer)
    }

    /// Whether a call with this id was ever made.
    pub fn has_issued(&self, id: i64) -> bool {
        (1..=self.last_id).contains(&id)
    }

    /// Number of pending calls.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no call is pending.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The connection is lost: returns all pending calls, in call order.
    pub fn end_all(&mut self) -> Vec<T> {
        (self.ordinary, self.cleanups) = (0, 0);
        let mut all: Vec<_> = self.waiting.drain().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, waiting)| waiting.answer).collect()
    }

    fn count(&mut self, kind: CallKind) -> &mut usize {
        match kind {
            CallKind::Ordinary => &mut self.ordinary,
            CallKind::Cleanup => &mut self.cleanups,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CallKind::{Cleanup, Ordinary};
    use super::*;

    #[test]
    fn ids_count_from_one_and_an_answer_ends_a_call_once() {
        let mut calls = Calls::new(10);
        assert_eq!(calls.begin(Ordinary, "a"), Ok(1));
        assert_eq!(calls.begin(Ordinary, "b"), Ok(2));
        assert_eq!(calls.end(2), Some("b"));
        assert_eq!(calls.end(2), None);
        assert!(calls.has_issued(2) && !calls.has_issued(3) && !calls.has_issued(0));
        assert_eq!(calls.begin(Ordinary, "c"), Ok(3), "an id is never used again");
        assert_eq!(calls.end_all(), ["a", "c"]);
        assert!(calls.is_empty());
    }

    #[test]
    fn beyond_the_limit_there_is_room_for_one_cleanup() {
        let mut calls = Calls::new(2);
        calls.begin(Ordinary, ()).unwrap();
        calls.begin(Ordinary, ()).unwrap();
        assert_eq!(calls.begin(Ordinary, ()), Err(TooManyCalls { limit: 2 }));
        let cleanup = calls.begin(Cleanup, ()).unwrap();
        assert!(calls.begin(Cleanup, ()).is_err());
        calls.end(cleanup);
        assert!(calls.begin(Ordinary, ()).is_err(), "the extra place is not for ordinary calls");
        calls.end(1);
        assert!(calls.begin(Ordinary, ()).is_ok());
    }
}
