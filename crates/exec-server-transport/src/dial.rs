//! Dials a server: TCP or a unix socket, through a proxy if there is one, TLS if the URL says so, then the websocket.

use std::io;
use std::path::PathBuf;

use exec_server_protocol::limits::MAX_MESSAGE_BYTES;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::{Host, Url};

use crate::connection::Wire;
use crate::proxy::{Proxies, ProxyError};
use crate::registry::is_loopback;
use crate::tls::{self, TlsError};
use crate::websocket::{Sends, UpgradeFailure, WebSocketWire};

/// The largest message that is taken from a server: its whole files and bodies come in one, and some put no limit to them.
pub const MAX_REPLY_BYTES: usize = 128 * 1024 * 1024;

/// Both ends of a relay drop a link that carries more in one message.
pub const MAX_RELAY_MESSAGE_BYTES: usize = 256 * 1024;

/// What a websocket can run over.
pub trait Link: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// A server's address: `ws://`, `wss://` or `unix://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerUrl {
    /// A websocket over TCP, with TLS for `wss://`.
    WebSocket(Url),
    /// A websocket over a unix socket.
    Unix(PathBuf),
}

/// What goes with a dial.
#[derive(Clone, Default)]
pub struct DialOptions {
    /// More headers for the upgrade request.
    pub headers: Vec<(String, String)>,
    /// A PEM file of the authorities to trust in place of the system's.
    pub authorities: Option<PathBuf>,
    /// Who stands in between.
    pub proxies: Proxies,
}

impl std::fmt::Debug for DialOptions {
    /// Without what the headers say, since credentials are among them.
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter
            .debug_struct("DialOptions")
            .field("authorities", &self.authorities)
            .finish_non_exhaustive()
    }
}

/// An address that cannot be dialled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// Not a URL.
    #[error("`{0}` is no URL; expected `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///PATH`")]
    Invalid(String),
    /// A URL of something else.
    #[error("unsupported scheme in `{0}`; expected `ws://`, `wss://` or `unix://`")]
    Scheme(String),
    /// The old way through a relay, which is no plain JSON.
    #[error("`{0}` asks for the relay framing (`role=harness`), which is no plain websocket")]
    Relay(String),
}

/// Why a server could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody listens, or no way leads there.
    #[error("could not connect")]
    Connect(#[source] io::Error),
    /// The proxy stands in the way.
    #[error("could not connect through the proxy")]
    Proxy(#[from] ProxyError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server did not prove who it is, or speaks no TLS.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// No upgrade to a websocket.
    #[error(transparent)]
    Upgrade(#[from] UpgradeFailure),
    /// Unix sockets do not exist here.
    #[error("unix sockets are not supported on this system")]
    NoUnixSockets,
}

impl DialError {
    /// Whether it may be otherwise in a moment; a certificate that nobody trusts will not be.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Proxy(_) | Self::Upgrade(_) => true,
            Self::Handshake(error) => error.kind() != io::ErrorKind::InvalidData,
            Self::Tls(_) | Self::NoUnixSockets => false,
        }
    }
}

impl ServerUrl {
    /// Reads an address.
    pub fn parse(text: &str) -> Result<Self, ServerUrlError> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            let is_usable = path.is_absolute();
            return if is_usable { Ok(Self::Unix(path)) } else { Err(invalid(text)) };
        }
        let url = Url::parse(text).map_err(|_| invalid(text))?;
        if !matches!(url.scheme(), "ws" | "wss") {
            return Err(ServerUrlError::Scheme(text.to_owned()));
        }
        if url.query_pairs().any(|(name, value)| name == "role" && value == "harness") {
            return Err(ServerUrlError::Relay(text.to_owned()));
        }
        if url.host().is_none() { Err(invalid(text)) } else { Ok(Self::WebSocket(url)) }
    }

    /// Whether nobody on the way can read what is sent there: by encryption, or because it does not leave the machine.
    pub fn is_secure(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::WebSocket(url) => url.scheme() == "wss" || is_loopback(url),
        }
    }
}

fn invalid(text: &str) -> ServerUrlError {
    ServerUrlError::Invalid(text.to_owned())
}

impl std::fmt::Display for ServerUrl {
    /// Without a password, since it ends up in logs and errors.
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
            Self::WebSocket(url) => {
                let mut url = url.clone();
                // A URL with a host can always do without.
                let _ = url.set_password(None);
                let _ = url.set_username("");
                url.set_query(None);
                formatter.write_str(url.as_str())
            }
        }
    }
}

/// Opens a websocket to a server.
pub async fn dial(server: &ServerUrl, options: &DialOptions) -> Result<Box<dyn Wire>, DialError> {
    dial_as(server, options, Sends::Text, MAX_REPLY_BYTES).await
}

/// Opens a websocket to a server for somebody else's messages, which may be no text and are no longer than a stream allows.
pub async fn dial_opaque(
    server: &ServerUrl,
    options: &DialOptions,
) -> Result<Box<dyn Wire>, DialError> {
    dial_as(server, options, Sends::Binary, MAX_MESSAGE_BYTES).await
}

async fn dial_as(
    server: &ServerUrl,
    options: &DialOptions,
    sends: Sends,
    limit: usize,
) -> Result<Box<dyn Wire>, DialError> {
    match server {
        ServerUrl::WebSocket(url) => dial_websocket(url, options, sends, limit).await,
        ServerUrl::Unix(path) => dial_unix(path, options, sends, limit).await,
    }
}

/// Opens a websocket to a relay, whose URL is taken as it is.
pub async fn dial_relay(url: &Url, options: &DialOptions) -> Result<Box<dyn Wire>, DialError> {
    let link = open_link(url, options).await?;
    let limit = MAX_RELAY_MESSAGE_BYTES;
    let wire = WebSocketWire::connect(link, url.as_str(), &options.headers, limit).await?;
    Ok(Box::new(wire.sending(Sends::Binary)))
}

/// Opens what a URL of a websocket or of HTTP asks for: a connection, with TLS if it is a secure one.
pub(crate) async fn open_link(
    url: &Url,
    options: &DialOptions,
) -> Result<Box<dyn Link>, DialError> {
    let nowhere = || DialError::Connect(io::Error::other("the URL names no host"));
    let host = url.host().ok_or_else(nowhere)?;
    let port = url.port_or_known_default().ok_or_else(nowhere)?;
    let link: Box<dyn Link> = match options.proxies.for_server(url) {
        Some(proxy) => proxy.connect(&host, port, options.authorities.as_deref()).await?,
        None => Box::new(connect_tcp(&host, port).await.map_err(DialError::Connect)?),
    };
    match url.scheme() {
        "wss" | "https" => wrap_in_tls(link, &host, options.authorities.as_deref()).await,
        _ => Ok(link),
    }
}

async fn dial_websocket(
    url: &Url,
    options: &DialOptions,
    sends: Sends,
    limit: usize,
) -> Result<Box<dyn Wire>, DialError> {
    let link = open_link(url, options).await?;
    let mut headers = options.headers.clone();
    if let Some(header) = basic_auth(url)
        && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
    {
        headers.push(("authorization".to_owned(), header));
    }
    let mut plain = url.clone();
    let _ = plain.set_password(None);
    let _ = plain.set_username("");
    plain.set_fragment(None);
    let wire = WebSocketWire::connect(link, plain.as_str(), &headers, limit).await?;
    Ok(Box::new(wire.sending(sends)))
}

#[cfg(unix)]
async fn dial_unix(
    path: &std::path::Path,
    options: &DialOptions,
    sends: Sends,
    limit: usize,
) -> Result<Box<dyn Wire>, DialError> {
    let link = tokio::net::UnixStream::connect(path).await.map_err(DialError::Connect)?;
    let url = "ws://localhost/";
    let wire = WebSocketWire::connect(link, url, &options.headers, limit).await?;
    Ok(Box::new(wire.sending(sends)))
}

#[cfg(not(unix))]
async fn dial_unix(
    _path: &std::path::Path,
    _options: &DialOptions,
    _sends: Sends,
    _limit: usize,
) -> Result<Box<dyn Wire>, DialError> {
    Err(DialError::NoUnixSockets)
}

/// A connection without Nagle's delay: requests are small and somebody waits for each.
pub(crate) async fn connect_tcp(host: &Host<&str>, port: u16) -> io::Result<TcpStream> {
    let stream = match host {
        Host::Domain(name) => TcpStream::connect((*name, port)).await,
        Host::Ipv4(address) => TcpStream::connect((*address, port)).await,
        Host::Ipv6(address) => TcpStream::connect((*address, port)).await,
    }?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(crate) async fn wrap_in_tls(
    link: Box<dyn Link>,
    host: &Host<&str>,
    authorities: Option<&std::path::Path>,
) -> Result<Box<dyn Link>, DialError> {
    let name = match host {
        Host::Domain(name) => ServerName::try_from((*name).to_owned())
            .map_err(|error| DialError::Handshake(io::Error::other(error)))?,
        Host::Ipv4(address) => ServerName::from(std::net::IpAddr::V4(*address)),
        Host::Ipv6(address) => ServerName::from(std::net::IpAddr::V6(*address)),
    };
    let connector = tls::connector(authorities)?;
    Ok(Box::new(connector.connect(name, link).await.map_err(DialError::Handshake)?))
}

/// User and password of a URL as an `Authorization` header.
pub fn basic_auth(url: &Url) -> Option<String> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decode = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
    let mut pair = decode(url.username());
    pair.push(b':');
    pair.extend(decode(url.password().unwrap_or_default()));
    Some(format!("Basic {}", exec_server_protocol::base64::encode(&pair)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        assert!(matches!(ServerUrl::parse(" ws://127.0.0.1:1 "), Ok(ServerUrl::WebSocket(_))));
        assert!(matches!(ServerUrl::parse("wss://h/p?q=1"), Ok(ServerUrl::WebSocket(_))));
        assert_eq!(
            ServerUrl::parse("unix:///run/x.sock"),
            Ok(ServerUrl::Unix("/run/x.sock".into()))
        );
        for (text, what) in [
            ("unix://run/x", "is no URL"),
            ("127.0.0.1:1", "is no URL"),
            ("http://h", "unsupported scheme"),
            ("ws://h/?role=harness", "relay framing"),
        ] {
            let error = ServerUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn secrets_go_only_where_nobody_listens() {
        let is_secure = |text| ServerUrl::parse(text).unwrap().is_secure();
        for text in ["wss://h", "ws://127.0.0.1:1", "ws://[::1]", "ws://localhost", "unix:///s"] {
            assert!(is_secure(text), "{text}");
        }
        assert!(!is_secure("ws://h") && !is_secure("ws://0.0.0.0:1"));
    }

    #[test]
    fn a_printed_address_keeps_no_secret() {
        let url = ServerUrl::parse("wss://me:hush@host:1/path?token=hush").unwrap();
        assert_eq!(url.to_string(), "wss://host:1/path");
    }
}
