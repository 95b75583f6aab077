//! Deserializes `environments.toml` and validates its entries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{Endpoint, Environment, EnvironmentsError, LOCAL_ID, check_registry, check_url};
use crate::options::DEFAULT_TIMEOUT;
use crate::relay::{ExecutorKey, RelayTarget, TokenSource};

#[derive(Deserialize)]
pub(super) struct File {
    pub default: Option<String>,
    pub include_local: Option<bool>,
    #[serde(default)]
    pub environments: Vec<Entry>,
    #[serde(flatten)]
    unknown: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
pub(super) struct Entry {
    pub id: String,
    url: Option<String>,
    auth_bearer_token: Option<String>,
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
    /// A key of the Codex CLI, which is known but not used here.
    #[serde(rename = "skills")]
    _skills: Option<toml::Value>,
    #[serde(flatten)]
    unknown: BTreeMap<String, toml::Value>,
}

impl File {
    /// The unknown keys with their full path in the file.
    pub(super) fn unknown_keys(&self) -> Vec<String> {
        let of_entry = |entry: &Entry| {
            let keys = entry.unknown.keys();
            keys.map(|key| format!("environments.{}.{key}", entry.id)).collect::<Vec<_>>()
        };
        let of_entries = self.environments.iter().flat_map(of_entry);
        self.unknown.keys().cloned().chain(of_entries).collect()
    }
}

impl Entry {
    /// Whether the entry has no known endpoint, but unknown keys that may be one.
    pub(super) fn has_unknown_way(&self) -> bool {
        let is_known = self.url.is_some() || self.registry.is_some() || self.program.is_some();
        !is_known && !self.unknown.is_empty()
    }

    pub(super) fn check(self, home: &Path) -> Result<Environment, EnvironmentsError> {
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
        if let Some(token) = &self.auth_bearer_token {
            if self.url.is_none() {
                return Err(EnvironmentsError::TokenNeedsUrl(id));
            }
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(EnvironmentsError::Token(id));
            }
        }
        let endpoint = match (self.url, self.registry, self.program) {
            (Some(url), None, None) => {
                let place = check_url(&id, &url)?;
                if self.auth_bearer_token.is_some() && !place.is_secure() {
                    return Err(EnvironmentsError::InTheClear(id));
                }
                let connect_timeout = connect.unwrap_or(DEFAULT_TIMEOUT);
                let token = self.auth_bearer_token.map(TokenSource::fixed);
                Endpoint::Url { url: url.trim().to_owned(), token, connect_timeout }
            }
            (None, Some(registry), None) => {
                check_registry(&id, &registry)?;
                let failed = |source| EnvironmentsError::ExecutorKey { id: id.clone(), source };
                let key = self.executor_key.as_deref().map(str::parse::<ExecutorKey>);
                Endpoint::Relay(RelayTarget {
                    token: self.token_file.map(|file| TokenSource::File(home.join(file))),
                    executor_key: key.transpose().map_err(failed)?,
                    connect_timeout: connect.unwrap_or(DEFAULT_TIMEOUT),
                    ..RelayTarget::new(registry, self.environment_id.unwrap_or_else(|| id.clone()))
                })
            }
            (None, None, Some(program)) if !program.is_empty() => {
                if connect.is_some() {
                    return Err(EnvironmentsError::NeedsUrl(id));
                }
                Endpoint::Program {
                    program,
                    args: self.args.unwrap_or_default(),
                    env: self.env.unwrap_or_default(),
                    cwd: self.cwd.map(|cwd| home.join(cwd)),
                }
            }
            _ => return Err(EnvironmentsError::OneWay(id)),
        };
        Ok(Environment { id, endpoint, initialize_timeout: initialize.unwrap_or(DEFAULT_TIMEOUT) })
    }
}

/// The first member that is set.
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
