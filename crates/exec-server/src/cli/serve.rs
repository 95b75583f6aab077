//! The command line of the server.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use exec_server::ListenUrl;
use exec_server::auth::{Auth, ExpectedToken, SignedBearer, TokenFile, TokenFileError};
use exec_server::config::{
    AllowedHost, EgressPolicy, ServerConfig, ServerLimits, TlsFiles, Tracer,
};
use exec_server::logging::LogFormat;
use exec_server::protocol::hex;
use exec_server::protocol::path_uri::NativePaths;
use exec_server::protocol::process::{LimitName, ProcessLimits};
use exec_server::remote::{AgentIdentity, Credential, CredentialError, RemoteEnvironmentConfig};
use exec_server::timings::Timings;
use exec_server_relay::registry_client::is_path_segment;

use super::args::{SandboxOptions, duration, in_range, positive_duration};
use super::audit_options::AuditOptions;
use super::config::{self, ConfigCommand};
use super::demo::{self, DemoArguments};
use super::doctor::DoctorArguments;
use super::environments::EnvironmentsArguments;
use super::forward::ForwardArguments;
use super::known_hosts::KnownHostsArguments;
use super::nodes::NodesArguments;
use super::otlp_options::OtlpOptions;
use super::reference_options::{ReferenceOptionError, ReferenceOptions};
use super::rendezvous::RendezvousArguments;
use super::sandbox::SandboxArguments;
use super::schema::SchemaArguments;
use super::service::{self, ServiceCommand};
use super::stdin_option::StdinOption;
use super::token::TokenCommand;
use super::update::{self, UpdateArguments};
use super::{ClientCommand, completion, examples};

const LISTENING: &str = "Listening";
const AUTHENTICATION: &str = "Authentication";
const REMOTE: &str = "Reached through a relay";
const TIMES: &str = "Times (500ms, 30s, 5m, 2h)";
const LIMITS: &str = "Limits";
const HTTP: &str = "HTTP requests from this machine";

const EXAMPLES: &str = "\
Examples:
  exec-server
      for clients on this machine
  exec-server --listen ws://0.0.0.0:7777 --ws-auth capability-token --ws-token-file token.txt \\
      --tls-cert cert.pem --tls-key key.pem
      for clients on the network that have the token";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  exec-server completions bash > ~/.local/share/bash-completion/completions/exec-server
  exec-server completions zsh > ~/.zfunc/_exec-server";

const SANDBOX_EXAMPLES: &str = "\
Examples:
  exec-server sandbox -- make
      writes only below this directory and in the directories for temporary files; no network
  exec-server sandbox --policy read-only --network -- curl https://example.org
  exec-server sandbox --policy policy.json --cwd /srv/project -- npm test";

const FORWARD_EXAMPLES: &str = "\
Examples:
  EXEC_SERVER_REMOTE_TOKEN=xs_exec_… exec-server forward --connect ws://127.0.0.1:7777 \\
      --remote https://relay.example.org --environment-id build-1";

const RENDEZVOUS_EXAMPLES: &str = "\
Examples:
  exec-server rendezvous --listen http://127.0.0.1:7780 --public-url https://relay.example.org
      behind a proxy that has the certificate
  exec-server rendezvous --listen https://0.0.0.0:443 --public-url https://relay.example.org \\
      --tls-cert cert.pem --tls-key key.pem
  exec-server token create --environment build-1 --role executor --expires 30d
      prints the line to paste on the machine that is to be build-1";

/// Serve processes, files and HTTP requests of this machine to clients over JSON-RPC.
///
/// Prints the URL that clients connect to as the first line on stdout, and serves until SIGTERM or Ctrl-C. Everything
/// that was started ends with the server.
#[derive(Debug, Parser)]
#[command(name = "exec-server", version, about, max_term_width = 100, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
#[command(subcommand_help_heading = "Instead of serving", subcommand_value_name = "COMMAND")]
pub struct Arguments {
    /// The command to run; without one, serve.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Address to listen on: ws://IP:PORT (port 0 chooses a free port; wss:// with --tls-cert), unix:///PATH, or stdio.
    #[arg(long, value_name = "URL", help_heading = LISTENING, default_value = exec_server::DEFAULT_LISTEN_URL)]
    listen: String,

    #[command(flatten)]
    remote: RemoteArguments,

    #[command(flatten)]
    reference: ReferenceOptions,

    #[command(flatten)]
    auth: AuthArguments,

    /// Certificate chain in PEM form; with --tls-key, clients connect by wss://.
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = LISTENING)]
    tls_cert: Option<PathBuf>,
    /// Private key in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = LISTENING)]
    tls_key: Option<PathBuf>,
    /// Allow a listener that the network can reach without authentication.
    #[arg(long, help_heading = AUTHENTICATION)]
    insecure_no_auth: bool,
    /// Without --ws-auth, serve every user of this machine, and processes that cannot be identified; without this, only
    /// the server's own user and root.
    #[arg(long, help_heading = AUTHENTICATION)]
    allow_other_users: bool,

    /// Serve Prometheus metrics at http://IP:PORT/metrics.
    #[arg(long, value_name = "IP:PORT", help_heading = LISTENING)]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    stdin: StdinOption,

    /// How long a session and its processes wait for their client after a lost connection; 0 ends them at once.
    #[arg(long, value_name = "DURATION", help_heading = TIMES, default_value = "80s", value_parser = duration)]
    session_linger: Duration,
    /// Longest session linger and output retention that a client can request.
    #[arg(long, value_name = "DURATION", help_heading = TIMES, default_value = "24h", value_parser = duration)]
    max_session_linger: Duration,
    /// Interval between pings to clients.
    #[arg(long, value_name = "DURATION", help_heading = TIMES, default_value = "30s", value_parser = positive_duration)]
    ping_interval: Duration,
    /// Close a connection that does not answer a ping within this time.
    #[arg(long, value_name = "DURATION", help_heading = TIMES, default_value = "30s", value_parser = positive_duration)]
    pong_timeout: Duration,

    /// Maximum concurrent requests per connection; status, signals and terminate never wait.
    #[arg(long, value_name = "COUNT", help_heading = LIMITS, default_value = "1024")]
    concurrent_requests: NonZeroUsize,
    /// Maximum number of open connections.
    #[arg(long, value_name = "COUNT", help_heading = LIMITS, default_value = "2048")]
    max_connections: NonZeroUsize,
    /// Maximum number of sessions.
    #[arg(long, value_name = "COUNT", help_heading = LIMITS, default_value = "4096")]
    max_sessions: NonZeroUsize,
    /// Maximum number of processes per session; finished ones that can still be read make room, oldest first.
    #[arg(long, value_name = "COUNT", help_heading = LIMITS, default_value = "4096")]
    max_processes: NonZeroUsize,
    /// Maximum size of one message from a client.
    #[arg(long, value_name = "BYTES", help_heading = LIMITS, default_value = "67108864")]
    max_message_bytes: NonZeroUsize,
    /// Maximum output per process that clients can ask the server to retain for late readers.
    #[arg(long, value_name = "BYTES", help_heading = LIMITS, default_value = "67108864")]
    max_retained_output: NonZeroUsize,
    /// Maximum size of the file that keeps the output of one process (outputSpool), at least 1 MiB.
    #[arg(long, value_name = "BYTES", help_heading = LIMITS, default_value = "268435456", value_parser = clap::value_parser!(u64).range(1_048_576..))]
    max_output_spool: u64,
    /// Maximum size of all such files together; 0 refuses them.
    #[arg(long, value_name = "BYTES", help_heading = LIMITS, default_value = "4294967296")]
    max_output_spools: u64,
    /// Maximum memory for replies that clients have not read yet, over all connections.
    #[arg(long, value_name = "BYTES", help_heading = LIMITS, default_value = "268435456")]
    max_reply_memory: NonZeroUsize,
    /// Maximum memory of a process and its descendants; needs a cgroup with the memory controller.
    #[arg(long, value_name = "BYTES", help_heading = LIMITS, value_parser = in_range(LimitName::MemoryBytes))]
    max_memory: Option<u64>,
    /// Maximum number of processes and threads of a process and its descendants; needs a cgroup with the pids
    /// controller. Sandboxed processes have at most 4096 without this option.
    #[arg(long, value_name = "COUNT", help_heading = LIMITS, value_parser = in_range(LimitName::Pids))]
    max_pids: Option<u64>,

    /// Allow http/request only to this host; * matches any characters. Repeatable; without it, all hosts are allowed.
    #[arg(long, value_name = "HOST[:PORT]", help_heading = HTTP)]
    http_allow: Vec<AllowedHost>,
    /// Allow http/request to link-local addresses and to metadata services of cloud providers.
    #[arg(long, help_heading = HTTP)]
    http_allow_metadata: bool,

    #[command(flatten)]
    audit: AuditOptions,
    #[command(flatten)]
    pub otlp: OtlpOptions,

    /// Accept /a/b as well as file:///a/b where a path is expected.
    #[arg(long)]
    accept_native_paths: bool,
    /// A cgroup (version 2) directory to divide among processes; without it, the server's own if it is delegated.
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Directory for persistent state; default: exec-server in $XDG_STATE_HOME or ~/.local/state.
    #[arg(long, value_name = "DIR", env = "EXEC_SERVER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Format of the log on stderr; RUST_LOG sets the log level.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub log_format: LogFormat,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show on this machine what a lost link, a killed relay and a sandbox mean for a command.
    ///
    /// Starts servers on loopback in a temporary directory, and removes both; takes under a minute. Exits with 1 if
    /// something else happened than what was to be shown.
    #[command(after_help = demo::EXAMPLES)]
    Demo(DemoArguments),
    /// Check what this machine or a server can enforce for sandboxed commands, and how to fix what is missing.
    ///
    /// Exits with 0 if everything that a policy can ask for is enforced, and with 1 if not.
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorArguments),
    /// Run a command on this machine under a sandbox policy.
    ///
    /// Exits with the code of the command, or 128 plus the number of the signal that ended it; 126 if it cannot be
    /// executed, 127 if it is not found, 125 if exec-server failed before the start.
    #[command(after_help = SANDBOX_EXAMPLES)]
    Sandbox(SandboxArguments),
    /// Client commands.
    #[command(flatten)]
    Client(ClientCommand),
    /// Host a registry and relay for executors and harnesses that cannot reach each other.
    ///
    /// Prints its URL as the first line on stdout, and an admin token on stderr at the first start.
    /// Traffic is encrypted end to end between executor and harness.
    #[command(after_help = RENDEZVOUS_EXAMPLES)]
    Rendezvous(Box<RendezvousArguments>),
    /// Forward harnesses from a rendezvous to a server that only this machine can reach.
    ///
    /// Registers like a server with --remote, and opens one websocket to the server for each harness. Messages are
    /// forwarded unread. Serves until SIGTERM or Ctrl-C.
    #[command(after_help = FORWARD_EXAMPLES)]
    Forward(Box<ForwardArguments>),
    /// Create, list, revoke and delete rendezvous tokens for executors, harnesses and admins.
    #[command(subcommand, after_help = examples::TOKEN)]
    Token(TokenCommand),
    /// List the environments of a rendezvous and whether their executors are online.
    #[command(after_help = examples::ENVIRONMENTS)]
    Environments(EnvironmentsArguments),
    /// List the nodes of a rendezvous cluster with their state and load.
    #[command(after_help = examples::NODES)]
    Nodes(NodesArguments),
    /// Check configuration files, and show where each setting comes from.
    #[command(subcommand, after_help = config::EXAMPLES)]
    Config(ConfigCommand),
    /// Install, show and remove services of systemd: a server, an executor or a rendezvous.
    #[command(subcommand, after_help = service::EXAMPLES)]
    Service(ServiceCommand),
    /// Say whether a newer release exists, at an address that you configure.
    ///
    /// Exits with 0 if this is the newest, with 10 if a newer one exists, and with 1 if that is not known.
    #[command(after_help = update::EXAMPLES)]
    Update(UpdateArguments),
    /// List the remembered keys of executors, or forget one.
    #[command(after_help = examples::KNOWN_HOSTS)]
    KnownHosts(KnownHostsArguments),
    /// Print the JSON Schema of the protocol.
    #[command(after_help = examples::SCHEMA)]
    Schema(SchemaArguments),
    /// Print a shell completion script.
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints candidates for a word; called by the completion scripts.
    #[command(name = "__complete", hide = true)]
    Complete(completion::CompleteArguments),
    /// Writes the man pages to a directory, for packages.
    #[command(name = "__man", hide = true)]
    Man {
        /// An existing directory.
        directory: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct RemoteArguments {
    /// Registry to join instead of listening; the token comes from EXEC_SERVER_REMOTE_TOKEN or _TOKEN_FILE.
    #[arg(
        long,
        value_name = "URL",
        help_heading = REMOTE,
        requires = "environment_id",
        conflicts_with_all = ["listen", "ws_auth", "tls_cert"]
    )]
    remote: Option<url::Url>,
    #[command(flatten)]
    join: JoinArguments,
}

/// How this machine registers at a registry.
#[derive(Debug, clap::Args)]
pub struct JoinArguments {
    /// Name of this machine at the registry; clients use it as env:NAME.
    #[arg(long, value_name = "ID", help_heading = REMOTE, requires = "remote")]
    environment_id: Option<String>,
    /// Name of this server in its own log; not sent to the registry.
    #[arg(long, value_name = "NAME", help_heading = REMOTE, requires = "remote")]
    name: Option<String>,
    /// File with the key that identifies this machine to clients; created on first use.
    #[arg(long, value_name = "FILE", help_heading = REMOTE, requires = "remote")]
    identity: Option<PathBuf>,
    /// CA certificates in PEM form, in place of the system's [default: $EXEC_SERVER_CA_FILE].
    #[arg(long, value_name = "FILE", help_heading = REMOTE, requires = "remote")]
    ca_file: Option<PathBuf>,
    /// File with the token for the registry, read for every request [default: $EXEC_SERVER_REMOTE_TOKEN_FILE].
    #[arg(long, value_name = "FILE", help_heading = REMOTE, requires = "remote")]
    remote_token_file: Option<PathBuf>,
    /// Read tokens for the registry from stdin, as JSON lines, until it is closed.
    #[arg(long, help_heading = REMOTE, requires = "remote", conflicts_with = "remote_token_file")]
    executor_credential_stdin: bool,
    /// Read one token for the registry from the first line of stdin; further input is ignored.
    #[arg(
        long,
        help_heading = REMOTE,
        requires = "remote",
        conflicts_with_all = ["executor_credential_stdin", "remote_token_file"]
    )]
    registration_bearer_stdin: bool,
    /// Sign requests to the registry with the agent identity in CODEX_ACCESS_TOKEN.
    #[arg(
        long,
        help_heading = REMOTE,
        requires = "remote",
        conflicts_with_all = ["executor_credential_stdin", "registration_bearer_stdin", "remote_token_file"]
    )]
    use_agent_identity_auth: bool,
}

#[derive(Debug, clap::Args)]
struct AuthArguments {
    /// Credential that clients must send in the Authorization header.
    #[arg(long, value_name = "KIND", help_heading = AUTHENTICATION)]
    ws_auth: Option<AuthKind>,
    /// File with the token, at least 16 bytes (capability-token); read again when it changes.
    #[arg(long, value_name = "FILE", help_heading = AUTHENTICATION)]
    ws_token_file: Option<PathBuf>,
    /// SHA-256 of the token, as 64 hex digits (capability-token).
    #[arg(long, value_name = "HEX", help_heading = AUTHENTICATION)]
    ws_token_sha256: Option<String>,
    /// File with the secret that tokens are signed with, at least 32 bytes (signed-bearer-token).
    #[arg(long, value_name = "FILE", help_heading = AUTHENTICATION)]
    ws_shared_secret_file: Option<PathBuf>,
    /// Required issuer (signed-bearer-token).
    #[arg(long, value_name = "TEXT", help_heading = AUTHENTICATION)]
    ws_issuer: Option<String>,
    /// Required audience (signed-bearer-token).
    #[arg(long, value_name = "TEXT", help_heading = AUTHENTICATION)]
    ws_audience: Option<String>,
    /// Allowed clock difference (signed-bearer-token); default 30.
    #[arg(long, value_name = "SECONDS", help_heading = AUTHENTICATION)]
    ws_max_clock_skew_seconds: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AuthKind {
    /// One secret token.
    CapabilityToken,
    /// A JWT signed with HS256.
    SignedBearerToken,
}

/// Invalid arguments.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// Invalid `--listen`.
    #[error(transparent)]
    Listen(#[from] exec_server::ExecServerListenUrlParseError),
    /// Arguments that contradict each other.
    #[error("{0}")]
    Combination(&'static str),
    /// The secret file cannot be read.
    #[error(transparent)]
    Secret(#[from] TokenFileError),
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] exec_server::state_dir::StateDirError),
    /// An option of the reference that cannot be honoured here.
    #[error(transparent)]
    Reference(#[from] ReferenceOptionError),
    /// No credential for the registry.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The secret is too short.
    #[error("the secret in {} must be at least 32 bytes", .0.display())]
    ShortSecret(PathBuf),
}

impl Arguments {
    /// The server configuration of these arguments.
    pub fn server_config(&self) -> Result<ServerConfig, ArgumentError> {
        self.reference.check()?;
        let listen: ListenUrl = self.listen.parse()?;
        let auth = self.auth.build()?;
        if listen == ListenUrl::Stdio {
            if !matches!(auth, Auth::Open) {
                let reason = "WebSocket auth requires a WebSocket listener, not stdio";
                return Err(ArgumentError::Combination(reason));
            }
            if self.tls_cert.is_some() {
                return Err(ArgumentError::Combination(
                    "TLS requires a WebSocket listener, not stdio",
                ));
            }
        }
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                Some(TlsFiles { certificate: certificate.clone(), key: key.clone() })
            }
            _ if self.listen.starts_with("wss://") => {
                let reason = "wss:// needs a certificate: --tls-cert and --tls-key";
                return Err(ArgumentError::Combination(reason));
            }
            _ => None,
        };
        let native_paths =
            if self.accept_native_paths { NativePaths::Accept } else { NativePaths::Reject };
        let state_dir = exec_server::state_dir::find(self.state_dir.as_deref())?;
        Ok(ServerConfig {
            listen,
            inherited: None,
            remote: self.remote.build(state_dir.as_deref())?,
            auth,
            insecure_no_auth: self.insecure_no_auth,
            allow_other_users: self.allow_other_users,
            tls,
            metrics: self.metrics_listen,
            exit_on_stdin_close: self.stdin.exit_on_stdin_close,
            limits: ServerLimits {
                connections: self.max_connections.get(),
                sessions: self.max_sessions.get(),
                processes: self.max_processes.get(),
                message_bytes: self.max_message_bytes.get(),
                retained_output: self.max_retained_output.get(),
                output_spool: self.max_output_spool,
                output_spools: self.max_output_spools,
                reply_memory: self.max_reply_memory.get(),
                concurrent_requests: self.concurrent_requests.get(),
                ..ServerLimits::default()
            },
            timings: Timings {
                session_linger: self.session_linger,
                max_session_linger: self.max_session_linger,
                ping_interval: self.ping_interval,
                pong_deadline: self.pong_timeout,
                ..Timings::default()
            },
            native_paths,
            more_event_loops: event_loops() - 1,
            cgroup: self.cgroup.clone(),
            sandbox_fallback: self.sandbox.fallback(),
            sandbox_allow: self.sandbox.allowances(),
            process_limits: ProcessLimits {
                memory_bytes: self.max_memory,
                pids: self.max_pids,
                ..ProcessLimits::default()
            },
            runtime_paths: exec_server::ExecServerRuntimePaths::of_this_program(),
            http: EgressPolicy {
                allowed: self.http_allow.clone(),
                metadata: self.http_allow_metadata,
            },
            secret_files: self.secret_files(),
            tracer: Tracer::default(),
            audit: self.audit.config(),
            state_dir,
        })
    }
}

impl Arguments {
    fn secret_files(&self) -> Vec<PathBuf> {
        let mut files = self.auth.secret_files();
        files.extend(self.otlp.secret_file());
        files
    }
}

impl RemoteArguments {
    fn build(
        &self,
        state_dir: Option<&Path>,
    ) -> Result<Option<RemoteEnvironmentConfig>, ArgumentError> {
        self.remote.as_ref().map(|registry| self.join.build(registry, state_dir)).transpose()
    }
}

impl JoinArguments {
    /// The configuration for joining this registry.
    pub fn build(
        &self,
        registry: &url::Url,
        state_dir: Option<&Path>,
    ) -> Result<RemoteEnvironmentConfig, ArgumentError> {
        let environment_id = self.environment_id.clone().unwrap_or_default();
        if environment_id.trim().is_empty() {
            return Err(ArgumentError::Combination("--environment-id must not be empty"));
        }
        if !is_path_segment(&environment_id) {
            return Err(ArgumentError::Combination("--environment-id must be a name, not a place"));
        }
        let credential = if let Some(file) = &self.remote_token_file {
            Credential::from_file(file)?
        } else if self.executor_credential_stdin {
            Credential::from_stdin()
        } else if self.registration_bearer_stdin {
            Credential::from_line(std::io::stdin().lock())?
        } else if self.use_agent_identity_auth {
            let identity = AgentIdentity::from_environment(|name| std::env::var(name).ok());
            Credential::Agent(Arc::new(identity.map_err(CredentialError::from)?))
        } else {
            Credential::from_environment(|name| std::env::var(name).ok())?
        };
        // Not by clap, which would then require --remote whenever the variable is set.
        let of_variable = || {
            let path = std::env::var_os("EXEC_SERVER_CA_FILE").filter(|path| !path.is_empty());
            path.map(PathBuf::from)
        };
        let of_state_dir = || state_dir.map(|dir| dir.join("identity.json"));
        Ok(RemoteEnvironmentConfig {
            registry: registry.clone(),
            environment_id,
            name: self.name.clone(),
            credential,
            identity_file: self.identity.clone().or_else(of_state_dir),
            ca_file: self.ca_file.clone().or_else(of_variable),
        })
    }
}

impl AuthArguments {
    fn build(&self) -> Result<Auth, ArgumentError> {
        use ArgumentError::Combination;
        let has_token = self.ws_token_file.is_some() || self.ws_token_sha256.is_some();
        let has_jwt = self.ws_shared_secret_file.is_some()
            || self.ws_issuer.is_some()
            || self.ws_audience.is_some()
            || self.ws_max_clock_skew_seconds.is_some();
        match self.ws_auth {
            None if has_token || has_jwt => Err(Combination(
                "websocket auth flags require --ws-auth capability-token or signed-bearer-token",
            )),
            None => Ok(Auth::Open),
            Some(AuthKind::CapabilityToken) if has_jwt => Err(Combination(
                "--ws-shared-secret-file, --ws-issuer, --ws-audience and --ws-max-clock-skew-seconds \
                 require --ws-auth signed-bearer-token",
            )),
            Some(AuthKind::SignedBearerToken) if has_token => Err(Combination(
                "--ws-token-file and --ws-token-sha256 require --ws-auth capability-token",
            )),
            Some(AuthKind::CapabilityToken) => self.capability_token(),
            Some(AuthKind::SignedBearerToken) => self.signed_bearer(),
        }
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        [&self.ws_token_file, &self.ws_shared_secret_file].into_iter().flatten().cloned().collect()
    }

    fn capability_token(&self) -> Result<Auth, ArgumentError> {
        let expected = match (&self.ws_token_file, &self.ws_token_sha256) {
            (Some(file), None) => ExpectedToken::File(TokenFile::open(file)?),
            (None, Some(hex)) => ExpectedToken::Digest(
                parse_digest(hex)
                    .ok_or(ArgumentError::Combination("--ws-token-sha256 must be 64 hex digits"))?,
            ),
            _ => {
                return Err(ArgumentError::Combination(
                    "--ws-auth capability-token requires exactly one of --ws-token-file and --ws-token-sha256",
                ));
            }
        };
        Ok(Auth::CapabilityToken(expected))
    }

    fn signed_bearer(&self) -> Result<Auth, ArgumentError> {
        let Some(file) = &self.ws_shared_secret_file else {
            return Err(ArgumentError::Combination(
                "--ws-auth signed-bearer-token requires --ws-shared-secret-file",
            ));
        };
        let secret = read_shared_secret(file)?;
        let skew = self.ws_max_clock_skew_seconds.unwrap_or(30);
        let signed = SignedBearer::new(
            secret.as_bytes(),
            self.ws_issuer.as_deref(),
            self.ws_audience.as_deref(),
            skew,
        );
        Ok(Auth::SignedBearer(Box::new(signed.read_from(file))))
    }
}

/// One event loop per core; more than a few help only with many busy connections.
fn event_loops() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(8)
}

fn read_shared_secret(file: &Path) -> Result<String, ArgumentError> {
    let secret = exec_server::auth::read_secret(file)?;
    if secret.len() < exec_server::auth::MIN_SECRET_BYTES {
        return Err(ArgumentError::ShortSecret(file.to_owned()));
    }
    Ok(secret)
}

fn parse_digest(digits: &str) -> Option<[u8; 32]> {
    hex::decode(digits.trim())?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_examples_in_both_helps() {
        let mut command = Arguments::command();
        command.build();
        check_examples(&mut command);
    }

    fn check_examples(command: &mut clap::Command) {
        for help in [command.render_help(), command.render_long_help()] {
            assert!(help.to_string().contains("Examples:\n"), "{}", command.get_name());
        }
        let has_help =
            |command: &&mut clap::Command| command.get_name() != "help" && !command.is_hide_set();
        command.get_subcommands_mut().filter(has_help).for_each(check_examples);
    }

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
