//! The front door: one client for everything, which recovers by itself.

use std::sync::Arc;

use exec_server_protocol::environment::{EnvironmentInfo, EnvironmentStatusResponse};
use exec_server_protocol::process::{ProcessId, ProcessListResponse, ProcessStartParams};

use crate::client::RemoteExecServerClient;
use crate::command::Command;
use crate::dial::Dial;
use crate::environments::Environments;
use crate::error::ExecServerError;
use crate::files::ExecutorFileSystem;
use crate::http::HttpClient;
use crate::options::{ExecServerClientConnectOptions, RemoteExecServerConnectArgs};
use crate::process::ProcessSession;
use crate::relay::RelayConnectArgs;
use crate::stdio::StdioServer;

/// A client that is connected and recovers by itself; cheap to clone.
#[derive(Debug, Clone)]
pub struct ExecServerClient {
    remote: RemoteExecServerClient,
}

impl ExecServerClient {
    /// Connects to a server: a `ws://`, `wss://` or `unix://` URL, or that with everything around it.
    pub async fn connect(
        args: impl Into<RemoteExecServerConnectArgs>,
    ) -> Result<Self, ExecServerError> {
        Self::from_remote(RemoteExecServerClient::new(args)?).await
    }

    /// Connects to an environment that a registry knows, through its relay.
    pub async fn connect_relay(args: RelayConnectArgs) -> Result<Self, ExecServerError> {
        Self::from_remote(RemoteExecServerClient::through_relay(args)?).await
    }

    /// Starts a server as a child and speaks to it over its stdio.
    pub async fn connect_stdio(
        server: StdioServer,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(server), options).await
    }

    /// Connects over any kind of link.
    pub async fn connect_with(
        dial: Arc<dyn Dial>,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::from_remote(RemoteExecServerClient::over(dial, options)).await
    }

    /// Connects to the environment of this name, or to the default one, as `environments.toml` or
    /// `CODEX_EXEC_SERVER_URL` say.
    pub async fn connect_environment(
        id: Option<&str>,
        client_name: &str,
    ) -> Result<Self, ExecServerError> {
        let environments = Environments::from_environment().map_err(Arc::new)?;
        let environment = environments.get(id).map_err(Arc::new)?;
        Self::from_remote(environment.client(client_name)?).await
    }

    /// The front door of a logical client, once it is connected.
    pub async fn from_remote(remote: RemoteExecServerClient) -> Result<Self, ExecServerError> {
        remote.session().connection().await?;
        Ok(Self { remote })
    }

    /// A command to run on the server.
    pub fn command(&self, program: impl Into<String>) -> Command {
        Command::new(self.remote.caller(), program)
    }

    /// A command line for the server's own shell.
    pub async fn shell(&self, script: impl Into<String>) -> Result<Command, ExecServerError> {
        let info = self.remote.known_environment().await?;
        let shell = info.map_or_else(|| "/bin/sh".to_owned(), |info| info.shell.path);
        let mut command = self.command(shell);
        command.arg("-c").arg(script);
        Ok(command)
    }

    /// Starts a process with every detail of the protocol.
    pub async fn start(
        &self,
        params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        self.remote.start(params).await
    }

    /// Follows a process of this session that somebody else started, from behind number `seq` on.
    pub async fn attach(
        &self,
        process_id: impl Into<ProcessId>,
        seq: u64,
    ) -> Result<ProcessSession, ExecServerError> {
        self.remote.attach(process_id, seq).await
    }

    /// The processes of this session, from a server that can list them.
    pub async fn processes(&self) -> Result<ProcessListResponse, ExecServerError> {
        self.remote.processes().await
    }

    /// The server's files.
    pub fn fs(&self) -> ExecutorFileSystem {
        self.remote.fs()
    }

    /// HTTP from where the server stands.
    pub fn http(&self) -> HttpClient {
        self.remote.http()
    }

    /// What the machine is like, asked anew.
    pub async fn environment_info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        self.remote.environment_info().await
    }

    /// Whether the server is ready; waits for no recovery and starts none.
    pub async fn environment_status(&self) -> Result<EnvironmentStatusResponse, ExecServerError> {
        self.remote.environment_status().await
    }

    /// The id of the session, by which another client can resume it.
    pub fn session_id(&self) -> Option<String> {
        self.remote.session().session_id()
    }

    /// The logical client behind this one.
    pub fn remote(&self) -> &RemoteExecServerClient {
        &self.remote
    }

    /// Ends this client for good, after what was asked before has been sent, and waits for the end of the link.
    ///
    /// The session lingers on the server for a while, where another client may resume it.
    pub async fn close(&self) {
        self.remote.close().await;
    }
}
