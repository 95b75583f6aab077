//! What a registry is asked: a small JSON request over HTTP each, never redirected.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::registry::{
    ConnectRequest, ConnectResponse, PublicKey, RegistryFailureDetail, SECURITY_PROFILE, codes,
};
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

/// The name of the registry at a URL.
pub fn registry_name(base: &str) -> Result<String, RegistryUrlError> {
    Ok(Registry::new(base, DialOptions::default(), Duration::ZERO)?.name())
}

impl Registry {
    /// The registry at `base`; each request may take as long as `timeout`.
    pub fn new(base: &str, dial: DialOptions, timeout: Duration) -> Result<Self, RegistryUrlError> {
        let wrong = || RegistryUrlError(base.to_owned());
        let base = Url::parse(base.trim()).map_err(|_| wrong())?;
        let is_usable = matches!(base.scheme(), "http" | "https") && base.host().is_some();
        if is_usable { Ok(Self { base, dial, timeout }) } else { Err(wrong()) }
    }

    /// Whether nobody on the way can read what is sent there.
    pub fn is_secure(&self) -> bool {
        is_secure(&self.base)
    }

    /// What people call it: its URL without anything secret, and always the same for the same place.
    pub fn name(&self) -> String {
        let mut name = self.base.clone();
        // A URL with a host can always do without.
        let _ = name.set_password(None);
        let _ = name.set_username("");
        name.set_query(None);
        name.set_fragment(None);
        name.as_str().trim_end_matches('/').to_owned()
    }

    /// Asks for a way to an environment's executor; each is good for one connection.
    pub async fn connect(
        &self,
        environment_id: &str,
        headers: &[Header],
        harness: &PublicKey,
    ) -> Result<ConnectResponse, RegistryError> {
        let request = ConnectRequest { harness_public_key: harness.clone() };
        let way: ConnectResponse = self.ask(environment_id, "connect", headers, &request).await?;
        let is_complete = [&way.url, &way.executor_registration_id, &way.harness_key_authorization]
            .iter()
            .all(|part| !part.trim().is_empty());
        let wrong = |what: &str| Err(RegistryError::Malformed(what.to_owned()));
        if way.environment_id != environment_id {
            return wrong("it leads to another environment");
        }
        if way.security_profile != SECURITY_PROFILE {
            return wrong("it asks for a security profile that this version does not speak");
        }
        if is_complete { Ok(way) } else { wrong("something in it is empty") }
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

impl RegistryError {
    /// Whether a harness may get another answer if it asks for a way again.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Auth { .. } | Self::Malformed(_) => false,
            Self::Refused { status: 409, code, .. } => {
                code.as_deref() == Some(codes::ENVIRONMENT_OFFLINE)
            }
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Unreachable(error) => error.may_pass(),
            Self::Broken(_) | Self::Timeout(_) => true,
        }
    }

    /// Whether the executor of the environment is not there.
    pub fn is_offline(&self) -> bool {
        matches!(self, Self::Refused { code: Some(code), .. } if code == codes::ENVIRONMENT_OFFLINE)
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

/// Whether nobody on the way to a URL can read what is sent there: by encryption, or because it does not leave the machine.
pub fn is_secure(url: &Url) -> bool {
    url.has_host() && (url.scheme() == "https" || url.scheme() == "http" && is_loopback(url))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_has_one_name() {
        for url in ["https://Meet.example.org", "https://me:hush@meet.example.org:443/?a=hush#b"] {
            let registry = Registry::new(url, DialOptions::default(), Duration::ZERO).unwrap();
            assert_eq!(registry.name(), "https://meet.example.org");
        }
        let registry = Registry::new("http://h:1/a/", DialOptions::default(), Duration::ZERO);
        assert_eq!(registry.unwrap().name(), "http://h:1/a");
    }

    #[test]
    fn what_passes_is_told_from_what_is_final() {
        let may_pass = |status: u16, code: &str| {
            let body = format!(r#"{{"error":{{"code":"{code}"}}}}"#);
            let status = StatusCode::from_u16(status).unwrap();
            understand::<()>(status, body.as_bytes()).unwrap_err().may_pass()
        };
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(may_pass(status, "whatever"), "{status}");
        }
        for status in [302, 400, 401, 403, 404, 409, 410, 422] {
            assert!(!may_pass(status, "whatever"), "{status}");
        }
        assert!(may_pass(409, "environment_offline"));
        assert!(!may_pass(403, "environment_offline"));
    }
}
