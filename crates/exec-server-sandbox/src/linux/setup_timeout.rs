//! The time limit of the sandbox set-up, which a path on a file system that does not respond would block forever.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use exec_server_os::spawn::SpawnError;

/// The set-up takes a few milliseconds, and a second or two under heavy load.
pub const SET_UP_TIME: Duration = Duration::from_secs(60);

/// The error for a launcher that took longer than `time`.
pub fn gave_up(time: Duration) -> SpawnError {
    let step = "set-up took too long".to_owned();
    SpawnError::Sandbox { step, cause: crate::policy::timed_out(time) }
}

/// Whether the set-up timed out, so that a launcher may still be blocked.
pub fn was_given_up(error: &SpawnError) -> bool {
    matches!(error, SpawnError::Sandbox { cause: source, .. } if source.kind() == io::ErrorKind::TimedOut)
}

/// Waits until the report socket is readable.
pub fn wait_for_more(report: &OwnedFd, since: Instant, time: Duration) -> Result<(), SpawnError> {
    let failed = |source| SpawnError::Prepare { step: "launch report", cause: source };
    let left = time.saturating_sub(since.elapsed());
    let left = Timespec::try_from(left).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
    let mut events = [PollFd::new(report, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut events, Some(&left))) {
        Ok(0) => Err(gave_up(time)),
        Ok(_) => Ok(()),
        Err(errno) => Err(failed(errno.into())),
    }
}
