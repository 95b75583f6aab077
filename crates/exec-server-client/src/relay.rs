//! Connects to an environment through a registry and its relay: target, credentials, and trust in the executor.
//!
//! | look here | for |
//! |---|---|
//! | `dial` | a new relay URL and a new encrypted stream for every connection |
//! | `known_hosts` | the pinned keys of executors |
//! | `target` | an environment at a registry, as it is configured |
//! | `state_dir` | the directory of this client's key and of `known_hosts` |
//! | `error` | why no stream could be opened |

mod dial;
mod error;
mod known_hosts;
mod state_dir;
mod target;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::identity_file;
use exec_server_relay::registry_client::{Registry, is_path_segment};
use exec_server_transport::dial::DialOptions;
use exec_server_transport::proxy::Proxies;

pub use self::dial::RelayDial;
pub use self::error::{RelayError, TokenError};
pub use self::known_hosts::{KnownHost, KnownHosts, KnownHostsError};
pub use self::state_dir::{ClientStateDir, StateDirError};
pub use self::target::{ExecutorKey, RelayTarget};
use crate::error::ExecServerError;
use crate::options::{DEFAULT_TIMEOUT, ExecServerClientConnectOptions};
pub use exec_server_relay::fingerprint::{FingerprintError, KeyFingerprint};

/// The variable with the registry's URL.
pub const REGISTRY_VARIABLE: &str = "EXEC_SERVER_REMOTE_URL";
/// The variable with the token for the registry.
pub const TOKEN_VARIABLE: &str = "EXEC_SERVER_REMOTE_TOKEN";
/// The variable with the path of a file that contains the token.
pub const TOKEN_FILE_VARIABLE: &str = "EXEC_SERVER_REMOTE_TOKEN_FILE";

/// Timeout per answer of a registry; two of them fit into the timeout of a first connection.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(6);

/// An environment at a registry, with the credentials and settings to connect to it.
#[derive(Clone)]
pub struct RelayConnectArgs {
    /// The registry's URL: `https://`, or `http://` on loopback.
    pub registry: String,
    /// The id under which the executor is registered.
    pub environment_id: String,
    /// The bearer token for the registry.
    pub token: TokenSource,
    /// The account that the token belongs to, for registries that require it.
    pub account_id: Option<String>,
    /// The file with this client's key, created on first use; without it, every client has a new key.
    ///
    /// A session can only be resumed with the key that opened it.
    pub identity_file: Option<PathBuf>,
    /// How the executor's key is verified.
    pub trust: ExecutorTrust,
    /// Timeout for connecting to the relay, and again for the executor's answer.
    pub connect_timeout: Duration,
    /// A PEM file with the certificate authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Proxies on the way to the registry and the relay; the default comes from the environment variables.
    pub proxies: Proxies,
    /// Called with notices for the user while the connection is established.
    pub notices: Option<Arc<dyn Fn(RelayNotice) + Send + Sync>>,
    /// Settings that apply once the stream is open.
    pub options: ExecServerClientConnectOptions,
}

/// The source of the token for a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Fixed(Arc<str>),
    /// A file, which is read for every connection, so that the token can be replaced.
    File(PathBuf),
}

/// How the executor's key is verified.
#[derive(Debug, Clone)]
pub enum ExecutorTrust {
    /// Pins the first key; another key is rejected until the entry is removed.
    OnFirstUse(KnownHosts),
    /// Accepts only this key.
    Exactly(KeyFingerprint),
    /// Accepts the key that the registry names; for executors with a new key per start.
    Registry,
}

/// A notice for the user while a connection is established.
#[derive(Debug, Clone)]
pub enum RelayNotice {
    /// The key of an executor was pinned on first use.
    FirstMet {
        /// The environment's id at the registry.
        environment_id: String,
        /// The fingerprint of the executor's key.
        fingerprint: KeyFingerprint,
    },
    /// An attempt failed and is retried.
    Waiting {
        /// The environment's id at the registry.
        environment_id: String,
        /// Why the attempt failed.
        error: Arc<RelayError>,
    },
}

impl RelayConnectArgs {
    /// An environment at a registry, with default timeouts and [`ExecutorTrust::Registry`].
    pub fn new(
        registry: impl Into<String>,
        environment_id: impl Into<String>,
        token: TokenSource,
    ) -> Self {
        Self {
            registry: registry.into(),
            environment_id: environment_id.into(),
            token,
            account_id: None,
            identity_file: None,
            trust: ExecutorTrust::Registry,
            connect_timeout: DEFAULT_TIMEOUT,
            ca_file: None,
            proxies: Proxies::from_environment(),
            notices: None,
            options: ExecServerClientConnectOptions::default(),
        }
    }

    /// Keeps this client's key in a state directory, and pins the executor's key there on first use.
    pub fn remembering(mut self, state: &ClientStateDir) -> Self {
        self.identity_file = Some(state.identity_file());
        self.trust = ExecutorTrust::OnFirstUse(state.known_hosts());
        self
    }

    /// Splits the arguments into the transport and the session settings.
    pub(crate) fn into_parts(
        self,
    ) -> Result<(RelayDial, ExecServerClientConnectOptions), ExecServerError> {
        let dial =
            DialOptions { headers: Vec::new(), authorities: self.ca_file, proxies: self.proxies };
        let failed = |name: &str, error: RelayError| ExecServerError::Relay {
            environment_id: self.environment_id.clone(),
            registry: name.to_owned(),
            source: Arc::new(error),
        };
        let registry = Registry::new(&self.registry, dial.clone(), REGISTRY_TIMEOUT)
            .map_err(|error| ExecServerError::Invalid(error.to_string()))?;
        let name = registry.name();
        if !is_path_segment(&self.environment_id) {
            return Err(ExecServerError::Invalid("the environment has no name".to_owned()));
        }
        if !registry.is_secure() {
            return Err(failed(&name, RelayError::InTheClear));
        }
        let identity = identity_file::open(self.identity_file.as_deref())
            .map_err(|error| failed(&name, error.into()))?;
        let relay = RelayDial {
            registry,
            environment_id: self.environment_id,
            token: self.token,
            account_id: self.account_id,
            identity,
            trust: self.trust,
            relay: dial,
            timeout: self.connect_timeout,
            notices: self.notices,
            tracing: self.options.tracing.clone(),
            state: Default::default(),
        };
        Ok((relay, self.options))
    }
}

impl TokenSource {
    /// A token that is given directly.
    pub fn fixed(token: impl Into<Arc<str>>) -> Self {
        Self::Fixed(token.into())
    }

    /// Reads [`TOKEN_VARIABLE`], or [`TOKEN_FILE_VARIABLE`] if that is not set.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name| lookup(name).filter(|value| !value.trim().is_empty());
        let file = || set(TOKEN_FILE_VARIABLE).map(|path| Self::File(path.into()));
        set(TOKEN_VARIABLE).map(Self::fixed).or_else(file)
    }

    /// The token, if it is given directly.
    pub fn given(&self) -> Option<&str> {
        match self {
            Self::Fixed(token) => Some(token),
            Self::File(_) => None,
        }
    }

    /// The current token.
    fn read(&self) -> Result<Arc<str>, TokenError> {
        let token: Arc<str> = match self {
            Self::Fixed(token) => token.trim().into(),
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|source| TokenError::File { path: path.clone(), source })?
                .trim()
                .into(),
        };
        let is_usable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if is_usable { Ok(token) } else { Err(TokenError::Unusable) }
    }
}

impl fmt::Debug for TokenSource {
    /// Omits the token.
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Fixed(_) => formatter.write_str("Fixed"),
            Self::File(path) => formatter.debug_tuple("File").field(path).finish(),
        }
    }
}

impl fmt::Debug for RelayConnectArgs {
    /// Omits credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter
            .debug_struct("RelayConnectArgs")
            .field("environment_id", &self.environment_id)
            .field("token", &self.token)
            .field("identity_file", &self.identity_file)
            .field("trust", &self.trust)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
