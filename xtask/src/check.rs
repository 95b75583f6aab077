//! Runs the checks that every change must pass: formatting, lints, documentation.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

/// Runs the checks in order and ends with the exit code of the first that fails.
pub fn run() -> ExitCode {
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    run_steps(&[&["fmt", "--all", "--check"], &clippy, &["doc", "--workspace", "--no-deps"]])
}

/// Runs cargo with each list of arguments and ends with the exit code of the first run that fails.
pub fn run_steps(steps: &[&[&str]]) -> ExitCode {
    for step in steps {
        let code = run_cargo(step);
        if code != 0 {
            eprintln!("xtask: `cargo {}` failed", step.join(" "));
            return ExitCode::from(code);
        }
    }
    ExitCode::SUCCESS
}

/// The cargo that runs this task, or the one on the path when it was started directly.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))
}

fn run_cargo(args: &[&str]) -> u8 {
    eprintln!("xtask: cargo {}", args.join(" "));
    let status = Command::new(cargo()).args(args).env("RUSTDOCFLAGS", "-Dwarnings").status();
    match status {
        // A cargo that was killed by a signal has no code of its own.
        Ok(status) => status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("xtask: could not run cargo: {error}");
            1
        }
    }
}
