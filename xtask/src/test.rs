//! Runs a part of the tests, for the inner loop; `./test.sh` runs everything.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::check::run_steps;

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub struct Options {
    /// Amount of tests to run
    tier: Tier,
    /// Run only tests whose name contains one of these
    filter: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Tier {
    /// Rules, parsers and the wire on real servers: under a minute once it is built
    Quick,
    /// Every test of the workspace
    Full,
}

/// Crates without processes and sandboxes: their tests take seconds.
const QUICK_CRATES: [&str; 8] = [
    "-p",
    "exec-server-protocol",
    "-p",
    "exec-server-core",
    "-p",
    "exec-server-transport",
    "-p",
    "exec-server-relay",
];

/// Modules of `tests/it` that show quickly whether a change breaks the server.
const QUICK_MODULES: [&str; 8] = [
    "wire::",
    "reads::",
    "environment::",
    "terminals::",
    "handover::",
    "taking_over::",
    "files::reading::",
    "commands::running::",
];

/// Runs the tests of a tier.
pub fn run(options: &Options) -> ExitCode {
    let filter: Vec<&str> = options.filter.iter().map(String::as_str).collect();
    match options.tier {
        Tier::Quick => {
            let rules = [&["test", "--lib"], &QUICK_CRATES[..], &["--"], &filter].concat();
            let modules = if filter.is_empty() { &QUICK_MODULES[..] } else { &filter };
            let server = [&["test", "-p", "exec-server", "--test", "it", "--"], modules].concat();
            run_steps(&[&rules, &server])
        }
        Tier::Full => run_steps(&[&[&["test", "--workspace", "--"], &filter[..]].concat()]),
    }
}
