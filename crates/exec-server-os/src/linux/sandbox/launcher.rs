//! The process between the server and a sandboxed command: it makes the sandbox around itself and then the command in it.
//!
//! ```text
//! server
//!   └─ launcher (outside; ends the way the command ended)
//!        └─ pid 1 (inside; reaps, and with it everything inside ends)
//!             └─ command (a session of its own, with the terminal if there is one)
//! ```
//!
//! Where Landlock is the only lock there are no namespaces and no pid 1: the command is the launcher's own child.
//!
//! It is this program, executed again with an empty environment: one thread, nothing of the server's memory. The plan
//! comes on descriptor 3; what fails before the command runs is told on descriptor 4, which the exec closes. For a
//! command, what the filter refuses is counted on descriptor 5.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::denials::{self, Attendant};
use super::step::{Step, StepError};
use super::{Mechanism, Network, SandboxSetup, confinement, limits, network, view, worker};
use crate::limits::LimitPlan;
use crate::linux::spawner::{memory_of, pointers};
use crate::linux::{check, reap_until};

/// The hidden argument that makes this program a launcher.
pub const LAUNCHER_ARGUMENT: &str = "--sandbox-launcher";

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

const PLAN: RawFd = 3;
const REPORT: RawFd = 4;
const TALLY: RawFd = 5;

/// What went wrong before the command ran, as it is told on descriptor 4.
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

/// Lives as a launcher; returns the code to exit with.
pub fn run_launcher() -> i32 {
    // SAFETY: both descriptors were given to this process for this, and nothing else uses them.
    let (plan, report) = unsafe { (File::from_raw_fd(PLAN), File::from_raw_fd(REPORT)) };
    let report = Report(report);
    match begin(plan, &report) {
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

/// Everything before there is anybody inside.
fn begin(mut plan: File, report: &Report) -> Result<(LaunchPlan, Ends), StepError> {
    report.close_on_exec()?;
    let mut bytes = Vec::new();
    plan.read_to_end(&mut bytes).step("plan")?;
    let plan: LaunchPlan = postcard::from_bytes(&bytes).map_err(io::Error::other).step("plan")?;
    // What the server sends to the whole tree is meant for the command.
    for signal in PASSED_BY {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    if plan.setup.mechanism == Mechanism::Namespaces {
        enter_namespaces(plan.setup.network)?;
    }
    let ends = Ends::new(&plan).step("socket")?;
    Ok((plan, ends))
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

fn enter_namespaces(network: Network) -> Result<(), StepError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if network == Network::Isolated {
        flags |= libc::CLONE_NEWNET;
    }
    // SAFETY: this process has one thread and shares nothing that would change under another.
    check(unsafe { libc::unshare(flags) }).step("namespaces")?;
    // Only after this may an ordinary user map a group.
    std::fs::write("/proc/self/setgroups", "deny").step("setgroups")?;
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).step("uid map")?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).step("gid map")?;
    if network == Network::Isolated { network::bring_loopback_up() } else { Ok(()) }
}

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

/// Without namespaces, as the command or worker.
fn run_alone(plan: &LaunchPlan, report: Report, launcher: File) -> i32 {
    match end_with_parent() {
        Ok(()) => run_confined(plan, report, launcher),
        Err(error) => report.fail(&error),
    }
}

/// Inside, as pid 1: builds the view, starts the command and waits for it.
fn run_inside(plan: &LaunchPlan, report: Report, mut launcher: File) -> i32 {
    if let Err(error) = prepare_inside(plan) {
        return report.fail(&error);
    }
    let command = match fork() {
        Ok(Some(command)) => command,
        Ok(None) => {
            return run_confined(plan, report, launcher);
        }
        Err(source) => return report.fail(&StepError { step: "fork", source }),
    };
    drop(report);
    close_standard_streams();
    let status = reap_until(command).unwrap_or(libc::SIGKILL);
    // Without a reader the launcher is gone, and with it whoever wanted to know.
    let _ = launcher.write_all(&status.to_ne_bytes());
    0
}

fn prepare_inside(plan: &LaunchPlan) -> Result<(), StepError> {
    end_with_parent()?;
    // Before the view covers what it is set by.
    if let Some(count) = plan.limits.pid_range {
        limits::bound_pids(count)?;
    }
    view::build(&plan.setup.view)
}

fn end_with_parent() -> Result<(), StepError> {
    // SAFETY: sets a flag of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    check(result).map(drop).step("parent-death signal")
}

/// As the command or worker; returns only if a command could not be run, or when a worker is done.
fn run_confined(plan: &LaunchPlan, report: Report, launcher: File) -> i32 {
    match &plan.inside {
        Inside::Command(command) => report.fail(&run_command(plan, command, &launcher)),
        Inside::FileWorker => {
            drop(launcher);
            run_worker(plan, report)
        }
    }
}

/// Inside, as the command: everything between fork and exec; returns only if that failed.
fn run_command(plan: &LaunchPlan, command: &Command, launcher: &File) -> StepError {
    match become_command(plan, command, launcher) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn become_command(
    plan: &LaunchPlan,
    command: &Command,
    launcher: &File,
) -> Result<Infallible, StepError> {
    rustix::process::setsid().step("setsid")?;
    if command.has_terminal {
        // SAFETY: plain system call on a descriptor that this process owns.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).step("terminal")?;
    }
    use_own_null_device().step("standard streams")?;
    give_extra_input(command).step("extra input")?;
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
fn run_worker(plan: &LaunchPlan, report: Report) -> i32 {
    if let Err(error) = confinement::confine_worker(&plan.setup) {
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

/// Makes descriptor 3 what the command may read, or closes it.
fn give_extra_input(command: &Command) -> io::Result<()> {
    let Some(content) = &command.extra_input else { return Ok(()) };
    let memory = memory_of(content)?;
    // SAFETY: descriptor 3 is free since the plan was read; the copy does not close on exec.
    check(unsafe { libc::dup2(memory.as_raw_fd(), PLAN) }).map(drop)
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
struct Report(File);

impl Report {
    fn close_on_exec(&self) -> Result<(), StepError> {
        // SAFETY: plain system call on a descriptor that this process owns.
        let result = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        check(result).map(drop).step("report")
    }

    fn fail(mut self, error: &StepError) -> i32 {
        let errno = error.source.raw_os_error().unwrap_or(libc::EINVAL);
        let failure = Failure { step: error.step.to_owned(), errno };
        // If nobody listens any more, nobody needs to know.
        let _ = self.0.write_all(&postcard::to_stdvec(&failure).unwrap_or_default());
        127
    }
}

/// What the two sides of the fork need of each other, and what only the outside needs.
struct Ends {
    outside: File,
    inside: File,
    tally: Option<File>,
}

impl Ends {
    fn new(plan: &LaunchPlan) -> io::Result<Self> {
        let (outside, inside) = denials::connect()?;
        let tally = match plan.inside {
            // SAFETY: a launcher of a command was given this descriptor for this.
            Inside::Command(_) => Some(unsafe { File::from_raw_fd(TALLY) }),
            Inside::FileWorker => None,
        };
        Ok(Self { outside, inside, tally })
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
