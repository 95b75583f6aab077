//! What a registry is asked: a small JSON request over HTTP each, never redirected.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::registry::{
    ConnectRequest, ConnectResponse, PublicKey, RegistryFailureDetail, SECURITY_PROFILE, codes,
};
use exec_server_protocol::visible::visible;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::dial::{DialError, DialOptions};
use crate::http_exchange::{ExchangeError, exchange};

/// More than any answer of a registry has.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// As much of what a registry says goes into a message.
const MAX_MESSAGE_CHARS: usize = 400;
/// The codes that registries use are shorter.
const MAX_CODE_CHARS: usize = 64;
/// A shorter credential is in any text by chance.
const MIN_SECRET_BYTES: usize = 8;

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
        let parsed = Url::parse(base.trim());
        let base = parsed.map_err(|_| RegistryUrlError(visible(base, MAX_MESSAGE_CHARS)))?;
        let is_usable = matches!(base.scheme(), "http" | "https") && base.host().is_some();
        let wrong = || RegistryUrlError(without_secrets(base.clone()).into());
        if is_usable { Ok(Self { base, dial, timeout }) } else { Err(wrong()) }
    }

    /// Whether nobody on the way can read what is sent there.
    pub fn is_secure(&self) -> bool {
        is_secure(&self.base)
    }

    /// What people call it: its URL without anything secret, and always the same for the same place.
    pub fn name(&self) -> String {
        without_secrets(self.base.clone()).as_str().trim_end_matches('/').to_owned()
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
        understand(status, &body, &secrets(headers))
    }
}

/// The credentials in these headers, without what stands before them.
fn secrets(headers: &[Header]) -> Vec<&str> {
    let sensitive = headers.iter().filter(|(_, value)| value.is_sensitive());
    let texts = sensitive.filter_map(|(_, value)| value.to_str().ok());
    let words = texts.map(|text| text.rsplit(' ').next().unwrap_or(text));
    words.filter(|word| word.len() >= MIN_SECRET_BYTES).collect()
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

/// What an answer says. It may come from anywhere and end up on a terminal or in a log, so it is not shown as it is, and a
/// credential that it repeats is not shown at all.
fn understand<T: DeserializeOwned>(
    status: StatusCode,
    body: &[u8],
    secrets: &[&str],
) -> Result<T, RegistryError> {
    let is_secret = |text: &str| secrets.iter().any(|secret| text.contains(secret));
    if status.is_success() {
        let wrong = |what: &str| RegistryError::Malformed(what.to_owned());
        let answer: Value = serde_json::from_slice(body).map_err(|_| wrong("it is not JSON"))?;
        // Both as it came and as it is read, since JSON has many ways to write the same text.
        if is_secret(&String::from_utf8_lossy(body)) || has_text(&answer, &is_secret) {
            return Err(wrong("it repeats the credential"));
        }
        return serde_json::from_value(answer).map_err(|error| wrong(&misfit(&error)));
    }
    let RegistryFailureDetail { code, message } = RegistryFailureDetail::parse(body);
    let shown = |text: String, max| (!is_secret(&text)).then(|| visible(&text, max));
    let code = code.filter(|code| !code.is_empty()).and_then(|code| shown(code, MAX_CODE_CHARS));
    let message = message.and_then(|text| shown(text, MAX_MESSAGE_CHARS)).unwrap_or_default();
    Err(match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            RegistryError::Auth { status: status.as_u16(), message }
        }
        _ => RegistryError::Refused { status: status.as_u16(), code, message },
    })
}

/// Whether any text in an answer is like this.
fn has_text(answer: &Value, is_so: &impl Fn(&str) -> bool) -> bool {
    match answer {
        Value::String(text) => is_so(text),
        Value::Array(values) => values.iter().any(|value| has_text(value, is_so)),
        Value::Object(members) => {
            members.iter().any(|(name, value)| is_so(name) || has_text(value, is_so))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What is wrong with an answer, without what it says: the parser would quote it.
fn misfit(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.strip_prefix("missing field ") {
        Some(name) => format!("{name} is missing"),
        None => "something in it has another form".to_owned(),
    }
}

/// A URL as it may be shown.
fn without_secrets(mut url: Url) -> Url {
    // One without a host has none of these.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.set_fragment(None);
    url
}

/// Whether an environment's name stays one part of a path: however dots are encoded, some would walk with these.
pub fn is_path_segment(environment_id: &str) -> bool {
    !environment_id.is_empty() && !matches!(environment_id, "." | "..")
}

/// Whether nobody on the way to a URL can read what is sent there: by encryption, or because it does not leave the machine.
pub fn is_secure(url: &Url) -> bool {
    url.has_host() && (url.scheme() == "https" || url.scheme() == "http" && is_loopback(url))
}

/// Whether a URL leads to this machine, whatever a name server says.
pub(crate) fn is_loopback(url: &Url) -> bool {
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
    use exec_server_protocol::registry::ValidateResponse;

    use super::*;

    #[test]
    fn a_registry_has_one_name() {
        for url in ["https://Meet.example.org", "https://me:hush@meet.example.org:443/?a=hush#b"] {
            let registry = Registry::new(url, DialOptions::default(), Duration::ZERO).unwrap();
            assert_eq!(registry.name(), "https://meet.example.org");
        }
        let registry = Registry::new("http://h:1/a/", DialOptions::default(), Duration::ZERO);
        assert_eq!(registry.unwrap().name(), "http://h:1/a");
        let wrong = registry_name("ws://me:hush@h/?hush").unwrap_err().to_string();
        assert!(wrong.contains("`ws://h/`") && !wrong.contains("hush"), "{wrong}");
    }

    #[test]
    fn what_passes_is_told_from_what_is_final() {
        let may_pass = |status: u16, code: &str| {
            let body = format!(r#"{{"error":{{"code":"{code}"}}}}"#);
            let status = StatusCode::from_u16(status).unwrap();
            understand::<()>(status, body.as_bytes(), &[]).unwrap_err().may_pass()
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

    #[test]
    fn a_name_stays_one_part_of_the_path() {
        let encoded = utf8_percent_encode("../../evil?x=1#y%2f\\ ü", SEGMENT).to_string();
        assert_eq!(encoded, "..%2F..%2Fevil%3Fx=1%23y%252f%5C%20%C3%BC");
        assert!(is_path_segment("...") && is_path_segment("a.b"));
        assert!(!is_path_segment(".") && !is_path_segment("..") && !is_path_segment(""));
    }

    #[test]
    fn what_a_registry_says_is_made_fit_to_be_shown() {
        let code = "c".repeat(100);
        let body =
            serde_json::json!({"error": {"code": code, "message": "\u{1b}[2J\r\n\u{202e}hi"}});
        let status = StatusCode::IM_A_TEAPOT;
        let error = understand::<()>(status, body.to_string().as_bytes(), &[]).unwrap_err();
        let said =
            format!("the registry answered 418 {}…: \\u{{1b}}[2J\\r\\n\\u{{202e}}hi", &code[..64]);
        assert_eq!(error.to_string(), said);
        let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "x".repeat(100_000));
        let error = understand::<()>(StatusCode::UNAUTHORIZED, long.as_bytes(), &[]).unwrap_err();
        assert!(error.to_string().len() < 500);
    }

    #[test]
    fn an_answer_that_repeats_the_credential_is_refused_and_never_shown() {
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
            let answer = understand::<ValidateResponse>(StatusCode::OK, body.as_bytes(), &secrets);
            let error = answer.unwrap_err().to_string();
            assert!(error.ends_with("it repeats the credential"), "{error}");
        }
        let body = br#"{"error":{"code":"xs_exec_\u0073ecret","message":"no: xs_exec_secret"}}"#;
        for status in [StatusCode::FORBIDDEN, StatusCode::BAD_GATEWAY] {
            let error = understand::<()>(status, body, &secrets).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_said_without_quoting_it() {
        for (body, says) in [
            ("<html>hush", "it is not JSON"),
            (r#"{"valid":"hush"}"#, "something in it has another form"),
            (r#"{"hush":1}"#, "`valid` is missing"),
            (r#""hush""#, "something in it has another form"),
        ] {
            let answer = understand::<ValidateResponse>(StatusCode::OK, body.as_bytes(), &[]);
            let error = answer.unwrap_err().to_string();
            assert_eq!(error, format!("the registry's answer is not usable: {says}"));
        }
    }
}
