//! Answers and refusals, as peers of this protocol understand them.

use exec_server_protocol::registry::{RegistryFailure, RegistryFailureDetail, codes};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;

use crate::admin::AdminError;
use crate::store::StoreError;

/// An answer.
pub type Reply = Response<Full<Bytes>>;

/// Why a request is not done; what a peer does next depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No bearer token came with it.
    NoToken,
    /// The token is unknown, expired or revoked.
    BadToken,
    /// The token is for something else.
    Forbidden,
    /// Nobody can say whether the token is good. Nothing was written.
    CannotAuthenticate,
    /// The request cannot be understood.
    Invalid(String),
    /// The request did not come to its end in time. Nothing was written.
    Slow,
    /// Another method is meant.
    Method(&'static [Method]),
    /// There is no such thing.
    NotFound,
    /// No executor is attached.
    Offline,
    /// The environment has as many harnesses as it may have.
    Busy,
    /// The token has too many authorizations that nobody used.
    TooMany,
    /// Another executor is there, and it keeps its place.
    Taken,
    /// Another registration came in between, or the store cannot be written. Nothing was written.
    Conflict,
    /// The rendezvous is about to stop. Nothing was written.
    Draining,
    /// Something of ours failed.
    Internal,
}

impl Refusal {
    fn parts(&self) -> (StatusCode, &'static str, &str) {
        match self {
            Self::NoToken => {
                (StatusCode::UNAUTHORIZED, "missing_token", "a bearer token is needed")
            }
            Self::BadToken => (
                StatusCode::UNAUTHORIZED,
                "invalid_token",
                "the token is unknown, expired or revoked",
            ),
            Self::Forbidden => (
                StatusCode::FORBIDDEN,
                "forbidden",
                "the token is for another role or another environment",
            ),
            Self::CannotAuthenticate => (
                StatusCode::BAD_GATEWAY,
                codes::AUTHENTICATION_SERVICE_UNAVAILABLE,
                "tokens cannot be looked up for the moment",
            ),
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid_request", why),
            Self::Slow => (
                StatusCode::SERVICE_UNAVAILABLE,
                codes::REGISTRATION_CONFLICT,
                "the request took too long; nothing was written; ask again",
            ),
            Self::Method(_) => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "another method is meant")
            }
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "there is no such thing here"),
            Self::Offline => {
                (StatusCode::CONFLICT, codes::ENVIRONMENT_OFFLINE, "no executor is attached")
            }
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "environment_busy",
                "the environment has as many streams as it may have",
            ),
            Self::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_authorizations",
                "too many connections were asked for and not made",
            ),
            Self::Taken => (
                StatusCode::CONFLICT,
                "environment_in_use",
                "another executor is attached, and this environment lets the first one win",
            ),
            Self::Conflict => (
                StatusCode::SERVICE_UNAVAILABLE,
                codes::REGISTRATION_CONFLICT,
                "nothing was written; ask again",
            ),
            Self::Draining => (
                StatusCode::SERVICE_UNAVAILABLE,
                codes::REGISTRATION_CONFLICT,
                "the rendezvous is stopping; ask again",
            ),
            Self::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", "something went wrong here")
            }
        }
    }

    /// The store failed before anything was written: peers that would give up on any other answer ask again on this.
    pub fn unwritten(error: &StoreError) -> Self {
        tracing::error!(%error, "the store failed; nothing was written");
        Self::Conflict
    }

    /// The word for it, in answers, logs and metrics.
    pub fn code(&self) -> &'static str {
        self.parts().1
    }

    /// The refusal as an answer.
    pub fn into_reply(self) -> Reply {
        let (status, code, message) = self.parts();
        let (code, message) = (Some(code.to_owned()), Some(message.to_owned()));
        let body = RegistryFailure { error: RegistryFailureDetail { code, message } };
        let mut reply = json(status, &body);
        match &self {
            Self::NoToken | Self::BadToken => {
                reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Method(allowed) => {
                let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
                let names = HeaderValue::try_from(names.join(",")).expect("methods are tokens");
                reply.headers_mut().insert(ALLOW, names);
            }
            _ => {}
        }
        reply
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::Conflict,
            error @ StoreError::Unwritten(_) => Self::unwritten(&error),
            error => {
                tracing::error!(%error, "the store failed");
                Self::Internal
            }
        }
    }
}

impl From<AdminError> for Refusal {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Invalid(why) => Self::Invalid(why.to_owned()),
            AdminError::Store(error) => error.into(),
        }
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let body = serde_json::to_vec(body).expect("plain data can be written");
    let mut reply = Response::new(Full::from(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// A plain answer.
pub fn text(status: StatusCode, body: impl Into<String>) -> Reply {
    let mut reply = Response::new(Full::from(body.into()));
    *reply.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}
