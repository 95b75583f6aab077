//! `exec-server environments`: lists the environments of a rendezvous, sets their policy, deletes them.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use exec_server_rendezvous::admin::EnvironmentStatus;
use exec_server_rendezvous::store::RegistrationPolicy;

use crate::cli::registry::{OutputFormat, RegistryArguments, RegistryError, json, relative, table};

/// Arguments of `environments`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EnvironmentsArguments {
    #[command(subcommand)]
    command: Option<EnvironmentsCommand>,
    #[command(flatten)]
    registry: RegistryArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

#[derive(Debug, Subcommand)]
enum EnvironmentsCommand {
    /// Set which executor is kept when two register for one environment.
    #[command(after_help = POLICY_EXAMPLES)]
    Policy {
        /// The environment.
        environment: String,
        /// Which executor is kept.
        policy: Policy,
        #[command(flatten)]
        registry: RegistryArguments,
    },
    /// Delete an environment with its tokens and registrations; its connections are closed within seconds.
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The environment.
        environment: String,
        #[command(flatten)]
        registry: RegistryArguments,
    },
}

const DELETE_EXAMPLES: &str = "\
Examples:
  exec-server environments delete build-1
  exec-server environments delete build-1 --remote https://meet.example.org";

const POLICY_EXAMPLES: &str = "\
Examples:
  exec-server environments policy build-1 first-wins";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    /// Keep the newest; suits machines that are replaced.
    NewestWins,
    /// Keep the attached executor; refuse others.
    FirstWins,
}

/// Shown when no token has been created yet.
const NONE_YET: &str = "exec-server: no environments yet; the first token for one makes it: \
                        exec-server token create --environment NAME --role executor";

/// Runs the command and prints its output.
pub fn run(arguments: EnvironmentsArguments) -> ExitCode {
    let text = match arguments.command {
        None => list(&arguments.registry, arguments.output),
        Some(EnvironmentsCommand::Policy { environment, policy, registry }) => {
            let policy = match policy {
                Policy::NewestWins => RegistrationPolicy::NewestWins,
                Policy::FirstWins => RegistrationPolicy::FirstWins,
            };
            let set =
                registry.open().and_then(|registry| registry.set_policy(&environment, policy));
            set.map(|()| String::new())
        }
        Some(EnvironmentsCommand::Delete { environment, registry }) => {
            let deleted =
                registry.open().and_then(|registry| registry.delete_environment(&environment));
            deleted.map(|()| String::new())
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

fn list(registry: &RegistryArguments, output: OutputFormat) -> Result<String, RegistryError> {
    let (environments, doubt) = registry.open()?.environments()?;
    if let Some(doubt) = doubt {
        eprintln!("exec-server: whether executors are attached is not known: {doubt}");
    }
    if output == OutputFormat::Json {
        return Ok(json(&environments));
    }
    if environments.is_empty() {
        eprintln!("{NONE_YET}");
    }
    let rows: Vec<_> = environments.iter().map(row).collect();
    Ok(table(&["ENVIRONMENT", "STATE", "STREAMS", "REGISTERED", "POLICY"], &rows))
}

fn row(environment: &EnvironmentStatus) -> Vec<String> {
    let state = match (environment.online, environment.online_since) {
        (None, _) => "unknown".to_owned(),
        (Some(false), _) => "offline".to_owned(),
        (Some(true), None) => "online".to_owned(),
        (Some(true), Some(since)) => format!("online since {}", relative(since)),
    };
    vec![
        environment.id.clone(),
        state,
        environment.streams.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        environment.registered_at.map_or_else(|| "never".to_owned(), relative),
        environment.policy.name().to_owned(),
    ]
}
