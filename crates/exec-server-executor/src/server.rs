//! State shared by all connections of a server, and the shutdown.

use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{io, time::Duration};

use exec_server_core::attachment::ConnectionId;
use exec_server_os::limits::{self, LimitPlan};
use exec_server_os::{CgroupParent, OomCounter, Peers, Spawner};
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::process::ExitReason;
use exec_server_sandbox::SandboxSpawner;
use exec_server_sandbox::plan::{SandboxSettings, Sandboxes};
use exec_server_transport::outbox::Outbox;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::audit::Audit;
use crate::auth::{Credential, Current};
use crate::close_codes;
use crate::config::ServerConfig;
use crate::egress::HttpSetup;
use crate::environment;
use crate::event_loops::EventLoops;
use crate::metrics::Metrics;
use crate::reply_memory::ReplyMemory;
use crate::sessions::Sessions;
use crate::spool::Spools;
use crate::state_dir;

/// Few enough that slow lookups leave most blocking threads free for file requests.
const PEER_SEARCHES: usize = 4;

/// State shared by all connections of a server.
#[derive(Debug)]
pub struct Server {
    /// The configuration that the server was started with.
    pub config: ServerConfig,
    /// The result of `environment/info`.
    pub environment: EnvironmentInfo,
    /// The Prometheus metrics.
    pub metrics: Metrics,
    pub(crate) sessions: Sessions,
    pub(crate) spawner: Spawner,
    pub(crate) sandbox_spawner: SandboxSpawner,
    pub(crate) event_loops: EventLoops,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) oom: OomCounter,
    pub(crate) peers: Arc<Peers>,
    /// Bounds concurrent peer lookups, because a connection is cheaper for the client than its lookup for the server.
    pub(crate) peer_searches: Semaphore,
    /// The limits of a process that requests none.
    pub(crate) least_limits: LimitPlan,
    pub(crate) http: HttpSetup,
    pub(crate) spools: Spools,
    pub(crate) audit: Option<Arc<Audit>>,
    pub(crate) reply_memory: ReplyMemory,
    next_connection: AtomicU64,
    next_child: AtomicU32,
    open: Mutex<Open>,
    all_closed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    /// Session tasks, connection tasks and long-running requests.
    tasks: JoinSet<()>,
    connections: Vec<OpenConnection>,
    is_draining: bool,
}

#[derive(Debug)]
struct OpenConnection {
    id: ConnectionId,
    outbox: Outbox,
    /// The credential of the connection, if it can expire or be revoked.
    credential: Option<Credential>,
}

/// Why a connection is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The connection limit is reached.
    #[error("this server already has its maximum of {0} connections; see --max-connections")]
    Full(usize),
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
}

impl Server {
    /// Sets up everything but the listener; must be called on an event loop.
    pub fn new(config: ServerConfig) -> io::Result<Arc<Self>> {
        let metrics = Metrics::new(config.tracer.clone());
        if let Some(recorder) = config.tracer.recorder() {
            let metrics = metrics.clone();
            recorder.add_metrics(Box::new(move || metrics.render()));
        }
        let audit = match &config.audit {
            Some(audit) => Some(Arc::new(Audit::open(audit, &metrics).map_err(io::Error::other)?)),
            None => None,
        };
        let cgroup = match &config.cgroup {
            Some(path) => Some(CgroupParent::open(path)?),
            None => CgroupParent::delegated(),
        };
        if let Some(program) = config.runtime_paths.program() {
            exec_server_sandbox::use_zygote_program(program)?;
        }
        let mechanism = config.sandbox_fallback.choose();
        let spawner = Spawner::new(cgroup)?;
        let sandbox_spawner =
            SandboxSpawner::new(spawner.clone()).with_set_up_time(config.timings.sandbox_set_up);
        // A configured limit that cannot be enforced must fail the startup, not be dropped per process.
        let planned = limits::plan(&config.process_limits, &spawner.limit_means());
        let (least_limits, _) =
            planned.map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))?;
        let event_loops = EventLoops::new(config.more_event_loops)?;
        let allow = config.sandbox_allow;
        let sandboxes = Sandboxes::new(SandboxSettings {
            native_paths: config.native_paths,
            mechanism,
            allow,
            state_dir: config.state_dir.as_deref(),
            journal: state_dir::journal(config.state_dir.as_deref()),
            secret_files: &config.all_secret_files(),
            own_socket: config.listen.socket_path(),
        });
        sandboxes.sweep_later();
        Ok(Arc::new(Self {
            environment: environment::info(mechanism, allow),
            metrics,
            audit,
            sessions: Sessions::default(),
            spawner,
            sandbox_spawner,
            least_limits,
            event_loops,
            sandboxes,
            oom: OomCounter::default(),
            peers: Arc::default(),
            peer_searches: Semaphore::new(PEER_SEARCHES),
            http: HttpSetup::new(config.http.clone()),
            spools: Spools::new(config.state_dir.as_deref(), &config.limits),
            reply_memory: ReplyMemory::new(config.limits.reply_memory, config.timings.reply_memory),
            next_connection: AtomicU64::new(1),
            next_child: AtomicU32::new(1),
            open: Mutex::default(),
            all_closed: Notify::new(),
            config,
        }))
    }

    /// Spawns a task owned by the server on the current event loop.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(&Handle::current(), task);
    }

    /// Spawns a task owned by the server on the given event loop.
    pub(crate) fn spawn_on(
        &self,
        event_loop: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut open = self.open.lock().expect("no holder panics");
        while open.tasks.try_join_next().is_some() {}
        open.tasks.spawn_on(task, event_loop);
    }

    /// Registers a connection; [`Server::leave`] removes it.
    pub(crate) fn enter(
        &self,
        outbox: &Outbox,
        credential: Option<Credential>,
    ) -> Result<ConnectionId, NotTaken> {
        let limit = self.config.limits.connections;
        let mut open = self.open.lock().expect("no holder panics");
        if open.is_draining {
            return Err(NotTaken::Draining);
        }
        if open.connections.len() >= limit {
            return Err(NotTaken::Full(limit));
        }
        let id = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        open.connections.push(OpenConnection { id, outbox: outbox.clone(), credential });
        Ok(id)
    }

    /// Checks whether another connection would be accepted now.
    pub(crate) fn check_room(&self) -> Result<(), NotTaken> {
        let open = self.open.lock().expect("no holder panics");
        match open.connections.len() {
            _ if open.is_draining => Err(NotTaken::Draining),
            count if count >= self.config.limits.connections => Err(NotTaken::Full(count)),
            _ => Ok(()),
        }
    }

    pub(crate) fn leave(&self, connection: ConnectionId) {
        let mut open = self.open.lock().expect("no holder panics");
        open.connections.retain(|open| open.id != connection);
        if open.connections.is_empty() {
            self.all_closed.notify_waiters();
        }
    }

    /// Closes connections with an expired or revoked credential; their sessions stay resumable.
    pub(crate) fn close_ended_credentials(&self, current: &Current) {
        let open = self.open.lock().expect("no holder panics");
        for OpenConnection { id, outbox, credential } in &open.connections {
            let Some(Err(ended)) = credential.as_ref().map(|held| current.check(held)) else {
                continue;
            };
            tracing::info!(connection_id = id.0, reason = %ended, "credential expired or was revoked");
            outbox.close_in_order(close_codes::POLICY_VIOLATION, ended.to_string());
        }
    }

    pub(crate) fn next_child(&self) -> u32 {
        self.next_child.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends all process trees, then closes all connections, within `Timings::shutdown`.
    pub async fn shut_down(&self) {
        self.open.lock().expect("no holder panics").is_draining = true;
        let whole = self.config.timings.shutdown;
        let end_sessions = async {
            let grace = self.config.timings.kill_grace.min(whole / 2);
            self.sessions.end_all(ExitReason::ServerShutdown, Some(grace)).await;
        };
        if tokio::time::timeout(whole, end_sessions).await.is_err() {
            tracing::warn!("some processes did not exit before the shutdown timeout");
        }
        // The last process events are queued ahead of the close.
        let close = self.close_connections();
        if tokio::time::timeout(Duration::from_millis(200), close).await.is_err() {
            tracing::debug!("some connections did not close before the timeout");
        }
    }

    async fn close_connections(&self) {
        let closed = self.all_closed.notified();
        tokio::pin!(closed);
        closed.as_mut().enable();
        {
            let open = self.open.lock().expect("no holder panics");
            if open.connections.is_empty() {
                return;
            }
            for OpenConnection { outbox, .. } in &open.connections {
                outbox.close_in_order(close_codes::GOING_AWAY, "server shutting down");
            }
        }
        closed.await;
    }
}
