//! Sets up logging to stderr: text on a terminal, JSON lines otherwise.
//!
//! Control characters in logged values are escaped, so that a peer can neither inject a log line nor send control
//! sequences to the terminal.

mod escape;

use std::io::{self, IsTerminal};

pub use exec_server_transport::causes::chain;
use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Human-readable lines.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging with the filter in `RUST_LOG`; the default filter is `warn`.
pub fn init(format: LogFormat) {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "warn".to_owned());
    let (filter, refused) = match EnvFilter::try_new(&wanted) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("warn"), Some(error)),
    };
    let is_text = match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    // Without this, an event that cannot be written, as on a full disk, is reported by `eprintln`, which then panics.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    if is_text {
        let is_terminal = io::stderr().is_terminal();
        let builder = builder.with_writer(io::stderr).fmt_fields(escape::text_fields());
        builder.with_ansi(is_terminal).with_target(false).init();
    } else {
        let writer = || escape::JsonLines::new(io::stderr());
        builder.with_writer(writer).json().flatten_event(true).init();
    }
    if let Some(error) = refused {
        tracing::warn!(%error, "invalid RUST_LOG; logging warnings and errors only");
    }
}
