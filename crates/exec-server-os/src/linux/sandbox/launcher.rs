//! The process between the server and a sandboxed command: it makes the sandbox around itself and then the command in it.
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

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::denials::{self, Attendant};
use super::limits::PidRange;
use super::network::QuietNetwork;
use super::step::{Step, StepError};
use super::view::OldRoot;
use super::zygote::{Birth, Limit};
use super::{Mechanism, Network, SandboxSetup, confinement, namespaces, packet, view, worker};
use crate::limits::LimitPlan;
use crate::linux::child::ChildStack;
use crate::linux::spawner::{memory_of, move_up, pointers};
use crate::linux::{check, reap_until};

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
    match launcher.begin(given, &report) {
        Ok((plan, ends)) => match fork() {
            Ok(Some(first)) => {
                // If pid 1 is killed, there must be nobody left who could tell, or the wait would never end.
                drop(ends.inside);
                let attendant = Attendant::new(ends.outside, ends.tally);
                wait_outside(&plan, first, report, attendant)
            }
            Ok(None) => {
                drop((ends.outside, ends.tally));
                match plan.setup.mechanism {
                    Mechanism::Namespaces => run_inside(&plan, report, ends.inside),
                    Mechanism::Landlock => run_alone(&plan, report, ends.inside),
                }
            }
            Err(source) => report.fail(&StepError { step: "fork", source }),
        },
        Err(error) => report.fail(&error),
    }
}

/// What a launcher was given, except for the report.
struct Given {
    streams: [OwnedFd; 3],
    plan: File,
    tally: Option<File>,
    cgroup: Option<File>,
    network: Option<QuietNetwork>,
}

/// What the two sides of the fork need of each other, and what only the outside needs.
struct Ends {
    outside: File,
    inside: File,
    tally: Option<File>,
}

impl Launcher {
    /// The order of [`Order::Launch`](super::zygote::Order).
    fn sort_out(&mut self) -> Option<(Given, Report)> {
        let mut fds = std::mem::take(&mut self.fds).into_iter();
        let streams = [fds.next()?, fds.next()?, fds.next()?];
        let plan = fds.next()?.into();
        let report = move_up(fds.next()?).ok()?;
        let tally = if self.birth.has_tally { Some(fds.next()?.into()) } else { None };
        let cgroup = if self.birth.has_cgroup { Some(fds.next()?.into()) } else { None };
        let network = match self.birth.has_network {
            true => Some(QuietNetwork { users: fds.next()?, network: fds.next()? }),
            false => None,
        };
        Some((Given { streams, plan, tally, cgroup, network }, Report(report)))
    }

    /// Everything before there is anybody inside.
    fn begin(&self, given: Given, report: &Report) -> Result<(LaunchPlan, Ends), StepError> {
        let Given { streams, mut plan, tally, cgroup, network } = given;
        self.become_a_child_like_any_other(streams, cgroup)?;
        let mut bytes = Vec::new();
        plan.read_to_end(&mut bytes).step("plan")?;
        drop(plan);
        let plan: LaunchPlan =
            postcard::from_bytes(&bytes).map_err(io::Error::other).step("plan")?;
        if plan.setup.mechanism == Mechanism::Namespaces {
            match (plan.setup.network, network) {
                (Network::Host, _) => {}
                (Network::Isolated, Some(network)) => network.enter()?,
                (Network::Isolated, None) => {
                    return Err(io::Error::from(io::ErrorKind::NotFound)).step("network");
                }
            }
            namespaces::enter_new()?;
            report.lend_mounts()?;
        }
        let (outside, inside) = denials::connect().step("socket")?;
        Ok((plan, Ends { outside, inside, tally }))
    }

    /// What `child` does for programs that are started without a sandbox.
    fn become_a_child_like_any_other(
        &self,
        streams: [OwnedFd; 3],
        cgroup: Option<File>,
    ) -> Result<(), StepError> {
        rustix::process::setsid().step("setsid")?;
        if let Some(mut cgroup) = cgroup {
            // The writing process is meant.
            cgroup.write_all(b"0").step("cgroup")?;
        }
        for (target, stream) in streams.iter().enumerate() {
            // SAFETY: plain system call on open descriptors; takes the place of the zygote's, which is not used again.
            let result = unsafe { libc::dup2(stream.as_raw_fd(), target as RawFd) };
            check(result).step("standard streams")?;
        }
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
        // It may fail under a lowered hard limit, and then trees are told apart by session only.
        let _ = set_limit(libc::RLIMIT_RTTIME, self.birth.tag);
        set_limit(libc::RLIMIT_NOFILE, self.birth.open_files).step("resource limits")
    }
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
const PASSED_BY: [libc::c_int; 10] = [
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
fn wait_outside(
    plan: &LaunchPlan,
    first: libc::pid_t,
    report: Report,
    attendant: Attendant,
) -> i32 {
    drop(report);
    close_standard_streams();
    let told = match plan.setup.mechanism {
        Mechanism::Namespaces => attendant.run(),
        // The command itself tells nobody.
        Mechanism::Landlock => match handle_of(first) {
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

/// Without namespaces, as the command or worker; returns only if a command could not be run, or when a worker is done.
fn run_alone(plan: &LaunchPlan, report: Report, launcher: File) -> i32 {
    if let Err(error) = end_with_parent() {
        return report.fail(&error);
    }
    match &plan.inside {
        Inside::Command(command) => match become_command(plan, command, None, &launcher) {
            Ok(never) => match never {},
            Err(error) => report.fail(&error),
        },
        Inside::FileWorker => {
            drop(launcher);
            run_worker(plan, None, report)
        }
    }
}

/// Inside, as pid 1: builds the view, starts the command and waits for it.
fn run_inside(plan: &LaunchPlan, report: Report, mut launcher: File) -> i32 {
    let old_root = match prepare_inside(plan) {
        Ok(old_root) => old_root,
        Err(error) => return report.fail(&error),
    };
    let started = match &plan.inside {
        Inside::Command(command) => {
            let (old_root, report, launcher) = (&old_root, &report, &launcher);
            start_command(&CommandStart { plan, command, old_root, report, launcher })
        }
        Inside::FileWorker => match fork() {
            Ok(None) => {
                drop(launcher);
                return run_worker(plan, Some(&old_root), report);
            }
            Ok(Some(worker)) => Ok(worker),
            Err(error) => Err(error),
        },
    };
    let command = match started {
        Ok(command) => command,
        Err(source) => return report.fail(&StepError { step: "fork", source }),
    };
    drop(report);
    close_standard_streams();
    let status = reap_until(command).unwrap_or(libc::SIGKILL);
    // Without a reader the launcher is gone, and with it whoever wanted to know.
    let _ = launcher.write_all(&status.to_ne_bytes());
    0
}

fn prepare_inside(plan: &LaunchPlan) -> Result<OldRoot, StepError> {
    end_with_parent()?;
    // Before the view covers what it is set by.
    let pids = plan.limits.pid_range.map(PidRange::prepare).transpose()?;
    let old_root = view::build(&plan.setup.view)?;
    // Whoever lets go of the old root is not one of the command's.
    pids.map_or(Ok(()), PidRange::begin)?;
    Ok(old_root)
}

fn end_with_parent() -> Result<(), StepError> {
    // SAFETY: sets a flag of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    check(result).map(drop).step("parent-death signal")
}

/// What a command is started from.
struct CommandStart<'a> {
    plan: &'a LaunchPlan,
    command: &'a Command,
    old_root: &'a OldRoot,
    report: &'a Report,
    launcher: &'a File,
}

/// Starts the command, and sleeps until it is executed.
///
/// Until then it shares the memory of this process: to copy it, only to throw it away a moment later, takes about as
/// long as to give up all the rights in between.
fn start_command(start: &CommandStart) -> io::Result<libc::pid_t> {
    let mut stack = ChildStack::of(COMMAND_STACK_BYTES);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let start = std::ptr::from_ref(start).cast_mut().cast();
    // SAFETY: this process has one thread, which sleeps until the command has executed or exited, so that nobody else
    // touches what they share; the stack is large enough and outlives the call.
    check(unsafe { libc::clone(run_command, stack.top(), flags, start) })
}

/// As much as the few steps before the exec may take, without optimisation.
const COMMAND_STACK_BYTES: usize = 1 << 20;

/// Inside, as the command: everything between clone and exec; returns only if that failed.
///
/// It must leave alone what belongs to pid 1, and so drops nothing that it did not make. Descriptors are its own.
extern "C" fn run_command(start: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start_command` passed this, and sleeps.
    let CommandStart { plan, command, old_root, report, launcher } =
        unsafe { &*start.cast::<CommandStart>() };
    match become_command(plan, command, Some(old_root), launcher) {
        Ok(never) => match never {},
        Err(error) => report.tell(&error),
    }
    127
}

fn become_command(
    plan: &LaunchPlan,
    command: &Command,
    old_root: Option<&OldRoot>,
    launcher: &File,
) -> Result<Infallible, StepError> {
    rustix::process::setsid().step("setsid")?;
    if command.has_terminal {
        // SAFETY: plain system call on a descriptor that this process owns.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).step("terminal")?;
    }
    use_own_null_device().step("standard streams")?;
    give_extra_input(command).step("extra input")?;
    old_root.map_or(Ok(()), OldRoot::wait_until_gone)?;
    confinement::confine_command(&plan.setup, &plan.limits.rlimits, launcher.as_fd())?;
    // The runtime of this program has ignored the last one from its start.
    for signal in PASSED_BY.into_iter().chain([libc::SIGPIPE]) {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the path is a C string.
    check(unsafe { libc::chdir(command.cwd.as_ptr()) }).step(STEP_CWD)?;
    Err(StepError { step: STEP_EXEC, source: execute(command) })
}

/// Inside, as a worker: serves until the server hangs up.
fn run_worker(plan: &LaunchPlan, old_root: Option<&OldRoot>, report: Report) -> i32 {
    let confined = confinement::confine_worker(&plan.setup);
    if let Err(error) = old_root.map_or(Ok(()), OldRoot::wait_until_gone).and(confined) {
        return report.fail(&error);
    }
    drop(report);
    // Whatever ends it, the server finds out by the socket.
    let _ = worker::serve(std::io::stdin().as_fd());
    0
}

/// Puts the view's null device in the place of the server's, whose owner could change its mode for the whole machine.
fn use_own_null_device() -> io::Result<()> {
    let null = libc::makedev(1, 3);
    for stream in 0..3 {
        // SAFETY: all zeros is a valid value, and the call fills it.
        let mut stat = unsafe { std::mem::zeroed::<libc::stat>() };
        // SAFETY: as above.
        check(unsafe { libc::fstat(stream, &raw mut stat) })?;
        if stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == null {
            let own = File::options().read(true).write(true).open("/dev/null")?;
            // SAFETY: both descriptors are ours; the copy does not close on exec.
            check(unsafe { libc::dup2(own.as_raw_fd(), stream) })?;
        }
    }
    Ok(())
}

/// Where a command finds what it may read beside its input.
const EXTRA_INPUT: RawFd = 3;

/// Makes descriptor 3 what the command may read.
fn give_extra_input(command: &Command) -> io::Result<()> {
    let Some(content) = &command.extra_input else { return Ok(()) };
    let memory = memory_of(content)?;
    // SAFETY: nothing that is still needed has so low a number; the copy does not close on exec.
    check(unsafe { libc::dup2(memory.as_raw_fd(), EXTRA_INPUT) }).map(drop)
}

/// Tries every place where the program may be.
fn execute(command: &Command) -> io::Error {
    let argv = pointers(&command.argv);
    let env = pointers(&command.env);
    let mut remembered = io::Error::from_raw_os_error(libc::ENOENT);
    for candidate in &command.candidates {
        // SAFETY: all three are null-terminated arrays of C strings that live on.
        unsafe { libc::execve(candidate.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => remembered = error,
            Some(libc::ENOEXEC) => {
                let mut script = vec![c"/bin/sh".as_ptr(), candidate.as_ptr()];
                script.extend(argv.iter().skip(1));
                // SAFETY: as above.
                unsafe { libc::execve(script[0], script.as_ptr(), env.as_ptr()) };
                return io::Error::last_os_error();
            }
            _ => return error,
        }
    }
    remembered
}

/// Where failures are told; whoever holds it last closes it.
struct Report(OwnedFd);

impl Report {
    /// Lends the server the mounts of the sandbox: whoever lets go of them last waits for the kernel, and that must
    /// not be the launcher when it ends.
    fn lend_mounts(&self) -> Result<(), StepError> {
        let mounts = namespaces::open_own("mnt").step("mounts")?;
        packet::send(&self.0, &Told::Mounts, &[mounts.as_fd()]).step("mounts")
    }

    fn tell(&self, error: &StepError) {
        let errno = error.source.raw_os_error().unwrap_or(libc::EINVAL);
        let failure = Failure { step: error.step.to_owned(), errno };
        // If nobody listens any more, nobody needs to know.
        let _ = packet::send(&self.0, &Told::Failed(failure), &[]);
    }

    fn fail(self, error: &StepError) -> i32 {
        self.tell(error);
        127
    }
}

/// The child's pid, or nothing in the child.
fn fork() -> io::Result<Option<libc::pid_t>> {
    // SAFETY: this process has one thread, so the child's copy of the memory is consistent.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Only the command may keep a pipe open.
fn close_standard_streams() {
    for stream in 0..3 {
        // SAFETY: nothing in this process uses them any more.
        unsafe { libc::close(stream) };
    }
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
