//! Why there is no stream to an environment.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_machines::relay::StreamError;
use exec_server_transport::connection::WireError;
use exec_server_transport::dial::DialError;
use exec_server_transport::identity_file::IdentityFileError;
use exec_server_transport::registry::RegistryError;
use exec_server_transport::websocket::UpgradeFailure;

use super::fingerprint::KeyFingerprint;
use super::known_hosts::KnownHostsError;
use super::state_dir::StateDirError;

/// Why there is no stream to an environment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The registry shows no way.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The relay that the registry named cannot be reached.
    #[error("the relay cannot be reached")]
    Relay(#[source] DialError),
    /// The relay or the executor did not answer in time.
    #[error("{who} did not answer within {timeout:?}")]
    Timeout {
        /// Who was waited for.
        who: &'static str,
        /// The time that it had.
        timeout: Duration,
    },
    /// The executor let nobody in, or somebody else answered.
    #[error("the executor did not open a stream")]
    Stream(#[source] WireError),
    /// Another executor than the one that is known.
    #[error("its executor has the key {found}, but {expected} is expected")]
    AnotherKey {
        /// The key of the executor that is there.
        found: KeyFingerprint,
        /// The key that it should have.
        expected: KeyFingerprint,
        /// The file that says so, if it is one.
        known_hosts: Option<PathBuf>,
    },
    /// The token would travel in the clear.
    #[error(
        "refusing to send a token to it without TLS; use https://, or http:// on loopback only"
    )]
    InTheClear,
    /// There is nothing to show to the registry.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// This client's own key cannot be kept.
    #[error(transparent)]
    Identity(#[from] IdentityFileError),
    /// There is no place to keep it.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The list of executors that were met cannot be used.
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsError),
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Nobody gave one.
    #[error(
        "no token for the registry; set EXEC_SERVER_REMOTE_TOKEN or EXEC_SERVER_REMOTE_TOKEN_FILE"
    )]
    Missing,
    /// The file with it cannot be read.
    #[error("could not read the token in {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It cannot be sent in a header.
    #[error("the token for the registry is empty or has characters that a header cannot carry")]
    Unusable,
}

impl RelayError {
    /// Whether a first connection is better tried again than given up.
    pub(super) fn is_worth_waiting(&self) -> bool {
        match self {
            // An executor bears only so many handshakes that fail, whoever makes them. A relay that hangs up has lost
            // its executor, or its own way, and nobody has refused anything.
            Self::Stream(WireError::Io(error)) => {
                !error.get_ref().is_some_and(|inner| inner.is::<StreamError>())
            }
            Self::Stream(_) => false,
            // A way that is too old is replaced by another; one that is forbidden is not.
            Self::Relay(DialError::Upgrade(UpgradeFailure::Status(status))) => {
                matches!(status, 401 | 408 | 425 | 429 | 500..=599)
            }
            error => error.may_pass(),
        }
    }

    /// Whether another attempt may come to something else.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Registry(error) => error.may_pass(),
            Self::Relay(error) => error.may_pass(),
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
