//! The launcher: the parent of one sandbox. It creates the namespaces, forks pid 1 and exits with the command's status.
//!
//! The command is sent later: a launcher prepares the sandbox and [`init`] then waits for its job.
//!
//! ```text
//! server
//!   └─ launcher (outside; exits with the command's status)
//!        └─ pid 1 (inside; reaps; its exit ends every process inside)
//!             └─ command (own session, with the terminal if there is one)
//! ```
//!
//! With Landlock alone there is no pid 1, and the command is the launcher's child. The launcher is forked from the
//! [`zygote`](super::zygote): one thread, no environment, none of the server's memory. Failures before exec are sent
//! on the report socket, which exec closes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use exec_server_os::limits::LimitPlan;
use exec_server_os::linux::command::Command;
use exec_server_os::linux::standard_streams::move_up;
use exec_server_os::linux::{check, credentials, reap_until};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::denials::{self, SeccompNotifier};
use super::netns::IsolatedNetns;
use super::rootfs::RootfsProfile;
use super::step::{Step, StepError};
use super::zygote::{LaunchParams, Limit};
use super::{Mechanism, SandboxSetup, init, limits, namespaces, packet};

/// The part of a sandbox that can be built before its job is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    pub profile: RootfsProfile,
    /// The number of process ids beside pid 1.
    pub pid_range: Option<u64>,
}

impl Preparation {
    /// The preparation that a plan needs; `None` without namespaces.
    pub fn of(plan: &LaunchPlan) -> Option<Self> {
        match plan.setup.mechanism {
            Mechanism::Namespaces => Some(Self {
                profile: RootfsProfile::of(&plan.setup.view),
                pid_range: plan.limits.pid_range,
            }),
            Mechanism::Landlock => None,
        }
    }
}

/// The job of a sandbox. Its descriptors are the standard streams, the plan, and `cgroup.procs` if there is a cgroup.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExecJob {
    pub tag: Limit,
    pub has_cgroup: bool,
}

/// The complete description of one start.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    pub setup: SandboxSetup,
    pub limits: LimitPlan,
    pub inside: Inside,
}

/// The program that runs inside a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub enum Inside {
    Command(Command),
    /// This program as a file worker; descriptor 0 is the socket to the server.
    FileWorker,
    /// The same without confinement, with the rights of the launcher's user.
    UserWorker,
}

/// An event on the report socket. The socket closes when the command runs or the start has failed.
#[derive(Debug, Serialize, Deserialize)]
pub enum LauncherEvent {
    /// Carries the mount namespace.
    Mounts,
    /// Carries the pidfd of pid 1.
    First,
    Failed(Failure),
}

/// A step that failed before exec.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    pub step: String,
    pub errno: i32,
}

/// The steps whose failure is reported as an error of the request.
pub const STEP_CWD: &str = "working directory";
pub const STEP_EXEC: &str = "program";
pub const STEP_USER: &str = "user";

/// The state of a launcher right after the fork from its zygote.
pub struct Launcher {
    pub params: LaunchParams,
    /// The expected parent process.
    pub server: Option<Pid>,
    /// The descriptors of [`ZygoteRequest::Launch`](super::zygote::ZygoteRequest), in that order.
    pub fds: Vec<OwnedFd>,
}

/// The main function of a launcher; returns its exit code.
pub fn run_launcher(mut launcher: Launcher) -> i32 {
    let _ = rustix::thread::set_name(c"exec-launcher");
    let Some((given, report)) = launcher.sort_out() else {
        // Without a report socket the failure cannot be sent; the server sees the closed socket.
        return 127;
    };
    let Given { job_socket, denial_count, network, cgroup } = given;
    match launcher.begin(network, cgroup) {
        Ok((outside, inside)) => match fork() {
            Ok(Some(first)) => {
                if launcher.params.preparation.is_some() {
                    report.introduce(first);
                }
                // pid 1 must hold the last copy: otherwise these sockets stay open if pid 1 is killed, and the server waits forever.
                drop((inside, job_socket, report));
                wait_outside(
                    &launcher.params,
                    first,
                    SeccompNotifier::new(outside, Some(denial_count)),
                )
            }
            Ok(None) => {
                drop((outside, denial_count));
                init::run(&launcher.params, job_socket, report, inside)
            }
            Err(cause) => report.fail(&StepError { step: "fork", cause }),
        },
        Err(error) => report.fail(&error),
    }
}

/// The descriptors of a launcher, except for the report socket.
struct Given {
    job_socket: OwnedFd,
    denial_count: File,
    network: Option<IsolatedNetns>,
    cgroup: Option<File>,
}

impl Launcher {
    /// Takes the descriptors in the order of [`ZygoteRequest::Launch`](super::zygote::ZygoteRequest).
    fn sort_out(&mut self) -> Option<(Given, Report)> {
        let mut fds = std::mem::take(&mut self.fds).into_iter();
        let job_socket = move_up(fds.next()?).ok()?;
        let report = move_up(fds.next()?).ok()?;
        let denial_count = fds.next()?.into();
        let network = match self.params.has_network {
            true => Some(IsolatedNetns { users: fds.next()?, network: fds.next()? }),
            false => None,
        };
        let cgroup = match self.params.has_cgroup {
            true => Some(fds.next()?.into()),
            false => None,
        };
        Some((Given { job_socket, denial_count, network, cgroup }, Report(report)))
    }

    /// Sets up everything before pid 1 is forked; returns the socket pair between the launcher and pid 1.
    fn begin(
        &self,
        network: Option<IsolatedNetns>,
        cgroup: Option<File>,
    ) -> Result<(File, File), StepError> {
        if let Some(mut cgroup) = cgroup {
            // 0 stands for the writing process.
            cgroup.write_all(b"0").step("cgroup")?;
        }
        self.setup_child()?;
        if self.params.preparation.is_some() {
            network.map_or(Ok(()), |network| network.enter())?;
            namespaces::enter_new()?;
            limits::bound_watches();
        }
        denials::connect().step("socket")
    }

    /// Does what `child` does for programs without a sandbox.
    fn setup_child(&self) -> Result<(), StepError> {
        rustix::process::setsid().step("setsid")?;
        // Descriptor 0 is the zygote's socket; descriptor 1 is the null device.
        // SAFETY: plain system call on open descriptors.
        check(unsafe { libc::dup2(1, 0) }).step("standard streams")?;
        set_tag(self.params.tag);
        if let Some(user) = &self.params.user {
            credentials::change_to(user).step(STEP_USER)?;
        }
        be_dumpable()?;
        // SAFETY: sets a flag of this process.
        let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        check(result).step("parent-death signal")?;
        // The server may have exited before PDEATHSIG took effect.
        if rustix::process::getppid() != self.server {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)).step("parent-death signal");
        }
        Ok(())
    }
}

/// Makes this process dumpable, which the zygote is not: its id maps can be written only then.
pub fn be_dumpable() -> Result<(), StepError> {
    // SAFETY: sets a flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }).map(drop).step("dumpable")
}

/// Tags this process as part of a process tree.
pub fn set_tag(tag: Limit) {
    // It fails under a lowered hard limit; process trees are then distinguished by session only.
    let _ = limits::set(libc::RLIMIT_RTTIME, tag);
}

/// Ignores the signals that the server sends to the whole tree for the command.
pub fn ignore_tree_signals() {
    for signal in TREE_SIGNALS {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Signals that only the command handles.
pub const TREE_SIGNALS: [libc::c_int; 10] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGWINCH,
];

/// Waits for the command and exits with its status.
fn wait_outside(params: &LaunchParams, first: libc::pid_t, notifier: SeccompNotifier) -> i32 {
    let status = match params.preparation {
        Some(_) => notifier.run(),
        // Without pid 1 there is no message with the status, so the child's exit is watched instead.
        None => match handle_of(first) {
            Ok(end) => notifier.until(end).run(),
            // Dropping the notifier closes the listener, so the kernel answers pending calls.
            Err(_) => {
                drop(notifier);
                None
            }
        },
    };
    let own = reap_until(first);
    // No status means that the child was killed before it could send one.
    end_like(status.or(own).unwrap_or(libc::SIGKILL))
}

fn handle_of(child: libc::pid_t) -> io::Result<OwnedFd> {
    let child = Pid::from_raw(child).expect("a child has a pid");
    Ok(pidfd_open(child, PidfdFlags::empty())?)
}

/// The report socket; closed when its last holder drops it.
pub struct Report(OwnedFd);

impl Report {
    /// Sends the pidfd of pid 1. Without it the server learns of the exit from the launcher, slightly later.
    fn introduce(&self, first: libc::pid_t) {
        if let Ok(first) = handle_of(first) {
            let _ = packet::send(&self.0, &LauncherEvent::First, &[first.as_fd()]);
        }
    }

    /// Sends the mount namespace to the server. Dropping its last reference blocks in the kernel, which would delay the
    /// exit of pid 1.
    pub fn lend_mounts(&self) -> Result<(), StepError> {
        let mounts = namespaces::open_own("mnt").step("mounts")?;
        packet::send(&self.0, &LauncherEvent::Mounts, &[mounts.as_fd()]).step("mounts")
    }

    /// Sends the failed step.
    pub fn tell(&self, error: &StepError) {
        let errno = error.cause.raw_os_error().unwrap_or(libc::EINVAL);
        let failure = Failure { step: error.step.to_owned(), errno };
        // Ignore the error: the server has closed the report socket.
        let _ = packet::send(&self.0, &LauncherEvent::Failed(failure), &[]);
    }

    /// Like [`Self::tell`]; returns the exit code.
    pub fn fail(self, error: &StepError) -> i32 {
        self.tell(error);
        127
    }
}

/// Returns the child's pid in the parent and `None` in the child.
pub fn fork() -> io::Result<Option<libc::pid_t>> {
    // SAFETY: this process has one thread, so the child's copy of the memory is consistent.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Exits at once. Destructors would only delay the exit that the server waits for.
pub fn leave(code: i32) -> ! {
    // SAFETY: `_exit` takes a number and runs no code of this program.
    unsafe { libc::_exit(code) }
}

/// Exits with the given wait status; re-raises its signal.
fn end_like(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // SAFETY: plain system calls; nothing of this process is used afterwards. PR_SET_DUMPABLE prevents a core dump.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return 128 + signal;
    }
    libc::WEXITSTATUS(status)
}
