//! State shared by all exchanges of a server: trusted certificates, proxies and the egress policy.

use std::fmt;

use exec_server_transport::proxy::Proxies;
use exec_server_transport::tls;
use hyper::header::HeaderValue;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use url::Url;

use super::dns_limit::DnsLimit;
use super::error::HttpError;
use super::origin::Origin;
use super::policy::EgressPolicy;

/// State shared by all exchanges of a server.
pub struct HttpSetup {
    /// Where requests may go.
    pub policy: EgressPolicy,
    proxies: Proxies,
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
        let proxies = Proxies::from_environment();
        Self { policy, proxies, dns_limit: DnsLimit::of_server(), tls: OnceCell::new() }
    }

    /// The proxy for a URL, if it has one.
    pub fn proxy(&self, url: &Url) -> Result<Option<Proxy>, HttpError> {
        let unusable = || HttpError::Proxy {
            origin: "from HTTP_PROXY, HTTPS_PROXY or ALL_PROXY".to_owned(),
            reason: "has no http or https URL".to_owned(),
        };
        let found = self.proxies.for_server(url).map_err(|_| unusable())?;
        let Some(proxy) = found else { return Ok(None) };
        let origin = Origin::of(&proxy.url).ok_or_else(unusable)?;
        Ok(Some(Proxy { origin, authorization: proxy.authorization }))
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
