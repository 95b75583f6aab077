//! Where the servers are: `environments.toml`, and the variables that stand in for it.
//!
//! The file wins over the variables. An environment is reached by a `url`, through a `registry`, or by a `program` that is
//! started and spoken to over its stdio.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::dial::{DialOptions, ServerUrl, ServerUrlError};
use exec_server_transport::registry::{Registry, RegistryUrlError};
use serde::Deserialize;

use crate::client::RemoteExecServerClient;
use crate::dial::Dial;
use crate::error::ExecServerError;
use crate::options::{
    DEFAULT_TIMEOUT, ExecServerClientConnectOptions, RemoteExecServerConnectArgs,
};
use crate::relay::{ExecutorKey, FingerprintError, RelayPlace, TokenSource};
use crate::stdio::StdioServer;

/// The variable that names one server in place of a file.
pub const URL_VARIABLE: &str = "CODEX_EXEC_SERVER_URL";
/// The variables that name one environment at a registry: the registry, the environment, the token.
pub const REGISTRY_VARIABLES: [&str; 3] = [
    "CODEX_EXEC_SERVER_NOISE_REGISTRY_URL",
    "CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
];
/// The variable beside them that names an account.
pub const ACCOUNT_VARIABLE: &str = "CODEX_EXEC_SERVER_NOISE_CHATGPT_ACCOUNT_ID";
/// The variable that names the directory of the file.
pub const HOME_VARIABLE: &str = "CODEX_HOME";
/// The file, in that directory.
pub const FILE_NAME: &str = "environments.toml";
/// The id of the environment that the variable stands for.
pub const REMOTE_ID: &str = "remote";
/// The id of this machine itself.
pub const LOCAL_ID: &str = "local";

/// What is wrong with a list of environments.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentsError {
    /// The file cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not the TOML that it should be.
    #[error("could not understand {}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<toml::de::Error>,
    },
    /// An id that cannot be one.
    #[error(
        "environment id `{0}` must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`, and neither `local` nor `none`"
    )]
    Id(String),
    /// Two environments of one name.
    #[error("environment `{0}` is listed twice")]
    Duplicate(String),
    /// No way, or two ways to a server.
    #[error("environment `{0}` must have exactly one of `url`, `registry` and `program`")]
    OneWay(String),
    /// A member that only goes with a program.
    #[error("environment `{id}`: `{member}` needs `program`")]
    NeedsProgram {
        /// Which environment.
        id: String,
        /// Which member.
        member: &'static str,
    },
    /// A member that only goes with a URL.
    #[error("environment `{0}`: `connect_timeout_sec` needs `url` or `registry`")]
    NeedsUrl(String),
    /// A member that only goes with a registry.
    #[error("environment `{id}`: `{member}` needs `registry`")]
    NeedsRegistry {
        /// Which environment.
        id: String,
        /// Which member.
        member: &'static str,
    },
    /// The registry's URL is none.
    #[error("environment `{id}`: {source}")]
    Registry {
        /// Which environment.
        id: String,
        /// What is wrong.
        source: RegistryUrlError,
    },
    /// The executor's key is none.
    #[error("environment `{id}`: {source}")]
    ExecutorKey {
        /// Which environment.
        id: String,
        /// What is wrong.
        source: FingerprintError,
    },
    /// Some of the variables are set, and some are not.
    #[error("{}, {} and {} go together; set all or none", .0[0], .0[1], .0[2])]
    Incomplete([&'static str; 3]),
    /// The URL is none.
    #[error("environment `{id}`: {source}")]
    Url {
        /// Which environment.
        id: String,
        /// What is wrong.
        source: ServerUrlError,
    },
    /// A time that is none.
    #[error("environment `{id}`: `{member}` must be a number of seconds above 0")]
    Timeout {
        /// Which environment.
        id: String,
        /// Which member.
        member: &'static str,
    },
    /// The default names nothing.
    #[error("default environment `{0}` is not listed")]
    Default(String),
    /// Somebody asked for what is not there.
    #[error("there is no environment `{0}`")]
    Unknown(String),
    /// Nobody said where to go.
    #[error("no environment: set {URL_VARIABLE}, or list one in {FILE_NAME}")]
    None,
    /// Execution is switched off.
    #[error("execution is disabled by {URL_VARIABLE}=none or `default = \"none\"`")]
    Disabled,
    /// This machine itself, which needs no client.
    #[error("the environment `local` is this machine; start a server to use it like another")]
    Local,
}

/// The environments that a user has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environments {
    environments: Vec<Environment>,
    default: Choice,
    include_local: bool,
}

/// One environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Its name.
    pub id: String,
    /// The way to it.
    pub way: Way,
    /// The time that it has to answer `initialize`.
    pub initialize_timeout: Duration,
}

/// The way to an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// A websocket.
    Url {
        /// Where.
        url: String,
        /// The time that it has to take the connection.
        connect_timeout: Duration,
    },
    /// A registry that knows it.
    Relay(RelayPlace),
    /// A child that speaks over its stdio.
    Program {
        /// What to start.
        program: String,
        /// With what.
        args: Vec<String>,
        /// More variables for it.
        env: BTreeMap<String, String>,
        /// Where, if not here.
        cwd: Option<PathBuf>,
    },
}

/// Which environment is meant when none is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Choice {
    /// This machine itself.
    Local,
    /// The one of this id.
    Id(String),
    /// None: execution is disabled.
    Disabled,
    /// None: nobody said.
    #[default]
    Unset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Option<String>,
    include_local: Option<bool>,
    #[serde(default)]
    environments: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: String,
    url: Option<String>,
    registry: Option<String>,
    environment_id: Option<String>,
    token_file: Option<PathBuf>,
    executor_key: Option<String>,
    program: Option<String>,
    args: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<PathBuf>,
    connect_timeout_sec: Option<f64>,
    initialize_timeout_sec: Option<f64>,
}

impl Environments {
    /// What the environment of this process says: the file if there is one, else the variable.
    pub fn from_environment() -> Result<Self, EnvironmentsError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// What some environment says.
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
            return Ok(Self::only(Way::Relay(place)));
        }
        Self::from_url_variable(lookup(URL_VARIABLE).as_deref().unwrap_or_default())
    }

    /// Reads a file.
    pub fn parse(text: &str, path: &Path) -> Result<Self, EnvironmentsError> {
        let file: File = toml::from_str(text).map_err(|source| EnvironmentsError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let home = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut environments: Vec<Environment> = Vec::new();
        for entry in file.environments {
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
            Some(id) if environments.iter().any(|environment| environment.id == id) => {
                Choice::Id(id.to_owned())
            }
            Some(id) => return Err(EnvironmentsError::Default(id.to_owned())),
        };
        Ok(Self { environments, default, include_local })
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
        let way = Way::Url { url: url.to_owned(), connect_timeout: DEFAULT_TIMEOUT };
        Ok(Self::only(way))
    }

    /// The one environment that variables name.
    fn only(way: Way) -> Self {
        let id = REMOTE_ID.to_owned();
        let remote = Environment { id, way, initialize_timeout: DEFAULT_TIMEOUT };
        let default = Choice::Id(REMOTE_ID.to_owned());
        Self { environments: vec![remote], default, ..Self::default() }
    }

    /// All that are listed.
    pub fn all(&self) -> &[Environment] {
        &self.environments
    }

    /// Which one is meant when none is named.
    pub fn default_choice(&self) -> &Choice {
        &self.default
    }

    /// Whether this machine itself counts as one.
    pub fn includes_local(&self) -> bool {
        self.include_local
    }

    /// The environment of this name, or the default one.
    pub fn get(&self, id: Option<&str>) -> Result<&Environment, EnvironmentsError> {
        let id = match (id, &self.default) {
            (Some(LOCAL_ID), _) if self.include_local => return Err(EnvironmentsError::Local),
            (Some(id), _) => id,
            (None, Choice::Id(id)) => id,
            (None, Choice::Local) => return Err(EnvironmentsError::Local),
            (None, Choice::Disabled) => return Err(EnvironmentsError::Disabled),
            (None, Choice::Unset) => return Err(EnvironmentsError::None),
        };
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
        match &self.way {
            Way::Url { url, connect_timeout } => {
                let mut args = RemoteExecServerConnectArgs::new(url)
                    .client_name(client_name)
                    .connect_timeout(*connect_timeout);
                args.options.initialize_timeout = initialize_timeout;
                RemoteExecServerClient::new(args)
            }
            Way::Relay(place) => {
                let mut args = place.connect_args()?;
                args.options.client_name = client_name;
                args.options.initialize_timeout = initialize_timeout;
                RemoteExecServerClient::through_relay(args)
            }
            Way::Program { program, args, env, cwd } => {
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

impl Entry {
    fn check(self, home: &Path) -> Result<Environment, EnvironmentsError> {
        let id = self.id;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let is_fine = (1..=64).contains(&id.len())
            && id.bytes().all(is_word)
            && !matches!(id.as_str(), LOCAL_ID | "none");
        if !is_fine {
            return Err(EnvironmentsError::Id(id));
        }
        let connect = seconds(&id, "connect_timeout_sec", self.connect_timeout_sec)?;
        let initialize = seconds(&id, "initialize_timeout_sec", self.initialize_timeout_sec)?;
        if self.program.is_none()
            && let Some(member) = first_set([
                ("args", self.args.is_some()),
                ("env", self.env.is_some()),
                ("cwd", self.cwd.is_some()),
            ])
        {
            return Err(EnvironmentsError::NeedsProgram { id, member });
        }
        if self.registry.is_none()
            && let Some(member) = first_set([
                ("environment_id", self.environment_id.is_some()),
                ("token_file", self.token_file.is_some()),
                ("executor_key", self.executor_key.is_some()),
            ])
        {
            return Err(EnvironmentsError::NeedsRegistry { id, member });
        }
        let way = match (self.url, self.registry, self.program) {
            (Some(url), None, None) => {
                check_url(&id, &url)?;
                let connect_timeout = connect.unwrap_or(DEFAULT_TIMEOUT);
                Way::Url { url: url.trim().to_owned(), connect_timeout }
            }
            (None, Some(registry), None) => {
                check_registry(&id, &registry)?;
                let failed = |source| EnvironmentsError::ExecutorKey { id: id.clone(), source };
                let key = self.executor_key.as_deref().map(str::parse::<ExecutorKey>);
                Way::Relay(RelayPlace {
                    token: self.token_file.map(|file| TokenSource::File(home.join(file))),
                    executor_key: key.transpose().map_err(failed)?,
                    connect_timeout: connect.unwrap_or(DEFAULT_TIMEOUT),
                    ..RelayPlace::new(registry, self.environment_id.unwrap_or_else(|| id.clone()))
                })
            }
            (None, None, Some(program)) if !program.is_empty() => {
                if connect.is_some() {
                    return Err(EnvironmentsError::NeedsUrl(id));
                }
                Way::Program {
                    program,
                    args: self.args.unwrap_or_default(),
                    env: self.env.unwrap_or_default(),
                    cwd: self.cwd.map(|cwd| home.join(cwd)),
                }
            }
            _ => return Err(EnvironmentsError::OneWay(id)),
        };
        Ok(Environment { id, way, initialize_timeout: initialize.unwrap_or(DEFAULT_TIMEOUT) })
    }
}

fn check_url(id: &str, url: &str) -> Result<(), EnvironmentsError> {
    let failed = |source| EnvironmentsError::Url { id: id.to_owned(), source };
    ServerUrl::parse(url).map(drop).map_err(failed)
}

fn check_registry(id: &str, url: &str) -> Result<(), EnvironmentsError> {
    let failed = |source| EnvironmentsError::Registry { id: id.to_owned(), source };
    Registry::new(url, DialOptions::default(), DEFAULT_TIMEOUT).map(drop).map_err(failed)
}

/// The environment of the three variables, if they are set.
fn from_registry_variables(
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Option<RelayPlace>, EnvironmentsError> {
    let set = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
    let [registry, environment_id, token] = match REGISTRY_VARIABLES.map(set) {
        [Some(registry), Some(environment_id), Some(token)] => [registry, environment_id, token],
        [None, None, None] => return Ok(None),
        _ => return Err(EnvironmentsError::Incomplete(REGISTRY_VARIABLES)),
    };
    check_registry(REMOTE_ID, &registry)?;
    Ok(Some(RelayPlace {
        token: Some(TokenSource::fixed(token)),
        account_id: set(ACCOUNT_VARIABLE),
        ..RelayPlace::new(registry, environment_id.trim())
    }))
}

/// The first member that is there and should not be.
fn first_set(members: [(&'static str, bool); 3]) -> Option<&'static str> {
    members.into_iter().find(|(_, is_set)| *is_set).map(|(member, _)| member)
}

fn seconds(
    id: &str,
    member: &'static str,
    value: Option<f64>,
) -> Result<Option<Duration>, EnvironmentsError> {
    let Some(value) = value else { return Ok(None) };
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => Err(EnvironmentsError::Timeout { id: id.to_owned(), member }),
    }
}

#[cfg(test)]
mod tests;
