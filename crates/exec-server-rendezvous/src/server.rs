//! The rendezvous server: binds its listeners, serves connections, and drains them on shutdown.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use exec_server_relay::switchboard::SwitchboardLimits;
use exec_server_transport::certificates::{Certificates, renew_certificates};
use exec_server_transport::{http_front, tls};
use hyper::Request;
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::admin::{AdminError, PUBLIC_URL};
use crate::bus::{Bus, ClusterBus, JoinError, LocalBus};
use crate::config::{Limits, RendezvousConfig};
use crate::data_dir::{DataDir, DataDirError};
use crate::hand_over::hand_over;
use crate::http;
use crate::key_ring::{KeyRing, renew_keys};
use crate::maintenance::{maintain, release_memory};
use crate::metrics::Metrics;
use crate::opened::{Opened, first_start};
use crate::presence::PresenceSocket;
use crate::store::{OpenError, PostgresStore, SharedStore, StoreError};
use crate::tcp;

/// A rendezvous that is bound but not yet serving.
pub struct BoundRendezvous {
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    tls: Option<Arc<Certificates>>,
    rendezvous: Arc<Rendezvous>,
    admin_token: Option<String>,
    presence: Option<PresenceSocket>,
    /// Lock on the data directory, released when the file is closed.
    data_lock: Option<File>,
}

/// A store that answers later is not ready.
const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// State shared by all connections.
pub struct Rendezvous {
    pub(crate) config: RendezvousConfig,
    pub(crate) store: SharedStore,
    /// The same store, if it is shared with other nodes.
    pub(crate) cluster: Option<Arc<PostgresStore>>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) keys: Arc<KeyRing>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) base: Base,
    draining: watch::Sender<bool>,
    /// Whether executors are being closed so that other nodes take them over.
    pub(crate) is_handing_over: AtomicBool,
}

/// Base URLs under which the rendezvous is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub http: String,
    pub websocket: String,
}

/// Why a rendezvous cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Data(#[from] DataDirError),
    /// The database cannot be opened.
    #[error("could not open {}", path.display())]
    Store {
        /// The database file.
        path: PathBuf,
        /// The cause.
        source: StoreError,
    },
    /// The first admin token cannot be created.
    #[error("could not create the first admin token")]
    FirstToken(#[from] AdminError),
    /// The listener cannot be bound.
    #[error("could not listen on {address}{}", listen_hint(option, source))]
    Bind {
        /// The command-line option that sets the address.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The given socket cannot be used.
    #[error("could not listen on the socket of the service manager")]
    Inherited(#[source] io::Error),
    /// The shared store cannot be opened.
    #[error(transparent)]
    SharedStore(#[from] OpenError),
    /// The shared store failed.
    #[error(transparent)]
    Note(#[from] StoreError),
    /// The shared store belongs to another cluster.
    #[error(
        "the PostgreSQL database {address} belongs to the cluster `{found}`, not to `{wanted}`; check --store and --cluster"
    )]
    OtherCluster {
        /// Host, port and database.
        address: String,
        /// Its cluster.
        found: String,
        /// The cluster of this node.
        wanted: String,
    },
    /// The node cannot join its cluster.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// An unspecified listen address is not a URL that peers can use.
    #[error(
        "{0} listens on all addresses, so peers need a URL: set it with --public-url https://NAME"
    )]
    NeedsPublicUrl(SocketAddr),
    /// The public URL is not usable as a base URL.
    #[error("the public URL must be http://HOST or https://HOST, without query or fragment: {0}")]
    PublicUrl(String),
}

impl BoundRendezvous {
    /// Opens the data directory and binds the listeners; the first start creates an admin token.
    pub async fn bind(config: RendezvousConfig) -> Result<Self, StartError> {
        let acceptor = match &config.tls {
            Some((certificate, key)) => Some(Arc::new(Certificates::load(certificate, key)?)),
            None => None,
        };
        if config.public_url.is_none() && config.listen.ip().is_unspecified() {
            return Err(StartError::NeedsPublicUrl(config.listen));
        }
        let opened = match &config.cluster {
            None => Opened::data_dir(&config.data)?,
            Some(cluster) => Opened::cluster(cluster).await?,
        };
        let listener = match &config.inherited {
            Some(listener) => tcp::adopt(listener).map_err(StartError::Inherited)?,
            None => bind("--listen", config.listen)?,
        };
        let metrics_listener = match config.metrics {
            Some(address) => Some(bind("--metrics-listen", address)?),
            None => None,
        };
        let bound = listener.local_addr();
        let bound = bound.map_err(|source| StartError::Bind {
            option: "--listen",
            address: config.listen,
            source,
        })?;
        let base = Base::new(config.public_url.as_deref(), bound, acceptor.is_some())?;
        let Opened { store, cluster, keys, data } = opened;
        let admin_token = match &data {
            Some((data, _)) => first_start(&*store, data, &base, config.clock.now()).await?,
            None => None,
        };
        let limits = SwitchboardLimits {
            streams_per_environment: config.limits.streams_per_environment,
            claim: config.timings.claim,
            slow_timeout: config.timings.slow_timeout,
        };
        let budget = config.limits.buffer_budget;
        // Joined last: a failed start must not leave a lease behind.
        let bus: Arc<dyn Bus> = match (&config.cluster, &cluster) {
            (Some(cluster), Some(store)) => {
                let clock = config.clock.clone();
                Arc::new(ClusterBus::join(store.clone(), cluster, clock, limits, budget).await?)
            }
            _ => Arc::new(LocalBus::new(limits, budget)),
        };
        let metrics = Arc::new(Metrics::with_store(store.times()));
        let rendezvous = Arc::new(Rendezvous {
            config,
            store,
            cluster,
            bus,
            keys,
            metrics,
            base,
            draining: watch::Sender::new(false),
            is_handing_over: AtomicBool::new(false),
        });
        if let Some(recorder) = rendezvous.config.tracer.recorder() {
            let Rendezvous { metrics, bus, config, .. } = &*rendezvous;
            let (metrics, bus, tracer) = (metrics.clone(), bus.clone(), config.tracer.clone());
            recorder.add_metrics(Box::new(move || metrics.render(&*bus, &tracer)));
        }
        Ok(Self {
            listener,
            metrics_listener,
            tls: acceptor,
            rendezvous,
            admin_token,
            presence: data.as_ref().and_then(|(data, _)| bind_presence(data)),
            data_lock: data.map(|(_, lock)| lock),
        })
    }

    /// Base URL for executors, harnesses and administrators.
    pub fn base_url(&self) -> &str {
        &self.rendezvous.base.http
    }

    /// The bound address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The admin token created by this start, if there was none before; its secret cannot be read again.
    pub fn admin_token(&self) -> Option<&str> {
        self.admin_token.as_deref()
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.rendezvous.config.limits
    }

    /// The store, for programs that embed the rendezvous.
    pub fn store(&self) -> SharedStore {
        self.rendezvous.store.clone()
    }

    /// Serves until `stop`, then closes all sockets with a close frame.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self {
            listener, metrics_listener, tls, rendezvous, presence, data_lock: _held, ..
        } = self;
        let mut connections = JoinSet::new();
        let serving = async {
            tokio::select! {
                () = accept(&listener, tls.as_deref(), &rendezvous, &mut connections) => {}
                () = serve_metrics(metrics_listener.as_ref(), &rendezvous) => {}
                () = serve_presence(presence, &rendezvous) => {}
                () = maintain(&rendezvous) => {}
                () = renew_certificates(tls.as_ref(), rendezvous.config.timings.maintenance) => {}
                () = renew_keys(&rendezvous.keys, rendezvous.config.timings.maintenance) => {}
                () = release_memory(&rendezvous) => {}
            }
        };
        tokio::select! {
            () = async { stop.await; hand_over(&rendezvous).await } => {}
            () = serving => {}
        }
        tracing::info!("draining");
        drop(listener);
        rendezvous.draining.send_replace(true);
        rendezvous.bus.drain();
        let all = async { while connections.join_next().await.is_some() {} };
        // A socket may need the close timeout twice: to send the close frame, and to see the peer close.
        let _ = tokio::time::timeout(2 * rendezvous.config.timings.close, all).await;
        let _ = tokio::time::timeout(rendezvous.config.timings.close, rendezvous.bus.leave()).await;
    }
}

impl Rendezvous {
    /// Renders all metrics in the OpenMetrics format.
    pub(crate) fn render_metrics(&self) -> String {
        self.metrics.render(&*self.bus, &self.config.tracer)
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    pub(crate) async fn wait_for_draining(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.draining.subscribe().wait_for(|is_draining| *is_draining).await;
    }

    /// Whether new work should come here: the store answers, the lease is held, and there is room in the budget.
    pub(crate) async fn is_ready(&self) -> bool {
        let budget = self.bus.budget();
        let has_room = budget.used() < budget.total() / 10 * 9;
        if self.is_draining() || !has_room || !self.bus.is_ready() {
            return false;
        }
        let asked = tokio::time::timeout(STORE_ANSWERS_WITHIN, self.store.note(PUBLIC_URL));
        matches!(asked.await, Ok(Ok(_)))
    }

    /// The base of websocket URLs at a node; without one, the URL that all nodes share.
    pub(crate) fn base_of(&self, home: Option<&str>) -> String {
        home.map_or_else(|| self.base.websocket.clone(), |home| home.replacen("http", "ws", 1))
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

fn listen_hint(option: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(" (choose another port with {option})"),
        io::ErrorKind::PermissionDenied => {
            " (ports below 1024 need the capability CAP_NET_BIND_SERVICE)".to_owned()
        }
        _ => String::new(),
    }
}

fn bind(option: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = tcp::listen(address);
    bound.map_err(|source| StartError::Bind { option, address, source })
}

/// Optional: without the socket, commands with `--data` report the online status as unknown.
fn bind_presence(data: &DataDir) -> Option<PresenceSocket> {
    let bound = PresenceSocket::bind(data);
    bound
        .inspect_err(|error| tracing::warn!(%error, "cannot create the presence socket; commands with --data will not show the online status"))
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
    tls: Option<&Certificates>,
    rendezvous: &Arc<Rendezvous>,
    connections: &mut JoinSet<()>,
) {
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = http_front::accept_next(|| listener.accept()).await;
        if connections.len() >= rendezvous.config.limits.connections {
            tracing::warn!("connection limit reached; closed a new connection");
            continue;
        }
        connections.spawn(serve_accepted(
            rendezvous.clone(),
            stream,
            peer,
            tls.map(Certificates::acceptor),
        ));
    }
}

async fn serve_accepted(
    rendezvous: Arc<Rendezvous>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
) {
    let _guard = rendezvous.metrics.connection();
    if let Err(error) = tcp::tune_accepted(&stream) {
        tracing::debug!(%peer, %error, "connection closed right after accept");
        return;
    }
    let Some(tls) = tls else { return http::serve(rendezvous, stream, peer).await };
    let timeout = rendezvous.config.timings.handshake;
    if let Some(stream) = http_front::accept_tls(&tls, stream, peer, timeout).await {
        http::serve(rendezvous, stream, peer).await;
    }
}

/// Serves `/metrics` without authentication on a separate listener.
async fn serve_metrics(listener: Option<&TcpListener>, rendezvous: &Arc<Rendezvous>) {
    let Some(listener) = listener else { return std::future::pending().await };
    if let Ok(address) = listener.local_addr() {
        tracing::info!(url = %format_args!("http://{address}/metrics"), "serving metrics");
    }
    let is_local = http_front::is_local(listener);
    http_front::serve_each(listener, |stream, peer| {
        let rendezvous = rendezvous.clone();
        async move {
            let answer = |request: &Request<Incoming>| {
                let refused = http_front::check_metrics_route(request, is_local).err();
                refused.unwrap_or_else(|| http::metrics(&rendezvous))
            };
            let timeout = rendezvous.config.timings.handshake;
            http_front::serve_replies(stream, peer, timeout, answer).await;
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_urls_come_from_the_address_or_the_public_url() {
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
