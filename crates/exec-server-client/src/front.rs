//! The entry point: one client for processes, files and HTTP, which reconnects after a disconnect.

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

/// A connected client that resumes its session after a disconnect; cheap to clone.
#[derive(Debug, Clone)]
pub struct ExecServerClient {
    remote: RemoteExecServerClient,
}

impl ExecServerClient {
    /// Connects to a server: a `ws://`, `wss://` or `unix://` URL, or [`RemoteExecServerConnectArgs`] with more settings.
    pub async fn connect(
        args: impl Into<RemoteExecServerConnectArgs>,
    ) -> Result<Self, ExecServerError> {
        Self::from_remote(RemoteExecServerClient::new(args)?).await
    }

    /// Connects to an environment of a registry, through the relay that the registry names.
    pub async fn connect_relay(args: RelayConnectArgs) -> Result<Self, ExecServerError> {
        Self::from_remote(RemoteExecServerClient::through_relay(args)?).await
    }

    /// Starts a server as a child process and connects to it over stdio.
    pub async fn connect_stdio(
        server: StdioServer,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_with(Arc::new(server), options).await
    }

    /// Connects over a custom transport.
    pub async fn connect_with(
        dial: Arc<dyn Dial>,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::from_remote(RemoteExecServerClient::over(dial, options)).await
    }

    /// Connects to an environment of `environments.toml`, or of the variables that replace the file.
    ///
    /// Without an `id` it connects to the default environment.
    pub async fn connect_environment(
        id: Option<&str>,
        client_name: &str,
    ) -> Result<Self, ExecServerError> {
        let environments = Environments::from_environment().map_err(Arc::new)?;
        let environment = environments.get(id).map_err(Arc::new)?;
        Self::from_remote(environment.client(client_name)?).await
    }

    /// Connects an existing [`RemoteExecServerClient`].
    pub async fn from_remote(remote: RemoteExecServerClient) -> Result<Self, ExecServerError> {
        remote.session().connection().await?;
        Ok(Self { remote })
    }

    /// Builds a command to run on the server; nothing is sent yet.
    pub fn command(&self, program: impl Into<String>) -> Command {
        Command::new(self.remote.caller(), program)
    }

    /// Builds a command that runs `script` with `-c` in the server's shell; `/bin/sh` if the server names none.
    pub async fn shell(&self, script: impl Into<String>) -> Result<Command, ExecServerError> {
        let info = self.remote.known_environment().await?;
        let shell = info.map_or_else(|| "/bin/sh".to_owned(), |info| info.shell.path);
        let mut command = self.command(shell);
        command.arg("-c").arg(script);
        Ok(command)
    }

    /// Starts a process with all parameters of the protocol.
    pub async fn start(
        &self,
        params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        self.remote.start(params).await
    }

    /// Follows a running process of this session, from the event after sequence number `seq`.
    pub async fn attach(
        &self,
        process_id: impl Into<ProcessId>,
        seq: u64,
    ) -> Result<ProcessSession, ExecServerError> {
        self.remote.attach(process_id, seq).await
    }

    /// Lists the processes of this session; fails with `Unsupported` on a server without `process/list`.
    pub async fn processes(&self) -> Result<ProcessListResponse, ExecServerError> {
        self.remote.processes().await
    }

    /// File operations on the server's machine.
    pub fn fs(&self) -> ExecutorFileSystem {
        self.remote.fs()
    }

    /// HTTP requests from the server's machine.
    pub fn http(&self) -> HttpClient {
        self.remote.http()
    }

    /// Requests the description of the server's machine.
    pub async fn environment_info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        self.remote.environment_info().await
    }

    /// Asks whether the server is ready; fails at once if there is no live connection.
    pub async fn environment_status(&self) -> Result<EnvironmentStatusResponse, ExecServerError> {
        self.remote.environment_status().await
    }

    /// The id with which another client can resume the session.
    pub fn session_id(&self) -> Option<String> {
        self.remote.session().session_id()
    }

    /// The underlying [`RemoteExecServerClient`].
    pub fn remote(&self) -> &RemoteExecServerClient {
        &self.remote
    }

    /// Sends the requests that are already queued, closes the connection and waits for its end; no reconnect follows.
    ///
    /// The session lingers on the server for a while, and another client can resume it.
    pub async fn close(&self) {
        self.remote.close().await;
    }
}
