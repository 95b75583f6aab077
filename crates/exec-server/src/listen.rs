//! The listener: accepts connections and answers HTTP until one of them becomes a websocket.
//!
//! | look here | for |
//! |---|---|
//! | this file | sockets: binding, accepting, TLS |
//! | `http` | routes, checks and the upgrade |
//! | `stdio` | the one connection over stdin and stdout |

mod http;
mod stdio;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_transport::tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::listen_url::ListenUrl;
use crate::server::Server;

pub use http::serve_metrics;
pub use stdio::serve_stdio;

/// A listener that is bound and not yet serving.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
}

enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(tokio::net::UnixListener, SocketFile),
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Open to the network, and to everyone on it.
    #[error(
        "refusing to listen on {0} without authentication: anyone who can reach it could run commands here. \
         Use --ws-auth (see --help), listen on 127.0.0.1, or say --insecure-no-auth if that is what you want"
    )]
    OpenToTheNetwork(SocketAddr),
    /// The address or path cannot be had.
    #[error("could not listen on {place}: {source}")]
    Bind {
        /// Where.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The path is somebody else's.
    #[error("could not listen on {}: another server is listening there, or it is no socket", .0.display())]
    Taken(PathBuf),
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
        let acceptor = match &config.tls {
            Some(files) => Some(tls::acceptor(&files.certificate, &files.key)?),
            None => None,
        };
        let socket =
            match &config.listen {
                ListenUrl::WebSocket(address) => {
                    let is_open = matches!(config.auth, crate::auth::Auth::Open);
                    if is_open && !config.listen.is_local() && !config.insecure_no_auth {
                        return Err(ListenError::OpenToTheNetwork(*address));
                    }
                    let bound = TcpListener::bind(address).await;
                    Socket::Tcp(bound.map_err(|source| ListenError::Bind {
                        place: address.to_string(),
                        source,
                    })?)
                }
                ListenUrl::Unix(path) => bind_unix(path).await?,
                ListenUrl::Stdio => unreachable!("stdio has no listener"),
            };
        Ok(Self { socket, tls: acceptor })
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
        loop {
            match self.accept().await {
                // The server holds the task, because connections outlive the listener while it shuts down.
                Ok(accepted) => {
                    let task = serve_accepted(server.clone(), accepted, self.tls.clone());
                    server.spawn_on(server.shards.next(), task);
                }
                // Out of descriptors or memory: what is there goes on, newcomers wait a moment.
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
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
    /// Device and inode, because another server may have the path by then.
    identity: (u64, u64),
}

#[cfg(unix)]
impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let identity = Self::identity(path)?;
        Ok(Self { path: path.to_owned(), identity })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A connection that belongs to no event loop yet.
enum Accepted {
    Tcp(std::net::TcpStream, SocketAddr),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
}

/// Whether a sandboxed process has dialled, which shares the network with us and would get out of its sandbox so.
async fn is_refused(server: &Server, peer: SocketAddr, local: io::Result<SocketAddr>) -> bool {
    if !server.sandboxes.may_have_dialled() {
        return false;
    }
    let Ok(local) = local else { return true };
    let looked = tokio::task::spawn_blocking(move || exec_server_os::is_from_sandbox(peer, local));
    let is_refused = looked.await.unwrap_or(true);
    if is_refused {
        tracing::warn!("a connection from inside a sandbox was refused");
    }
    is_refused
}

/// The same for a unix socket, whose other end is known by its process.
#[cfg(unix)]
fn is_refused_unix(server: &Server, stream: &std::os::unix::net::UnixStream) -> bool {
    use std::os::fd::AsFd;
    let is_refused =
        server.sandboxes.may_have_dialled() && exec_server_os::is_peer_inside(stream.as_fd());
    if is_refused {
        tracing::warn!("a connection from inside a sandbox was refused");
    }
    is_refused
}

async fn serve_accepted(server: Arc<Server>, accepted: Accepted, tls: Option<TlsAcceptor>) {
    match accepted {
        Accepted::Tcp(stream, peer) if is_refused(&server, peer, stream.local_addr()).await => {}
        #[cfg(unix)]
        Accepted::Unix(stream) if is_refused_unix(&server, &stream) => {}
        Accepted::Tcp(stream, peer) => match TcpStream::from_std(stream) {
            Ok(stream) => serve_stream(server, stream, peer.to_string(), tls).await,
            Err(error) => tracing::warn!(%error, "could not serve a connection"),
        },
        #[cfg(unix)]
        Accepted::Unix(stream) => match tokio::net::UnixStream::from_std(stream) {
            Ok(stream) => serve_stream(server, stream, "unix".to_owned(), tls).await,
            Err(error) => tracing::warn!(%error, "could not serve a connection"),
        },
    }
}

async fn serve_stream<S>(server: Arc<Server>, stream: S, peer: String, tls: Option<TlsAcceptor>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Some(tls) = tls else {
        return http::serve(server, stream, peer).await;
    };
    let handshake = tokio::time::timeout(server.config.timings.handshake, tls.accept(stream));
    match handshake.await {
        Ok(Ok(stream)) => http::serve(server, stream, peer).await,
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
    }
}

#[cfg(unix)]
async fn bind_unix(path: &Path) -> Result<Socket, ListenError> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        // A socket that nobody holds is left over from a server that was killed; one that is busy is not.
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
