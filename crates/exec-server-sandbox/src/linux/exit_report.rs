//! The exit status of a sandboxed command, sent by pid 1.
//!
//! ```text
//! command exits ──▶ pid 1: sends the status, exits ──▶ the kernel ends all processes inside, and the mounts ──▶ server: done
//!                                                 └──▶ launcher: exits with the same status, is reaped later
//! ```
//!
//! No process inside outlives pid 1, so the server need not wait for the launcher, which has to be scheduled and to exit
//! as well. If pid 1 was killed it has sent no status, and the launcher's exit status counts.

use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use exec_server_os::linux::exit_watch::{Usage, exit_status};
use exec_server_os::linux::register;
use exec_server_os::spawn::ExitStatus;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::packet;

/// The message of pid 1 when the command has exited.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ended {
    /// The wait status.
    pub status: i32,
    /// The resource usage of the command and its descendants.
    pub usage: Usage,
}

/// Watches pid 1 of a sandbox by its pidfd.
#[derive(Debug)]
pub struct EndingWatch {
    first: AsyncFd<OwnedFd>,
    /// The socket on which pid 1 sends [`Ended`].
    told: OwnedFd,
}

impl EndingWatch {
    pub fn new(first: OwnedFd, told: OwnedFd) -> std::io::Result<Self> {
        Ok(Self { first: register(first, Interest::READABLE)?, told })
    }

    /// The status of the command once pid 1 has exited; `None` if pid 1 sent none.
    pub fn poll_ending(&self, cx: &mut Context) -> Poll<Option<ExitStatus>> {
        // The pidfd stays readable, so the readiness is not cleared.
        if ready!(self.first.poll_read_ready(cx)).is_err() {
            return Poll::Ready(None);
        }
        let told = packet::try_receive(&self.told).and_then(|packet| packet.decode::<Ended>());
        Poll::Ready(told.ok().map(|Ended { status, usage }| exit_status(status, usage)))
    }
}
