//! A rendezvous: binds, serves, and goes without leaving anybody hanging.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_machines::switchboard::{Goodbye, SwitchboardLimits};
use exec_server_transport::tls;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::admin::{self, AdminError, NewToken, PUBLIC_URL};
use crate::bus::{Bus, LocalBus};
use crate::clock::Seconds;
use crate::config::RendezvousConfig;
use crate::data_dir::{DataDir, DataDirError};
use crate::http;
use crate::metrics::Metrics;
use crate::presence::PresenceSocket;
use crate::signed_url::SigningKeys;
use crate::store::{SqliteStore, Storage, Store, StoreError, TokenEnd, TokenRole};

/// What is over harms nobody while it is there.
const ROUNDS_BETWEEN_PRUNES: u64 = 15;

/// A rendezvous that is bound and not yet serving.
pub struct BoundRendezvous {
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    tls: Option<TlsAcceptor>,
    rendezvous: Arc<Rendezvous>,
    admin_token: Option<String>,
    presence: Option<PresenceSocket>,
    /// The data is ours until this is closed.
    data_lock: File,
}

/// What all connections share.
pub struct Rendezvous {
    pub(crate) config: RendezvousConfig,
    pub(crate) storage: Storage,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) keys: SigningKeys,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) base: Base,
    draining: watch::Sender<bool>,
}

/// Under which URLs a rendezvous is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub http: String,
    pub websocket: String,
}

/// Why a rendezvous does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its data cannot be used.
    #[error(transparent)]
    Data(#[from] DataDirError),
    /// Its database cannot be used.
    #[error("could not open {}: {source}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// The first token cannot be made.
    #[error("could not make the first admin token: {0}")]
    FirstToken(#[from] AdminError),
    /// The address cannot be had.
    #[error("could not listen on {address}: {source}{}", listen_hint(option, source))]
    Bind {
        /// The option that says so.
        option: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// Nobody could reach that URL.
    #[error("{0} is reached under many addresses: say which with --public-url https://NAME")]
    NeedsPublicUrl(SocketAddr),
    /// Not a URL that others could use.
    #[error("the public URL must be http://HOST or https://HOST, without query or fragment: {0}")]
    PublicUrl(String),
}

impl BoundRendezvous {
    /// Opens the data, binds the sockets; a first start makes an admin token.
    pub async fn bind(config: RendezvousConfig) -> Result<Self, StartError> {
        let acceptor = match &config.tls {
            Some((certificate, key)) => Some(tls::acceptor(certificate, key)?),
            None => None,
        };
        if config.public_url.is_none() && config.listen.ip().is_unspecified() {
            return Err(StartError::NeedsPublicUrl(config.listen));
        }
        let data = DataDir::create(&config.data)?;
        let data_lock = data.lock()?;
        let keys = data.signing_keys()?;
        let store = open_store(&data)?;
        let listener = bind("--listen", config.listen).await?;
        let metrics_listener = match config.metrics {
            Some(address) => Some(bind("--metrics-listen", address).await?),
            None => None,
        };
        let bound = listener.local_addr();
        let bound = bound.map_err(|source| StartError::Bind {
            option: "--listen",
            address: config.listen,
            source,
        })?;
        let base = Base::new(config.public_url.as_deref(), bound, acceptor.is_some())?;
        let noted = store.set_note(PUBLIC_URL, &base.http);
        noted.map_err(|source| StartError::Store { path: data.database(), source })?;
        // After everything that can go wrong: a token that nobody was shown would be the first and the last.
        let admin_token = first_admin_token(&store, config.clock.now())?;
        let limits = SwitchboardLimits {
            streams_per_environment: config.limits.streams_per_environment,
            claim: config.timings.claim,
            patience: config.timings.patience,
        };
        let rendezvous = Arc::new(Rendezvous {
            config,
            storage: Storage::new(store),
            bus: Arc::new(LocalBus::new(limits)),
            keys,
            metrics: Arc::default(),
            base,
            draining: watch::Sender::new(false),
        });
        Ok(Self {
            listener,
            metrics_listener,
            tls: acceptor,
            rendezvous,
            admin_token,
            presence: bind_presence(&data),
            data_lock,
        })
    }

    /// Under which URL executors, harnesses and administrators reach it.
    pub fn base_url(&self) -> &str {
        &self.rendezvous.base.http
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The admin token that was made just now, because there was none before; nobody can ask for it again.
    pub fn admin_token(&self) -> Option<&str> {
        self.admin_token.as_deref()
    }

    /// What it knows, for a program that has it in its own process.
    pub fn storage(&self) -> Storage {
        self.rendezvous.storage.clone()
    }

    /// Serves until `stop`, then says goodbye to everybody.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self {
            listener, metrics_listener, tls, rendezvous, presence, data_lock: _held, ..
        } = self;
        let mut connections = JoinSet::new();
        tokio::select! {
            () = stop => {}
            () = accept(&listener, tls.as_ref(), &rendezvous, &mut connections) => {}
            () = serve_metrics(metrics_listener.as_ref(), &rendezvous) => {}
            () = serve_presence(presence, &rendezvous) => {}
            () = maintain(&rendezvous) => {}
        }
        tracing::info!("draining");
        drop(listener);
        rendezvous.draining.send_replace(true);
        rendezvous.bus.drain();
        let all = async { while connections.join_next().await.is_some() {} };
        // A socket has its time to close, and then the time to see that it is closed.
        let _ = tokio::time::timeout(2 * rendezvous.config.timings.close, all).await;
    }
}

impl Rendezvous {
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    pub(crate) async fn wait_for_draining(&self) {
        // The sender is in here, so it cannot be gone.
        let _ = self.draining.subscribe().wait_for(|is_draining| *is_draining).await;
    }

    pub(crate) async fn is_ready(&self) -> bool {
        !self.is_draining() && self.storage.ask(|store| store.note(PUBLIC_URL)).await.is_ok()
    }
}

impl Base {
    fn new(public: Option<&str>, bound: SocketAddr, is_tls: bool) -> Result<Self, StartError> {
        let http = match public {
            None => format!("{}://{bound}", if is_tls { "https" } else { "http" }),
            Some(text) => {
                let bad = || StartError::PublicUrl(text.to_owned());
                let url = url::Url::parse(text.trim()).map_err(|_| bad())?;
                let is_plain = url.query().is_none() && url.fragment().is_none();
                let has_user = !url.username().is_empty() || url.password().is_some();
                if !matches!(url.scheme(), "http" | "https") || !is_plain || has_user {
                    return Err(bad());
                }
                url.as_str().trim_end_matches('/').to_owned()
            }
        };
        let websocket = http.replacen("http", "ws", 1);
        Ok(Self { http, websocket })
    }
}

/// Opens the database of a data directory.
pub fn open_store(data: &DataDir) -> Result<SqliteStore, StartError> {
    let path = data.prepare_database()?;
    SqliteStore::open(&path).map_err(|source| StartError::Store { path, source })
}

/// Without any admin token, nobody could make another one.
fn first_admin_token(store: &SqliteStore, now: Seconds) -> Result<Option<String>, AdminError> {
    if store.tokens()?.iter().any(|token| token.role == TokenRole::Admin) {
        return Ok(None);
    }
    let new = NewToken {
        role: TokenRole::Admin,
        environment: None,
        expires_in_seconds: None,
        max_streams: None,
    };
    Ok(Some(admin::create_token(store, &new, now)?.secret))
}

fn listen_hint(option: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("; choose another port with {option}"),
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need the right CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => String::new(),
    }
}

async fn bind(option: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| StartError::Bind { option, address, source })
}

/// Commands on the data can do without it: they say that they do not know.
fn bind_presence(data: &DataDir) -> Option<PresenceSocket> {
    let bound = PresenceSocket::bind(data);
    bound
        .inspect_err(|error| tracing::warn!(%error, "commands on the data cannot ask who is there"))
        .ok()
}

async fn serve_presence(socket: Option<PresenceSocket>, rendezvous: &Rendezvous) {
    match socket {
        Some(socket) => socket.serve(rendezvous).await,
        None => std::future::pending().await,
    }
}

async fn accept(
    listener: &TcpListener,
    tls: Option<&TlsAcceptor>,
    rendezvous: &Arc<Rendezvous>,
    connections: &mut JoinSet<()>,
) {
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok(_) if connections.len() >= rendezvous.config.limits.connections => {
                tracing::warn!("too many connections; one more was closed");
            }
            Ok((stream, peer)) => {
                connections.spawn(serve_accepted(rendezvous.clone(), stream, peer, tls.cloned()));
            }
            // Out of descriptors or memory: what is there goes on, newcomers wait a moment.
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve_accepted(
    rendezvous: Arc<Rendezvous>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
) {
    let _guard = rendezvous.metrics.connection();
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "a connection was gone at once");
        return;
    }
    let Some(tls) = tls else { return http::serve(rendezvous, stream, peer).await };
    let handshake = tokio::time::timeout(rendezvous.config.timings.handshake, tls.accept(stream));
    match handshake.await {
        Ok(Ok(stream)) => http::serve(rendezvous, stream, peer).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
    }
}

/// Serves `/metrics` to anyone who can reach that address.
async fn serve_metrics(listener: Option<&TcpListener>, rendezvous: &Arc<Rendezvous>) {
    let Some(listener) = listener else { return std::future::pending().await };
    if let Ok(address) = listener.local_addr() {
        tracing::info!(url = %format_args!("http://{address}/metrics"), "serving metrics");
    }
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let rendezvous = rendezvous.clone();
        connections.spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let reply = match request.uri().path() {
                    "/metrics" => http::metrics(&rendezvous),
                    _ => {
                        let mut reply = Response::new(Full::default());
                        *reply.status_mut() = StatusCode::NOT_FOUND;
                        reply
                    }
                };
                async move { Ok::<_, std::convert::Infallible>(reply) }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(rendezvous.config.timings.handshake)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = serving.await {
                tracing::debug!(%error, "metrics connection failed");
            }
        });
    }
}

/// Forgets what is over, and sends everybody away whose token expired or was revoked by another program.
async fn maintain(rendezvous: &Rendezvous) {
    let every = rendezvous.config.timings.maintenance;
    let clock = &rendezvous.config.clock;
    let mut since = clock.now();
    for round in 0_u64.. {
        tokio::time::sleep(every).await;
        let now = clock.now();
        let found = rendezvous.storage.ask(move |store| {
            let ended = store.ended_since(since, now)?;
            // A disk that takes nothing must not keep anybody in whose token has ended.
            if round.is_multiple_of(ROUNDS_BETWEEN_PRUNES)
                && let Err(error) = store.prune(now)
            {
                tracing::warn!(%error, "could not tidy the store up");
            }
            Ok(ended)
        });
        match found.await {
            Ok(ended) => {
                let why = |end| match end {
                    TokenEnd::Revoked => Goodbye::Revoked,
                    TokenEnd::Expired => Goodbye::Expired,
                };
                let ended = ended.into_iter().map(|(token, end)| (token, why(end))).collect();
                rendezvous.bus.end_tokens(&ended).await;
                // A second look at the last seconds costs nothing, and finds who was just coming in.
                since = now.min(clock.now()) - Seconds::from(5);
            }
            Err(error) => tracing::warn!(%error, "could not look for tokens that have ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urls_come_from_the_address_or_from_what_the_owner_says() {
        let bound = "127.0.0.1:80".parse().unwrap();
        let base =
            |public, is_tls| Base::new(public, bound, is_tls).map(|it| (it.http, it.websocket));
        let pair = |http: &str, websocket: &str| Some((http.to_owned(), websocket.to_owned()));
        assert_eq!(base(None, false).ok(), pair("http://127.0.0.1:80", "ws://127.0.0.1:80"));
        assert_eq!(base(None, true).ok(), pair("https://127.0.0.1:80", "wss://127.0.0.1:80"));
        assert_eq!(
            base(Some("https://x.org/relay/"), false).ok(),
            pair("https://x.org/relay", "wss://x.org/relay")
        );
        for bad in ["x.org", "ws://x.org", "https://x.org/?a=1", "https://u:p@x.org"] {
            assert!(matches!(base(Some(bad), false), Err(StartError::PublicUrl(_))), "{bad}");
        }
    }
}
