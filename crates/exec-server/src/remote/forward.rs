//! Brings harnesses that come through a relay to a server that listens elsewhere, without looking at what they say.
//!
//! ```text
//! harness ═encrypted stream═ this process ═a websocket of its own═ the server
//! ```
//!
//! Owner: one task per stream, held by the [`Forwarder`]. Messages pass whole and unchanged. The end of the server's side
//! is told to the harness after everything that came before it; a harness that is gone takes its websocket with it.
//! The server is told the fingerprint of each harness's key, so that sessions of one are not another's.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_machines::backoff::Backoff;
use exec_server_machines::noise::identity::fingerprint;
use exec_server_protocol::registry::{FORWARDED_FOR_HEADER, PublicKey};
use exec_server_transport::connection::Wire;
use exec_server_transport::dial::{DialError, DialOptions, ServerUrl, dial_opaque};
use exec_server_transport::relay_mux::StreamWire;
use exec_server_transport::splice::{SpliceEnd, splice};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::reception::Reception;
use super::{FAREWELL, PINGS, RemoteEnvironmentConfig, RemoteError, read_stdin, receive_harnesses};
use crate::auth::{TokenFileError, read_secret};

/// Connecting to the server takes no longer than this, the upgrade included.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A server that refuses connections may be starting again; a harness waits for it as long as this.
const RESTART_PATIENCE: Duration = Duration::from_secs(2);

/// Where harnesses are brought to, and how they find here.
#[derive(Debug)]
pub struct ForwardConfig {
    /// The server.
    pub server: ServerUrl,
    /// A file with the token that the server wants; read for every connection.
    pub token_file: Option<PathBuf>,
    /// How this process makes itself known to the registry.
    pub remote: RemoteEnvironmentConfig,
}

/// Forwards until `stop`, or until the registry or the parent process says that it is over.
pub async fn run_forward(
    config: ForwardConfig,
    stop: impl Future<Output = ()>,
) -> Result<(), RemoteError> {
    let ForwardConfig { server, token_file, remote } = config;
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
    let reception: Arc<dyn Reception> = forwarder.clone();
    let mut receiving = std::pin::pin!(receive_harnesses(reception, &remote, leaving));
    let outcome = tokio::select! {
        ended = &mut receiving => return ended,
        ended = read_stdin(&remote) => ended.map_err(RemoteError::from),
        () = stop => Ok(()),
    };
    forwarder.end_all();
    leave.send_replace(true);
    // A relay that takes nothing is left without a word.
    let _ = tokio::time::timeout(FAREWELL, receiving).await;
    outcome
}

struct Forwarder {
    destination: Arc<Destination>,
    streams: Mutex<JoinSet<()>>,
}

/// The server, what it wants to see, and whom to believe that it is the one.
struct Destination {
    server: ServerUrl,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
}

impl Forwarder {
    /// Each harness is told, as its stream is dropped.
    fn end_all(&self) {
        self.streams.lock().expect("no holder panics").abort_all();
    }
}

impl Reception for Forwarder {
    /// Nobody can ask a forwarder for its numbers; its log has the same.
    fn count_handshake(&self, _result: &'static str) {}

    fn serve(&self, wire: StreamWire, harness: &PublicKey) {
        let (destination, harness) = (self.destination.clone(), fingerprint(harness));
        let mut streams = self.streams.lock().expect("no holder panics");
        while streams.try_join_next().is_some() {}
        streams.spawn(async move { run_stream(&destination, wire, &harness).await });
    }
}

/// One harness, from its coming to the end of either side.
async fn run_stream(destination: &Destination, mut harness: StreamWire, who: &str) {
    let server = &destination.server;
    let stream_id = harness.stream_id().to_owned();
    let options = match destination.options(who) {
        Ok(options) => options,
        Err(error) => {
            let cause = error.to_string();
            return tracing::warn!(stream_id, cause, "there is no token for the server");
        }
    };
    let reached = tokio::select! {
        reached = tokio::time::timeout(CONNECT_PATIENCE, reach(server, &options)) => reached,
        // It would come back for an answer otherwise.
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
        SpliceEnd::Near => tracing::debug!(stream_id, "the harness left"),
        SpliceEnd::Far(None) => tracing::debug!(stream_id, "the server ended a connection"),
        SpliceEnd::Far(Some(error)) => {
            let cause = crate::logging::chain(&error);
            tracing::warn!(%server, stream_id, cause, "a connection to the server broke");
        }
        SpliceEnd::Silent => tracing::warn!(%server, stream_id, "the server fell silent"),
    }
}

impl Destination {
    /// A server of ours is told who comes, and keeps sessions apart.
    fn options(&self, who: &str) -> Result<DialOptions, TokenFileError> {
        let mut headers = vec![(FORWARDED_FOR_HEADER.to_owned(), who.to_owned())];
        if let Some(path) = &self.token_file {
            headers.push(("authorization".to_owned(), format!("Bearer {}", read_secret(path)?)));
        }
        Ok(DialOptions { headers, authorities: self.ca_file.clone(), ..DialOptions::default() })
    }
}

/// Connects; a server that is away for a moment is waited for.
async fn reach(server: &ServerUrl, options: &DialOptions) -> Result<Box<dyn Wire>, DialError> {
    let until = tokio::time::Instant::now() + RESTART_PATIENCE;
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
