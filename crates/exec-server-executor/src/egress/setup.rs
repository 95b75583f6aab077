//! State shared by all exchanges of a server: trusted certificates, proxies and the egress policy.

use std::ffi::OsStr;
use std::fmt;

use exec_server_transport::tls;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::dns_limit::DnsLimit;
use super::error::HttpError;
use super::origin::Origin;
use super::policy::EgressPolicy;
use super::redirect::UNSENDABLE;

/// State shared by all exchanges of a server.
pub struct HttpSetup {
    /// Where requests may go.
    pub policy: EgressPolicy,
    /// `None` without proxy variables, so that most requests skip the lookup.
    proxies: Option<Matcher>,
    /// The server's limit of concurrent DNS lookups.
    pub dns_limit: DnsLimit,
    /// Loaded on first use, because reading all trusted certificates is slow.
    tls: OnceCell<TlsConnector>,
}

/// A proxy and its credentials.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Scheme, host and port of the proxy.
    pub origin: Origin,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<HeaderValue>,
}

impl HttpSetup {
    /// Reads the proxies from the environment.
    pub fn new(policy: EgressPolicy) -> Self {
        let is_proxy_variable = |name: &OsStr| {
            name.to_str().is_some_and(|name| name.to_ascii_lowercase().ends_with("_proxy"))
        };
        let has_proxies = std::env::vars_os().any(|(name, _)| is_proxy_variable(&name));
        let proxies = has_proxies.then(Matcher::from_env);
        Self { policy, proxies, dns_limit: DnsLimit::of_server(), tls: OnceCell::new() }
    }

    /// The proxy for a URL, if it has one.
    pub fn proxy(&self, url: &Url) -> Result<Option<Proxy>, HttpError> {
        let Some(proxies) = &self.proxies else { return Ok(None) };
        let uri: Uri = url[..url::Position::AfterPort]
            .parse()
            .map_err(|_| HttpError::Redirect(UNSENDABLE.to_owned()))?;
        let Some(intercept) = proxies.intercept(&uri) else { return Ok(None) };
        let proxy = intercept.uri();
        let unusable = |reason: &str| HttpError::Proxy {
            origin: proxy.authority().map_or(String::new(), |origin| origin.host().to_owned()),
            reason: reason.to_owned(),
        };
        let (is_tls, default) = match proxy.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(unusable("has an unsupported scheme; use an http or https proxy")),
        };
        let host = proxy.host().unwrap_or_default();
        let host = Host::parse(host).map_err(|_| unusable("has no valid host"))?;
        let origin = Origin { is_tls, host, port: proxy.port_u16().unwrap_or(default) };
        Ok(Some(Proxy { origin, authorization: intercept.basic_auth().cloned() }))
    }

    /// The TLS configuration with the system's certificates, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    pub async fn tls(&self) -> Result<&TlsConnector, HttpError> {
        self.tls
            .get_or_try_init(|| async {
                let loaded = tokio::task::spawn_blocking(load_tls).await;
                loaded.unwrap_or_else(|_| Err("the loader stopped".to_owned()))
            })
            .await
            .map_err(HttpError::Roots)
    }
}

fn load_tls() -> Result<TlsConnector, String> {
    let (roots, trouble) = tls::system_roots();
    if roots.is_empty() {
        return Err(trouble.unwrap_or_else(|| "none are installed on this machine".to_owned()));
    }
    if let Some(error) = trouble {
        tracing::warn!(%error, "some trusted certificates could not be read");
    }
    tls::connector_trusting(roots).map_err(|error| error.to_string())
}

impl fmt::Debug for HttpSetup {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        // Proxy URLs may contain passwords.
        formatter.debug_struct("HttpSetup").field("reach", &self.policy).finish_non_exhaustive()
    }
}
