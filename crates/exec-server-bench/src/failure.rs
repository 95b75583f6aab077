//! Why a measurement failed: one sentence for the report.

use std::fmt;
use std::io;

/// The reason a measurement failed.
#[derive(Debug, Clone)]
pub struct Failure(String);

/// Result of a measurement step.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with its reason.
    pub fn new(reason: impl Into<String>) -> Failure {
        Failure(reason.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure(error.to_string())
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Failure {
        Failure(io::Error::from(error).to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure(error.to_string())
    }
}
