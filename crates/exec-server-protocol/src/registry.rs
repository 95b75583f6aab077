//! What executors and harnesses say to a registry, and what it answers.
//!
//! Unknown members are ignored, except inside a key: there they could only be a misunderstanding about what is trusted.

use serde::{Deserialize, Serialize};

use crate::base64;

/// The one way to secure a stream, as the registry names it.
pub const SECURITY_PROFILE: &str = "noise_hybrid_ik_v1";

/// The suite as public keys name it; the name that Noise hashes lacks the `X`.
pub const KEY_SUITE: &str = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256";

/// The length of the X25519 half of a public key.
pub const X25519_PUBLIC_KEY_BYTES: usize = 32;

/// The length of the ML-KEM-768 half of a public key.
pub const MLKEM768_PUBLIC_KEY_BYTES: usize = 1184;

/// An executor accepts no longer authorization, whoever made it.
pub const MAX_AUTHORIZATION_BYTES: usize = 4096;

/// The header by which a validation can be joined with its stream in logs.
pub const STREAM_ID_HEADER: &str = "x-codex-noise-stream-id";

/// The header in which a rendezvous says why it refuses a websocket.
pub const REJECTION_REASON_HEADER: &str = "x-codex-rendezvous-rejection-reason";

/// The header by which `exec-server forward` tells a server for whom it opens a websocket: the fingerprint of a key.
///
/// A server that knows it keeps the sessions of each key apart; it gives no rights.
pub const FORWARDED_FOR_HEADER: &str = "x-exec-server-harness";

/// The public half of an identity: who an executor or a harness is.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "KeyText", into = "KeyText")]
pub struct PublicKey {
    /// The elliptic-curve half.
    pub x25519: [u8; X25519_PUBLIC_KEY_BYTES],
    /// The post-quantum half.
    pub mlkem768: Box<[u8; MLKEM768_PUBLIC_KEY_BYTES]>,
}

/// Asks for a registration of this executor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegisterRequest {
    /// How its streams are secured.
    pub security_profile: String,
    /// Who it is.
    pub executor_public_key: PublicKey,
}

/// Where a registered executor is to wait for harnesses.
#[derive(Clone, Serialize, Deserialize)]
pub struct RegisterResponse {
    /// The environment that was registered.
    pub environment_id: String,
    /// A websocket URL; whoever has it may be the executor.
    pub url: String,
    /// How its streams are secured.
    pub security_profile: String,
    /// Names this registration.
    pub executor_registration_id: String,
}

/// Asks for a way to an environment's executor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// Who asks.
    pub harness_public_key: PublicKey,
}

/// One way to an executor, good for one connection.
#[derive(Clone, Serialize, Deserialize)]
pub struct ConnectResponse {
    /// The environment that it leads to.
    pub environment_id: String,
    /// A websocket URL; whoever has it may open a stream.
    pub url: String,
    /// How the stream is secured.
    pub security_profile: String,
    /// The registration that is current.
    pub executor_registration_id: String,
    /// Who must answer.
    pub executor_public_key: PublicKey,
    /// What the executor shows to the registry before it believes this harness.
    pub harness_key_authorization: String,
}

/// Asks whether a harness may in.
#[derive(Clone, Serialize, Deserialize)]
pub struct ValidateRequest {
    /// The registration that the executor believes to have.
    pub executor_registration_id: String,
    /// Who wants in, as the handshake proved it.
    pub harness_public_key: PublicKey,
    /// What it brought from the registry.
    pub harness_key_authorization: String,
}

/// Whether a harness may in.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ValidateResponse {
    /// Only `true` is a yes.
    pub valid: bool,
}

/// The body of an answer that is no success.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegistryFailure {
    /// What went wrong.
    pub error: RegistryFailureDetail,
}

/// What went wrong, for programs and for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryFailureDetail {
    /// A word to act on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A sentence to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The codes that decide what a peer does next.
pub mod codes {
    /// No executor is attached; ask again later.
    pub const ENVIRONMENT_OFFLINE: &str = "environment_offline";
    /// Nothing was registered because somebody else was just doing that.
    pub const REGISTRATION_CONFLICT: &str = "registration_conflict";
    /// Nothing was registered because the caller could not be authenticated for the moment.
    pub const AUTHENTICATION_SERVICE_UNAVAILABLE: &str = "authentication_service_unavailable";
}

impl RegistryFailureDetail {
    /// Reads either envelope that registries use; `error` is preferred to `detail`.
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

/// A key as JSON has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyText {
    suite: String,
    x25519_public_key: String,
    mlkem768_public_key: String,
}

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A suite that we do not speak.
    #[error("unknown key suite")]
    Suite,
    /// Not the standard base64 of as many bytes as it takes.
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
    fn keys_are_strict() {
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
