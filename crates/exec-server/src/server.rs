//! What all connections of a server share, and how it ends.

use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{io, time::Duration};

use exec_server_machines::attachment::ConnectionId;
use exec_server_os::limits::{self, LimitPlan};
use exec_server_os::{CgroupParent, OomCounter, Spawner};
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::process::ExitReason;
use exec_server_transport::outbox::Outbox;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::close_codes;
use crate::config::ServerConfig;
use crate::environment;
use crate::http::HttpSetup;
use crate::metrics::Metrics;
use crate::sandbox::{SandboxSettings, Sandboxes};
use crate::sessions::Sessions;
use crate::shards::Shards;

/// What all connections of a server share.
#[derive(Debug)]
pub struct Server {
    /// What it was told.
    pub config: ServerConfig,
    /// What the machine is like.
    pub environment: EnvironmentInfo,
    /// What it counts.
    pub metrics: Metrics,
    pub(crate) sessions: Sessions,
    pub(crate) spawner: Spawner,
    pub(crate) shards: Shards,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) oom: OomCounter,
    /// What limits a process that asks for nothing.
    pub(crate) least_limits: LimitPlan,
    pub(crate) http: HttpSetup,
    next_connection: AtomicU64,
    next_child: AtomicU32,
    open: Mutex<Open>,
    all_closed: Notify,
}

#[derive(Debug, Default)]
struct Open {
    /// Sessions, connections, and requests that take a while.
    tasks: JoinSet<()>,
    connections: Vec<(ConnectionId, Outbox)>,
    is_draining: bool,
}

/// Why a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// There are as many as there may be.
    #[error("this server already has its maximum of {0} connections; see --max-connections")]
    Full(usize),
    /// The server is going away.
    #[error("the server is shutting down")]
    Draining,
}

impl Server {
    /// Sets up everything but the listener; must be called on an event loop.
    pub fn new(config: ServerConfig) -> io::Result<Arc<Self>> {
        let cgroup = match &config.cgroup {
            Some(path) => Some(CgroupParent::open(path)?),
            None => CgroupParent::delegated(),
        };
        if let Some(program) = config.runtime_paths.program() {
            exec_server_os::use_zygote_program(program)?;
        }
        let mechanism = config.sandbox_fallback.choose();
        let spawner = Spawner::new(cgroup)?.with_set_up_time(config.timings.sandbox_set_up);
        // What the operator relies on must hold for every process, or for none.
        let planned = limits::plan(&config.process_limits, &spawner.limit_means(None));
        let (least_limits, _) =
            planned.map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))?;
        let shards = Shards::new(config.more_event_loops)?;
        let allow = config.sandbox_allow;
        let sandboxes = Sandboxes::new(SandboxSettings {
            native_paths: config.native_paths,
            mechanism,
            allow,
            state_dir: config.state_dir.as_deref(),
            own_socket: config.listen.socket_path(),
        });
        sandboxes.sweep_later();
        Ok(Arc::new(Self {
            environment: environment::info(mechanism, allow),
            metrics: Metrics::default(),
            sessions: Sessions::default(),
            spawner,
            least_limits,
            shards,
            sandboxes,
            oom: OomCounter::default(),
            http: HttpSetup::new(config.http.clone()),
            next_connection: AtomicU64::new(1),
            next_child: AtomicU32::new(1),
            open: Mutex::default(),
            all_closed: Notify::new(),
            config,
        }))
    }

    /// Runs a task that belongs to the server as a whole, on this event loop.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(&Handle::current(), task);
    }

    /// Runs a task that belongs to the server as a whole.
    pub(crate) fn spawn_on(
        &self,
        event_loop: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut open = self.open.lock().expect("no holder panics");
        while open.tasks.try_join_next().is_some() {}
        open.tasks.spawn_on(task, event_loop);
    }

    /// Counts a connection in; [`Server::leave`] counts it out.
    pub(crate) fn enter(&self, outbox: &Outbox) -> Result<ConnectionId, NotTaken> {
        let limit = self.config.limits.connections;
        let mut open = self.open.lock().expect("no holder panics");
        if open.is_draining {
            return Err(NotTaken::Draining);
        }
        if open.connections.len() >= limit {
            return Err(NotTaken::Full(limit));
        }
        let id = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        open.connections.push((id, outbox.clone()));
        Ok(id)
    }

    /// Whether another connection would be taken now.
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
        open.connections.retain(|(id, _)| *id != connection);
        if open.connections.is_empty() {
            self.all_closed.notify_waiters();
        }
    }

    pub(crate) fn next_child(&self) -> u32 {
        self.next_child.fetch_add(1, Ordering::Relaxed)
    }

    /// Ends every process tree and says goodbye to every client, within the time that `Timings::shutdown` gives.
    pub async fn shut_down(&self) {
        self.open.lock().expect("no holder panics").is_draining = true;
        let whole = self.config.timings.shutdown;
        let goodbye = async {
            let grace = self.config.timings.kill_grace.min(whole / 2);
            self.sessions.end_all(ExitReason::ServerShutdown, Some(grace)).await;
        };
        if tokio::time::timeout(whole, goodbye).await.is_err() {
            tracing::warn!("some processes did not end in time");
        }
        // Clients first get what their processes said last, then the close.
        let farewell = self.close_connections();
        if tokio::time::timeout(Duration::from_millis(200), farewell).await.is_err() {
            tracing::debug!("some clients did not take their goodbye in time");
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
            for (_, outbox) in &open.connections {
                outbox.close_in_order(close_codes::GOING_AWAY, "server shutting down");
            }
        }
        closed.await;
    }
}
