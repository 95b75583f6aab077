//! The option of servers that another program starts.

use clap::Args;

/// When to stop, apart from signals.
#[derive(Debug, Clone, Copy, Args)]
pub struct StdinOption {
    /// Stop when stdin ends, as a server started by another program should.
    #[arg(
        long,
        env = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false
    )]
    pub exit_on_stdin_close: bool,
}
