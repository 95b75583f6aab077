//! Handles a harness stream from the relay: validates it with the registry, then serves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_relay::handshake_limit::{Refusal, Verdict};
use exec_server_relay::mux_task::{RelayHost, StreamWire};
use exec_server_relay::noise::identity::fingerprint;
use exec_server_relay::registry_client::Registry;
use exec_server_relay::registry_types::{
    PublicKey, STREAM_ID_HEADER, ValidateRequest, ValidateResponse,
};
use exec_server_transport::connection::Connection;
use hyper::header::{HeaderName, HeaderValue};

use super::{Credential, PINGS};
use crate::auth::{Authenticated, Principal};
use crate::connection::run_connection;
use crate::metrics::HANDSHAKE_OK;
use crate::server::Server;

/// Serves harnesses that the registry has validated.
pub(super) trait StreamHandler: Send + Sync {
    /// Serves a validated harness on its stream.
    fn serve(&self, wire: StreamWire, harness: &PublicKey);

    /// Counts the result of a handshake: `ok` or the name of a refusal.
    fn count_handshake(&self, result: &'static str);
}

/// Serves harnesses in this process.
impl StreamHandler for Arc<Server> {
    fn count_handshake(&self, result: &'static str) {
        self.metrics.handshake(result);
    }

    fn serve(&self, wire: StreamWire, harness: &PublicKey) {
        let server = self.clone();
        let harness = Authenticated::from(Principal::Harness(fingerprint(harness)));
        let harness = harness.from_origin("relay", None);
        let connection = Connection::new(Box::new(wire), PINGS);
        self.spawn(async move {
            run_connection(server, connection, harness).await;
        });
    }
}

/// Validates and serves the harness streams of one registration.
pub(super) struct Host {
    pub handler: Arc<dyn StreamHandler>,
    pub asking: Arc<RegistryValidator>,
    /// Whether a harness was admitted.
    pub has_served: AtomicBool,
}

impl RelayHost for Host {
    fn validate(
        &self,
        stream_id: String,
        harness: PublicKey,
        authorization: String,
    ) -> impl Future<Output = Verdict> + Send + 'static {
        let asking = self.asking.clone();
        async move { asking.validate(stream_id, harness, authorization).await }
    }

    fn serve(&self, wire: StreamWire, harness: PublicKey) {
        self.has_served.store(true, Ordering::Relaxed);
        self.handler.count_handshake(HANDSHAKE_OK);
        self.handler.serve(wire, &harness);
    }

    fn refused(&self, stream_id: &str, why: Refusal) {
        self.handler.count_handshake(why.name());
        let why_text = why.to_string();
        match why {
            // `RegistryValidator` has already logged the cause.
            Refusal::Refused | Refusal::Unchecked => {}
            Refusal::BadHandshake | Refusal::EarlyFrame => {
                tracing::warn!(stream_id, why = why_text, "a handshake failed");
            }
            // Not a warning, because a single peer can cause any number of these.
            Refusal::TooManyStreams | Refusal::TooManyPending | Refusal::Cooldown => {
                tracing::info!(stream_id, why = why_text, "a harness was rejected");
            }
        }
    }
}

/// Asks the registry whether a harness may connect.
pub(super) struct RegistryValidator {
    pub registry: Registry,
    pub environment_id: String,
    pub registration_id: String,
    pub credential: Credential,
}

impl RegistryValidator {
    async fn validate(
        &self,
        stream_id: String,
        harness: PublicKey,
        authorization: String,
    ) -> Verdict {
        let who = fingerprint(&harness);
        let mut headers = match self.credential.headers().await {
            Ok(headers) => headers,
            Err(error) => {
                let cause = crate::logging::chain(&error);
                tracing::warn!(stream_id, harness = who, cause, "a harness could not be checked");
                return Verdict::Unknown;
            }
        };
        if let Ok(value) = HeaderValue::from_str(&stream_id) {
            headers.push((HeaderName::from_static(STREAM_ID_HEADER), value));
        }
        let request = ValidateRequest {
            executor_registration_id: self.registration_id.clone(),
            harness_public_key: harness,
            harness_key_authorization: authorization,
        };
        let answer: Result<ValidateResponse, _> =
            self.registry.ask(&self.environment_id, "validate", &headers, &request).await;
        match answer {
            Ok(ValidateResponse { valid: true }) => {
                tracing::info!(stream_id, harness = who, "harness admitted");
                Verdict::Allowed
            }
            Ok(ValidateResponse { valid: false }) => {
                tracing::warn!(stream_id, harness = who, "the registry refused a harness");
                Verdict::Refused
            }
            Err(error) => {
                let cause = crate::logging::chain(&error);
                tracing::warn!(stream_id, harness = who, cause, "a harness could not be checked");
                Verdict::Unknown
            }
        }
    }
}
