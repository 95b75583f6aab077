//! A server's life: bind, say where, serve until told to stop, end everything.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use exec_server_transport::connection::{Ended, WireError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::config::ServerConfig;
use crate::listen::{ListenError, Listener, serve_metrics, serve_stdio};
use crate::listen_url::ListenUrl;
use crate::reaper::run_reaper;
use crate::remote::{Credential, RemoteError, RemoteRun};
use crate::server::Server;

/// Why a server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Something that it needs from the system is missing.
    #[error("could not set up the server: {0}")]
    SetUp(#[source] io::Error),
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Metrics cannot be served where they should be.
    #[error("could not serve metrics on {address}: {source}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// It cannot be reached through its registry.
    #[error("{}", crate::logging::chain(.0))]
    Remote(RemoteError),
    /// Nobody can be told where it listens.
    #[error("could not write to stdout: {0}")]
    Stdout(#[source] io::Error),
}

/// Serves until a signal, or until stdin ends where that is the sign; then ends every process and returns.
pub async fn run_main(config: ServerConfig) -> Result<(), RunError> {
    exec_server_os::raise_open_file_limit();
    exec_server_os::survive_file_size_limit();
    exec_server_os::prepare_to_adopt().map_err(RunError::SetUp)?;
    let stop = stop_signal().map_err(RunError::SetUp)?;
    let server = Server::new(config).map_err(RunError::SetUp)?;
    let metrics = match server.config.metrics {
        Some(address) => Some(bind_metrics(address).await?),
        None => None,
    };
    let mut remote = RemoteRun::start(&server);
    let listener = match server.config.listen {
        _ if remote.is_some() => None,
        ListenUrl::Stdio => None,
        _ => Some(Listener::bind(&server).await?),
    };
    if let Some(listener) = &listener {
        announce(listener).map_err(RunError::Stdout)?;
    }
    let is_stdin_free = match &server.config.remote {
        Some(remote) => !matches!(remote.credential, Credential::Stdin(_)),
        None => listener.is_some(),
    };
    let outcome = tokio::select! {
        () = stop => {
            tracing::info!("told to stop");
            Ok(())
        }
        () = stdin_end(), if server.config.exit_on_stdin_close && is_stdin_free => {
            tracing::info!("stdin was closed");
            Ok(())
        }
        result = RemoteRun::ended(&mut remote) => {
            remote = None;
            result.map_err(RunError::Remote)
        }
        result = serve(&server, listener.as_ref()), if remote.is_none() => {
            result.map_err(RunError::SetUp)
        }
        () = observe(&server, metrics.as_ref()) => Ok(()),
        () = run_reaper(&server) => Ok(()),
    };
    drop(listener);
    server.shut_down().await;
    if let Some(remote) = remote {
        remote.leave().await;
    }
    outcome
}

async fn bind_metrics(address: SocketAddr) -> Result<TcpListener, RunError> {
    let failed = |source| RunError::Metrics { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(url = %format_args!("http://{bound}/metrics"), "serving metrics");
    Ok(listener)
}

/// The first line of stdout is exactly the URL: programs that start a server read it.
fn announce(listener: &Listener) -> io::Result<()> {
    let url = listener.url()?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{url}")?;
    stdout.flush()?;
    tracing::info!(%url, "listening");
    Ok(())
}

async fn serve(server: &Arc<Server>, listener: Option<&Listener>) -> io::Result<()> {
    match listener {
        Some(listener) => {
            listener.serve(server).await;
            Ok(())
        }
        None => {
            if let Ended::Broken(error @ WireError::Protocol(_)) = serve_stdio(server).await? {
                tracing::error!(%error, "stdin cannot be read any further");
            }
            Ok(())
        }
    }
}

async fn observe(server: &Arc<Server>, listener: Option<&TcpListener>) {
    match listener {
        Some(listener) => serve_metrics(server, listener).await,
        None => std::future::pending().await,
    }
}

/// What comes is ignored; only the end counts.
async fn stdin_end() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 4096];
    while stdin.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
}

/// Ends when somebody asks the program to: SIGTERM, Ctrl-C or the end of its terminal.
#[cfg(unix)]
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Ends when somebody asks the program to.
#[cfg(not(unix))]
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without the signal there is no way to be told, so serving goes on.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
