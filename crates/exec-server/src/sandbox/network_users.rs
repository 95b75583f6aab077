//! Who shares the machine's network from inside a sandbox, and so could dial the server itself.
//!
//! What such a process has dialled may wait to be accepted when it has ended already, and the kernel keeps what it said.
//! So it counts as one for a while longer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// As long as the kernel keeps an end that was closed, by default.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// All of them; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct NetworkUsers(Arc<Mutex<Users>>);

#[derive(Debug, Default)]
struct Users {
    count: usize,
    /// When one has ended the last time.
    ended: Option<Instant>,
}

/// One of them, as long as it is held.
#[derive(Debug)]
pub struct NetworkUser(NetworkUsers);

impl NetworkUsers {
    /// Counts one in.
    pub fn enter(&self) -> NetworkUser {
        self.0.lock().expect("no holder panics").count += 1;
        NetworkUser(self.clone())
    }

    /// Whether a connection that is accepted now can be from one of them.
    pub fn may_have_dialled(&self, now: Instant) -> bool {
        let users = self.0.lock().expect("no holder panics");
        let is_recent = |ended| now.saturating_duration_since(ended) < AFTERWARDS;
        users.count > 0 || users.ended.is_some_and(is_recent)
    }
}

impl Drop for NetworkUser {
    fn drop(&mut self) {
        let mut users = self.0.0.lock().expect("no holder panics");
        users.count -= 1;
        users.ended = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_dialled_counts_for_a_minute_after_the_end() {
        let users = NetworkUsers::default();
        let (start, later) = (Instant::now(), Duration::from_secs(3600));
        assert!(!users.may_have_dialled(start));
        let (first, second) = (users.enter(), users.enter());
        assert!(users.may_have_dialled(start + later));
        drop(first);
        assert!(users.may_have_dialled(start + later));
        drop(second);
        let end = Instant::now();
        assert!(users.may_have_dialled(end));
        assert!(users.may_have_dialled(start + AFTERWARDS - Duration::from_millis(1)));
        assert!(!users.may_have_dialled(end + AFTERWARDS));
        let _third = users.enter();
        assert!(users.may_have_dialled(end + later));
    }
}
