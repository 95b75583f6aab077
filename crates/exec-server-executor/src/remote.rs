//! Serves harnesses through a relay: registers, keeps one relay socket, and reconnects.
//!
//! ```text
//! registering ─ok▶ connecting ─ok▶ attached ─socket lost▶ connecting
//!      ▲                └─refused, or not reachable for a while─┐
//!      └─────────────────────────────────────────────────────────┘
//! ```
//!
//! Owner: one task per server. It ends at shutdown, on a permanent rejection by the registry, or if no credential can
//! be obtained. Every other failure is followed by a pause, and the pauses grow until a socket was useful.

pub(crate) mod credential;
mod forward;
mod stream_handler;

use std::future::pending;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exec_server_core::backoff::Backoff;
use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_relay::identity_file;
pub use exec_server_relay::identity_file::IdentityFileError;
use exec_server_relay::mux::Mux;
use exec_server_relay::mux_task::run_relay;
use exec_server_relay::noise::identity::{Identity, fingerprint};
use exec_server_relay::registry_client::{Registry, RegistryError, RegistryUrlError};
use exec_server_relay::registry_types::{RegisterRequest, RegisterResponse, SECURITY_PROFILE};
use exec_server_transport::connection::{KeepaliveConfig, Wire};
use exec_server_transport::dial::{DialError, DialOptions, dial_relay};
use exec_server_transport::proxy::Proxies;
use exec_server_transport::tls::{self, TlsError};
use exec_server_transport::websocket::UpgradeFailure;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

pub use self::credential::{Credential, CredentialError};
pub use self::forward::{ForwardConfig, run_forward};
use self::stream_handler::{Host, RegistryValidator, StreamHandler};
use crate::auth::TokenFileError;
pub use crate::codex::agent_identity::{AgentIdentity, AgentIdentityError};
use crate::server::Server;

/// How an executor registers with a registry.
#[derive(Debug)]
pub struct RemoteEnvironmentConfig {
    /// The base URL of the registry.
    pub registry: Url,
    /// The id by which harnesses request this executor.
    pub environment_id: String,
    /// A name for the log only; registries take no names.
    pub name: Option<String>,
    /// Authenticates requests to the registry.
    pub credential: Credential,
    /// The file of the executor's key; without one, every start creates a new key.
    pub identity_file: Option<PathBuf>,
    /// A PEM file of trusted authorities that replaces the system's.
    pub ca_file: Option<PathBuf>,
}

/// Why an executor is permanently unreachable through its registry.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The key cannot be read or stored.
    #[error(transparent)]
    Identity(#[from] IdentityFileError),
    /// The registry URL is invalid.
    #[error(transparent)]
    Registry(#[from] RegistryUrlError),
    /// The trusted certificates could not be loaded.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token would be sent unencrypted.
    #[error(
        "refusing to send a credential to {0} without TLS; use https://, or http:// on loopback only"
    )]
    InTheClear(String),
    /// The credential is missing or invalid.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The token for the server behind a forwarder cannot be read.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The registry rejected the registration permanently.
    #[error("could not register environment `{environment_id}`")]
    Refused {
        /// The requested id.
        environment_id: String,
        /// The response of the registry.
        source: RegistryError,
    },
}

/// The timeout of a registration or a validation.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of connecting the websocket to the relay.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After this many failed attempts the relay may have moved, so the executor registers again.
const ATTEMPTS_BEFORE_ASKING_AGAIN: u32 = 3;
/// A socket that lasted this long, or that carried a harness, was useful: the backoff is reset.
const GOOD_SOCKET: Duration = Duration::from_secs(10);
/// The longest pause after a useful socket. Harnesses wait for the reconnect, and usually only the socket was lost.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// The longest first pause after a failure; spreads the executors that reconnect to a restarted relay.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest later pause: well within the time for which a harness tries to resume its session.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause while harnesses may still try to resume a session: they stop after a minute, so every second counts.
const AWAITED_PAUSE: Duration = Duration::from_secs(2);
/// For how long after the end of a useful socket this is so.
const AWAITED: Duration = Duration::from_secs(90);

/// The longest name or URL in the line on stdout.
const MAX_SHOWN_CHARS: usize = 200;

/// Keepalive of relay sockets, harness streams and forwarded connections.
const PINGS: KeepaliveConfig =
    KeepaliveConfig { interval: Duration::from_secs(20), deadline: Duration::from_secs(40) };

/// Handle of the task that keeps a server attached to its relay.
pub(crate) struct RemoteRun {
    task: JoinHandle<Result<(), RemoteError>>,
    leave: watch::Sender<bool>,
}

/// How long queued messages may take to reach harnesses at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl RemoteRun {
    /// Starts the task, if a relay is configured.
    pub fn start(server: &Arc<Server>) -> Option<Self> {
        server.config.remote.as_ref()?;
        let (leave, leaving) = watch::channel(false);
        let server = server.clone();
        let task = tokio::spawn(async move {
            let config = server.config.remote.as_ref().expect("checked above");
            let registered = AtomicBool::new(false);
            let reading = read_stdin(config, &registered);
            let handler = Arc::new(server.clone());
            let announcement = Announcement::Stdout;
            let running = receive_harnesses(handler, config, leaving, announcement, &registered);
            tokio::select! {
                ended = running => ended,
                ended = reading => Ok(ended?),
            }
        });
        Some(Self { task, leave })
    }

    /// Waits for the end of the task; for ever without one.
    pub async fn ended(run: &mut Option<Self>) -> Result<(), RemoteError> {
        match run {
            Some(run) => (&mut run.task).await.expect("the task does not panic"),
            None => std::future::pending().await,
        }
    }

    /// Closes the relay socket, after all connections have ended.
    pub async fn leave(mut self) {
        self.leave.send_replace(true);
        // A relay that does not read is disconnected without a close.
        if tokio::time::timeout(CLOSE_TIMEOUT, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Reads tokens from stdin, if they come from there. The end of stdin stops the server, and is an error before the
/// first registration.
async fn read_stdin(
    config: &RemoteEnvironmentConfig,
    registered: &AtomicBool,
) -> Result<(), CredentialError> {
    let Credential::Stdin(tokens) = &config.credential else { return pending().await };
    let stdin = tokio::io::BufReader::new(tokio::io::stdin());
    credential::read_tokens(stdin, &config.environment_id, tokens).await?;
    if registered.load(Ordering::Relaxed) { Ok(()) } else { Err(CredentialError::EndedEarly) }
}

/// Serves harnesses from the relay until a permanent rejection by the registry, or until `leaving` is true.
pub async fn run_remote_environment(
    server: Arc<Server>,
    config: &RemoteEnvironmentConfig,
    leaving: watch::Receiver<bool>,
) -> Result<(), RemoteError> {
    let registered = AtomicBool::new(false);
    let announcement = Announcement::None;
    receive_harnesses(Arc::new(server), config, leaving, announcement, &registered).await
}

/// Where the first attachment to the relay is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announcement {
    /// Nowhere: stdout belongs to the program that embeds the server.
    None,
    /// One line on stdout, with the key fingerprint by which harnesses identify this executor.
    Stdout,
}

/// Registers, stays attached to the relay, and passes harness streams to `handler`.
async fn receive_harnesses(
    handler: Arc<dyn StreamHandler>,
    config: &RemoteEnvironmentConfig,
    leaving: watch::Receiver<bool>,
    announcement: Announcement,
    registered: &AtomicBool,
) -> Result<(), RemoteError> {
    let identity = identity_file::open(config.identity_file.as_deref())?;
    let dial = DialOptions {
        proxies: Proxies::from_environment(),
        authorities: config.ca_file.clone(),
        ..DialOptions::default()
    };
    let registry = Registry::new(config.registry.as_str(), dial.clone(), REGISTRY_TIMEOUT)?;
    if !registry.is_secure() {
        let host = config.registry.host_str().unwrap_or_default();
        return Err(RemoteError::InTheClear(host.to_owned()));
    }
    if config.registry.scheme() == "https" {
        // Checked at the start, because unreadable certificates would look like an outage later.
        tls::connector(dial.authorities.as_deref())?;
    }
    tracing::info!(
        environment_id = config.environment_id,
        name = config.name,
        fingerprint = fingerprint(&identity.public_key()),
        "joining"
    );
    let is_announced = AtomicBool::new(announcement == Announcement::None);
    let executor = Executor {
        handler,
        config,
        identity,
        registry,
        dial,
        leaving,
        is_announced,
        lost_at: Mutex::default(),
    };
    let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while !executor.is_leaving() {
        if let Some(registration) = executor.register(&mut pauses).await? {
            registered.store(true, Ordering::Relaxed);
            executor.stay_attached(&registration, &mut pauses).await;
        }
    }
    Ok(())
}

struct Executor<'a> {
    handler: Arc<dyn StreamHandler>,
    config: &'a RemoteEnvironmentConfig,
    identity: Identity,
    registry: Registry,
    dial: DialOptions,
    leaving: watch::Receiver<bool>,
    /// Whether the first attachment was announced, or is not to be announced.
    is_announced: AtomicBool,
    /// When the last useful socket ended.
    lost_at: Mutex<Option<Instant>>,
}

impl Executor<'_> {
    /// Registers, and retries unless the rejection is permanent. `None` at shutdown.
    async fn register(
        &self,
        pauses: &mut Backoff,
    ) -> Result<Option<RegisterResponse>, RemoteError> {
        while !self.is_leaving() {
            let cause = match self.try_to_register().await {
                Ok(Ok(registration)) => return Ok(Some(registration)),
                Ok(Err(
                    source @ (RegistryError::Auth { .. }
                    | RegistryError::Refused { status: 410, .. }),
                )) => {
                    let environment_id = self.config.environment_id.clone();
                    return Err(RemoteError::Refused { environment_id, source });
                }
                Ok(Err(error)) => crate::logging::chain(&error),
                // A new token may arrive at any time, from the parent process or in the file.
                Err(error @ CredentialError::Expired) => error.to_string(),
                Err(error @ CredentialError::File { .. }) => crate::logging::chain(&error),
                Err(CredentialError::Agent(error)) if error.is_passing() => {
                    crate::logging::chain(&error)
                }
                Err(error) => return Err(error.into()),
            };
            self.pause(pauses, "could not register", Some(&cause)).await;
        }
        Ok(None)
    }

    async fn try_to_register(
        &self,
    ) -> Result<Result<RegisterResponse, RegistryError>, CredentialError> {
        let headers = self.config.credential.headers().await?;
        let request = RegisterRequest {
            security_profile: SECURITY_PROFILE.into(),
            executor_public_key: self.identity.public_key(),
        };
        let id = &self.config.environment_id;
        let answer: Result<RegisterResponse, _> =
            self.registry.ask(id, "register", &headers, &request).await;
        Ok(answer.and_then(|registration| {
            let is_ours = registration.environment_id == *id
                && registration.security_profile == SECURITY_PROFILE
                && Url::parse(&registration.url)
                    .is_ok_and(|url| matches!(url.scheme(), "ws" | "wss") && url.has_host());
            if is_ours {
                Ok(registration)
            } else {
                Err(RegistryError::Malformed(
                    "it is not a registration of this environment".to_owned(),
                ))
            }
        }))
    }

    /// Keeps a relay socket until the relay rejects the registration or repeatedly cannot be reached.
    async fn stay_attached(&self, registration: &RegisterResponse, pauses: &mut Backoff) {
        let url = Url::parse(&registration.url).expect("checked in try_to_register");
        let mut failures = 0;
        while failures < ATTEMPTS_BEFORE_ASKING_AGAIN && !self.is_leaving() {
            let dialled =
                tokio::time::timeout(CONNECT_TIMEOUT, dial_relay(&url, &self.dial_options())).await;
            failures += 1;
            match dialled {
                Ok(Ok(socket)) => {
                    if self.serve(socket, registration).await {
                        *self.lost_at.lock().expect("no holder panics") = Some(Instant::now());
                        pauses.reset();
                        failures = 0;
                        self.wait(SHORT_PAUSE.mul_f64(fastrand::f64())).await;
                    } else {
                        self.pause(pauses, "the relay closed the socket early", None).await;
                    }
                }
                Ok(Err(DialError::Upgrade(UpgradeFailure::Status(status @ 400..500)))) => {
                    let cause = format!("it answered {status}");
                    self.pause(pauses, "the relay rejected this registration", Some(&cause)).await;
                    return;
                }
                Ok(Err(error)) => {
                    let cause = crate::logging::chain(&error);
                    self.pause(pauses, "could not reach the relay", Some(&cause)).await;
                }
                Err(_) => self.pause(pauses, "the relay does not answer", None).await,
            }
        }
    }

    /// Serves the harnesses of one socket until it closes; returns whether it was useful.
    async fn serve(&self, socket: Box<dyn Wire>, registration: &RegisterResponse) -> bool {
        let environment_id = &self.config.environment_id;
        tracing::info!(environment_id, "attached to the relay");
        self.announce();
        let since = Instant::now();
        let host = self.host(registration);
        let mux = Mux::new(
            self.identity.clone(),
            environment_id.clone(),
            registration.executor_registration_id.clone(),
        );
        let ended = run_relay(socket, mux, PINGS, &host, self.leaving.clone()).await;
        tracing::info!(environment_id, ?ended, "the relay socket has ended");
        host.has_served.load(Ordering::Relaxed) || since.elapsed() >= GOOD_SOCKET
    }

    /// Announces once that harnesses can connect, with the key fingerprint.
    fn announce(&self) {
        if self.is_announced.swap(true, Ordering::Relaxed) {
            return;
        }
        let key = fingerprint(&self.identity.public_key());
        let registry = escape_untrusted(self.config.registry.as_str(), MAX_SHOWN_CHARS);
        let name = escape_untrusted(&self.config.environment_id, MAX_SHOWN_CHARS);
        let line = format!("attached to {registry} as env:{name}, key {key}\n");
        let mut stdout = io::stdout().lock();
        // A failed write is ignored: the log has the same information.
        let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    }

    /// Logs a failure and waits before the next attempt.
    async fn pause(&self, pauses: &mut Backoff, what: &str, cause: Option<&str>) {
        if self.is_leaving() {
            return;
        }
        let lost_at = *self.lost_at.lock().expect("no holder panics");
        let is_awaited = lost_at.is_some_and(|lost_at| lost_at.elapsed() < AWAITED);
        let longest = if is_awaited { AWAITED_PAUSE } else { LONGEST_PAUSE };
        let pause = pauses.next_spread(fastrand::f64()).min(longest);
        tracing::warn!(cause, ?pause, "{what}; trying again");
        self.wait(pause).await;
    }

    /// Waits; returns early at shutdown or when a new token has arrived.
    async fn wait(&self, pause: Duration) {
        let mut leaving = self.leaving.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // A dropped sender is no request to leave, so this branch is then disabled.
            Ok(_) = leaving.wait_for(|leave| *leave) => {}
            () = self.config.credential.replaced() => {}
        }
    }

    fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Adds a request id, by which the attempt can be found in the relay's log.
    fn dial_options(&self) -> DialOptions {
        let id = format!("req_{}", uuid::Uuid::new_v4().simple());
        DialOptions { headers: vec![("x-request-id".to_owned(), id)], ..self.dial.clone() }
    }

    fn host(&self, registration: &RegisterResponse) -> Host {
        let asking = RegistryValidator {
            registry: self.registry.clone(),
            environment_id: self.config.environment_id.clone(),
            registration_id: registration.executor_registration_id.clone(),
            credential: self.config.credential.clone(),
        };
        Host {
            handler: self.handler.clone(),
            asking: Arc::new(asking),
            has_served: AtomicBool::new(false),
        }
    }
}
