//! The project's own commands, run as `cargo xtask <command>`.

mod bare;
mod bench;
mod check;
mod dist;
mod frame;
mod fuzz;
mod test;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check formatting, lints and documentation, stopping at the first failure
    Check,
    /// Run a part of the tests; `./test.sh` runs everything
    Test(test::Options),
    /// Measure exec-server against a peer and against a minimal server
    Bench(bench::Options),
    /// Fuzz the parsers of untrusted input
    Fuzz(fuzz::Options),
    /// Make the artefacts of a release: archives, packages, image, checksums
    Dist(dist::Options),
    /// Run the minimal server, the baseline of the benchmark
    #[command(hide = true)]
    BareServer,
    /// Kill the servers named on stdin when the benchmark is killed
    #[command(hide = true)]
    Warden,
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Check => check::run(),
        Task::Test(options) => test::run(&options),
        Task::Bench(_) if cfg!(debug_assertions) => rerun_optimised(),
        Task::Bench(options) => bench::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Dist(options) => dist::run_task(&options),
        Task::BareServer => bare::run(),
        Task::Warden => bench::run_warden(),
    }
}

/// An unoptimised client would measure itself, so the benchmark restarts as a release build.
fn rerun_optimised() -> ExitCode {
    eprintln!("xtask: building the benchmark with optimisation");
    let error = Command::new(check::cargo())
        .args(["run", "--release", "--quiet", "--package", "xtask", "--"])
        .args(std::env::args_os().skip(1))
        .exec();
    eprintln!("xtask: could not run cargo: {error}");
    ExitCode::FAILURE
}
