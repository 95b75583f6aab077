//! The server's side of a sandboxed start: the zygote, what a launcher is given, and what it tells.

use std::ffi::CString;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use tokio::io::Interest;

use super::denials::RefusedCalls;
use super::launcher::{Command, Failure, LaunchPlan, Preparation, STEP_CWD, STEP_EXEC, Told};
use super::network::{QuietNetwork, SandboxNetwork};
use super::prepared::{Needs, PreparedSandbox};
use super::spares::{Another, Spares};
use super::undertaker::HeldMounts;
use super::zygote::{Answer, Birth, Limit, Order, ZYGOTE_ARGUMENT};
use super::{Network, packet, set_up_time};
use crate::TreeTag;
use crate::limits::Rlimits;
use crate::linux::cgroup::Cgroup;
use crate::linux::child::ChildStack;
use crate::linux::spawner::{execute, memory_of, move_up, null_device};
use crate::linux::{procfs, register, startup};
use crate::spawn::SpawnError;

/// Makes launchers; belongs to one thread, because the parent of a zygote is the parent of its launchers.
#[derive(Default)]
pub struct Launchers {
    /// From the first sandboxed start on.
    zygote: Option<Zygote>,
}

/// What one start is made from.
pub struct Launch<'a> {
    /// What shall be done.
    pub plan: &'a LaunchPlan,
    /// What become descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// The tag of its tree.
    pub tag: TreeTag,
    /// The group that it shall join.
    pub cgroup: Option<&'a Cgroup>,
    /// The network of its session, for a sandbox without one.
    pub network: &'a SandboxNetwork,
    /// Where one may have been prepared.
    pub spares: Option<&'a Spares>,
}

/// A launcher that has been made, a child of this process.
pub struct Launched {
    pub pid: libc::pid_t,
    pub pidfd: OwnedFd,
    /// Where it tells what went wrong.
    pub report: OwnedFd,
    /// What was refused to the command.
    pub refused: RefusedCalls,
    /// To be dropped when the command has ended.
    pub another: Option<Another>,
    /// Where pid 1 tells how the command ended.
    pub inside: Option<OwnedFd>,
}

/// What a launcher tells of a command that runs.
#[derive(Default)]
pub struct Running {
    /// What it sees.
    pub mounts: Option<HeldMounts>,
    /// A handle of pid 1, if there is one.
    pub first: Option<OwnedFd>,
}

impl Launchers {
    /// Makes a launcher, or takes one that waits. Nothing of the request is used outside of the sandbox.
    pub fn launch(
        &mut self,
        launch: &Launch,
        stack: &mut ChildStack,
    ) -> Result<Launched, SpawnError> {
        let preparation = Preparation::of(launch.plan);
        let network = match (preparation, launch.plan.setup.network) {
            (Some(preparation), Network::Isolated) => {
                let prepared = || launch.spares?.adopt_network(preparation);
                let make = || prepared().map_or_else(|| self.make_network(stack).map(Arc::new), Ok);
                Some(launch.network.get_or_make(make)?)
            }
            (Some(_), Network::Host) | (None, _) => None,
        };
        let needs = Needs { preparation, network };
        let plan =
            postcard::to_stdvec(launch.plan).map_err(|error| failed(io::Error::other(error)));
        let plan = memory_of(&plan?).map_err(failed)?;
        let another = launch.spares.map(|spares| spares.make_another(needs.clone()));
        if let Some(spare) = launch.spares.and_then(|spares| spares.take(&needs)) {
            match spare.assign(launch, &plan) {
                Ok(()) => return Ok(Launched { another, ..spare.hand_over() }),
                Err(error) => tracing::debug!(%error, "a prepared sandbox is of no use"),
            }
        }
        let new = self.prepare(&needs, launch.tag, stack)?;
        match new.assign(launch, &plan) {
            // Whoever has ended already has said why in its report.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error)),
            _ => Ok(Launched { another, ..new.hand_over() }),
        }
    }

    /// Makes a sandbox that waits to be told what to run.
    pub fn prepare(
        &mut self,
        needs: &Needs,
        tag: TreeTag,
        stack: &mut ChildStack,
    ) -> Result<PreparedSandbox, SpawnError> {
        let (refused, tally) = RefusedCalls::share().map_err(failed)?;
        let (errand, their_errand) = packet::pair().map_err(failed)?;
        let (report, their_report) = packet::pair().map_err(failed)?;
        rustix::io::ioctl_fionbio(&report, true).map_err(|errno| failed(errno.into()))?;
        let mut fds = vec![their_errand.as_fd(), their_report.as_fd(), tally.as_fd()];
        fds.extend(
            needs.network.iter().flat_map(|quiet| [quiet.users.as_fd(), quiet.network.as_fd()]),
        );
        let order = Order::Launch(Birth {
            tag: limit(tag.as_limit()),
            open_files: limit(startup::original_open_file_limit()),
            preparation: needs.preparation,
            has_network: needs.network.is_some(),
        });
        match self.ask(&order, &fds, stack) {
            Ok((Answer::Launched(pid), mut fds)) if fds.len() == 1 => {
                let pidfd = fds.remove(0);
                let parts = Launched { pid, pidfd, report, refused, another: None, inside: None };
                Ok(PreparedSandbox::new(parts, errand))
            }
            Ok((answer, _)) => Err(refusal(answer)),
            Err(error) => {
                end_stray(tag);
                Err(error)
            }
        }
    }

    /// Makes a network for sandboxes without one.
    pub fn make_network(&mut self, stack: &mut ChildStack) -> Result<QuietNetwork, SpawnError> {
        let (answer, fds) = self.ask(&Order::MakeNetwork, &[], stack)?;
        match (answer, <[OwnedFd; 2]>::try_from(fds)) {
            (Answer::Network, Ok([users, network])) => Ok(QuietNetwork { users, network }),
            (answer, _) => Err(refusal(answer)),
        }
    }

    fn ask(
        &mut self,
        order: &Order,
        fds: &[BorrowedFd],
        stack: &mut ChildStack,
    ) -> Result<(Answer, Vec<OwnedFd>), SpawnError> {
        let zygote = match self.zygote.take() {
            Some(zygote) if packet::send(&zygote.socket, order, fds).is_ok() => zygote,
            // There was none, or somebody has killed it since.
            _ => {
                let zygote = Zygote::start(stack)?;
                packet::send(&zygote.socket, order, fds).map_err(failed)?;
                zygote
            }
        };
        let packet = packet::receive(&zygote.socket).map_err(failed)?;
        self.zygote = Some(zygote);
        Ok((packet.decode().map_err(failed)?, packet.fds))
    }
}

fn failed(source: io::Error) -> SpawnError {
    SpawnError::Prepare { step: "sandbox", source }
}

fn refusal(answer: Answer) -> SpawnError {
    match answer {
        Answer::Failed(Failure { step, errno }) => {
            SpawnError::Sandbox { step, source: io::Error::from_raw_os_error(errno) }
        }
        _ => failed(io::Error::other("the zygote answered something else")),
    }
}

/// A limit as a zygote is told of it.
pub fn limit(limit: libc::rlimit) -> Limit {
    Limit(limit.rlim_cur, limit.rlim_max)
}

/// Ends the launcher of a zygote that died before it could tell of it.
fn end_stray(tag: TreeTag) {
    let (own, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    for pid in procfs::thread_children(own.as_raw_pid(), thread.as_raw_pid()) {
        if tag.is_on(pid) {
            // SAFETY: it is our own unreaped child, which nobody else knows of.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// The process that launchers are copied from; ends with this.
struct Zygote {
    pidfd: OwnedFd,
    socket: OwnedFd,
}

impl Zygote {
    fn start(stack: &mut ChildStack) -> Result<Self, SpawnError> {
        let program = Command {
            candidates: vec![program_in_memory().map_err(failed)?],
            argv: vec![
                c"exec-server".to_owned(),
                CString::new(ZYGOTE_ARGUMENT).expect("it has no NUL"),
            ],
            env: Vec::new(),
            cwd: c"/".to_owned(),
            has_terminal: false,
            extra_input: None,
        };
        let (socket, theirs) = packet::pair().map_err(failed)?;
        let theirs = move_up(theirs).map_err(failed)?;
        let null = null_device().map_err(failed)?;
        // It belongs to no tree, and its launchers change the tag for their own.
        let tag = TreeTag::new(u32::MAX);
        let (stdio, limits) = ([theirs.as_fd(), null, null], Rlimits::default());
        let (_, pidfd) = execute(&program, stdio, &[], None, &limits, tag, stack)?;
        Ok(Self { pidfd, socket })
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // It holds nothing that would be lost. Should it have ended by itself, there is nothing to do.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// The copy in memory that zygotes run, with the place that it was made from.
static PROGRAM: OnceLock<(PathBuf, OwnedFd)> = OnceLock::new();

/// Has zygotes run another program than ours, one that calls [`run_zygote`](super::zygote::run_zygote) when it is told to.
///
/// For a program that has a `main` of its own; once per process, before the first sandbox.
pub fn use_zygote_program(path: &Path) -> io::Result<()> {
    let (used, _) = match PROGRAM.get() {
        Some(program) => program,
        None => {
            let copy = move_up(sealed_copy(path)?)?;
            PROGRAM.get_or_init(|| (path.to_owned(), copy))
        }
    };
    if used == path {
        return Ok(());
    }
    let text = format!("sandboxes are started by {} already", used.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

/// Where the program of a zygote is: a copy in memory, which nobody can change; of ours unless said otherwise.
///
/// Until a command runs, its `/proc/self/exe` is the launcher's program, and a command can ask to run just that: then
/// it holds a file which was opened outside of its view. So that must not be a file of the host.
fn program_in_memory() -> io::Result<CString> {
    let (_, program) = match PROGRAM.get() {
        Some(program) => program,
        None => {
            let path = Path::new("/proc/self/exe");
            let copy = move_up(sealed_copy(path)?)?;
            PROGRAM.get_or_init(|| (path.to_owned(), copy))
        }
    };
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    Ok(CString::new(path).expect("it has no NUL"))
}

fn sealed_copy(path: &Path) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and need none.
    let copy = match memfd_create("exec-server", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => memfd_create("exec-server", flags)?,
        made => made?,
    };
    let mut copy = File::from(copy);
    io::copy(&mut File::open(path)?, &mut copy)?;
    fchmod(&copy, Mode::from_raw_mode(0o555))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    // The same kernels cannot keep somebody inside from making it unusable for later starts.
    match fcntl_add_seals(&copy, seals | SealFlags::EXEC | SealFlags::SEAL) {
        Err(Errno::INVAL) => fcntl_add_seals(&copy, seals | SealFlags::SEAL)?,
        sealed => sealed?,
    }
    Ok(copy.into())
}

/// Waits until the command runs, or until it is known why not.
pub async fn outcome(report: OwnedFd) -> Result<Running, SpawnError> {
    let report = register(report, Interest::READABLE).map_err(no_report)?;
    let mut told = ToldSoFar::default();
    let read = poll_fn(|cx| {
        loop {
            let mut ready = ready!(report.poll_read_ready(cx))?;
            match told.read(report.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                read => return Poll::Ready(read),
            }
        }
    });
    read.await.map_err(no_report)?;
    told.judge()
}

/// The same for a thread that may wait, but not for ever.
pub fn outcome_blocking(report: &OwnedFd, time: Duration) -> Result<Running, SpawnError> {
    let (mut told, since) = (ToldSoFar::default(), Instant::now());
    loop {
        match told.read(report) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                set_up_time::wait_for_more(report, since, time)?;
            }
            read => break read.map_err(no_report)?,
        }
    }
    told.judge()
}

fn no_report(source: io::Error) -> SpawnError {
    SpawnError::Prepare { step: "launch report", source }
}

#[derive(Default)]
struct ToldSoFar {
    running: Running,
    failure: Option<Failure>,
}

impl ToldSoFar {
    /// Reads to the end.
    fn read(&mut self, report: &OwnedFd) -> io::Result<()> {
        loop {
            let mut packet = match packet::receive(report) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                received => received?,
            };
            match packet.decode()? {
                Told::Mounts => self.running.mounts = packet.fds.pop().map(HeldMounts::new),
                Told::First => self.running.first = packet.fds.pop(),
                Told::Failed(failure) => self.failure = Some(failure),
            }
        }
    }

    fn judge(self) -> Result<Running, SpawnError> {
        let Some(failure) = self.failure else { return Ok(self.running) };
        let source = io::Error::from_raw_os_error(failure.errno);
        Err(match failure.step.as_str() {
            STEP_CWD => SpawnError::Cwd(source),
            STEP_EXEC => SpawnError::Program(source),
            _ => SpawnError::Sandbox { step: failure.step, source },
        })
    }
}
