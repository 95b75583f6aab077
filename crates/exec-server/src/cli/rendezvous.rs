//! `exec-server rendezvous`: a registry and relay for executors and harnesses that cannot reach each other directly.

mod store;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use exec_server::logging::LogFormat;
use exec_server::service_manager::ServiceManager;
use exec_server_os::inherited::{InheritedListener, InheritedListenerError, InheritedPlace};
use exec_server_relay::registry_client::is_secure;
use exec_server_rendezvous::bus::{NatsConfig, NatsError, NodeConfig};
use exec_server_rendezvous::clock::Clock;
use exec_server_rendezvous::config::{ClusterConfig, Limits, Timings};
use exec_server_rendezvous::{BoundRendezvous, RendezvousConfig, StartError};
use exec_server_transport::spans::Tracer;

use crate::cli::config_file::ConfigOption;
use crate::cli::limits::memory;
use crate::cli::otlp_options::{OtlpOptions, TelemetryError};
use crate::cli::registry::default_data_dir;
use crate::cli::token::quoted;
use crate::cli::{duration, positive_duration};
use store::{StoreCommand, StoreUrlSourceError};

/// Arguments of `rendezvous`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RendezvousArguments {
    #[command(subcommand)]
    command: Option<StoreCommand>,
    /// Address to listen on: http://IP:PORT, or https:// with --tls-cert; ws:// and wss:// mean the same.
    ///
    /// Use a fixed port: executors reconnect to the same address after a restart.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7780", value_parser = listen_address)]
    listen: ListenAddress,
    /// Directory for tokens, registrations and signing keys; readable by its owner only
    /// [default: EXEC_SERVER_RENDEZVOUS_DATA, or ~/.local/state/exec-server/rendezvous].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Keep all state in a PostgreSQL database that several nodes share: postgres://USER@HOST/DATABASE. A URL with a
    /// password comes from EXEC_SERVER_STORE, or from the file that EXEC_SERVER_STORE_FILE names.
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    store: Option<String>,
    /// With --store: the name of this node, unique among all nodes.
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// With --store: the URL that leads to this node alone; harnesses of its executors are sent there.
    #[arg(long, value_name = "URL")]
    node_url: Option<String>,
    /// With --store: the name of the cluster; a node refuses the database of another one.
    #[arg(long, value_name = "NAME", default_value = "main")]
    cluster: String,
    /// With --store: NATS servers by which nodes hear of each other at once and pass on streams:
    /// nats://HOST[:PORT][,HOST[:PORT]]. EXEC_SERVER_NATS_CREDENTIALS names a file with credentials: a .creds file, or
    /// USER:PASSWORD.
    #[arg(long, value_name = "URL[,URL]")]
    nats: Option<String>,
    /// With --store: how long a node that stops takes to close its executors, one after the other, so that they do not
    /// come to the other nodes all at once; 0s closes them together [default: 10s].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    drain_time: Option<Duration>,
    /// With --nats: how long a node that does not reach NATS or the database keeps its executors [default: 5s].
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, requires = "nats")]
    isolation_grace: Option<Duration>,
    /// With --nats: interval of heartbeats, 50ms to 700ms, the same on all nodes. A node that misses four is not used until it
    /// is heard again, and its streams to other nodes end [default: 100ms].
    #[arg(long, value_name = "DURATION", value_parser = heartbeat_interval, requires = "nats")]
    heartbeat_interval: Option<Duration>,
    /// With --store: the file with the signing keys, the same on all nodes.
    #[arg(long, value_name = "FILE")]
    signing_keys: Option<PathBuf>,
    /// Public URL: the name of a proxy in front of the rendezvous, or of this machine.
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Certificate chain in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key in PEM form.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve Prometheus metrics at http://IP:PORT/metrics; without it, only admins can read /metrics.
    #[arg(long, value_name = "IP:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// Maximum number of open connections [default: the limit of open files minus 256].
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<NonZeroUsize>,
    /// Bytes that may wait for slow readers, over all connections: 64m, 1g. One frame may always wait.
    #[arg(long, value_name = "BYTES", default_value = "256m", value_parser = buffer_budget)]
    buffer_budget: usize,
    /// Maximum number of harnesses per executor.
    #[arg(long, value_name = "COUNT", default_value = "256")]
    max_streams: NonZeroUsize,
    /// Interval between pings to executors and harnesses.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = positive_duration)]
    ping_interval: Duration,
    /// Close a connection that does not answer a ping within this time.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = positive_duration)]
    pong_timeout: Duration,
    #[command(flatten)]
    otlp: OtlpOptions,
    #[command(flatten)]
    config_file: ConfigOption,
    /// Format of the log on stderr; RUST_LOG sets the log level.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy)]
struct ListenAddress {
    address: SocketAddr,
    is_tls: bool,
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("https:// needs a certificate: --tls-cert and --tls-key")]
    NoCertificate,
    #[error(transparent)]
    Inherited(#[from] InheritedListenerError),
    #[error("could not read the address of the service manager's socket")]
    Place(#[source] io::Error),
    #[error(
        "the service manager passes a socket at {place}, and --listen says {wanted}: give both the same address, or disable \
         the .socket unit"
    )]
    OtherSocket { place: InheritedPlace, wanted: SocketAddr },
    #[error("no data directory: HOME is not set; use --data DIR")]
    NoData,
    #[error("a node of a cluster needs {0}")]
    Incomplete(&'static str),
    #[error("--node-url must be http://HOST or https://HOST, without query or fragment: {0}")]
    NodeUrl(String),
    #[error(transparent)]
    StoreUrl(#[from] StoreUrlSourceError),
    #[error("{0} needs a store that nodes share: --store URL")]
    WithoutStore(&'static str),
    #[error("could not read {}, which EXEC_SERVER_NATS_CREDENTIALS names", path.display())]
    NatsCredentials { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("could not set up the rendezvous")]
    SetUp(#[source] io::Error),
    #[error("could not write to stdout")]
    Stdout(#[source] io::Error),
}

/// Serves until a signal.
pub fn run(arguments: RendezvousArguments) -> ExitCode {
    // Taken before anything opens a descriptor.
    let inherited = match arguments.command {
        None => exec_server_os::inherited_listener().map_err(RunError::from),
        Some(_) => Ok(None),
    };
    exec_server_os::tune_allocator();
    exec_server_os::raise_open_file_limit();
    exec_server::logging::init(arguments.log_format);
    if let Some(command) = arguments.command {
        return store::run(command);
    }
    match inherited.and_then(|inherited| serve(arguments, inherited)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&error),
    }
}

fn serve(
    arguments: RendezvousArguments,
    inherited: Option<InheritedListener>,
) -> Result<(), RunError> {
    let telemetry = arguments.otlp.start("exec-server-rendezvous")?;
    let mut config = arguments.config()?;
    config.tracer = telemetry.tracer.clone();
    if let Some(listener) = inherited {
        inherit(&mut config, listener)?;
    }
    if let Some((_, key)) = &config.tls {
        exec_server_executor::auth::warn_about("TLS key", key);
    }
    let data = config.data.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(RunError::SetUp)?;
    let result = runtime.block_on(async {
        let stop = exec_server::stop_signal().map_err(RunError::SetUp)?;
        let bound = BoundRendezvous::bind(config).await?;
        let url = bound.base_url().to_owned();
        let Limits { connections, buffer_budget, .. } = *bound.limits();
        // Printed before the URL: a program that waits for the URL then finds the token.
        if let Some(token) = bound.admin_token() {
            eprintln!("This is a new rendezvous. Its admin token, which is not shown again:\n\n  {token}\n");
            eprintln!("Let a machine in with, from here:\n");
            let place = match default_data_dir() {
                Some(default) if default == data => String::new(),
                _ => format!(" --data {}", quoted(&data.to_string_lossy())),
            };
            eprintln!("  exec-server token create{place} --environment NAME --role executor\n");
            eprintln!("or from anywhere, with the token in EXEC_SERVER_ADMIN_TOKEN:\n");
            eprintln!("  exec-server token create --remote {url} --environment NAME --role executor\n");
        }
        if url::Url::parse(&url).is_ok_and(|url| !is_secure(&url)) {
            eprintln!(
                "exec-server: {url} is plain HTTP: clients will refuse to send tokens. Use a TLS proxy or --tls-cert"
            );
        }
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{url}").and_then(|()| stdout.flush()).map_err(RunError::Stdout)?;
        drop(stdout);
        tracing::info!(%url, max_connections = connections, buffer_budget, "listening");
        let manager = ServiceManager::from_environment();
        manager.ready(&format!("listening on {url}"));
        let stop = async {
            stop.await;
            manager.stopping();
        };
        tokio::select! {
            () = bound.serve(stop) => {}
            () = manager.run_watchdog() => {}
        }
        Ok(())
    });
    // A failure is in the log already.
    let _ = telemetry.finish();
    result
}

/// Listens on the socket of a service manager, which must be bound to the address of `--listen`.
fn inherit(config: &mut RendezvousConfig, listener: InheritedListener) -> Result<(), RunError> {
    let place = listener.place().map_err(RunError::Place)?;
    match listener {
        InheritedListener::Tcp(listener)
            if config.listen.port() == 0 || place == InheritedPlace::Tcp(config.listen) =>
        {
            config.listen = listener.local_addr().map_err(RunError::Place)?;
            config.inherited = Some(Arc::new(listener));
            Ok(())
        }
        _ => Err(RunError::OtherSocket { place, wanted: config.listen }),
    }
}

impl RendezvousArguments {
    fn config(self) -> Result<RendezvousConfig, RunError> {
        let tls = self.tls_cert.zip(self.tls_key);
        if self.listen.is_tls && tls.is_none() {
            return Err(RunError::NoCertificate);
        }
        let shared = match self.data {
            Some(_) => None,
            None => store::store_url(self.store)?,
        };
        let nats = nats(self.nats.as_deref())?;
        let cluster = match shared {
            None if nats.is_some() => return Err(RunError::WithoutStore("--nats")),
            None if self.drain_time.is_some() => {
                return Err(RunError::WithoutStore("--drain-time"));
            }
            None => None,
            Some(store) => Some(ClusterConfig {
                store,
                node: NodeConfig {
                    id: self.node_id.ok_or(RunError::Incomplete("--node-id NAME"))?,
                    url: node_url(self.node_url)?,
                },
                name: self.cluster,
                signing_keys: self.signing_keys.ok_or(RunError::Incomplete(
                    "--signing-keys FILE, with one line: an id, a space, and 32 bytes in hex, such as of `openssl rand -hex 32`",
                ))?,
                nats,
                drain_time: self.drain_time.unwrap_or(DRAIN_TIME),
                isolation_grace: self.isolation_grace.unwrap_or(ISOLATION_GRACE),
                heartbeat: self.heartbeat_interval.unwrap_or(HEARTBEAT),
            }),
        };
        let data = match &cluster {
            Some(_) => PathBuf::new(),
            None => self.data.or_else(default_data_dir).ok_or(RunError::NoData)?,
        };
        Ok(RendezvousConfig {
            listen: self.listen.address,
            inherited: None,
            data,
            cluster,
            public_url: self.public_url,
            tls,
            metrics: self.metrics_listen,
            limits: Limits {
                connections: self.max_connections.map_or_else(default_connections, usize::from),
                streams_per_environment: self.max_streams.get(),
                buffer_budget: self.buffer_budget,
                ..Limits::default()
            },
            timings: Timings {
                ping_interval: self.ping_interval,
                pong_deadline: self.pong_timeout,
                ..Timings::default()
            },
            clock: Clock::default(),
            tracer: Tracer::default(),
            release_memory: Some(exec_server_os::release_free_memory),
        })
    }
}

/// Spreads the executors of a full node to some thousand per second.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// Longer than the loss of a server that has a replacement.
const ISOLATION_GRACE: Duration = Duration::from_secs(5);

/// The end of a node is noticed within half a second.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// Descriptors for everything but connections: the database, listeners, logs, commands on the data directory.
const OTHER_DESCRIPTORS: u64 = 256;

/// As many connections as there are descriptors for.
fn default_connections() -> usize {
    let most = exec_server_os::open_file_limit().saturating_sub(OTHER_DESCRIPTORS);
    usize::try_from(most).unwrap_or(usize::MAX).max(1)
}

fn buffer_budget(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(memory(text)?).map_err(|_| "too large".to_owned())?;
    if bytes < LEAST_BUDGET { Err("must be at least 1m".to_owned()) } else { Ok(bytes) }
}

/// The share of a single stream.
const LEAST_BUDGET: usize = 1024 * 1024;

/// Four of the longest interval are shorter than a lease.
fn heartbeat_interval(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(50)..=Duration::from_millis(700);
    let given = duration(text)?;
    if range.contains(&given) { Ok(given) } else { Err("must be 50ms to 700ms".to_owned()) }
}

/// Where NATS is, and the credentials for it.
fn nats(urls: Option<&str>) -> Result<Option<NatsConfig>, RunError> {
    let Some(urls) = urls else { return Ok(None) };
    let path = std::env::var_os("EXEC_SERVER_NATS_CREDENTIALS").filter(|path| !path.is_empty());
    let credentials = match path.map(PathBuf::from) {
        None => None,
        Some(path) => match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(source) => return Err(RunError::NatsCredentials { path, source }),
        },
    };
    Ok(Some(NatsConfig::parse(urls, credentials.as_deref())?))
}

/// The URL of this node, without a slash at its end.
fn node_url(given: Option<String>) -> Result<String, RunError> {
    let given = given.ok_or(RunError::Incomplete("--node-url URL"))?;
    let url = url::Url::parse(given.trim()).ok().filter(|url| {
        let is_plain = url.query().is_none() && url.fragment().is_none();
        matches!(url.scheme(), "http" | "https") && is_plain && url.username().is_empty()
    });
    let url = url.ok_or(RunError::NodeUrl(given))?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn listen_address(text: &str) -> Result<ListenAddress, String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let is_tls = match scheme {
        "http" | "ws" => false,
        "https" | "wss" => true,
        _ => return Err("expected http://IP:PORT or https://IP:PORT".to_owned()),
    };
    let address = rest.strip_suffix('/').unwrap_or(rest).parse();
    let address = address.map_err(|_| "expected http://IP:PORT or https://IP:PORT".to_owned())?;
    Ok(ListenAddress { address, is_tls })
}
