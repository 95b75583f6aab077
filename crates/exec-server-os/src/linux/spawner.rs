//! Starts children from dedicated threads.
//!
//! A clone with shared memory suspends the calling thread until the child has executed its program. A slow file system
//! can delay this, so the thread must not be one that serves connections. The threads run as long as the server,
//! because the parent-death signal of a child is sent when the thread that started it exits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::{io, thread};

use tokio::sync::oneshot;

use super::cgroup::{Cgroup, CgroupParent};
use super::child::{ChildPlan, ChildStack, clone_child};
use super::command::{Command, pointers};
use super::exit_watch::ExitWatch;
use super::pipes::{ChildInput, ChildOutput, OutputKind};
use super::process_tree::ProcessTree;
use super::standard_streams::{self, OurEnds, memory_of};
use super::{signals, startup};
use crate::accounts::Credentials;
use crate::limits::{LimitPlan, Means, Rlimits};
use crate::spawn::{SpawnError, SpawnRequest, Spawned};
use crate::tree_tag::TreeTag;

/// A second thread starts children while the first one waits for a slow disk.
const THREADS: usize = 2;

/// Starts children; cheap to clone.
#[derive(Debug, Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
    cgroup: Option<Arc<CgroupParent>>,
}

/// Runs on a spawner thread, whose stack for children it may use.
type Job = Box<dyn FnOnce(&mut ChildStack) + Send>;

/// The parameters of one launch: a function that starts a child of the calling thread, and returns when the first program
/// of the child runs.
pub struct ChildStart<'a> {
    /// The program.
    pub command: Command,
    /// Descriptors 0, 1 and 2 of the program.
    pub stdio: [BorrowedFd<'a>; 3],
    /// The tag of the process tree.
    pub tag: TreeTag,
    /// The resource limits.
    pub limits: LimitPlan,
    /// The cgroup to join.
    pub cgroup: Option<&'a Cgroup>,
    /// The user of the program, if it is another one.
    pub user: Option<&'a Credentials>,
    /// The stack that a clone of the calling thread runs on.
    pub stack: &'a mut ChildStack,
}

/// A child that a launch has started.
pub struct NewChild<H> {
    /// The process id.
    pub pid: libc::pid_t,
    /// Stays valid when the process id is reused.
    pub pidfd: OwnedFd,
    /// What the launch returns beside the child.
    pub handles: H,
}

/// A started child before its descriptors are registered with the runtime.
pub struct Parts<H> {
    /// The process id.
    pub pid: libc::pid_t,
    /// Stays valid when the process id is reused.
    pub pidfd: OwnedFd,
    /// The child and its descendants.
    pub tree: ProcessTree,
    /// What the launch returned beside the child.
    pub handles: H,
    ours: OurEnds,
}

/// A helper process of the server, with a socket to it.
pub struct Helper<H> {
    /// Resolves when the helper has exited.
    pub exit: ExitWatch,
    /// The server's end of the socket; non-blocking.
    pub socket: OwnedFd,
    /// The helper and its descendants.
    pub tree: ProcessTree,
    /// What the launch returned beside the child.
    pub handles: H,
}

/// A pending start; dropping it kills the child.
pub struct Submitted<H>(oneshot::Receiver<Result<Parts<H>, SpawnError>>);

impl<H> Submitted<H> {
    /// Waits until the child is started, and registers its streams with the runtime.
    pub async fn spawned(self) -> Result<(Spawned, H), SpawnError> {
        self.parts().await?.register().map_err(no_event_loop)
    }

    /// Waits until a helper with [`Stdio::Socket`](crate::spawn::Stdio::Socket) is started.
    pub async fn helper(self) -> Result<Helper<H>, SpawnError> {
        self.parts().await?.into_helper().map_err(no_event_loop)
    }

    async fn parts(self) -> Result<Parts<H>, SpawnError> {
        self.0.await.expect("a spawner thread answers every job")
    }
}

/// The error for descriptors that could not be registered with the runtime.
pub fn no_event_loop(source: io::Error) -> SpawnError {
    SpawnError::Prepare { step: "event loop", cause: source }
}

impl Spawner {
    /// Starts the spawner threads.
    pub fn new(cgroup: Option<CgroupParent>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..THREADS {
            let queue = queue.clone();
            thread::Builder::new()
                .name(format!("spawner-{number}"))
                .spawn(move || serve(&queue))?;
        }
        Ok(Self { jobs, cgroup: cgroup.map(Arc::new) })
    }

    /// Starts a child and waits until its program runs.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, SpawnError> {
        let (spawned, ()) = self.submit(request, execute_program)?.spawned().await?;
        Ok(spawned)
    }

    /// Queues the start of a child; does not wait and needs no runtime.
    pub fn submit<H: Send + 'static>(
        &self,
        request: SpawnRequest,
        launch: impl FnOnce(ChildStart) -> Result<NewChild<H>, SpawnError> + Send + 'static,
    ) -> Result<Submitted<H>, SpawnError> {
        let cgroup = match &self.cgroup {
            Some(parent) => {
                let made = parent.make_child(request.tag, &request.limits.cgroup);
                Some(made.map_err(|source| SpawnError::Prepare { step: "cgroup", cause: source })?)
            }
            None => None,
        };
        Ok(self.send(request, cgroup, launch))
    }

    /// Queues the start of a helper process of the server, which gets no cgroup of its own.
    pub fn submit_helper<H: Send + 'static>(
        &self,
        request: SpawnRequest,
        launch: impl FnOnce(ChildStart) -> Result<NewChild<H>, SpawnError> + Send + 'static,
    ) -> Submitted<H> {
        self.send(request, None, launch)
    }

    fn send<H: Send + 'static>(
        &self,
        request: SpawnRequest,
        cgroup: Option<Cgroup>,
        launch: impl FnOnce(ChildStart) -> Result<NewChild<H>, SpawnError> + Send + 'static,
    ) -> Submitted<H> {
        let (reply, answer) = oneshot::channel();
        self.queue(Box::new(move |stack| {
            let started = start(&request, cgroup, launch, stack);
            if let Err(Ok(parts)) = reply.send(started) {
                parts.abandon();
            }
        }));
        Submitted(answer)
    }

    /// Runs `work` on a spawner thread, before the children that are submitted later on that thread.
    pub fn run_ahead(&self, work: impl FnOnce() + Send + 'static) {
        self.queue(Box::new(move |_| work()));
    }

    fn queue(&self, job: Job) {
        self.jobs.send(job).expect("the spawner threads live as long as the sender");
    }

    /// Mechanisms that can enforce limits for a child that is executed directly.
    pub fn limit_means(&self) -> Means {
        Means {
            cgroup: self.cgroup.as_ref().map(|parent| parent.controllers()).unwrap_or_default(),
            ..startup::limit_means()
        }
    }

    /// Removes cgroups that were still populated when their process was dropped and are empty now.
    pub fn sweep_cgroups(&self) {
        if let Some(parent) = &self.cgroup {
            parent.sweep();
        }
    }
}

fn serve(queue: &Mutex<mpsc::Receiver<Job>>) {
    let mut stack = ChildStack::new();
    loop {
        let job = queue.lock().expect("no holder panics").recv();
        let Ok(job) = job else { return };
        job(&mut stack);
    }
}

impl<H> Parts<H> {
    /// Kills and reaps a child whose requester is gone.
    pub fn abandon(mut self) {
        self.tree.kill_pass();
        // SAFETY: waits for our own child, which has just been killed.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        self.tree.handle_root_reaped();
        self.tree.kill_pass();
    }

    fn register(self) -> io::Result<(Spawned, H)> {
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
            OurEnds::Socket { .. } | OurEnds::None => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        let pid = self.pid.unsigned_abs();
        Ok((Spawned { pid, exit, input, output, error_output, tree: self.tree }, self.handles))
    }

    fn into_helper(self) -> io::Result<Helper<H>> {
        let exit = ExitWatch::new(self.pid, self.pidfd)?;
        let OurEnds::Socket { socket } = self.ours else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(Helper { exit, socket, tree: self.tree, handles: self.handles })
    }
}

/// Starts a child from the calling thread, which sleeps until the launch is done.
pub fn start<H>(
    request: &SpawnRequest,
    cgroup: Option<Cgroup>,
    launch: impl FnOnce(ChildStart) -> Result<NewChild<H>, SpawnError>,
    stack: &mut ChildStack,
) -> Result<Parts<H>, SpawnError> {
    let prepare = |step| move |source: io::Error| SpawnError::Prepare { step, cause: source };
    let command = Command::of(request)?;
    let streams = standard_streams::open(request.stdio);
    let (ours, theirs) = streams.map_err(prepare("standard streams"))?;
    let user = request.user.as_ref();
    if let Some(user) = user {
        theirs.give_to(user).map_err(prepare("owner of the standard streams"))?;
    }
    let stdio = theirs.as_stdio().map_err(prepare("/dev/null"))?;
    let (tag, limits) = (request.tag, request.limits);
    let start = ChildStart { command, stdio, tag, limits, cgroup: cgroup.as_ref(), user, stack };
    let NewChild { pid, pidfd, handles } = launch(start)?;
    Ok(Parts { pid, pidfd, tree: ProcessTree::new(pid, tag, cgroup), handles, ours })
}

/// Executes the program directly, without a sandbox.
fn execute_program(start: ChildStart) -> Result<NewChild<()>, SpawnError> {
    let extra = start.command.extra_input.as_deref().map(memory_of).transpose();
    let extra =
        extra.map_err(|source| SpawnError::Prepare { step: "extra input", cause: source })?;
    let extras: Vec<_> = extra.iter().map(AsFd::as_fd).collect();
    let ChildStart { command, stdio, tag, limits, cgroup, user, stack } = start;
    let limits = &limits.rlimits;
    let (pid, pidfd) = execute(&command, stdio, &extras, cgroup, limits, tag, user, stack)?;
    Ok(NewChild { pid, pidfd, handles: () })
}

#[expect(clippy::too_many_arguments, reason = "each is one part of the child")]
/// Starts a program; the calling thread sleeps until exec has succeeded or failed.
pub fn execute(
    command: &Command,
    stdio: [BorrowedFd; 3],
    extras: &[BorrowedFd],
    cgroup: Option<&Cgroup>,
    limits: &Rlimits,
    tag: TreeTag,
    user: Option<&Credentials>,
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
        user,
        server_pid: std::process::id().cast_signed(),
    };
    clone_child(&mut plan, stack)
}
