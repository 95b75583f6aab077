//! The client of one environment across connections: opens the session, resumes it, and makes calls.

use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::environment::{
    CapabilitiesParams, CapabilityRootsParams, CapabilityRootsResponse,
    EnvironmentConfigReadParams, EnvironmentConfigReadResponse, EnvironmentInfo,
    EnvironmentStatusResponse,
};
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{ProcessId, ProcessListResponse, ProcessStartParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::caller::{Caller, Replay};
use crate::dial::Dial;
use crate::driver::run_driver;
use crate::error::ExecServerError;
use crate::files::ExecutorFileSystem;
use crate::http::HttpClient;
use crate::options::{ExecServerClientConnectOptions, RemoteExecServerConnectArgs};
use crate::process::ProcessSession;
use crate::relay::RelayConnectArgs;
use crate::session::RemoteExecServerSession;

/// A server that has not answered `environment/status` by then counts as not ready.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Some servers inspect their machine before they answer.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);

/// The client of an environment, shared by its process, file and HTTP handles; cheap to clone.
///
/// It connects with its first call. After a disconnect it resumes the same session: calls wait meanwhile, processes
/// continue without lost events, and only calls that are safe to retry are retried.
#[derive(Clone)]
pub struct RemoteExecServerClient {
    session: RemoteExecServerSession,
}

impl RemoteExecServerClient {
    /// A client that connects with its first call; must be created within a tokio runtime.
    pub fn new(args: impl Into<RemoteExecServerConnectArgs>) -> Result<Self, ExecServerError> {
        let (dial, options) = args.into().into_parts()?;
        Ok(Self::over(dial, options))
    }

    /// A client of an environment at a registry, which connects with its first call.
    pub fn through_relay(args: RelayConnectArgs) -> Result<Self, ExecServerError> {
        let (dial, options) = args.into_parts()?;
        Ok(Self::over(Arc::new(dial), options))
    }

    /// A client over a custom transport, which connects with its first call.
    pub fn over(dial: Arc<dyn Dial>, options: ExecServerClientConnectOptions) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let session = RemoteExecServerSession::new(dial, options, sender);
        // The driver stops when the last handle of the session is dropped.
        session.hold_driver(tokio::spawn(run_driver(session.shared().clone(), receiver)));
        Self { session }
    }

    /// The session: its id, its status, and its live connection.
    pub fn session(&self) -> &RemoteExecServerSession {
        &self.session
    }

    /// Starts a process. If the connection breaks before the answer, the start is repeated in the same session, where the
    /// server starts it once. A server without `processStartRetry`, such as the reference, is not asked again: the result
    /// is `Ambiguous`, and the process is terminated after the session has been resumed.
    pub async fn start(
        &self,
        params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        let session = self.caller().start(params).await?;
        session.process().unpin();
        Ok(session)
    }

    /// Follows a running process of this session, from the event after sequence number `seq`.
    pub async fn attach(
        &self,
        process_id: impl Into<ProcessId>,
        seq: u64,
    ) -> Result<ProcessSession, ExecServerError> {
        self.caller().attach(process_id.into(), seq).await
    }

    /// Lists the processes of this session; fails with `Unsupported` on a server without `process/list`.
    pub async fn processes(&self) -> Result<ProcessListResponse, ExecServerError> {
        self.caller().require_method(Method::ProcessList).await?;
        self.call(Method::ProcessList.name(), &serde_json::Value::Null).await
    }

    /// File operations on the server's machine.
    pub fn fs(&self) -> ExecutorFileSystem {
        ExecutorFileSystem::new(self.caller())
    }

    /// HTTP requests from the server's machine.
    pub fn http(&self) -> HttpClient {
        HttpClient::new(self.caller())
    }

    /// Requests the description of the server's machine.
    pub async fn environment_info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        let method = Method::EnvironmentInfo.name();
        within(method, INFO_TIMEOUT, self.call(method, &serde_json::Value::Null)).await
    }

    /// The description of the server's machine from the time of the connection; `None` if the server gave none.
    pub async fn known_environment(&self) -> Result<Option<EnvironmentInfo>, ExecServerError> {
        self.caller().info().await
    }

    /// Asks whether the server is ready; fails at once if there is no live connection.
    pub async fn environment_status(&self) -> Result<EnvironmentStatusResponse, ExecServerError> {
        let method = Method::EnvironmentStatus.name();
        let connection = self
            .session
            .live_connection()
            .ok_or_else(|| ExecServerError::Disconnected { reason: "not connected".into() })?;
        within(method, STATUS_TIMEOUT, connection.call(method, &serde_json::Value::Null)).await
    }

    /// Reads selected settings of the machine's user.
    pub async fn read_environment_config(
        &self,
        params: &EnvironmentConfigReadParams,
    ) -> Result<EnvironmentConfigReadResponse, ExecServerError> {
        self.caller().require_method(Method::EnvironmentConfigRead).await?;
        self.call(Method::EnvironmentConfigRead.name(), params).await
    }

    /// Finds plugins and skills below given directories; retried after a disconnect, since it changes nothing.
    pub async fn discover_capability_roots(
        &self,
        params: &CapabilityRootsParams,
    ) -> Result<CapabilityRootsResponse, ExecServerError> {
        self.caller().call(Method::CapabilityRootsV1, params, Replay::Safe).await
    }

    /// Finds plugins and skills that are installed on the machine; retried after a disconnect, since it changes nothing.
    pub async fn discover_capabilities(
        &self,
        params: &CapabilitiesParams,
    ) -> Result<serde_json::Value, ExecServerError> {
        self.caller().call(Method::CapabilitiesV2, params, Replay::Safe).await
    }

    /// Calls any method. Waits for a connection, and is not retried after it was sent.
    pub async fn call<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &P,
    ) -> Result<R, ExecServerError> {
        self.caller().call_for(None, method, params, Replay::Never).await
    }

    /// Sends the requests that are already queued, closes the connection and waits for its end; no reconnect follows.
    ///
    /// The session lingers on the server for a while, and another client can resume it.
    pub async fn close(&self) {
        self.session.close().await;
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::Client(self.clone())
    }
}

impl std::fmt::Debug for RemoteExecServerClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter
            .debug_struct("RemoteExecServerClient")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Fails a call with `TimedOut` after `timeout`.
async fn within<R>(
    method: &'static str,
    timeout: Duration,
    call: impl Future<Output = Result<R, ExecServerError>>,
) -> Result<R, ExecServerError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(result) => result,
        Err(_) => Err(ExecServerError::TimedOut { method, timeout }),
    }
}
