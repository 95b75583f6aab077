//! Man pages, from the same definitions as `--help`; packages are built with the hidden command `__man`.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use super::Arguments;

/// Writes one page of section 1 per command to a directory.
pub fn write(directory: &Path) -> ExitCode {
    match clap_mangen::generate_to(Arguments::command(), directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exec-server: cannot write man pages to {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
