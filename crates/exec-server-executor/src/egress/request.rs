//! Builds the outgoing request from the params of `http/request`; all params are validated before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_os::env_policy::NEVER_PASSED;
use exec_server_protocol::http::{HttpRequestHeader, HttpRequestParams, RedirectPolicy};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHORIZATION, TRANSFER_ENCODING,
};
use hyper::{Method, Request};
use url::Position;

use super::budget::Budget;
use super::pool::PoolKey;
use super::setup::Proxy;
use super::target::{LastTarget, Target};
use super::upload::{Chunks, RequestBody};
use crate::errors::RequestError;

/// A validated request; it can be sent more than once unless its body is streamed.
#[derive(Debug)]
pub struct Outgoing {
    pub method: Method,
    pub target: Arc<Target>,
    /// The client's headers and the defaults for missing ones.
    pub headers: HeaderMap,
    /// Headers with values from this machine's environment.
    pub secret_headers: Vec<HeaderName>,
    pub body: OutgoingBody,
    /// The limit of the whole exchange.
    pub timeout: Option<Duration>,
    pub redirects: RedirectPolicy,
    /// The limit of the response body.
    pub max_body_bytes: Option<u64>,
}

/// The body of a request before it is sent.
#[derive(Debug)]
pub enum OutgoingBody {
    None,
    Whole(Bytes),
    /// Sent by the client in chunks; `None` once a request has taken them.
    Streamed(Option<Chunks>),
}

/// How the client provides the request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// In the params, or not at all.
    Whole,
    /// In later chunks, with this content-length if given.
    Streamed(Option<u64>),
}

impl Outgoing {
    /// Validates the params; the body counts against the budget while it is in memory.
    pub fn new(
        params: HttpRequestParams,
        targets: &LastTarget,
        budget: &Budget,
    ) -> Result<(Self, Announced), RequestError> {
        let method = Method::from_bytes(params.method.as_bytes())
            .map_err(|error| invalid(format!("http/request method is invalid: {error}")))?;
        let target =
            targets.read(&params.url).map_err(|error| invalid(format!("http/request {error}")))?;
        if params.stream_body && params.body_base64.is_some() {
            return Err(invalid("http/request takes bodyBase64 or streamBody, not both"));
        }
        let (headers, secret_headers) = headers(&params.headers, &target)?;
        let body = match params.body_base64 {
            Some(body) => {
                let held = budget.hold(body.0).ok_or(RequestError::HttpOverloaded)?;
                OutgoingBody::Whole(held)
            }
            None if params.stream_body => OutgoingBody::Streamed(None),
            None => OutgoingBody::None,
        };
        let mut outgoing = Self {
            method,
            target,
            headers,
            secret_headers,
            body,
            timeout: params.timeout_ms.map(Duration::from_millis),
            redirects: params.redirect_policy,
            max_body_bytes: params.max_body_bytes,
        };
        let announced = outgoing.announce_body()?;
        if let Some(authorization) = &outgoing.target.authorization {
            outgoing.headers.entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        outgoing.headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        Ok((outgoing, announced))
    }

    /// Whether the body can be sent again.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self.body, OutgoingBody::Streamed(_))
    }

    /// The pool key of the connections for this request.
    pub fn pool_key(&self, proxy: Option<&Proxy>) -> PoolKey {
        match proxy {
            Some(proxy) if !self.target.origin.is_tls => PoolKey::Proxy(proxy.origin.clone()),
            _ => PoolKey::To(self.target.origin.clone()),
        }
    }

    /// The hyper request; fails if the streamed body was taken before or the URI is invalid.
    pub fn prepare(&mut self, proxy: Option<&Proxy>) -> Result<Request<RequestBody>, ()> {
        let body = match &mut self.body {
            OutgoingBody::None => RequestBody::None,
            OutgoingBody::Whole(bytes) => RequestBody::Whole(Some(bytes.clone())),
            OutgoingBody::Streamed(chunks) => RequestBody::Streamed(chunks.take().ok_or(())?),
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        *request.uri_mut() = match proxy.filter(|_| !self.target.origin.is_tls) {
            None => self.target.path.clone(),
            Some(proxy) => {
                if let Some(authorization) = &proxy.authorization {
                    let own = request.headers_mut().entry(PROXY_AUTHORIZATION);
                    own.or_insert_with(|| authorization.clone());
                }
                // A proxy needs the absolute form of the URL.
                self.target.url[..Position::AfterQuery].parse().map_err(|_| ())?
            }
        };
        Ok(request)
    }

    /// Sets the framing headers of the body and rejects given ones that contradict it.
    fn announce_body(&mut self) -> Result<Announced, RequestError> {
        let is_chunked = self.headers.contains_key(TRANSFER_ENCODING);
        let mut encodings = self.headers.get_all(TRANSFER_ENCODING).iter();
        let is_known = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
        if encodings.next().is_some_and(|first| !is_known(first)) || encodings.next().is_some() {
            return Err(invalid("http/request transfer-encoding can only be chunked"));
        }
        let given = given_length(&self.headers)?;
        if is_chunked && given.is_some() {
            let reason = "http/request has both content-length and transfer-encoding";
            return Err(invalid(reason));
        }
        let length = match &self.body {
            OutgoingBody::None => 0,
            OutgoingBody::Whole(bytes) => bytes.len() as u64,
            OutgoingBody::Streamed(_) => {
                if given.is_none() {
                    let chunked = HeaderValue::from_static("chunked");
                    self.headers.insert(TRANSFER_ENCODING, chunked);
                }
                return Ok(Announced::Streamed(given));
            }
        };
        match given {
            Some(given) if given != length => Err(invalid(format!(
                "http/request content-length {given} contradicts the body of {length} bytes"
            ))),
            None if !is_chunked && matches!(self.body, OutgoingBody::Whole(_)) => {
                self.headers.insert(CONTENT_LENGTH, length.into());
                Ok(Announced::Whole)
            }
            _ => Ok(Announced::Whole),
        }
    }
}

fn given_length(headers: &HeaderMap) -> Result<Option<u64>, RequestError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    let is_number = |text: &&str| text.bytes().all(|digit| digit.is_ascii_digit());
    let length = first.to_str().ok().filter(is_number).and_then(|text| text.parse().ok());
    match length {
        Some(length) if lengths.next().is_none() => Ok(Some(length)),
        _ => Err(invalid("http/request content-length must be one number")),
    }
}

/// More than common servers accept.
const MAX_HEADERS: usize = 1000;

/// The headers in their order, with `Host` first if it is missing, and the names of those with a value from this
/// machine's environment.
fn headers(
    given: &[HttpRequestHeader],
    target: &Target,
) -> Result<(HeaderMap, Vec<HeaderName>), RequestError> {
    if given.len() > MAX_HEADERS {
        return Err(invalid(format!("http/request takes at most {MAX_HEADERS} headers")));
    }
    let (mut headers, mut secret) = (HeaderMap::with_capacity(given.len() + 4), Vec::new());
    if !given.iter().any(|header| header.name.eq_ignore_ascii_case(HOST.as_str())) {
        headers.insert(HOST, target.host.clone());
    }
    for header in given {
        let name = HeaderName::from_bytes(header.name.as_bytes())
            .map_err(|error| invalid(format!("http/request header name is invalid: {error}")))?;
        let mut value = header.value.clone().into_bytes();
        if let Some(variable) = &header.value_env_var {
            value.extend(environment_value(name.as_str(), variable)?);
            secret.push(name.clone());
        }
        let mut value = HeaderValue::from_maybe_shared(Bytes::from(value)).map_err(|error| {
            invalid(format!("http/request header value is invalid for {name}: {error}"))
        })?;
        value.set_sensitive(header.value_env_var.is_some());
        headers.append(name, value);
    }
    Ok((headers, secret))
}

/// Variables with credentials that a header must not use, in addition to those that no child process gets.
const PROTECTED: [&str; 10] = [
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "CODEX_CONNECTORS_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

fn environment_value(header: &str, variable: &str) -> Result<Vec<u8>, RequestError> {
    let about = format!("http/request header {header}");
    if NEVER_PASSED
        .iter()
        .chain(&PROTECTED)
        .any(|protected| protected.eq_ignore_ascii_case(variable))
    {
        return Err(invalid(format!(
            "{about} cannot use executor environment variable {variable}"
        )));
    }
    // `var_os` may panic on such names.
    let can_exist = !variable.is_empty() && !variable.contains(['=', '\0']);
    match can_exist.then(|| std::env::var_os(variable)).flatten() {
        None => Err(invalid(format!("{about} requires executor environment variable {variable}"))),
        Some(value) if value.is_empty() => Err(invalid(format!(
            "{about} requires a non-empty executor environment variable {variable}"
        ))),
        Some(value) => Ok(value.into_encoded_bytes()),
    }
}

fn invalid(reason: impl Into<String>) -> RequestError {
    RequestError::InvalidParams(reason.into())
}
