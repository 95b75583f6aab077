//! Options that `grep` and `find` share.

use std::time::Duration;

use exec_server_protocol::fs::{FsSearchFilter, FsSearchLimits, FsSearchState, Incomplete};

use super::args::positive_duration;
use super::format;
use super::ls::shown;

/// Which files of a tree, and for how long.
#[derive(Debug, clap::Args)]
pub struct SearchOptions {
    /// Only files that match this glob; with ! in front, not those. Can be repeated.
    #[arg(short, long = "glob", value_name = "GLOB")]
    globs: Vec<String>,
    /// Only files of this type, such as rust or py. Can be repeated.
    #[arg(short = 'T', long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Include names that begin with a dot.
    #[arg(long)]
    hidden: bool,
    /// Do not leave out what .gitignore and .ignore name.
    #[arg(long)]
    no_ignore: bool,
    /// Levels below the directory.
    #[arg(short = 'd', long, value_name = "LEVELS")]
    max_depth: Option<u64>,
    /// Stop after this many results.
    #[arg(short = 'm', long, value_name = "COUNT")]
    max_count: Option<u64>,
    /// Stop after this time.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = positive_duration)]
    timeout: Duration,
}

impl SearchOptions {
    /// The filter on the wire.
    pub fn filter(&self) -> FsSearchFilter {
        FsSearchFilter {
            globs: self.globs.clone(),
            types: self.types.clone(),
            hidden: self.hidden,
            ignore: !self.no_ignore,
            max_depth: self.max_depth,
            max_file_bytes: None,
        }
    }

    /// The limits on the wire.
    pub fn limits(&self) -> FsSearchLimits {
        FsSearchLimits {
            max_matches: self.max_count,
            max_bytes: None,
            timeout_ms: Some(u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)),
            page_size: None,
        }
    }
}

/// Reports what a page could not read and why the search ended; whether something is missing.
pub fn report(state: &FsSearchState) -> bool {
    for error in &state.errors {
        let text = format!("{}: {}\n", shown(&error.path), format::plain(&error.message));
        super::output::print_stderr(&format!("exec-server: {text}"));
    }
    let reason = match state.incomplete {
        Some(Incomplete::Timeout) => "the time has passed",
        Some(Incomplete::MaxBytes) => "there is too much",
        // The user asked for it.
        Some(Incomplete::MaxMatches) | None => return !state.errors.is_empty(),
    };
    super::output::print_stderr(&format!("exec-server: the result is not complete: {reason}\n"));
    true
}
