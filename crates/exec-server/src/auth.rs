//! Who may connect, and who they are.

mod jwt;
mod token_file;

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use exec_server_client::relay::KeyFingerprint;
use hyper::header::HeaderValue;

pub use jwt::SignedBearer;
pub use token_file::read_secret;
pub use token_file::{TokenFile, TokenFileError};

/// The SHA-256 of a secret.
pub type SecretDigest = [u8; 32];

/// Who may connect.
#[derive(Debug)]
pub enum Auth {
    /// Anyone who can reach the listener.
    Open,
    /// Whoever has the token.
    CapabilityToken(ExpectedToken),
    /// Whoever has a token that somebody with the shared secret signed.
    SignedBearer(Box<SignedBearer>),
}

/// Where the expected capability token is known from.
#[derive(Debug)]
pub enum ExpectedToken {
    /// A file, read again whenever it changes.
    File(TokenFile),
    /// Its digest.
    Digest(SecretDigest),
}

/// Who a client is, as far as sessions are concerned.
#[derive(Clone, PartialEq, Eq)]
pub enum Principal {
    /// There is no auth, so everyone is the same.
    Anyone,
    /// The bearer of this very token.
    Token(SecretDigest),
    /// The harness with this key, however it came.
    Harness(String),
    /// Somebody for whom another one opens connections, and vouches.
    Forwarded {
        /// Who vouches, by its own right to be here.
        by: Box<Principal>,
        /// The fingerprint of a harness's key.
        harness: String,
    },
    /// The subject that an issuer vouches for, whichever token says so.
    Subject {
        /// Who vouches.
        issuer: Option<String>,
        /// For whom.
        subject: String,
    },
}

/// Why a client is turned away; the text is the body of the 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No header.
    #[error("missing websocket bearer token")]
    Missing,
    /// A header that is no bearer token.
    #[error("invalid authorization header")]
    InvalidHeader,
    /// Another token.
    #[error("invalid websocket bearer token")]
    InvalidToken,
    /// A token that nobody we trust has signed.
    #[error("invalid websocket jwt")]
    InvalidJwt,
    /// A token of the past.
    #[error("expired websocket jwt")]
    Expired,
    /// A token of the future.
    #[error("websocket jwt is not valid yet")]
    NotYetValid,
    /// A token of another issuer.
    #[error("websocket jwt issuer mismatch")]
    Issuer,
    /// A token for another audience.
    #[error("websocket jwt audience mismatch")]
    Audience,
}

impl Auth {
    /// Who the client with this `Authorization` header is.
    pub fn authenticate(&self, header: Option<&HeaderValue>) -> Result<Principal, AuthError> {
        match self {
            Self::Open => Ok(Principal::Anyone),
            Self::CapabilityToken(expected) => {
                let given = sha256(bearer(header)?.as_bytes());
                let expected = expected.digest().ok_or(AuthError::InvalidToken)?;
                verify_slices_are_equal(&given, &expected)
                    .map(|()| Principal::Token(given))
                    .map_err(|_| AuthError::InvalidToken)
            }
            Self::SignedBearer(signed) => signed.verify(bearer(header)?),
        }
    }
}

impl Principal {
    /// The same with less: only what belongs to this harness.
    pub fn on_behalf_of(self, harness: &KeyFingerprint) -> Self {
        Self::Forwarded { by: Box::new(self), harness: harness.to_string() }
    }
}

impl ExpectedToken {
    fn digest(&self) -> Option<SecretDigest> {
        match self {
            Self::Digest(digest) => Some(*digest),
            Self::File(file) => file.digest(),
        }
    }
}

fn bearer(header: Option<&HeaderValue>) -> Result<&str, AuthError> {
    let header = header.ok_or(AuthError::Missing)?;
    let text = header.to_str().map_err(|_| AuthError::InvalidHeader)?;
    let (scheme, token) = text.split_once(' ').ok_or(AuthError::InvalidHeader)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AuthError::InvalidHeader);
    }
    Ok(token)
}

/// The digest that secrets are compared by.
pub fn sha256(secret: &[u8]) -> SecretDigest {
    digest(&SHA256, secret).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl fmt::Debug for Principal {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Anyone => formatter.write_str("Anyone"),
            Self::Token(_) => formatter.write_str("Token(…)"),
            Self::Subject { subject, .. } => write!(formatter, "Subject({subject})"),
            Self::Harness(fingerprint) => write!(formatter, "Harness({fingerprint})"),
            Self::Forwarded { by, harness } => write!(formatter, "Forwarded({by:?}, {harness})"),
        }
    }
}
