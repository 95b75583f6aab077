//! The listener: accepts connections and answers HTTP until one of them becomes a websocket.
//!
//! | look here | for |
//! |---|---|
//! | this file | sockets: binding, accepting, TLS |
//! | `trust` | which local processes are served |
//! | `gate` | the same for listeners of client commands |
//! | `http` | routes, checks and the upgrade |
//! | `stdio` | the one connection over stdin and stdout |

mod gate;
mod http;
mod stdio;
mod trust;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_os::Peers;
use exec_server_os::inherited::InheritedListener;
use exec_server_os::peer::{Peer, PeerPlace};
use exec_server_transport::certificates::{Certificates, renew_certificates};
use exec_server_transport::{http_front, tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::auth::Origin;
use crate::listen_url::ListenUrl;
use crate::server::Server;
use trust::{Refusal, Trust, Verdict};

pub use gate::LocalGate;
pub use http::serve_metrics;
pub use stdio::serve_stdio;

/// A listener that is bound and not yet serving.
pub struct Listener {
    socket: Socket,
    tls: Option<Arc<Certificates>>,
}

enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener, SocketFile),
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The listener is reachable from the network without authentication.
    #[error(
        "refusing to listen on {0} without authentication: anyone who can reach it could run commands here. \
         Use --ws-auth (see --help), listen on 127.0.0.1, or say --insecure-no-auth if that is what you want"
    )]
    OpenToTheNetwork(SocketAddr),
    /// The address or path cannot be bound.
    #[error("could not listen on {place}")]
    Bind {
        /// The address or path.
        place: String,
        /// The error of the bind.
        source: io::Error,
    },
    /// The path exists and is not a stale socket.
    #[error("could not listen on {}: another server is listening there, or it is no socket", .0.display())]
    Taken(PathBuf),
    /// The socket of the service manager cannot be used.
    #[error("could not listen on the socket of the service manager")]
    Inherited(#[source] io::Error),
    /// This platform has no unix sockets.
    #[error("unix sockets are not supported on this platform")]
    NoUnixSockets,
    /// The certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
}

impl Listener {
    /// Binds the server's socket.
    pub async fn bind(server: &Server) -> Result<Self, ListenError> {
        let config = &server.config;
        let tls = match &config.tls {
            Some(files) => Some(Arc::new(Certificates::load(&files.certificate, &files.key)?)),
            None => None,
        };
        if let ListenUrl::WebSocket(address) = &config.listen {
            let is_open = matches!(config.auth, crate::auth::Auth::Open);
            if is_open && !config.listen.is_local() && !config.insecure_no_auth {
                return Err(ListenError::OpenToTheNetwork(*address));
            }
        }
        let socket =
            match (&config.inherited, &config.listen) {
                (Some(listener), _) => adopt(listener).map_err(ListenError::Inherited)?,
                (None, ListenUrl::WebSocket(address)) => {
                    let bound = TcpListener::bind(address).await;
                    Socket::Tcp(bound.map_err(|source| ListenError::Bind {
                        place: address.to_string(),
                        source,
                    })?)
                }
                (None, ListenUrl::Unix(path)) => bind_unix(path).await?,
                (None, ListenUrl::Stdio) => unreachable!("stdio has no listener"),
            };
        Ok(Self { socket, tls })
    }

    /// The URL under which clients reach this listener.
    pub fn url(&self) -> io::Result<String> {
        let scheme = if self.tls.is_some() { "wss" } else { "ws" };
        Ok(match &self.socket {
            Socket::Tcp(listener) => format!("{scheme}://{}", listener.local_addr()?),
            #[cfg(unix)]
            Socket::Unix(_, file) => format!("unix://{}", file.path.display()),
        })
    }

    /// Serves connections until the future is dropped.
    pub async fn serve(&self, server: &Arc<Server>) {
        let every = server.config.timings.credential_check;
        tokio::select! {
            () = self.accept_all(server) => {}
            () = renew_certificates(self.tls.as_ref(), every) => {}
        }
    }

    async fn accept_all(&self, server: &Arc<Server>) {
        loop {
            let accepted = http_front::accept_next(|| self.accept()).await;
            // The server owns the task, because connections outlive the listener during shutdown.
            let tls = self.tls.as_deref().map(Certificates::acceptor);
            let task = serve_accepted(server.clone(), accepted, tls);
            server.spawn_on(server.event_loops.next(), task);
        }
    }

    async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream.into_std()?, peer))
            }
            #[cfg(unix)]
            Socket::Unix(listener, _) => Ok(Accepted::Unix(listener.accept().await?.0.into_std()?)),
        }
    }
}

/// The file of a unix socket, removed when it is dropped.
#[cfg(unix)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode, because another server may replace the socket at this path; `None` leaves the file to its owner.
    identity: Option<(u64, u64)>,
}

#[cfg(unix)]
impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let identity = Self::identity(path)?;
        Ok(Self { path: path.to_owned(), identity: Some(identity) })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity(&self.path).ok().is_some_and(|found| Some(found) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An accepted connection that is not yet on an event loop.
enum Accepted {
    Tcp(std::net::TcpStream, SocketAddr),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
}

/// Identifies the peer of a TCP connection: it may be a sandboxed process that shares the host's network.
async fn judge_tcp(
    server: &Server,
    trust: Trust,
    peer: SocketAddr,
    local: io::Result<SocketAddr>,
) -> (Verdict, Option<u32>) {
    let Ok(local) = local else { return (Verdict::Close("the peer disconnected at once"), None) };
    let peers = server.peers.clone();
    let _turn = server.peer_searches.acquire().await;
    let found = tokio::task::spawn_blocking(move || peers.of_tcp(peer, local)).await;
    match found {
        Ok(found) => judge(trust, found),
        Err(_) => (Verdict::Close("the lookup of the peer process failed"), None),
    }
}

/// Whether a peer is served, and its user.
fn judge(trust: Trust, peer: Peer) -> (Verdict, Option<u32>) {
    let verdict = trust.judge(peer, Peers::own_uid());
    match verdict {
        Verdict::Serve => {}
        // At debug level, because every port probe ends here.
        Verdict::Close(reason) if peer.place == PeerPlace::Gone => {
            tracing::debug!(reason, "connection refused");
        }
        Verdict::Close(reason) => tracing::warn!(uid = peer.uid, reason, "connection refused"),
        Verdict::Refuse(reason) => tracing::warn!(uid = peer.uid, %reason, "connection refused"),
    }
    (verdict, peer.uid)
}

async fn serve_accepted(server: Arc<Server>, accepted: Accepted, tls: Option<TlsAcceptor>) {
    let trust = Trust::of(&server.config, server.config.listen.is_local());
    let (verdict, uid) = match &accepted {
        Accepted::Tcp(stream, peer) => judge_tcp(&server, trust, *peer, stream.local_addr()).await,
        #[cfg(unix)]
        Accepted::Unix(stream) => {
            use std::os::fd::AsFd;
            judge(trust, server.peers.of_unix(stream.as_fd()))
        }
    };
    let refusal = match verdict {
        Verdict::Serve => None,
        Verdict::Refuse(refusal) => Some(refusal),
        Verdict::Close(_) => return,
    };
    match accepted {
        Accepted::Tcp(stream, peer) => match TcpStream::from_std(stream) {
            Ok(stream) => {
                let origin = Origin { peer: peer.to_string(), uid };
                serve_stream(server, stream, origin, refusal, tls).await
            }
            Err(error) => tracing::warn!(%error, "could not serve a connection"),
        },
        #[cfg(unix)]
        Accepted::Unix(stream) => match tokio::net::UnixStream::from_std(stream) {
            Ok(stream) => {
                let origin = Origin { peer: "unix".to_owned(), uid };
                serve_stream(server, stream, origin, refusal, tls).await
            }
            Err(error) => tracing::warn!(%error, "could not serve a connection"),
        },
    }
}

async fn serve_stream<S>(
    server: Arc<Server>,
    stream: S,
    origin: Origin,
    refusal: Option<Refusal>,
    tls: Option<TlsAcceptor>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Some(tls) = tls else {
        return http::serve(server, stream, origin, refusal).await;
    };
    let timeout = server.config.timings.handshake;
    if let Some(stream) = http_front::accept_tls(&tls, stream, &origin.peer, timeout).await {
        http::serve(server, stream, origin, refusal).await;
    }
}

/// Listens on a socket of the service manager, which keeps its own descriptor and the file of a unix socket.
fn adopt(listener: &InheritedListener) -> io::Result<Socket> {
    match listener {
        InheritedListener::Tcp(listener) => {
            let listener = listener.try_clone()?;
            listener.set_nonblocking(true)?;
            Ok(Socket::Tcp(TcpListener::from_std(listener)?))
        }
        #[cfg(unix)]
        InheritedListener::Unix(listener) => {
            let listener = listener.try_clone()?;
            listener.set_nonblocking(true)?;
            let path = listener.local_addr()?.as_pathname().map(Path::to_owned).unwrap_or_default();
            let listener = tokio::net::UnixListener::from_std(listener)?;
            Ok(Socket::Unix(listener, SocketFile { path, identity: None }))
        }
    }
}

#[cfg(unix)]
async fn bind_unix(path: &Path) -> Result<Socket, ListenError> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        // A socket without a listener is left over from a killed server; one in use is not removed.
        let is_left_over = metadata.file_type().is_socket()
            && tokio::net::UnixStream::connect(path)
                .await
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if !is_left_over {
            return Err(ListenError::Taken(path.to_owned()));
        }
        let _ = std::fs::remove_file(path);
    }
    let failed = |source| ListenError::Bind { place: path.display().to_string(), source };
    let listener = tokio::net::UnixListener::bind(path).map_err(failed)?;
    let file = SocketFile::new(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(Socket::Unix(listener, file))
}

#[cfg(not(unix))]
async fn bind_unix(_path: &Path) -> Result<Socket, ListenError> {
    Err(ListenError::NoUnixSockets)
}
