//! An environment as lists, variables and commands name it, before anybody goes there.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::registry::registry_name;

use super::error::{RelayError, TokenError};
use super::fingerprint::{FingerprintError, KeyFingerprint};
use super::{ClientStateDir, ExecutorTrust, RelayConnectArgs, TokenSource};
use crate::error::ExecServerError;
use crate::options::DEFAULT_TIMEOUT;

/// An environment at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayPlace {
    /// Where the registry is.
    pub registry: String,
    /// What the executor registered as.
    pub environment_id: String,
    /// What is shown to the registry; without it, what the variables say.
    pub token: Option<TokenSource>,
    /// The account that the token is for, where a registry wants to know.
    pub account_id: Option<String>,
    /// The executor's key; without it, the one that was met first.
    pub executor_key: Option<ExecutorKey>,
    /// The time that the relay has to take the connection, and again the executor to answer.
    pub connect_timeout: Duration,
}

/// Which key an executor must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutorKey {
    /// This one.
    Exactly(KeyFingerprint),
    /// Whichever the registry names.
    Any,
}

impl RelayPlace {
    /// An environment of which nothing else was said.
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

    /// Everything that is needed to go there, with what this process's environment adds.
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
