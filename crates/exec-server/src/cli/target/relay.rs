//! `env:NAME`: an environment that only a registry can show the way to.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_client::relay::{ExecutorKey, REGISTRY_VARIABLE, RelayNotice, RelayTarget};
use exec_server_client::{RelayConnectArgs, TokenSource};

use super::super::failure::{Failure, chain};

const HEADING: &str = "Connecting through a registry (env:NAME)";
const PREFIX: &str = "env:";

/// How to get to an environment through its registry.
#[derive(Debug, Clone, clap::Args)]
pub struct RelayOptions {
    /// The registry that knows env:NAME [default: $EXEC_SERVER_REMOTE_URL].
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    remote: Option<String>,
    /// File with the token for it [default: $EXEC_SERVER_REMOTE_TOKEN, which is the token itself, or
    /// $EXEC_SERVER_REMOTE_TOKEN_FILE].
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    remote_token_file: Option<PathBuf>,
    /// The key that the executor must have, as SHA256:…, or `any` [default: the one that it had the first time].
    #[arg(long, value_name = "KEY", help_heading = HEADING)]
    executor_key: Option<ExecutorKey>,
}

impl RelayOptions {
    /// The environment of this name, as it is listed if it is; what the arguments say counts more.
    pub fn place(&self, name: &str, listed: Option<&RelayTarget>) -> Result<RelayTarget, Failure> {
        let mut place = match (&self.remote, listed) {
            // A token that is listed for one registry is none for another.
            (Some(registry), _) => RelayTarget::new(registry, name),
            (None, Some(listed)) => listed.clone(),
            (None, None) => match std::env::var(REGISTRY_VARIABLE) {
                Ok(registry) if !registry.trim().is_empty() => RelayTarget::new(registry, name),
                _ => return Err(Failure::NoRegistry(name.to_owned())),
            },
        };
        if let Some(path) = &self.remote_token_file {
            place.token = Some(TokenSource::File(path.clone()));
        }
        if let Some(key) = &self.executor_key {
            place.executor_key = Some(key.clone());
        }
        Ok(place)
    }

    /// These say nothing about a server that is reached in another way.
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

/// Says on stderr what a person may want to know.
pub fn tell(args: &mut RelayConnectArgs) {
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
