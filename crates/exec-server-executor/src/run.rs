//! Runs a server: bind, announce the URL, serve until a stop condition, shut down.
//!
//! Stop conditions: a signal, the end of stdin if configured, the end of the stdio connection or of the remote task.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use exec_server_transport::connection::{Ended, WireError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::auth::{Auth, run_credentials, warn_about_readers};
use crate::config::ServerConfig;
use crate::listen::{ListenError, Listener, serve_metrics, serve_stdio};
use crate::listen_url::ListenUrl;
use crate::reaper::run_reaper;
use crate::remote::{Credential, RemoteError, RemoteRun};
use crate::server::Server;
use crate::service_manager::ServiceManager;
use crate::state_dir;

/// Why a server could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The operating system refused a resource that the server needs, or stdio failed.
    #[error("could not set up the server")]
    SetUp(#[source] io::Error),
    /// The listener could not be set up.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The metrics listener could not be bound.
    #[error("could not serve metrics on {address}")]
    Metrics {
        /// The configured address.
        address: SocketAddr,
        /// The error of the bind.
        source: io::Error,
    },
    /// Metrics would be open to the network.
    #[error(
        "refusing to serve metrics on {0} without authentication: use --ws-auth (metrics then need the same token), \
         serve them on 127.0.0.1, or say --insecure-no-auth"
    )]
    OpenMetrics(SocketAddr),
    /// The server is permanently unreachable through its registry.
    #[error(transparent)]
    Remote(RemoteError),
    /// The URL could not be determined or printed to stdout.
    #[error("could not write to stdout")]
    Stdout(#[source] io::Error),
}

/// Serves until a stop condition, then ends all processes and returns.
pub async fn run_main(config: ServerConfig) -> Result<(), RunError> {
    exec_server_os::raise_open_file_limit();
    exec_server_os::survive_file_size_limit();
    exec_server_os::prepare_to_adopt().map_err(RunError::SetUp)?;
    let stop = stop_signal().map_err(RunError::SetUp)?;
    warn_about_readers(&config);
    if config.allow_other_users && config.auth.is_open() {
        tracing::warn!(
            "--allow-other-users: every user of this machine can run commands as the user of this server"
        );
    }
    let _record = state_dir::enter_server(config.state_dir.as_deref());
    let server = Server::new(config).map_err(RunError::SetUp)?;
    if let Some(audit) = &server.audit {
        let version = env!("CARGO_PKG_VERSION");
        let details = serde_json::json!({ "version": version, "pid": std::process::id() });
        audit.record("server/started", None, details);
    }
    let metrics = match server.config.metrics {
        Some(address) => Some(bind_metrics(&server.config, address).await?),
        None => None,
    };
    let mut remote = RemoteRun::start(&server);
    let listener = match server.config.listen {
        _ if remote.is_some() => None,
        ListenUrl::Stdio => None,
        _ => Some(Listener::bind(&server).await?),
    };
    let manager = ServiceManager::from_environment();
    if let Some(listener) = &listener {
        announce(listener).map_err(RunError::Stdout)?;
        print_next_commands(listener, &server.config.auth);
    }
    manager.ready(&match &listener {
        Some(listener) => format!("listening on {}", listener.url().unwrap_or_default()),
        None => "serving".to_owned(),
    });
    let is_stdin_free = match &server.config.remote {
        Some(remote) => !matches!(remote.credential, Credential::Stdin(_)),
        None => listener.is_some(),
    };
    let outcome = tokio::select! {
        () = stop => {
            tracing::info!("received a signal, shutting down");
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
        () = run_credentials(&server) => Ok(()),
        () = manager.run_watchdog() => Ok(()),
    };
    drop(listener);
    manager.stopping();
    server.shut_down().await;
    if let Some(remote) = remote {
        remote.leave().await;
    }
    if let Some(audit) = &server.audit {
        audit.record("server/stopped", None, ());
        audit.close().await;
    }
    outcome
}

async fn bind_metrics(config: &ServerConfig, address: SocketAddr) -> Result<TcpListener, RunError> {
    let is_local = address.ip().to_canonical().is_loopback();
    if config.auth.is_open() && !is_local && !config.insecure_no_auth {
        return Err(RunError::OpenMetrics(address));
    }
    let failed = |source| RunError::Metrics { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(url = %format_args!("http://{bound}/metrics"), "serving metrics");
    Ok(listener)
}

/// Prints the URL as the first line of stdout: programs that start a server parse it.
fn announce(listener: &Listener) -> io::Result<()> {
    let url = listener.url()?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{url}")?;
    stdout.flush()?;
    tracing::info!(%url, "listening");
    Ok(())
}

/// Prints example commands to stderr, if stdout and stderr are terminals.
fn print_next_commands(listener: &Listener, auth: &Auth) {
    if !(io::stdout().is_terminal() && io::stderr().is_terminal()) {
        return;
    }
    let (Ok(url), Ok(program)) = (listener.url(), std::env::current_exe()) else { return };
    let documentation = documentation(&program);
    let program = program.display();
    let token = if matches!(auth, Auth::Open) { "" } else { " --token-file FILE" };
    eprintln!("In another terminal (Ctrl-C here stops the server and its processes):");
    eprintln!("  {program} run{token} {url} -- uname -a");
    eprintln!("  {program} shell{token} {url}");
    eprintln!("`{program} demo` shows what becomes of commands when links fail.");
    eprintln!("Documentation: {documentation}");
}

/// Where this installation has its documentation: beside the program of an archive, or as man pages.
fn documentation(program: &Path) -> String {
    let help = format!("{} --help", program.display());
    let Some(directory) = program.parent() else { return help };
    let pages = directory.join("docs");
    if pages.join("install.md").exists() {
        return format!("{}, {help}", pages.display());
    }
    let manuals = directory.with_file_name("share/man/man1");
    let has_manual =
        ["exec-server.1", "exec-server.1.gz"].iter().any(|name| manuals.join(name).exists());
    if has_manual { format!("man exec-server, {help}") } else { help }
}

async fn serve(server: &Arc<Server>, listener: Option<&Listener>) -> io::Result<()> {
    match listener {
        Some(listener) => {
            listener.serve(server).await;
            Ok(())
        }
        None => {
            if let Ended::Broken(error @ WireError::Protocol(_)) = serve_stdio(server).await? {
                tracing::error!(%error, "invalid input on stdin; no further requests are read");
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

/// Resolves at the end of stdin, or when it cannot be read; discards its content.
pub(crate) async fn stdin_end() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 4096];
    while stdin.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
}

/// Resolves on SIGTERM, SIGINT or SIGHUP.
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

/// Resolves on Ctrl-C.
#[cfg(not(unix))]
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    Ok(async {
        // Without a handler no signal can be received, so the future never resolves.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_is_that_of_the_installation() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        let program = bin.join("exec-server");
        let help = format!("{} --help", program.display());
        assert_eq!(documentation(&program), help);
        let manuals = dir.path().join("share/man/man1");
        std::fs::create_dir_all(&manuals).unwrap();
        std::fs::write(manuals.join("exec-server.1.gz"), "").unwrap();
        assert_eq!(documentation(&program), format!("man exec-server, {help}"));
        std::fs::create_dir_all(bin.join("docs")).unwrap();
        std::fs::write(bin.join("docs/install.md"), "").unwrap();
        assert_eq!(documentation(&program), format!("{}/docs, {help}", bin.display()));
    }
}
