//! What a server is told when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use exec_server_os::Mechanism;
use exec_server_os::sandbox::Allowances;
use exec_server_protocol::limits;
use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::process::ProcessLimits;

use crate::auth::Auth;
pub use crate::http::{AllowedHost, AllowedHostError, Reach};
use crate::listen_url::ListenUrl;
use crate::remote::RemoteEnvironmentConfig;
use crate::runtime_paths::ExecServerRuntimePaths;
use crate::timings::Timings;

/// What a server is told when it starts.
#[derive(Debug)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: ListenUrl,
    /// A registry to join in place of listening.
    pub remote: Option<RemoteEnvironmentConfig>,
    /// Who may connect.
    pub auth: Auth,
    /// Whether an open listener without auth is intended.
    pub insecure_no_auth: bool,
    /// Certificate and key, for `wss://`.
    pub tls: Option<TlsFiles>,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Whether the end of stdin ends the server.
    pub exit_on_stdin_close: bool,
    /// How much of everything.
    pub limits: ServerLimits,
    /// How long everything takes.
    pub timings: Timings,
    /// Whether `/a/b` is a path on the wire.
    pub native_paths: NativePaths,
    /// Event loops beside the one that the server is started on.
    pub more_event_loops: usize,
    /// A cgroup to divide among processes.
    pub cgroup: Option<PathBuf>,
    /// What happens with policies where namespaces cannot be made.
    pub sandbox_fallback: SandboxFallback,
    /// What sandboxed commands may do beyond what every sandbox allows.
    pub sandbox_allow: Allowances,
    /// What every process may use at most.
    pub process_limits: ProcessLimits,
    /// Where to keep what must outlive the server, and what servers of a user tell each other.
    pub state_dir: Option<PathBuf>,
    /// Where `http/request` may go.
    pub http: Reach,
    /// Where the program is that sandboxes are started with.
    pub runtime_paths: ExecServerRuntimePaths,
}

/// What happens with policies where namespaces cannot be made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SandboxFallback {
    /// They are refused.
    #[default]
    Refuse,
    /// Those that Landlock can keep alone are kept by it, the others refused.
    Landlock,
}

impl SandboxFallback {
    /// What is to keep sandboxes closed on this machine; tries it out where there is a choice.
    pub fn choose(self) -> Mechanism {
        match self {
            Self::Refuse => Mechanism::Namespaces,
            Self::Landlock => exec_server_os::working_mechanism(),
        }
    }
}

/// Something that a sandbox refuses unless the operator lets it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SandboxAllowance {
    /// Tracing other processes inside, and their memory.
    Debugging,
    /// New namespaces, in which nothing can be mounted.
    Namespaces,
    /// The kernel's keyrings.
    Keyrings,
    /// More system call filters.
    Filters,
}

impl SandboxAllowance {
    /// All of these together.
    pub fn all(these: &[Self]) -> Allowances {
        Allowances {
            debugging: these.contains(&Self::Debugging),
            namespaces: these.contains(&Self::Namespaces),
            keyrings: these.contains(&Self::Keyrings),
            filters: these.contains(&Self::Filters),
        }
    }
}

/// Certificate and key files in PEM form.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// How much of everything one server takes on.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections at once.
    pub connections: usize,
    /// Sessions at once, attached or waiting for their client.
    pub sessions: usize,
    /// Processes per session, those that are closed but still readable included.
    pub processes: usize,
    /// Bytes in one message.
    pub message_bytes: usize,
    /// Bytes of output that one process may ask to have kept.
    pub retained_output: usize,
    /// Ordinary requests of one connection that run at once.
    pub concurrent_requests: usize,
    /// Requests of one connection that may wait for their turn.
    pub waiting_requests: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 2048,
            sessions: 4096,
            processes: 4096,
            message_bytes: limits::MAX_MESSAGE_BYTES,
            retained_output: 64 * 1024 * 1024,
            concurrent_requests: 1024,
            waiting_requests: 16 * 1024,
        }
    }
}

impl ServerConfig {
    /// A server on `listen` with everything else at its default.
    pub fn new(listen: ListenUrl) -> Self {
        Self {
            listen,
            auth: Auth::Open,
            insecure_no_auth: false,
            tls: None,
            metrics: None,
            exit_on_stdin_close: false,
            limits: ServerLimits::default(),
            timings: Timings::default(),
            native_paths: NativePaths::Reject,
            more_event_loops: 0,
            cgroup: None,
            sandbox_fallback: SandboxFallback::default(),
            sandbox_allow: Allowances::default(),
            state_dir: None,
            process_limits: ProcessLimits::default(),
            http: Reach::default(),
            runtime_paths: ExecServerRuntimePaths::default(),
            remote: None,
        }
    }
}
