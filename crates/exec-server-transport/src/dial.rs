//! Connects to a server: TCP or a unix socket, optional proxy, optional TLS, then the websocket handshake.

use std::io;
use std::path::PathBuf;

use exec_server_protocol::limits::MAX_MESSAGE_BYTES;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::{Host, Url};

use crate::connection::Wire;
use crate::proxy::{Proxies, ProxyError};
use crate::tls::{self, TlsError};
use crate::websocket::{Sends, UpgradeFailure, WebSocketWire};

/// Limit of one message from a server: whole files and bodies come in one, and some servers do not limit them.
pub const MAX_REPLY_BYTES: usize = 128 * 1024 * 1024;

/// Limit of one relay message; both relay ends close the connection above it.
pub const MAX_RELAY_MESSAGE_BYTES: usize = 256 * 1024;

/// A byte stream that can carry a websocket.
pub trait Link: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}

/// A server address: `ws://`, `wss://` or `unix://`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerUrl {
    /// A websocket over TCP, with TLS for `wss://`.
    WebSocket(Url),
    /// A websocket over a unix socket.
    Unix(PathBuf),
}

/// Options of a dial.
#[derive(Clone, Default)]
pub struct DialOptions {
    /// Extra headers of the upgrade request.
    pub headers: Vec<(String, String)>,
    /// PEM file of authorities that replace the system's.
    pub authorities: Option<PathBuf>,
    /// Proxies from the environment.
    pub proxies: Proxies,
}

impl std::fmt::Debug for DialOptions {
    /// Omits header values, because they contain credentials.
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter
            .debug_struct("DialOptions")
            .field("authorities", &self.authorities)
            .finish_non_exhaustive()
    }
}

/// Why an address is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// Not a URL.
    #[error("`{0}` is no URL; expected `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///PATH`")]
    Invalid(String),
    /// The scheme is not supported.
    #[error("unsupported scheme in `{0}`; expected `ws://`, `wss://` or `unix://`")]
    Scheme(String),
    /// A legacy relay URL, which does not carry plain JSON.
    #[error(
        "`{0}` is a relay URL (`role=harness`), not a plain websocket; connect with `env:NAME` instead"
    )]
    Relay(String),
}

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The TCP or unix connection failed.
    #[error("could not connect")]
    Connect(#[source] io::Error),
    /// The proxy is unreachable or rejected the request.
    #[error("could not connect through the proxy")]
    Proxy(#[from] ProxyError),
    /// The TLS configuration is invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The certificate was rejected, or the server does not speak TLS.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
    /// The websocket handshake failed.
    #[error(transparent)]
    Upgrade(#[from] UpgradeFailure),
    /// This platform has no unix sockets.
    #[error("unix sockets are not supported on this system")]
    NoUnixSockets,
}

impl DialError {
    /// Whether a retry can succeed; a rejected certificate is permanent.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Proxy(_) | Self::Upgrade(_) => true,
            Self::Handshake(error) => error.kind() != io::ErrorKind::InvalidData,
            Self::Tls(_) | Self::NoUnixSockets => false,
        }
    }
}

impl ServerUrl {
    /// Parses an address.
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

    /// Whether the connection is encrypted or stays on this machine.
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
    /// Omits credentials and the query, because the result is logged.
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix://{}", path.display()),
            Self::WebSocket(url) => {
                let mut url = url.clone();
                // Cannot fail for a URL with a host.
                let _ = url.set_password(None);
                let _ = url.set_username("");
                url.set_query(None);
                formatter.write_str(url.as_str())
            }
        }
    }
}

/// Opens a websocket for JSON messages.
pub async fn dial(server: &ServerUrl, options: &DialOptions) -> Result<Box<dyn Wire>, DialError> {
    dial_as(server, options, Sends::Text, MAX_REPLY_BYTES).await
}

/// Opens a websocket for opaque forwarding: binary messages, limited to the size of a relay stream's message.
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

/// Opens a websocket to a relay; the URL is used unchanged.
pub async fn dial_relay(url: &Url, options: &DialOptions) -> Result<Box<dyn Wire>, DialError> {
    let link = open_link(url, options).await?;
    let limit = MAX_RELAY_MESSAGE_BYTES;
    let wire = WebSocketWire::connect(link, url.as_str(), &options.headers, limit).await?;
    Ok(Box::new(wire.sending(Sends::Binary)))
}

/// Opens the byte stream for a websocket or HTTP URL, with TLS for `wss` and `https`.
pub(crate) async fn open_link(
    url: &Url,
    options: &DialOptions,
) -> Result<Box<dyn Link>, DialError> {
    let nowhere = || DialError::Connect(io::Error::other("the URL names no host"));
    let host = url.host().ok_or_else(nowhere)?;
    let port = url.port_or_known_default().ok_or_else(nowhere)?;
    let link: Box<dyn Link> = match options.proxies.for_server(url)? {
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

/// Connects with `TCP_NODELAY`, because requests are small and latency matters.
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

/// User and password of a URL as the value of an `Authorization` header.
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

/// Whether a URL names loopback, without a DNS lookup.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_classified_by_scheme() {
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
            ("ws://h/?role=harness", "is a relay URL"),
        ] {
            let error = ServerUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn only_encrypted_or_local_addresses_are_secure() {
        let is_secure = |text| ServerUrl::parse(text).unwrap().is_secure();
        for text in ["wss://h", "ws://127.0.0.1:1", "ws://[::1]", "ws://localhost", "unix:///s"] {
            assert!(is_secure(text), "{text}");
        }
        assert!(!is_secure("ws://h") && !is_secure("ws://0.0.0.0:1"));
    }

    #[test]
    fn a_printed_address_contains_no_credentials() {
        let url = ServerUrl::parse("wss://me:hush@host:1/path?token=hush").unwrap();
        assert_eq!(url.to_string(), "wss://host:1/path");
    }
}
