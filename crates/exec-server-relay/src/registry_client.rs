//! Client for the registry: one JSON request over HTTP per call; redirects are not followed.

use std::io;
use std::time::Duration;

use crate::registry_types::{
    ConnectRequest, ConnectResponse, PublicKey, RegistryFailureDetail, SECURITY_PROFILE, codes,
};
use bytes::Bytes;
use exec_server_protocol::escape_untrusted::escape_untrusted;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use exec_server_transport::dial::{DialError, DialOptions, is_loopback};
use exec_server_transport::http_exchange::{ExchangeError, exchange};

/// Limit for a response body; real responses are a few kilobytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Limit for registry text that is quoted in an error.
const MAX_MESSAGE_CHARS: usize = 400;
/// Limit for an error code that is quoted; known codes are shorter.
const MAX_CODE_CHARS: usize = 64;
/// Shorter credentials are not searched for, because they would match by chance.
const MIN_SECRET_BYTES: usize = 8;

/// Characters that are percent-encoded in a path segment.
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

/// A client for the registry at one base URL.
#[derive(Debug, Clone)]
pub struct Registry {
    base: Url,
    dial: DialOptions,
    timeout: Duration,
}

/// A request header, typically a credential; credentials are marked sensitive.
pub type Header = (HeaderName, HeaderValue);

/// Why a registry request failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The credential is unknown or lacks the permission.
    #[error("the registry refused the credential ({status}){}", colon(message))]
    Auth {
        /// 401 or 403.
        status: u16,
        /// The registry's message, escaped and shortened; may be empty.
        message: String,
    },
    /// Any other status that is not a success.
    #[error("the registry answered {status}{}{}", space(code), colon(message))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The machine-readable code from the body, escaped and shortened.
        code: Option<String>,
        /// The registry's message, escaped and shortened; may be empty.
        message: String,
    },
    /// No connection could be made.
    #[error("the registry cannot be reached")]
    Unreachable(#[source] DialError),
    /// The connection failed during the exchange.
    #[error("the connection to the registry failed")]
    Broken(#[source] io::Error),
    /// No complete response within the timeout.
    #[error("the registry did not answer within {0:?}")]
    Timeout(Duration),
    /// The response is not the expected JSON.
    #[error("invalid response from the registry: {0}")]
    Malformed(String),
}

/// The base URL is invalid; the field holds it without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a registry URL; expected `https://HOST` or `http://HOST`")]
pub struct RegistryUrlError(String);

/// Normalizes a registry URL as [`Registry::name`] does.
pub fn registry_name(base: &str) -> Result<String, RegistryUrlError> {
    Ok(Registry::new(base, DialOptions::default(), Duration::ZERO)?.name())
}

impl Registry {
    /// A client for the registry at `base`; `timeout` applies to each request as a whole.
    pub fn new(base: &str, dial: DialOptions, timeout: Duration) -> Result<Self, RegistryUrlError> {
        let parsed = Url::parse(base.trim());
        let base =
            parsed.map_err(|_| RegistryUrlError(escape_untrusted(base, MAX_MESSAGE_CHARS)))?;
        let is_usable = matches!(base.scheme(), "http" | "https") && base.host().is_some();
        let wrong = || RegistryUrlError(without_secrets(base.clone()).into());
        if is_usable { Ok(Self { base, dial, timeout }) } else { Err(wrong()) }
    }

    /// Whether credentials may be sent to this registry; see [`is_secure`].
    pub fn is_secure(&self) -> bool {
        is_secure(&self.base)
    }

    /// The normalized URL without credentials and query, for display and as a key.
    pub fn name(&self) -> String {
        without_secrets(self.base.clone()).as_str().trim_end_matches('/').to_owned()
    }

    /// Requests a route to an environment's executor; each route is valid for one connection.
    pub async fn connect(
        &self,
        environment_id: &str,
        headers: &[Header],
        harness: &PublicKey,
    ) -> Result<ConnectResponse, RegistryError> {
        let request = ConnectRequest { harness_public_key: harness.clone() };
        let route: ConnectResponse = self.ask(environment_id, "connect", headers, &request).await?;
        let is_complete =
            [&route.url, &route.executor_registration_id, &route.harness_key_authorization]
                .iter()
                .all(|part| !part.trim().is_empty());
        let wrong = |what: &str| Err(RegistryError::Malformed(what.to_owned()));
        if route.environment_id != environment_id {
            return wrong("it names another environment");
        }
        if route.security_profile != SECURITY_PROFILE {
            return wrong("its security profile is not supported by this version");
        }
        if is_complete { Ok(route) } else { wrong("a required member is empty") }
    }

    /// Sends a request about an environment; `action` is `register`, `validate` or `connect`.
    pub async fn ask<T: DeserializeOwned>(
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
        *request.uri_mut() = path
            .parse()
            .map_err(|_| RegistryError::Malformed("the request path is not valid".to_owned()))?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }

        let exchange = exchange(&self.base, &self.dial, request, MAX_RESPONSE_BYTES);
        match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answer) => {
                let (status, body) = answer?;
                decode_response(status, &body, &secrets(headers))
            }
            Err(_) => Err(RegistryError::Timeout(self.timeout)),
        }
    }
}

/// The credentials in these headers, without a scheme such as `Bearer`.
fn secrets(headers: &[Header]) -> Vec<&str> {
    let sensitive = headers.iter().filter(|(_, value)| value.is_sensitive());
    let texts = sensitive.filter_map(|(_, value)| value.to_str().ok());
    let words = texts.map(|text| text.rsplit(' ').next().unwrap_or(text));
    words.filter(|word| word.len() >= MIN_SECRET_BYTES).collect()
}

impl RegistryError {
    /// Whether a harness that requests a route again may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Auth { .. } | Self::Malformed(_) => false,
            Self::Refused { status: 409, code, .. } => {
                code.as_deref() == Some(codes::ENVIRONMENT_OFFLINE)
            }
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Unreachable(error) => error.is_transient(),
            Self::Broken(_) | Self::Timeout(_) => true,
        }
    }

    /// Whether the environment has no attached executor.
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

/// Decodes a response. Its text is untrusted and may reach a terminal or a log, so it is escaped, and any text that
/// contains the credential is dropped.
fn decode_response<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
    secrets: &[&str],
) -> Result<T, RegistryError> {
    let is_secret = |text: &str| secrets.iter().any(|secret| text.contains(secret));
    if status.is_success() {
        let wrong = |what: &str| RegistryError::Malformed(what.to_owned());
        let answer: Value = serde_json::from_slice(body).map_err(|_| wrong("it is not JSON"))?;
        // Both the raw and the decoded text are searched, because JSON escapes can hide the credential.
        if is_secret(&String::from_utf8_lossy(body)) || has_text(&answer, &is_secret) {
            return Err(wrong("it repeats the credential"));
        }
        return serde_json::from_value(answer).map_err(|error| wrong(&describe_mismatch(&error)));
    }
    let RegistryFailureDetail { code, message } = RegistryFailureDetail::parse(body);
    let shown = |text: String, max| (!is_secret(&text)).then(|| escape_untrusted(&text, max));
    let code = code.filter(|code| !code.is_empty()).and_then(|code| shown(code, MAX_CODE_CHARS));
    let message = message.and_then(|text| shown(text, MAX_MESSAGE_CHARS)).unwrap_or_default();
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            RegistryError::Auth { status: status.as_u16(), message }
        }
        _ => RegistryError::Refused { status: status.as_u16(), code, message },
    })
}

/// Whether any string or member name in a JSON value matches.
fn has_text(answer: &Value, matches: &impl Fn(&str) -> bool) -> bool {
    match answer {
        Value::String(text) => matches(text),
        Value::Array(values) => values.iter().any(|value| has_text(value, matches)),
        Value::Object(members) => {
            members.iter().any(|(name, value)| matches(name) || has_text(value, matches))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Describes a decoding error without the parser's text, which quotes the response.
fn describe_mismatch(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.strip_prefix("missing field ") {
        Some(name) => format!("{name} is missing"),
        None => "a member has the wrong type".to_owned(),
    }
}

/// The URL without credentials, query and fragment.
fn without_secrets(mut url: Url) -> Url {
    // These fail only for a URL without a host, which has no credentials.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Whether an environment id is safe as a path segment: some servers resolve `.` and `..` even if they are encoded.
pub fn is_path_segment(environment_id: &str) -> bool {
    !environment_id.is_empty() && !matches!(environment_id, "." | "..")
}

/// Whether a URL is safe for credentials: HTTPS, or HTTP to a loopback address.
pub fn is_secure(url: &Url) -> bool {
    url.has_host() && (url.scheme() == "https" || url.scheme() == "http" && is_loopback(url))
}

fn colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

fn space(text: &Option<String>) -> String {
    text.as_ref().map(|text| format!(" {text}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crate::registry_types::ValidateResponse;

    use super::*;

    #[test]
    fn a_registry_name_is_normalized_and_has_no_secrets() {
        for url in ["https://Relay.example.org", "https://me:hush@relay.example.org:443/?a=hush#b"]
        {
            let registry = Registry::new(url, DialOptions::default(), Duration::ZERO).unwrap();
            assert_eq!(registry.name(), "https://relay.example.org");
        }
        let registry = Registry::new("http://h:1/a/", DialOptions::default(), Duration::ZERO);
        assert_eq!(registry.unwrap().name(), "http://h:1/a");
        let wrong = registry_name("ws://me:hush@h/?hush").unwrap_err().to_string();
        assert!(wrong.contains("`ws://h/`") && !wrong.contains("hush"), "{wrong}");
    }

    #[test]
    fn transient_and_permanent_failures_are_distinguished() {
        let is_transient = |status: u16, code: &str| {
            let body = format!(r#"{{"error":{{"code":"{code}"}}}}"#);
            let status = StatusCode::from_u16(status).unwrap();
            decode_response::<()>(status, body.as_bytes(), &[]).unwrap_err().is_transient()
        };
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(is_transient(status, "whatever"), "{status}");
        }
        for status in [302, 400, 401, 403, 404, 409, 410, 422] {
            assert!(!is_transient(status, "whatever"), "{status}");
        }
        assert!(is_transient(409, "environment_offline"));
        assert!(!is_transient(403, "environment_offline"));
    }

    #[test]
    fn an_environment_id_stays_one_path_segment() {
        let encoded = utf8_percent_encode("../../evil?x=1#y%2f\\ ü", SEGMENT).to_string();
        assert_eq!(encoded, "..%2F..%2Fevil%3Fx=1%23y%252f%5C%20%C3%BC");
        assert!(is_path_segment("...") && is_path_segment("a.b"));
        assert!(!is_path_segment(".") && !is_path_segment("..") && !is_path_segment(""));
    }

    #[test]
    fn registry_text_is_escaped_and_shortened() {
        let code = "c".repeat(100);
        let body =
            serde_json::json!({"error": {"code": code, "message": "\u{1b}[2J\r\n\u{202e}hi"}});
        let status = StatusCode::IM_A_TEAPOT;
        let error = decode_response::<()>(status, body.to_string().as_bytes(), &[]).unwrap_err();
        let said =
            format!("the registry answered 418 {}…: \\u{{1b}}[2J\\r\\n\\u{{202e}}hi", &code[..64]);
        assert_eq!(error.to_string(), said);
        let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "x".repeat(100_000));
        let error =
            decode_response::<()>(StatusCode::UNAUTHORIZED, long.as_bytes(), &[]).unwrap_err();
        assert!(error.to_string().len() < 500);
    }

    #[test]
    fn a_response_that_repeats_the_credential_is_rejected_and_never_shown() {
        let mut bearer = HeaderValue::from_static("Bearer xs_exec_secret");
        bearer.set_sensitive(true);
        let headers =
            [(hyper::header::AUTHORIZATION, bearer), (ACCEPT, "*/*,text/plain".parse().unwrap())];
        let secrets = secrets(&headers);
        assert_eq!(secrets, ["xs_exec_secret"]);
        for body in [
            r#"{"valid":true,"note":"for xs_exec_secret only"}"#,
            r#"{"valid":true,"more":[{"xs_exec_secret":1}]}"#,
            r#"{"valid":true,"note":"xs_exec_\u0073ecret"}"#,
        ] {
            let answer =
                decode_response::<ValidateResponse>(StatusCode::OK, body.as_bytes(), &secrets);
            let error = answer.unwrap_err().to_string();
            assert!(error.ends_with("it repeats the credential"), "{error}");
        }
        let body = br#"{"error":{"code":"xs_exec_\u0073ecret","message":"no: xs_exec_secret"}}"#;
        for status in [StatusCode::FORBIDDEN, StatusCode::BAD_GATEWAY] {
            let error = decode_response::<()>(status, body, &secrets).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn a_decoding_error_never_quotes_the_response() {
        for (body, says) in [
            ("<html>hush", "it is not JSON"),
            (r#"{"valid":"hush"}"#, "a member has the wrong type"),
            (r#"{"hush":1}"#, "`valid` is missing"),
            (r#""hush""#, "a member has the wrong type"),
        ] {
            let answer = decode_response::<ValidateResponse>(StatusCode::OK, body.as_bytes(), &[]);
            let error = answer.unwrap_err().to_string();
            assert_eq!(error, format!("invalid response from the registry: {says}"));
        }
    }
}
