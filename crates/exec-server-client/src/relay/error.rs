//! Errors of a connection through a relay.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_relay::identity_file::IdentityFileError;
use exec_server_relay::registry_client::RegistryError;
use exec_server_relay::stream::StreamError;
use exec_server_transport::connection::WireError;
use exec_server_transport::dial::DialError;
use exec_server_transport::websocket::UpgradeFailure;

use super::known_hosts::KnownHostsError;
use super::state_dir::StateDirError;
use exec_server_relay::fingerprint::KeyFingerprint;

/// Why no stream to an environment could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The registry rejected or failed the request.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The relay that the registry named cannot be reached.
    #[error("the relay cannot be reached")]
    Relay(#[source] DialError),
    /// The relay or the executor did not answer in time.
    #[error("{who} did not answer within {timeout:?}")]
    Timeout {
        /// The peer that did not answer.
        who: &'static str,
        /// The timeout that passed.
        timeout: Duration,
    },
    /// The executor rejected the stream, or the handshake failed.
    #[error("the executor did not open a stream")]
    Stream(#[source] WireError),
    /// The executor's key differs from the pinned or expected one.
    #[error("its executor has the key {found}, but {expected} is expected")]
    AnotherKey {
        /// The key that the registry names for the executor.
        found: KeyFingerprint,
        /// The pinned or configured key, or that of the previous connection.
        expected: KeyFingerprint,
        /// The file with the pinned key, if it comes from one.
        known_hosts: Option<PathBuf>,
    },
    /// The token would be sent without encryption.
    #[error(
        "refusing to send a token to it without TLS; use https://, or http:// on loopback only"
    )]
    InTheClear,
    /// There is no usable token for the registry.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The file with this client's key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityFileError),
    /// The state directory cannot be found or created.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The file with the pinned keys cannot be used.
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
}

/// Why there is no usable token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// No token is configured.
    #[error(
        "no token for the registry; set EXEC_SERVER_REMOTE_TOKEN or EXEC_SERVER_REMOTE_TOKEN_FILE"
    )]
    Missing,
    /// The token file cannot be read.
    #[error("could not read the token in {}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The token cannot be sent in a header.
    #[error("the token for the registry is empty or has characters that a header cannot carry")]
    Unusable,
}

impl RelayError {
    /// Whether a first connection is retried after this error.
    pub(super) fn is_worth_waiting(&self) -> bool {
        match self {
            // An executor limits failed handshakes, so those are not retried. If the relay closed the socket, no peer
            // has rejected the stream.
            Self::Stream(WireError::Io(error)) => {
                !error.get_ref().is_some_and(|inner| inner.is::<StreamError>())
            }
            Self::Stream(_) => false,
            // An expired relay URL is replaced by a new one; a forbidden one is not.
            Self::Relay(DialError::Upgrade(UpgradeFailure::Status(status))) => {
                matches!(status, 401 | 408 | 425 | 429 | 500..=599)
            }
            error => error.is_transient(),
        }
    }

    /// Whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Registry(error) => error.is_transient(),
            Self::Relay(error) => error.is_transient(),
            Self::Timeout { .. } | Self::Stream(_) => true,
            Self::AnotherKey { .. }
            | Self::InTheClear
            | Self::Token(_)
            | Self::Identity(_)
            | Self::StateDir(_)
            | Self::KnownHosts(_) => false,
        }
    }
}
