//! Credentials of open connections; a connection is closed when its credential expires or is revoked.

use std::sync::Arc;
use std::time::SystemTime;

use super::{Auth, ExpectedToken, SecretDigest};
use crate::server::Server;

/// The credential of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// The token with this digest, until the token changes.
    Token(SecretDigest),
    /// A JWT that is accepted until this time: its expiry plus the allowed clock skew.
    Until(SystemTime),
}

/// Why a credential is no longer valid; the text is the close reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The JWT has expired.
    #[error("the token has expired; connect again with a new one")]
    Expired,
    /// The token file holds another token.
    #[error("the token was replaced; connect again with the new one")]
    Replaced,
    /// The token file is missing or has held no token for several checks.
    #[error("the token was withdrawn")]
    Withdrawn,
}

/// The credentials that are valid at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Current {
    now: SystemTime,
    token: TokenNow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenNow {
    Is(SecretDigest),
    /// No token was found; the file may just be being rewritten.
    Missing,
    /// No token was found for longer than a rewrite of the file takes.
    Withdrawn,
}

/// A token counts as withdrawn after this many consecutive checks without one.
const CHECKS_WITHOUT_TOKEN: u32 = 5;

impl Auth {
    /// The credentials that are valid now. `misses` counts consecutive checks without a token. May read a file.
    pub fn current(&self, misses: &mut u32) -> Current {
        let token = match self {
            Self::CapabilityToken(expected) => expected.digest(),
            Self::Open | Self::SignedBearer(_) => None,
        };
        *misses = if token.is_some() { 0 } else { misses.saturating_add(1) };
        let token = match token {
            Some(digest) => TokenNow::Is(digest),
            None if *misses < CHECKS_WITHOUT_TOKEN => TokenNow::Missing,
            None => TokenNow::Withdrawn,
        };
        Current { now: SystemTime::now(), token }
    }

    /// Whether credentials of open connections can become invalid.
    fn can_end(&self) -> bool {
        match self {
            Self::Open | Self::CapabilityToken(ExpectedToken::Digest(_)) => false,
            Self::CapabilityToken(ExpectedToken::File(_)) | Self::SignedBearer(_) => true,
        }
    }
}

impl Current {
    /// Checks whether a credential is still valid.
    pub fn check(&self, credential: &Credential) -> Result<(), Ended> {
        match (credential, self.token) {
            (Credential::Until(end), _) if self.now >= *end => Err(Ended::Expired),
            (Credential::Token(held), TokenNow::Is(token)) if token != *held => {
                Err(Ended::Replaced)
            }
            (Credential::Token(_), TokenNow::Withdrawn) => Err(Ended::Withdrawn),
            (Credential::Until(_) | Credential::Token(_), _) => Ok(()),
        }
    }
}

/// Closes connections whose credential has expired or was revoked; never returns.
pub async fn run_credentials(server: &Arc<Server>) {
    if !server.config.auth.can_end() {
        return std::future::pending().await;
    }
    let mut misses = 0;
    loop {
        tokio::time::sleep(server.config.timings.credential_check).await;
        let server = server.clone();
        // On a blocking thread, because the token file may be on a slow file system.
        let looked = tokio::task::spawn_blocking(move || {
            let current = server.config.auth.current(&mut misses);
            server.close_ended_credentials(&current);
            misses
        });
        misses = looked.await.unwrap_or(misses);
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Token(_) => formatter.write_str("Token(…)"),
            Self::Until(end) => write!(formatter, "Until({end:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_credential_is_valid_until_it_expires_or_is_replaced() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let later = now + Duration::from_secs(1);
        let (one, other) = ([1; 32], [2; 32]);
        use TokenNow::{Is, Missing, Withdrawn};
        for (token, credential, expected) in [
            (Missing, Credential::Until(later), Ok(())),
            (Withdrawn, Credential::Until(later), Ok(())),
            (Missing, Credential::Until(now), Err(Ended::Expired)),
            (Is(one), Credential::Token(one), Ok(())),
            (Is(other), Credential::Token(one), Err(Ended::Replaced)),
            (Missing, Credential::Token(one), Ok(())),
            (Withdrawn, Credential::Token(one), Err(Ended::Withdrawn)),
        ] {
            assert_eq!(Current { now, token }.check(&credential), expected, "{credential:?}");
        }
    }
}
