//! Every duration that the server uses, so that tests can choose their own.

use std::time::{Duration, Instant};

/// Every duration that the server uses.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// How long a session waits for its client after a lost connection.
    pub session_linger: Duration,
    /// The longest that a session may ask to wait for its client, and to keep what a closed process said.
    pub max_session_linger: Duration,
    /// From ping to ping.
    pub ping_interval: Duration,
    /// From a ping to giving up a silent peer.
    pub pong_deadline: Duration,
    /// How long a connection has to prove that it is alive when another wants its session.
    pub take_over_probe: Duration,
    /// How long a closed process can still be read.
    pub closed_retention: Duration,
    /// From SIGTERM to SIGKILL when the server itself ends a process: time-outs and shutdown.
    pub kill_grace: Duration,
    /// How long the streams of a killed process may stay open before it is closed all the same.
    pub drain_after_kill: Duration,
    /// How long requests that came before the end of stdin may take to be answered.
    pub drain_at_end_of_input: Duration,
    /// How long a peer may go on sending after we closed its connection; hanging up on it could cost it the reason.
    pub linger_after_close: Duration,
    /// How long the server takes for its goodbye.
    pub shutdown: Duration,
    /// How long an HTTP client has for its request headers, and a TLS client for its handshake.
    pub handshake: Duration,
    /// How long the set-up of a sandbox may take; what hangs longer is given up.
    pub sandbox_set_up: Duration,
    /// How long a connection to another server waits for the next request.
    pub http_idle_connection: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            session_linger: Duration::from_secs(30),
            max_session_linger: Duration::from_secs(24 * 3600),
            ping_interval: Duration::from_secs(30),
            pong_deadline: Duration::from_secs(30),
            // A client that resumes waits up to ten seconds for its answer; a living peer answers in milliseconds.
            take_over_probe: Duration::from_secs(2),
            closed_retention: Duration::from_secs(30),
            kill_grace: Duration::from_millis(1000),
            drain_after_kill: Duration::from_secs(1),
            drain_at_end_of_input: Duration::from_secs(1),
            linger_after_close: Duration::from_secs(2),
            shutdown: Duration::from_millis(1700),
            handshake: Duration::from_secs(10),
            sandbox_set_up: Duration::from_secs(60),
            http_idle_connection: Duration::from_secs(90),
        }
    }
}

/// Waits for a deadline; without one there is nothing to wait for.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}
