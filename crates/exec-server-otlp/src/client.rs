//! Requests to the collector, on the transport that everything else here uses.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_transport::causes::chain;
use exec_server_transport::dial::DialOptions;
use exec_server_transport::http_exchange::{ExchangeError, fetch};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use opentelemetry_http::{HttpClient, HttpError};
use url::Url;

use crate::headers::Headers;
use crate::settings::Settings;

/// Answers have a few bytes; an error may have a page of text.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Longer pauses that a collector asks for are cut, so that telemetry comes back within minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Sends requests; the exporter of spans uses it as its HTTP client.
#[derive(Debug)]
pub(crate) struct Client {
    headers: Headers,
    dial: DialOptions,
    timeout: Duration,
    is_compressed: bool,
    /// Why the last request failed: the exporter of spans passes on a text only.
    failure: Mutex<Option<Failure>>,
}

/// Why the collector did not accept a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Without anything that the collector could have repeated.
    pub reason: String,
    /// Whether the same request can succeed later.
    pub is_transient: bool,
    /// The pause that the collector asks for.
    pub retry_after: Option<Duration>,
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            headers: settings.headers.clone(),
            dial: settings.dial.clone(),
            timeout: settings.timeout,
            is_compressed: settings.is_compressed,
            failure: Mutex::default(),
        }
    }

    /// The failure of the last request that the exporter of spans made.
    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().expect("no holder panics").take()
    }

    /// Sends a message and returns the answer of the collector.
    pub(crate) async fn post(&self, url: &Url, message: Vec<u8>) -> Result<Bytes, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let body = if self.is_compressed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            gzip(&message)
        } else {
            message
        };
        let response = self.send(url, headers, body.into()).await?;
        Ok(response.into_body())
    }

    async fn send(
        &self,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Bytes>, Failure> {
        let mut request = Request::post(url.path())
            .body(Full::new(body))
            .map_err(|_| Failure::permanent("the path of the URL is not valid".to_owned()))?;
        *request.headers_mut() = headers;
        request.headers_mut().extend(self.headers.current().map_err(Failure::transient)?);
        let exchange = fetch(url, &self.dial, request, MAX_ANSWER_BYTES);
        let response = match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answered) => answered.map_err(|error| Failure::of_exchange(&error))?,
            Err(_) => {
                return Err(Failure::transient(format!("no answer within {:?}", self.timeout)));
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        Err(Failure::of_status(response.status(), response.headers()))
    }
}

impl Failure {
    fn transient(reason: String) -> Self {
        Self { reason, is_transient: true, retry_after: None }
    }

    fn of_exchange(error: &ExchangeError) -> Self {
        Self::transient(match error {
            ExchangeError::Unreachable(cause) => {
                format!("the collector cannot be reached: {}", chain(cause))
            }
            ExchangeError::Broken(cause) => {
                format!("the connection to the collector failed: {}", chain(cause))
            }
        })
    }

    fn permanent(reason: String) -> Self {
        Self { reason, is_transient: false, retry_after: None }
    }

    /// The statuses that OTLP names as those to retry.
    fn of_status(status: StatusCode, headers: &HeaderMap) -> Self {
        let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let hint = match status {
            StatusCode::NOT_FOUND => " (is it the port for HTTP, usually 4318?)",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                " (check the headers: OTEL_EXPORTER_OTLP_HEADERS, --otlp-headers-file)"
            }
            _ => "",
        };
        Self {
            reason: format!("the collector answered {}{hint}", status.as_u16()),
            is_transient: matches!(status.as_u16(), 429 | 502 | 503 | 504),
            retry_after: seconds.map(Duration::from_secs).map(|pause| pause.min(LONGEST_PAUSE)),
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let url = Url::parse(&head.uri.to_string())?;
        let sent = self.send(&url, head.headers, body).await;
        sent.map_err(|failure| {
            *self.failure.lock().expect("no holder panics") = Some(failure.clone());
            escape_untrusted(&failure.reason, 200).into()
        })
    }
}

fn gzip(message: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(message).expect("a vector takes everything");
    encoder.finish().expect("a vector takes everything")
}
