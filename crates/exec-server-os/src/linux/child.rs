//! The few steps between clone and exec, run in a child that still shares the parent's memory.
//!
//! The clone uses `CLONE_VM | CLONE_VFORK`: no page table is copied, so a start costs the same however large the
//! server has grown, and the calling thread sleeps until the child has executed its program or given up. Until then
//! the child must not allocate, lock, or unwind: it only makes system calls on what was prepared for it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::sandbox::limits::Resource;
use crate::spawn::SpawnError;

/// Everything the child needs, made before the clone because the child cannot make anything.
pub struct ChildPlan<'a> {
    /// The places where the program may be, in the order of `PATH`.
    pub candidates: &'a [CString],
    /// Null-terminated.
    pub argv: &'a [*const libc::c_char],
    /// `/bin/sh`, room for a candidate, and the arguments: for a script without an interpreter line.
    pub script_argv: &'a mut [*const libc::c_char],
    /// Null-terminated.
    pub envp: &'a [*const libc::c_char],
    pub cwd: &'a CString,
    /// What become descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// What become descriptors 3 and following; none of them is that low already.
    pub extras: &'a [BorrowedFd<'a>],
    /// Whether descriptor 0 is to be the controlling terminal.
    pub has_terminal: bool,
    /// `cgroup.procs` of the group that the child shall join.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Signals that this server ignores and the child should not.
    pub ignored: &'a [libc::c_int],
    /// The limit on open files that the server itself was started with.
    pub open_files: libc::rlimit,
    /// Resource limits that the child shall have.
    pub rlimits: &'a [(Resource, libc::rlimit)],
    /// What it writes to its `oom_score_adj`.
    pub oom_score: &'a [u8],
    /// Marks the child and all that come from it; see `process_tree`.
    pub tag: libc::rlimit,
    pub server_pid: libc::pid_t,
}

/// The stack that the child runs on.
pub struct ChildStack(Box<[u128]>);

impl ChildStack {
    pub fn new() -> Self {
        // The child calls a few thin libc wrappers; 64 KiB is far more than they take.
        Self::of(64 << 10)
    }

    pub fn of(bytes: usize) -> Self {
        Self(vec![0; bytes / size_of::<u128>()].into_boxed_slice())
    }

    pub fn top(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr_range().end.cast()
    }
}

/// Where the child failed; shared memory that the parent reads after the child is gone.
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
    Cwd,
    Exec,
}

struct Shared<'a, 'b> {
    plan: &'a mut ChildPlan<'b>,
    failure: Failure,
}

/// Starts the child and returns its pid and pidfd.
pub fn clone_child(
    plan: &mut ChildPlan,
    stack: &mut ChildStack,
) -> Result<(libc::pid_t, OwnedFd), SpawnError> {
    let mut shared = Shared { plan, failure: Failure { step: Step::None, errno: 0 } };
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
    let pid = cloned.map_err(|source| SpawnError::Prepare { step: "clone", source })?;
    // SAFETY: the kernel has just made this descriptor for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: a plain read; volatile because the compiler cannot know that the child wrote to it.
    let failure = unsafe { std::ptr::read_volatile(&raw const shared.failure) };
    let Some(error) = failure.error() else {
        return Ok((pid, pidfd));
    };
    // SAFETY: waits for our own child, which has already exited.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    Err(error)
}

impl Failure {
    fn error(&self) -> Option<SpawnError> {
        let source = io::Error::from_raw_os_error(self.errno);
        let step = match self.step {
            Step::None => return None,
            Step::Cwd => return Some(SpawnError::Cwd(source)),
            Step::Exec => return Some(SpawnError::Program(source)),
            Step::Session => "setsid",
            Step::Terminal => "controlling terminal",
            Step::Stdio => "standard streams",
            Step::ParentDeath => "parent-death signal",
            Step::Cgroup => "cgroup",
            Step::Limits => "resource limits",
        };
        Some(SpawnError::Prepare { step, source })
    }
}

extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent passed a `Shared` that it does not touch while it sleeps.
    let shared = unsafe { &mut *argument.cast::<Shared>() };
    let step = prepare_and_exec(shared.plan);
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    shared.failure = Failure { step, errno };
    // SAFETY: ends this child alone, without running anything that belongs to the parent.
    unsafe { libc::_exit(127) }
}

/// Returns only if something failed, and then says what.
fn prepare_and_exec(plan: &mut ChildPlan) -> Step {
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
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: as above; failure only means an old kernel, and all our own descriptors close on exec anyway.
    unsafe { libc::syscall(libc::SYS_close_range, first_to_close, libc::c_uint::MAX, flags) };
    // SAFETY: as above.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } == -1 {
        return Step::ParentDeath;
    }
    // SAFETY: as above. The server may have died before the line above took effect.
    if unsafe { libc::getppid() } != plan.server_pid {
        return Step::ParentDeath;
    }
    // SAFETY: as above; the tag may fail under a lowered hard limit, and then trees are told apart by session only.
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
    set_oom_score(plan.oom_score);
    // SAFETY: as above.
    if unsafe { libc::chdir(plan.cwd.as_ptr()) } == -1 {
        return Step::Cwd;
    }
    unblock_signals();
    exec(plan);
    Step::Exec
}

/// Has this child killed before the server when memory runs out; without `/proc` the kernel chooses by size alone.
///
/// A child that still sleeps on its parent's memory changes its own score only.
fn set_oom_score(score: &[u8]) {
    let path = c"/proc/self/oom_score_adj".as_ptr();
    // SAFETY: the path is a C string, the score is alive and as long as said, and the descriptor closes on exec.
    unsafe {
        let fd = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        libc::write(fd, score.as_ptr().cast(), score.len());
    }
}

/// Tries every candidate; what the caller should hear of is left in `errno`.
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
