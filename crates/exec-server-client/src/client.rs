//! The logical client of one environment: calls that survive a broken link, and those that must not be repeated.

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

/// A server that does not say whether it is ready by then is not.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Some servers look around before they answer.
const INFO_TIMEOUT: Duration = Duration::from_secs(30);

/// The one logical client of an environment, shared by its process, file and HTTP parts; cheap to clone.
///
/// It connects with its first call. When the link breaks, it resumes the same session: calls wait meanwhile, processes go
/// on where they were, and only what is harmless is repeated.
#[derive(Clone)]
pub struct RemoteExecServerClient {
    session: RemoteExecServerSession,
}

impl RemoteExecServerClient {
    /// A client that connects with its first call; must be made within a tokio runtime.
    pub fn new(args: impl Into<RemoteExecServerConnectArgs>) -> Result<Self, ExecServerError> {
        let (dial, options) = args.into().into_parts()?;
        Ok(Self::over(dial, options))
    }

    /// A client of an environment that a registry knows, which connects with its first call.
    pub fn through_relay(args: RelayConnectArgs) -> Result<Self, ExecServerError> {
        let (dial, options) = args.into_parts()?;
        Ok(Self::over(Arc::new(dial), options))
    }

    /// The same over any kind of link.
    pub fn over(dial: Arc<dyn Dial>, options: ExecServerClientConnectOptions) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let session = RemoteExecServerSession::new(dial, options, sender);
        // The driver ends with the last handle of the session.
        tokio::spawn(run_driver(session.shared().clone(), receiver));
        Self { session }
    }

    /// The durable state of this client.
    pub fn session(&self) -> &RemoteExecServerSession {
        &self.session
    }

    /// Starts a process. Never repeated: if the link breaks before the answer, the error says so, and what may have been
    /// started is ended as soon as the link is back.
    pub async fn start(
        &self,
        params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        let session = self.caller().start(params).await?;
        session.process().unpin();
        Ok(session)
    }

    /// Follows a process of this session that somebody else started, from behind number `seq` on.
    pub async fn attach(
        &self,
        process_id: impl Into<ProcessId>,
        seq: u64,
    ) -> Result<ProcessSession, ExecServerError> {
        self.caller().attach(process_id.into(), seq).await
    }

    /// The processes of this session, from a server that can list them.
    pub async fn processes(&self) -> Result<ProcessListResponse, ExecServerError> {
        self.caller().require(|can| can.process_list, "process/list").await?;
        self.call(Method::ProcessList.name(), &serde_json::Value::Null).await
    }

    /// The server's files.
    pub fn fs(&self) -> ExecutorFileSystem {
        ExecutorFileSystem::new(self.caller())
    }

    /// HTTP from where the server stands.
    pub fn http(&self) -> HttpClient {
        HttpClient::new(self.caller())
    }

    /// What the machine is like, asked anew.
    pub async fn environment_info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        let method = Method::EnvironmentInfo.name();
        within(method, INFO_TIMEOUT, self.call(method, &serde_json::Value::Null)).await
    }

    /// What the machine is like, as it was said when the connection was made; none if the server does not know.
    pub async fn known_environment(&self) -> Result<Option<EnvironmentInfo>, ExecServerError> {
        self.caller().info().await
    }

    /// Whether the server is ready; waits for no recovery and starts none.
    pub async fn environment_status(&self) -> Result<EnvironmentStatusResponse, ExecServerError> {
        let method = Method::EnvironmentStatus.name();
        let connection = self.session.live_connection().ok_or_else(|| {
            ExecServerError::Disconnected { reason: "there is no connection just now".into() }
        })?;
        within(method, STATUS_TIMEOUT, connection.call(method, &serde_json::Value::Null)).await
    }

    /// Selected settings of the machine's user.
    pub async fn read_environment_config(
        &self,
        params: &EnvironmentConfigReadParams,
    ) -> Result<EnvironmentConfigReadResponse, ExecServerError> {
        self.caller().require(|can| can.environment_config_read, "environmentConfig/read").await?;
        self.call(Method::EnvironmentConfigRead.name(), params).await
    }

    /// Plugins and skills below given directories; may be repeated after a cut, since it changes nothing.
    pub async fn discover_capability_roots(
        &self,
        params: &CapabilityRootsParams,
    ) -> Result<CapabilityRootsResponse, ExecServerError> {
        self.caller().call(Method::CapabilityRootsV1, params, Replay::Safe).await
    }

    /// Plugins and skills installed on the machine; may be repeated after a cut, since it changes nothing.
    pub async fn discover_capabilities(
        &self,
        params: &CapabilitiesParams,
    ) -> Result<serde_json::Value, ExecServerError> {
        self.caller().require(|can| can.capability_discovery_v2, "capabilities/discoverV2").await?;
        self.caller().call(Method::CapabilitiesV2, params, Replay::Safe).await
    }

    /// Makes any call. It waits for the link, but is never repeated after a cut.
    pub async fn call<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &P,
    ) -> Result<R, ExecServerError> {
        self.caller().call_for(None, method, params, Replay::Never).await
    }

    /// Ends this client for good, after what was asked before has been sent, and waits for the end of the link.
    ///
    /// The session lingers on the server for a while, where another client may resume it.
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

/// Gives up a call that takes too long.
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
