//! pid 1 of a sandbox: prepares the sandbox, waits for its job, starts the command or worker and reaps.
//!
//! ```text
//! lay the base rootfs ──▶ wait for the job ──▶ build the rootfs ──▶ start the command ──▶ reap until it exits
//!                              │ the server closes the socket: the sandbox exits without running anything
//! ```
//!
//! Invariant: a sandbox runs one job, and no part of a request is known before it. Therefore nothing leaks from one
//! start into another.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_os::linux::child::ChildStack;
use exec_server_os::linux::command::{Command, pointers};
use exec_server_os::linux::exit_watch::Usage;
use exec_server_os::linux::standard_streams::memory_of;
use exec_server_os::linux::{check, reap_until};
use rustix::pipe::PipeFlags;

use super::exit_report::Ended;
use super::launcher::{
    ExecJob, Inside, LaunchPlan, Preparation, Report, STEP_CWD, STEP_EXEC, TREE_SIGNALS, fork,
    leave, set_tag,
};
use super::limits::{self, PidRange};
use super::rootfs::{BaseRootfs, OldRoot};
use super::step::{Step, StepError};
use super::zygote::{LaunchParams, Limit};
use super::{Mechanism, Network, confinement, namespaces, packet, privileges, worker};

/// The main function of pid 1; returns its exit code.
pub fn run(params: &LaunchParams, job_socket: OwnedFd, report: Report, launcher: File) -> i32 {
    let prepared = end_with_parent()
        .and_then(|()| params.preparation.map(|it| prepare(it, &report)).transpose());
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return report.fail(&error),
    };
    // The server closed the socket: the sandbox is not needed.
    let Ok(packet) = packet::receive(&job_socket) else { return 0 };
    match (accept_job(params, packet), prepared) {
        (Ok(plan), Some(prepared)) => {
            let outside = Outside { launcher, server: job_socket };
            run_inside(&plan, params.open_files, prepared, report, &outside)
        }
        (Ok(plan), None) => {
            drop(job_socket);
            run_alone(&plan, params.open_files, report, launcher)
        }
        (Err(error), _) => report.fail(&error),
    }
}

/// The state that exists before the job is known.
struct Prepared {
    pids: Option<PidRange>,
    base: BaseRootfs,
}

fn prepare(preparation: Preparation, report: &Report) -> Result<Prepared, StepError> {
    // In pid 1 and not in the launcher, so that the mounts end with the processes inside.
    namespaces::enter_new_mounts()?;
    namespaces::hide_cgroup()?;
    report.lend_mounts()?;
    // Must precede the rootfs, which hides the files in /proc/sys.
    let pids = preparation.pid_range.map(PidRange::prepare).transpose()?;
    Ok(Prepared { pids, base: BaseRootfs::lay(preparation.profile)? })
}

/// Receives the job: standard streams, plan, tag and cgroup.
fn accept_job(params: &LaunchParams, packet: packet::Packet) -> Result<LaunchPlan, StepError> {
    let job: ExecJob = packet.decode().step("job")?;
    let mut fds = packet.fds.into_iter();
    let mut next = || fds.next().ok_or(io::ErrorKind::NotFound).step("job");
    for target in 0..3 {
        // SAFETY: plain system call on open descriptors; replaces the null device.
        check(unsafe { libc::dup2(next()?.as_raw_fd(), target) }).step("standard streams")?;
    }
    let mut bytes = Vec::new();
    File::from(next()?).read_to_end(&mut bytes).step("plan")?;
    set_tag(job.tag);
    if job.has_cgroup {
        // 0 stands for the writing process.
        File::from(next()?).write_all(b"0").step("cgroup")?;
        if params.preparation.is_some() {
            namespaces::hide_cgroup()?;
        }
    }
    let plan: LaunchPlan = postcard::from_bytes(&bytes).map_err(io::Error::other).step("plan")?;
    check_fit(params, &plan)?;
    Ok(plan)
}

/// Rejects a plan that this sandbox was not prepared for, so a server bug cannot weaken the confinement.
fn check_fit(params: &LaunchParams, plan: &LaunchPlan) -> Result<(), StepError> {
    let (mechanism, network) = match (params.preparation, params.has_network) {
        (Some(_), true) => (Mechanism::Namespaces, Network::Isolated),
        (Some(_), false) => (Mechanism::Namespaces, Network::Host),
        // Without namespaces the filter alone blocks the network.
        (None, _) => (Mechanism::Landlock, plan.setup.network),
    };
    let pid_range = params.preparation.map_or(plan.limits.pid_range, |prepared| prepared.pid_range);
    let is_fit = plan.setup.mechanism == mechanism
        && plan.setup.network == network
        && plan.limits.pid_range == pid_range;
    if is_fit { Ok(()) } else { Err(io::Error::from(io::ErrorKind::InvalidInput)).step("plan") }
}

/// Runs without namespaces, as the command or worker; returns if exec failed or the worker is done.
fn run_alone(plan: &LaunchPlan, open_files: Limit, report: Report, launcher: File) -> i32 {
    match &plan.inside {
        Inside::Command(command) => {
            match become_command(plan, open_files, command, || Ok(()), &launcher) {
                Ok(never) => match never {},
                Err(error) => report.fail(&error),
            }
        }
        Inside::FileWorker => {
            drop(launcher);
            run_worker(plan, None, report)
        }
        Inside::UserWorker => {
            drop(launcher);
            // Processes of the same user must not take the worker over.
            if let Err(error) = privileges::conceal() {
                return report.fail(&error);
            }
            drop(report);
            serve_files()
        }
    }
}

/// The receivers of the exit status.
struct Outside {
    launcher: File,
    server: OwnedFd,
}

/// As pid 1: builds the rootfs, starts the command and waits for it.
fn run_inside(
    plan: &LaunchPlan,
    open_files: Limit,
    prepared: Prepared,
    report: Report,
    outside: &Outside,
) -> i32 {
    let old_root = match prepared.finish(plan) {
        Ok(old_root) => old_root,
        Err(error) => return report.fail(&error),
    };
    let started = match &plan.inside {
        Inside::Command(command) => {
            let (old_root, report, launcher) = (&old_root, &report, &outside.launcher);
            let has_failed = AtomicBool::new(false);
            start_command(&CommandStart {
                plan,
                open_files,
                command,
                old_root,
                has_failed,
                report,
                launcher,
            })
        }
        Inside::UserWorker => Err(io::ErrorKind::InvalidInput.into()),
        Inside::FileWorker => match fork() {
            Ok(None) => return run_worker(plan, Some(&old_root), report),
            Ok(Some(worker)) => old_root.unmount().map(|()| worker).map_err(Into::into),
            Err(error) => Err(error),
        },
    };
    let command = match started {
        Ok(command) => command,
        Err(cause) => return report.fail(&StepError { step: "start", cause }),
    };
    drop(report);
    close_standard_streams();
    let status = reap_until(command).unwrap_or(libc::SIGKILL);
    outside.send_exit_status(status);
    leave(0)
}

impl Outside {
    /// Sends the exit status; errors mean that the receiver is gone.
    fn send_exit_status(&self, status: i32) {
        let ended = Ended { status, usage: Usage::of_children() };
        let _ = packet::send(&self.server, &ended, &[]);
        let _ = (&self.launcher).write_all(&status.to_ne_bytes());
    }
}

impl Prepared {
    fn finish(self, plan: &LaunchPlan) -> Result<OldRoot, StepError> {
        self.base.freeze_terminals()?;
        let old_root = self.base.build(&plan.setup.view)?;
        self.pids.map_or(Ok(()), PidRange::begin)?;
        Ok(old_root)
    }
}

fn end_with_parent() -> Result<(), StepError> {
    // SAFETY: sets a flag of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    check(result).map(drop).step("parent-death signal")
}

/// The arguments of `run_command`.
struct CommandStart<'a> {
    plan: &'a LaunchPlan,
    open_files: Limit,
    command: &'a Command,
    old_root: &'a OldRoot,
    /// Set if unmounting the old root has failed.
    has_failed: AtomicBool,
    report: &'a Report,
    launcher: &'a File,
}

/// Starts the command, unmounts the old root, and waits for the exec.
///
/// Until exec the command shares the memory of this process: copying it takes about as long as all the confinement
/// steps.
fn start_command(start: &CommandStart) -> io::Result<libc::pid_t> {
    let mut stack = ChildStack::of(COMMAND_STACK_BYTES);
    let (executed, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let argument = std::ptr::from_ref(start).cast_mut().cast();
    // SAFETY: this process has one thread. Until the command has executed or exited it makes three system calls that
    // use only the stack and do not set `errno` (see the assertions below), so the shared memory has one user. The
    // stack of the command is large enough and outlives the exec.
    let command = check(unsafe { libc::clone(run_command, stack.top(), COMMAND_FLAGS, argument) })?;
    // SAFETY: the descriptor is owned and given up here.
    unsafe { rustix::io::close(theirs.into_raw_fd()) };
    if start.old_root.unmount().is_err() {
        start.has_failed.store(true, Ordering::Release);
    }
    // The command holds the other end until it executes or exits.
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(&executed, &mut [0; 1]));
    Ok(command)
}

/// Enough for the steps before exec in an unoptimised build.
const COMMAND_STACK_BYTES: usize = 1 << 20;

/// The command shares memory with pid 1, which continues to run, and nothing else.
const COMMAND_FLAGS: libc::c_int = libc::CLONE_VM | libc::SIGCHLD;

/// The assumptions of `start_command` while pid 1 and the command share memory.
const _: () = {
    const fn is_shareable<T: Sync>() {}
    is_shareable::<CommandStart<'static>>();
    // The command changes descriptors, directory and signal handlers, so they must not be shared.
    let shared = libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    assert!(COMMAND_FLAGS & (shared | libc::CLONE_VFORK | libc::CLONE_SETTLS) == 0);
    // `errno` is shared. rustix's own system calls do not set it; built on libc, its error type is wider.
    assert!(
        size_of::<rustix::io::Errno>() == size_of::<u16>(),
        "rustix makes its own system calls"
    );
    // pid 1 must not allocate or free, because both processes use the same thread-local heap state.
    assert!(!std::mem::needs_drop::<rustix::io::Errno>());
    let _: fn(&OldRoot) -> rustix::io::Result<()> = OldRoot::unmount;
    // An atomic that is emulated with a lock could stay locked by the other process.
    assert!(cfg!(target_has_atomic = "8"));
    assert!(COMMAND_STACK_BYTES.is_multiple_of(16), "a stack begins at a multiple of 16");
};

/// As the command: everything between clone and exec; returns only on failure.
///
/// It must not drop anything that belongs to pid 1. Descriptors are not shared.
extern "C" fn run_command(start: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start_command` passed this pointer and waits.
    let CommandStart { plan, open_files, command, old_root, has_failed, report, launcher } =
        unsafe { &*start.cast::<CommandStart>() };
    let without_old_root = || old_root.wait_until_gone(|| has_failed.load(Ordering::Acquire));
    match become_command(plan, *open_files, command, without_old_root, launcher) {
        Ok(never) => match never {},
        Err(error) => report.tell(&error),
    }
    127
}

fn become_command(
    plan: &LaunchPlan,
    open_files: Limit,
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
    let rlimits = &plan.limits.rlimits;
    confinement::confine_command(&plan.setup, rlimits, launcher.as_fd())?;
    limits::apply_open_files(open_files, rlimits.open_files)?;
    // The Rust runtime ignores SIGPIPE from the start of this program.
    for signal in TREE_SIGNALS.into_iter().chain([libc::SIGPIPE]) {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the path is a C string.
    check(unsafe { libc::chdir(command.cwd.as_ptr()) }).step(STEP_CWD)?;
    Err(StepError { step: STEP_EXEC, cause: execute(command) })
}

/// As a worker: serves until the server closes the socket.
fn run_worker(plan: &LaunchPlan, old_root: Option<&OldRoot>, report: Report) -> i32 {
    // If unmounting fails, pid 1 exits, and this process with it.
    let is_alone = old_root.map_or(Ok(()), |old_root| old_root.wait_until_gone(|| false));
    if let Err(error) = is_alone.and_then(|()| confinement::confine_worker(&plan.setup)) {
        return report.fail(&error);
    }
    drop(report);
    serve_files()
}

fn serve_files() -> i32 {
    // The server notices any end by the closed socket.
    let _ = worker::serve::serve(std::io::stdin().as_fd());
    0
}

/// Replaces the host's null device, whose owner could change its mode for the whole machine, with that of the rootfs.
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

/// The descriptor of the extra input.
const EXTRA_INPUT: RawFd = 3;

fn give_extra_input(command: &Command) -> io::Result<()> {
    let Some(content) = &command.extra_input else { return Ok(()) };
    let memory = memory_of(content)?;
    // SAFETY: no descriptor with such a low number is still needed; the copy does not close on exec.
    check(unsafe { libc::dup2(memory.as_raw_fd(), EXTRA_INPUT) }).map(drop)
}

/// Tries all candidate paths.
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

/// Closes the standard streams, so that only the command keeps a pipe open.
fn close_standard_streams() {
    for stream in 0..3 {
        // SAFETY: this process no longer uses them.
        unsafe { libc::close(stream) };
    }
}
