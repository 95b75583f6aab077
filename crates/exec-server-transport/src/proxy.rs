//! Selects an HTTP proxy from the environment and opens a `CONNECT` tunnel through it.
//!
//! `ws://` and `http://` use `HTTP_PROXY`, `wss://` and `https://` use `HTTPS_PROXY`, both fall back to `ALL_PROXY`.
//! `NO_PROXY` lists hosts that are reached directly; loopback always is. Lower-case variables take precedence.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use url::{Host, Url};

use crate::causes::chain;
use crate::dial::{Link, connect_tcp, is_loopback, wrap_in_tls};

/// Limit of a proxy's response headers.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// Stands for a proxy URL that the matcher would ignore: its scheme is refused, so no request goes around the proxy.
const UNUSABLE: &str = "socks5://unusable.invalid";

/// The configured proxies.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    /// `None` without proxy variables, so that most connections skip the match.
    rules: Option<Arc<Rules>>,
}

#[derive(Debug)]
struct Rules {
    matcher: Matcher,
    /// `NO_PROXY` entries with a port, which the matcher does not support; a host that is not intercepted is listed.
    by_port: BTreeMap<u16, Matcher>,
}

/// One proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Scheme, host and port.
    pub url: Url,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<HeaderValue>,
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
            let set = names.iter().find_map(|name| lookup(name).filter(|it| !it.trim().is_empty()));
            set.map(|value| value.trim().to_owned())
        };
        let of_http = &["http_proxy", "HTTP_PROXY"];
        // In CGI a request header `Proxy` becomes `HTTP_PROXY`, so the upper-case name is not trusted.
        let is_cgi = lookup("REQUEST_METHOD").is_some();
        let http = first(if is_cgi { &of_http[..1] } else { of_http });
        let https = first(&["https_proxy", "HTTPS_PROXY"]);
        let all = first(&["all_proxy", "ALL_PROXY"]);
        if http.is_none() && https.is_none() && all.is_none() {
            return Self::default();
        }
        let (direct, by_port) =
            split_no_proxy(&first(&["no_proxy", "NO_PROXY"]).unwrap_or_default());
        let usable = |text: Option<String>| text.map_or_else(String::new, or_unusable);
        let matcher = Matcher::builder()
            .http(usable(http))
            .https(usable(https))
            .all(usable(all))
            .no(direct)
            .build();
        let by_port = by_port.into_iter().map(|(port, hosts)| (port, matcher_except(&hosts)));
        Self { rules: Some(Arc::new(Rules { matcher, by_port: by_port.collect() })) }
    }

    /// The proxy for `server`, if any.
    pub fn for_server(&self, server: &Url) -> Result<Option<Proxy>, ProxyError> {
        let Some(rules) = &self.rules else { return Ok(None) };
        if is_loopback(server) {
            return Ok(None);
        }
        let uri = uri_of(server).ok_or(ProxyError::Address)?;
        let by_port = server.port_or_known_default().and_then(|port| rules.by_port.get(&port));
        if by_port.is_some_and(|except| except.intercept(&uri).is_none()) {
            return Ok(None);
        }
        let Some(intercept) = rules.matcher.intercept(&uri) else { return Ok(None) };
        let url = Url::parse(&intercept.uri().to_string()).map_err(|_| ProxyError::Address)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ProxyError::Address);
        }
        Ok(Some(Proxy { url, authorization: intercept.basic_auth().cloned() }))
    }
}

/// Scheme and host of a URL for the matcher, which knows neither `ws` nor `wss`.
fn uri_of(server: &Url) -> Option<Uri> {
    let scheme = if matches!(server.scheme(), "wss" | "https") { "https" } else { "http" };
    format!("{scheme}://{}/", server.host_str()?).parse().ok()
}

fn or_unusable(text: String) -> String {
    let probe = Matcher::builder().http(&text).build();
    match probe.intercept(&Uri::from_static("http://host.invalid/")) {
        Some(_) => text,
        None => UNUSABLE.to_owned(),
    }
}

/// A matcher that intercepts every host except the listed ones.
fn matcher_except(hosts: &str) -> Matcher {
    Matcher::builder().all(UNUSABLE).no(hosts).build()
}

/// Splits `NO_PROXY` into entries without a port, and those of each port, in the forms that the matcher knows.
fn split_no_proxy(list: &str) -> (String, BTreeMap<u16, String>) {
    let mut direct = String::new();
    let mut by_port = BTreeMap::<u16, String>::new();
    for entry in list.split(',').map(str::trim) {
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, port.parse::<u16>().ok())
            }
            _ => (entry, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let hosts = match port {
            Some(port) => by_port.entry(port).or_default(),
            None => &mut direct,
        };
        // The matcher's `*` covers names only.
        hosts.push_str(if host == "*" { "*,0.0.0.0/0,::/0" } else { host.trim_start_matches('*') });
        hosts.push(',');
    }
    (direct, by_port)
}

impl Proxy {
    /// Opens a tunnel through the proxy to `host`.
    pub(crate) async fn connect(
        &self,
        host: &Host<&str>,
        port: u16,
        authorities: Option<&Path>,
    ) -> Result<Box<dyn Link>, ProxyError> {
        let proxy_host = self.url.host().ok_or(ProxyError::Address)?;
        let proxy_port = self.url.port_or_known_default().ok_or(ProxyError::Address)?;
        let link = connect_tcp(&proxy_host, proxy_port).await.map_err(ProxyError::Unreachable)?;
        let mut link: Box<dyn Link> = Box::new(link);
        if self.url.scheme() == "https" {
            link = wrap_in_tls(link, &proxy_host, authorities)
                .await
                .map_err(|error| ProxyError::Tls(chain(&error)))?;
        }
        ask_for_tunnel(&mut link, host, port, self.authorization.as_ref()).await?;
        Ok(link)
    }
}

/// Sends `CONNECT` on `link` and waits for the proxy's success status.
pub async fn ask_for_tunnel(
    link: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: impl Display,
    port: u16,
    authorization: Option<&HeaderValue>,
) -> Result<(), ProxyError> {
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    let mut request = request.into_bytes();
    if let Some(value) = authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    link.write_all(&request).await.map_err(ProxyError::Unreachable)?;
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
        proxies(variables).for_server(&Url::parse(server).unwrap()).unwrap().is_some()
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
            ("*", "ws://10.0.0.1", false),
            ("*", "https://[fd12::1]", false),
            ("*.example.com", "ws://a.example.com", false),
            ("example.com", "ws://example.com", false),
            ("example.com", "ws://a.example.com", false),
            (".example.com", "ws://a.example.com", false),
            ("example.com", "ws://badexample.com", true),
            ("x, Example.COM", "wss://example.com", false),
            ("example.com:81", "ws://example.com", true),
            ("example.com:80", "ws://example.com", false),
            ("x, example.com:80", "http://a.example.com", false),
            ("example.com:443", "wss://example.com", false),
            ("example.com:443", "wss://example.com:444", true),
            ("[fd12::1]:81", "ws://[fd12::1]:81", false),
            ("[fd12::1]:81", "ws://[fd12::1]", true),
            ("fd12::1", "ws://[fd12::1]", false),
            ("10.0.0.0/8", "ws://10.9.8.7", false),
            ("10.0.0.0/8", "ws://11.9.8.7", true),
            ("10.0.0.1", "ws://10.0.0.1:99", false),
            ("fd00::/8", "ws://[fd12::1]", false),
            ("0.0.0.0/0", "ws://8.8.8.8", false),
        ] {
            assert_eq!(is_proxied(&with(no_proxy), server), expected, "{no_proxy} {server}");
        }
    }

    #[test]
    fn a_proxy_has_an_address_and_perhaps_credentials() {
        let proxy = |text| {
            let proxy = proxies(&[("http_proxy", text)]).for_server(&"ws://h".parse().unwrap());
            let proxy = proxy.map(|proxy| proxy.expect("the variable is set"));
            proxy.map(|it| (it.url.to_string(), it.authorization))
        };
        assert_eq!(proxy(" p:3128 ").unwrap(), ("http://p:3128/".to_owned(), None));
        assert_eq!(proxy("https://p").unwrap(), ("https://p/".to_owned(), None));
        let (url, authorization) = proxy("http://me:pa%73s@[fd12::1]:1/x").unwrap();
        assert_eq!(url, "http://[fd12::1]:1/");
        assert_eq!(authorization.unwrap(), "Basic bWU6cGFzcw==");
        for unusable in ["socks5://p:1", "ftp://p", "http://", "not a proxy"] {
            assert!(matches!(proxy(unusable), Err(ProxyError::Address)), "{unusable}");
        }
    }

    #[test]
    fn credentials_of_a_proxy_are_not_printed() {
        let proxies = proxies(&[("all_proxy", "http://me:hush@p:1")]);
        let proxy = proxies.for_server(&"ws://h".parse().unwrap()).unwrap();
        let text = format!("{proxies:?} {proxy:?}");
        assert!(
            text.contains("p:1") && !text.contains("hush") && !text.contains("aHVzaA"),
            "{text}"
        );
    }
}
