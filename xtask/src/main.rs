//! The project's own commands, run as `cargo xtask <command>`.

mod bench;
mod check;
mod dist;
mod fuzz;
mod record;
mod schema;
mod test;

use std::process::ExitCode;

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
    /// Write docs/protocol.schema.json and the generated part of docs/protocol.md
    Schema,
    /// Record `exec-server demo` as an animated SVG, docs/demo.svg
    Record(record::Options),
    /// Fuzz the parsers of untrusted input
    Fuzz(fuzz::Options),
    /// Make the artefacts of a release: archives, packages, image, checksums
    Dist(dist::Options),
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Check => check::run(),
        Task::Test(options) => test::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Record(options) => record::run(&options),
        Task::Schema => schema::run(),
        Task::Dist(options) => dist::run_task(&options),
    }
}
