//! Bounds how many ordinary requests of a connection run at once; control requests always run.
//!
//! Owner: the connection task. Waiting requests start in order of arrival.

use std::collections::VecDeque;

use exec_server_protocol::methods::Lane;

/// Request slots and the waiting queue of one connection.
#[derive(Debug)]
pub struct Admission<T> {
    limit: usize,
    waiting_limit: usize,
    running: usize,
    waiting: VecDeque<T>,
}

/// Outcome for a new request.
#[derive(Debug, PartialEq, Eq)]
pub enum Admitted<T> {
    /// The request starts now.
    Run(T),
    /// The request is queued; [`Admission::poll_next`] will return it.
    Waits,
    /// The queue is full.
    Refused(T),
}

impl<T> Admission<T> {
    /// Runs at most `limit` ordinary requests and queues at most `waiting_limit`.
    pub fn new(limit: usize, waiting_limit: usize) -> Self {
        Self { limit, waiting_limit, running: 0, waiting: VecDeque::new() }
    }

    /// Decides about a new request; an ordinary one is queued unless it `may_run`.
    pub fn handle_request(&mut self, lane: Lane, may_run: bool, request: T) -> Admitted<T> {
        if lane == Lane::Control {
            return Admitted::Run(request);
        }
        if may_run && self.has_place() {
            self.running += 1;
            return Admitted::Run(request);
        }
        if self.waiting.len() >= self.waiting_limit {
            return Admitted::Refused(request);
        }
        self.waiting.push_back(request);
        Admitted::Waits
    }

    /// Whether an ordinary request could start now without overtaking a queued one.
    pub fn has_place(&self) -> bool {
        self.waiting.is_empty() && self.running < self.limit
    }

    /// Frees the slots of `count` ordinary requests that were answered since the last call.
    pub fn handle_finished(&mut self, count: usize) {
        self.running -= count;
    }

    /// Whether no ordinary request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    /// The next queued request, if one may start.
    pub fn poll_next(&mut self) -> Option<T> {
        if self.running >= self.limit {
            return None;
        }
        let request = self.waiting.pop_front()?;
        self.running += 1;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_requests_wait_their_turn_and_control_does_not() {
        let mut admission = Admission::new(1, 2);
        assert_eq!(admission.handle_request(Lane::Ordinary, true, 1), Admitted::Run(1));
        assert_eq!(admission.handle_request(Lane::Ordinary, true, 2), Admitted::Waits);
        assert_eq!(admission.handle_request(Lane::Ordinary, true, 3), Admitted::Waits);
        assert_eq!(admission.handle_request(Lane::Ordinary, true, 4), Admitted::Refused(4));
        assert_eq!(admission.handle_request(Lane::Control, true, 5), Admitted::Run(5));
        assert_eq!(admission.poll_next(), None);
        admission.handle_finished(1);
        assert_eq!(admission.poll_next(), Some(2));
        assert_eq!(admission.poll_next(), None);
        admission.handle_finished(1);
        assert_eq!(
            admission.handle_request(Lane::Ordinary, true, 6),
            Admitted::Waits,
            "3 came before 6"
        );
        assert_eq!(admission.poll_next(), Some(3));
    }

    #[test]
    fn requests_that_may_not_run_wait_and_keep_their_order() {
        let mut admission = Admission::new(2, 2);
        assert_eq!(admission.handle_request(Lane::Ordinary, false, 1), Admitted::Waits);
        assert_eq!(admission.handle_request(Lane::Ordinary, true, 2), Admitted::Waits);
        assert_eq!(admission.handle_request(Lane::Control, false, 3), Admitted::Run(3));
        assert_eq!((admission.poll_next(), admission.poll_next()), (Some(1), Some(2)));
    }
}
