//! Parent process that cleans up after the server if the server is killed.
//!
//! ```text
//! guardian (the process that was started; forwards signals)
//!   └─ server (in its own session)
//!        └─ children …
//! ```
//!
//! If the server is killed, the parent-death signal kills its children. Their descendants are reparented to the guardian,
//! which kills them and removes the temp files and cgroups in the `temp_registry`. If the guardian is killed, its
//! parent-death signal (SIGTERM) makes the server shut down gracefully.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::notify::NotifyRelay;
use super::process_tree::{living_descendants, prepare_to_adopt, send};
use super::procfs;
use super::signals::is_ignored;
use super::temp_registry;
use super::{check, reap_until};
use crate::guardian::Guardian;

/// Signals that the guardian passes on to the server, and a foreground process to its command.
pub const PASSED_ON: [libc::c_int; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    // Used only by a command in the foreground.
    libc::SIGWINCH,
];

static SERVER: AtomicI32 = AtomicI32::new(0);
static GUARDIAN: AtomicU32 = AtomicU32::new(0);

/// Pid of the guardian of this server, if it has one.
pub fn pid() -> Option<u32> {
    Some(GUARDIAN.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
}

/// Forks into guardian and server; must be called before any thread is started.
///
/// The guardian calls `clean_up` after the server and all its descendants have exited.
pub fn enter_guardian(clean_up: impl FnOnce()) -> io::Result<Guardian> {
    prepare_to_adopt()?;
    temp_registry::prepare()?;
    // An inherited SIG_IGN for SIGCHLD would make the kernel discard exit statuses.
    // SAFETY: sets the default action; no handler is involved.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let notify = NotifyRelay::prepare();
    let blocked = block_passed_on();
    // SAFETY: there is one thread only, so the child's copy of the memory is consistent.
    let server = check(unsafe { libc::fork() })?;
    if server == 0 {
        become_server()?;
        restore(&blocked);
        notify.into_iter().for_each(NotifyRelay::enter_server);
        return Ok(Guardian::Server);
    }
    SERVER.store(server, Ordering::Relaxed);
    // Signals that are ignored already, for example by nohup, stay ignored.
    for signal in PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal)) {
        // SAFETY: the handler only calls kill, which is async-signal-safe.
        unsafe { libc::signal(signal, pass_on as *const () as libc::sighandler_t) };
    }
    restore(&blocked);
    let notify = notify.and_then(NotifyRelay::enter_guardian);
    let code = wait_for(server);
    kill_descendants();
    // Before the wait for the thread: a process outside of the tree may hold the other end of its socket.
    temp_registry::sweep();
    clean_up();
    // Every descendant has exited, so the thread sees the end after the last message.
    notify.into_iter().for_each(|thread| drop(thread.join()));
    Ok(Guardian::Ended(code))
}

fn become_server() -> io::Result<()> {
    let guardian = std::os::unix::process::parent_id();
    // SAFETY: sets a flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) })?;
    // The guardian may have exited before the line above took effect.
    if std::os::unix::process::parent_id() != guardian {
        return Err(io::Error::other("the guardian process is gone"));
    }
    GUARDIAN.store(guardian, Ordering::Relaxed);
    // In its own session, the server does not receive signals to the guardian's process group.
    // SAFETY: affects this process only.
    check(unsafe { libc::setsid() })?;
    prepare_to_adopt()
}

extern "C" fn pass_on(signal: libc::c_int) {
    let server = SERVER.load(Ordering::Relaxed);
    if server > 0 {
        // SAFETY: kill is async-signal-safe; the server is our unreaped child.
        unsafe { libc::kill(server, signal) };
    }
}

/// Exit code of the server, or 128 plus the signal that killed it.
fn wait_for(server: libc::pid_t) -> i32 {
    let Some(status) = reap_until(server) else { return 1 };
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    signal.map_or_else(|| libc::WEXITSTATUS(status), |signal| 128 + signal)
}

/// Kills and reaps all remaining descendants, which the server has left.
fn kill_descendants() {
    SERVER.store(0, Ordering::Relaxed);
    let own = std::process::id().cast_signed();
    loop {
        for pid in living_descendants(procfs::children(own)) {
            let _ = send(pid, libc::SIGKILL);
        }
        // SAFETY: reaps any child of ours; nothing is written.
        let reaped = unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) };
        if reaped == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD) {
            return;
        }
    }
}

fn block_passed_on() -> libc::sigset_t {
    // SAFETY: both sets are plain memory that the calls fill.
    unsafe {
        let mut set = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in PASSED_ON {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        before
    }
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: restores the mask that was in force before.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
