//! What every exchange of a server shares: whom to trust, which proxy to use, where requests may go.

use std::ffi::OsStr;
use std::fmt;

use exec_server_transport::tls;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::error::HttpError;
use super::lookups::Lookups;
use super::place::Place;
use super::reach::Reach;
use super::redirect::UNSENDABLE;

/// What every exchange of a server shares.
pub struct HttpSetup {
    /// Where requests may go.
    pub reach: Reach,
    /// None where the environment speaks of none, so that most requests ask nothing.
    proxies: Option<Matcher>,
    /// Bounds the questions for addresses.
    pub lookups: Lookups,
    /// Reading every trusted certificate takes a while, so only who needs them waits for it.
    tls: OnceCell<TlsConnector>,
}

/// A proxy, and what it wants to hear.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Where it is.
    pub place: Place,
    /// Who we are to it.
    pub authorization: Option<HeaderValue>,
}

impl HttpSetup {
    /// Reads the proxies from the environment.
    pub fn new(reach: Reach) -> Self {
        let is_about_proxies = |name: &OsStr| {
            name.to_str().is_some_and(|name| name.to_ascii_lowercase().ends_with("_proxy"))
        };
        let has_proxies = std::env::vars_os().any(|(name, _)| is_about_proxies(&name));
        let proxies = has_proxies.then(Matcher::from_env);
        Self { reach, proxies, lookups: Lookups::of_server(), tls: OnceCell::new() }
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
            place: proxy.authority().map_or(String::new(), |place| place.host().to_owned()),
            reason: reason.to_owned(),
        };
        let (is_tls, default) = match proxy.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(unusable("is of a kind that is not supported; use an http proxy")),
        };
        let host = proxy.host().unwrap_or_default();
        let host = Host::parse(host).map_err(|_| unusable("has no valid host"))?;
        let place = Place { is_tls, host, port: proxy.port_u16().unwrap_or(default) };
        Ok(Some(Proxy { place, authorization: intercept.basic_auth().cloned() }))
    }

    /// Speaks TLS with whom the system trusts, or with whom `SSL_CERT_FILE` and `SSL_CERT_DIR` name instead.
    pub async fn tls(&self) -> Result<&TlsConnector, HttpError> {
        self.tls
            .get_or_try_init(|| async {
                let loaded = tokio::task::spawn_blocking(load_tls).await;
                loaded.unwrap_or_else(|_| Err("they could not be read".to_owned()))
            })
            .await
            .map_err(HttpError::Roots)
    }
}

fn load_tls() -> Result<TlsConnector, String> {
    let (roots, trouble) = tls::system_roots();
    if roots.is_empty() {
        return Err(trouble.unwrap_or_else(|| "this machine has none".to_owned()));
    }
    if let Some(error) = trouble {
        tracing::warn!(%error, "some trusted certificates could not be read");
    }
    tls::connector_trusting(roots).map_err(|error| error.to_string())
}

impl fmt::Debug for HttpSetup {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        // Proxies may have passwords.
        formatter.debug_struct("HttpSetup").field("reach", &self.reach).finish_non_exhaustive()
    }
}
