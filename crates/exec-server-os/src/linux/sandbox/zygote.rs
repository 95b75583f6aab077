//! The process that launchers are copied from: this program, executed once and waiting.
//!
//! To execute and link a program of this size takes longer than all the rest of a sandboxed start, so that is done once.
//! A launcher is a copy of the zygote and yet a child of the server (`CLONE_PARENT`), which waits for it, signals it, and
//! takes it along when it dies, like any other.
//!
//! Invariant: the zygote has one thread, no environment, the memory of a program that has just begun, and between two
//! orders no descriptor but its socket and the null device. It never looks at what is started, so one start cannot leave
//! anything for the next.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use serde::{Deserialize, Serialize};

use super::launcher::{self, Failure, Launcher, Preparation, run_launcher};
use super::network::QuietNetwork;
use super::{filter, packet, view};
use crate::linux::check;

/// The hidden argument that makes this program a zygote.
pub const ZYGOTE_ARGUMENT: &str = "--sandbox-zygote";

/// What a zygote is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// A launcher, beside it its descriptors: where it is told what to run, where it reports, the memory in which refused
    /// calls are counted, and the network if there is one.
    Launch(Birth),
    /// A network for sandboxes without one.
    MakeNetwork,
}

/// How a launcher is born.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Birth {
    /// The tag of its tree.
    pub tag: Limit,
    /// The limit on open files that the server itself was started with.
    pub open_files: Limit,
    /// What it makes before it is told what to run; nothing without namespaces.
    pub preparation: Option<Preparation>,
    /// Whether a [`QuietNetwork`] comes with it.
    pub has_network: bool,
}

/// A resource limit: the soft one, and the hard one.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Limit(pub u64, pub u64);

/// What a zygote answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The pid of a launcher; beside it its pidfd.
    Launched(i32),
    /// Beside it the descriptors of a network.
    Network,
    /// It could not be done.
    Failed(Failure),
}

const SOCKET: BorrowedFd<'static> = rustix::stdio::stdin();

/// Lives as a zygote; returns the code to exit with.
pub fn run_zygote() -> i32 {
    // SAFETY: sets a flag of this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    // For whoever looks at the processes of this machine.
    let _ = rustix::thread::set_name(c"exec-zygote");
    // What is meant for the server and its children is no business of ours, and the end of the server tells itself.
    launcher::ignore_what_is_passed_by();
    view::remember_names();
    filter::build_ahead();
    let server = rustix::process::getppid();
    loop {
        let Ok(packet) = packet::receive(SOCKET) else { return 0 };
        let answered = match packet.decode() {
            Ok(Order::Launch(birth)) => match launch(packet.fds) {
                Ok(Copied::Zygote { pid, pidfd }) => {
                    answer(&Answer::Launched(pid), &[pidfd.as_fd()])
                }
                Ok(Copied::Launcher(fds)) => {
                    launcher::leave(run_launcher(Launcher { birth, server, fds }))
                }
                Err(source) => answer(&failed("clone", &source), &[]),
            },
            Ok(Order::MakeNetwork) => make_network(),
            Err(source) => answer(&failed("order", &source), &[]),
        };
        if answered.is_err() {
            return 0;
        }
    }
}

enum Copied {
    Zygote { pid: libc::pid_t, pidfd: OwnedFd },
    Launcher(Vec<OwnedFd>),
}

fn launch(fds: Vec<OwnedFd>) -> io::Result<Copied> {
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_PARENT | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: like fork, for a process with one thread: memory is copied, and the kernel fills in `pidfd`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0) };
    match check(pid as libc::c_int)? {
        0 => Ok(Copied::Launcher(fds)),
        // SAFETY: the kernel has just made this descriptor for us.
        pid => Ok(Copied::Zygote { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// A process of its own answers, because whoever makes a network is in it.
fn make_network() -> io::Result<()> {
    // SAFETY: this process has one thread, so the child's copy of the memory is consistent.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: sets a flag of this process, without which it could not map its user.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        let answered = match QuietNetwork::make() {
            Ok(made) => answer(&Answer::Network, &[made.users.as_fd(), made.network.as_fd()]),
            Err(error) => answer(&failed(error.step, &error.source), &[]),
        };
        std::process::exit(i32::from(answered.is_err()));
    }
    let mut status = 0;
    // SAFETY: waits for our own child; fills a live local.
    check(unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    // Without an answer the server would wait for ever; if we end, it hears of that.
    if status == 0 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

fn failed(step: &str, source: &io::Error) -> Answer {
    let errno = source.raw_os_error().unwrap_or(libc::EINVAL);
    Answer::Failed(Failure { step: step.to_owned(), errno })
}

fn answer(answer: &Answer, fds: &[BorrowedFd]) -> io::Result<()> {
    packet::send(SOCKET, answer, fds)
}
