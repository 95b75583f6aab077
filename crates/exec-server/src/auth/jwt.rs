//! Tokens that somebody with the shared secret signed: JWT with HS256.

use std::fmt;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::Value;

use super::{AuthError, Principal, sha256};

/// Some thirty years: more makes no difference, and the sum with any time of day stays in range.
const MAX_CLOCK_SKEW_SECONDS: u64 = 1_000_000_000;

/// What a signed token must be like.
pub struct SignedBearer {
    key: DecodingKey,
    validation: Validation,
}

impl SignedBearer {
    /// Tokens signed with `secret`, for the given issuer and audience if any.
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
        Self { key: DecodingKey::from_secret(secret), validation }
    }

    /// Who the bearer of `token` is.
    pub fn verify(&self, token: &str) -> Result<Principal, AuthError> {
        let claims = decode::<Value>(token, &self.key, &self.validation)
            .map_err(|error| explain(error.kind()))?
            .claims;
        if !claims["exp"].is_i64() && !claims["exp"].is_u64() {
            return Err(AuthError::InvalidJwt);
        }
        let text = |name: &str| claims[name].as_str().map(str::to_owned);
        Ok(match text("sub") {
            Some(subject) => Principal::Subject { issuer: text("iss"), subject },
            None => Principal::Token(sha256(token.as_bytes())),
        })
    }
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
