//! Parses `--listen`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The default of `--listen`: loopback, on a port that the system picks.
pub const DEFAULT_LISTEN_URL: &str = "ws://127.0.0.1:0";

/// The address that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenUrl {
    /// A websocket on a TCP port; TLS is used if a certificate is configured.
    WebSocket(SocketAddr),
    /// A websocket on a unix socket.
    Unix(PathBuf),
    /// JSON lines over stdin and stdout.
    Stdio,
}

/// An invalid `--listen` value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecServerListenUrlParseError {
    /// The scheme is unknown.
    #[error("unsupported --listen URL `{0}`; expected `ws://IP:PORT`, `unix:///PATH` or `stdio`")]
    Unsupported(String),
    /// The address is not `IP:PORT`.
    #[error("invalid websocket --listen URL `{0}`; expected `ws://IP:PORT`")]
    InvalidWebSocket(String),
    /// The socket path is not absolute.
    #[error("invalid unix --listen URL `{0}`; expected `unix:///ABSOLUTE/PATH`")]
    InvalidUnix(String),
}

impl ListenUrl {
    /// The path of the unix socket; `None` for other listeners.
    pub fn socket_path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::WebSocket(_) | Self::Stdio => None,
        }
    }
}

impl FromStr for ListenUrl {
    type Err = ExecServerListenUrlParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use ExecServerListenUrlParseError as Error;
        if matches!(text, "stdio" | "stdio://") {
            return Ok(Self::Stdio);
        }
        if let Some(address) = text.strip_prefix("ws://").or_else(|| text.strip_prefix("wss://")) {
            let address = address.strip_suffix('/').unwrap_or(address);
            return address
                .parse()
                .map(Self::WebSocket)
                .map_err(|_| Error::InvalidWebSocket(text.to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(Error::InvalidUnix(text.to_owned()))
            };
        }
        Err(Error::Unsupported(text.to_owned()))
    }
}

impl ListenUrl {
    /// Whether only this machine can reach the listener.
    pub fn is_local(&self) -> bool {
        match self {
            Self::WebSocket(address) => is_loopback(address.ip()),
            Self::Unix(_) | Self::Stdio => true,
        }
    }
}

fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => mapped.is_loopback(),
            None => address.is_loopback(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_listener_has_its_url() {
        let websocket = |address: &str| Ok(ListenUrl::WebSocket(address.parse().unwrap()));
        assert_eq!(DEFAULT_LISTEN_URL.parse(), websocket("127.0.0.1:0"));
        assert_eq!("ws://[::1]:8080".parse(), websocket("[::1]:8080"));
        assert_eq!("stdio".parse(), Ok(ListenUrl::Stdio));
        assert_eq!("stdio://".parse(), Ok(ListenUrl::Stdio));
        assert_eq!("unix:///run/x.sock".parse(), Ok(ListenUrl::Unix("/run/x.sock".into())));
    }

    #[test]
    fn bad_urls_are_refused_with_what_was_expected() {
        let error = |text: &str| text.parse::<ListenUrl>().unwrap_err().to_string();
        assert!(
            error("foo").starts_with("unsupported --listen URL `foo`; expected `ws://IP:PORT`")
        );
        assert!(error("ws://localhost:0").starts_with(
            "invalid websocket --listen URL `ws://localhost:0`; expected `ws://IP:PORT`"
        ));
        assert!(error("ws://127.0.0.1").contains("expected `ws://IP:PORT`"));
        assert!(error("unix://relative").contains("unix:///ABSOLUTE/PATH"));
        assert!(error("http://127.0.0.1:1").starts_with("unsupported"));
    }

    #[test]
    fn only_loopback_and_local_sockets_are_local() {
        let is_local = |text: &str| text.parse::<ListenUrl>().unwrap().is_local();
        assert!(
            is_local("ws://127.0.0.1:1")
                && is_local("ws://127.9.9.9:1")
                && is_local("ws://[::1]:1")
        );
        assert!(is_local("stdio") && is_local("unix:///x"));
        assert!(
            !is_local("ws://0.0.0.0:1") && !is_local("ws://[::]:1") && !is_local("ws://10.0.0.1:1")
        );
    }
}
