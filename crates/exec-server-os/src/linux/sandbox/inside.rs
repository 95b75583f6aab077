//! Inside of a sandbox: pid 1, which prepares it and waits to be told what to run, and what then runs.
//!
//! ```text
//! lay the foundation ──▶ wait for the errand ──▶ build the view ──▶ start the command ──▶ reap until it ends
//!                              │ the server hangs up: nothing is run, and the sandbox ends
//! ```
//!
//! Invariant: a sandbox has one errand. Nothing of a request is known before that, so nothing of one start can be found
//! by another.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::pipe::PipeFlags;

use super::ending::Ended;
use super::launcher::{
    Command, Errand, Inside, LaunchPlan, PASSED_BY, Preparation, Report, STEP_CWD, STEP_EXEC, fork,
    leave, set_tag,
};
use super::limits::PidRange;
use super::step::{Step, StepError};
use super::view::{Foundation, OldRoot};
use super::zygote::Birth;
use super::{Mechanism, Network, confinement, namespaces, packet, worker};
use crate::linux::child::ChildStack;
use crate::linux::exit_watch::Usage;
use crate::linux::spawner::{memory_of, pointers};
use crate::linux::{check, reap_until};

/// Lives as the first process inside; returns the code to exit with.
pub fn run(birth: &Birth, errand: OwnedFd, report: Report, launcher: File) -> i32 {
    let prepared = end_with_parent()
        .and_then(|()| birth.preparation.map(|it| prepare(it, &report)).transpose());
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return report.fail(&error),
    };
    // Nobody needs this sandbox any more.
    let Ok(told) = packet::receive(&errand) else { return 0 };
    match (take_up(birth, told), prepared) {
        (Ok(plan), Some(prepared)) => {
            run_inside(&plan, prepared, report, &Outside { launcher, server: errand })
        }
        (Ok(plan), None) => {
            drop(errand);
            run_alone(&plan, report, launcher)
        }
        (Err(error), _) => report.fail(&error),
    }
}

/// What is made before it is known what runs.
struct Prepared {
    pids: Option<PidRange>,
    foundation: Foundation,
}

fn prepare(preparation: Preparation, report: &Report) -> Result<Prepared, StepError> {
    // Here and not around the launcher, so that the mounts are gone when everybody inside is.
    namespaces::enter_new_mounts()?;
    namespaces::hide_cgroup()?;
    report.lend_mounts()?;
    // Before the view covers what it is set by.
    let pids = preparation.pid_range.map(PidRange::prepare).transpose()?;
    Ok(Prepared { pids, foundation: Foundation::lay(preparation.ground)? })
}

/// Becomes part of the tree that the errand is for.
fn take_up(birth: &Birth, told: packet::Packet) -> Result<LaunchPlan, StepError> {
    let errand: Errand = told.decode().step("errand")?;
    let mut fds = told.fds.into_iter();
    let mut next = || fds.next().ok_or(io::ErrorKind::NotFound).step("errand");
    for target in 0..3 {
        // SAFETY: plain system call on open descriptors; takes the place of the null device.
        check(unsafe { libc::dup2(next()?.as_raw_fd(), target) }).step("standard streams")?;
    }
    let mut bytes = Vec::new();
    File::from(next()?).read_to_end(&mut bytes).step("plan")?;
    set_tag(errand.tag);
    if errand.has_cgroup {
        // The writing process is meant.
        File::from(next()?).write_all(b"0").step("cgroup")?;
        if birth.preparation.is_some() {
            namespaces::hide_cgroup()?;
        }
    }
    let plan: LaunchPlan = postcard::from_bytes(&bytes).map_err(io::Error::other).step("plan")?;
    check_fit(birth, &plan)?;
    Ok(plan)
}

/// Whatever the server does, a command never runs in a sandbox that was prepared for less.
fn check_fit(birth: &Birth, plan: &LaunchPlan) -> Result<(), StepError> {
    let (mechanism, network) = match (birth.preparation, birth.has_network) {
        (Some(_), true) => (Mechanism::Namespaces, Network::Isolated),
        (Some(_), false) => (Mechanism::Namespaces, Network::Host),
        // Here the network is kept away by the filter alone.
        (None, _) => (Mechanism::Landlock, plan.setup.network),
    };
    let pid_range = birth.preparation.map_or(plan.limits.pid_range, |prepared| prepared.pid_range);
    let is_fit = plan.setup.mechanism == mechanism
        && plan.setup.network == network
        && plan.limits.pid_range == pid_range;
    if is_fit { Ok(()) } else { Err(io::Error::from(io::ErrorKind::InvalidInput)).step("plan") }
}

/// Without namespaces, as the command or worker; returns only if a command could not be run, or when a worker is done.
fn run_alone(plan: &LaunchPlan, report: Report, launcher: File) -> i32 {
    match &plan.inside {
        Inside::Command(command) => match become_command(plan, command, || Ok(()), &launcher) {
            Ok(never) => match never {},
            Err(error) => report.fail(&error),
        },
        Inside::FileWorker => {
            drop(launcher);
            run_worker(plan, None, report)
        }
    }
}

/// Who wants to know how the command ended.
struct Outside {
    launcher: File,
    server: OwnedFd,
}

/// Inside, as pid 1: builds the view, starts the command and waits for it.
fn run_inside(plan: &LaunchPlan, prepared: Prepared, report: Report, outside: &Outside) -> i32 {
    let old_root = match prepared.finish(plan) {
        Ok(old_root) => old_root,
        Err(error) => return report.fail(&error),
    };
    let started = match &plan.inside {
        Inside::Command(command) => {
            let (old_root, report, launcher) = (&old_root, &report, &outside.launcher);
            let has_failed = AtomicBool::new(false);
            start_command(&CommandStart { plan, command, old_root, has_failed, report, launcher })
        }
        Inside::FileWorker => match fork() {
            Ok(None) => return run_worker(plan, Some(&old_root), report),
            Ok(Some(worker)) => old_root.unmount().map(|()| worker).map_err(Into::into),
            Err(error) => Err(error),
        },
    };
    let command = match started {
        Ok(command) => command,
        Err(source) => return report.fail(&StepError { step: "start", source }),
    };
    drop(report);
    close_standard_streams();
    let status = reap_until(command).unwrap_or(libc::SIGKILL);
    outside.tell_ending(status);
    leave(0)
}

impl Outside {
    /// Without a reader there is nobody who wanted to know.
    fn tell_ending(&self, status: i32) {
        let ended = Ended { status, usage: Usage::of_children() };
        let _ = packet::send(&self.server, &ended, &[]);
        let _ = (&self.launcher).write_all(&status.to_ne_bytes());
    }
}

impl Prepared {
    fn finish(self, plan: &LaunchPlan) -> Result<OldRoot, StepError> {
        let old_root = self.foundation.build(&plan.setup.view)?;
        self.pids.map_or(Ok(()), PidRange::begin)?;
        Ok(old_root)
    }
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
    /// The old root cannot be unmounted.
    has_failed: AtomicBool,
    report: &'a Report,
    launcher: &'a File,
}

/// Starts the command, lets go of the old root, and sleeps until the command is executed.
///
/// Until then it shares the memory of this process: to copy it, only to throw it away a moment later, takes about as
/// long as to give up all the rights in between.
fn start_command(start: &CommandStart) -> io::Result<libc::pid_t> {
    let mut stack = ChildStack::of(COMMAND_STACK_BYTES);
    let (executed, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    let argument = std::ptr::from_ref(start).cast_mut().cast();
    // SAFETY: this process has one thread, which until the command has executed or exited makes three system calls that
    // need nothing but the stack (and not even set `errno`), so that nobody else touches what they share; the stack of the
    // command is large enough and outlives that moment.
    let command = check(unsafe { libc::clone(run_command, stack.top(), flags, argument) })?;
    drop(theirs);
    if start.old_root.unmount().is_err() {
        start.has_failed.store(true, Ordering::Release);
    }
    // The command has the other end, until it is executed or has exited.
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(&executed, &mut [0; 1]));
    Ok(command)
}

/// As much as the few steps before the exec may take, without optimisation.
const COMMAND_STACK_BYTES: usize = 1 << 20;

/// Inside, as the command: everything between clone and exec; returns only if that failed.
///
/// It must leave alone what belongs to pid 1, and so drops nothing that it did not make. Descriptors are its own.
extern "C" fn run_command(start: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start_command` passed this, and sleeps.
    let CommandStart { plan, command, old_root, has_failed, report, launcher } =
        unsafe { &*start.cast::<CommandStart>() };
    let without_old_root = || old_root.wait_until_gone(|| has_failed.load(Ordering::Acquire));
    match become_command(plan, command, without_old_root, launcher) {
        Ok(never) => match never {},
        Err(error) => report.tell(&error),
    }
    127
}

fn become_command(
    plan: &LaunchPlan,
    command: &Command,
    without_old_root: impl FnOnce() -> Result<(), StepError>,
    launcher: &File,
) -> Result<Infallible, StepError> {
    rustix::process::setsid().step("setsid")?;
    if command.has_terminal {
        // SAFETY: plain system call on a descriptor that this process owns.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }).step("terminal")?;
    }
    use_own_null_device().step("standard streams")?;
    give_extra_input(command).step("extra input")?;
    without_old_root()?;
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
    // Should it stay, pid 1 ends, and this with it.
    let is_alone = old_root.map_or(Ok(()), |old_root| old_root.wait_until_gone(|| false));
    if let Err(error) = is_alone.and_then(|()| confinement::confine_worker(&plan.setup)) {
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

/// Only the command may keep a pipe open.
fn close_standard_streams() {
    for stream in 0..3 {
        // SAFETY: nothing in this process uses them any more.
        unsafe { libc::close(stream) };
    }
}
