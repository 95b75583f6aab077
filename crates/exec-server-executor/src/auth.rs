//! Authentication: who may connect, and as which principal.

mod credential;
mod jwt;
mod readers;
mod token_file;

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use exec_server_relay::fingerprint::KeyFingerprint;
use hyper::header::HeaderValue;

pub use credential::{Credential, Current, Ended, run_credentials};
pub use jwt::{MIN_SECRET_BYTES, SignedBearer};
pub use readers::{warn_about, warn_about_readers};
pub use token_file::read_secret;
pub use token_file::{TokenFile, TokenFileError};

/// The SHA-256 of a secret.
pub type SecretDigest = [u8; 32];

/// Who may connect.
#[derive(Debug)]
pub enum Auth {
    /// Every client that can reach the listener.
    Open,
    /// Clients with the capability token.
    CapabilityToken(ExpectedToken),
    /// Clients with a JWT signed with the shared secret.
    SignedBearer(Box<SignedBearer>),
}

/// Source of the expected capability token.
#[derive(Debug)]
pub enum ExpectedToken {
    /// A file, read again whenever it changes.
    File(TokenFile),
    /// The SHA-256 of a token that the server itself does not know.
    Digest(SecretDigest),
}

/// The owner of sessions: only the same principal can resume a session.
#[derive(Clone, PartialEq, Eq)]
pub enum Principal {
    /// No authentication, so all clients share one principal.
    Anyone,
    /// The bearer of the token with this digest.
    Token(SecretDigest),
    /// The harness whose key has this fingerprint, on any of its relay streams.
    Harness(String),
    /// A harness whose connections a forwarder opens and vouches for.
    Forwarded {
        /// The principal of the forwarder.
        by: Box<Principal>,
        /// The fingerprint of a harness's key.
        harness: String,
    },
    /// The subject of a JWT; a renewed token is the same principal.
    Subject {
        /// The `iss` claim.
        issuer: Option<String>,
        /// The `sub` claim.
        subject: String,
    },
}

/// An authenticated client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// The owner of the sessions that the client starts.
    pub principal: Principal,
    /// The credential, if it can expire or be revoked while connected.
    pub credential: Option<Credential>,
    /// Where the connection comes from.
    pub origin: Origin,
}

/// Where a connection comes from, for the audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The address of the peer, or the kind of the connection.
    pub peer: String,
    /// The user of a peer process on this machine.
    pub uid: Option<u32>,
}

impl Authenticated {
    /// Adds where the connection comes from.
    #[must_use]
    pub fn from_origin(mut self, peer: impl Into<String>, uid: Option<u32>) -> Self {
        self.origin = Origin { peer: peer.into(), uid };
        self
    }
}

impl From<Principal> for Authenticated {
    fn from(principal: Principal) -> Self {
        Self { principal, credential: None, origin: Origin::default() }
    }
}

/// Why a client is rejected; the text is the body of the 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No header.
    #[error("missing websocket bearer token")]
    Missing,
    /// A header that is no bearer token.
    #[error("invalid authorization header")]
    InvalidHeader,
    /// A wrong token.
    #[error("invalid websocket bearer token")]
    InvalidToken,
    /// The right token, but too short to be secure.
    #[error("websocket bearer token is shorter than {MIN_TOKEN_BYTES} bytes and cannot be used")]
    ShortToken,
    /// A token that is malformed or has no valid signature.
    #[error("invalid websocket jwt")]
    InvalidJwt,
    /// An expired token.
    #[error("expired websocket jwt")]
    Expired,
    /// A token that is not valid yet.
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
    /// Authenticates an `Authorization` header.
    pub fn authenticate(&self, header: Option<&HeaderValue>) -> Result<Authenticated, AuthError> {
        match self {
            Self::Open => Ok(Principal::Anyone.into()),
            Self::CapabilityToken(expected) => {
                let token = bearer(header)?;
                let given = sha256(token.as_bytes());
                let wanted = expected.digest().ok_or(AuthError::InvalidToken)?;
                verify_slices_are_equal(&given, &wanted).map_err(|_| AuthError::InvalidToken)?;
                if token.len() < MIN_TOKEN_BYTES {
                    return Err(AuthError::ShortToken);
                }
                let principal = Principal::Token(given);
                let credential = Some(Credential::Token(given));
                Ok(Authenticated { credential, ..principal.into() })
            }
            Self::SignedBearer(signed) => {
                let (principal, expires) = signed.verify(bearer(header)?)?;
                let credential = Some(Credential::Until(expires));
                Ok(Authenticated { credential, ..principal.into() })
            }
        }
    }

    /// Whether clients need no credential.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }
}

/// 16 random base64 characters are 96 bits, which cannot be guessed.
pub const MIN_TOKEN_BYTES: usize = 16;

impl Principal {
    /// Narrows a principal to the sessions of one harness.
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
