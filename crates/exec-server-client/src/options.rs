//! How a client connects: names, times, credentials.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::connection::PingTimes;
use exec_server_transport::dial::{DialOptions, ServerUrl};
use exec_server_transport::proxy::Proxies;

use crate::dial::{Dial, WebSocketDial};
use crate::error::ExecServerError;

/// The time that a server has to take a connection, and again to answer `initialize`.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The name that a server logs for a client that does not give one.
pub const DEFAULT_CLIENT_NAME: &str = "exec-server-client";

/// What a client says first, and how patient it is.
#[derive(Debug, Clone)]
pub struct ExecServerClientConnectOptions {
    /// A name for the server's logs.
    pub client_name: String,
    /// The time that a server has to answer `initialize`.
    pub initialize_timeout: Duration,
    /// A session to go on with, or none for a new one.
    pub resume_session_id: Option<String>,
    /// Whether the first connection takes that session from another one that is alive.
    pub take_over: bool,
    /// How long a client tries to get its session back after the link broke.
    pub recovery_budget: Duration,
    /// From ping to ping; a link that is dead without a word is noticed by them.
    pub ping_interval: Duration,
    /// How long the answer to a ping may take before the link counts as broken.
    pub ping_timeout: Duration,
}

impl Default for ExecServerClientConnectOptions {
    fn default() -> Self {
        Self {
            client_name: DEFAULT_CLIENT_NAME.to_owned(),
            initialize_timeout: DEFAULT_TIMEOUT,
            resume_session_id: None,
            take_over: false,
            recovery_budget: exec_server_machines::recovery::RECOVERY_BUDGET,
            // Together well below the 30 s for which a server keeps a session that nobody is attached to.
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
        }
    }
}

impl ExecServerClientConnectOptions {
    pub(crate) fn pings(&self) -> PingTimes {
        PingTimes { interval: self.ping_interval, deadline: self.ping_timeout }
    }
}

/// Where a server is, and everything that is needed to get in.
#[derive(Clone)]
pub struct RemoteExecServerConnectArgs {
    /// `ws://`, `wss://` or `unix://`.
    pub url: String,
    /// The time that the server has to take the connection.
    pub connect_timeout: Duration,
    /// Sent as `Authorization: Bearer …`.
    pub bearer_token: Option<String>,
    /// A PEM file of the authorities to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// More headers for the upgrade request.
    pub headers: Vec<(String, String)>,
    /// Who stands in between; those of the environment unless said otherwise.
    pub proxies: Proxies,
    /// Everything after the connection.
    pub options: ExecServerClientConnectOptions,
}

impl RemoteExecServerConnectArgs {
    /// The server at `url`, with the usual patience and no credentials.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connect_timeout: DEFAULT_TIMEOUT,
            bearer_token: None,
            ca_file: None,
            headers: Vec::new(),
            proxies: Proxies::from_environment(),
            options: ExecServerClientConnectOptions::default(),
        }
    }

    /// The same with a name for the server's logs.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.options.client_name = name.into();
        self
    }

    /// The same with a bearer token.
    #[must_use]
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer_token = Some(token.into());
        self
    }

    /// The same with authorities of its own for `wss://`.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// The same with a session to go on with.
    #[must_use]
    pub fn resume_session(mut self, session_id: impl Into<String>) -> Self {
        self.options.resume_session_id = Some(session_id.into());
        self
    }

    /// The same with another time to connect.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How to dial, and what to say then.
    pub(crate) fn into_parts(
        self,
    ) -> Result<(Arc<dyn Dial>, ExecServerClientConnectOptions), ExecServerError> {
        let url = ServerUrl::parse(&self.url)?;
        let mut headers = self.headers;
        if let Some(token) = self.bearer_token {
            headers.push(("authorization".to_owned(), format!("Bearer {token}")));
        }
        let options = DialOptions { headers, authorities: self.ca_file, proxies: self.proxies };
        let dial = WebSocketDial { url, options, timeout: self.connect_timeout };
        Ok((Arc::new(dial), self.options))
    }
}

impl std::fmt::Debug for RemoteExecServerConnectArgs {
    /// Without credentials.
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter
            .debug_struct("RemoteExecServerConnectArgs")
            .field("url", &ServerUrl::parse(&self.url).map(|url| url.to_string()))
            .field("ca_file", &self.ca_file)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl From<&str> for RemoteExecServerConnectArgs {
    fn from(url: &str) -> Self {
        Self::new(url)
    }
}

impl From<String> for RemoteExecServerConnectArgs {
    fn from(url: String) -> Self {
        Self::new(url)
    }
}
