//! Queues the body of a streamed HTTP response between the connection task and its reader.
//!
//! Invariant: a body ends without an error only if it is complete; a full queue or a disconnect is an error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use exec_server_protocol::http::HttpBodyDeltaNotification;

use crate::error::ExecServerError;

/// Limit of queued pieces per body.
const MAX_QUEUED_DELTAS: usize = 256;
/// Limit of queued bytes over all bodies of a connection.
pub(crate) const MAX_QUEUED_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Limit of one piece; a larger one is a protocol error.
const MAX_DELTA_BYTES: usize = 1024 * 1024;

/// Counts the queued bytes of all bodies of one connection.
#[derive(Debug, Default)]
pub(crate) struct BodyBudget {
    queued: AtomicUsize,
}

/// The queue of one body.
#[derive(Debug)]
pub(crate) struct BodyQueue {
    state: Mutex<State>,
    budget: Arc<BodyBudget>,
}

#[derive(Debug, Default)]
struct State {
    deltas: VecDeque<Bytes>,
    last_seq: u64,
    end: Option<Result<(), ExecServerError>>,
    waker: Option<Waker>,
}

impl BodyQueue {
    pub(crate) fn new(budget: Arc<BodyBudget>) -> Self {
        Self { state: Mutex::default(), budget }
    }

    /// Queues a piece and returns whether the body has ended; fails if the piece violates the protocol.
    pub(crate) fn handle_delta(&self, delta: HttpBodyDeltaNotification) -> Result<bool, String> {
        let bytes = Bytes::from(delta.delta_base64.0);
        if bytes.len() > MAX_DELTA_BYTES {
            return Err(format!("an HTTP body delta is longer than {MAX_DELTA_BYTES} bytes"));
        }
        let mut state = self.lock();
        if state.end.is_some() {
            return Ok(true);
        }
        let expected = state.last_seq + 1;
        let problem = if delta.seq != expected {
            Some(format!("received seq {}, expected {expected}", delta.seq))
        } else if state.deltas.len() >= MAX_QUEUED_DELTAS {
            Some(format!("more than {MAX_QUEUED_DELTAS} body deltas wait for their reader"))
        } else if !self.budget.take(bytes.len()) {
            Some(format!("queued body deltas exceed {MAX_QUEUED_BODY_BYTES} bytes"))
        } else {
            None
        };
        if let Some(problem) = problem {
            state.finish(Err(ExecServerError::HttpBody(problem)));
            return Ok(true);
        }
        state.last_seq = delta.seq;
        if !bytes.is_empty() {
            state.deltas.push_back(bytes);
        }
        match (delta.done, delta.error) {
            (_, Some(error)) => state.finish(Err(ExecServerError::HttpBody(error))),
            (true, None) => state.finish(Ok(())),
            (false, None) => state.wake(),
        }
        Ok(state.end.is_some())
    }

    /// Ends the body with an error, unless it has ended already.
    pub(crate) fn fail(&self, error: ExecServerError) {
        self.lock().finish(Err(error));
    }

    /// The next piece; `None` at the end of a complete body.
    pub(crate) fn poll_next(
        &self,
        cx: &mut Context,
    ) -> Poll<Option<Result<Bytes, ExecServerError>>> {
        let mut state = self.lock();
        if let Some(bytes) = state.deltas.pop_front() {
            self.budget.give_back(bytes.len());
            return Poll::Ready(Some(Ok(bytes)));
        }
        match &state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error.clone()))),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl Drop for BodyQueue {
    fn drop(&mut self) {
        let queued = self.lock().deltas.iter().map(Bytes::len).sum();
        self.budget.give_back(queued);
    }
}

impl State {
    fn finish(&mut self, end: Result<(), ExecServerError>) {
        self.end.get_or_insert(end);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl BodyBudget {
    fn take(&self, bytes: usize) -> bool {
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let fits = queued <= MAX_QUEUED_BODY_BYTES;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.queued.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(seq: u64, len: usize, done: bool) -> HttpBodyDeltaNotification {
        HttpBodyDeltaNotification {
            request_id: "http-1".to_owned(),
            seq,
            delta_base64: vec![0; len].into(),
            done,
            error: None,
            error_kind: None,
        }
    }

    fn next(queue: &BodyQueue) -> Poll<Option<Result<usize, String>>> {
        let mut cx = Context::from_waker(Waker::noop());
        let next = queue.poll_next(&mut cx);
        next.map(|next| next.map(|piece| piece.map(|b| b.len()).map_err(|e| e.to_string())))
    }

    #[test]
    fn a_whole_body_ends_cleanly_also_if_its_last_piece_has_data() {
        let queue = BodyQueue::new(Arc::default());
        assert_eq!(queue.handle_delta(delta(1, 3, false)), Ok(false));
        assert_eq!(queue.handle_delta(delta(2, 4, true)), Ok(true));
        assert_eq!(next(&queue), Poll::Ready(Some(Ok(3))));
        assert_eq!(next(&queue), Poll::Ready(Some(Ok(4))));
        assert_eq!(next(&queue), Poll::Ready(None));
        queue.fail(ExecServerError::HttpBody("late".to_owned()));
        assert_eq!(next(&queue), Poll::Ready(None), "the end stays the end");
    }

    #[test]
    fn a_broken_link_and_a_missing_piece_are_errors_after_the_received_data() {
        let queue = BodyQueue::new(Arc::default());
        queue.handle_delta(delta(1, 3, false)).unwrap();
        queue.fail(ExecServerError::HttpBody("cut".to_owned()));
        assert_eq!(next(&queue), Poll::Ready(Some(Ok(3))));
        assert!(matches!(next(&queue), Poll::Ready(Some(Err(text))) if text.contains("cut")));
        let queue = BodyQueue::new(Arc::default());
        assert_eq!(queue.handle_delta(delta(2, 3, false)), Ok(true));
        let expected = "received seq 2, expected 1";
        assert!(matches!(next(&queue), Poll::Ready(Some(Err(text))) if text.contains(expected)));
    }

    #[test]
    fn a_reader_that_does_not_read_gets_an_error_and_the_budget_is_shared() {
        let budget = Arc::<BodyBudget>::default();
        let first = BodyQueue::new(budget.clone());
        for seq in 1..=16 {
            assert_eq!(first.handle_delta(delta(seq, 1024 * 1024, false)), Ok(false));
        }
        let second = BodyQueue::new(budget.clone());
        assert_eq!(second.handle_delta(delta(1, 1, false)), Ok(true));
        assert!(matches!(next(&second), Poll::Ready(Some(Err(text))) if text.contains("16777216")));
        drop(first);
        let third = BodyQueue::new(budget);
        assert_eq!(third.handle_delta(delta(1, 1, false)), Ok(false));
        for seq in 2..=257 {
            third.handle_delta(delta(seq, 1, false)).unwrap();
        }
        assert!(third.lock().end.as_ref().unwrap().is_err(), "the number of pieces is bounded too");
    }

    #[test]
    fn an_oversized_piece_breaks_the_protocol() {
        let queue = BodyQueue::new(Arc::default());
        assert!(queue.handle_delta(delta(1, MAX_DELTA_BYTES + 1, false)).is_err());
    }
}
