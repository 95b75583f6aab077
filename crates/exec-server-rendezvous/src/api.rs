//! HTTP API of the registry for executors, harnesses and administrators.
//!
//! | module | contains |
//! |---|---|
//! | this file | routing and authentication |
//! | `registry` | register, connect, validate |
//! | `admin` | tokens and environments |
//! | `reply` | responses and error codes |

mod admin;
mod registry;
mod reply;

use exec_server_relay::registry_types::STREAM_ID_HEADER;
use exec_server_transport::http_front::Reply;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::{Method, Request};
use serde::de::DeserializeOwned;

use crate::secrets::sha256;
use crate::server::Rendezvous;
use crate::signed_url::decode_segment;
use crate::store::{Token, TokenRole};

pub use reply::Refusal;

/// A public key has 1.7 kB; every valid body is far below this limit.
const MAX_BODY_BYTES: usize = 32 * 1024;

/// Request id for correlating the peer's log with ours.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// An API route, by path.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    Register(String),
    Connect(String),
    Validate(String),
    Tokens,
    Token(String),
    Environments,
    Environment(String),
    Nodes,
}

impl Route {
    /// Parses a path.
    pub fn find(path: &str) -> Option<Self> {
        let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        Some(match segments[..] {
            ["cloud", "environment", id, "register"] => Self::Register(decode_segment(id)?),
            ["cloud", "environment", id, "connect"] => Self::Connect(decode_segment(id)?),
            ["cloud", "environment", id, "validate"] => Self::Validate(decode_segment(id)?),
            ["admin", "tokens"] => Self::Tokens,
            ["admin", "tokens", id] => Self::Token(decode_segment(id)?),
            ["admin", "environments"] => Self::Environments,
            ["admin", "nodes"] => Self::Nodes,
            ["admin", "environments", id] => Self::Environment(decode_segment(id)?),
            _ => return None,
        })
    }

    /// The environment in the path, if any.
    pub fn environment(&self) -> Option<&str> {
        match self {
            Self::Register(id) | Self::Connect(id) | Self::Validate(id) | Self::Environment(id) => {
                Some(id)
            }
            Self::Tokens | Self::Token(_) | Self::Environments | Self::Nodes => None,
        }
    }

    /// The route's label in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "register",
            Self::Connect(_) => "connect",
            Self::Validate(_) => "validate",
            Self::Tokens
            | Self::Token(_)
            | Self::Environments
            | Self::Environment(_)
            | Self::Nodes => "admin",
        }
    }
}

/// Handles a request.
pub async fn answer(
    rendezvous: &Rendezvous,
    route: Route,
    request: Request<Incoming>,
) -> Result<Reply, Refusal> {
    let asked = Asked { rendezvous, request };
    match route {
        Route::Register(environment) => registry::register(asked, environment).await,
        Route::Connect(environment) => registry::connect(asked, environment).await,
        Route::Validate(environment) => registry::validate(asked, environment).await,
        Route::Tokens => admin::tokens(asked).await,
        Route::Token(id) => admin::token(asked, id).await,
        Route::Environments => admin::environments(asked).await,
        Route::Environment(id) => admin::environment(asked, id).await,
        Route::Nodes => admin::nodes(asked).await,
    }
}

/// A request with the server state.
struct Asked<'a> {
    rendezvous: &'a Rendezvous,
    request: Request<Incoming>,
}

impl Asked<'_> {
    fn only(&self, allowed: &'static [Method]) -> Result<(), Refusal> {
        let is_allowed = allowed.contains(self.request.method());
        if is_allowed { Ok(()) } else { Err(Refusal::Method(allowed)) }
    }

    /// Authenticates the caller and requires this role and environment.
    async fn authenticate(
        &self,
        role: TokenRole,
        environment: Option<&str>,
    ) -> Result<Token, Refusal> {
        let token = authenticate(self.rendezvous, &self.request).await?;
        if token.role != role || token.environment.as_deref() != environment {
            return Err(Refusal::Forbidden);
        }
        Ok(token)
    }

    async fn body<T: DeserializeOwned>(self) -> Result<T, Refusal> {
        let limited = Limited::new(self.request.into_body(), MAX_BODY_BYTES).collect();
        let body = tokio::time::timeout(self.rendezvous.config.timings.handshake, limited).await;
        let body: Bytes = match body {
            Err(_) => return Err(Refusal::Slow),
            Ok(Err(_)) => {
                return Err(Refusal::Invalid(
                    "the body exceeds 32 KiB, or could not be read".to_owned(),
                ));
            }
            Ok(Ok(body)) => body.to_bytes(),
        };
        serde_json::from_slice(&body).map_err(|error| Refusal::Invalid(error.to_string()))
    }

    fn header(&self, name: &str) -> Option<String> {
        header_for_logs(&self.request, name)
    }

    fn request_id(&self) -> Option<String> {
        header_for_logs(&self.request, REQUEST_ID.as_str())
    }

    fn stream_id(&self) -> Option<String> {
        self.header(STREAM_ID_HEADER)
    }
}

/// Authenticates the bearer token; any valid token is accepted.
pub async fn authenticate(
    rendezvous: &Rendezvous,
    request: &Request<Incoming>,
) -> Result<Token, Refusal> {
    let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, secret) = header.and_then(|text| text.split_once(' ')).ok_or(Refusal::NoToken)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Refusal::NoToken);
    }
    let (hash, now) = (sha256(secret.trim().as_bytes()), rendezvous.config.clock.now());
    let found = rendezvous.store.authenticate(hash, now).await;
    let found = found.map_err(|error| {
        tracing::error!(%error, "could not look up a token");
        Refusal::CannotAuthenticate
    })?;
    found.filter(|token| token.is_good(now)).ok_or(Refusal::BadToken)
}

/// A header value, unless it is too long for a log line.
pub fn header_for_logs<B>(request: &Request<B>, name: &str) -> Option<String> {
    let value = request.headers().get(name)?.to_str().ok()?;
    (value.len() <= 256).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_may_be_percent_encoded() {
        let route = |path| Route::find(path);
        let register = |id: &str| Some(Route::Register(id.to_owned()));
        assert_eq!(route("/cloud/environment/env-1/register"), register("env-1"));
        assert_eq!(route("/cloud/environment/env%2D1/register"), register("env-1"));
        assert_eq!(route("/cloud/environment/a%20b/register"), register("a b"));
        assert_eq!(route("/cloud/environment/a%2Fb/register"), register("a/b"));
        assert_eq!(route("/cloud/environment/a/b/register"), None);
        assert_eq!(route("/cloud/environment//register"), None);
        assert_eq!(route("/cloud/environment/%ff/register"), None);
        assert_eq!(route("/cloud/environment/a/direct/register"), None);
    }
}
