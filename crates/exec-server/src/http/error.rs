//! How an exchange fails; no text here carries more of a URL than host and port.

use std::io;
use std::time::Duration;

use exec_server_protocol::http::HttpErrorKind;
use exec_server_protocol::limits::MAX_HTTP_REDIRECTS;
use exec_server_transport::causes::chain;

use super::carrier::is_endless_head;

/// How an exchange fails.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// It took too long.
    #[error("http/request failed: timed out after {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The name has no address.
    #[error("http/request failed: could not find the address of {host}: {source}")]
    Dns {
        /// The name.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody took the connection.
    #[error("http/request failed: could not connect to {place}: {source}")]
    Connect {
        /// Host and port.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// The proxy would not connect us.
    #[error("http/request failed: the proxy {place} {reason}")]
    Proxy {
        /// Host and port of the proxy.
        place: String,
        /// What it did.
        reason: String,
    },
    /// The connection ended before there was an answer.
    #[error("http/request failed: {place} closed the connection without an answer: {}", chain(.source))]
    NoAnswer {
        /// Host and port.
        place: String,
        /// What happened.
        source: hyper::Error,
    },
    /// There is nobody to trust.
    #[error("http/request failed: no trusted certificates could be loaded: {0}")]
    Roots(String),
    /// The other side is not to be trusted, or does not speak TLS.
    #[error("http/request failed: no TLS connection to {place}: {source}")]
    Tls {
        /// Host and port.
        place: String,
        /// What is wrong.
        source: io::Error,
    },
    /// A circle, or nearly one.
    #[error("http/request failed: too many redirects (more than {MAX_HTTP_REDIRECTS})")]
    TooManyRedirects,
    /// A redirect to where a request cannot go.
    #[error("http/request failed: {0}")]
    Redirect(String),
    /// The answer is no HTTP.
    #[error("http/request failed: the answer of {place} is not valid HTTP: {}", chain(.source))]
    Malformed {
        /// Host and port.
        place: String,
        /// What is wrong.
        source: hyper::Error,
    },
    /// The answer is HTTP, but says two things at once or what nobody asked for.
    #[error("http/request failed: the answer of {place} is not valid HTTP: {reason}")]
    Improper {
        /// Host and port.
        place: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The head of the answer does not end.
    #[error("http/request failed: the headers of the answer are too large")]
    HeadTooLarge,
    /// The body of the answer broke off.
    #[error("failed to read http/request response body: {}", chain(.0))]
    Body(#[source] hyper::Error),
    /// The body of the request was not given to its end.
    #[error("http/request failed: the body of the request was not sent completely")]
    BodyNotSent,
    /// The body is longer than the client wants.
    #[error("the body of the answer is longer than the {0} bytes of maxBodyBytes")]
    OverLimit(u64),
    /// The body is longer than a reply may be.
    #[error(
        "the body of the answer does not fit into one reply of at most {0} bytes; ask with streamResponse"
    )]
    OverReply(u64),
    /// Too many long answers at once.
    #[error(
        "too many bytes of buffered answers are held for this connection; ask with streamResponse"
    )]
    OverBudget,
    /// `http/cancel`.
    #[error("the request was cancelled")]
    Cancelled,
    /// A place that no request may go to.
    #[error("http/request to {place} is not allowed: {reason}")]
    Forbidden {
        /// Host and port.
        place: String,
        /// By which rule.
        reason: &'static str,
    },
}

impl HttpError {
    /// The word for it on the wire.
    pub fn kind(&self) -> HttpErrorKind {
        match self {
            Self::Timeout(_) => HttpErrorKind::Timeout,
            Self::Dns { .. } => HttpErrorKind::Dns,
            Self::Connect { .. } | Self::Proxy { .. } | Self::NoAnswer { .. } => {
                HttpErrorKind::Connect
            }
            Self::Roots(_) | Self::Tls { .. } => HttpErrorKind::Tls,
            Self::TooManyRedirects | Self::Redirect(_) => HttpErrorKind::Redirect,
            Self::Malformed { .. } | Self::Improper { .. } | Self::Body(_) | Self::BodyNotSent => {
                HttpErrorKind::Body
            }
            Self::HeadTooLarge | Self::OverLimit(_) | Self::OverReply(_) | Self::OverBudget => {
                HttpErrorKind::TooLarge
            }
            Self::Cancelled => HttpErrorKind::Cancelled,
            Self::Forbidden { .. } => HttpErrorKind::Forbidden,
        }
    }

    /// The system's own error, if it has one.
    pub fn system(&self) -> Option<&io::Error> {
        match self {
            Self::Connect { source, .. } => Some(source),
            _ => None,
        }
    }

    /// What hyper says about the time before the head of an answer.
    pub fn before_answer(place: String, source: hyper::Error) -> Self {
        if source.is_parse_too_large() || is_endless_head(&source) {
            Self::HeadTooLarge
        } else if source.is_parse() {
            Self::Malformed { place, source }
        } else if source.is_user() || source.is_body_write_aborted() {
            Self::BodyNotSent
        } else {
            Self::NoAnswer { place, source }
        }
    }
}
