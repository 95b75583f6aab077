//! The zygote: this program, executed once and waiting, from which launchers are forked.
//!
//! Executing and linking a program of this size takes longer than the rest of a sandboxed start, so it is done once.
//! A launcher is forked with `CLONE_PARENT`: it is a child of the server, which waits for it and signals it, and it
//! exits with the server like any other child.
//!
//! Invariant: the zygote has one thread, no environment, and freshly started memory. Between two requests its only
//! descriptors are its socket and the null device. It never interprets a job, so no state passes between starts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use exec_server_os::accounts::Credentials;
use exec_server_os::linux::{check, credentials};
use rustix::process::{Signal, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::launcher::{self, Failure, Launcher, Preparation, run_launcher};
use super::netns::IsolatedNetns;
use super::step::Step;
use super::{limits, packet, rootfs, seccomp};

/// A request to the zygote.
#[derive(Debug, Serialize, Deserialize)]
pub enum ZygoteRequest {
    /// Forks a launcher. Descriptors: job socket, report socket, memory of the denial count, the two of the network if
    /// there is one, and `cgroup.procs` if the launcher joins a cgroup.
    Launch(LaunchParams),
    /// Creates a network namespace for isolated sandboxes of this user, or of the server's own.
    MakeNetwork(Option<Credentials>),
}

/// The parameters of a launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchParams {
    pub tag: Limit,
    /// The open-file limit of the command. Launcher and pid 1 send descriptors and keep a higher one.
    pub open_files: Limit,
    /// The part to prepare before the job arrives; `None` without namespaces.
    pub preparation: Option<Preparation>,
    /// Whether the descriptors of an [`IsolatedNetns`] come with the request.
    pub has_network: bool,
    /// Whether `cgroup.procs` comes with the request; else the job has the cgroup.
    pub has_cgroup: bool,
    /// The user that the launcher and everything in the sandbox run as, if it is another one.
    pub user: Option<Credentials>,
}

/// A resource limit: soft, hard.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Limit(pub u64, pub u64);

/// A reply of the zygote.
#[derive(Debug, Serialize, Deserialize)]
pub enum ZygoteReply {
    /// The pid of a launcher; carries its pidfd.
    Launched(i32),
    /// A launcher that was killed because its pidfd could not be sent; the server must reap it.
    Lost(i32, Failure),
    /// Carries the descriptors of a network.
    Network,
    Failed(Failure),
}

const SOCKET: BorrowedFd<'static> = rustix::stdio::stdin();

/// The main function of a zygote; returns its exit code.
pub fn run_zygote() -> i32 {
    // Must precede PR_SET_DUMPABLE: an ordinary user cannot write it afterwards.
    if let Some(score) = std::env::args_os().nth(2) {
        let _ = std::fs::write("/proc/self/oom_score_adj", score.as_encoded_bytes());
    }
    // SAFETY: sets a flag of this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    let _ = rustix::thread::set_name(c"exec-zygote");
    // Signals to the server's process group are not for the zygote; it exits when the socket closes.
    launcher::ignore_tree_signals();
    // On failure fewer descriptors can be in flight, and a start that exceeds the limit reports it.
    let _ = limits::raise_open_files();
    rootfs::remember_names();
    limits::watch_shares();
    seccomp::build_ahead();
    let server = rustix::process::getppid();
    loop {
        let Ok(packet) = packet::receive(SOCKET) else { return 0 };
        let answered = match packet.decode() {
            Ok(ZygoteRequest::Launch(params)) => match launch(packet.fds) {
                Ok(Copied::Zygote { pid, pidfd }) => introduce(pid, &pidfd),
                Ok(Copied::Launcher(fds)) => {
                    launcher::leave(run_launcher(Launcher { params, server, fds }))
                }
                Err(source) => answer(&failed("clone", &source), &[]),
            },
            Ok(ZygoteRequest::MakeNetwork(user)) => make_network(user.as_ref()),
            Err(source) => answer(&failed("request", &source), &[]),
        };
        if answered.is_err() {
            return 0;
        }
    }
}

/// Reports a launcher to the server, and kills the launcher if its pidfd cannot be sent.
fn introduce(pid: libc::pid_t, pidfd: &OwnedFd) -> io::Result<()> {
    let Err(source) = answer(&ZygoteReply::Launched(pid), &[pidfd.as_fd()]) else { return Ok(()) };
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let errno = source.raw_os_error().unwrap_or(libc::EINVAL);
    answer(&ZygoteReply::Lost(pid, Failure { step: "send a descriptor".to_owned(), errno }), &[])
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

/// Forks a process that creates and enters the network namespace, and sends its descriptors.
fn make_network(user: Option<&Credentials>) -> io::Result<()> {
    // SAFETY: this process has one thread, so the child's copy of the memory is consistent.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        let made = user
            .map_or(Ok(()), credentials::change_to)
            .step(launcher::STEP_USER)
            .and_then(|()| launcher::be_dumpable())
            .and_then(|()| IsolatedNetns::make());
        let answered = match made {
            Ok(made) => answer(&ZygoteReply::Network, &[made.users.as_fd(), made.network.as_fd()])
                .or_else(|source| answer(&failed("send a descriptor", &source), &[])),
            Err(error) => answer(&failed(error.step, &error.cause), &[]),
        };
        std::process::exit(i32::from(answered.is_err()));
    }
    let mut status = 0;
    // SAFETY: waits for our own child; fills a live local.
    check(unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    // Without a reply the server would wait forever; if the zygote exits, the socket closes.
    if status == 0 { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

fn failed(step: &str, source: &io::Error) -> ZygoteReply {
    let errno = source.raw_os_error().unwrap_or(libc::EINVAL);
    ZygoteReply::Failed(Failure { step: step.to_owned(), errno })
}

fn answer(answer: &ZygoteReply, fds: &[BorrowedFd]) -> io::Result<()> {
    packet::send(SOCKET, answer, fds)
}
