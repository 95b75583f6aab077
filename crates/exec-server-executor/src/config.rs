//! The configuration of a server.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use exec_server_os::inherited::{InheritedListener, InheritedPlace};
use exec_server_protocol::limits;
use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::process::ProcessLimits;
use exec_server_sandbox::Mechanism;
use exec_server_sandbox::policy::Allowances;
pub use exec_server_transport::spans::Tracer;

pub use crate::audit::{AuditConfig, AuditOnFull, AuditTarget};
use crate::auth::Auth;
pub use crate::egress::{AllowedHost, AllowedHostError, EgressPolicy};
use crate::listen_url::ListenUrl;
use crate::remote::RemoteEnvironmentConfig;
use crate::runtime_paths::ExecServerRuntimePaths;
use crate::timings::Timings;

/// The settings of a server, fixed at its start.
#[derive(Debug)]
pub struct ServerConfig {
    /// Ignored if `remote` is set.
    pub listen: ListenUrl,
    /// The socket of a service manager, bound to what `listen` says; see [`ServerConfig::inherit`].
    pub inherited: Option<InheritedListener>,
    /// The registry to join instead of listening.
    pub remote: Option<RemoteEnvironmentConfig>,
    /// How clients authenticate.
    pub auth: Auth,
    /// Allows a listener that other machines can reach without authentication.
    pub insecure_no_auth: bool,
    /// Lets other users of this machine connect to a local listener without a token.
    pub allow_other_users: bool,
    /// Enables `wss://`.
    pub tls: Option<TlsFiles>,
    /// The address that serves Prometheus metrics.
    pub metrics: Option<SocketAddr>,
    /// Shuts the server down when its stdin reaches the end of file.
    pub exit_on_stdin_close: bool,
    /// Bounds on connections, sessions, processes and memory.
    pub limits: ServerLimits,
    /// Timeouts and intervals.
    pub timings: Timings,
    /// Whether requests may name a path as `/a/b` instead of a `file:` URI.
    pub native_paths: NativePaths,
    /// Event loops in addition to the one that the server is started on.
    pub more_event_loops: usize,
    /// The cgroup below which each process gets its own.
    pub cgroup: Option<PathBuf>,
    /// How policies are enforced where user namespaces are not available.
    pub sandbox_fallback: SandboxFallback,
    /// System features that sandboxed commands may use in addition to the default.
    pub sandbox_allow: Allowances,
    /// Upper bounds for the limits of every process.
    pub process_limits: ProcessLimits,
    /// Holds the state that outlives the server and that the servers of one user share.
    pub state_dir: Option<PathBuf>,
    /// Files with tokens and client secrets; hidden from every sandbox, like the other key files of this config.
    pub secret_files: Vec<PathBuf>,
    /// The hosts that `http/request` may reach.
    pub http: EgressPolicy,
    /// The audit log; `None` records nothing.
    pub audit: Option<AuditConfig>,
    /// Records spans of requests and processes; the default records nothing.
    pub tracer: Tracer,
    /// The program that starts sandboxes.
    pub runtime_paths: ExecServerRuntimePaths,
}

/// Why the socket of a service manager cannot be used by this configuration.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The address of the socket is not known.
    #[error("could not read the address of the service manager's socket")]
    Place(#[source] io::Error),
    /// The server does not listen.
    #[error(
        "the service manager passes a socket at {0}, which {1} has no use for: stop and disable the .socket unit, or leave \
         out {1}"
    )]
    NotListening(InheritedPlace, &'static str),
    /// `--listen` names another address.
    #[error(
        "the service manager passes a socket at {place}, and --listen says {wanted}: give both the same address, or \
         disable the .socket unit"
    )]
    Other {
        /// Where the socket is bound.
        place: InheritedPlace,
        /// The configured address.
        wanted: String,
    },
}

/// How sandbox policies are enforced where user namespaces are not available.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SandboxFallback {
    /// Every policy is rejected.
    #[default]
    Refuse,
    /// Landlock enforces the policies that it can express; others are rejected.
    Landlock,
}

impl SandboxFallback {
    /// Selects the sandbox mechanism; with a fallback, it probes what works on this machine.
    pub fn choose(self) -> Mechanism {
        match self {
            Self::Refuse => Mechanism::Namespaces,
            Self::Landlock => exec_server_sandbox::working_mechanism(),
        }
    }
}

/// A system feature that sandboxes deny unless the operator allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SandboxAllowance {
    /// `ptrace` and access to the memory of other processes of the sandbox.
    Debugging,
    /// New namespaces, without mounts in them.
    Namespaces,
    /// Kernel keyrings.
    Keyrings,
    /// Additional seccomp filters.
    Filters,
}

impl SandboxAllowance {
    /// Combines a list into one set.
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

/// Bounds on the resources that one server uses.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Concurrent connections.
    pub connections: usize,
    /// Concurrent sessions, attached or detached.
    pub sessions: usize,
    /// Processes per session; a new process evicts the record of the one that closed first.
    pub processes: usize,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Upper bound for the output bytes that a start request may ask to retain.
    pub retained_output: usize,
    /// Upper bound for the file that keeps the output of one process.
    pub output_spool: u64,
    /// Bytes of all such files together.
    pub output_spools: u64,
    /// Bytes of unread replies over all connections.
    pub reply_memory: usize,
    /// Ordinary requests of one connection that run concurrently.
    pub concurrent_requests: usize,
    /// Queued requests of one connection.
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
            output_spool: 256 * 1024 * 1024,
            output_spools: 4 * 1024 * 1024 * 1024,
            reply_memory: 256 * 1024 * 1024,
            concurrent_requests: 1024,
            waiting_requests: 16 * 1024,
        }
    }
}

impl ServerConfig {
    /// All files that hold a secret of this server.
    pub(crate) fn all_secret_files(&self) -> Vec<PathBuf> {
        let mut all = self.secret_files.clone();
        all.extend(self.tls.iter().map(|tls| tls.key.clone()));
        all.extend(self.audit.iter().flat_map(AuditConfig::files));
        if let Some(remote) = &self.remote {
            all.extend(remote.identity_file.clone());
            all.extend(remote.credential.file().map(ToOwned::to_owned));
        }
        all
    }

    /// Serves on the socket of a service manager instead of binding one.
    ///
    /// `listen` must name the same address, or port 0.
    pub fn inherit(&mut self, listener: InheritedListener) -> Result<(), InheritError> {
        let place = listener.place().map_err(InheritError::Place)?;
        if self.remote.is_some() {
            return Err(InheritError::NotListening(place, "--remote"));
        }
        let actual = match &place {
            InheritedPlace::Tcp(address) => ListenUrl::WebSocket(*address),
            InheritedPlace::Unix(path) => ListenUrl::Unix(path.clone()),
        };
        match &self.listen {
            ListenUrl::Stdio => return Err(InheritError::NotListening(place, "--listen stdio")),
            ListenUrl::WebSocket(wanted) if wanted.port() == 0 => {}
            wanted if *wanted == actual => {}
            ListenUrl::WebSocket(wanted) => {
                return Err(InheritError::Other { place, wanted: wanted.to_string() });
            }
            ListenUrl::Unix(wanted) => {
                return Err(InheritError::Other { place, wanted: wanted.display().to_string() });
            }
        }
        self.listen = actual;
        self.inherited = Some(listener);
        Ok(())
    }

    /// Creates a configuration with defaults for everything but `listen`.
    pub fn new(listen: ListenUrl) -> Self {
        Self {
            listen,
            inherited: None,
            auth: Auth::Open,
            insecure_no_auth: false,
            allow_other_users: false,
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
            secret_files: Vec::new(),
            process_limits: ProcessLimits::default(),
            http: EgressPolicy::default(),
            audit: None,
            tracer: Tracer::default(),
            runtime_paths: ExecServerRuntimePaths::default(),
            remote: None,
        }
    }
}
