//! The process between the server and a sandboxed command: it makes the sandbox around itself, and waits for its end.
//!
//! What runs [inside] may be told later: a sandbox can be prepared and then wait for its one errand.
//!
//! ```text
//! server
//!   └─ launcher (outside; ends the way the command ended)
//!        └─ pid 1 (inside; reaps, and with it everything inside ends)
//!             └─ command (a session of its own, with the terminal if there is one)
//! ```
//!
//! With Landlock as the only lock there is nothing to be inside of, and the command is the launcher's child. It is a copy of the [`zygote`](super::zygote): one thread, no environment, nothing of the server's memory. What fails
//! before the command runs is told on a socket which the exec closes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::denials::{self, Attendant};
use super::network::QuietNetwork;
use super::step::{Step, StepError};
use super::view::Groundwork;
use super::zygote::{Birth, Limit};
use super::{Mechanism, SandboxSetup, inside, namespaces, packet};
use crate::limits::LimitPlan;
use crate::linux::spawner::move_up;
use crate::linux::{check, reap_until};

/// What a sandbox is before it is known what runs in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preparation {
    /// What its view will stand on.
    pub ground: Groundwork,
    /// How many process ids it has beside its first.
    pub pid_range: Option<u64>,
}

impl Preparation {
    /// What a plan needs; nothing without namespaces.
    pub fn of(plan: &LaunchPlan) -> Option<Self> {
        match plan.setup.mechanism {
            Mechanism::Namespaces => Some(Self {
                ground: Groundwork::of(&plan.setup.view),
                pid_range: plan.limits.pid_range,
            }),
            Mechanism::Landlock => None,
        }
    }
}

/// What is run in a sandbox; beside it come standard streams, the plan, and the cgroup if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Errand {
    /// The tag of its tree.
    pub tag: Limit,
    /// Whether `cgroup.procs` of its cgroup comes with it.
    pub has_cgroup: bool,
}

/// Everything that a launcher needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// What confines it.
    pub setup: SandboxSetup,
    /// What limits it.
    pub limits: LimitPlan,
    /// What runs inside.
    pub inside: Inside,
}

/// What runs inside a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub enum Inside {
    /// A program.
    Command(Command),
    /// This program, as a worker for files with the server at descriptor 0.
    FileWorker,
}

/// What runs inside a sandbox; all texts are without NUL.
#[derive(Debug, Serialize, Deserialize)]
pub struct Command {
    /// Where the program may be.
    pub candidates: Vec<CString>,
    /// Its arguments.
    pub argv: Vec<CString>,
    /// Its environment.
    pub env: Vec<CString>,
    /// Its working directory.
    pub cwd: CString,
    /// Whether descriptor 0 is to be its controlling terminal.
    pub has_terminal: bool,
    /// What it may read as descriptor 3.
    pub extra_input: Option<Vec<u8>>,
}

/// What a launcher tells; when it has no more to tell, the command runs or it has failed.
#[derive(Debug, Serialize, Deserialize)]
pub enum Told {
    /// The mount namespace comes beside it.
    Mounts,
    /// A handle of pid 1 comes beside it.
    First,
    /// The command does not run.
    Failed(Failure),
}

/// What went wrong before the command ran.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What was being done.
    pub step: String,
    /// What the system said.
    pub errno: i32,
}

/// Steps whose failure is the command's own fault.
pub const STEP_CWD: &str = "working directory";
/// As above.
pub const STEP_EXEC: &str = "program";

/// A launcher that has just been copied from its zygote.
pub struct Launcher {
    /// How it is born.
    pub birth: Birth,
    /// Whose child it is.
    pub server: Option<Pid>,
    /// What came beside the order.
    pub fds: Vec<OwnedFd>,
}

/// Lives as a launcher; returns the code to exit with.
pub fn run_launcher(mut launcher: Launcher) -> i32 {
    let _ = rustix::thread::set_name(c"exec-launcher");
    let Some((given, report)) = launcher.sort_out() else {
        // There is nobody to tell, and the server sees that the socket ended together with the launcher.
        return 127;
    };
    let Given { errand, tally, network } = given;
    match launcher.begin(network) {
        Ok((outside, inside)) => match fork() {
            Ok(Some(first)) => {
                if launcher.birth.preparation.is_some() {
                    report.introduce(first);
                }
                // If pid 1 is killed, there must be nobody left who could tell, or the wait would never end.
                drop((inside, errand, report));
                wait_outside(&launcher.birth, first, Attendant::new(outside, Some(tally)))
            }
            Ok(None) => {
                drop((outside, tally));
                inside::run(&launcher.birth, errand, report, inside)
            }
            Err(source) => report.fail(&StepError { step: "fork", source }),
        },
        Err(error) => report.fail(&error),
    }
}

/// What a launcher was given, except for the report.
struct Given {
    /// Where it is told what to run.
    errand: OwnedFd,
    tally: File,
    network: Option<QuietNetwork>,
}

impl Launcher {
    /// The order of [`Order::Launch`](super::zygote::Order).
    fn sort_out(&mut self) -> Option<(Given, Report)> {
        let mut fds = std::mem::take(&mut self.fds).into_iter();
        let errand = move_up(fds.next()?).ok()?;
        let report = move_up(fds.next()?).ok()?;
        let tally = fds.next()?.into();
        let network = match self.birth.has_network {
            true => Some(QuietNetwork { users: fds.next()?, network: fds.next()? }),
            false => None,
        };
        Some((Given { errand, tally, network }, Report(report)))
    }

    /// Everything before there is anybody inside; returns the two ends between the launcher and that.
    fn begin(&self, network: Option<QuietNetwork>) -> Result<(File, File), StepError> {
        self.become_a_child_like_any_other()?;
        if self.birth.preparation.is_some() {
            network.map_or(Ok(()), |network| network.enter())?;
            namespaces::enter_new()?;
        }
        denials::connect().step("socket")
    }

    /// What `child` does for programs that are started without a sandbox.
    fn become_a_child_like_any_other(&self) -> Result<(), StepError> {
        rustix::process::setsid().step("setsid")?;
        // The zygote's socket is not ours; its null device is.
        // SAFETY: plain system call on open descriptors.
        check(unsafe { libc::dup2(1, 0) }).step("standard streams")?;
        // SAFETY: sets flags of this process; unlike the zygote it has to map its user.
        let result = unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)
        };
        check(result).step("parent-death signal")?;
        // The server may have died before the line above took effect.
        if rustix::process::getppid() != self.server {
            return Err(io::Error::from_raw_os_error(libc::ESRCH)).step("parent-death signal");
        }
        set_tag(self.birth.tag);
        set_limit(libc::RLIMIT_NOFILE, self.birth.open_files).step("resource limits")
    }
}

/// Says which tree this process belongs to.
pub fn set_tag(tag: Limit) {
    // It may fail under a lowered hard limit, and then trees are told apart by session only.
    let _ = set_limit(libc::RLIMIT_RTTIME, tag);
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn set_limit(resource: Resource, Limit(soft, hard): Limit) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: passes a live local.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }).map(drop)
}

/// What the server sends to a whole tree is meant for the command.
pub fn ignore_what_is_passed_by() {
    for signal in PASSED_BY {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Signals that only the command is to notice.
pub const PASSED_BY: [libc::c_int; 10] = [
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

/// Outside: waits for the end, and ends the same way.
fn wait_outside(birth: &Birth, first: libc::pid_t, attendant: Attendant) -> i32 {
    let told = match birth.preparation {
        Some(_) => attendant.run(),
        // The command itself tells nobody.
        None => match handle_of(first) {
            Ok(end) => attendant.until(end).run(),
            // Whoever waits for an answer must not wait for ever: with this, the kernel answers.
            Err(_) => {
                drop(attendant);
                None
            }
        },
    };
    let own = reap_until(first);
    // Without a word it was killed before it could tell.
    end_like(told.or(own).unwrap_or(libc::SIGKILL))
}

fn handle_of(child: libc::pid_t) -> io::Result<OwnedFd> {
    let child = Pid::from_raw(child).expect("a child has a pid");
    Ok(pidfd_open(child, PidfdFlags::empty())?)
}

/// Where failures are told; whoever holds it last closes it.
pub struct Report(OwnedFd);

impl Report {
    /// Shows the server who is pid 1. Without that it hears of the end from this process, a little later.
    fn introduce(&self, first: libc::pid_t) {
        if let Ok(first) = handle_of(first) {
            let _ = packet::send(&self.0, &Told::First, &[first.as_fd()]);
        }
    }

    /// Lends the server the mounts of the sandbox: whoever lets go of them last waits for the kernel, and that must
    /// not be pid 1 when it ends.
    pub fn lend_mounts(&self) -> Result<(), StepError> {
        let mounts = namespaces::open_own("mnt").step("mounts")?;
        packet::send(&self.0, &Told::Mounts, &[mounts.as_fd()]).step("mounts")
    }

    /// Tells why nothing runs.
    pub fn tell(&self, error: &StepError) {
        let errno = error.source.raw_os_error().unwrap_or(libc::EINVAL);
        let failure = Failure { step: error.step.to_owned(), errno };
        // If nobody listens any more, nobody needs to know.
        let _ = packet::send(&self.0, &Told::Failed(failure), &[]);
    }

    /// The same; returns the code to exit with.
    pub fn fail(self, error: &StepError) -> i32 {
        self.tell(error);
        127
    }
}

/// The child's pid, or nothing in the child.
pub fn fork() -> io::Result<Option<libc::pid_t>> {
    // SAFETY: this process has one thread, so the child's copy of the memory is consistent.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Ends this process at once. Nothing is put away, which would only make those wait who wait for its end.
pub fn leave(code: i32) -> ! {
    // SAFETY: takes a number, and runs nothing of this program.
    unsafe { libc::_exit(code) }
}

/// Ends this process as another one ended.
fn end_like(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // SAFETY: plain system calls; nothing of this process is needed any more.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return 128 + signal;
    }
    libc::WEXITSTATUS(status)
}
