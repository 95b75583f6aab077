//! `exec-server nodes`: lists the nodes of a rendezvous cluster.

use std::io::Write;
use std::process::ExitCode;

use exec_server_rendezvous::admin::NodeStatus;

use crate::cli::registry::{OutputFormat, RegistryArguments, RegistryError, json, table};

/// Arguments of `nodes`.
#[derive(Debug, clap::Args)]
pub struct NodesArguments {
    #[command(flatten)]
    registry: RegistryArguments,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

/// Runs the command and prints its output.
pub fn run(arguments: &NodesArguments) -> ExitCode {
    match list(arguments) {
        Ok(text) => {
            // A closed stdout (`| head`) is not an error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => crate::fail(&error),
    }
}

fn list(arguments: &NodesArguments) -> Result<String, RegistryError> {
    let nodes = arguments.registry.open()?.nodes()?;
    if arguments.output == OutputFormat::Json {
        return Ok(json(&nodes));
    }
    if nodes.is_empty() {
        eprintln!("exec-server: a single rendezvous, without a cluster");
    }
    let rows: Vec<_> = nodes.iter().map(row).collect();
    Ok(table(&["NODE", "STATE", "EXECUTORS", "STREAMS", "VERSION", "RENEWED", "URL"], &rows))
}

fn row(node: &NodeStatus) -> Vec<String> {
    vec![
        node.id.clone(),
        node.state.clone(),
        node.executors.to_string(),
        node.streams.to_string(),
        node.version.clone(),
        format!("{}s ago", node.renewed_seconds_ago),
        node.url.clone(),
    ]
}
