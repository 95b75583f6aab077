//! Durations as the wire carries them.

use std::time::Duration;

/// Whole milliseconds; the largest number for a duration that does not fit.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
