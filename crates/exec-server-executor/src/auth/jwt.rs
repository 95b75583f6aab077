//! Verifies JWTs signed with the shared secret (HS256).

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use exec_server_protocol::base64;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::Value;

use super::{AuthError, Principal, sha256};

/// About thirty years; the bound keeps the sum with a timestamp in range.
const MAX_CLOCK_SKEW_SECONDS: u64 = 1_000_000_000;

/// The key and the required claims of signed tokens.
pub struct SignedBearer {
    key: DecodingKey,
    validation: Validation,
    /// The file of the shared secret, for the permission warning.
    file: Option<PathBuf>,
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
        Self { key: DecodingKey::from_secret(secret), validation, file: None }
    }

    /// Records the file of the shared secret.
    #[must_use]
    pub fn read_from(self, file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..self }
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
        let claims = decode::<Value>(token, &self.key, &self.validation)
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
