//! The list of environments: `environments.toml`, or the variables that replace it.
//!
//! The file takes precedence over the variables. An environment has a `url`, a `registry`, or a `program` that is started
//! and used over stdio. Unknown keys are ignored and listed, because the Codex CLI reads the same file and may add keys.

mod file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::registry_client::{Registry, RegistryUrlError};
use exec_server_transport::dial::{DialOptions, ServerUrl, ServerUrlError};

use crate::client::RemoteExecServerClient;
use crate::dial::Dial;
use crate::error::ExecServerError;
use crate::options::{
    DEFAULT_TIMEOUT, ExecServerClientConnectOptions, RemoteExecServerConnectArgs,
};
use crate::relay::{FingerprintError, RelayTarget, TokenSource};
use crate::stdio::StdioServer;

/// The variable with the URL of one server, used without a file.
pub const URL_VARIABLE: &str = "CODEX_EXEC_SERVER_URL";
/// The variables for one environment at a registry: the registry's URL, the environment's id, the token.
pub const REGISTRY_VARIABLES: [&str; 3] = [
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
];
/// The variable with the account id, used together with [`REGISTRY_VARIABLES`].
pub const ACCOUNT_VARIABLE: &str = "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID";
/// The variable with the directory of the file.
pub const HOME_VARIABLE: &str = "CODEX_HOME";
/// The name of the file in the directory of [`HOME_VARIABLE`].
pub const FILE_NAME: &str = "environments.toml";
/// The id of the environment that the variables define.
pub const REMOTE_ID: &str = "remote";
/// The id that stands for this machine.
pub const LOCAL_ID: &str = "local";

/// Why a list of environments is invalid, or has no matching environment.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentsError {
    /// The file cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not valid TOML, or a value has the wrong type.
    #[error("could not parse {}", path.display())]
    Parse {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: Box<toml::de::Error>,
    },
    /// An id has an invalid length, an invalid character, or is reserved.
    #[error(
        "environment id `{0}` must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, and neither `local` nor `none`"
    )]
    Id(String),
    /// Two environments have the same id.
    #[error("environment `{0}` is listed twice")]
    Duplicate(String),
    /// An environment has no endpoint, or more than one.
    #[error("environment `{0}` must have exactly one of `url`, `registry` and `program`")]
    OneWay(String),
    /// A member is only valid with `program`.
    #[error("environment `{id}`: `{member}` needs `program`")]
    NeedsProgram {
        /// The environment's id.
        id: String,
        /// The member's key in the file.
        member: &'static str,
    },
    /// A member is only valid with `url` or `registry`.
    #[error("environment `{0}`: `connect_timeout_sec` needs `url` or `registry`")]
    NeedsUrl(String),
    /// A member is only valid with `registry`.
    #[error("environment `{id}`: `{member}` needs `registry`")]
    NeedsRegistry {
        /// The environment's id.
        id: String,
        /// The member's key in the file.
        member: &'static str,
    },
    /// A bearer token is only valid with `url`.
    #[error("environment `{0}`: `auth_bearer_token` needs `url`")]
    TokenNeedsUrl(String),
    /// A bearer token cannot be sent in a header.
    #[error(
        "environment `{0}`: `auth_bearer_token` is empty or has characters that a header cannot carry"
    )]
    Token(String),
    /// A bearer token would be sent without encryption.
    #[error(
        "environment `{0}`: refusing to send `auth_bearer_token` without TLS; use wss://, or ws:// on loopback only"
    )]
    InTheClear(String),
    /// An environment has only endpoint keys of other programs.
    #[error(
        "environment `{0}` has none of `url`, `registry` and `program`; this program supports no other endpoint"
    )]
    UnknownWay(String),
    /// The registry's URL is invalid.
    #[error("environment `{id}`")]
    Registry {
        /// The environment's id.
        id: String,
        /// The cause.
        source: RegistryUrlError,
    },
    /// The executor's key is not a fingerprint.
    #[error("environment `{id}`")]
    ExecutorKey {
        /// The environment's id.
        id: String,
        /// The cause.
        source: FingerprintError,
    },
    /// Only some of [`REGISTRY_VARIABLES`] are set.
    #[error("{}, {} and {} go together; set all or none", .0[0], .0[1], .0[2])]
    Incomplete([&'static str; 3]),
    /// The server's URL is invalid.
    #[error("environment `{id}`")]
    Url {
        /// The environment's id.
        id: String,
        /// The cause.
        source: ServerUrlError,
    },
    /// A timeout is not a positive number.
    #[error("environment `{id}`: `{member}` must be a number of seconds above 0")]
    Timeout {
        /// The environment's id.
        id: String,
        /// The member's key in the file.
        member: &'static str,
    },
    /// The default names an environment that is not listed.
    #[error("default environment `{0}` is not listed")]
    Default(String),
    /// The requested environment is not listed.
    #[error("there is no environment `{0}`")]
    Unknown(String),
    /// No environment was requested, and there is no default.
    #[error("no environment: set {URL_VARIABLE}, or list one in {FILE_NAME}")]
    None,
    /// The configuration disables execution.
    #[error("execution is disabled by {URL_VARIABLE}=none or `default = \"none\"`")]
    Disabled,
    /// The requested environment is this machine, which a client cannot connect to.
    #[error("the environment `local` is this machine; start a server to use it like another")]
    Local,
}

/// The configured environments and the default one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environments {
    environments: Vec<Environment>,
    default: Choice,
    include_local: bool,
    ignored: Vec<String>,
    /// Ids of environments whose endpoint this program does not support.
    unknown_ways: Vec<String>,
}

/// A configured environment: its id, its endpoint, its timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The id in the file, or [`REMOTE_ID`].
    pub id: String,
    /// The endpoint to connect to.
    pub endpoint: Endpoint,
    /// Timeout for the answer to `initialize`.
    pub initialize_timeout: Duration,
}

/// How a client connects to an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A server's URL.
    Url {
        /// `ws://`, `wss://` or `unix://`.
        url: String,
        /// The bearer token for the server.
        token: Option<TokenSource>,
        /// Timeout for connecting.
        connect_timeout: Duration,
    },
    /// An environment at a registry, which is reached through a relay.
    Relay(RelayTarget),
    /// A server that runs as a child process and is used over stdio.
    Program {
        /// The program to start.
        program: String,
        /// The program's arguments.
        args: Vec<String>,
        /// Variables in addition to those of this program.
        env: BTreeMap<String, String>,
        /// The working directory; `None` for that of this program.
        cwd: Option<PathBuf>,
    },
}

/// The environment that is used when the caller names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Choice {
    /// This machine.
    Local,
    /// The environment with this id.
    Id(String),
    /// None: execution is disabled.
    Disabled,
    /// None: no default is configured.
    #[default]
    Unset,
}

impl Environments {
    /// Reads the file if there is one, otherwise the variables of this process.
    pub fn from_environment() -> Result<Self, EnvironmentsError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Like [`Environments::from_environment`], with the variables from `lookup`.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentsError> {
        let home = lookup(HOME_VARIABLE).filter(|home| !home.is_empty()).map(PathBuf::from);
        let home = home.or_else(|| lookup("HOME").map(|home| Path::new(&home).join(".codex")));
        if let Some(home) = home {
            let path = home.join(FILE_NAME);
            match std::fs::read_to_string(&path) {
                Ok(text) => return Self::parse(&text, &path),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(EnvironmentsError::Read { path, source }),
            }
        }
        if let Some(place) = from_registry_variables(&lookup)? {
            return Ok(Self::only(Endpoint::Relay(place)));
        }
        Self::from_url_variable(lookup(URL_VARIABLE).as_deref().unwrap_or_default())
    }

    /// Parses the text of a file; relative paths in it are relative to the directory of `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, EnvironmentsError> {
        let file: file::File = toml::from_str(text).map_err(|source| EnvironmentsError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let home = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut environments: Vec<Environment> = Vec::new();
        let ignored = file.unknown_keys();
        let mut unknown_ways = Vec::new();
        for entry in file.environments {
            if entry.has_unknown_way() {
                unknown_ways.push(entry.id);
                continue;
            }
            let environment = entry.check(&home)?;
            if environments.iter().any(|other| other.id == environment.id) {
                return Err(EnvironmentsError::Duplicate(environment.id));
            }
            environments.push(environment);
        }
        let include_local = file.include_local.unwrap_or(true);
        let default = match file.default.as_deref() {
            None if include_local => Choice::Local,
            None => Choice::Unset,
            Some(word) if word.eq_ignore_ascii_case("none") => Choice::Disabled,
            Some(LOCAL_ID) if include_local => Choice::Local,
            Some(id)
                if environments.iter().any(|environment| environment.id == id)
                    || unknown_ways.iter().any(|other| other == id) =>
            {
                Choice::Id(id.to_owned())
            }
            Some(id) => return Err(EnvironmentsError::Default(id.to_owned())),
        };
        Ok(Self { environments, default, include_local, ignored, unknown_ways })
    }

    fn from_url_variable(value: &str) -> Result<Self, EnvironmentsError> {
        let url = value.trim();
        if url.is_empty() {
            return Ok(Self { default: Choice::Unset, include_local: true, ..Self::default() });
        }
        if url.eq_ignore_ascii_case("none") {
            return Ok(Self { default: Choice::Disabled, ..Self::default() });
        }
        check_url(REMOTE_ID, url)?;
        let endpoint =
            Endpoint::Url { url: url.to_owned(), token: None, connect_timeout: DEFAULT_TIMEOUT };
        Ok(Self::only(endpoint))
    }

    /// A list with the one environment that the variables define.
    fn only(endpoint: Endpoint) -> Self {
        let id = REMOTE_ID.to_owned();
        let remote = Environment { id, endpoint, initialize_timeout: DEFAULT_TIMEOUT };
        let default = Choice::Id(REMOTE_ID.to_owned());
        Self { environments: vec![remote], default, ..Self::default() }
    }

    /// All listed environments with a supported endpoint.
    pub fn all(&self) -> &[Environment] {
        &self.environments
    }

    /// The environment that is used when the caller names none.
    pub fn default_choice(&self) -> &Choice {
        &self.default
    }

    /// Whether this machine counts as an environment.
    pub fn includes_local(&self) -> bool {
        self.include_local
    }

    /// The keys of the file that this program does not know, such as `environments.box.color`.
    pub fn ignored_keys(&self) -> &[String] {
        &self.ignored
    }

    /// The environment with this id, or the default one.
    pub fn get(&self, id: Option<&str>) -> Result<&Environment, EnvironmentsError> {
        let id = match (id, &self.default) {
            (Some(LOCAL_ID), _) if self.include_local => return Err(EnvironmentsError::Local),
            (Some(id), _) => id,
            (None, Choice::Id(id)) => id,
            (None, Choice::Local) => return Err(EnvironmentsError::Local),
            (None, Choice::Disabled) => return Err(EnvironmentsError::Disabled),
            (None, Choice::Unset) => return Err(EnvironmentsError::None),
        };
        if self.unknown_ways.iter().any(|other| other == id) {
            return Err(EnvironmentsError::UnknownWay(id.to_owned()));
        }
        let found = self.environments.iter().find(|environment| environment.id == id);
        found.ok_or_else(|| EnvironmentsError::Unknown(id.to_owned()))
    }
}

impl Environment {
    /// A client of this environment, which connects with its first call.
    pub fn client(
        &self,
        client_name: impl Into<String>,
    ) -> Result<RemoteExecServerClient, ExecServerError> {
        let client_name = client_name.into();
        let initialize_timeout = self.initialize_timeout;
        match &self.endpoint {
            Endpoint::Url { url, connect_timeout, token } => {
                let mut args = RemoteExecServerConnectArgs::new(url)
                    .client_name(client_name)
                    .connect_timeout(*connect_timeout);
                args.bearer_token = token.as_ref().and_then(TokenSource::given).map(str::to_owned);
                args.options.initialize_timeout = initialize_timeout;
                RemoteExecServerClient::new(args)
            }
            Endpoint::Relay(place) => {
                let mut args = place.connect_args()?;
                args.options.client_name = client_name;
                args.options.initialize_timeout = initialize_timeout;
                RemoteExecServerClient::through_relay(args)
            }
            Endpoint::Program { program, args, env, cwd } => {
                let mut server = StdioServer::new(program).args(args.iter().cloned());
                for (name, value) in env {
                    server = server.env(name, value);
                }
                if let Some(cwd) = cwd {
                    server = server.current_dir(cwd);
                }
                let options = ExecServerClientConnectOptions {
                    client_name,
                    initialize_timeout,
                    ..ExecServerClientConnectOptions::default()
                };
                let dial: Arc<dyn Dial> = Arc::new(server);
                Ok(RemoteExecServerClient::over(dial, options))
            }
        }
    }
}

fn check_url(id: &str, url: &str) -> Result<ServerUrl, EnvironmentsError> {
    let failed = |source| EnvironmentsError::Url { id: id.to_owned(), source };
    ServerUrl::parse(url).map_err(failed)
}

fn check_registry(id: &str, url: &str) -> Result<(), EnvironmentsError> {
    let failed = |source| EnvironmentsError::Registry { id: id.to_owned(), source };
    Registry::new(url, DialOptions::default(), DEFAULT_TIMEOUT).map(drop).map_err(failed)
}

/// The environment of [`REGISTRY_VARIABLES`], if they are set.
fn from_registry_variables(
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Option<RelayTarget>, EnvironmentsError> {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let [registry, environment_id, token] = match REGISTRY_VARIABLES.map(set) {
        [Some(registry), Some(environment_id), Some(token)] => [registry, environment_id, token],
        [None, None, None] => return Ok(None),
        _ => return Err(EnvironmentsError::Incomplete(REGISTRY_VARIABLES)),
    };
    check_registry(REMOTE_ID, &registry)?;
    Ok(Some(RelayTarget {
        token: Some(TokenSource::fixed(token)),
        account_id: set(ACCOUNT_VARIABLE),
        ..RelayTarget::new(registry, environment_id.trim())
    }))
}

#[cfg(test)]
mod tests;
