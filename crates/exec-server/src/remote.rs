//! Serves harnesses that come through a relay: registers, keeps one socket, and comes back whenever that is lost.
//!
//! ```text
//! registering ─ok▶ connecting ─ok▶ attached ─socket lost▶ connecting
//!      ▲                └─refused, or not reachable for a while─┐
//!      └─────────────────────────────────────────────────────────┘
//! ```
//!
//! Owner: one task per server. Only a registry that says no for good ends it; an outage is waited for. Whatever failed,
//! a pause comes before the next attempt; the pauses grow until a socket was of use.

mod agent_identity;
mod credential;
mod forward;
mod reception;
mod sealed_box;
mod sign_in;

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exec_server_machines::backoff::Backoff;
use exec_server_machines::noise::identity::{Identity, fingerprint};
use exec_server_machines::relay::mux::Mux;
use exec_server_protocol::registry::{RegisterRequest, RegisterResponse, SECURITY_PROFILE};
use exec_server_transport::connection::{PingTimes, Wire};
use exec_server_transport::dial::{DialError, DialOptions, dial_relay};
use exec_server_transport::identity_file;
pub use exec_server_transport::identity_file::IdentityFileError;
use exec_server_transport::proxy::Proxies;
use exec_server_transport::registry::{Registry, RegistryError, RegistryUrlError};
use exec_server_transport::relay_mux::run_relay;
use exec_server_transport::tls::{self, TlsError};
use exec_server_transport::websocket::UpgradeFailure;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

pub use self::agent_identity::{AgentIdentity, AgentIdentityError};
pub use self::credential::{Credential, CredentialError};
pub use self::forward::{ForwardConfig, run_forward};
use self::reception::{Asking, Host, Reception};
use crate::auth::TokenFileError;
use crate::server::Server;

/// How an executor makes itself known to a registry.
#[derive(Debug)]
pub struct RemoteEnvironmentConfig {
    /// Where the registry is.
    pub registry: Url,
    /// What harnesses ask for.
    pub environment_id: String,
    /// What its own log calls it; registries take no names.
    pub name: Option<String>,
    /// How it proves that it may.
    pub credential: Credential,
    /// Where its key is kept; without a file it has a new one every time.
    pub identity_file: Option<PathBuf>,
    /// A PEM file of the authorities to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
}

/// Why an executor cannot be reached through its registry for good.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The key cannot be kept.
    #[error(transparent)]
    Identity(#[from] IdentityFileError),
    /// The registry's address is none.
    #[error(transparent)]
    Registry(#[from] RegistryUrlError),
    /// There is nobody to trust.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token would travel in the clear.
    #[error(
        "refusing to send a credential to {0} without TLS; use https://, or http:// on loopback only"
    )]
    InTheClear(String),
    /// The credential is gone or broken.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The token for the server behind a forwarder cannot be read.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The registry said no.
    #[error("could not register environment `{environment_id}`")]
    Refused {
        /// The environment.
        environment_id: String,
        /// What the registry said.
        source: RegistryError,
    },
}

/// A registration takes no longer than this, and a validation either.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(10);
/// The same for the websocket to the relay.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A relay that cannot be reached for so many attempts may have moved, so the registry is asked again.
const ATTEMPTS_BEFORE_ASKING_AGAIN: u32 = 3;
/// A socket that lasted this long, or by which somebody came in, was a good one: pauses begin with the shortest again.
const GOOD_SOCKET: Duration = Duration::from_secs(10);
/// The bound of the pause after a good socket: harnesses wait for the end of it, and most often only the socket is lost.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// The bound of the first pause after a failure: all executors of a relay that restarts share it.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The bound of all later ones: well within the time for which a harness tries to get its session back.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What is pinged, and when it counts as gone.
const PINGS: PingTimes =
    PingTimes { interval: Duration::from_secs(20), deadline: Duration::from_secs(40) };

/// The task that keeps a server within reach of its relay.
pub(crate) struct RemoteRun {
    task: JoinHandle<Result<(), RemoteError>>,
    leave: watch::Sender<bool>,
}

/// What is on its way to harnesses when the server stops may take this long.
const FAREWELL: Duration = Duration::from_secs(1);

impl RemoteRun {
    /// Begins, if the server is to be reached through a relay.
    pub fn start(server: &Arc<Server>) -> Option<Self> {
        server.config.remote.as_ref()?;
        let (leave, leaving) = watch::channel(false);
        let server = server.clone();
        let task = tokio::spawn(async move {
            let config = server.config.remote.as_ref().expect("was looked at");
            let reading = read_stdin(config);
            let running = run_remote_environment(server.clone(), config, leaving);
            tokio::select! {
                ended = running => ended,
                ended = reading => Ok(ended?),
            }
        });
        Some(Self { task, leave })
    }

    /// Waits until it is over, which it is only if the registry or the parent process says so.
    pub async fn ended(run: &mut Option<Self>) -> Result<(), RemoteError> {
        match run {
            Some(run) => (&mut run.task).await.expect("the task does not panic"),
            None => std::future::pending().await,
        }
    }

    /// Says goodbye to the relay, after all connections have ended.
    pub async fn leave(mut self) {
        self.leave.send_replace(true);
        // A relay that takes nothing is left without a word.
        if tokio::time::timeout(FAREWELL, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Takes tokens from stdin, if that is where they come from; its end is the end of the server.
async fn read_stdin(config: &RemoteEnvironmentConfig) -> Result<(), CredentialError> {
    let Credential::Stdin(tokens) = &config.credential else { return pending().await };
    let stdin = tokio::io::BufReader::new(tokio::io::stdin());
    credential::read_tokens(stdin, &config.environment_id, tokens).await
}

/// Serves harnesses that come through the relay, until the registry says no for good or it is time to leave.
pub async fn run_remote_environment(
    server: Arc<Server>,
    config: &RemoteEnvironmentConfig,
    leaving: watch::Receiver<bool>,
) -> Result<(), RemoteError> {
    receive_harnesses(Arc::new(server), config, leaving).await
}

/// Waits at the relay for harnesses, whatever becomes of them.
async fn receive_harnesses(
    reception: Arc<dyn Reception>,
    config: &RemoteEnvironmentConfig,
    leaving: watch::Receiver<bool>,
) -> Result<(), RemoteError> {
    let identity = identity_file::open(config.identity_file.as_deref())?;
    let dial = DialOptions {
        proxies: Proxies::from_environment(),
        authorities: config.ca_file.clone(),
        ..DialOptions::default()
    };
    let registry = Registry::new(config.registry.as_str(), dial.clone(), REGISTRY_PATIENCE)?;
    if !registry.is_secure() {
        let host = config.registry.host_str().unwrap_or_default();
        return Err(RemoteError::InTheClear(host.to_owned()));
    }
    if config.registry.scheme() == "https" {
        // Certificates that cannot be read now would look like an outage later.
        tls::connector(dial.authorities.as_deref())?;
    }
    tracing::info!(
        environment_id = config.environment_id,
        name = config.name,
        fingerprint = fingerprint(&identity.public_key()),
        "joining"
    );
    let executor = Executor { reception, config, identity, registry, dial, leaving };
    let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while !executor.is_leaving() {
        if let Some(registration) = executor.register(&mut pauses).await? {
            executor.stay_attached(&registration, &mut pauses).await;
        }
    }
    Ok(())
}

struct Executor<'a> {
    reception: Arc<dyn Reception>,
    config: &'a RemoteEnvironmentConfig,
    identity: Identity,
    registry: Registry,
    dial: DialOptions,
    leaving: watch::Receiver<bool>,
}

impl Executor<'_> {
    /// Registers; goes on trying unless the registry says no for good. None if it is time to leave.
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
                // Another may come at any time: from the parent process, or from whoever writes the file.
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
                Err(RegistryError::Malformed("it registered something else".to_owned()))
            }
        }))
    }

    /// Keeps a socket to the relay until the registration is worth nothing any more.
    async fn stay_attached(&self, registration: &RegisterResponse, pauses: &mut Backoff) {
        let url = Url::parse(&registration.url).expect("was checked when it came");
        let mut failures = 0;
        while failures < ATTEMPTS_BEFORE_ASKING_AGAIN && !self.is_leaving() {
            let dialled =
                tokio::time::timeout(CONNECT_PATIENCE, dial_relay(&url, &self.dial_options()))
                    .await;
            failures += 1;
            match dialled {
                Ok(Ok(socket)) => {
                    if self.serve(socket, registration).await {
                        pauses.reset();
                        failures = 0;
                        self.wait(SHORT_PAUSE.mul_f64(fastrand::f64())).await;
                    } else {
                        self.pause(pauses, "the relay did not last", None).await;
                    }
                }
                Ok(Err(DialError::Upgrade(UpgradeFailure::Status(status @ 400..500)))) => {
                    let cause = format!("it answered {status}");
                    self.pause(pauses, "the relay does not know this registration", Some(&cause))
                        .await;
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

    /// Serves those who come by a socket until it ends; whether it was of use.
    async fn serve(&self, socket: Box<dyn Wire>, registration: &RegisterResponse) -> bool {
        let environment_id = &self.config.environment_id;
        tracing::info!(environment_id, "attached to the relay");
        let since = Instant::now();
        let host = self.host(registration);
        let mux = Mux::new(
            self.identity.clone(),
            environment_id.clone(),
            registration.executor_registration_id.clone(),
        );
        let ended = run_relay(socket, mux, PINGS, &host, self.leaving.clone()).await;
        tracing::info!(environment_id, ?ended, "the relay is gone");
        host.has_served.load(Ordering::Relaxed) || since.elapsed() >= GOOD_SOCKET
    }

    /// Says what failed, and waits before the next attempt.
    async fn pause(&self, pauses: &mut Backoff, what: &str, cause: Option<&str>) {
        if self.is_leaving() {
            return;
        }
        let pause = pauses.next_spread(fastrand::f64());
        tracing::warn!(cause, ?pause, "{what}; trying again");
        self.wait(pause).await;
    }

    /// Waits, unless it is time to leave or there is a new token to try.
    async fn wait(&self, pause: Duration) {
        let mut leaving = self.leaving.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // An owner who has dropped the other half waits for the end of this task in another way.
            Ok(_) = leaving.wait_for(|leave| *leave) => {}
            () = self.config.credential.replaced() => {}
        }
    }

    fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Each attempt can be found in the relay's log.
    fn dial_options(&self) -> DialOptions {
        let id = format!("req_{}", uuid::Uuid::new_v4().simple());
        DialOptions { headers: vec![("x-request-id".to_owned(), id)], ..self.dial.clone() }
    }

    fn host(&self, registration: &RegisterResponse) -> Host {
        let asking = Asking {
            registry: self.registry.clone(),
            environment_id: self.config.environment_id.clone(),
            registration_id: registration.executor_registration_id.clone(),
            credential: self.config.credential.clone(),
        };
        Host {
            reception: self.reception.clone(),
            asking: Arc::new(asking),
            has_served: AtomicBool::new(false),
        }
    }
}
