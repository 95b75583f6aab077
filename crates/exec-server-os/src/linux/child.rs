//! The steps between clone and exec, run in a child that still shares the parent's memory.
//!
//! The clone uses `CLONE_VM | CLONE_VFORK`: no page table is copied, so the cost of a start does not depend on the size
//! of the server. The calling thread is suspended until the child has executed its program or exited. Until then the
//! child must not allocate, lock, or unwind; it only makes system calls on data that the parent has prepared.
//!
//! A child of another user gets a copy of the memory instead: that user can stop the child before its exec, which must
//! not suspend the calling thread for good, and must not share a page with the server.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;

use super::standard_streams::move_up;
use super::startup::Resource;
use super::{check, credentials};
use crate::accounts::Credentials;
use crate::spawn::SpawnError;

/// Input of the child, prepared before the clone because the child cannot allocate.
pub(super) struct ChildPlan<'a> {
    /// Paths to try for the program, in the order of `PATH`.
    pub candidates: &'a [CString],
    /// Null-terminated.
    pub argv: &'a [*const libc::c_char],
    /// `/bin/sh`, a slot for the candidate, and the arguments: for a script without an interpreter line.
    pub script_argv: &'a mut [*const libc::c_char],
    /// Null-terminated.
    pub envp: &'a [*const libc::c_char],
    pub cwd: &'a CString,
    /// Duplicated to descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Duplicated to descriptors 3 and up; the originals must have higher numbers.
    pub extras: &'a [BorrowedFd<'a>],
    /// Whether descriptor 0 becomes the controlling terminal.
    pub has_terminal: bool,
    /// `cgroup.procs` of the cgroup that the child joins.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Signals that the server ignores; the child resets them to their default action.
    pub ignored: &'a [libc::c_int],
    /// The limit on open files that the server was started with, before it raised its own.
    pub open_files: libc::rlimit,
    /// Resource limits of the request.
    pub rlimits: &'a [(Resource, libc::rlimit)],
    /// Value for the child's `oom_score_adj`.
    pub oom_score: &'a [u8],
    /// Identifies the child and its descendants; see `process_tree`.
    pub tag: libc::rlimit,
    /// The user of the child, if it is another one.
    pub user: Option<&'a Credentials>,
    pub server_pid: libc::pid_t,
}

/// The stack that the child runs on.
pub struct ChildStack(Box<[u128]>);

impl Default for ChildStack {
    fn default() -> Self {
        Self::new()
    }
}

impl ChildStack {
    /// Enough for the steps before exec.
    pub fn new() -> Self {
        // The child calls a few thin libc wrappers; 64 KiB is far more than they need.
        Self::of(64 << 10)
    }

    /// A stack of this size.
    pub fn of(bytes: usize) -> Self {
        Self(vec![0; bytes / size_of::<u128>()].into_boxed_slice())
    }

    /// The address at which the child begins.
    pub fn top(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr_range().end.cast()
    }
}

/// The step that failed; written by the child, read by the parent after the child has exited.
struct Failure {
    step: Step,
    errno: libc::c_int,
}

#[derive(Clone, Copy)]
enum Step {
    None,
    Session,
    Terminal,
    Stdio,
    ParentDeath,
    Cgroup,
    Limits,
    User,
    Cwd,
    Exec,
}

impl Step {
    const ALL: [Self; 10] = [
        Self::None,
        Self::Session,
        Self::Terminal,
        Self::Stdio,
        Self::ParentDeath,
        Self::Cgroup,
        Self::Limits,
        Self::User,
        Self::Cwd,
        Self::Exec,
    ];
}

struct Shared<'a, 'b> {
    plan: &'a mut ChildPlan<'b>,
    failure: Failure,
    has_oom_score: bool,
    /// Takes the failure of a child that does not share the memory.
    report: Option<RawFd>,
}

/// Starts the child and returns its pid and pidfd.
pub(super) fn clone_child(
    plan: &mut ChildPlan,
    stack: &mut ChildStack,
) -> Result<(libc::pid_t, OwnedFd), SpawnError> {
    if plan.user.is_some() {
        return fork_child(plan, stack);
    }
    let failure = Failure { step: Step::None, errno: 0 };
    let mut shared = Shared { plan, failure, has_oom_score: false, report: None };
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let blocked = block_signals();
    // SAFETY: the stack is large enough and outlives the call, because CLONE_VFORK keeps this thread asleep until
    // the child has executed or exited; `shared` and `pidfd` live as long; all signals are blocked, so no handler
    // of this process can run in the child.
    let pid = unsafe {
        libc::clone(run_child, stack.top(), flags, (&raw mut shared).cast(), &raw mut pidfd)
    };
    let cloned = check(pid);
    restore_signals(&blocked);
    let pid = cloned.map_err(|source| SpawnError::Prepare { step: "clone", cause: source })?;
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: a plain read; volatile because the compiler cannot know that the child wrote to it.
    let failure = unsafe { std::ptr::read_volatile(&raw const shared.failure) };
    // SAFETY: as above.
    let has_oom_score = unsafe { std::ptr::read_volatile(&raw const shared.has_oom_score) };
    let Some(error) = failure.error() else {
        if !has_oom_score {
            set_oom_score_of(pid, shared.plan.oom_score);
        }
        return Ok((pid, pidfd));
    };
    // SAFETY: waits for our own child, which has already exited.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    Err(error)
}

/// Maximum time from the fork of a child of another user to its exec.
const EXEC_TIME: Duration = Duration::from_secs(30);

/// Like [`clone_child`], for a child of another user, with a copy of the memory.
fn fork_child(
    plan: &mut ChildPlan,
    stack: &mut ChildStack,
) -> Result<(libc::pid_t, OwnedFd), SpawnError> {
    let prepare = |step| move |source: io::Error| SpawnError::Prepare { step, cause: source };
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (report, theirs) = pipe.map_err(|errno| prepare("pipe")(errno.into()))?;
    let theirs = move_up(theirs).map_err(prepare("pipe"))?;
    let failure = Failure { step: Step::None, errno: 0 };
    let report_to = Some(theirs.as_raw_fd());
    let mut shared = Shared { plan, failure, has_oom_score: false, report: report_to };
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
    let blocked = block_signals();
    // SAFETY: the child runs on its own copy of the stack and of all memory, and only makes system calls; all signals
    // are blocked, so no handler of this process can run in the child.
    let pid = unsafe {
        libc::clone(run_child, stack.top(), flags, (&raw mut shared).cast(), &raw mut pidfd)
    };
    let cloned = check(pid);
    restore_signals(&blocked);
    let pid = cloned.map_err(prepare("clone"))?;
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    drop(theirs);
    let outcome = await_exec(&report, EXEC_TIME);
    if let Ok(None) = outcome {
        return Ok((pid, pidfd));
    }
    // SAFETY: our own unreaped child; a child that was stopped has not exited yet.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    let failure = outcome.map_err(prepare("exec"))?;
    Err(failure.and_then(|failure| failure.error()).expect("no failure was returned above"))
}

/// Waits until the child has closed the pipe by its exec, or has written its failure.
fn await_exec(report: &OwnedFd, time: Duration) -> io::Result<Option<Failure>> {
    let begin = Instant::now();
    loop {
        let left = time.saturating_sub(begin.elapsed());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(report, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(rustix::io::Errno::INTR) => {}
            polled => {
                polled?;
                break;
            }
        }
    }
    let mut bytes = [0; Failure::BYTES];
    match rustix::io::read(report, &mut bytes)? {
        0 => Ok(None),
        _ => Ok(Some(Failure::from_bytes(bytes))),
    }
}

impl Failure {
    const BYTES: usize = 5;

    fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.errno.to_ne_bytes();
        [self.step as u8, a, b, c, d]
    }

    fn from_bytes([step, errno @ ..]: [u8; Self::BYTES]) -> Self {
        let step = Step::ALL.get(usize::from(step)).copied().unwrap_or(Step::Exec);
        Self { step, errno: libc::c_int::from_ne_bytes(errno) }
    }

    fn error(&self) -> Option<SpawnError> {
        let source = io::Error::from_raw_os_error(self.errno);
        let step = match self.step {
            Step::None => return None,
            Step::User => return Some(SpawnError::User(source)),
            Step::Cwd => return Some(SpawnError::Cwd(source)),
            Step::Exec => return Some(SpawnError::Program(source)),
            Step::Session => "setsid",
            Step::Terminal => "controlling terminal",
            Step::Stdio => "standard streams",
            Step::ParentDeath => "parent-death signal",
            Step::Cgroup => "cgroup",
            Step::Limits => "resource limits",
        };
        Some(SpawnError::Prepare { step, cause: source })
    }
}

extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent passed a `Shared` that it does not touch while it sleeps.
    let shared = unsafe { &mut *argument.cast::<Shared>() };
    let step = prepare_and_exec(shared.plan, &mut shared.has_oom_score, &mut shared.report);
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    shared.failure = Failure { step, errno };
    if let Some(report) = shared.report {
        let bytes = shared.failure.to_bytes();
        // SAFETY: the bytes are alive; a parent that is gone needs no answer.
        unsafe { libc::write(report, bytes.as_ptr().cast(), bytes.len()) };
    }
    // SAFETY: ends this child alone, without running anything that belongs to the parent.
    unsafe { libc::_exit(127) }
}

/// Returns only on failure, with the step that failed.
fn prepare_and_exec(
    plan: &mut ChildPlan,
    has_oom_score: &mut bool,
    report: &mut Option<RawFd>,
) -> Step {
    // SAFETY (all blocks below): plain system calls on descriptors and memory that the parent prepared and keeps.
    for signal in plan.ignored {
        // SAFETY: as above; the child has its own table of handlers.
        unsafe { libc::signal(*signal, libc::SIG_DFL) };
    }
    // SAFETY: as above.
    if unsafe { libc::setsid() } == -1 {
        return Step::Session;
    }
    if let Some(cgroup) = plan.cgroup {
        // SAFETY: as above; "0" means the writing process.
        if unsafe { libc::write(cgroup.as_raw_fd(), b"0".as_ptr().cast(), 1) } == -1 {
            return Step::Cgroup;
        }
    }
    for (target, source) in plan.stdio.iter().enumerate() {
        // SAFETY: as above; a source is above 2 or its own target, so none is overwritten before its turn.
        if unsafe { libc::dup2(source.as_raw_fd(), target as RawFd) } == -1 {
            return Step::Stdio;
        }
    }
    // SAFETY: as above.
    if plan.has_terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } == -1 {
        return Step::Terminal;
    }
    let mut first_to_close: libc::c_uint = 3;
    for extra in plan.extras {
        // SAFETY: as above; the copy does not close on exec.
        if unsafe { libc::dup2(extra.as_raw_fd(), first_to_close.cast_signed()) } == -1 {
            return Step::Stdio;
        }
        first_to_close += 1;
    }
    let mut flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    if let Some(report) = report {
        // The other descriptors are closed now: a child that its user stops before the exec must not hold them.
        // SAFETY: as above; the report pipe has a higher number.
        *report = unsafe { libc::dup3(*report, first_to_close.cast_signed(), libc::O_CLOEXEC) };
        first_to_close += 1;
        flags = 0;
    }
    // SAFETY: as above; failure only means an old kernel, and all our own descriptors close on exec anyway.
    unsafe { libc::syscall(libc::SYS_close_range, first_to_close, libc::c_uint::MAX, flags) };
    // SAFETY: as above; the tag may fail under a lowered hard limit, and then the session alone identifies the tree.
    unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const plan.tag) };
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const plan.open_files) } == -1 {
        return Step::Limits;
    }
    for (resource, limit) in plan.rlimits {
        // SAFETY: as above.
        if unsafe { libc::setrlimit(*resource, limit) } == -1 {
            return Step::Limits;
        }
    }
    // SAFETY: a live value; volatile because the parent reads it, of which the compiler cannot know.
    unsafe { std::ptr::write_volatile(has_oom_score, set_oom_score(plan.oom_score)) };
    if let Some(user) = plan.user
        && credentials::change_to(user).is_err()
    {
        return Step::User;
    }
    // A change of the user clears the signal.
    // SAFETY: as above.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } == -1 {
        return Step::ParentDeath;
    }
    // SAFETY: as above. The server may have exited before the line above took effect.
    if unsafe { libc::getppid() } != plan.server_pid {
        return Step::ParentDeath;
    }
    // SAFETY: as above.
    if unsafe { libc::chdir(plan.cwd.as_ptr()) } == -1 {
        return Step::Cwd;
    }
    unblock_signals();
    exec(plan);
    Step::Exec
}

/// Makes the OOM killer prefer this child over the server; without `/proc` the score stays unchanged.
///
/// Before the exec the kernel changes only the child's score, not that of the server whose memory it shares. The write
/// fails for an unprivileged user while that memory is not dumpable; see `conceal_memory`.
fn set_oom_score(score: &[u8]) -> bool {
    let path = c"/proc/self/oom_score_adj".as_ptr();
    // SAFETY: the path is a C string, the score is alive and as long as said, and the descriptor closes on exec.
    unsafe {
        let fd = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        fd != -1 && libc::write(fd, score.as_ptr().cast(), score.len()) != -1
    }
}

/// Maximum time between the wake-up of the parent and the end of the child's exec.
const END_OF_EXEC: Duration = Duration::from_millis(20);

/// Sets the score from the parent, after the exec has given the child its own memory. A setuid program keeps the
/// score of the server.
fn set_oom_score_of(child: libc::pid_t, score: &[u8]) {
    let begin = Instant::now();
    loop {
        match std::fs::write(format!("/proc/{child}/oom_score_adj"), score) {
            // Until the exec is complete, the new memory is not dumpable either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            _ => return,
        }
        if begin.elapsed() >= END_OF_EXEC {
            return;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Tries every candidate; leaves the error to report in `errno`.
fn exec(plan: &mut ChildPlan) {
    let mut remembered = libc::ENOENT;
    for candidate in plan.candidates {
        // SAFETY: all three are null-terminated arrays that the parent keeps alive.
        unsafe { libc::execve(candidate.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => remembered = libc::EACCES,
            Some(libc::ENOEXEC) => {
                plan.script_argv[1] = candidate.as_ptr();
                // SAFETY: as above.
                unsafe {
                    libc::execve(plan.script_argv[0], plan.script_argv.as_ptr(), plan.envp.as_ptr())
                };
                return;
            }
            _ => return,
        }
    }
    // SAFETY: the address of this thread's own errno.
    unsafe { *libc::__errno_location() = remembered };
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are plain memory that the calls fill.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: restores the mask that `block_signals` returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

fn unblock_signals() {
    // SAFETY: an empty set is plain memory; this is the child's own mask.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_is_stopped_before_its_exec_is_not_waited_for_without_end() {
        let (report, theirs) = rustix::pipe::pipe().unwrap();
        let stopped = await_exec(&report, Duration::from_millis(1));
        assert_eq!(stopped.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        let failure = Failure { step: Step::Cwd, errno: libc::ENOENT };
        rustix::io::write(&theirs, &failure.to_bytes()).unwrap();
        let reported = await_exec(&report, EXEC_TIME).unwrap().and_then(|it| it.error());
        assert!(matches!(reported, Some(SpawnError::Cwd(_))), "{reported:?}");
        drop(theirs);
        assert!(await_exec(&report, EXEC_TIME).unwrap().is_none());
    }
}
