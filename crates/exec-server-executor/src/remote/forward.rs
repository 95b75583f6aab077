//! Forwards harnesses from a relay to a server elsewhere, without reading their messages.
//!
//! ```text
//! harness ═encrypted stream═ this process ═a websocket of its own═ the server
//! ```
//!
//! Owner: one task per stream, held by the [`Forwarder`]. Messages pass unchanged. The close of the server's side
//! reaches the harness after all earlier messages; a harness that disconnects closes its websocket.
//! The server receives the fingerprint of each harness's key, so that sessions of different harnesses stay separate.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_core::backoff::Backoff;
use exec_server_relay::mux_task::StreamWire;
use exec_server_relay::noise::identity::fingerprint;
use exec_server_relay::registry_types::{FORWARDED_FOR_HEADER, PublicKey};
use exec_server_relay::splice::{SpliceEnd, splice};
use exec_server_transport::connection::Wire;
use exec_server_transport::dial::{DialError, DialOptions, ServerUrl, dial_opaque};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::stream_handler::StreamHandler;
use super::{
    Announcement, CLOSE_TIMEOUT, Credential, PINGS, RemoteEnvironmentConfig, RemoteError,
    read_stdin, receive_harnesses,
};
use crate::auth::{TokenFileError, read_secret};
use crate::run::stdin_end;

/// The timeout of connecting to the server, including retries and the websocket upgrade.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connection attempts are retried: a server that refuses connections may be restarting.
const RESTART_TIMEOUT: Duration = Duration::from_secs(2);

/// The server behind a forwarder, and the registration with the relay's registry.
#[derive(Debug)]
pub struct ForwardConfig {
    /// The server that harnesses are forwarded to.
    pub server: ServerUrl,
    /// The file of the server's capability token; read for every connection.
    pub token_file: Option<PathBuf>,
    /// The registration with the registry.
    pub remote: RemoteEnvironmentConfig,
    /// Whether the forwarder exits at the end of stdin.
    pub exit_on_stdin_close: bool,
}

/// Forwards until `stop`, a permanent rejection by the registry, or the end of stdin where that is watched.
pub async fn run_forward(
    config: ForwardConfig,
    stop: impl Future<Output = ()>,
) -> Result<(), RemoteError> {
    let ForwardConfig { server, token_file, remote, exit_on_stdin_close } = config;
    if let Some(path) = &token_file {
        if !server.is_secure() {
            return Err(RemoteError::InTheClear(server.to_string()));
        }
        read_secret(path)?;
    }
    let (leave, leaving) = watch::channel(false);
    let ca_file = remote.ca_file.clone();
    let destination = Arc::new(Destination { server, token_file, ca_file });
    let forwarder = Arc::new(Forwarder { destination, streams: Mutex::default() });
    let handler: Arc<dyn StreamHandler> = forwarder.clone();
    let registered = AtomicBool::new(false);
    let announcement = Announcement::Stdout;
    let receiving = receive_harnesses(handler, &remote, leaving, announcement, &registered);
    let mut receiving = std::pin::pin!(receiving);
    let is_stdin_free = !matches!(remote.credential, Credential::Stdin(_));
    let outcome = tokio::select! {
        ended = &mut receiving => return ended,
        ended = read_stdin(&remote, &registered) => ended.map_err(RemoteError::from),
        () = stdin_end(), if exit_on_stdin_close && is_stdin_free => Ok(()),
        () = stop => Ok(()),
    };
    forwarder.end_all();
    leave.send_replace(true);
    // A relay that does not read is disconnected without a close.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, receiving).await;
    outcome
}

struct Forwarder {
    destination: Arc<Destination>,
    streams: Mutex<JoinSet<()>>,
}

/// The server, its token, and the authorities that its certificate is checked against.
struct Destination {
    server: ServerUrl,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
}

impl Forwarder {
    /// Aborts all streams; dropping a stream closes it at the harness.
    fn end_all(&self) {
        self.streams.lock().expect("no holder panics").abort_all();
    }
}

impl StreamHandler for Forwarder {
    /// A forwarder serves no metrics; its log has the same information.
    fn count_handshake(&self, _result: &'static str) {}

    fn serve(&self, wire: StreamWire, harness: &PublicKey) {
        let (destination, harness) = (self.destination.clone(), fingerprint(harness));
        let mut streams = self.streams.lock().expect("no holder panics");
        while streams.try_join_next().is_some() {}
        streams.spawn(async move { run_stream(&destination, wire, &harness).await });
    }
}

/// Serves one harness until either side closes.
async fn run_stream(destination: &Destination, mut harness: StreamWire, who: &str) {
    let server = &destination.server;
    let stream_id = harness.stream_id().to_owned();
    let options = match destination.options(who) {
        Ok(options) => options,
        Err(error) => {
            let cause = error.to_string();
            return tracing::warn!(stream_id, cause, "could not read the token for the server");
        }
    };
    let reached = tokio::select! {
        reached = tokio::time::timeout(CONNECT_TIMEOUT, reach(server, &options)) => reached,
        // The harness has disconnected, so the connection attempt is dropped.
        () = harness.ended() => return,
    };
    let wire = match reached {
        Ok(Ok(wire)) => wire,
        Ok(Err(error)) => {
            let cause = crate::logging::chain(&error);
            return tracing::warn!(%server, stream_id, cause, "could not reach the server");
        }
        Err(_) => return tracing::warn!(%server, stream_id, "the server does not answer"),
    };
    match splice(harness, wire, PINGS).await {
        SpliceEnd::Near(_) => tracing::debug!(stream_id, "the harness disconnected"),
        SpliceEnd::Closed(_) | SpliceEnd::Far(None) => {
            tracing::debug!(stream_id, "the server closed a connection");
        }
        SpliceEnd::Far(Some(error)) => {
            let cause = crate::logging::chain(&error);
            tracing::warn!(%server, stream_id, cause, "a connection to the server broke");
        }
        SpliceEnd::Silent => tracing::warn!(%server, stream_id, "the server does not answer pings"),
    }
}

impl Destination {
    /// Headers with the harness's fingerprint, by which the server keeps sessions apart, and the token.
    fn options(&self, who: &str) -> Result<DialOptions, TokenFileError> {
        let mut headers = vec![(FORWARDED_FOR_HEADER.to_owned(), who.to_owned())];
        if let Some(path) = &self.token_file {
            headers.push(("authorization".to_owned(), format!("Bearer {}", read_secret(path)?)));
        }
        Ok(DialOptions { headers, authorities: self.ca_file.clone(), ..DialOptions::default() })
    }
}

/// Connects, and retries while the server restarts.
async fn reach(server: &ServerUrl, options: &DialOptions) -> Result<Box<dyn Wire>, DialError> {
    let until = tokio::time::Instant::now() + RESTART_TIMEOUT;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(250));
    loop {
        match dial_opaque(server, options).await {
            Err(DialError::Connect(_)) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(backoff.next(fastrand::f64())).await;
            }
            result => return result,
        }
    }
}
