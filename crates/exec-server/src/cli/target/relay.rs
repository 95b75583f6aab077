//! Resolves `env:NAME`, an environment that is reached through a registry.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_client::relay::{ExecutorKey, REGISTRY_VARIABLE, RelayNotice, RelayTarget};
use exec_server_client::{RelayConnectArgs, TokenSource};

use super::super::failure::{Failure, chain};

const HEADING: &str = "Connecting through a registry (env:NAME)";
const PREFIX: &str = "env:";

/// Connection options for env:NAME.
#[derive(Debug, Clone, clap::Args)]
pub struct RelayOptions {
    /// Registry that has env:NAME [default: $EXEC_SERVER_REMOTE_URL].
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    remote: Option<String>,
    /// File with the token for the registry, if it differs from --token-file [default: $EXEC_SERVER_REMOTE_TOKEN, which
    /// holds the token itself, or $EXEC_SERVER_REMOTE_TOKEN_FILE].
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    remote_token_file: Option<PathBuf>,
    /// Required key of the executor as SHA256:…, or `any` [default: the key of the first connection].
    #[arg(long, value_name = "KEY", help_heading = HEADING)]
    executor_key: Option<ExecutorKey>,
}

impl RelayOptions {
    /// The relay target of this name; arguments override the entry in environments.toml, and `--remote-token-file`
    /// overrides the `token_file` for all kinds of targets.
    pub fn target(
        &self,
        name: &str,
        listed: Option<&RelayTarget>,
        token_file: Option<&Path>,
    ) -> Result<RelayTarget, Failure> {
        let mut place = match (&self.remote, listed) {
            // A token that is listed for one registry is not sent to another.
            (Some(registry), _) => RelayTarget::new(registry, name),
            (None, Some(listed)) => listed.clone(),
            (None, None) => match std::env::var(REGISTRY_VARIABLE) {
                Ok(registry) if !registry.trim().is_empty() => RelayTarget::new(registry, name),
                _ => return Err(Failure::NoRegistry(name.to_owned())),
            },
        };
        if let Some(path) = self.remote_token_file.as_deref().or(token_file) {
            place.token = Some(TokenSource::File(path.to_owned()));
        }
        if let Some(key) = &self.executor_key {
            place.executor_key = Some(key.clone());
        }
        Ok(place)
    }

    /// Rejects these options for a target that is not reached through a registry.
    pub fn refuse(&self) -> Result<(), Failure> {
        let is_set = self.remote.is_some()
            || self.remote_token_file.is_some()
            || self.executor_key.is_some();
        if !is_set {
            return Ok(());
        }
        let text =
            "--remote, --remote-token-file and --executor-key go with a target like env:NAME";
        Err(Failure::Usage(text.to_owned()))
    }
}

/// The name in `env:NAME`.
pub fn environment_name(target: &str) -> Option<&str> {
    let name = target.strip_prefix(PREFIX)?;
    let is_name = !name.is_empty() && !name.contains(['/', ':']);
    is_name.then_some(name)
}

/// Prints new and changed executor keys on stderr.
pub fn report_keys(args: &mut RelayConnectArgs) {
    let has_waited = AtomicBool::new(false);
    args.notices = Some(Arc::new(move |notice| match notice {
        RelayNotice::FirstMet { environment_id, fingerprint } => eprintln!(
            "exec-server: met the executor of `{environment_id}` for the first time; \
             its key {fingerprint} is remembered"
        ),
        RelayNotice::Waiting { error, .. } => {
            if !has_waited.swap(true, Ordering::Relaxed) {
                let reason = super::super::format::plain_lines(&chain(&*error));
                eprintln!("exec-server: {reason}; trying again");
            }
        }
    }));
}
