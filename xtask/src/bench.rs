//! Builds the benchmark with optimisation and runs it; the benchmark is the crate `exec-server-bench`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::check::cargo;

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Options of the benchmark; `--help` lists them
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    args: Vec<OsString>,
}

/// Becomes the benchmark.
pub fn run(options: &Options) -> ExitCode {
    let error = Command::new(cargo())
        .args(["run", "--release", "--quiet", "--package", "exec-server-bench", "--"])
        .args(&options.args)
        .exec();
    eprintln!("xtask: could not run cargo: {error}");
    ExitCode::FAILURE
}
