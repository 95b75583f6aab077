//! How a sandboxed command ended, told by pid 1 itself.
//!
//! ```text
//! command ends ──▶ pid 1: tells server and launcher, ends ──▶ the kernel ends all inside, and the mounts ──▶ server: it is over
//!                                                        └──▶ launcher: ends the same way, is seen off later
//! ```
//!
//! Nobody inside is left when pid 1 is gone, so the server need not wait for the launcher, which has to be woken up
//! and to end as well. If pid 1 was killed it has told nothing, and what becomes of the launcher counts.

use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::packet;
use crate::linux::exit_watch::{Usage, exit_status};
use crate::linux::register;
use crate::spawn::ExitStatus;

/// What pid 1 tells when the command has ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ended {
    /// As the kernel tells it.
    pub status: i32,
    /// What the command and its descendants have used.
    pub usage: Usage,
}

/// Watches pid 1 of a sandbox.
#[derive(Debug)]
pub struct EndingWatch {
    first: AsyncFd<OwnedFd>,
    /// Where it tells how the command ended.
    told: OwnedFd,
}

impl EndingWatch {
    /// Watches the process behind this handle.
    pub fn new(first: OwnedFd, told: OwnedFd) -> std::io::Result<Self> {
        Ok(Self { first: register(first, Interest::READABLE)?, told })
    }

    /// How the command ended, once pid 1 is gone; nothing if that has told nobody.
    pub fn poll_ending(&self, cx: &mut Context) -> Poll<Option<ExitStatus>> {
        // It stays readable: what has ended does not come back.
        if ready!(self.first.poll_read_ready(cx)).is_err() {
            return Poll::Ready(None);
        }
        let told = packet::try_receive(&self.told).and_then(|packet| packet.decode::<Ended>());
        Poll::Ready(told.ok().map(|Ended { status, usage }| exit_status(status, usage)))
    }
}
