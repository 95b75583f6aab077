//! Starts children from dedicated threads.
//!
//! A clone with shared memory suspends the calling thread until the child has executed its program. A slow file system
//! can delay this, so the thread must not be one that serves connections. The threads run as long as the server,
//! because the parent-death signal of a child is sent when the thread that started it exits.

use std::ffi::{CString, OsStr, OsString};
use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;
use std::{io, thread};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::pipe::PipeFlags;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::cgroup::{Cgroup, CgroupParent};
use super::child::{ChildPlan, ChildStack, clone_child};
use super::exit_watch::ExitWatch;
use super::pipes::{ChildInput, ChildOutput, OutputKind};
use super::process_tree::{ProcessTree, TreeTag};
use super::sandbox::denials::RefusedCalls;
use super::sandbox::exit_hook::SandboxExit;
use super::sandbox::exit_report::EndingWatch;
use super::sandbox::file_worker::FileWorker;
use super::sandbox::launch::{self, Launch, Launched, Launchers, Running};
use super::sandbox::launcher::{Command, Inside, LaunchPlan};
use super::sandbox::netns::SandboxNetwork;
use super::sandbox::setup_timeout::{SET_UP_TIME, gave_up, was_given_up};
use super::sandbox::warm_pool::{RefillOnDrop, WarmPool};
use super::sandbox::{self, Mechanism, SandboxSetup};
use super::{signals, startup, terminal};
use crate::limits::{LimitPlan, Means, Rlimits};
use crate::spawn::{SpawnError, SpawnRequest, Spawned, StdinKind, Stdio};

/// A second thread starts children while the first one waits for a slow disk.
const THREADS: usize = 2;

/// Starts children; cheap to clone.
#[derive(Debug, Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
    cgroup: Option<Arc<CgroupParent>>,
    /// Timeout for the set-up of a sandbox.
    set_up_time: Duration,
    /// Tasks that kill and reap launchers whose set-up timed out.
    given_up: Arc<Mutex<JoinSet<()>>>,
}

struct Job {
    request: SpawnRequest,
    cgroup: Option<Cgroup>,
    reply: oneshot::Sender<Result<Parts, SpawnError>>,
}

/// A started child before its descriptors are registered with the runtime.
pub struct Parts {
    pub pid: libc::pid_t,
    pub pidfd: OwnedFd,
    ours: OurEnds,
    pub tree: ProcessTree,
    /// Socket on which the launcher of a sandbox reports success or the failed step.
    pub report: Option<OwnedFd>,
    /// Calls that the sandbox has denied.
    refused: RefusedCalls,
    /// Refills the warm pool when it is dropped, after the command has exited.
    another: Option<RefillOnDrop>,
    /// Socket on which pid 1 of the sandbox sends the exit status.
    inside: Option<OwnedFd>,
}

/// A pending start; dropping it kills the child.
pub struct Submitted(oneshot::Receiver<Result<Parts, SpawnError>>);

impl Submitted {
    async fn parts(self) -> Result<Parts, SpawnError> {
        self.0.await.expect("a spawner thread answers every job")
    }
}

impl Spawner {
    /// Starts the spawner threads.
    pub fn new(cgroup: Option<CgroupParent>) -> io::Result<Self> {
        let warm_pool = WarmPool::new();
        if let Err(error) = &warm_pool {
            tracing::debug!(%error, "no warm pool; every sandbox is set up on demand");
        }
        let warm_pool = warm_pool.ok();
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..THREADS {
            let (queue, warm_pool) = (queue.clone(), warm_pool.clone());
            thread::Builder::new()
                .name(format!("spawner-{number}"))
                .spawn(move || serve(&queue, warm_pool))?;
        }
        let (set_up_time, given_up) = (SET_UP_TIME, Arc::default());
        Ok(Self { jobs, cgroup: cgroup.map(Arc::new), set_up_time, given_up })
    }

    /// Sets the timeout for the set-up of a sandbox.
    #[must_use]
    pub fn with_set_up_time(self, set_up_time: Duration) -> Self {
        Self { set_up_time, ..self }
    }

    /// Starts a child and waits until its program runs.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, SpawnError> {
        self.finish(self.submit(request)?).await
    }

    /// Queues the start of a child; does not wait and needs no runtime.
    pub fn submit(&self, request: SpawnRequest) -> Result<Submitted, SpawnError> {
        let cgroup = match &self.cgroup {
            Some(parent) => {
                let made = parent.make_child(request.tag, &request.limits.cgroup);
                Some(made.map_err(|source| SpawnError::Prepare { step: "cgroup", source })?)
            }
            None => None,
        };
        Ok(self.send(request, cgroup))
    }

    fn send(&self, request: SpawnRequest, cgroup: Option<Cgroup>) -> Submitted {
        let (reply, answer) = oneshot::channel();
        self.jobs
            .send(Job { request, cgroup, reply })
            .expect("the spawner threads live as long as the sender");
        Submitted(answer)
    }

    /// Waits until the program of a submitted child runs.
    pub async fn finish(&self, submitted: Submitted) -> Result<Spawned, SpawnError> {
        let prepare = |step| move |source| SpawnError::Prepare { step, source };
        let mut parts = submitted.parts().await?;
        let (report, another) = (parts.report.take(), parts.another.take());
        let inside = parts.inside.take();
        let mut spawned = parts.register().map_err(prepare("event loop"))?;
        let Some(report) = report else { return Ok(spawned) };
        let Running { mounts, first } = match self.await_launch(report, &spawned.exit).await {
            Ok(running) => running,
            Err(error) => return Err(self.end_given_up(error, spawned.tree, spawned.exit)),
        };
        let ending = first.zip(inside).map(|(first, inside)| EndingWatch::new(first, inside));
        let ending = ending.transpose().map_err(prepare("event loop"))?;
        spawned.exit.attach(Box::new(SandboxExit::new(ending, mounts, another)));
        Ok(spawned)
    }

    /// Mechanisms that can enforce limits for a process.
    pub fn limit_means(&self, sandbox: Option<Mechanism>) -> Means {
        Means {
            cgroup: self.cgroup.as_ref().map(|parent| parent.controllers()).unwrap_or_default(),
            ..startup::limit_means(sandbox)
        }
    }

    /// Removes cgroups that were still populated when their process was dropped and are empty now.
    pub fn sweep_cgroups(&self) {
        if let Some(parent) = &self.cgroup {
            parent.sweep();
        }
    }

    /// Starts a sandboxed file worker; the [`ExitWatch`] reports its exit.
    pub async fn spawn_worker(
        &self,
        setup: SandboxSetup,
        network: SandboxNetwork,
        tag: TreeTag,
    ) -> Result<(FileWorker, ExitWatch), SpawnError> {
        let request = SpawnRequest {
            program: "file worker".into(),
            argv: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            stdio: Stdio::Worker,
            tag,
            sandbox: Some(setup),
            network,
            extra_input: None,
            limits: LimitPlan::default(),
        };
        let parts = self.send(request, None).parts().await?;
        let failed = |source| SpawnError::Prepare { step: "event loop", source };
        let mut exit = ExitWatch::new(parts.pid, parts.pidfd).map_err(failed)?;
        let OurEnds::Worker { socket } = parts.ours else { unreachable!("a worker has a socket") };
        let report = parts.report.expect("a worker has a launcher, which reports");
        let Running { mounts, .. } = match self.await_launch(report, &exit).await {
            Ok(running) => running,
            Err(error) => return Err(self.end_given_up(error, parts.tree, exit)),
        };
        exit.attach(Box::new(SandboxExit::new(None, mounts, None)));
        Ok((FileWorker::new(socket).map_err(failed)?, exit))
    }

    /// Waits until the launcher's program runs, at most for the set-up timeout.
    async fn await_launch(&self, report: OwnedFd, exit: &ExitWatch) -> Result<Running, SpawnError> {
        let time = self.set_up_time;
        match tokio::time::timeout(time, launch::outcome(report)).await {
            Ok(Ok(running)) => Ok(running),
            Ok(Err(error)) => {
                // The launcher exits at once; waiting for it keeps it out of the list of running processes.
                let _ = poll_fn(|cx| exit.poll_exit(cx)).await;
                Err(error)
            }
            Err(_) => Err(gave_up(time)),
        }
    }

    /// Kills a launcher whose set-up timed out. It may hang in the kernel, so a background task waits for its exit.
    fn end_given_up(&self, error: SpawnError, tree: ProcessTree, exit: ExitWatch) -> SpawnError {
        if was_given_up(&error) {
            let mut given_up = self.given_up.lock().expect("no holder panics");
            while given_up.try_join_next().is_some() {}
            given_up.spawn(async move {
                let mut tree = tree;
                tree.kill_pass();
                let _ = poll_fn(|cx| exit.poll_exit(cx)).await;
                tree.handle_root_reaped();
                tree.kill_pass();
            });
        }
        error
    }
}

fn serve(queue: &Mutex<mpsc::Receiver<Job>>, warm_pool: Option<WarmPool>) {
    // Probes and caches the result before the first request needs it.
    sandbox::limits::sandbox_capabilities();
    let mut starter = Starter { warm_pool, ..Starter::new() };
    loop {
        let job = queue.lock().expect("no holder panics").recv();
        let Ok(Job { request, cgroup, reply }) = job else { return };
        let result = starter.start(&request, cgroup);
        if let Err(Ok(parts)) = reply.send(result) {
            parts.abandon();
        }
    }
}

impl Parts {
    /// Kills and reaps a child whose requester is gone.
    pub fn abandon(mut self) {
        self.tree.kill_pass();
        // SAFETY: waits for our own child, which has just been killed.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        self.tree.handle_root_reaped();
        self.tree.kill_pass();
    }

    fn register(self) -> io::Result<Spawned> {
        let exit = ExitWatch::new(self.pid, self.pidfd)?;
        let (input, output, error_output) = match self.ours {
            OurEnds::Pipes { stdin, stdout, stderr } => (
                stdin.map(ChildInput::new).transpose()?,
                ChildOutput::new(stdout, OutputKind::Pipe)?,
                Some(ChildOutput::new(stderr, OutputKind::Pipe)?),
            ),
            OurEnds::Terminal { master } => {
                let input = ChildInput::new(master.try_clone()?)?;
                (Some(input), ChildOutput::new(master, OutputKind::Terminal)?, None)
            }
            OurEnds::Worker { .. } => unreachable!("a worker is no process of a client"),
            OurEnds::None => return Err(io::ErrorKind::Unsupported.into()),
        };
        let pid = self.pid.unsigned_abs();
        let (tree, refused) = (self.tree, self.refused);
        Ok(Spawned { pid, exit, input, output, error_output, tree, refused })
    }
}

enum OurEnds {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { master: OwnedFd },
    Worker { socket: OwnedFd },
    None,
}

enum TheirEnds {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { slave: OwnedFd },
    Worker { socket: OwnedFd },
    Inherited,
}

/// Starts children from the calling thread.
pub struct Starter {
    stack: ChildStack,
    launchers: Launchers,
    warm_pool: Option<WarmPool>,
}

impl Starter {
    /// A starter without a warm pool.
    pub fn new() -> Self {
        Self { stack: ChildStack::new(), launchers: Launchers::default(), warm_pool: None }
    }

    /// Starts a child. Without a sandbox, the calling thread sleeps until the program is executed; with one, until the
    /// launcher runs.
    pub fn start(
        &mut self,
        request: &SpawnRequest,
        cgroup: Option<Cgroup>,
    ) -> Result<Parts, SpawnError> {
        let prepare = |step| move |source: io::Error| SpawnError::Prepare { step, source };
        let command = command(request)?;
        let (ours, theirs) = open_stdio(request.stdio).map_err(prepare("standard streams"))?;
        let stdio = theirs.as_stdio().map_err(prepare("/dev/null"))?;
        let tag = request.tag;
        let tree = |pid, cgroup| ProcessTree::new(pid, tag, cgroup);
        if let Some(setup) = &request.sandbox {
            let inside = match request.stdio {
                Stdio::Worker => Inside::FileWorker,
                _ => Inside::Command(command),
            };
            let plan = LaunchPlan { setup: setup.clone(), limits: request.limits, inside };
            // A worker has other limits and is long-lived, so a warm sandbox would not pay off.
            let warm_pool = self.warm_pool.as_ref().filter(|_| request.stdio != Stdio::Worker);
            let network = &request.network;
            let launch =
                Launch { plan: &plan, stdio, tag, cgroup: cgroup.as_ref(), network, warm_pool };
            let launched = self.launchers.launch(&launch, &mut self.stack)?;
            let Launched { pid, pidfd, report, refused, another, inside } = launched;
            // A cgroup can be removed only after the launcher has left it, so the launcher's own exit counts then.
            let inside = inside.filter(|_| cgroup.is_none());
            let (report, tree) = (Some(report), tree(pid, cgroup));
            Ok(Parts { pid, pidfd, ours, tree, report, refused, another, inside })
        } else {
            let extra = command.extra_input.as_deref().map(memory_of).transpose();
            let extra = extra.map_err(prepare("extra input"))?;
            let extras: Vec<_> = extra.iter().map(AsFd::as_fd).collect();
            let (group, limits) = (cgroup.as_ref(), &request.limits.rlimits);
            let (pid, pidfd) =
                execute(&command, stdio, &extras, group, limits, tag, &mut self.stack)?;
            let (tree, refused) = (tree(pid, cgroup), RefusedCalls::default());
            let (report, another, inside) = (None, None, None);
            Ok(Parts { pid, pidfd, ours, tree, report, refused, another, inside })
        }
    }
}

fn command(request: &SpawnRequest) -> Result<Command, SpawnError> {
    if request.program.is_empty() {
        return Err(SpawnError::NoProgram);
    }
    Ok(Command {
        candidates: candidates(request)?,
        argv: c_strings(&request.argv, "an argument")?,
        env: c_environment(&request.env)?,
        cwd: c_string(request.cwd.as_os_str(), "the working directory")?,
        has_terminal: matches!(request.stdio, Stdio::Terminal(_)),
        extra_input: request.extra_input.clone(),
    })
}

/// Starts a program; the calling thread sleeps until exec has succeeded or failed.
pub fn execute(
    command: &Command,
    stdio: [BorrowedFd; 3],
    extras: &[BorrowedFd],
    cgroup: Option<&Cgroup>,
    limits: &Rlimits,
    tag: TreeTag,
    stack: &mut ChildStack,
) -> Result<(libc::pid_t, OwnedFd), SpawnError> {
    let argv_pointers = pointers(&command.argv);
    let mut script_argv = vec![c"/bin/sh".as_ptr(), std::ptr::null()];
    script_argv.extend_from_slice(&argv_pointers[1.min(argv_pointers.len() - 1)..]);
    let mut plan = ChildPlan {
        candidates: &command.candidates,
        argv: &argv_pointers,
        script_argv: &mut script_argv,
        envp: &pointers(&command.env),
        cwd: &command.cwd,
        stdio,
        extras,
        has_terminal: command.has_terminal,
        cgroup: cgroup.map(Cgroup::procs),
        ignored: signals::ignored(),
        open_files: startup::original_open_file_limit(),
        rlimits: &startup::lowered(limits),
        oom_score: startup::oom_score_of_children(),
        tag: tag.as_limit(),
        server_pid: std::process::id().cast_signed(),
    };
    clone_child(&mut plan, stack)
}

impl TheirEnds {
    fn as_stdio(&self) -> io::Result<[BorrowedFd<'_>; 3]> {
        let null = null_device()?;
        Ok(match self {
            Self::Pipes { stdin, stdout, stderr } => {
                [stdin.as_ref().map_or(null, |stdin| stdin.as_fd()), stdout.as_fd(), stderr.as_fd()]
            }
            Self::Terminal { slave } => [slave.as_fd(); 3],
            Self::Worker { socket } => [socket.as_fd(), null, null],
            Self::Inherited => {
                [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
            }
        })
    }
}

fn open_stdio(stdio: Stdio) -> io::Result<(OurEnds, TheirEnds)> {
    match stdio {
        Stdio::Inherited => Ok((OurEnds::None, TheirEnds::Inherited)),
        Stdio::Terminal(size) => {
            let (master, slave) = terminal::open(size)?;
            Ok((OurEnds::Terminal { master }, TheirEnds::Terminal { slave }))
        }
        Stdio::Worker => {
            let (ours, theirs) = rustix::net::socketpair(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            Ok((OurEnds::Worker { socket: ours }, TheirEnds::Worker { socket: theirs }))
        }
        Stdio::Pipes { stdin } => {
            let (stdout, their_stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            let (stderr, their_stderr) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&stdout, true)?;
            rustix::io::ioctl_fionbio(&stderr, true)?;
            let (our_stdin, their_stdin) = match stdin {
                StdinKind::Null => (None, None),
                StdinKind::Pipe => {
                    let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                    rustix::io::ioctl_fionbio(&ours, true)?;
                    (Some(ours), Some(theirs))
                }
            };
            Ok((
                OurEnds::Pipes { stdin: our_stdin, stdout, stderr },
                TheirEnds::Pipes { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr },
            ))
        }
    }
}

/// The host's null device, opened once.
pub fn null_device() -> io::Result<BorrowedFd<'static>> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return Ok(null.as_fd());
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(NULL.get_or_init(|| null).as_fd())
}

/// A memfd with this content, so that the content is never on disk; its descriptor number is at least 10.
pub fn memory_of(content: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("exec-server", MemfdFlags::CLOEXEC)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&memory, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0))?;
    move_up(memory)
}

/// Moves a descriptor above the numbers that a child's standard and extra descriptors use.
pub fn move_up(fd: OwnedFd) -> io::Result<OwnedFd> {
    const FIRST_FREE: i32 = 10;
    if fd.as_raw_fd() >= FIRST_FREE {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE)?)
}

/// Paths to try: the program itself if it contains a slash, else its name in each directory of the child's `PATH`.
fn candidates(request: &SpawnRequest) -> Result<Vec<CString>, SpawnError> {
    let program = request.program.as_os_str();
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program, "the program")?]);
    }
    let path =
        request.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_bytes());
    // The C library's default.
    let path = path.unwrap_or(b"/bin:/usr/bin");
    path.split(|byte| *byte == b':')
        .map(|directory| match directory {
            b"" => Path::new(".").join(program),
            directory => Path::new(OsStr::from_bytes(directory)).join(program),
        })
        .map(|candidate| c_string(candidate.as_os_str(), "the program"))
        .collect()
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString, SpawnError> {
    CString::new(text.as_bytes()).map_err(|_| SpawnError::NulByte(what))
}

fn c_strings(texts: &[OsString], what: &'static str) -> Result<Vec<CString>, SpawnError> {
    texts.iter().map(|text| c_string(text, what)).collect()
}

fn c_environment(env: &[(OsString, OsString)]) -> Result<Vec<CString>, SpawnError> {
    env.iter()
        .map(|(name, value)| {
            let mut entry = name.clone().into_vec();
            entry.push(b'=');
            entry.extend_from_slice(value.as_bytes());
            CString::new(entry).map_err(|_| SpawnError::NulByte("the environment"))
        })
        .collect()
}

/// The null-terminated pointer array that execve takes.
pub fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}
