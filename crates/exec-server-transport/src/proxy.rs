//! Selects an HTTP proxy from the environment and opens a `CONNECT` tunnel through it.
//!
//! `ws://` and `http://` use `HTTP_PROXY`, `wss://` and `https://` use `HTTPS_PROXY`, both fall back to `ALL_PROXY`.
//! `NO_PROXY` lists hosts that are reached directly; loopback always is. Lower-case variables take precedence.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use url::{Host, Url};

use crate::dial::{Link, basic_auth, connect_tcp, wrap_in_tls};

/// Limit of a proxy's response headers.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// The configured proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    plain: Option<String>,
    tls: Option<String>,
    /// Entries of `NO_PROXY`.
    direct: Vec<String>,
}

/// One proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    text: String,
}

/// Why a tunnel could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The variable holds no proxy URL.
    #[error(
        "the proxy address is not an `http://` or `https://` URL (check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY)"
    )]
    Address,
    /// The TCP connection failed.
    #[error("could not reach the proxy")]
    Unreachable(#[source] io::Error),
    /// TLS to the proxy failed.
    #[error("TLS to the proxy failed: {0}")]
    Tls(String),
    /// The proxy rejected the request.
    #[error("the proxy rejected the tunnel with HTTP status {0}")]
    Refused(u16),
    /// The response is not HTTP.
    #[error("the proxy's response is not HTTP")]
    Answer,
}

impl Proxies {
    /// Reads the proxies from the environment of this process.
    pub fn from_environment() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads the proxies from environment variables.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| lookup(name).filter(|value| !value.trim().is_empty()))
        };
        let of_http = &["http_proxy", "HTTP_PROXY"];
        // In CGI a request header `Proxy` becomes `HTTP_PROXY`, so the upper-case name is not trusted.
        let is_cgi = lookup("REQUEST_METHOD").is_some();
        Self {
            plain: first(if is_cgi { &of_http[..1] } else { of_http })
                .or_else(|| first(&["all_proxy", "ALL_PROXY"])),
            tls: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            direct: first(&["no_proxy", "NO_PROXY"])
                .unwrap_or_default()
                .split(',')
                .map(|entry| entry.trim().to_ascii_lowercase())
                .filter(|entry| !entry.is_empty())
                .collect(),
        }
    }

    /// The proxy for `server`, if any.
    pub fn for_server(&self, server: &Url) -> Option<Proxy> {
        let text = if matches!(server.scheme(), "wss" | "https") { &self.tls } else { &self.plain };
        let text = text.as_ref()?;
        (!self.is_direct(server)).then(|| Proxy { text: text.trim().to_owned() })
    }

    fn is_direct(&self, server: &Url) -> bool {
        let Some(host) = server.host() else { return true };
        let address = match host {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(IpAddr::V4(address)),
            Host::Ipv6(address) => Some(IpAddr::V6(address)),
        };
        let name = match &host {
            Host::Domain(name) => (*name).to_ascii_lowercase(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        };
        if name == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        let port = server.port_or_known_default();
        self.direct.iter().any(|entry| covers(entry, &name, address, port))
    }
}

/// Matches an entry: `*`, a domain with its subdomains, an address, or a network, optionally with a port.
fn covers(entry: &str, name: &str, address: Option<IpAddr>, port: Option<u16>) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/')
        && let (Ok(network), Ok(bits), Some(address)) = (network.parse(), bits.parse(), address)
    {
        return is_within(address, network, bits);
    }
    let (host, wanted_port) = match entry.rsplit_once(':') {
        Some((host, digits)) if !host.contains(':') || host.ends_with(']') => {
            (host, digits.parse::<u16>().ok())
        }
        _ => (entry, None),
    };
    if wanted_port.is_some() && wanted_port != port {
        return false;
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let (Some(address), Ok(entry)) = (address, host.parse::<IpAddr>()) {
        return address == entry;
    }
    let host = host.trim_start_matches("*.").trim_start_matches('.');
    name == host || name.strip_suffix(host).is_some_and(|rest| rest.ends_with('.'))
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            address.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

impl Proxy {
    /// Opens a tunnel through the proxy to `host`.
    pub(crate) async fn connect(
        &self,
        host: &Host<&str>,
        port: u16,
        authorities: Option<&Path>,
    ) -> Result<Box<dyn Link>, ProxyError> {
        // `host:port` without a scheme is common.
        let with_scheme = match self.text.contains("://") {
            true => self.text.clone(),
            false => format!("http://{}", self.text),
        };
        let url = Url::parse(&with_scheme).map_err(|_| ProxyError::Address)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ProxyError::Address);
        }
        let proxy_host = url.host().ok_or(ProxyError::Address)?;
        let proxy_port = url.port_or_known_default().ok_or(ProxyError::Address)?;
        let link = connect_tcp(&proxy_host, proxy_port).await.map_err(ProxyError::Unreachable)?;
        let mut link: Box<dyn Link> = Box::new(link);
        if url.scheme() == "https" {
            link = wrap_in_tls(link, &proxy_host, authorities)
                .await
                .map_err(|error| ProxyError::Tls(error.to_string()))?;
        }
        ask_for_tunnel(&mut link, host, port, basic_auth(&url).as_deref()).await?;
        Ok(link)
    }
}

/// Sends `CONNECT` on `link` and waits for the proxy's success status.
pub async fn ask_for_tunnel(
    link: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: impl Display,
    port: u16,
    authorization: Option<&str>,
) -> Result<(), ProxyError> {
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(value) = authorization {
        request.push_str(&format!("Proxy-Authorization: {value}\r\n"));
    }
    request.push_str("\r\n");
    link.write_all(request.as_bytes()).await.map_err(ProxyError::Unreachable)?;
    link.flush().await.map_err(ProxyError::Unreachable)?;
    let mut answer = Vec::new();
    // Read byte by byte, because bytes after the header belong to the target server.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= MAX_ANSWER_BYTES {
            return Err(ProxyError::Answer);
        }
        answer.push(link.read_u8().await.map_err(ProxyError::Unreachable)?);
    }
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut headers);
    parsed.parse(&answer).map_err(|_| ProxyError::Answer)?;
    match parsed.code {
        Some(200..300) => Ok(()),
        Some(status) => Err(ProxyError::Refused(status)),
        None => Err(ProxyError::Answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::from_lookup(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn is_proxied(variables: &[(&str, &str)], server: &str) -> bool {
        proxies(variables).for_server(&Url::parse(server).unwrap()).is_some()
    }

    #[test]
    fn the_scheme_selects_the_variable() {
        let both = [("http_proxy", "http://a:1"), ("HTTPS_PROXY", "http://b:1")];
        assert!(is_proxied(&both[..1], "ws://h"));
        assert!(!is_proxied(&both[..1], "wss://h"));
        assert!(is_proxied(&both[1..], "wss://h"));
        assert!(!is_proxied(&both[1..], "ws://h"));
        assert!(is_proxied(&[("ALL_PROXY", "p:1")], "ws://h"));
        assert!(is_proxied(&[("HTTP_PROXY", "http://a:1")], "ws://h"));
        let of_a_request = [("HTTP_PROXY", "http://a:1"), ("REQUEST_METHOD", "GET")];
        assert!(!is_proxied(&of_a_request, "ws://h"));
        assert!(!is_proxied(&[("HTTP_PROXY", "http://a:1")], "wss://h"));
        assert!(!is_proxied(&[("http_proxy", " ")], "ws://h"));
    }

    #[test]
    fn loopback_and_listed_hosts_are_reached_directly() {
        let with = |no_proxy| [("ALL_PROXY", "http://p:1"), ("no_proxy", no_proxy)];
        for server in ["ws://localhost", "ws://127.1.2.3", "ws://[::1]"] {
            assert!(!is_proxied(&with(""), server), "{server}");
        }
        for (no_proxy, server, expected) in [
            ("*", "ws://h", false),
            ("example.com", "ws://example.com", false),
            ("example.com", "ws://a.example.com", false),
            (".example.com", "ws://a.example.com", false),
            ("example.com", "ws://badexample.com", true),
            ("x, Example.COM", "wss://example.com", false),
            ("example.com:81", "ws://example.com", true),
            ("example.com:80", "ws://example.com", false),
            ("10.0.0.0/8", "ws://10.9.8.7", false),
            ("10.0.0.0/8", "ws://11.9.8.7", true),
            ("10.0.0.1", "ws://10.0.0.1:99", false),
            ("fd00::/8", "ws://[fd12::1]", false),
            ("0.0.0.0/0", "ws://8.8.8.8", false),
        ] {
            assert_eq!(is_proxied(&with(no_proxy), server), expected, "{no_proxy} {server}");
        }
    }
}
