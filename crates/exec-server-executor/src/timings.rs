//! All durations of the server in one place, so that tests can choose their own.

use std::time::{Duration, Instant};

/// The timeouts and intervals of a server.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// Default time for which a detached session waits for its client.
    pub session_linger: Duration,
    /// Upper bound for the linger and the closed retention that a client may request.
    pub max_session_linger: Duration,
    /// Time between two pings.
    pub ping_interval: Duration,
    /// Time from a ping until a silent peer is disconnected.
    pub pong_deadline: Duration,
    /// Time in which the attached peer must answer a probe when another connection resumes its session.
    pub take_over_probe: Duration,
    /// Default time for which the output of a closed process can be read.
    pub closed_retention: Duration,
    /// Time from SIGTERM to SIGKILL when a time limit or the shutdown ends a process.
    pub kill_grace: Duration,
    /// Time after a kill until output streams that are still open are closed.
    pub drain_after_kill: Duration,
    /// Time for pending requests to finish after the end of stdin.
    pub drain_at_end_of_input: Duration,
    /// Time for which a closed connection still reads; an immediate reset could discard the close reason.
    pub linger_after_close: Duration,
    /// Time limit for ending all processes at shutdown.
    pub shutdown: Duration,
    /// Time limit for the request headers of an HTTP client and for a TLS handshake.
    pub handshake: Duration,
    /// Time limit for the set-up of a sandbox, which a hanging file system could block.
    pub sandbox_set_up: Duration,
    /// Time between two checks whether the credentials of open connections are still valid.
    pub credential_check: Duration,
    /// Time limit for a reply's wait for memory that only other connections hold.
    pub reply_memory: Duration,
    /// Time for which an idle HTTP connection is kept for reuse.
    pub http_idle_connection: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            // A client may need 20 s to notice a lost connection, and then retries for 57 s.
            session_linger: Duration::from_secs(80),
            max_session_linger: Duration::from_secs(24 * 3600),
            ping_interval: Duration::from_secs(30),
            pong_deadline: Duration::from_secs(30),
            // A client that resumes waits up to ten seconds for its reply; a responsive peer answers in milliseconds.
            take_over_probe: Duration::from_secs(2),
            // Equal to the session linger, so that a client that resumes can still read the end of a process.
            closed_retention: Duration::from_secs(80),
            kill_grace: Duration::from_millis(1000),
            drain_after_kill: Duration::from_secs(1),
            drain_at_end_of_input: Duration::from_secs(1),
            linger_after_close: Duration::from_secs(2),
            shutdown: Duration::from_millis(1700),
            handshake: Duration::from_secs(10),
            sandbox_set_up: Duration::from_secs(60),
            credential_check: Duration::from_secs(1),
            reply_memory: Duration::from_secs(30),
            http_idle_connection: Duration::from_secs(90),
        }
    }
}

/// Waits for a deadline; returns at once if there is none.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}
