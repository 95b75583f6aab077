//! Watches a directory or a tree with inotify, on a thread of its own.
//!
//! ```text
//! inotify ─events▶ Tree (paths of watches) ─▶ Staged (one window) ─commit▶ Log ─▶ reader
//! ```
//!
//! Owner: the session. A change is readable when its window has passed; the log is bounded, and a reader that is
//! too slow gets one `rescan` instead. Dropping the [`TreeWatch`] ends the thread.

mod log;
mod staged;
mod tree;

use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::tree_watch::{Changes, ChangesRoom, WatchError, WatchSpec};
use log::Log;
use staged::Staged;
use tree::{Flow, Tree};

/// A running watch.
#[derive(Debug)]
pub struct TreeWatch {
    log: Arc<Log>,
    directories: u64,
    skipped: u64,
    /// Closing it ends the thread.
    _stop: OwnedFd,
}

impl TreeWatch {
    /// Sets the watches and starts the thread; blocks on the disk for a large tree.
    pub fn start(spec: &WatchSpec, room: &ChangesRoom) -> Result<Self, WatchError> {
        let window = spec.window;
        let tree = Tree::new(&spec.path, spec.recursive)?;
        let (directories, skipped) = (tree.directories(), tree.skipped());
        let log = Arc::new(Log::new(&spec.path, room));
        let staged = Staged::new(room);
        let (stopped, stop) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| WatchError::Path(errno.into()))?;
        let thread_log = log.clone();
        std::thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || run(tree, staged, &stopped, &thread_log, window))
            .map_err(WatchError::Path)?;
        Ok(Self { log, directories, skipped, _stop: stop })
    }

    /// How many directories are watched at the start.
    pub fn directories(&self) -> u64 {
        self.directories
    }

    /// How many directories could not be read.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The first changes after `seq`, up to a page; those up to `seq` are forgotten.
    pub fn changes_after(&self, seq: u64) -> Changes {
        self.log.read_after(seq)
    }

    /// Waits until there is a change after `seq`, or the watch has ended.
    pub async fn wait_after(&self, seq: u64) {
        self.log.wait_after(seq).await;
    }

    /// The same on a thread without an event loop, at most for `time`; whether `changes_after` says anything.
    pub fn wait_after_blocking(&self, seq: u64, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut change = pin!(self.log.wait_after(seq));
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        while change.as_mut().poll(&mut context).is_pending() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::park_timeout(left);
        }
        true
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn run(mut tree: Tree, mut staged: Staged, stopped: &OwnedFd, log: &Log, window: Duration) {
    let mut due: Option<Instant> = None;
    loop {
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let events = {
            let mut fds = [
                PollFd::from_borrowed_fd(tree.inotify(), PollFlags::IN),
                PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::empty()),
            ];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return log.end(),
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            fds[0].revents()
        };
        let flow = if events.is_empty() { Flow::Continue } else { tree.read(&mut staged) };
        if !staged.is_empty() {
            due.get_or_insert_with(|| Instant::now() + window);
        }
        let is_due = due.is_some_and(|due| Instant::now() >= due);
        if is_due || flow == Flow::Ended {
            due = None;
            tree.forget(&staged.moved_away());
            log.commit(&mut staged);
        }
        if flow == Flow::Ended {
            return log.end();
        }
    }
}

#[cfg(test)]
mod tests;
