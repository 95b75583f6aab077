//! Connection settings of a client: name, timeouts, credentials.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::connection::KeepaliveConfig;
use exec_server_transport::dial::{DialOptions, ServerUrl};
use exec_server_transport::proxy::Proxies;

use crate::dial::{Dial, WebSocketDial};
use crate::error::ExecServerError;
use crate::ignored::IgnoredListener;
use crate::trace::Tracing;

/// Default timeout for connecting, and for the answer to `initialize`.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Default client name for the server's logs.
pub(crate) const DEFAULT_CLIENT_NAME: &str = "exec-server-client";

/// Settings of a session and of its connections that do not depend on the transport.
#[derive(Debug, Clone)]
pub struct ExecServerClientConnectOptions {
    /// The client name for the server's logs.
    pub client_name: String,
    /// Timeout for the answer to `initialize`.
    pub initialize_timeout: Duration,
    /// The session that the first connection resumes; `None` opens a new one.
    pub resume_session_id: Option<String>,
    /// Whether the first connection takes the session over from another live connection.
    pub take_over: bool,
    /// How long a client tries to resume its session after a disconnect.
    pub recovery_budget: Duration,
    /// Time between two pings; pings detect a connection that is lost without an error.
    pub ping_interval: Duration,
    /// Time without a pong after which the connection counts as lost.
    pub ping_timeout: Duration,
    /// Called with the request members that a server ignored; they are also logged as a warning.
    pub on_ignored: Option<IgnoredListener>,
    /// The trace that calls belong to, and where their spans go.
    pub tracing: Tracing,
}

impl Default for ExecServerClientConnectOptions {
    fn default() -> Self {
        Self {
            client_name: DEFAULT_CLIENT_NAME.to_owned(),
            initialize_timeout: DEFAULT_TIMEOUT,
            resume_session_id: None,
            take_over: false,
            recovery_budget: exec_server_core::recovery::RECOVERY_BUDGET,
            // Interval, timeout, recovery budget and last attempt add up to less than the 80 s for which a server keeps a
            // detached session.
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            on_ignored: None,
            tracing: Tracing::default(),
        }
    }
}

impl ExecServerClientConnectOptions {
    pub(crate) fn pings(&self) -> KeepaliveConfig {
        KeepaliveConfig { interval: self.ping_interval, deadline: self.ping_timeout }
    }
}

/// The address of a server, credentials, and connection settings.
#[derive(Clone)]
pub struct RemoteExecServerConnectArgs {
    /// A `ws://`, `wss://` or `unix://` URL.
    pub url: String,
    /// Timeout for TCP, TLS and the websocket upgrade together.
    pub connect_timeout: Duration,
    /// Sent as `Authorization: Bearer …` with the upgrade request.
    pub bearer_token: Option<String>,
    /// A PEM file with the certificate authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Additional headers of the upgrade request.
    pub headers: Vec<(String, String)>,
    /// Proxies on the way to the server; the default comes from the environment variables.
    pub proxies: Proxies,
    /// Settings that apply once the transport is connected.
    pub options: ExecServerClientConnectOptions,
}

impl RemoteExecServerConnectArgs {
    /// The server at `url`, with default timeouts and no credentials.
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

    /// Sets the client name for the server's logs.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.options.client_name = name.into();
        self
    }

    /// Sets the bearer token.
    #[must_use]
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer_token = Some(token.into());
        self
    }

    /// Sets the PEM file with the certificate authorities for `wss://`.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the trace that calls belong to.
    #[must_use]
    pub fn tracing(mut self, tracing: Tracing) -> Self {
        self.options.tracing = tracing;
        self
    }

    /// Sets the session to resume.
    #[must_use]
    pub fn resume_session(mut self, session_id: impl Into<String>) -> Self {
        self.options.resume_session_id = Some(session_id.into());
        self
    }

    /// Sets the timeout for connecting.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Splits the arguments into the transport and the session settings.
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
    /// Omits credentials.
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
