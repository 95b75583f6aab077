//! Connects to an environment: gets a relay URL from the registry, opens a stream, and verifies the executor's key.
//!
//! The client's driver retries every connection but the first. The first one is retried here, for an executor that is
//! just reconnecting.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_core::backoff::Backoff;
use exec_server_protocol::trace_context::TraceContext;
use exec_server_relay::harness_wire::HarnessWire;
use exec_server_relay::noise::identity::Identity;
use exec_server_relay::registry_client::{Header, Registry, RegistryError};
use exec_server_relay::registry_types::ConnectResponse;
use exec_server_transport::connection::Wire;
use exec_server_transport::dial::{DialError, DialOptions, dial_relay};
use exec_server_transport::websocket::UpgradeFailure;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;
use uuid::Uuid;

use super::error::{RelayError, TokenError};
use super::known_hosts::{Before, KnownHost};
use super::{ExecutorTrust, RelayNotice, TokenSource};
use crate::dial::{Dial, Dialing};
use crate::error::ExecServerError;
use crate::trace::Tracing;
use exec_server_relay::fingerprint::KeyFingerprint;

/// Retries of a first connection.
const FIRST_RETRIES: u32 = 4;
/// Timeout of a first connection with its retries; an executor whose relay restarted is back well within.
const FIRST_TIMEOUT: Duration = Duration::from_secs(14);
/// Pauses between the retries, the same as those of other harnesses.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Opens a new encrypted stream to an environment for every connection.
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
    pub(super) tracing: Tracing,
    pub(super) state: Mutex<DialState>,
}

/// State from earlier connections of the same client.
#[derive(Default)]
pub(super) struct DialState {
    /// Whether there was a connection, after which the driver retries failed attempts.
    was_connected: bool,
    /// The key of the last executor.
    executor: Option<KeyFingerprint>,
}

impl RelayDial {
    async fn open(&self) -> Result<Box<dyn Wire>, RelayError> {
        if self.state.lock().expect("no holder panics").was_connected {
            return self.attempt().await;
        }
        // A longer timeout for a single step extends the total.
        let timeout = FIRST_TIMEOUT.max(self.timeout);
        let give_up = Instant::now() + timeout;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for retries_left in (0..=FIRST_RETRIES).rev() {
            let error = match timeout_at(give_up, self.attempt()).await {
                Ok(Err(error)) if error.is_worth_waiting() && retries_left > 0 => error,
                Ok(result) => return result,
                Err(_) => {
                    return Err(RelayError::Timeout { who: "the environment", timeout });
                }
            };
            let pause = backoff.next(fastrand::f64());
            if Instant::now() + pause >= give_up {
                return Err(error);
            }
            tracing::debug!(%error, ?pause, "cannot reach the environment yet");
            let environment_id = self.environment_id.clone();
            self.notify(RelayNotice::Waiting { environment_id, error: Arc::new(error) });
            tokio::time::sleep(pause).await;
        }
        unreachable!("the last attempt is returned, whatever it came to")
    }

    /// Gets one relay URL, opens one socket and one stream.
    async fn attempt(&self) -> Result<Box<dyn Wire>, RelayError> {
        let mut response = self.ask().await?;
        let socket = match self.take(&response).await {
            // The relay URL was used or has expired; a new one shows whether the executor is connected.
            Err(RelayError::Relay(DialError::Upgrade(UpgradeFailure::Status(401)))) => {
                response = self.ask().await?;
                self.take(&response).await?
            }
            taken => taken?,
        };
        let stream_id = Uuid::new_v4().to_string();
        let (environment_id, executor) = (&self.environment_id, &response.executor_public_key);
        // The relay and the executor log the same stream id.
        tracing::debug!(environment_id, stream_id, "opening a stream");
        let opening =
            HarnessWire::open(socket, stream_id.clone(), &self.identity, &response, executor);
        let opened = match timeout(self.timeout, opening).await {
            Ok(opened) => opened.map_err(RelayError::Stream),
            Err(_) => Err(self.late("the executor")),
        };
        let wire = opened.inspect_err(|error| {
            tracing::info!(environment_id, stream_id, %error, "no stream to the executor");
        })?;
        tracing::info!(environment_id, stream_id, "a stream to the executor");
        // The handshake has proved that the executor owns the key.
        self.remember(KeyFingerprint::of(executor)).await?;
        Ok(Box::new(wire))
    }

    /// Gets a relay URL from the registry and checks the executor's key that comes with it.
    async fn ask(&self) -> Result<ConnectResponse, RelayError> {
        let harness = self.identity.public_key();
        let (mut span, trace) = self.tracing.begin("registry/connect");
        let mut headers = self.headers()?;
        headers.extend(trace.iter().flat_map(trace_headers));
        let response = self.registry.connect(&self.environment_id, &headers, &harness).await;
        let response = response.inspect_err(|_| span.fail("registry"))?;
        drop(span);
        self.check(&KeyFingerprint::of(&response.executor_public_key))?;
        Ok(response)
    }

    async fn take(&self, response: &ConnectResponse) -> Result<Box<dyn Wire>, RelayError> {
        let url = Url::parse(&response.url).ok().filter(|url| matches!(url.scheme(), "ws" | "wss"));
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

    /// Checks the executor's key against the pinned or expected one.
    fn check(&self, found: &KeyFingerprint) -> Result<(), RelayError> {
        let (expected, known_hosts) = match &self.trust {
            ExecutorTrust::Exactly(expected) => (Some(expected.clone()), None),
            ExecutorTrust::OnFirstUse(hosts) => {
                let known = hosts.get(&self.registry.name(), &self.environment_id)?;
                (known, Some(hosts.path().to_owned()))
            }
            // Another executor cannot have this session: one attempt fails, and the next accepts the new key.
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
                // Another client has pinned another key meanwhile.
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

/// The headers of the W3C recommendation.
fn trace_headers(context: &TraceContext) -> Vec<Header> {
    let headers =
        [("traceparent", Some(context.traceparent())), ("tracestate", context.state.clone())];
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
    headers
        .filter_map(|(name, value)| {
            Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?))
        })
        .collect()
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
