//! Registry of sessions, and the handle of one session.
//!
//! A session outlives its connection. Its task (`sessions/session_task.rs`) owns the attachment; the session maps
//! process ids to process tasks. The session task publishes the outbox of the attached connection to all process
//! tasks, so a resume redirects all output at once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exec_server_core::attachment::{AttachError, Attachment, ConnectionId, Linger, Load};
use exec_server_os::TreeTag;
use exec_server_protocol::duration::millis;
use exec_server_protocol::process::{ExitReason, ProcessId};
use exec_server_sandbox::SandboxNetwork;
use exec_server_transport::outbox::Outbox;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::auth::Principal;
use crate::errors::RequestError;
use crate::files::TreeWatches;
use crate::process::{ClosedMark, Command, PreparedStart, ProcessHandle, Snapshots, run_process};
use crate::reply::Reply;
use crate::server::Server;
mod session_task;

use session_task::run_session;

/// All sessions of a server, by id.
#[derive(Debug, Default)]
pub struct Sessions {
    by_id: Mutex<HashMap<Arc<str>, Session>>,
    /// Serialises starts with a unique id across sessions.
    unique_ids: Mutex<()>,
}

/// One session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: Arc<str>,
    /// Only this principal may resume the session.
    principal: Principal,
    client: ClientKind,
    client_name: String,
    opened_at: SystemTime,
    linger_ms: AtomicU64,
    commands: mpsc::UnboundedSender<SessionCommand>,
    /// The connection that holds the session; written by the session task.
    connection: AtomicU64,
    /// The outbox that receives events; written by the session task.
    attached: watch::Sender<Option<Outbox>>,
    processes: Mutex<Processes>,
    snapshots: Snapshots,
    watches: Arc<TreeWatches>,
    sandbox_network: SandboxNetwork,
}

/// The kind of a client, derived from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// The reference client, which may subscribe to a process some time after the reply to its start.
    Reference,
    /// Any other client.
    Other,
}

impl ClientKind {
    /// Classifies a client by its name.
    pub fn of(name: &str) -> Self {
        if name.starts_with("codex") { Self::Reference } else { Self::Other }
    }
}

#[derive(Debug, Default)]
struct Processes {
    by_id: HashMap<ProcessId, ProcessHandle>,
    tasks: JoinSet<()>,
    /// Tags of all children started by this session; used to find daemons that outlive their process.
    children: HashSet<u32>,
    is_ended: bool,
}

impl Processes {
    /// Evicts the process that closed first; returns false if no process is closed.
    fn evict_oldest_closed(&mut self) -> bool {
        let closed =
            |(id, handle): (&ProcessId, &ProcessHandle)| Some((handle.closed.at()?, id.clone()));
        let oldest = self.by_id.iter().filter_map(closed).min_by_key(|(at, _)| *at);
        let Some(handle) = oldest.and_then(|(_, id)| self.by_id.remove(&id)) else { return false };
        // A send error means that the process task has already stopped.
        let _ = handle.send(Command::Forget);
        true
    }
}

/// Whether a resume may take the session from a connection that is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Only if the current peer does not answer a probe; for a client that resumes its own session.
    IfSilent,
    /// The same, but a peer that cannot be probed counts as alive; for a client that attaches to another one's session.
    IfProvenSilent,
    /// Always, even if the current peer is responsive.
    Always,
}

/// Parameters of a new session.
#[derive(Debug)]
pub struct NewSession {
    /// The connection that opens the session.
    pub connection: ConnectionId,
    /// The authenticated owner.
    pub principal: Principal,
    /// `clientName` of `initialize`.
    pub client_name: String,
    /// Receives the session's events.
    pub outbox: Outbox,
    /// The requested linger; `None` means the default.
    pub linger: Option<Duration>,
}

/// A connection's request to resume an existing session.
pub struct ResumeRequest {
    /// The connection that resumes.
    pub connection: ConnectionId,
    /// Receives the session's events after the resume.
    pub outbox: Outbox,
    /// Whether an open connection loses the session.
    pub take_over: TakeOver,
    /// The requested linger; `None` keeps the current one.
    pub linger: Option<Duration>,
    /// Builds the `initialize` reply from the granted linger in milliseconds.
    pub build_reply: Box<dyn FnOnce(u64) -> Bytes + Send>,
}

enum SessionCommand {
    Attach {
        request: ResumeRequest,
        answer: oneshot::Sender<Result<(), AttachError>>,
    },
    Detach(ConnectionId),
    SetLinger(Linger),
    /// The last process was removed, which can shorten the linger.
    Emptied,
    End {
        reason: ExitReason,
        grace: Option<Duration>,
        done: oneshot::Sender<()>,
    },
}

impl Sessions {
    /// Opens a session, attaches the connection to it and spawns the session task.
    pub fn open(&self, server: &Arc<Server>, new: NewSession) -> Result<Session, RequestError> {
        let NewSession { connection, principal, client_name, outbox, linger } = new;
        let linger = allowed_linger(server, linger);
        let limit = server.config.limits.sessions;
        let id: Arc<str> = uuid::Uuid::new_v4().to_string().into();
        let (commands, queue) = mpsc::unbounded_channel();
        let session = Session {
            shared: Arc::new(Shared {
                id: id.clone(),
                principal,
                client: ClientKind::of(&client_name),
                client_name,
                opened_at: SystemTime::now(),
                linger_ms: AtomicU64::new(millis(linger.busy)),
                commands,
                connection: AtomicU64::new(connection.0),
                attached: watch::Sender::new(Some(outbox)),
                processes: Mutex::default(),
                snapshots: Snapshots::default(),
                watches: Arc::default(),
                sandbox_network: SandboxNetwork::default(),
            }),
        };
        {
            let mut by_id = self.by_id.lock().expect("no holder panics");
            if by_id.len() >= limit {
                return Err(RequestError::TooManySessions(limit));
            }
            by_id.insert(id, session.clone());
        }
        let attachment = Attachment::new(connection, linger);
        server.spawn(run_session(server.clone(), session.clone(), attachment, queue));
        Ok(session)
    }

    /// Finds a session of this principal.
    pub fn find(&self, id: &str, principal: &Principal) -> Result<Session, RequestError> {
        let by_id = self.by_id.lock().expect("no holder panics");
        by_id
            .get(id)
            .filter(|session| session.shared.principal == *principal)
            .cloned()
            // A session of another principal is reported as unknown, so that ids cannot be probed.
            .ok_or_else(|| RequestError::UnknownSession(id.to_owned()))
    }

    /// All sessions of this principal, oldest first.
    pub fn of(&self, principal: &Principal) -> Vec<Session> {
        let by_id = self.by_id.lock().expect("no holder panics");
        let mut sessions: Vec<Session> = by_id
            .values()
            .filter(|session| session.shared.principal == *principal)
            .cloned()
            .collect();
        sessions.sort_by_key(|session| (session.shared.opened_at, session.shared.id.clone()));
        sessions
    }

    fn lock_unique_ids(&self) -> MutexGuard<'_, ()> {
        self.unique_ids.lock().expect("no holder panics")
    }

    /// Another session of the same principal that has a live process with this id.
    fn other_session_with(&self, id: &str, own: &Session) -> Option<String> {
        let others = self.of(own.principal()).into_iter().filter(|other| other.id() != own.id());
        let has_live = |other: &Session| other.process(id).is_some_and(|it| it.is_live());
        others.into_iter().find(has_live).map(|other| other.id().to_owned())
    }

    /// Ends all sessions and waits for their processes.
    pub async fn end_all(&self, reason: ExitReason, grace: Option<Duration>) {
        let sessions: Vec<Session> =
            self.by_id.lock().expect("no holder panics").values().cloned().collect();
        let ends: Vec<_> =
            sessions.iter().map(|session| session.request_end(reason, grace)).collect();
        for end in ends {
            // A receive error means that the session task has already stopped.
            let _ = end.await;
        }
    }

    fn remove(&self, id: &str) {
        self.by_id.lock().expect("no holder panics").remove(id);
    }
}

impl Session {
    /// The id that a client passes as `resumeSessionId`.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// The kind of the client that opened the session.
    pub fn client(&self) -> ClientKind {
        self.shared.client
    }

    /// `clientName` of the client that opened the session.
    pub fn client_name(&self) -> &str {
        &self.shared.client_name
    }

    /// Wall-clock time of the opening.
    pub fn opened_at(&self) -> SystemTime {
        self.shared.opened_at
    }

    /// The principal that may resume the session.
    pub fn principal(&self) -> &Principal {
        &self.shared.principal
    }

    /// Whether a connection is attached.
    pub fn is_attached(&self) -> bool {
        self.shared.attached.borrow().is_some()
    }

    /// How long the session and its processes stay resumable after a lost connection, in milliseconds.
    pub fn linger_ms(&self) -> u64 {
        self.shared.linger_ms.load(Ordering::Relaxed)
    }

    /// Requests another linger; returns the granted one in milliseconds.
    pub fn set_linger(&self, server: &Server, wanted: Duration) -> u64 {
        let linger = allowed_linger(server, Some(wanted));
        self.shared.linger_ms.store(millis(linger.busy), Ordering::Relaxed);
        // A send error means that the session has already ended.
        let _ = self.shared.commands.send(SessionCommand::SetLinger(linger));
        self.linger_ms()
    }

    /// Attaches a connection if the session is detached, can be taken over, or its current peer is unresponsive.
    ///
    /// The session task, not the connection, queues the `initialize` reply and publishes the outbox: a connection that
    /// has already lost the session again must not overwrite the outbox of its successor.
    pub async fn attach(&self, request: ResumeRequest) -> Result<(), RequestError> {
        let (answer, result) = oneshot::channel();
        let unknown = || RequestError::UnknownSession(self.id().to_owned());
        self.shared
            .commands
            .send(SessionCommand::Attach { request, answer })
            .map_err(|_| unknown())?;
        match result.await.map_err(|_| unknown())? {
            Ok(()) => Ok(()),
            Err(AttachError::Expired) => Err(unknown()),
            Err(AttachError::AttachedTo(_)) => {
                Err(RequestError::SessionAttached(self.id().to_owned()))
            }
        }
    }

    /// Reports that the connection has closed.
    pub fn detach(&self, connection: ConnectionId) {
        // A send error means that the session has already ended.
        let _ = self.shared.commands.send(SessionCommand::Detach(connection));
    }

    /// Fails if another connection has taken the session over.
    pub fn check_holder(&self, connection: ConnectionId) -> Result<(), RequestError> {
        let holder = self.shared.connection.load(Ordering::Acquire);
        if holder == connection.0 { Ok(()) } else { Err(RequestError::SessionMoved) }
    }

    /// The watches of the session.
    pub fn watches(&self) -> &Arc<TreeWatches> {
        &self.shared.watches
    }

    /// Follows the outbox of the attached connection; `None` while detached.
    pub fn attached(&self) -> watch::Receiver<Option<Outbox>> {
        self.shared.attached.subscribe()
    }

    /// Starts a process; a repeated request on a resumed session gets the reply of the first one.
    pub fn start_process(
        &self,
        server: &Arc<Server>,
        connection: ConnectionId,
        mut start: PreparedStart,
        reply: Reply,
    ) {
        let id = start.id().clone();
        // Held until the id is registered, so that only one of two concurrent starts succeeds.
        let _unique_ids = start.is_unique().then(|| server.sessions.lock_unique_ids());
        let holder =
            start.is_unique().then(|| server.sessions.other_session_with(&id, self)).flatten();
        let mut processes = self.shared.processes.lock().expect("no holder panics");
        if let Some(existing) = processes.by_id.get(&id) {
            let is_retry = existing.digest == start.digest && existing.started_by != connection;
            if !is_retry {
                return reply.fail(&RequestError::DuplicateProcess(id.to_string()));
            }
            if let Err(command) = existing.send(Command::StartAgain(reply)) {
                crate::dispatch::answer_unknown(&id, command);
            }
            return;
        }
        if let Some(session_id) = holder {
            return reply.fail(&RequestError::NameInUse { id: id.to_string(), session_id });
        }
        let limit = server.config.limits.processes;
        if processes.is_ended {
            return reply.fail(&RequestError::UnknownSession(self.id().to_owned()));
        }
        if processes.by_id.len() >= limit && !processes.evict_oldest_closed() {
            return reply.fail(&RequestError::TooManyProcesses(limit));
        }
        let (handle, queue) = ProcessHandle::new(&start, connection);
        start.exit_note = handle.exit_note();
        let child = server.next_child();
        let queue = (handle.closed.clone(), queue);
        processes.by_id.insert(id, handle);
        processes.children.insert(child);
        while processes.tasks.try_join_next().is_some() {}
        let tag = TreeTag::new(child);
        processes.tasks.spawn(run_process(server.clone(), self.clone(), start, tag, queue, reply));
    }

    /// Allocates the tag of a helper child, so that the end of the session also ends the child.
    pub fn tag_child(&self, server: &Server) -> TreeTag {
        let child = server.next_child();
        self.shared.processes.lock().expect("no holder panics").children.insert(child);
        TreeTag::new(child)
    }

    /// The session's cache of login shell snapshots.
    pub fn snapshots(&self) -> &Snapshots {
        &self.shared.snapshots
    }

    /// The isolated network shared by the sandboxes of this session only.
    pub fn sandbox_network(&self) -> SandboxNetwork {
        self.shared.sandbox_network.clone()
    }

    /// The handle of a process.
    pub fn process(&self, id: &str) -> Option<ProcessHandle> {
        self.shared.processes.lock().expect("no holder panics").by_id.get(id).cloned()
    }

    /// The handles of all processes.
    pub fn processes(&self) -> Vec<ProcessHandle> {
        self.shared.processes.lock().expect("no holder panics").by_id.values().cloned().collect()
    }

    /// Removes a process, so that its id can be used again.
    pub fn forget_process(&self, id: &str, closed: &ClosedMark) {
        let mut processes = self.shared.processes.lock().expect("no holder panics");
        if processes.by_id.get(id).is_some_and(|handle| handle.closed.is(closed)) {
            processes.by_id.remove(id);
        }
        if processes.by_id.is_empty() {
            // A send error means that the session has already ended.
            let _ = self.shared.commands.send(SessionCommand::Emptied);
        }
    }

    fn load(&self) -> Load {
        let processes = self.shared.processes.lock().expect("no holder panics");
        if processes.by_id.is_empty() { Load::Empty } else { Load::Busy }
    }

    fn request_end(&self, reason: ExitReason, grace: Option<Duration>) -> oneshot::Receiver<()> {
        let (done, end) = oneshot::channel();
        let _ = self.shared.commands.send(SessionCommand::End { reason, grace, done });
        end
    }
}

/// Caps the requested linger; a session without processes never lingers longer than the default.
fn allowed_linger(server: &Server, wanted: Option<Duration>) -> Linger {
    let usual = server.config.timings.session_linger;
    let longest = server.config.timings.max_session_linger.max(usual);
    let busy = wanted.map_or(usual, |wanted| wanted.min(longest));
    Linger { busy, empty: busy.min(usual) }
}
