//! Errors of an exchange; messages contain no part of a URL except scheme, host and port.

use std::io;
use std::time::Duration;

use exec_server_protocol::http::HttpErrorKind;
use exec_server_protocol::limits::MAX_HTTP_REDIRECTS;
use exec_server_transport::causes::chain;

use super::byte_stream::is_endless_head;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The timeout expired.
    #[error("http/request failed: timed out after {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The name could not be resolved.
    #[error("http/request failed: could not find the address of {host}: {cause}")]
    Dns {
        /// The name.
        host: String,
        /// The error of the system call.
        cause: io::Error,
    },
    /// No address accepted a connection.
    #[error("http/request failed: could not connect to {origin}: {cause}")]
    Connect {
        /// Host and port.
        origin: String,
        /// The error of the system call.
        cause: io::Error,
    },
    /// The proxy cannot be used, or did not open a tunnel.
    #[error("http/request failed: the proxy {origin} {reason}")]
    Proxy {
        /// Host and port of the proxy.
        origin: String,
        /// A predicate that completes the message.
        reason: String,
    },
    /// The connection closed before a response.
    #[error("http/request failed: {origin} closed the connection without an answer: {}", chain(.cause))]
    NoAnswer {
        /// Host and port.
        origin: String,
        /// The error of the connection.
        cause: hyper::Error,
    },
    /// The trusted certificates could not be loaded.
    #[error("http/request failed: no trusted certificates could be loaded: {0}")]
    Roots(String),
    /// The TLS handshake failed, or the host cannot be a certificate name.
    #[error("http/request failed: no TLS connection to {origin}: {cause}")]
    Tls {
        /// Host and port.
        origin: String,
        /// The error of the handshake.
        cause: io::Error,
    },
    /// The redirects exceed their limit; they may form a loop.
    #[error("http/request failed: too many redirects (more than {MAX_HTTP_REDIRECTS})")]
    TooManyRedirects,
    /// A redirect that cannot be followed.
    #[error("http/request failed: {0}")]
    Redirect(String),
    /// The response is not HTTP.
    #[error("http/request failed: the answer of {origin} is not valid HTTP: {}", chain(.cause))]
    Malformed {
        /// Host and port.
        origin: String,
        /// The error of the parser.
        cause: hyper::Error,
    },
    /// The response is HTTP, but contradictory or unsolicited.
    #[error("http/request failed: the answer of {origin} is not valid HTTP: {reason}")]
    Improper {
        /// Host and port.
        origin: String,
        /// Which rule the response violates.
        reason: &'static str,
    },
    /// The response head exceeds its limit.
    #[error("http/request failed: the headers of the answer are too large")]
    HeadTooLarge,
    /// The response body ended early or is malformed.
    #[error("failed to read http/request response body: {}", chain(.0))]
    Body(hyper::Error),
    /// The request body ended early.
    #[error("http/request failed: the body of the request was not sent completely")]
    BodyNotSent,
    /// The body exceeds `maxBodyBytes`.
    #[error("the body of the answer is longer than the {0} bytes of maxBodyBytes")]
    OverLimit(u64),
    /// The body exceeds the size of a reply.
    #[error(
        "the body of the answer does not fit into one reply of at most {0} bytes; ask with streamResponse"
    )]
    OverReply(u64),
    /// Too many buffered responses on this connection.
    #[error(
        "too many bytes of buffered answers are held for this connection; ask with streamResponse"
    )]
    OverBudget,
    /// `http/cancel`.
    #[error("the request was cancelled")]
    Cancelled,
    /// The egress policy denies the origin.
    #[error("http/request to {origin} is not allowed: {reason}")]
    Forbidden {
        /// Host and port.
        origin: String,
        /// Which rule denies it.
        reason: &'static str,
    },
}

impl HttpError {
    /// The error kind on the wire.
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

    /// The I/O error of a failed connect.
    pub fn system(&self) -> Option<&io::Error> {
        match self {
            Self::Connect { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// Converts a hyper error from before the response head.
    pub fn before_answer(origin: String, cause: hyper::Error) -> Self {
        if cause.is_parse_too_large() || is_endless_head(&cause) {
            Self::HeadTooLarge
        } else if cause.is_parse() {
            Self::Malformed { origin, cause }
        } else if cause.is_user() || cause.is_body_write_aborted() {
            Self::BodyNotSent
        } else {
            Self::NoAnswer { origin, cause }
        }
    }
}
