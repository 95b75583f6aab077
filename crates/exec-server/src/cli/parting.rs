//! The time that a detach may take, shared by everything that is sent before the client ends.
//!
//! On a dead link nothing is answered, and the user must be out in less than 100 ms.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// For the answers to queued input; the rest is left for the request to keep the session.
const INPUT: Duration = Duration::from_millis(40);
/// For the server's word that it keeps the session.
const ANSWER: Duration = Duration::from_millis(70);
/// For everything, with the close of the link.
const TOTAL: Duration = Duration::from_millis(80);

/// A detach that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Parting {
    began: Instant,
}

impl Parting {
    /// The keys were typed now.
    pub fn begin() -> Self {
        Self { began: Instant::now() }
    }

    /// Waits for queued input to be accepted.
    pub async fn input<T>(&self, sending: impl Future<Output = T>) -> Option<T> {
        self.within(INPUT, sending).await
    }

    /// Waits for an answer of the server.
    pub async fn answer<T>(&self, asking: impl Future<Output = T>) -> Option<T> {
        self.within(ANSWER, asking).await
    }

    /// Waits for the end of the link.
    pub async fn close<T>(&self, closing: impl Future<Output = T>) -> Option<T> {
        self.within(TOTAL, closing).await
    }

    async fn within<T>(&self, share: Duration, what: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.began + share, what).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn all_waits_end_in_less_than_a_tenth_of_a_second_after_the_keys() {
        const { assert!(INPUT.as_millis() < ANSWER.as_millis()) };
        const { assert!(ANSWER.as_millis() < TOTAL.as_millis() && TOTAL.as_millis() < 100) };
        // The time is over, so that none of them may wait at all.
        let parting = Parting { began: Instant::now() - TOTAL * 2 };
        let waits = async {
            assert_eq!(parting.input(pending::<()>()).await, None);
            assert_eq!(parting.answer(pending::<()>()).await, None);
            assert_eq!(parting.close(pending::<()>()).await, None);
        };
        let polled = std::pin::pin!(waits).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(()));
    }

    #[tokio::test]
    async fn a_request_is_sent_even_if_no_time_is_left() {
        let parting = Parting { began: Instant::now() - TOTAL * 2 };
        assert_eq!(parting.answer(async { "sent" }).await, Some("sent"));
    }
}
