//! A transfer through a server: speed and CPU time.

use std::time::Duration;

/// A measured transfer.
pub struct Transfer {
    /// Decoded bytes.
    pub bytes: u64,
    /// Duration.
    pub time: Duration,
    /// The server's CPU time.
    pub cpu: Duration,
}

impl Transfer {
    /// Speed in MB/s.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.time.as_secs_f64()
    }

    /// CPU seconds per GiB.
    pub fn cpu_per_gib(&self) -> f64 {
        self.cpu.as_secs_f64() * f64::from(1 << 30) / self.bytes as f64
    }
}
