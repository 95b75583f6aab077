//! The server's side of a sandboxed start: owns the zygote, sends the job, reads the launcher's report.

use std::ffi::CString;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use exec_server_os::TreeTag;
use exec_server_os::accounts::Credentials;
use exec_server_os::limits::Rlimits;
use exec_server_os::linux::cgroup::Cgroup;
use exec_server_os::linux::child::ChildStack;
use exec_server_os::linux::command::Command;
use exec_server_os::linux::spawner::{NewChild, execute};
use exec_server_os::linux::standard_streams::{memory_of, move_up, null_device};
use exec_server_os::linux::{procfs, register, startup};
use exec_server_os::spawn::SpawnError;
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use tokio::io::Interest;

use super::denials::RefusedCalls;
use super::launcher::{
    Failure, LaunchPlan, LauncherEvent, Preparation, STEP_CWD, STEP_EXEC, STEP_USER,
};
use super::netns::{IsolatedNetns, SandboxNetwork};
use super::prepared::{PrepareSpec, PreparedSandbox};
use super::teardown::HeldMounts;
use super::warm_pool::{RefillOnDrop, WarmPool};
use super::zygote::{LaunchParams, Limit, ZygoteReply, ZygoteRequest};
use super::{Network, limits, packet, setup_timeout};
use crate::children::ZYGOTE_ARGUMENT;

/// Starts launchers. One per thread, because the thread that starts the zygote is the parent of its launchers.
#[derive(Default)]
pub struct Launchers {
    /// `None` until the first sandboxed start.
    zygote: Option<Zygote>,
}

/// The parameters of one start.
pub struct LaunchRequest<'a> {
    pub plan: &'a LaunchPlan,
    /// Descriptors 0, 1 and 2 of the command.
    pub stdio: [BorrowedFd<'a>; 3],
    pub tag: TreeTag,
    /// The cgroup to join.
    pub cgroup: Option<&'a Cgroup>,
    /// The network of the session, used if the sandbox is isolated.
    pub network: &'a SandboxNetwork,
    pub warm_pool: Option<&'a WarmPool>,
    /// The user of the command, if it is another one. There are no warm sandboxes of other users.
    pub user: Option<&'a Credentials>,
}

/// The server's handles on a launcher, beside its process.
pub struct LaunchHandles {
    /// Socket on which the launcher reports success or the failed step.
    pub report: OwnedFd,
    /// Counter of the calls that were refused.
    pub refused: RefusedCalls,
    /// Requests a new warm sandbox when it is dropped, after the command has exited.
    pub refill: Option<RefillOnDrop>,
    /// Socket on which pid 1 sends the exit status.
    pub exit_socket: Option<OwnedFd>,
}

/// Handles that the launcher has sent once the command runs.
#[derive(Default)]
pub struct Running {
    pub mounts: Option<HeldMounts>,
    /// The pidfd of pid 1, if namespaces are used.
    pub first: Option<OwnedFd>,
}

impl Launchers {
    /// Takes a warm sandbox or starts a launcher. No part of the request is interpreted outside of the sandbox.
    pub fn launch(
        &mut self,
        launch: &LaunchRequest,
        stack: &mut ChildStack,
    ) -> Result<NewChild<LaunchHandles>, SpawnError> {
        let preparation = Preparation::of(launch.plan);
        let warm_pool = launch.warm_pool.filter(|_| launch.user.is_none());
        let network = match (preparation, launch.plan.setup.network) {
            (Some(preparation), Network::Isolated) => {
                let prepared = || warm_pool?.adopt_network(preparation);
                let make = || match prepared() {
                    Some(network) => Ok(network),
                    None => self.make_network(launch.user, stack).map(Arc::new),
                };
                Some(launch.network.get_or_make(make)?)
            }
            (Some(_), Network::Host) | (None, _) => None,
        };
        let spec = PrepareSpec { preparation, network, user: launch.user.cloned() };
        let plan =
            postcard::to_stdvec(launch.plan).map_err(|error| failed(io::Error::other(error)));
        let plan = memory_of(&plan?).map_err(failed)?;
        let refill = warm_pool.map(|warm_pool| warm_pool.refill_on_drop(spec.clone()));
        if let Some(warm) = warm_pool.and_then(|warm_pool| warm_pool.take(&spec)) {
            match warm.assign(launch, &plan) {
                Ok(()) => return Ok(warm.hand_over(refill)),
                Err(error) => {
                    tracing::debug!(%error, "warm sandbox is unusable, starting a new one")
                }
            }
        }
        let cgroup = launch.cgroup.filter(|_| launch.user.is_some());
        let new = self.prepare(&spec, launch.tag, cgroup, stack)?;
        match new.assign(launch, &plan) {
            // A launcher that has already exited has sent the reason on its report socket.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(error)),
            _ => Ok(new.hand_over(refill)),
        }
    }

    /// Starts a launcher that prepares a sandbox and waits for its job.
    pub fn prepare(
        &mut self,
        spec: &PrepareSpec,
        tag: TreeTag,
        cgroup: Option<&Cgroup>,
        stack: &mut ChildStack,
    ) -> Result<PreparedSandbox, SpawnError> {
        let (refused, denial_count) = RefusedCalls::share().map_err(failed)?;
        let (job_socket, their_job_socket) = packet::pair().map_err(failed)?;
        let (report, their_report) = packet::pair().map_err(failed)?;
        rustix::io::ioctl_fionbio(&report, true).map_err(|errno| failed(errno.into()))?;
        let mut fds = vec![their_job_socket.as_fd(), their_report.as_fd(), denial_count.as_fd()];
        let network = spec.network.iter();
        fds.extend(network.flat_map(|netns| [netns.users.as_fd(), netns.network.as_fd()]));
        fds.extend(cgroup.map(Cgroup::procs));
        let request = ZygoteRequest::Launch(LaunchParams {
            tag: limit(tag.as_limit()),
            open_files: limit(limits::sandboxed_open_file_limit()),
            preparation: spec.preparation,
            has_network: spec.network.is_some(),
            has_cgroup: cgroup.is_some(),
            user: spec.user.clone(),
        });
        match self.ask(&request, &fds, stack, || end_stray(tag)) {
            Ok((ZygoteReply::Launched(pid), mut fds)) if fds.len() == 1 => {
                let pidfd = fds.remove(0);
                let handles = LaunchHandles { report, refused, refill: None, exit_socket: None };
                Ok(PreparedSandbox::new(NewChild { pid, pidfd, handles }, job_socket))
            }
            Ok((ZygoteReply::Lost(pid, failure), _)) => {
                // SAFETY: it is our own unreaped child, which was killed and has no other owner.
                unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
                Err(refusal(ZygoteReply::Failed(failure)))
            }
            Ok((answer, _)) => Err(refusal(answer)),
            Err(error) => Err(error),
        }
    }

    /// Creates a network namespace for isolated sandboxes.
    pub fn make_network(
        &mut self,
        user: Option<&Credentials>,
        stack: &mut ChildStack,
    ) -> Result<IsolatedNetns, SpawnError> {
        let request = ZygoteRequest::MakeNetwork(user.cloned());
        let (answer, fds) = self.ask(&request, &[], stack, || {})?;
        match (answer, <[OwnedFd; 2]>::try_from(fds)) {
            (ZygoteReply::Network, Ok([users, network])) => Ok(IsolatedNetns { users, network }),
            (answer, _) => Err(refusal(answer)),
        }
    }

    /// Sends a request to the zygote, and once more to a new one if it is killed meanwhile. `undo` ends what a killed
    /// zygote may have started for the request.
    fn ask(
        &mut self,
        request: &ZygoteRequest,
        fds: &[BorrowedFd],
        stack: &mut ChildStack,
        undo: impl Fn(),
    ) -> Result<(ZygoteReply, Vec<OwnedFd>), SpawnError> {
        if let Some(zygote) = self.zygote.take() {
            match zygote.ask(request, fds) {
                Ok(packet) => return self.accept(zygote, packet),
                Err(_) => {
                    // Dropping it waits for its end, so it starts nothing afterwards.
                    drop(zygote);
                    undo();
                }
            }
        }
        let zygote = Zygote::start(stack)?;
        match zygote.ask(request, fds) {
            Ok(packet) => self.accept(zygote, packet),
            Err(error) => {
                drop(zygote);
                undo();
                Err(failed(error))
            }
        }
    }

    fn accept(
        &mut self,
        zygote: Zygote,
        packet: packet::Packet,
    ) -> Result<(ZygoteReply, Vec<OwnedFd>), SpawnError> {
        self.zygote = Some(zygote);
        Ok((packet.decode().map_err(failed)?, packet.fds))
    }
}

fn failed(source: io::Error) -> SpawnError {
    SpawnError::Prepare { step: "sandbox", cause: source }
}

fn refusal(answer: ZygoteReply) -> SpawnError {
    match answer {
        ZygoteReply::Failed(failure) => failure.into_error(),
        _ => failed(io::Error::other("unexpected reply from the zygote")),
    }
}

/// Converts a resource limit to its serializable form.
pub fn limit(limit: libc::rlimit) -> Limit {
    Limit(limit.rlim_cur, limit.rlim_max)
}

/// Kills the launcher of a zygote that exited before it reported the launcher's pid.
fn end_stray(tag: TreeTag) {
    let (own, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    for pid in procfs::thread_children(own.as_raw_pid(), thread.as_raw_pid()) {
        if tag.is_on(pid) {
            // SAFETY: it is our own unreaped child, and no other code knows its pid.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// The process that launchers are forked from; killed on drop.
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
                CString::new(startup::oom_score_of_children()).expect("it has no NUL"),
            ],
            env: Vec::new(),
            cwd: c"/".to_owned(),
            has_terminal: false,
            extra_input: None,
        };
        let (socket, theirs) = packet::pair().map_err(failed)?;
        let theirs = move_up(theirs).map_err(failed)?;
        let null = null_device().map_err(failed)?;
        // The zygote belongs to no process tree; launchers replace this tag with their own.
        let tag = TreeTag::new(u32::MAX);
        let (stdio, limits) = ([theirs.as_fd(), null, null], Rlimits::default());
        let (_, pidfd) = execute(&program, stdio, &[], None, &limits, tag, None, stack)?;
        Ok(Self { pidfd, socket })
    }

    fn ask(&self, request: &ZygoteRequest, fds: &[BorrowedFd]) -> io::Result<packet::Packet> {
        packet::send(&self.socket, request, fds)?;
        packet::receive(&self.socket)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // The zygote holds no state. The signal fails if the zygote has already exited.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// The in-memory copy that zygotes execute, with the path of its original.
static PROGRAM: OnceLock<(PathBuf, OwnedFd)> = OnceLock::new();

/// Makes zygotes execute the program at `path`, which must call [`run_zygote`](super::zygote::run_zygote) on request.
///
/// For embedders with their own `main`; call once per process, before the first sandbox.
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
    let text = format!("sandboxes already use the zygote program {}", used.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

/// The path of the zygote's program: a sealed copy in memory, by default of the running program.
///
/// Before exec, `/proc/self/exe` of the command is the launcher's program. A command can execute that link and so
/// hold a file from outside of its rootfs, therefore the link must not lead to a file of the host.
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
    // Kernels before 6.3 reject the flag and do not need it.
    let copy = match memfd_create("exec-server", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => memfd_create("exec-server", flags)?,
        made => made?,
    };
    let mut copy = File::from(copy);
    io::copy(&mut File::open(path)?, &mut copy)?;
    fchmod(&copy, Mode::from_raw_mode(0o555))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    // Kernels before 6.3 also lack this seal; there a sandboxed process could clear the execute bit.
    match fcntl_add_seals(&copy, seals | SealFlags::EXEC | SealFlags::SEAL) {
        Err(Errno::INVAL) => fcntl_add_seals(&copy, seals | SealFlags::SEAL)?,
        sealed => sealed?,
    }
    Ok(copy.into())
}

/// Waits until the command runs or its start has failed.
pub async fn outcome(report: OwnedFd) -> Result<Running, SpawnError> {
    let report = register(report, Interest::READABLE).map_err(no_report)?;
    let mut events = ReportReader::default();
    let read = poll_fn(|cx| {
        loop {
            let mut ready = ready!(report.poll_read_ready(cx))?;
            match events.read(report.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                read => return Poll::Ready(read),
            }
        }
    });
    read.await.map_err(no_report)?;
    events.into_result()
}

/// Blocking variant of [`outcome`] with a timeout.
pub fn outcome_blocking(report: &OwnedFd, time: Duration) -> Result<Running, SpawnError> {
    let (mut events, since) = (ReportReader::default(), Instant::now());
    loop {
        match events.read(report) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                setup_timeout::wait_for_more(report, since, time)?;
            }
            read => break read.map_err(no_report)?,
        }
    }
    events.into_result()
}

fn no_report(source: io::Error) -> SpawnError {
    SpawnError::Prepare { step: "launch report", cause: source }
}

#[derive(Default)]
struct ReportReader {
    running: Running,
    failure: Option<Failure>,
}

impl ReportReader {
    /// Reads until the socket is closed.
    fn read(&mut self, report: &OwnedFd) -> io::Result<()> {
        loop {
            let mut packet = match packet::receive(report) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                received => received?,
            };
            match packet.decode()? {
                LauncherEvent::Mounts => {
                    self.running.mounts = packet.fds.pop().map(HeldMounts::new)
                }
                LauncherEvent::First => self.running.first = packet.fds.pop(),
                LauncherEvent::Failed(failure) => self.failure = Some(failure),
            }
        }
    }

    fn into_result(self) -> Result<Running, SpawnError> {
        self.failure.map_or(Ok(self.running), |failure| Err(failure.into_error()))
    }
}

impl Failure {
    fn into_error(self) -> SpawnError {
        let source = io::Error::from_raw_os_error(self.errno);
        match self.step.as_str() {
            STEP_CWD => SpawnError::Cwd(source),
            STEP_EXEC => SpawnError::Program(source),
            STEP_USER => SpawnError::User(source),
            _ => SpawnError::Sandbox { step: self.step, cause: source },
        }
    }
}
