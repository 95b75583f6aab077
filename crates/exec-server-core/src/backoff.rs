//! Exponential backoff with a cap; the caller passes the jitter in.
//!
//! Owner: [`crate::recovery::Recovery`] and other retry loops. Jitter prevents synchronised reconnects.

use std::time::Duration;

/// The pauses between consecutive attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Begins with `first`, doubles, and stays at `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// The next pause: `jitter`, from 0 to 1, adds up to half of it.
    pub fn next(&mut self, jitter: f64) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = (self.next * 2).min(self.longest);
        pause.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 2.0)
    }

    /// The next pause, multiplied by `jitter`, from 0 to 1.
    ///
    /// Full jitter: spreads clients that lost the same server at the same time.
    pub fn next_spread(&mut self, jitter: f64) -> Duration {
        let pause = self.next(0.0);
        pause.mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// Starts over, after an attempt that succeeded.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(100 * MS, 500 * MS);
        let pauses: Vec<_> = (0..5).map(|_| backoff.next(0.0)).collect();
        assert_eq!(pauses, [100 * MS, 200 * MS, 400 * MS, 500 * MS, 500 * MS]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), 100 * MS);
    }

    #[test]
    fn jitter_adds_up_to_half_and_never_shortens() {
        let mut backoff = Backoff::new(100 * MS, 100 * MS);
        assert_eq!(backoff.next(1.0), 150 * MS);
        assert_eq!(backoff.next(0.5), 125 * MS);
        assert_eq!(backoff.next(-3.0), 100 * MS);
        assert_eq!(backoff.next(f64::INFINITY), 150 * MS);
    }

    #[test]
    fn spread_pauses_are_anything_up_to_a_bound_that_doubles() {
        let mut backoff = Backoff::new(100 * MS, 300 * MS);
        assert_eq!(backoff.next_spread(1.0), 100 * MS);
        assert_eq!(backoff.next_spread(0.5), 100 * MS);
        assert_eq!(backoff.next_spread(0.0), Duration::ZERO);
        assert_eq!(backoff.next_spread(7.0), 300 * MS);
    }
}
