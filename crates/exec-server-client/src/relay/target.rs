//! An environment at a registry, as files, variables and commands configure it.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::registry_client::registry_name;

use super::error::{RelayError, TokenError};
use super::{ClientStateDir, ExecutorTrust, RelayConnectArgs, TokenSource};
use crate::error::ExecServerError;
use crate::options::DEFAULT_TIMEOUT;
use exec_server_relay::fingerprint::{FingerprintError, KeyFingerprint};

/// The configuration of an environment at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTarget {
    /// The registry's URL.
    pub registry: String,
    /// The id under which the executor is registered.
    pub environment_id: String,
    /// The token for the registry; `None` takes it from the environment variables.
    pub token: Option<TokenSource>,
    /// The account that the token belongs to, for registries that require it.
    pub account_id: Option<String>,
    /// The executor's key; `None` pins the first one.
    pub executor_key: Option<ExecutorKey>,
    /// Timeout for connecting to the relay, and again for the executor's answer.
    pub connect_timeout: Duration,
}

/// The key that an executor must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorKey {
    /// Only this key.
    Exactly(KeyFingerprint),
    /// The key that the registry names.
    Any,
}

impl RelayTarget {
    /// An environment with default settings.
    pub fn new(registry: impl Into<String>, environment_id: impl Into<String>) -> Self {
        Self {
            registry: registry.into(),
            environment_id: environment_id.into(),
            token: None,
            account_id: None,
            executor_key: None,
            connect_timeout: DEFAULT_TIMEOUT,
        }
    }

    /// The connect arguments, completed from this process's environment variables.
    pub fn connect_args(&self) -> Result<RelayConnectArgs, ExecServerError> {
        let registry = registry_name(&self.registry)
            .map_err(|error| ExecServerError::Invalid(error.to_string()))?;
        let failed = |error: RelayError| ExecServerError::Relay {
            environment_id: self.environment_id.clone(),
            registry: registry.clone(),
            source: Arc::new(error),
        };
        let of_variables = || TokenSource::from_lookup(|name| std::env::var(name).ok());
        let token = self.token.clone().or_else(of_variables);
        let token = token.ok_or_else(|| failed(TokenError::Missing.into()))?;
        let state = ClientStateDir::find(|name| std::env::var_os(name).map(PathBuf::from))
            .map_err(|error| failed(error.into()))?;
        let mut args =
            RelayConnectArgs::new(&self.registry, &self.environment_id, token).remembering(&state);
        match &self.executor_key {
            Some(ExecutorKey::Exactly(key)) => args.trust = ExecutorTrust::Exactly(key.clone()),
            Some(ExecutorKey::Any) => args.trust = ExecutorTrust::Registry,
            None => {}
        }
        args.account_id.clone_from(&self.account_id);
        args.connect_timeout = self.connect_timeout;
        Ok(args)
    }
}

impl FromStr for ExecutorKey {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        if text.trim().eq_ignore_ascii_case("any") {
            return Ok(Self::Any);
        }
        text.parse().map(Self::Exactly)
    }
}
