//! Sessions: what outlives a connection, and who may come back to it.
//!
//! A session has one task that owns its attachment, and a map from process ids to the tasks that own processes. The
//! attached connection's outbox is published to all of them, so a resume moves every process's output at once.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use exec_server_machines::attachment::{AttachError, Attachment, ConnectionId, Linger, Load};
use exec_server_os::{SandboxNetwork, TreeTag};
use exec_server_protocol::process::{ExitReason, ProcessId};
use exec_server_transport::outbox::Outbox;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::auth::Principal;
use crate::close_codes;
use crate::errors::RequestError;
use crate::processes::{Command, PreparedStart, ProcessHandle, Snapshots, run_process};
use crate::reply::Reply;
use crate::server::Server;
use crate::timings::sleep_until;

/// All sessions of a server, by id.
#[derive(Debug, Default)]
pub struct Sessions {
    by_id: Mutex<HashMap<Arc<str>, Session>>,
}

/// One session; cheap to clone.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: Arc<str>,
    /// Only whoever opened the session may come back to it.
    principal: Principal,
    client: ClientKind,
    client_name: String,
    opened_at: SystemTime,
    /// How long processes wait for their client, in milliseconds.
    linger_ms: AtomicU64,
    commands: mpsc::UnboundedSender<SessionCommand>,
    /// The connection that may use the session now.
    connection: AtomicU64,
    attached: watch::Sender<Option<Outbox>>,
    processes: Mutex<Processes>,
    snapshots: Snapshots,
    sandbox_network: SandboxNetwork,
}

/// What is known about a client from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// The reference client, which may begin to listen to a process only a while after its start was answered.
    Reference,
    /// Any other.
    Other,
}

impl ClientKind {
    /// The kind that a client's name stands for.
    pub fn of(name: &str) -> Self {
        if name.starts_with("codex") { Self::Reference } else { Self::Other }
    }
}

#[derive(Debug, Default)]
struct Processes {
    by_id: HashMap<ProcessId, ProcessHandle>,
    tasks: JoinSet<()>,
    /// The numbers of all children ever started here, to find what they left behind.
    children: HashSet<u32>,
    is_ended: bool,
}

/// Whether a session can be had from a connection that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Only if its peer gives no sign of life.
    IfSilent,
    /// In any case.
    Always,
}

/// What is known about whoever opens a session.
#[derive(Debug)]
pub struct Opener {
    /// Its connection.
    pub connection: ConnectionId,
    /// Who it is.
    pub principal: Principal,
    /// What it calls itself.
    pub client_name: String,
    /// Where its events go.
    pub outbox: Outbox,
    /// How long it wants its processes to wait for it.
    pub linger: Option<Duration>,
}

enum SessionCommand {
    Attach {
        connection: ConnectionId,
        outbox: Outbox,
        take_over: TakeOver,
        answer: oneshot::Sender<Result<(), AttachError>>,
    },
    Detach(ConnectionId),
    SetLinger(Linger),
    /// The last process was forgotten.
    Emptied,
    End {
        reason: ExitReason,
        grace: Option<Duration>,
        done: oneshot::Sender<()>,
    },
}

impl Sessions {
    /// Opens a session that `connection` is attached to.
    pub fn open(&self, server: &Arc<Server>, opener: Opener) -> Result<Session, RequestError> {
        let Opener { connection, principal, client_name, outbox, linger } = opener;
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

    /// The session of this id, if this client may have it.
    pub fn find(&self, id: &str, principal: &Principal) -> Result<Session, RequestError> {
        let by_id = self.by_id.lock().expect("no holder panics");
        by_id
            .get(id)
            .filter(|session| session.shared.principal == *principal)
            .cloned()
            // A session of somebody else looks like none at all, so that ids cannot be probed.
            .ok_or_else(|| RequestError::UnknownSession(id.to_owned()))
    }

    /// Every session that this client may have, oldest first.
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

    /// Ends every session with its processes.
    pub async fn end_all(&self, reason: ExitReason, grace: Option<Duration>) {
        let sessions: Vec<Session> =
            self.by_id.lock().expect("no holder panics").values().cloned().collect();
        let ends: Vec<_> =
            sessions.iter().map(|session| session.request_end(reason, grace)).collect();
        for end in ends {
            // A session that is already gone needs no answer.
            let _ = end.await;
        }
    }

    fn remove(&self, id: &str) {
        self.by_id.lock().expect("no holder panics").remove(id);
    }
}

impl Session {
    /// The id that a client comes back with.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Who opened the session.
    pub fn client(&self) -> ClientKind {
        self.shared.client
    }

    /// What the client that opened it calls itself.
    pub fn client_name(&self) -> &str {
        &self.shared.client_name
    }

    /// When it was opened.
    pub fn opened_at(&self) -> SystemTime {
        self.shared.opened_at
    }

    /// Who may come back to it.
    pub fn principal(&self) -> &Principal {
        &self.shared.principal
    }

    /// Whether a connection holds it.
    pub fn is_attached(&self) -> bool {
        self.shared.attached.borrow().is_some()
    }

    /// How long its processes wait for their client after a lost connection, in milliseconds.
    pub fn linger_ms(&self) -> u64 {
        self.shared.linger_ms.load(Ordering::Relaxed)
    }

    /// Asks for another linger; says in milliseconds what was given.
    pub fn set_linger(&self, server: &Server, wanted: Duration) -> u64 {
        let linger = allowed_linger(server, Some(wanted));
        self.shared.linger_ms.store(millis(linger.busy), Ordering::Relaxed);
        // A session that is already gone needs no linger.
        let _ = self.shared.commands.send(SessionCommand::SetLinger(linger));
        self.linger_ms()
    }

    /// Attaches a connection, if the session is free, can be taken over, or its connection gives no sign of life.
    pub async fn attach(
        &self,
        connection: ConnectionId,
        outbox: Outbox,
        take_over: TakeOver,
    ) -> Result<(), RequestError> {
        let (answer, result) = oneshot::channel();
        let unknown = || RequestError::UnknownSession(self.id().to_owned());
        self.shared
            .commands
            .send(SessionCommand::Attach { connection, outbox, take_over, answer })
            .map_err(|_| unknown())?;
        match result.await.map_err(|_| unknown())? {
            Ok(()) => Ok(()),
            Err(AttachError::Expired) => Err(unknown()),
            Err(AttachError::AttachedTo(_)) => {
                Err(RequestError::SessionAttached(self.id().to_owned()))
            }
        }
    }

    /// From now on events go to the attached connection; called once its `initialize` was answered.
    pub fn publish(&self, outbox: Outbox) {
        self.shared.attached.send_replace(Some(outbox));
    }

    /// The connection is gone.
    pub fn detach(&self, connection: ConnectionId) {
        // A session that is already gone needs no word of it.
        let _ = self.shared.commands.send(SessionCommand::Detach(connection));
    }

    /// Whether this connection may still use the session.
    pub fn check_holder(&self, connection: ConnectionId) -> Result<(), RequestError> {
        let holder = self.shared.connection.load(Ordering::Acquire);
        if holder == connection.0 { Ok(()) } else { Err(RequestError::SessionMoved) }
    }

    /// The outbox of the attached connection, now and later.
    pub fn attached(&self) -> watch::Receiver<Option<Outbox>> {
        self.shared.attached.subscribe()
    }

    /// Starts a process, or answers with the one that the same request already started.
    pub fn start_process(
        &self,
        server: &Arc<Server>,
        connection: ConnectionId,
        start: PreparedStart,
        reply: Reply,
    ) {
        let id = start.id().clone();
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
        let limit = server.config.limits.processes;
        if processes.is_ended {
            return reply.fail(&RequestError::UnknownSession(self.id().to_owned()));
        }
        if processes.by_id.len() >= limit {
            return reply.fail(&RequestError::TooManyProcesses(limit));
        }
        let (handle, queue) = ProcessHandle::new(start.digest, connection);
        let child = server.next_child();
        processes.by_id.insert(id, handle);
        processes.children.insert(child);
        while processes.tasks.try_join_next().is_some() {}
        let tag = TreeTag::new(child);
        processes.tasks.spawn(run_process(server.clone(), self.clone(), start, tag, queue, reply));
    }

    /// A tag for one more child of this session.
    pub fn tag_child(&self, server: &Server) -> TreeTag {
        let child = server.next_child();
        self.shared.processes.lock().expect("no holder panics").children.insert(child);
        TreeTag::new(child)
    }

    /// The remembered profiles of login shells.
    pub fn snapshots(&self) -> &Snapshots {
        &self.shared.snapshots
    }

    /// What the sandboxes of this session have instead of a network, and no other session's.
    pub fn sandbox_network(&self) -> SandboxNetwork {
        self.shared.sandbox_network.clone()
    }

    /// The owner of a process.
    pub fn process(&self, id: &str) -> Option<ProcessHandle> {
        self.shared.processes.lock().expect("no holder panics").by_id.get(id).cloned()
    }

    /// The owners of all processes.
    pub fn processes(&self) -> Vec<ProcessHandle> {
        self.shared.processes.lock().expect("no holder panics").by_id.values().cloned().collect()
    }

    /// The id is free again.
    pub fn forget_process(&self, id: &str) {
        let mut processes = self.shared.processes.lock().expect("no holder panics");
        processes.by_id.remove(id);
        if processes.by_id.is_empty() {
            // A session that is already gone needs no word of it.
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

/// What a client gets of the linger that it wants; without processes there is no reason to wait for longer than usual.
fn allowed_linger(server: &Server, wanted: Option<Duration>) -> Linger {
    let usual = server.config.timings.session_linger;
    let longest = server.config.timings.max_session_linger.max(usual);
    let busy = wanted.map_or(usual, |wanted| wanted.min(longest));
    Linger { busy, empty: busy.min(usual) }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Owns the attachment of one session until it expires; then its processes end with it.
async fn run_session(
    server: Arc<Server>,
    session: Session,
    mut attachment: Attachment,
    mut commands: mpsc::UnboundedReceiver<SessionCommand>,
) {
    let _active = server.metrics.session();
    tracing::debug!(session_id = session.id(), "session opened");
    let mut ended = None;
    // Not what is published: that is empty from an attach until its `initialize` was answered.
    let mut holder = session.shared.attached.borrow().clone();
    loop {
        let load = session.load();
        if attachment.handle_timeout(Instant::now(), load) {
            break;
        }
        let deadline = attachment.poll_timeout(load);
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(SessionCommand::Attach { connection, outbox, take_over, answer }) => {
                    let claim = Claim { connection, outbox: &outbox, take_over };
                    let result = attach(&server, &session, &mut attachment, holder.as_ref(), claim).await;
                    if result.is_ok() {
                        holder = Some(outbox);
                    }
                    // The connection may have gone while it waited.
                    if answer.send(result).is_err() && result.is_ok() {
                        detach(&session, &mut attachment, connection);
                    }
                }
                Some(SessionCommand::Detach(connection)) => detach(&session, &mut attachment, connection),
                Some(SessionCommand::SetLinger(linger)) => attachment.set_linger(linger),
                Some(SessionCommand::Emptied) => {}
                Some(SessionCommand::End { reason, grace, done }) => {
                    ended = Some((reason, grace, done));
                    break;
                }
                None => break,
            },
            () = sleep_until(deadline), if deadline.is_some() => {}
        }
    }
    let (reason, grace, done) = match ended {
        Some((reason, grace, done)) => (reason, grace, Some(done)),
        None => (ExitReason::Terminated, None, None),
    };
    server.sessions.remove(session.id());
    commands.close();
    end_processes(&session, reason, grace).await;
    tracing::debug!(session_id = session.id(), ?reason, "session ended");
    if let Some(done) = done {
        let _ = done.send(());
    }
}

/// Who wants a session, and how much.
struct Claim<'a> {
    connection: ConnectionId,
    outbox: &'a Outbox,
    take_over: TakeOver,
}

async fn attach(
    server: &Server,
    session: &Session,
    attachment: &mut Attachment,
    held_by: Option<&Outbox>,
    claim: Claim<'_>,
) -> Result<(), AttachError> {
    let Claim { connection, outbox, take_over } = claim;
    let mut result = attachment.handle_attach(Instant::now(), session.load(), connection);
    if let Err(AttachError::AttachedTo(holder)) = result {
        let may_stay = match held_by {
            Some(outbox) if take_over == TakeOver::IfSilent => {
                outbox.probe(server.config.timings.take_over_probe).await
            }
            _ => false,
        };
        if !may_stay {
            tracing::info!(session_id = session.id(), ?take_over, "session taken over");
            detach(session, attachment, holder);
            if let Some(outbox) = held_by {
                outbox.close(close_codes::SESSION_MOVED, "session resumed by another connection");
            }
            result = attachment.handle_attach(Instant::now(), session.load(), connection);
        }
    }
    if result.is_ok() && !outbox.is_closed() {
        session.shared.connection.store(connection.0, Ordering::Release);
    }
    result
}

fn detach(session: &Session, attachment: &mut Attachment, connection: ConnectionId) {
    if attachment.handle_detach(Instant::now(), connection) {
        session.shared.attached.send_replace(None);
        tracing::debug!(
            session_id = session.id(),
            connection_id = connection.0,
            "session detached"
        );
    }
}

async fn end_processes(session: &Session, reason: ExitReason, grace: Option<Duration>) {
    let (mut tasks, children) = {
        let mut processes = session.shared.processes.lock().expect("no holder panics");
        processes.is_ended = true;
        for handle in processes.by_id.values() {
            // A process that is already gone needs no end.
            let _ = handle.send(Command::End { reason, grace });
        }
        (std::mem::take(&mut processes.tasks), std::mem::take(&mut processes.children))
    };
    while tasks.join_next().await.is_some() {}
    // Daemons that outlived their process still belong to the session.
    while exec_server_os::end_all_trees(|tag| children.contains(&tag.child())) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
