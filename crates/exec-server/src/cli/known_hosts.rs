//! `exec-server known-hosts`: lists remembered executor keys, or forgets one.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use exec_server_client::relay::{ClientStateDir, KnownHosts, KnownHostsError, StateDirError};
use exec_server_client::{RegistryUrlError, registry_name};

use crate::cli::format::plain;
use crate::cli::registry::table;

/// Arguments of `known-hosts`.
#[derive(Debug, clap::Args)]
pub struct KnownHostsArguments {
    #[command(subcommand)]
    command: Option<KnownHostsCommand>,
}

#[derive(Debug, Subcommand)]
enum KnownHostsCommand {
    /// List the known executors, as without a subcommand.
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Forget the key of an executor, so that the next key is trusted again.
    #[command(after_help = FORGET_EXAMPLES)]
    Forget {
        /// The environment, with or without `env:`.
        #[arg(value_name = "NAME")]
        environment: String,
        /// Forget it only for this registry; without this option, for all.
        #[arg(long, value_name = "URL")]
        remote: Option<String>,
    },
}

const LIST_EXAMPLES: &str = "\
Examples:
  exec-server known-hosts list
  exec-server known-hosts list | grep build-1";

const FORGET_EXAMPLES: &str = "\
Examples:
  exec-server known-hosts forget build-1
  exec-server known-hosts forget build-1 --remote https://relay.example.org";

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Place(#[from] StateDirError),
    #[error(transparent)]
    List(#[from] KnownHostsError),
    #[error(transparent)]
    Registry(#[from] RegistryUrlError),
    #[error("no executor of `{0}` is known")]
    Unknown(String),
}

/// Runs the command and prints its output.
pub fn run(arguments: KnownHostsArguments) -> ExitCode {
    let text = match arguments.command {
        None | Some(KnownHostsCommand::List) => list(),
        Some(KnownHostsCommand::Forget { environment, remote }) => {
            forget(environment.strip_prefix("env:").unwrap_or(&environment), remote.as_deref())
        }
    };
    match text {
        Ok(text) => {
            // A closed stdout (`| head`) is not an error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => crate::fail(&error),
    }
}

fn list() -> Result<String, ListError> {
    let row = |host: exec_server_client::relay::KnownHost| {
        vec![host.environment_id, host.registry, host.fingerprint.to_string()]
    };
    let rows: Vec<_> = known()?.all()?.into_iter().map(row).collect();
    Ok(table(&["ENVIRONMENT", "REGISTRY", "KEY"], &rows))
}

fn forget(environment: &str, registry: Option<&str>) -> Result<String, ListError> {
    let registry = registry.map(registry_name).transpose()?;
    let forgotten = known()?.forget(registry.as_deref(), environment)?;
    if forgotten.is_empty() {
        return Err(ListError::Unknown(environment.to_owned()));
    }
    let line = |host: exec_server_client::relay::KnownHost| {
        let (environment, registry) = (plain(&host.environment_id), plain(&host.registry));
        format!("forgot {environment} at {registry}: {}\n", host.fingerprint)
    };
    Ok(forgotten.into_iter().map(line).collect())
}

fn known() -> Result<KnownHosts, StateDirError> {
    let state = ClientStateDir::find(|name| std::env::var_os(name).map(PathBuf::from))?;
    Ok(state.known_hosts())
}
