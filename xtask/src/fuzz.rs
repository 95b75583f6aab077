//! Runs each fuzz target for a while, with the installed toolchain.
//!
//! The instrumentation is that of `cargo fuzz` without sanitizers, and works with a stable compiler; `--sanitizer`
//! needs a nightly one. Findings are stored in `fuzz/artifacts`; add a fixed one to `fuzz/seeds`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::check::cargo;

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Options {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Also find memory errors, with a nightly compiler
    #[arg(long)]
    sanitizer: bool,
    /// Targets to run [default: all]
    targets: Vec<String>,
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Instruments edges and comparisons.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code";

/// Builds the targets and runs them one after the other; fails on a finding.
pub fn run(options: &Options) -> ExitCode {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let targets = match choose(&fuzz, &options.targets) {
        Ok(targets) => targets,
        Err(message) => {
            eprintln!("xtask: {message}");
            return ExitCode::FAILURE;
        }
    };
    if !build(&fuzz, options.sanitizer) {
        eprintln!("xtask: the fuzz targets could not be built");
        return ExitCode::FAILURE;
    }
    let findings: Vec<_> =
        targets.into_iter().filter(|target| !fuzz_one(&fuzz, target, options.seconds)).collect();
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("xtask: findings of {} are in {}", findings.join(", "), artifacts(&fuzz).display());
    ExitCode::FAILURE
}

/// The selected targets, or all.
fn choose(fuzz: &Path, wanted: &[String]) -> Result<Vec<String>, String> {
    let seeds = std::fs::read_dir(fuzz.join("seeds"))
        .map_err(|error| format!("cannot read {}: {error}", fuzz.join("seeds").display()))?;
    let mut known: Vec<String> =
        seeds.flatten().filter_map(|dir| dir.file_name().into_string().ok()).collect();
    known.sort();
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        return Err(format!("there is no fuzz target `{unknown}`; there are {}", known.join(", ")));
    }
    Ok(if wanted.is_empty() { known } else { wanted.to_vec() })
}

fn build(fuzz: &Path, sanitizer: bool) -> bool {
    let mut command = if sanitizer {
        let mut rustup = Command::new("rustup");
        rustup.args(["run", "nightly", "cargo"]).env_remove("RUSTC").env_remove("RUSTDOC");
        rustup
    } else {
        Command::new(cargo())
    };
    let flags =
        if sanitizer { format!("{COVERAGE} -Zsanitizer=address") } else { COVERAGE.to_owned() };
    command
        .args(["build", "--release", "--locked", "--bins", "--target", TARGET])
        .current_dir(fuzz)
        .env("RUSTFLAGS", flags);
    command.status().is_ok_and(|status| status.success())
}

fn fuzz_one(fuzz: &Path, target: &str, seconds: u32) -> bool {
    let corpus = fuzz.join("corpus").join(target);
    let seeds = fuzz.join("seeds").join(target);
    for dir in [&corpus, &artifacts(fuzz)] {
        if let Err(error) = std::fs::create_dir_all(dir) {
            eprintln!("xtask: cannot make {}: {error}", dir.display());
            return false;
        }
    }
    eprintln!("xtask: fuzzing {target} for {seconds} s");
    let program = fuzz.join("target").join(TARGET).join("release").join(target);
    let mut command = Command::new(program);
    command
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/{target}-", artifacts(fuzz).display()))
        .args([corpus, seeds]);
    command.status().is_ok_and(|status| status.success())
}

fn artifacts(fuzz: &Path) -> PathBuf {
    fuzz.join("artifacts")
}
