//! Bytes that went through a server: how fast, and what they cost it.

use std::time::Duration;

/// What was transferred.
pub struct Transfer {
    /// How much, as the client sees it: decoded.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// The server's CPU time.
    pub cpu: Duration,
}

impl Transfer {
    /// Its speed.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.time.as_secs_f64()
    }

    /// Its price in seconds of CPU time.
    pub fn cpu_per_gib(&self) -> f64 {
        self.cpu.as_secs_f64() * f64::from(1 << 30) / self.bytes as f64
    }
}
