//! The sandboxed workers of one connection: one per policy and class of request, kept until they are idle too long.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exec_server_os::ExitWatch;
use exec_server_os::accounts::Credentials;
use exec_server_sandbox::plan::{
    Class, Confinement, FilesPolicy, PathFingerprints, Placeholder, RetryBudget,
};
use exec_server_sandbox::policy::PolicyDigest;
use exec_server_sandbox::{FileWorker, SandboxNetwork};
use tokio::sync::OnceCell;

use crate::errors::RequestError;
use crate::sandbox::in_time;
use crate::server::Server;
use crate::sessions::Session;

/// The workers of one connection.
#[derive(Debug, Default)]
pub struct Workers {
    workers: Mutex<HashMap<Key, Entry>>,
}

/// What limits a worker.
#[derive(Debug, Clone)]
pub struct WorkerLimits {
    pub policy: Option<Arc<FilesPolicy>>,
    /// The user of the worker, if it is another one than that of the server.
    pub user: Option<Credentials>,
}

/// What a worker was confined to; a worker with another key must not be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    policy: Option<PolicyDigest>,
    user: Option<Credentials>,
    class: Class,
    ground: PathFingerprints,
}

#[derive(Debug)]
struct Entry {
    worker: Arc<OnceCell<Warm>>,
    used: Instant,
}

/// A worker that is ready, with what its view of the machine needs.
#[derive(Debug)]
pub struct Warm {
    worker: Arc<FileWorker>,
    _placeholders: Vec<Placeholder>,
}

impl Warm {
    /// The worker.
    pub fn worker(&self) -> &Arc<FileWorker> {
        &self.worker
    }
}

/// Enough, because a client uses few policies at a time.
const MAX_WORKERS: usize = 16;
/// Workers without a request for this long are dropped at the next request.
const IDLE: Duration = Duration::from_secs(60);

impl Workers {
    /// Returns the worker for these limits and class; starts one if there is none.
    pub async fn get(
        &self,
        server: &Arc<Server>,
        session: &Session,
        limits: WorkerLimits,
        class: Class,
    ) -> Result<Arc<FileWorker>, RequestError> {
        let ground = match &limits.policy {
            Some(policy) => ground(server, policy).await?,
            None => PathFingerprints::default(),
        };
        let policy = limits.policy.as_ref().map(|policy| policy.digest().clone());
        let key = Key { policy, user: limits.user.clone(), class, ground };
        let cell = self.reserve(key);
        let warm = cell.get_or_try_init(|| start(server, session, &limits, class)).await?;
        Ok(warm.worker.clone())
    }

    fn reserve(&self, key: Key) -> Arc<OnceCell<Warm>> {
        let now = Instant::now();
        let mut workers = self.workers.lock().expect("no holder panics");
        workers.retain(|_, entry| {
            let is_worn = entry.worker.get().is_some_and(|warm| warm.worker.is_worn());
            !is_worn && now.duration_since(entry.used) < IDLE
        });
        if workers.len() >= MAX_WORKERS && !workers.contains_key(&key) {
            let oldest = workers.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                workers.remove(&oldest);
            }
        }
        let entry =
            workers.entry(key).or_insert_with(|| Entry { worker: Arc::default(), used: now });
        entry.used = now;
        entry.worker.clone()
    }
}

async fn ground(
    server: &Arc<Server>,
    policy: &Arc<FilesPolicy>,
) -> Result<PathFingerprints, RequestError> {
    if let Some(ground) = server.sandboxes.ground_from_cache(policy) {
        return Ok(ground);
    }
    let (looker, policy) = (server.clone(), policy.clone());
    let time = server.config.timings.sandbox_set_up;
    in_time(time, move || Ok::<_, RequestError>(looker.sandboxes.ground(&policy))).await
}

/// Starts a worker for these limits and class.
pub async fn start(
    server: &Arc<Server>,
    session: &Session,
    limits: &WorkerLimits,
    class: Class,
) -> Result<Warm, RequestError> {
    let WorkerLimits { policy, user } = limits;
    let tag = session.tag_child(server);
    let (worker, exit, placeholders) = match policy {
        Some(policy) => confined(server, session, policy, user, class).await?,
        None => {
            let (worker, exit) =
                server.sandbox_spawner.spawn_user_worker(user.clone(), tag).await?;
            (worker, exit, Vec::new())
        }
    };
    server.spawn(async move {
        // The exit status is not needed, but polling reaps the child.
        let _ = poll_fn(|cx| exit.poll_exit(cx)).await;
    });
    Ok(Warm { worker: Arc::new(worker), _placeholders: placeholders })
}

async fn confined(
    server: &Arc<Server>,
    session: &Session,
    policy: &Arc<FilesPolicy>,
    user: &Option<Credentials>,
    class: Class,
) -> Result<(FileWorker, ExitWatch, Vec<Placeholder>), RequestError> {
    // A network belongs to the user that has made it.
    let network = match user {
        None => session.sandbox_network(),
        Some(_) => SandboxNetwork::default(),
    };
    let mut retries = RetryBudget::default();
    loop {
        let (planner, policy) = (server.clone(), policy.clone());
        let time = server.config.timings.sandbox_set_up;
        let confined =
            in_time(time, move || planner.sandboxes.confine_worker(policy.policy(), class));
        let Confinement { setup, placeholders, .. } = confined.await?;
        let tag = session.tag_child(server);
        let starting =
            server.sandbox_spawner.spawn_worker(setup, network.clone(), user.clone(), tag);
        match starting.await {
            Ok((worker, exit)) => return Ok((worker, exit, placeholders)),
            Err(error) if retries.allows_another_try(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
