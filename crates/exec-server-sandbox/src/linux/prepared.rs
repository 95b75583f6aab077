//! The server's handle on a sandbox that is being prepared and waits for its job.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use exec_server_os::accounts::Credentials;
use exec_server_os::linux::cgroup::Cgroup;
use exec_server_os::linux::spawner::NewChild;
use rustix::event::Timespec;

use super::launch::{LaunchHandles, LaunchRequest, limit};
use super::launcher::{ExecJob, Preparation};
use super::netns::IsolatedNetns;
use super::packet;
use super::teardown::{has_ended_within, reap_in_time};
use super::warm_pool::RefillOnDrop;

/// The properties that a sandbox must have before a job can run in it.
#[derive(Debug, Clone)]
pub struct PrepareSpec {
    /// The part that is prepared ahead; `None` without namespaces.
    pub preparation: Option<Preparation>,
    /// The session's network, if the sandbox is isolated.
    pub network: Option<Arc<IsolatedNetns>>,
    /// The user of everything in the sandbox, if it is another one than that of the server.
    pub user: Option<Credentials>,
}

impl PrepareSpec {
    /// Whether both are equal; the network must be the same namespace, not only an equal one.
    pub fn matches(&self, other: &Self) -> bool {
        let is_same = match (&self.network, &other.network) {
            (Some(network), Some(other)) => Arc::ptr_eq(network, other),
            (None, None) => true,
            _ => false,
        };
        is_same && self.preparation == other.preparation && self.user == other.user
    }
}

/// A sandbox without a job. Dropping it ends the sandbox, which can take up to a second.
pub struct PreparedSandbox {
    /// `None` once it was handed over.
    launcher: Option<NewChild<LaunchHandles>>,
    /// Carries the job; the sandbox exits if the socket closes first.
    job_socket: Option<OwnedFd>,
}

impl PreparedSandbox {
    /// Takes over a launcher that waits for its job on the peer of `job_socket`.
    pub fn new(launcher: NewChild<LaunchHandles>, job_socket: OwnedFd) -> Self {
        Self { launcher: Some(launcher), job_socket: Some(job_socket) }
    }

    /// Whether the launcher has exited.
    pub fn has_ended(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.launcher.as_ref().is_none_or(|launcher| has_ended_within(&launcher.pidfd, NOW))
    }

    /// Sends the job. `BrokenPipe` means that the launcher has already exited.
    pub fn assign(&self, launch: &LaunchRequest, plan: &OwnedFd) -> io::Result<()> {
        let (Some(launcher), Some(job_socket)) = (&self.launcher, &self.job_socket) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let tag = launch.tag.as_limit();
        // SAFETY: reads a live local; the process is our own unreaped child.
        // It fails under a lowered hard limit; process trees are then distinguished by session only.
        unsafe {
            libc::prlimit(launcher.pid, libc::RLIMIT_RTTIME, &raw const tag, std::ptr::null_mut());
        }
        // A launcher of another user joins the cgroup itself, because that user must not get at the descriptor.
        let cgroup = launch.cgroup.filter(|_| launch.user.is_none());
        if let Some(cgroup) = cgroup {
            let pid = launcher.pid.to_string();
            match rustix::io::write(cgroup.procs(), pid.as_bytes()) {
                Err(rustix::io::Errno::SRCH) => return Err(io::ErrorKind::BrokenPipe.into()),
                written => written?,
            };
        }
        let mut fds = launch.stdio.to_vec();
        fds.push(plan.as_fd());
        fds.extend(cgroup.map(Cgroup::procs));
        let message = ExecJob { tag: limit(tag), has_cgroup: cgroup.is_some() };
        match packet::send(job_socket, &message, &fds) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            sent => sent,
        }
    }

    /// Passes the responsibility for reaping to the caller.
    pub fn hand_over(mut self, refill: Option<RefillOnDrop>) -> NewChild<LaunchHandles> {
        let mut launcher = self.launcher.take().expect("it is handed over once");
        // The sandbox answers on the socket that brought its job.
        launcher.handles.exit_socket = self.job_socket.take();
        launcher.handles.refill = refill;
        launcher
    }
}

impl Drop for PreparedSandbox {
    fn drop(&mut self) {
        self.job_socket = None;
        if let Some(launcher) = self.launcher.take() {
            reap_in_time(&launcher.pidfd);
        }
    }
}
