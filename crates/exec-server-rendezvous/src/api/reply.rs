//! Responses and error codes of the API.

use exec_server_relay::registry_types::{RegistryFailure, RegistryFailureDetail, codes};
use exec_server_transport::http_front::{Reply, json, with_allow};
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};

use crate::admin::AdminError;
use crate::store::StoreError;

/// Why a request is rejected; the peer's next step depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No bearer token.
    NoToken,
    /// The token is unknown, expired or revoked.
    BadToken,
    /// The token is for another role or environment.
    Forbidden,
    /// The token could not be looked up. Nothing was written.
    CannotAuthenticate,
    /// The request is malformed.
    Invalid(String),
    /// The request body timed out. Nothing was written.
    Slow,
    /// The method is not supported; these are.
    Method(&'static [Method]),
    /// Unknown path or id.
    NotFound,
    /// No executor is attached.
    Offline,
    /// The environment has reached its limit of streams.
    Busy,
    /// The token has too many unused authorizations.
    TooMany,
    /// Another executor is attached, and the policy is first-wins.
    Taken,
    /// A failed write. Nothing was written.
    Conflict,
    /// The rendezvous is shutting down. Nothing was written.
    Draining,
    /// An internal error.
    Internal,
}

impl Refusal {
    fn parts(&self) -> (StatusCode, &'static str, &str) {
        match self {
            Self::NoToken => {
                (StatusCode::UNAUTHORIZED, "missing_token", "a bearer token is required")
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
                "tokens cannot be looked up at the moment; retry later",
            ),
            Self::Invalid(why) => (StatusCode::BAD_REQUEST, "invalid_request", why),
            Self::Slow => (
                StatusCode::SERVICE_UNAVAILABLE,
                codes::REGISTRATION_CONFLICT,
                "the request timed out; nothing was written; retry",
            ),
            Self::Method(_) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "method not allowed; see the Allow header",
            ),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "unknown path or id"),
            Self::Offline => {
                (StatusCode::CONFLICT, codes::ENVIRONMENT_OFFLINE, "no executor is attached")
            }
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "environment_busy",
                "the environment has reached its limit of streams; retry later",
            ),
            Self::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_authorizations",
                "the token has too many unused authorizations; retry later",
            ),
            Self::Taken => (
                StatusCode::CONFLICT,
                "environment_in_use",
                "another executor is attached, and the policy of this environment is first-wins",
            ),
            Self::Conflict => (
                StatusCode::SERVICE_UNAVAILABLE,
                codes::REGISTRATION_CONFLICT,
                "nothing was written; retry",
            ),
            Self::Draining => (
                StatusCode::SERVICE_UNAVAILABLE,
                codes::REGISTRATION_CONFLICT,
                "the rendezvous is shutting down; retry",
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "internal error; see the log of the rendezvous",
            ),
        }
    }

    /// The store failed before anything was written; clients retry on this code and give up on others.
    pub fn unwritten(error: &StoreError) -> Self {
        tracing::error!(%error, "the store failed; nothing was written");
        Self::Conflict
    }

    /// Error code for responses, logs and metrics.
    pub fn code(&self) -> &'static str {
        self.parts().1
    }

    /// The error response.
    pub fn into_reply(self) -> Reply {
        let (status, code, message) = self.parts();
        let (code, message) = (Some(code.to_owned()), Some(message.to_owned()));
        let body = RegistryFailure { error: RegistryFailureDetail { code, message } };
        let mut reply = json(status, &body);
        match &self {
            Self::NoToken | Self::BadToken => {
                reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                reply
            }
            Self::Method(allowed) => with_allow(reply, allowed),
            _ => reply,
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            error @ (StoreError::Unwritten(_) | StoreError::Unreachable { .. }) => {
                Self::unwritten(&error)
            }
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
