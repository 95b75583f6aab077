//! One live link to a server: calls out, answers and events in, and no attempt to bring it back.
//!
//! Owner: its task, [`run_connection`], which alone reads from the link and hands on what comes. Callers enter their
//! calls in [`Routes`] and leave the request in the outbox, so that a call costs no hop but the one to the socket.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_machines::calls::CallKind;
use exec_server_protocol::answers::InitializeAnswer;
use exec_server_protocol::environment::{Capabilities, EnvironmentInfo};
use exec_server_protocol::initialize::InitializeParams;
use exec_server_protocol::methods::{INITIALIZED, Method};
use exec_server_protocol::process::{ProcessStartParams, ProcessTerminateParams};
use exec_server_protocol::{envelope, process::ProcessId};
use exec_server_transport::connection::{Connection, Wire};
use exec_server_transport::outbox::Outbox;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::call::{PendingCall, Reply};
use crate::caller::Caller;
use crate::dial::Dial;
use crate::error::ExecServerError;
use crate::files::ExecutorFileSystem;
use crate::http::HttpClient;
use crate::inbound::run_connection;
use crate::options::{ExecServerClientConnectOptions, RemoteExecServerConnectArgs};
use crate::process::ProcessSession;
use crate::process_state::Process;
use crate::routes::Routes;

/// Output that a paced reader has not taken; with what the link brings in one turn it stays below what a process keeps.
const MAX_UNREAD_BYTES: usize = 2 * 1024 * 1024;

/// A server that does not put its machine's facts into the handshake is asked for them; some take their time.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);

/// One live link to a server; cheap to clone.
///
/// It has its own routes for events and HTTP bodies, and ends for good when the link breaks: every call that waits then
/// fails, and so does every process that was started on it. [`ExecServerClient`](crate::ExecServerClient) recovers.
#[derive(Clone)]
pub struct ExecServerConnection {
    handle: Arc<Handle>,
}

/// What the handles of a connection share; the link is closed with the last of them.
struct Handle {
    shared: Arc<Shared>,
    session_id: String,
    info: Option<EnvironmentInfo>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Processes that another connection goes on with must not hear of the end of this one.
        self.shared.routes().forget_processes();
        // What was said before is still sent: it may be the end of a process that nobody wants any more.
        self.shared.outbox.close_in_order(1000, "");
    }
}

/// What callers and the connection's task share.
pub(crate) struct Shared {
    pub outbox: Outbox,
    routes: Mutex<Routes>,
    /// Why it ended, once it has.
    end: watch::Sender<Option<Arc<str>>>,
    pub survival: Survival,
}

/// What becomes of processes when the link breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survival {
    /// Another connection will go on with them.
    Resync,
    /// Nobody will.
    Fail,
}

impl ExecServerConnection {
    /// Connects and opens a session.
    pub async fn connect(
        args: impl Into<RemoteExecServerConnectArgs>,
    ) -> Result<Self, ExecServerError> {
        let (dial, options) = args.into().into_parts()?;
        Self::dial(&*dial, &options).await
    }

    /// Opens a session on a link of any kind.
    pub async fn dial(
        dial: &dyn Dial,
        options: &ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let wire = dial.dial().await?;
        let resume = options.resume_session_id.clone();
        Self::open(wire, options, resume, &[], Survival::Fail).await
    }

    /// Opens or resumes a session; events of `processes` may come before the answer.
    pub(crate) async fn open(
        wire: Box<dyn Wire>,
        options: &ExecServerClientConnectOptions,
        resume: Option<String>,
        processes: &[Arc<Process>],
        survival: Survival,
    ) -> Result<Self, ExecServerError> {
        let mut link = Connection::new(wire, options.pings());
        link.set_held_limit(MAX_UNREAD_BYTES);
        let shared = Arc::new(Shared {
            outbox: link.outbox().clone(),
            routes: Mutex::default(),
            end: watch::Sender::new(None),
            survival,
        });
        for process in processes {
            shared.routes().add_process(process);
        }
        // The task ends with the link, and the link with the last handle, or here if there will be none.
        tokio::spawn(run_connection(link, shared.clone()));
        let mut handle = Handle { shared, session_id: String::new(), info: None };
        let answer = handle.shared.initialize(options, resume).await?;
        handle
            .shared
            .outbox
            .push_reply(envelope::notification(INITIALIZED, &serde_json::json!({})));
        handle.session_id = answer.session_id;
        handle.info = match answer.environment_info {
            Some(info) => Some(info),
            None => handle.shared.ask_for_info().await?,
        };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// The session that this connection is attached to.
    pub fn session_id(&self) -> &str {
        &self.handle.session_id
    }

    /// What the server said about its machine; none if it does not know.
    pub fn environment_info(&self) -> Option<&EnvironmentInfo> {
        self.handle.info.as_ref()
    }

    /// What the server can do beyond the least.
    pub fn capabilities(&self) -> Capabilities {
        self.handle.info.as_ref().map(|info| info.capabilities).unwrap_or_default()
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        self.handle.shared.routes().has_ended()
    }

    /// Waits for the end of the link, and says how it came.
    pub async fn closed(&self) -> Arc<str> {
        self.handle.shared.closed().await
    }

    /// Ends the link after what was asked before has been sent; the session lingers on the server.
    pub fn close(&self) {
        self.handle.shared.outbox.close_in_order(1000, "");
    }

    /// Starts a process that is followed as long as this connection lives.
    pub async fn start(
        &self,
        params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        let session = Caller::Connection(self.clone()).start(params).await?;
        session.process().unpin();
        Ok(session)
    }

    /// The server's files.
    pub fn fs(&self) -> ExecutorFileSystem {
        ExecutorFileSystem::new(Caller::Connection(self.clone()))
    }

    /// HTTP from where the server stands.
    pub fn http(&self) -> HttpClient {
        HttpClient::new(Caller::Connection(self.clone()))
    }

    /// Makes any call, once.
    pub async fn call<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &P,
    ) -> Result<R, ExecServerError> {
        self.request(method, params)?.await?.decode()
    }

    /// Sends a request, and returns what its answer will come out of.
    pub(crate) fn request(
        &self,
        method: &'static str,
        params: &impl Serialize,
    ) -> Result<PendingCall, ExecServerError> {
        self.handle.shared.request(method, params)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl std::fmt::Debug for ExecServerConnection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter
            .debug_struct("ExecServerConnection")
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().expect("no holder panics")
    }

    /// Sends a request, and returns what its answer will come out of.
    pub fn request(
        self: &Arc<Self>,
        method: &'static str,
        params: &impl Serialize,
    ) -> Result<PendingCall, ExecServerError> {
        let (id, answer) = self.routes().begin_call(CallKind::Ordinary)?;
        let pending = PendingCall::new(self.clone(), method, id, answer);
        self.push_request(id, method, params);
        Ok(pending)
    }

    /// Sends a request whose answer nobody waits for, even when too many wait for theirs.
    pub fn clean_up(&self, method: &'static str, params: &impl Serialize) {
        match self.routes().begin_call(CallKind::Cleanup) {
            Ok((id, _)) => self.push_request(id, method, params),
            Err(ExecServerError::TooManyCalls { .. }) => {
                // What cannot be freed by itself is freed with the connection.
                self.outbox.close(1011, "too many requests wait for an answer");
            }
            Err(_) => {}
        }
    }

    /// Ends a process that nobody follows.
    pub fn clean_up_process(&self, process_id: &ProcessId) {
        let params = ProcessTerminateParams {
            process_id: process_id.clone(),
            grace_ms: None,
            session_id: None,
        };
        self.clean_up(Method::ProcessTerminate.name(), &params);
    }

    pub async fn closed(&self) -> Arc<str> {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        ended.ok().and_then(|end| end.clone()).unwrap_or_else(|| "closed".into())
    }

    /// The link is gone: everybody who waits is told.
    pub fn handle_end(&self, reason: Arc<str>) {
        let waiting = self.routes().end(&reason);
        waiting.release(&reason, self.survival);
        self.end.send_replace(Some(reason));
    }

    fn push_request(&self, id: i64, method: &str, params: &impl Serialize) {
        let id = envelope::RequestId::Integer(id);
        self.outbox.push_reply(envelope::request(&id, method, params));
    }

    async fn initialize(
        self: &Arc<Self>,
        options: &ExecServerClientConnectOptions,
        resume: Option<String>,
    ) -> Result<InitializeAnswer, ExecServerError> {
        let params = InitializeParams {
            client_name: options.client_name.clone(),
            resume_session_id: resume.clone(),
            linger_ms: None,
            take_over: options.take_over,
        };
        let pending = self.request(Method::Initialize.name(), &params)?;
        let timeout = options.initialize_timeout;
        let answer: InitializeAnswer = match tokio::time::timeout(timeout, pending).await {
            Ok(reply) => reply.map_err(ExecServerError::before_session)?.decode()?,
            Err(_) => return Err(ExecServerError::InitializeTimedOut { timeout }),
        };
        if resume.is_some_and(|resume| resume != answer.session_id) {
            let text = "the server resumed another session than it was asked for";
            return Err(ExecServerError::Protocol(text.to_owned()));
        }
        Ok(answer)
    }

    /// A server that cannot tell of its machine is used all the same.
    async fn ask_for_info(self: &Arc<Self>) -> Result<Option<EnvironmentInfo>, ExecServerError> {
        let method = Method::EnvironmentInfo.name();
        let pending = self.request(method, &serde_json::Value::Null)?;
        match tokio::time::timeout(INFO_TIMEOUT, pending).await {
            Ok(Ok(reply)) => Ok(reply.decode().ok()),
            Ok(Err(error)) if error.is_disconnected() => Err(error),
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }
}

impl Reply {
    /// The result as a type.
    pub fn decode<R: DeserializeOwned>(&self) -> Result<R, ExecServerError> {
        serde_json::from_str(self.text()).map_err(|error| {
            ExecServerError::Protocol(format!("a result cannot be understood: {error}"))
        })
    }
}

impl ExecServerError {
    /// Nothing but the session itself can have come of an `initialize`, so that it may be repeated.
    fn before_session(self) -> Self {
        match self {
            Self::Ambiguous { reason, .. } => Self::Disconnected { reason },
            error => error,
        }
    }
}
