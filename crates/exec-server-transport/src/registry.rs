//! What a registry is asked: a small JSON request over HTTP each, never redirected.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::registry::RegistryFailureDetail;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::dial::{DialError, DialOptions};
use crate::http_exchange::{ExchangeError, exchange};

/// More than any answer of a registry has.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// As much of an answer that was not understood goes into a message.
const MAX_MESSAGE_CHARS: usize = 400;

/// Everything that would change the meaning of a path.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A registry at some URL.
#[derive(Debug, Clone)]
pub struct Registry {
    base: Url,
    dial: DialOptions,
    timeout: Duration,
}

/// A header by which a caller says who it is.
pub type Header = (HeaderName, HeaderValue);

/// Why a registry did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It does not know the caller, or the caller may not.
    #[error("the registry refused the credential ({status}){}", colon(message))]
    Auth {
        /// 401 or 403.
        status: u16,
        /// What it said.
        message: String,
    },
    /// It refused for another reason.
    #[error("the registry answered {status}{}{}", space(code), colon(message))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The word to act on, if there was one.
        code: Option<String>,
        /// What it said.
        message: String,
    },
    /// It cannot be reached.
    #[error("the registry cannot be reached")]
    Unreachable(#[source] DialError),
    /// The exchange broke.
    #[error("the exchange with the registry broke")]
    Broken(#[source] io::Error),
    /// It took too long.
    #[error("the registry did not answer within {0:?}")]
    Timeout(Duration),
    /// It answered something else.
    #[error("the registry's answer is not usable: {0}")]
    Malformed(String),
}

/// A base URL that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no URL of a registry; expected `https://HOST` or `http://HOST`")]
pub struct RegistryUrlError(String);

impl Registry {
    /// The registry at `base`; each request may take as long as `timeout`.
    pub fn new(base: &str, dial: DialOptions, timeout: Duration) -> Result<Self, RegistryUrlError> {
        let wrong = || RegistryUrlError(base.to_owned());
        let base = Url::parse(base.trim()).map_err(|_| wrong())?;
        let is_usable = matches!(base.scheme(), "http" | "https") && base.host().is_some();
        if is_usable { Ok(Self { base, dial, timeout }) } else { Err(wrong()) }
    }

    /// Whether what is sent there can be read on the way.
    pub fn is_secure(&self) -> bool {
        self.base.scheme() == "https" || is_loopback(&self.base)
    }

    /// Asks about an environment: `register`, `validate` or `connect`.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        environment_id: &str,
        action: &str,
        headers: &[Header],
        body: &impl Serialize,
    ) -> Result<T, RegistryError> {
        let asked = self.exchange(environment_id, action, headers, body);
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(RegistryError::Timeout(self.timeout)),
        }
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        environment_id: &str,
        action: &str,
        headers: &[Header],
        body: &impl Serialize,
    ) -> Result<T, RegistryError> {
        let path = self.base.path().trim_end_matches('/');
        let id = utf8_percent_encode(environment_id, SEGMENT);
        let path = format!("{path}/cloud/environment/{id}/{action}");
        let body = serde_json::to_vec(body).expect("requests are plain data");
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() =
            path.parse().map_err(|_| RegistryError::Malformed("its path".to_owned()))?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }

        let (status, body) = exchange(&self.base, &self.dial, request, MAX_ANSWER_BYTES).await?;
        understand(status, &body)
    }
}

impl From<ExchangeError> for RegistryError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Unreachable(source) => Self::Unreachable(source),
            ExchangeError::Broken(source) => Self::Broken(source),
        }
    }
}

fn understand<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, RegistryError> {
    if status.is_success() {
        return serde_json::from_slice(body)
            .map_err(|error| RegistryError::Malformed(error.to_string()));
    }
    let RegistryFailureDetail { code, message } = RegistryFailureDetail::parse(body);
    let message: String = message.unwrap_or_default().chars().take(MAX_MESSAGE_CHARS).collect();
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            RegistryError::Auth { status: status.as_u16(), message }
        }
        _ => RegistryError::Refused { status: status.as_u16(), code, message },
    })
}

/// Whether a URL leads to this machine, whatever a name server says.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn space(text: &Option<String>) -> String {
    text.as_ref().map(|text| format!(" {text}")).unwrap_or_default()
}
