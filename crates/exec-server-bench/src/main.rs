//! Measures exec-server against a peer and against a minimal server; run as `cargo xtask bench`.

mod bare;
mod client;
mod cluster;
mod contestant;
mod failure;
mod fault_proxy;
mod frame;
mod keep_alive;
mod ledger;
mod machine;
mod measure;
mod one_core;
mod options;
mod process_tree;
mod relay;
mod relayed;
mod report;
mod results;
mod row;
mod rows;
mod scene;
mod scratch;
mod ssh;
mod stats;
mod swarm;
mod table;
mod transfer;
mod transport;
mod warden;
mod web;
mod websocket;
mod wire;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use options::Options;

/// Measure exec-server against a peer and against a minimal server
#[derive(Parser)]
#[command(
    name = "cargo xtask bench",
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    helper: Option<Helper>,
}

/// Processes that the benchmark starts from its own program.
#[derive(Subcommand)]
enum Helper {
    /// Run the minimal server, the baseline of the benchmark
    #[command(hide = true)]
    BareServer,
    /// Kill the servers named on stdin when the benchmark is killed
    #[command(hide = true)]
    Warden,
}

fn main() -> ExitCode {
    let Cli { options, helper } = Cli::parse();
    match helper {
        None => measure::run(&options),
        Some(Helper::BareServer) => bare::run(),
        Some(Helper::Warden) => warden::run_warden(),
    }
}
