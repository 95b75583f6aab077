//! Verifies JWTs signed with the shared secret (HS256).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use exec_server_protocol::base64;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::Value;

use super::token_file::{Stamp, read_secret, stamp};
use super::{AuthError, Principal, sha256};

/// About thirty years; the bound keeps the sum with a timestamp in range.
const MAX_CLOCK_SKEW_SECONDS: u64 = 1_000_000_000;

/// A secret of HS256 has at least the length of its hash.
pub const MIN_SECRET_BYTES: usize = 32;

/// The key and the required claims of signed tokens.
pub struct SignedBearer {
    key: Mutex<Key>,
    validation: Validation,
    /// The file of the shared secret, read again when it changes.
    file: Option<PathBuf>,
}

struct Key {
    current: DecodingKey,
    stamp: Option<Stamp>,
}

impl SignedBearer {
    /// Accepts tokens signed with `secret`; issuer and audience are checked if given.
    pub fn new(
        secret: &[u8],
        issuer: Option<&str>,
        audience: Option<&str>,
        max_clock_skew_seconds: u64,
    ) -> Self {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = max_clock_skew_seconds.min(MAX_CLOCK_SKEW_SECONDS);
        validation.validate_nbf = true;
        validation.validate_aud = audience.is_some();
        validation.set_required_spec_claims(&["exp"]);
        if let Some(issuer) = issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        if let Some(audience) = audience {
            validation.set_audience(&[audience]);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        let key = Key { current: DecodingKey::from_secret(secret), stamp: None };
        Self { key: Mutex::new(key), validation, file: None }
    }

    /// Records the file of the shared secret, which is read again when it changes.
    #[must_use]
    pub fn read_from(self, file: &Path) -> Self {
        self.key.lock().expect("no holder panics").stamp = stamp(file);
        Self { file: Some(file.to_owned()), ..self }
    }

    /// The key of the secret that the file holds now; a secret that cannot be used leaves the last one in use.
    fn current_key(&self) -> DecodingKey {
        let mut key = self.key.lock().expect("no holder panics");
        let Some(file) = &self.file else { return key.current.clone() };
        let now = stamp(file);
        if now != key.stamp {
            key.stamp = now;
            match read_secret(file) {
                Ok(secret) if secret.len() >= MIN_SECRET_BYTES => {
                    key.current = DecodingKey::from_secret(secret.as_bytes());
                    tracing::info!("loaded a new shared secret");
                }
                _ => tracing::error!(
                    file = %file.display(),
                    "the new shared secret cannot be used; the old one stays in use"
                ),
            }
        }
        key.current.clone()
    }

    /// The file of the shared secret, if it was read from one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Verifies `token`; returns its principal and the time until which it is accepted.
    pub fn verify(&self, token: &str) -> Result<(Principal, SystemTime), AuthError> {
        if has_critical_parts(token) {
            return Err(AuthError::InvalidJwt);
        }
        let claims = decode::<Value>(token, &self.current_key(), &self.validation)
            .map_err(|error| explain(error.kind()))?
            .claims;
        let expires = claims["exp"].as_u64().ok_or(AuthError::InvalidJwt)?;
        let text = |name: &str| match &claims[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            // With a list of issuers, each of them could claim the subjects of the others.
            _ if name == "iss" && self.validation.iss.is_some() => Err(AuthError::Issuer),
            _ => Err(AuthError::InvalidJwt),
        };
        let (issuer, subject) = (text("iss")?, text("sub")?);
        let principal = match subject {
            Some(subject) => Principal::Subject { issuer, subject },
            None => Principal::Token(sha256(token.as_bytes())),
        };
        Ok((principal, self.end(expires)))
    }

    /// The end of acceptance: the `exp` claim plus the allowed clock skew.
    fn end(&self, expires: u64) -> SystemTime {
        let seconds = expires.saturating_add(self.validation.leeway);
        let latest = SystemTime::UNIX_EPOCH + Duration::from_secs(LATEST_SECONDS);
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(latest)
    }
}

/// About two thousand years after 1970; replaces expiry times that `SystemTime` cannot represent.
const LATEST_SECONDS: u64 = 1 << 36;

/// Whether the header has `crit`: such extensions must be understood, and none are supported.
fn has_critical_parts(token: &str) -> bool {
    let header = token.split('.').next().and_then(base64::decode_url);
    let header = header.and_then(|header| serde_json::from_slice::<Value>(&header).ok());
    header.is_some_and(|header| header.get("crit").is_some())
}

fn explain(kind: &ErrorKind) -> AuthError {
    match kind {
        ErrorKind::ExpiredSignature => AuthError::Expired,
        ErrorKind::ImmatureSignature => AuthError::NotYetValid,
        ErrorKind::InvalidIssuer => AuthError::Issuer,
        ErrorKind::InvalidAudience => AuthError::Audience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => AuthError::Issuer,
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => AuthError::Audience,
        _ => AuthError::InvalidJwt,
    }
}

impl fmt::Debug for SignedBearer {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.debug_struct("SignedBearer").finish_non_exhaustive()
    }
}
