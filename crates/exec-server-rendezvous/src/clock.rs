//! The time of day, as it is signed and stored.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub type Seconds = i64;

/// Now.
pub fn now() -> Seconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
