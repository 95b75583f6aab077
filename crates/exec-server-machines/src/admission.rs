//! Bounds how many ordinary requests of a connection run at once; control requests always run.
//!
//! Owner: the connection task. Waiting requests start in the order in which they came.

use std::collections::VecDeque;

use exec_server_protocol::methods::Lane;

/// The requests of one connection.
#[derive(Debug)]
pub struct Admission<T> {
    limit: usize,
    waiting_limit: usize,
    running: usize,
    waiting: VecDeque<T>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Admitted<T> {
    /// It runs now.
    Run(T),
    /// It will come out of [`Admission::poll_next`].
    Waits,
    /// There is no room even to wait.
    Refused(T),
}

impl<T> Admission<T> {
    /// At most `limit` run and `waiting_limit` wait.
    pub fn new(limit: usize, waiting_limit: usize) -> Self {
        Self { limit, waiting_limit, running: 0, waiting: VecDeque::new() }
    }

    /// A request came.
    pub fn handle_request(&mut self, lane: Lane, request: T) -> Admitted<T> {
        if lane == Lane::Control {
            return Admitted::Run(request);
        }
        if self.waiting.is_empty() && self.running < self.limit {
            self.running += 1;
            return Admitted::Run(request);
        }
        if self.waiting.len() >= self.waiting_limit {
            return Admitted::Refused(request);
        }
        self.waiting.push_back(request);
        Admitted::Waits
    }

    /// `count` ordinary requests have been answered since the last call.
    pub fn handle_finished(&mut self, count: usize) {
        self.running -= count;
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    /// A waiting request whose turn has come.
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
        assert_eq!(admission.handle_request(Lane::Ordinary, 1), Admitted::Run(1));
        assert_eq!(admission.handle_request(Lane::Ordinary, 2), Admitted::Waits);
        assert_eq!(admission.handle_request(Lane::Ordinary, 3), Admitted::Waits);
        assert_eq!(admission.handle_request(Lane::Ordinary, 4), Admitted::Refused(4));
        assert_eq!(admission.handle_request(Lane::Control, 5), Admitted::Run(5));
        assert_eq!(admission.poll_next(), None);
        admission.handle_finished(1);
        assert_eq!(admission.poll_next(), Some(2));
        assert_eq!(admission.poll_next(), None);
        admission.handle_finished(1);
        assert_eq!(admission.handle_request(Lane::Ordinary, 6), Admitted::Waits, "3 came before 6");
        assert_eq!(admission.poll_next(), Some(3));
    }
}
