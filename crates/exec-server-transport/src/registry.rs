//! What a registry is asked: a small JSON request over HTTP each, never redirected.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::registry::RegistryFailureDetail;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::dial::{DialError, DialOptions, open_link};

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
    Unreachable(#[from] DialError),
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
        let authority = &self.base[url::Position::BeforeHost..url::Position::AfterPort];
        let host = HeaderValue::from_str(authority).expect("URLs are ASCII");
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }

        let link = open_link(&self.base, &self.dial).await?;
        let broken = |error: hyper::Error| RegistryError::Broken(io::Error::other(error));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(link)).await.map_err(broken)?;
        let mut exchange = pin!(async {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
            let body = body.map_err(|error| RegistryError::Broken(io::Error::other(error)))?;
            Ok::<_, RegistryError>((status, body.to_bytes()))
        });
        // The connection drives the exchange, and may be done before the answer has been read.
        let mut connection = pin!(connection);
        let mut is_driving = true;
        let answer = poll_fn(|cx| {
            is_driving = is_driving && connection.as_mut().poll(cx).is_pending();
            exchange.as_mut().poll(cx)
        });
        let (status, body) = answer.await?;
        understand(status, &body)
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
