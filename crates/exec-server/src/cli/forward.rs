//! `exec-server forward`: connects harnesses of a rendezvous with a server that has no public address.

use std::path::PathBuf;
use std::process::ExitCode;

use exec_server::logging::LogFormat;
use exec_server::remote::{ForwardConfig, RemoteError, run_forward};
use exec_server_transport::dial::{ServerUrl, ServerUrlError};

use super::reference_options::ReferenceOptions;
use super::stdin_option::StdinOption;
use crate::cli::{ArgumentError, JoinArguments};

/// Arguments of `forward`.
#[derive(Debug, clap::Args)]
pub struct ForwardArguments {
    /// Server to forward to: ws://HOST:PORT, wss://HOST:PORT or unix:///PATH.
    #[arg(long, value_name = "URL")]
    connect: String,
    /// File with the access token for the server; requires wss:// or a server on this machine.
    #[arg(long, value_name = "FILE")]
    connect_token_file: Option<PathBuf>,
    /// Registry to join; the token comes from EXEC_SERVER_REMOTE_TOKEN or _TOKEN_FILE.
    #[arg(long, value_name = "URL", requires = "environment_id")]
    remote: url::Url,
    #[command(flatten)]
    join: JoinArguments,
    /// Directory for the key if --identity is not given [default: exec-server in $XDG_STATE_HOME or ~/.local/state].
    #[arg(long, value_name = "DIR", env = "EXEC_SERVER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    stdin: StdinOption,
    #[command(flatten)]
    reference: ReferenceOptions,
    /// Format of the log on stderr; RUST_LOG sets the log level.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    log_format: LogFormat,
}

#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error("--connect")]
    Server(#[from] ServerUrlError),
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    #[error("could not set up")]
    SetUp(#[from] std::io::Error),
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

/// Forwards until a signal.
pub fn run(arguments: &ForwardArguments) -> ExitCode {
    exec_server_os::tune_allocator();
    exec_server_os::raise_open_file_limit();
    exec_server::logging::init(arguments.log_format);
    match forward(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&error),
    }
}

fn forward(arguments: &ForwardArguments) -> Result<(), ForwardError> {
    arguments.reference.check().map_err(ArgumentError::from)?;
    let server = ServerUrl::parse(&arguments.connect)?;
    let state_dir = exec_server::state_dir::find(arguments.state_dir.as_deref())
        .map_err(ArgumentError::from)?;
    let remote = arguments.join.build(&arguments.remote, state_dir.as_deref())?;
    if let Some(file) = &arguments.connect_token_file {
        exec_server_executor::auth::warn_about("server's token", file);
    }
    let runtime = exec_server::shards::event_loop()?;
    let result = runtime.block_on(async {
        let stop = exec_server::stop_signal()?;
        let token_file = arguments.connect_token_file.clone();
        let exit_on_stdin_close = arguments.stdin.exit_on_stdin_close;
        let config = ForwardConfig { server, token_file, remote, exit_on_stdin_close };
        run_forward(config, stop).await.map_err(ForwardError::from)
    });
    // A thread may still be blocked on stdin.
    runtime.shutdown_background();
    result
}
