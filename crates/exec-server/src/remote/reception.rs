//! What happens to a harness that comes through the relay: the registry is asked about it, then it is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_machines::noise::identity::fingerprint;
use exec_server_machines::relay::door::{Refusal, Verdict};
use exec_server_protocol::registry::{
    PublicKey, STREAM_ID_HEADER, ValidateRequest, ValidateResponse,
};
use exec_server_transport::connection::Connection;
use exec_server_transport::registry::Registry;
use exec_server_transport::relay_mux::{RelayHost, StreamWire};
use hyper::header::{HeaderName, HeaderValue};

use super::{Credential, PINGS};
use crate::auth::Principal;
use crate::connection::run_connection;
use crate::metrics::HANDSHAKE_OK;
use crate::server::Server;

/// Who takes care of harnesses that the registry has vouched for.
pub(super) trait Reception: Send + Sync {
    /// A harness came in; the wire is its stream.
    fn serve(&self, wire: StreamWire, harness: &PublicKey);

    /// A handshake came to this: `ok`, or the name of a refusal.
    fn count_handshake(&self, result: &'static str);
}

/// The server of this process.
impl Reception for Arc<Server> {
    fn count_handshake(&self, result: &'static str) {
        self.metrics.handshake(result);
    }

    fn serve(&self, wire: StreamWire, harness: &PublicKey) {
        let server = self.clone();
        let principal = Principal::Harness(fingerprint(harness));
        let connection = Connection::new(Box::new(wire), PINGS);
        self.spawn(async move {
            run_connection(server, connection, principal).await;
        });
    }
}

/// The door of one registration.
pub(super) struct Host {
    pub reception: Arc<dyn Reception>,
    pub asking: Arc<Asking>,
    /// Whether anybody came in.
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
        self.reception.count_handshake(HANDSHAKE_OK);
        self.reception.serve(wire, &harness);
    }

    fn refused(&self, stream_id: &str, why: Refusal) {
        self.reception.count_handshake(why.name());
        let why_text = why.to_string();
        match why {
            // The log has it from whoever asked, with the cause.
            Refusal::Refused | Refusal::Unchecked => {}
            Refusal::BadHandshake | Refusal::EarlyFrame => {
                tracing::warn!(stream_id, why = why_text, "a handshake failed");
            }
            // Nothing that one end does alone may fill the log.
            Refusal::TooManyStreams | Refusal::TooManyPending | Refusal::Cooldown => {
                tracing::info!(stream_id, why = why_text, "a harness was turned away");
            }
        }
    }
}

/// What is needed to ask about a harness.
pub(super) struct Asking {
    pub registry: Registry,
    pub environment_id: String,
    pub registration_id: String,
    pub credential: Credential,
}

impl Asking {
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
                tracing::info!(stream_id, harness = who, "a harness came in");
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
