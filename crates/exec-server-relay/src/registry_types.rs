//! JSON requests and responses between a registry and its executors and harnesses.
//!
//! Unknown members are ignored, except inside a key: both sides must agree on everything that is trusted.

use serde::{Deserialize, Serialize};

use exec_server_protocol::base64;

/// The registry's name for the only supported stream encryption.
pub const SECURITY_PROFILE: &str = "noise_hybrid_ik_v1";

/// The suite name in public keys. The protocol name that Noise hashes has `25519` without the `X`.
pub const KEY_SUITE: &str = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256";

/// The length of the X25519 half of a public key.
pub const X25519_PUBLIC_KEY_BYTES: usize = 32;

/// The length of the ML-KEM-768 half of a public key.
pub const MLKEM768_PUBLIC_KEY_BYTES: usize = 1184;

/// An executor rejects a longer authorization.
pub const MAX_AUTHORIZATION_BYTES: usize = 4096;

/// Header of a validation request with the stream id, to correlate logs.
pub const STREAM_ID_HEADER: &str = "x-codex-noise-stream-id";

/// Response header in which a rendezvous gives the reason for refusing a websocket.
pub const REJECTION_REASON_HEADER: &str = "x-codex-rendezvous-rejection-reason";

/// Header with which `exec-server forward` passes the harness's key fingerprint to a server.
///
/// A server that supports it separates the sessions of each key; it grants no rights.
pub const FORWARDED_FOR_HEADER: &str = "x-exec-server-harness";

/// The public half of an identity, which identifies an executor or a harness.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "KeyText", into = "KeyText")]
pub struct PublicKey {
    /// The elliptic-curve public key.
    pub x25519: [u8; X25519_PUBLIC_KEY_BYTES],
    /// The post-quantum encapsulation key.
    pub mlkem768: Box<[u8; MLKEM768_PUBLIC_KEY_BYTES]>,
}

/// Body of `register`, sent by an executor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegisterRequest {
    /// [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Passed on to harnesses, which authenticate the executor with it.
    pub executor_public_key: PublicKey,
}

/// Answer to `register`.
#[derive(Clone, Serialize, Deserialize)]
pub struct RegisterResponse {
    /// The registered environment.
    pub environment_id: String,
    /// Websocket URL to attach to. Secret: it lets its holder attach as the executor.
    pub url: String,
    /// [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// Identifies this registration; handshakes are bound to it.
    pub executor_registration_id: String,
}

/// Body of `connect`, sent by a harness.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// The authorization in the response is valid only for this key.
    pub harness_public_key: PublicKey,
}

/// Answer to `connect`: a route to an executor, valid for one connection.
#[derive(Clone, Serialize, Deserialize)]
pub struct ConnectResponse {
    /// The requested environment.
    pub environment_id: String,
    /// Websocket URL of the relay. Secret: it lets its holder open a stream.
    pub url: String,
    /// [`SECURITY_PROFILE`].
    pub security_profile: String,
    /// The executor's current registration.
    pub executor_registration_id: String,
    /// The key that the executor must prove in the handshake.
    pub executor_public_key: PublicKey,
    /// Sent in the handshake; the executor has the registry validate it.
    pub harness_key_authorization: String,
}

/// Body of `validate`: an executor asks whether to accept a harness.
#[derive(Clone, Serialize, Deserialize)]
pub struct ValidateRequest {
    /// The executor's own registration, which may have been superseded.
    pub executor_registration_id: String,
    /// The key that the handshake authenticated.
    pub harness_public_key: PublicKey,
    /// As received in the handshake.
    pub harness_key_authorization: String,
}

/// Answer to `validate`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ValidateResponse {
    /// The harness is accepted only if this is true.
    pub valid: bool,
}

/// Body of an error response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegistryFailure {
    /// The envelope member that exec-server's own registry uses.
    pub error: RegistryFailureDetail,
}

/// Code and message of an error response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryFailureDetail {
    /// Machine-readable; see [`codes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Human-readable; untrusted text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Error codes that clients act on.
pub mod codes {
    /// No executor is attached; retry later.
    pub const ENVIRONMENT_OFFLINE: &str = "environment_offline";
    /// Not registered because of a conflicting concurrent registration.
    pub const REGISTRATION_CONFLICT: &str = "registration_conflict";
    /// Not registered because authentication is temporarily unavailable.
    pub const AUTHENTICATION_SERVICE_UNAVAILABLE: &str = "authentication_service_unavailable";
}

impl RegistryFailureDetail {
    /// Parses both envelopes that registries use; `error` takes precedence over `detail`.
    pub fn parse(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Envelope {
            #[serde(default)]
            error: serde_json::Value,
            #[serde(default)]
            detail: serde_json::Value,
        }
        let Ok(envelope) = serde_json::from_slice::<Envelope>(body) else { return Self::default() };
        let read = |value: serde_json::Value| match value {
            serde_json::Value::Object(_) => serde_json::from_value(value).ok(),
            _ => None,
        };
        read(envelope.error).or_else(|| read(envelope.detail)).unwrap_or_default()
    }
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({}…)", base64::encode(&self.x25519[..6]))
    }
}

/// The JSON form of a public key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyText {
    suite: String,
    x25519_public_key: String,
    mlkem768_public_key: String,
}

/// Why a JSON key was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A suite other than [`KEY_SUITE`].
    #[error("unknown key suite")]
    Suite,
    /// The named member is not standard base64 of the right length.
    #[error("`{0}` is not the base64 of a key of this suite")]
    Half(&'static str),
}

impl TryFrom<KeyText> for PublicKey {
    type Error = KeyError;

    fn try_from(text: KeyText) -> Result<Self, KeyError> {
        if text.suite != KEY_SUITE {
            return Err(KeyError::Suite);
        }
        let half = |name, text: &str| base64::decode(text).map_err(|_| KeyError::Half(name));
        let x25519 = half("x25519_public_key", &text.x25519_public_key)?;
        let mlkem768 = half("mlkem768_public_key", &text.mlkem768_public_key)?;
        Ok(Self {
            x25519: x25519.try_into().map_err(|_| KeyError::Half("x25519_public_key"))?,
            mlkem768: mlkem768.try_into().map_err(|_| KeyError::Half("mlkem768_public_key"))?,
        })
    }
}

impl From<PublicKey> for KeyText {
    fn from(key: PublicKey) -> Self {
        Self {
            suite: KEY_SUITE.into(),
            x25519_public_key: base64::encode(&key.x25519),
            mlkem768_public_key: base64::encode(&key.mlkem768[..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_wrong_suite_length_or_member_is_rejected() {
        let text = |suite: &str, dh: usize, kem: usize, more: &str| {
            let (dh, kem) = (base64::encode(&vec![1; dh]), base64::encode(&vec![2; kem]));
            format!(
                r#"{{"suite":"{suite}","x25519_public_key":"{dh}","mlkem768_public_key":"{kem}"{more}}}"#
            )
        };
        let read = |text: &str| serde_json::from_str::<PublicKey>(text).map_err(|e| e.to_string());
        let good = text(KEY_SUITE, 32, 1184, "");
        assert_eq!(serde_json::to_string(&read(&good).unwrap()).unwrap(), good);
        for (bad, why) in [
            (text("Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256", 32, 1184, ""), "suite"),
            (text(KEY_SUITE, 31, 1184, ""), "x25519_public_key"),
            (text(KEY_SUITE, 32, 1185, ""), "mlkem768_public_key"),
            (text(KEY_SUITE, 32, 1184, r#","also":1"#), "unknown field"),
        ] {
            assert!(read(&bad).unwrap_err().contains(why), "{why}");
        }
    }

    #[test]
    fn both_envelopes_of_a_failure_are_read() {
        let code = |body: &str| RegistryFailureDetail::parse(body.as_bytes()).code;
        assert_eq!(code(r#"{"error":{"code":"a","message":null}}"#).as_deref(), Some("a"));
        assert_eq!(code(r#"{"detail":{"code":"b"}}"#).as_deref(), Some("b"));
        let both = r#"{"detail":{"code":"b"},"error":{"code":"a"}}"#;
        assert_eq!(code(both).as_deref(), Some("a"));
        assert_eq!(code(r#"{"detail":"not found"}"#), None);
        assert_eq!(code("<html>"), None);
    }
}
