//! Starts sandboxed commands and file workers on the threads of a [`Spawner`].

use std::cell::RefCell;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_os::TreeTag;
use exec_server_os::accounts::Credentials;
use exec_server_os::limits::{LimitPlan, Means};
use exec_server_os::linux::exit_watch::ExitWatch;
use exec_server_os::linux::process_tree::ProcessTree;
use exec_server_os::linux::spawner::{
    ChildStart, Helper, NewChild, Spawner, Submitted, no_event_loop,
};
use exec_server_os::spawn::{SpawnError, SpawnRequest, Stdio};
use tokio::task::JoinSet;

use super::exit_hook::SandboxExit;
use super::exit_report::EndingWatch;
use super::launch::{self, LaunchHandles, LaunchRequest, Launchers, Running};
use super::launcher::{Inside, LaunchPlan};
use super::limits;
use super::netns::SandboxNetwork;
use super::setup_timeout::{SET_UP_TIME, gave_up, was_given_up};
use super::warm_pool::WarmPool;
use super::worker::client::FileWorker;
use super::{Mechanism, Network, SandboxSetup};
use crate::children::SandboxedChild;
use crate::policy::Allowances;
use crate::setup::{Base, RootfsSpec};

/// Starts children in sandboxes; cheap to clone.
#[derive(Debug, Clone)]
pub struct SandboxSpawner {
    spawner: Spawner,
    warm_pool: Option<WarmPool>,
    /// Timeout for the set-up of a sandbox.
    set_up_time: Duration,
    /// Tasks that kill and reap launchers whose set-up timed out.
    given_up: Arc<Mutex<JoinSet<()>>>,
}

/// A pending sandboxed start; dropping it kills the launcher.
pub struct PendingStart(Submitted<LaunchHandles>);

impl SandboxSpawner {
    /// Uses the threads of this spawner.
    pub fn new(spawner: Spawner) -> Self {
        let warm_pool = WarmPool::new();
        if let Err(error) = &warm_pool {
            tracing::debug!(%error, "no warm pool; every sandbox is set up on demand");
        }
        // Probes and caches the result before the first request needs it.
        spawner.run_ahead(|| _ = limits::sandbox_capabilities());
        let (set_up_time, given_up) = (SET_UP_TIME, Arc::default());
        Self { spawner, warm_pool: warm_pool.ok(), set_up_time, given_up }
    }

    /// Sets the timeout for the set-up of a sandbox.
    #[must_use]
    pub fn with_set_up_time(self, set_up_time: Duration) -> Self {
        Self { set_up_time, ..self }
    }

    /// Queues the start of a command; does not wait and needs no runtime.
    pub fn submit(
        &self,
        request: SpawnRequest,
        setup: SandboxSetup,
        network: SandboxNetwork,
    ) -> Result<PendingStart, SpawnError> {
        let content = Content::Command { warm_pool: self.warm_pool.clone() };
        let launch = SandboxLaunch { setup, network, content };
        self.spawner.submit(request, |start| launch.start(start)).map(PendingStart)
    }

    /// Waits until the program of a submitted command runs.
    pub async fn finish(&self, pending: PendingStart) -> Result<SandboxedChild, SpawnError> {
        let (mut spawned, handles) = pending.0.spawned().await?;
        let LaunchHandles { report, refused, refill, exit_socket } = handles;
        let Running { mounts, first } = match self.await_launch(report, &spawned.exit).await {
            Ok(running) => running,
            Err(error) => return Err(self.end_given_up(error, spawned.tree, spawned.exit)),
        };
        let ending = first.zip(exit_socket).map(|(first, socket)| EndingWatch::new(first, socket));
        let ending = ending.transpose().map_err(no_event_loop)?;
        spawned.exit.attach(Box::new(SandboxExit::new(ending, mounts, refill)));
        Ok(SandboxedChild { spawned, refused })
    }

    /// Mechanisms that can enforce limits for a sandboxed command.
    pub fn limit_means(&self, mechanism: Mechanism) -> Means {
        let Means { cgroup, .. } = self.spawner.limit_means();
        Means { cgroup, ..limits::limit_means(mechanism) }
    }

    /// Starts a sandboxed file worker; the [`ExitWatch`] reports its exit.
    pub async fn spawn_worker(
        &self,
        setup: SandboxSetup,
        network: SandboxNetwork,
        user: Option<Credentials>,
        tag: TreeTag,
    ) -> Result<(FileWorker, ExitWatch), SpawnError> {
        let launch = SandboxLaunch { setup, network, content: Content::FileWorker };
        self.start_worker(launch, user, tag).await
    }

    /// Starts a file worker with the rights of a user, and without a sandbox.
    pub async fn spawn_user_worker(
        &self,
        user: Option<Credentials>,
        tag: TreeTag,
    ) -> Result<(FileWorker, ExitWatch), SpawnError> {
        // Nothing of the set-up is applied; this mechanism prepares no namespaces.
        let setup = SandboxSetup {
            view: RootfsSpec::new(Base::Everything),
            network: Network::Host,
            mechanism: Mechanism::Landlock,
            allow: Allowances::default(),
        };
        let network = SandboxNetwork::default();
        let launch = SandboxLaunch { setup, network, content: Content::UserWorker };
        self.start_worker(launch, user, tag).await
    }

    async fn start_worker(
        &self,
        launch: SandboxLaunch,
        user: Option<Credentials>,
        tag: TreeTag,
    ) -> Result<(FileWorker, ExitWatch), SpawnError> {
        let request = SpawnRequest {
            program: "file worker".into(),
            argv: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            stdio: Stdio::Socket,
            tag,
            extra_input: None,
            limits: LimitPlan::default(),
            user,
        };
        let helper =
            self.spawner.submit_helper(request, |start| launch.start(start)).helper().await?;
        let Helper { mut exit, socket, tree, handles } = helper;
        let Running { mounts, .. } = match self.await_launch(handles.report, &exit).await {
            Ok(running) => running,
            Err(error) => return Err(self.end_given_up(error, tree, exit)),
        };
        exit.attach(Box::new(SandboxExit::new(None, mounts, None)));
        Ok((FileWorker::new(socket).map_err(no_event_loop)?, exit))
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

/// Starts a child in a sandbox, from any thread of the spawner.
pub struct SandboxLaunch {
    pub setup: SandboxSetup,
    pub network: SandboxNetwork,
    pub content: Content,
}

/// What runs in the sandbox.
pub enum Content {
    /// The command of the start.
    Command { warm_pool: Option<WarmPool> },
    /// A file worker. It has other limits and is long-lived, so a warm sandbox would not pay off.
    FileWorker,
    /// A file worker without a sandbox.
    UserWorker,
}

impl SandboxLaunch {
    /// Starts the child with these launchers.
    pub fn start_with(
        self,
        launchers: &mut Launchers,
        start: ChildStart,
    ) -> Result<NewChild<LaunchHandles>, SpawnError> {
        let ChildStart { command, stdio, tag, limits, cgroup, user, stack } = start;
        let (inside, warm_pool) = match &self.content {
            Content::Command { warm_pool } => (Inside::Command(command), warm_pool.as_ref()),
            Content::FileWorker => (Inside::FileWorker, None),
            Content::UserWorker => (Inside::UserWorker, None),
        };
        let plan = LaunchPlan { setup: self.setup, limits, inside };
        let network = &self.network;
        let request = LaunchRequest { plan: &plan, stdio, tag, cgroup, network, warm_pool, user };
        let mut launcher = launchers.launch(&request, stack)?;
        // A cgroup can be removed only after the launcher has left it, so the launcher's own exit counts then.
        if cgroup.is_some() {
            launcher.handles.exit_socket = None;
        }
        Ok(launcher)
    }

    /// Starts the child with the launchers of a spawner thread.
    fn start(self, start: ChildStart) -> Result<NewChild<LaunchHandles>, SpawnError> {
        LAUNCHERS.with_borrow_mut(|launchers| self.start_with(launchers, start))
    }
}

thread_local! {
    /// The zygote of a spawner thread, which must be the parent of the launchers; killed when the thread exits.
    static LAUNCHERS: RefCell<Launchers> = RefCell::default();
}
