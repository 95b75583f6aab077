//! `exec-server environments`: which environments a rendezvous has, and whether their executors are there.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use exec_server_rendezvous::admin::EnvironmentStatus;
use exec_server_rendezvous::store::RegistrationPolicy;

use crate::admin::{OutputFormat, RegistryArguments, RegistryError, json, relative, table};

/// What to do with environments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EnvironmentsArguments {
    #[command(subcommand)]
    command: Option<EnvironmentsCommand>,
    #[command(flatten)]
    registry: RegistryArguments,
    /// How it looks.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

#[derive(Debug, Subcommand)]
enum EnvironmentsCommand {
    /// Say who wins when two executors register for one environment.
    Policy {
        /// The environment.
        environment: String,
        /// Who wins.
        policy: Policy,
        #[command(flatten)]
        registry: RegistryArguments,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    /// The one that comes last; right for a machine that is replaced.
    NewestWins,
    /// The one that is attached, as long as it is; another one is refused.
    FirstWins,
}

/// An environment comes into being with its first token.
const NONE_YET: &str = "exec-server: no environments yet; the first token for one makes it: \
                        exec-server token create --environment NAME --role executor";

/// Does it, and says what there is to say.
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
    };
    match text {
        Ok(text) => {
            // Whoever stopped reading has seen enough.
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
