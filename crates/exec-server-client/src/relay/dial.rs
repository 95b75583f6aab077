//! Dials an environment: asks the registry for a way, takes it, and checks who answers.
//!
//! Owner of the attempts after the first connection: the client's driver. The first one has nobody to repeat it, so that
//! it is patient here, for an executor that is just coming back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_machines::backoff::Backoff;
use exec_server_machines::noise::identity::Identity;
use exec_server_protocol::registry::ConnectResponse;
use exec_server_transport::connection::Wire;
use exec_server_transport::dial::{DialError, DialOptions, dial_relay};
use exec_server_transport::registry::{Header, Registry, RegistryError};
use exec_server_transport::relay_harness::HarnessWire;
use exec_server_transport::websocket::UpgradeFailure;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;
use uuid::Uuid;

use super::error::{RelayError, TokenError};
use super::fingerprint::KeyFingerprint;
use super::known_hosts::{Before, KnownHost};
use super::{ExecutorTrust, RelayNotice, TokenSource};
use crate::dial::{Dial, Dialing};
use crate::error::ExecServerError;

/// How often a first connection is tried again.
const FIRST_RETRIES: u32 = 4;
/// The time for all of that; an executor whose relay restarted is back well within.
const FIRST_PATIENCE: Duration = Duration::from_secs(14);
/// The pauses of that, the same as those of other harnesses.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The way to an environment; every connection gets a stream of its own.
pub struct RelayDial {
    pub(super) registry: Registry,
    pub(super) environment_id: String,
    pub(super) token: TokenSource,
    pub(super) account_id: Option<String>,
    pub(super) identity: Identity,
    pub(super) trust: ExecutorTrust,
    pub(super) relay: DialOptions,
    pub(super) timeout: Duration,
    pub(super) notices: Option<Arc<dyn Fn(RelayNotice) + Send + Sync>>,
    pub(super) state: Mutex<DialState>,
}

/// What is known from earlier connections of the same client.
#[derive(Default)]
pub(super) struct DialState {
    /// Whether there has been one, so that somebody repeats those that fail.
    was_connected: bool,
    /// Who answered last.
    executor: Option<KeyFingerprint>,
}

impl RelayDial {
    async fn open(&self) -> Result<Box<dyn Wire>, RelayError> {
        if self.state.lock().expect("no holder panics").was_connected {
            return self.attempt().await;
        }
        // Whoever has more time for a single step has it here, too.
        let patience = FIRST_PATIENCE.max(self.timeout);
        let give_up = Instant::now() + patience;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for retries_left in (0..=FIRST_RETRIES).rev() {
            let error = match timeout_at(give_up, self.attempt()).await {
                Ok(Err(error)) if error.is_worth_waiting() && retries_left > 0 => error,
                Ok(result) => return result,
                Err(_) => {
                    return Err(RelayError::Timeout { who: "the environment", timeout: patience });
                }
            };
            let pause = backoff.next(fastrand::f64());
            if Instant::now() + pause >= give_up {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "no way to the environment yet");
            let environment_id = self.environment_id.clone();
            self.notify(RelayNotice::Waiting { environment_id, error: Arc::new(error) });
            tokio::time::sleep(pause).await;
        }
        unreachable!("the last attempt is returned, whatever it came to")
    }

    /// One way, one socket, one stream.
    async fn attempt(&self) -> Result<Box<dyn Wire>, RelayError> {
        let mut way = self.ask().await?;
        let socket = match self.take(&way).await {
            // The way was used or is too old; the next one says whether the executor is there at all.
            Err(RelayError::Relay(DialError::Upgrade(UpgradeFailure::Status(401)))) => {
                way = self.ask().await?;
                self.take(&way).await?
            }
            taken => taken?,
        };
        let stream_id = Uuid::new_v4().to_string();
        let (environment_id, executor) = (&self.environment_id, &way.executor_public_key);
        // Everybody on the way calls it by this name.
        tracing::debug!(environment_id, stream_id, "opening a stream");
        let opening = HarnessWire::open(socket, stream_id.clone(), &self.identity, &way, executor);
        let opened = match timeout(self.timeout, opening).await {
            Ok(opened) => opened.map_err(RelayError::Stream),
            Err(_) => Err(self.late("the executor")),
        };
        let wire = opened.inspect_err(|error| {
            tracing::info!(environment_id, stream_id, %error, "no stream to the executor");
        })?;
        tracing::info!(environment_id, stream_id, "a stream to the executor");
        // Only now it has proved that the key is its own.
        self.remember(KeyFingerprint::of(executor)).await?;
        Ok(Box::new(wire))
    }

    /// A way to the executor that is believed to be the right one.
    async fn ask(&self) -> Result<ConnectResponse, RelayError> {
        let harness = self.identity.public_key();
        let way = self.registry.connect(&self.environment_id, &self.headers()?, &harness).await?;
        self.check(&KeyFingerprint::of(&way.executor_public_key))?;
        Ok(way)
    }

    async fn take(&self, way: &ConnectResponse) -> Result<Box<dyn Wire>, RelayError> {
        let url = Url::parse(&way.url).ok().filter(|url| matches!(url.scheme(), "ws" | "wss"));
        let url = url.ok_or_else(|| {
            RegistryError::Malformed("it names no websocket of a relay".to_owned())
        })?;
        match timeout(self.timeout, dial_relay(&url, &self.relay)).await {
            Ok(socket) => socket.map_err(RelayError::Relay),
            Err(_) => Err(self.late("the relay")),
        }
    }

    fn late(&self, who: &'static str) -> RelayError {
        RelayError::Timeout { who, timeout: self.timeout }
    }

    fn headers(&self) -> Result<Vec<Header>, RelayError> {
        let token = self.token.read()?;
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| TokenError::Unusable)?;
        bearer.set_sensitive(true);
        let mut headers = vec![(AUTHORIZATION, bearer)];
        if let Some(account_id) = &self.account_id {
            let account = HeaderValue::from_str(account_id).map_err(|_| TokenError::Unusable)?;
            headers.push((HeaderName::from_static("chatgpt-account-id"), account));
        }
        Ok(headers)
    }

    /// Whether this is who should be there, as far as anybody knows.
    fn check(&self, found: &KeyFingerprint) -> Result<(), RelayError> {
        let (expected, known_hosts) = match &self.trust {
            ExecutorTrust::Exactly(expected) => (Some(expected.clone()), None),
            ExecutorTrust::OnFirstUse(hosts) => {
                let known = hosts.get(&self.registry.name(), &self.environment_id)?;
                (known, Some(hosts.path().to_owned()))
            }
            // Another one cannot have the session of this one; whoever comes after that gets a new session.
            ExecutorTrust::Registry => {
                let mut state = self.state.lock().expect("no holder panics");
                (state.executor.take_if(|last| last != found), None)
            }
        };
        match expected {
            Some(expected) if expected != *found => {
                Err(RelayError::AnotherKey { found: found.clone(), expected, known_hosts })
            }
            _ => Ok(()),
        }
    }

    async fn remember(&self, found: KeyFingerprint) -> Result<(), RelayError> {
        if let ExecutorTrust::OnFirstUse(hosts) = &self.trust {
            let host = KnownHost {
                registry: self.registry.name(),
                environment_id: self.environment_id.clone(),
                fingerprint: found.clone(),
            };
            let list = hosts.clone();
            let remembering = tokio::task::spawn_blocking(move || list.remember(&host));
            match remembering.await.expect("the task does not panic")? {
                Before::Same => {}
                Before::Unknown => self.notify(RelayNotice::FirstMet {
                    environment_id: self.environment_id.clone(),
                    fingerprint: found.clone(),
                }),
                // Another client met somebody else meanwhile.
                Before::Other(expected) => {
                    let known_hosts = Some(hosts.path().to_owned());
                    return Err(RelayError::AnotherKey { found, expected, known_hosts });
                }
            }
        }
        let mut state = self.state.lock().expect("no holder panics");
        state.was_connected = true;
        state.executor = Some(found);
        Ok(())
    }

    fn notify(&self, notice: RelayNotice) {
        if let Some(notices) = &self.notices {
            notices(notice);
        }
    }
}

impl Dial for RelayDial {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            self.open().await.map_err(|error| ExecServerError::Relay {
                environment_id: self.environment_id.clone(),
                registry: self.registry.name(),
                source: Arc::new(error),
            })
        })
    }

    fn can_resume(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("environment `{}` at {}", self.environment_id, self.registry.name())
    }
}
