//! One connection to a server: sends calls, receives answers and events, and does not reconnect.
//!
//! Owner: the connection task, [`run_connection`], which alone reads from the transport. Callers add their calls to
//! [`Routes`] and push the request into the outbox themselves, so a call does not pass through another task first.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_core::calls::CallKind;
use exec_server_core::event_order::NeededRead;
use exec_server_protocol::answers::InitializeAnswer;
use exec_server_protocol::environment::{Capabilities, EnvironmentInfo};
use exec_server_protocol::initialize::{ClientCapabilities, InitializeParams};
use exec_server_protocol::methods::{INITIALIZED, Method};
use exec_server_protocol::process::{ProcessStartParams, ProcessTerminateParams};
use exec_server_protocol::trace_context::TraceContext;
use exec_server_protocol::{binary, envelope, process::ProcessId};
use exec_server_transport::connection::{Connection, Wire};
use exec_server_transport::outbox::Outbox;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::call::{PendingCall, Reply};
use crate::caller::Caller;
use crate::dial::Dial;
use crate::error::ExecServerError;
use crate::files::ExecutorFileSystem;
use crate::http::HttpClient;
use crate::ignored::IgnoredMembers;
use crate::inbound::{repair, run_connection};
use crate::options::{ExecServerClientConnectOptions, RemoteExecServerConnectArgs};
use crate::process::ProcessSession;
use crate::process_state::Process;
use crate::routes::Routes;
use crate::trace::Tracing;

/// Output that a paced reader has not taken; with what the link brings in one turn it stays below what a process keeps.
const MAX_UNREAD_BYTES: usize = 2 * 1024 * 1024;

/// Timeout of `environment/info`, for servers that do not send the environment info with `initialize`.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection to a server; cheap to clone.
///
/// When the connection breaks, every pending call fails, and so does every process that was started on it. There is no
/// reconnect; [`ExecServerClient`](crate::ExecServerClient) has one.
#[derive(Clone)]
pub struct ExecServerConnection {
    handle: Arc<Handle>,
}

/// Shared by the clones of a connection; dropping the last one closes it.
struct Handle {
    shared: Arc<Shared>,
    session_id: String,
    info: Option<EnvironmentInfo>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A newer connection may follow the same processes, so the end of this one must not reach them.
        self.shared.routes().forget_processes();
        // Queued requests are still sent: one of them may terminate a process that is no longer followed.
        self.shared.outbox.close_in_order(1000, "");
    }
}

/// State that callers and the connection task share.
pub(crate) struct Shared {
    pub outbox: Outbox,
    routes: Mutex<Routes>,
    /// How the connection ended; `None` while it is open.
    end: watch::Sender<Option<LinkEnd>>,
    pub survival: Survival,
    pub ignored: IgnoredMembers,
    tracing: Tracing,
    /// Whether the server has announced that another connection took the session over.
    pub is_moved: AtomicBool,
    /// Reads of missing events; a read without an answer fails when the connection ends.
    repairs: Mutex<JoinSet<()>>,
}

/// How a connection ended.
#[derive(Debug, Clone)]
pub(crate) struct LinkEnd {
    pub reason: Arc<str>,
    /// Whether another connection took the session over, so that this client must not resume it.
    pub is_taken_over: bool,
}

/// What happens to the processes when the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survival {
    /// The next connection follows them.
    Resync,
    /// They fail.
    Fail,
    /// They stay unchanged here; the driver fails them with the reason.
    Leave,
}

/// The session that a connection resumes.
pub(crate) struct ResumedSession {
    pub session_id: String,
    /// Whether to take it from another live connection; None if it is the client's own session.
    pub take_over: Option<bool>,
}

impl ExecServerConnection {
    /// Connects and opens a session.
    pub async fn connect(
        args: impl Into<RemoteExecServerConnectArgs>,
    ) -> Result<Self, ExecServerError> {
        let (dial, options) = args.into().into_parts()?;
        Self::dial(&*dial, &options).await
    }

    /// Connects over a custom transport and opens a session.
    pub async fn dial(
        dial: &dyn Dial,
        options: &ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let wire = dial.dial().await?;
        let take_over = Some(options.take_over);
        let session_id = options.resume_session_id.clone();
        let resume = session_id.map(|session_id| ResumedSession { session_id, take_over });
        Self::open(wire, options, resume, &[], Survival::Fail).await
    }

    /// Opens or resumes a session; events of `processes` may arrive before the answer.
    pub(crate) async fn open(
        wire: Box<dyn Wire>,
        options: &ExecServerClientConnectOptions,
        resume: Option<ResumedSession>,
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
            ignored: IgnoredMembers::new(options.on_ignored.clone()),
            tracing: options.tracing.clone(),
            is_moved: AtomicBool::new(false),
            repairs: Mutex::default(),
        });
        for process in processes {
            shared.routes().add_process(process);
        }
        // The task ends with the connection, which `Handle::drop` closes, also if `initialize` fails below.
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

    /// The server's description of its machine; `None` if the server gave none.
    pub fn environment_info(&self) -> Option<&EnvironmentInfo> {
        self.handle.info.as_ref()
    }

    /// The optional capabilities of the server.
    pub fn capabilities(&self) -> Capabilities {
        self.handle.info.as_ref().map(|info| info.capabilities).unwrap_or_default()
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.handle.shared.routes().has_ended()
    }

    /// Waits for the end of the connection and returns the reason.
    pub async fn closed(&self) -> Arc<str> {
        self.handle.shared.closed().await.reason
    }

    pub(crate) async fn ended(&self) -> LinkEnd {
        self.handle.shared.closed().await
    }

    /// Closes the connection after the queued requests are sent; the session lingers on the server.
    pub fn close(&self) {
        self.handle.shared.outbox.close_in_order(1000, "");
    }

    /// Starts a process that is followed until this connection ends.
    pub async fn start(
        &self,
        params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        let session = Caller::Connection(self.clone()).start(params).await?;
        session.process().unpin();
        Ok(session)
    }

    /// File operations on the server's machine.
    pub fn fs(&self) -> ExecutorFileSystem {
        ExecutorFileSystem::new(Caller::Connection(self.clone()))
    }

    /// HTTP requests from the server's machine.
    pub fn http(&self) -> HttpClient {
        HttpClient::new(Caller::Connection(self.clone()))
    }

    /// Calls any method, without retries.
    pub async fn call<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &P,
    ) -> Result<R, ExecServerError> {
        self.request(method, params)?.await?.decode()
    }

    /// Sends a request and returns the future of its answer.
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
    pub(crate) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().expect("no holder panics")
    }

    /// Reads the missing events of a process in a task that the connection holds.
    pub(crate) fn spawn_repair(self: &Arc<Self>, process: Arc<Process>, read: NeededRead) {
        let mut repairs = self.repairs.lock().expect("no holder panics");
        while repairs.try_join_next().is_some() {}
        repairs.spawn(repair(self.clone(), process, read));
    }

    /// Waits for the reads of missing events, which end soon after the connection.
    pub(crate) async fn finish_repairs(&self) {
        let mut repairs = std::mem::take(&mut *self.repairs.lock().expect("no holder panics"));
        while repairs.join_next().await.is_some() {}
    }

    /// Sends a request and returns the future of its answer.
    pub(crate) fn request(
        self: &Arc<Self>,
        method: &'static str,
        params: &impl Serialize,
    ) -> Result<PendingCall, ExecServerError> {
        let (id, answer) = self.routes().begin_call(CallKind::Ordinary)?;
        let (mut span, trace) = self.tracing.begin(method);
        span.set("rpc.system", "jsonrpc");
        span.set("rpc.method", method);
        let pending = PendingCall::new(self.clone(), method, id, answer, span);
        self.push_request(id, method, params, trace.as_ref());
        Ok(pending)
    }

    /// Sends a request whose answer is ignored, also above the limit for ordinary calls.
    pub(crate) fn clean_up(&self, method: &'static str, params: &impl Serialize) {
        match self.routes().begin_call(CallKind::Cleanup) {
            Ok((id, _)) => self.push_request(id, method, params, None),
            Err(ExecServerError::TooManyCalls { .. }) => {
                // The resource cannot be freed by a request, so it is freed with the connection.
                self.outbox.close(1011, "too many requests wait for an answer");
            }
            Err(_) => {}
        }
    }

    /// Terminates a process that is no longer followed.
    pub(crate) fn clean_up_process(&self, process_id: &ProcessId) {
        let params = ProcessTerminateParams {
            process_id: process_id.clone(),
            grace_ms: None,
            session_id: None,
        };
        self.clean_up(Method::ProcessTerminate.name(), &params);
    }

    pub(crate) async fn closed(&self) -> LinkEnd {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        ended
            .ok()
            .and_then(|end| end.clone())
            .unwrap_or_else(|| LinkEnd { reason: "closed".into(), is_taken_over: false })
    }

    /// Fails pending calls and bodies, and treats processes as `survival` says.
    pub(crate) fn handle_end(&self, reason: Arc<str>) {
        let waiting = self.routes().end(&reason);
        waiting.release(&reason, self.survival);
        self.end.send_replace(Some(LinkEnd { reason, is_taken_over: false }));
    }

    /// Ends the connection after a takeover; the driver must not resume the session.
    pub(crate) fn handle_taken_over(&self) {
        let reason: Arc<str> = ExecServerError::TakenOver.to_string().into();
        let waiting = self.routes().end(&reason);
        let survival = match self.survival {
            Survival::Resync => Survival::Leave,
            other => other,
        };
        waiting.release(&reason, survival);
        self.end.send_replace(Some(LinkEnd { reason, is_taken_over: true }));
    }

    fn push_request(
        &self,
        id: i64,
        method: &str,
        params: &impl Serialize,
        trace: Option<&TraceContext>,
    ) {
        let id = envelope::RequestId::Integer(id);
        self.outbox.push_reply(envelope::request(&id, method, params, trace));
    }

    async fn initialize(
        self: &Arc<Self>,
        options: &ExecServerClientConnectOptions,
        resume: Option<ResumedSession>,
    ) -> Result<InitializeAnswer, ExecServerError> {
        let params = InitializeParams {
            client_name: options.client_name.clone(),
            resume_session_id: resume.as_ref().map(|resume| resume.session_id.clone()),
            linger_ms: None,
            take_over: resume.as_ref().and_then(|resume| resume.take_over),
            client_capabilities: ClientCapabilities {
                report_ignored: true,
                session_moved: true,
                binary_messages: true,
            },
        };
        let pending = self.request(Method::Initialize.name(), &params)?;
        let timeout = options.initialize_timeout;
        let answer: InitializeAnswer = match tokio::time::timeout(timeout, pending).await {
            Ok(reply) => reply.map_err(ExecServerError::before_session)?.decode()?,
            Err(_) => return Err(ExecServerError::InitializeTimedOut { timeout }),
        };
        if resume.is_some_and(|resume| resume.session_id != answer.session_id) {
            let text = "the server resumed another session than the requested one";
            return Err(ExecServerError::Protocol(text.to_owned()));
        }
        Ok(answer)
    }

    /// Requests the environment info; a server that cannot answer is used without it.
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
    /// Deserializes the result.
    pub(crate) fn decode<R: DeserializeOwned>(&self) -> Result<R, ExecServerError> {
        let wrong = |error: &dyn std::fmt::Display| {
            ExecServerError::Protocol(format!("cannot decode a result: {error}"))
        };
        match self.chunk() {
            None => serde_json::from_str(self.text()).map_err(|error| wrong(&error)),
            Some(chunk) => {
                let text = binary::fill(self.text(), chunk).map_err(|error| wrong(&error))?;
                serde_json::from_slice(&text).map_err(|error| wrong(&error))
            }
        }
    }
}

impl ExecServerError {
    /// `initialize` has no effect besides the session, so it may be retried.
    fn before_session(self) -> Self {
        match self {
            Self::Ambiguous { reason, .. } => Self::Disconnected { reason },
            error => error,
        }
    }
}
