//! Logs go to stderr: for people on a terminal, as JSON lines anywhere else.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
pub use exec_server_transport::causes::chain;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging; `RUST_LOG` decides what is said, `warn` without it.
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
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if is_text {
        builder.with_ansi(io::stderr().is_terminal()).with_target(false).init();
    } else {
        builder.json().flatten_event(true).init();
    }
    if let Some(error) = refused {
        tracing::warn!(%error, "RUST_LOG cannot be read; only warnings and errors are logged");
    }
}
