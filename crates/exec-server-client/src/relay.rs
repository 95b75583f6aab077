//! The way to an environment that only a registry can show: which one, who asks, and whom to believe.
//!
//! | look here | for |
//! |---|---|
//! | `dial` | a fresh way and a fresh encrypted stream for every connection |
//! | `known_hosts` | the executors that were met before |
//! | `place` | an environment as people name it |
//! | `state_dir` | where this client keeps its own key, and the list of those it met |
//! | `error` | why there is no stream |

mod dial;
mod error;
mod fingerprint;
mod known_hosts;
mod place;
mod state_dir;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::dial::DialOptions;
use exec_server_transport::identity_file;
use exec_server_transport::proxy::Proxies;
use exec_server_transport::registry::{Registry, is_path_segment};

pub use self::dial::RelayDial;
pub use self::error::{RelayError, TokenError};
pub use self::fingerprint::{FingerprintError, KeyFingerprint};
pub use self::known_hosts::{KnownHost, KnownHosts, KnownHostsError};
pub use self::place::{ExecutorKey, RelayPlace};
pub use self::state_dir::{ClientStateDir, StateDirError};
use crate::error::ExecServerError;
use crate::options::{DEFAULT_TIMEOUT, ExecServerClientConnectOptions};

/// The variable with the registry's URL.
pub const REGISTRY_VARIABLE: &str = "EXEC_SERVER_REMOTE_URL";
/// The variable with the token for the registry.
pub const TOKEN_VARIABLE: &str = "EXEC_SERVER_REMOTE_TOKEN";
/// The variable with the name of a file that has the token.
pub const TOKEN_FILE_VARIABLE: &str = "EXEC_SERVER_REMOTE_TOKEN_FILE";

/// A registry has this long for each answer, so that a few of them fit into the patience for a first connection.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(6);

/// Which environment is meant, and everything that is needed to get there.
#[derive(Clone)]
pub struct RelayConnectArgs {
    /// Where the registry is: `https://`, or `http://` on loopback.
    pub registry: String,
    /// What the executor registered as.
    pub environment_id: String,
    /// What is shown to the registry.
    pub token: TokenSource,
    /// The account that the token is for, where a registry wants to know.
    pub account_id: Option<String>,
    /// Where this client's own key is kept, made on first use; without it, every client has a new one.
    ///
    /// A session can only be resumed with the key that opened it.
    pub identity_file: Option<PathBuf>,
    /// Which executor is believed to be the right one.
    pub trust: ExecutorTrust,
    /// The time that the relay has to take the connection, and again the executor to answer.
    pub connect_timeout: Duration,
    /// A PEM file of the authorities to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// Who stands in between; those of the environment unless said otherwise.
    pub proxies: Proxies,
    /// Told what a person may want to know while the connection is made.
    pub notices: Option<Arc<dyn Fn(RelayNotice) + Send + Sync>>,
    /// Everything after the connection.
    pub options: ExecServerClientConnectOptions,
}

/// Where the token for a registry comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Fixed(Arc<str>),
    /// A file, which is read for every connection, so that the token can be replaced.
    File(PathBuf),
}

/// Which executor is believed to be the right one.
#[derive(Debug, Clone)]
pub enum ExecutorTrust {
    /// The one that was met first; another one is refused until that is forgotten.
    OnFirstUse(KnownHosts),
    /// Only the one with this key.
    Exactly(KeyFingerprint),
    /// Whichever the registry names; for executors that have a new key whenever they start.
    Registry,
}

/// What a person may want to know while a connection is made.
#[derive(Debug, Clone)]
pub enum RelayNotice {
    /// An executor was met for the first time, and is remembered from now on.
    FirstMet {
        /// The environment.
        environment_id: String,
        /// Its key.
        fingerprint: KeyFingerprint,
    },
    /// It did not work yet, and is tried again.
    Waiting {
        /// The environment.
        environment_id: String,
        /// Why.
        error: Arc<RelayError>,
    },
}

impl RelayConnectArgs {
    /// The environment at a registry; its executor is whoever the registry names, unless said otherwise.
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

    /// The same with a key that lasts and an executor that is recognised, both kept in a directory.
    pub fn remembering(mut self, state: &ClientStateDir) -> Self {
        self.identity_file = Some(state.identity_file());
        self.trust = ExecutorTrust::OnFirstUse(state.known_hosts());
        self
    }

    /// How to dial, and what to say then.
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
        let registry = Registry::new(&self.registry, dial.clone(), REGISTRY_PATIENCE)
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
            state: Default::default(),
        };
        Ok((relay, self.options))
    }
}

impl TokenSource {
    /// A token that was given.
    pub fn fixed(token: impl Into<Arc<str>>) -> Self {
        Self::Fixed(token.into())
    }

    /// What the variables of some environment say: the token, or the file that has it.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name| lookup(name).filter(|value| !value.trim().is_empty());
        let file = || set(TOKEN_FILE_VARIABLE).map(|path| Self::File(path.into()));
        set(TOKEN_VARIABLE).map(Self::fixed).or_else(file)
    }

    /// The token of this moment.
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
    /// Without the token.
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Fixed(_) => formatter.write_str("Fixed"),
            Self::File(path) => formatter.debug_tuple("File").field(path).finish(),
        }
    }
}

impl fmt::Debug for RelayConnectArgs {
    /// Without credentials.
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
