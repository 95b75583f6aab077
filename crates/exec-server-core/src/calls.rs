//! Keeps the calls of one client connection that wait for an answer.
//!
//! Owner: the client's connection. Ids count from 1, as every server of this protocol knows them.
//! Invariant: at most `limit` ordinary calls are in flight, and one more that cleans up after another.

use std::collections::HashMap;

/// Calls that may wait for an answer at once; more are the sign of a caller that does not wait.
pub const MAX_CALLS: usize = 1024;

/// The calls of one connection.
#[derive(Debug)]
pub struct Calls<T> {
    limit: usize,
    last_id: i64,
    waiting: HashMap<i64, Waiting<T>>,
    ordinary: usize,
    cleanups: usize,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// The caller waits for the result.
    Ordinary,
    /// Releases a server resource, so it is sent even when the limit is reached.
    Cleanup,
}

/// There is no room for another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reached the limit of {limit} pending requests")]
pub struct TooManyCalls {
    /// How many may wait at once.
    pub limit: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    kind: CallKind,
    answer: T,
}

impl<T> Calls<T> {
    /// No calls yet, and at most `limit` at once.
    pub fn new(limit: usize) -> Self {
        Self { limit, last_id: 0, waiting: HashMap::new(), ordinary: 0, cleanups: 0 }
    }

    /// Takes a call in, and returns its id.
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

    /// The answer to a call came, or its caller went away; returns who waited.
    pub fn end(&mut self, id: i64) -> Option<T> {
        let Waiting { kind, answer } = self.waiting.remove(&id)?;
        *self.count(kind) -= 1;
        Some(answer)
    }

    /// Whether a call of this id has been made, be it answered or not.
    pub fn has_issued(&self, id: i64) -> bool {
        (1..=self.last_id).contains(&id)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
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
