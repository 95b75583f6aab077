//! From the params of `http/request` to a request that can be sent; whatever is wrong with it is said before anything
//! is sent.

use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::base64;
use exec_server_protocol::http::{HttpRequestHeader, HttpRequestParams, RedirectPolicy};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHORIZATION, TRANSFER_ENCODING,
};
use hyper::{Method, Request, Uri};
use percent_encoding::percent_decode_str;
use url::{Position, Url};

use super::budget::Budget;
use super::place::Place;
use super::pool::Route;
use super::setup::Proxy;
use super::upload::{Chunks, RequestBody};
use crate::errors::RequestError;

/// A request that can be sent, also more than once.
#[derive(Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// Where it goes; without user info.
    pub url: Url,
    /// Host and port of the URL.
    pub place: Place,
    /// The headers of the client, and what it left to us.
    pub headers: HeaderMap,
    /// Headers with secrets of this machine.
    pub secret_headers: Vec<HeaderName>,
    /// The body.
    pub body: OutgoingBody,
    /// How long the exchange may take.
    pub timeout: Option<Duration>,
    /// What becomes of an answer that points elsewhere.
    pub redirects: RedirectPolicy,
    /// How long the body of the answer may be.
    pub max_body_bytes: Option<u64>,
}

/// The body of a request before it is sent.
#[derive(Debug)]
pub enum OutgoingBody {
    /// None.
    None,
    /// All of it.
    Whole(Bytes),
    /// The client sends it; gone once it is on its way.
    Streamed(Option<Chunks>),
}

/// How the body of a request was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It is part of the params, or there is none.
    Whole,
    /// It follows, and is perhaps this long.
    Streamed(Option<u64>),
}

impl Outgoing {
    /// Checks everything that can be wrong with params; a body counts against the budget while it is in memory.
    pub fn new(
        params: HttpRequestParams,
        budget: &Budget,
    ) -> Result<(Self, Announced), RequestError> {
        let method = Method::from_bytes(params.method.as_bytes())
            .map_err(|error| invalid(format!("http/request method is invalid: {error}")))?;
        let url = Url::parse(&params.url)
            .map_err(|error| invalid(format!("http/request url is invalid: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            let scheme = url.scheme();
            let reason = format!("http/request only supports http and https URLs, got {scheme}");
            return Err(invalid(reason));
        }
        if params.stream_body && params.body_base64.is_some() {
            return Err(invalid("http/request takes bodyBase64 or streamBody, not both"));
        }
        let place = Place::of(&url).ok_or_else(|| invalid("http/request url has no host"))?;
        let (headers, secret_headers) = headers(&params.headers)?;
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
            url,
            place,
            headers,
            secret_headers,
            body,
            timeout: params.timeout_ms.map(Duration::from_millis),
            redirects: params.redirect_policy,
            max_body_bytes: params.max_body_bytes,
        };
        let announced = outgoing.announce_body()?;
        outgoing.take_user_info();
        outgoing.headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if outgoing.url[..Position::AfterQuery].parse::<Uri>().is_err() {
            return Err(invalid("http/request url cannot be sent"));
        }
        Ok((outgoing, announced))
    }

    /// Moves user info from the URL into a header, unless there is one already.
    pub fn take_user_info(&mut self) {
        let (user, password) = (self.url.username(), self.url.password());
        if !user.is_empty() || password.is_some() {
            let mut text: Vec<u8> = percent_decode_str(user).collect();
            text.push(b':');
            text.extend(percent_decode_str(password.unwrap_or_default()));
            let value = HeaderValue::from_str(&format!("Basic {}", base64::encode(&text)))
                .expect("base64 is a header value");
            self.headers.entry(AUTHORIZATION).or_insert(value);
        }
        // Both can only fail for URLs without a host.
        let _ = self.url.set_username("");
        let _ = self.url.set_password(None);
    }

    /// Whether it can be sent again.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self.body, OutgoingBody::Streamed(_))
    }

    /// Which connection takes it.
    pub fn route(&self, proxy: Option<&Proxy>) -> Route {
        match proxy {
            Some(proxy) if !self.place.is_tls => Route::Proxy(proxy.place.clone()),
            _ => Route::To(self.place.clone()),
        }
    }

    /// The request itself.
    pub fn prepare(&mut self, proxy: Option<&Proxy>) -> Result<Request<RequestBody>, ()> {
        let proxy = proxy.filter(|_| !self.place.is_tls);
        let body = match &mut self.body {
            OutgoingBody::None => RequestBody::None,
            OutgoingBody::Whole(bytes) => RequestBody::Whole(Some(bytes.clone())),
            OutgoingBody::Streamed(chunks) => RequestBody::Streamed(chunks.take().ok_or(())?),
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.target(proxy)?;
        let mut headers = HeaderMap::with_capacity(self.headers.len() + 2);
        if !self.headers.contains_key(HOST) {
            let host = HeaderValue::from_str(&self.place.authority()).map_err(|_| ())?;
            headers.insert(HOST, host);
        }
        headers.extend(self.headers.clone());
        if let Some(authorization) = proxy.and_then(|proxy| proxy.authorization.clone()) {
            headers.entry(PROXY_AUTHORIZATION).or_insert(authorization);
        }
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// What stands behind the method: the whole URL for a proxy, else path and query.
    fn target(&self, proxy: Option<&Proxy>) -> Result<Uri, ()> {
        let text = match proxy {
            Some(_) => &self.url[..Position::AfterQuery],
            None => &self.url[Position::BeforePath..Position::AfterQuery],
        };
        text.parse().map_err(|_| ())
    }

    /// Says how long the body is; what the client says about it must be true.
    fn announce_body(&mut self) -> Result<Announced, RequestError> {
        let is_chunked = self.headers.contains_key(TRANSFER_ENCODING);
        let mut encodings = self.headers.get_all(TRANSFER_ENCODING).iter();
        if !encodings.all(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked")) {
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

/// More than any server takes.
const MAX_HEADERS: usize = 1000;

/// The headers in their order, and the names of those with a value of this machine.
fn headers(given: &[HttpRequestHeader]) -> Result<(HeaderMap, Vec<HeaderName>), RequestError> {
    if given.len() > MAX_HEADERS {
        return Err(invalid(format!("http/request takes at most {MAX_HEADERS} headers")));
    }
    let (mut headers, mut secret) = (HeaderMap::with_capacity(given.len() + 4), Vec::new());
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

/// Variables that are nobody's business but this machine's.
const PROTECTED: [&str; 19] = [
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN",
    "EXEC_SERVER_ADMIN_TOKEN",
    "EXEC_SERVER_REMOTE_TOKEN",
    "EXEC_SERVER_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
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
    if PROTECTED.iter().any(|protected| protected.eq_ignore_ascii_case(variable)) {
        return Err(invalid(format!(
            "{about} cannot use executor environment variable {variable}"
        )));
    }
    // The system would panic at names that no variable can have.
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
