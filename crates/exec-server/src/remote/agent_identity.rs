//! An agent's identity as a credential: a signed document with a key in it, and an assertion for every request.
//!
//! ```text
//! document ─checked against its issuer's keys▶ known ─task registered▶ asserting (a new signature per request)
//! ```
//!
//! Both steps happen when the first header is needed, and again if they could not be done; what is refused is final.

use std::time::Duration;

use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::Bytes;
use exec_server_protocol::base64;
use exec_server_transport::dial::DialOptions;
use exec_server_transport::http_exchange::{ExchangeError, exchange};
use exec_server_transport::proxy::Proxies;
use exec_server_transport::registry::{Header, is_secure};
use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Mutex;
use url::Url;

use super::credential::account_headers;
use super::sealed_box;

/// Who issues identities, and for whom.
const ISSUER: &str = "https://chatgpt.com/codex-backend/agent-identity";
const AUDIENCE: &str = "codex-app-server";
/// Where the issuer's keys and its tasks are, unless the environment says otherwise.
const JWKS_BASE: &str = "https://chatgpt.com/backend-api";
const AUTHAPI_BASE: &str = "https://auth.openai.com/api/accounts";
/// Each of the two requests takes no longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than any of the answers has.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Why an identity is not usable.
#[derive(Debug, thiserror::Error)]
pub enum AgentIdentityError {
    /// The document is missing, or is none.
    #[error("CODEX_ACCESS_TOKEN holds no agent identity")]
    NoDocument,
    /// The address of the issuer is none, or what is sent there could be read on the way.
    #[error("{0} must be https://, or http:// on loopback")]
    Address(&'static str),
    /// The issuer did not sign it, or not for this, or its time is over.
    #[error("the agent identity is not valid")]
    NotValid(#[source] jsonwebtoken::errors::Error),
    /// The issuer does not have the key that it is signed with.
    #[error("the agent identity is signed with a key that its issuer does not have")]
    UnknownKey,
    /// The key in it is none.
    #[error("the key of the agent identity is not usable")]
    Key,
    /// No task, for good.
    #[error("no task was registered for the agent identity ({0})")]
    Refused(u16),
    /// The issuer cannot be asked for the moment.
    #[error("the issuer of the agent identity cannot be asked")]
    Unreachable(#[source] ExchangeError),
    /// The issuer cannot answer for the moment, or not in a way that is understood.
    #[error("the issuer of the agent identity has no usable answer")]
    NoAnswer,
}

impl AgentIdentityError {
    /// Whether it may go better another time.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NoAnswer)
    }
}

/// An identity, and what is known of it so far.
pub struct AgentIdentity {
    document: String,
    jwks: Url,
    authapi: Url,
    known: Mutex<Option<Known>>,
}

struct Known {
    claims: Claims,
    key: Ed25519KeyPair,
    task_id: String,
}

#[derive(Deserialize)]
struct Claims {
    agent_runtime_id: String,
    agent_private_key: String,
    account_id: String,
    #[serde(default)]
    chatgpt_account_is_fedramp: bool,
}

impl AgentIdentity {
    /// The identity whose document is in the environment.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, AgentIdentityError> {
        let document = variable("CODEX_ACCESS_TOKEN").unwrap_or_default().trim().to_owned();
        if decode_header(&document).is_err() {
            return Err(AgentIdentityError::NoDocument);
        }
        let base = |name, usual: &str| {
            let text = variable(name).unwrap_or_else(|| usual.to_owned());
            let url = Url::parse(text.trim().trim_end_matches('/')).ok();
            url.filter(is_secure).ok_or(AgentIdentityError::Address(name))
        };
        let mut jwks = base("CODEX_AGENT_IDENTITY_JWKS_BASE_URL", JWKS_BASE)?;
        let folder = if jwks.path().contains("/backend-api") { "/wham" } else { "" };
        append(&mut jwks, &format!("{folder}/agent-identities/jwks"));
        let authapi = base("CODEX_AGENT_IDENTITY_AUTHAPI_BASE_URL", AUTHAPI_BASE)?;
        Ok(Self { document, jwks, authapi, known: Mutex::new(None) })
    }

    /// The headers for one request, freshly signed.
    pub async fn headers(&self) -> Result<Vec<Header>, AgentIdentityError> {
        let mut known = self.known.lock().await;
        if known.is_none() {
            *known = Some(self.find_out().await?);
        }
        let known = known.as_ref().expect("was found out");
        let mut assertion = HeaderValue::from_str(&known.assertion(&timestamp()))
            .map_err(|_| AgentIdentityError::Key)?;
        assertion.set_sensitive(true);
        let account = HeaderValue::from_str(&known.claims.account_id)
            .map_err(|_| AgentIdentityError::NoDocument)?;
        let mut headers = vec![(AUTHORIZATION, assertion)];
        let is_fedramp = known.claims.chatgpt_account_is_fedramp;
        headers.extend(account_headers(Some(account), is_fedramp));
        Ok(headers)
    }

    async fn find_out(&self) -> Result<Known, AgentIdentityError> {
        let claims = self.check().await?;
        let key = base64::decode(claims.agent_private_key.trim());
        let key = key.map_err(|_| AgentIdentityError::Key)?;
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&key);
        let key = key.map_err(|_| AgentIdentityError::Key)?;
        let task_id = self.register_task(&claims, &key).await?;
        tracing::info!(agent = claims.agent_runtime_id, task_id, "agent identity");
        Ok(Known { claims, key, task_id })
    }

    /// Checks the document against the keys of its issuer.
    async fn check(&self) -> Result<Claims, AgentIdentityError> {
        let (status, body) = ask(&self.jwks, Method::GET, Vec::new()).await?;
        let keys: JwkSet = match status {
            200..300 => serde_json::from_slice(&body).map_err(|_| AgentIdentityError::NoAnswer)?,
            _ => return Err(AgentIdentityError::NoAnswer),
        };
        let header = decode_header(&self.document).map_err(AgentIdentityError::NotValid)?;
        let key = header.kid.as_deref().and_then(|kid| keys.find(kid));
        let key = DecodingKey::from_jwk(key.ok_or(AgentIdentityError::UnknownKey)?);
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_issuer(&[ISSUER]);
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let key = key.map_err(AgentIdentityError::NotValid)?;
        let document = decode::<Claims>(&self.document, &key, &validation);
        Ok(document.map_err(AgentIdentityError::NotValid)?.claims)
    }

    async fn register_task(
        &self,
        claims: &Claims,
        key: &Ed25519KeyPair,
    ) -> Result<String, AgentIdentityError> {
        let (id, timestamp) = (&claims.agent_runtime_id, timestamp());
        let signature = sign(key, &format!("{id}:{timestamp}"));
        let body = serde_json::json!({"timestamp": timestamp, "signature": signature});
        let mut url = self.authapi.clone();
        append(&mut url, "/v1/agent/");
        let mut path = url.path_segments_mut().expect("an http URL has a path");
        path.pop_if_empty().extend([id.as_str(), "task", "register"]);
        drop(path);
        let (status, body) = ask(&url, Method::POST, body.to_string().into_bytes()).await?;
        match status {
            200..300 => {}
            408 | 429 | 500.. => return Err(AgentIdentityError::NoAnswer),
            status => return Err(AgentIdentityError::Refused(status)),
        }
        let task: Task = serde_json::from_slice(&body).map_err(|_| AgentIdentityError::NoAnswer)?;
        task.id(key).ok_or(AgentIdentityError::NoAnswer)
    }
}

/// A registered task; some issuers tell its id to nobody but the agent.
#[derive(Deserialize)]
struct Task {
    #[serde(alias = "taskId")]
    task_id: Option<String>,
    #[serde(alias = "encryptedTaskId")]
    encrypted_task_id: Option<String>,
}

impl Task {
    fn id(self, key: &Ed25519KeyPair) -> Option<String> {
        if let Some(id) = self.task_id {
            return Some(id);
        }
        let sealed = base64::decode(self.encrypted_task_id?.trim()).ok()?;
        sealed_box::open(key, &sealed)
    }
}

impl Known {
    fn assertion(&self, timestamp: &str) -> String {
        let (agent, task) = (&self.claims.agent_runtime_id, &self.task_id);
        let signature = sign(&self.key, &format!("{agent}:{task}:{timestamp}"));
        // Keys of a JSON value are sorted, as the other side expects them.
        let said = serde_json::json!({
            "agent_runtime_id": agent,
            "signature": signature,
            "task_id": task,
            "timestamp": timestamp,
        });
        format!("AgentAssertion {}", base64::encode_url(said.to_string().as_bytes()))
    }
}

fn sign(key: &Ed25519KeyPair, text: &str) -> String {
    base64::encode(key.sign(text.as_bytes()).as_ref())
}

/// One request, which is never redirected.
async fn ask(url: &Url, method: Method, body: Vec<u8>) -> Result<(u16, Bytes), AgentIdentityError> {
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = url.path().parse().map_err(|_| AgentIdentityError::NoAnswer)?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    let dial = DialOptions { proxies: Proxies::from_environment(), ..DialOptions::default() };
    let asked = exchange(url, &dial, request, MAX_ANSWER_BYTES);
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok((status, body))) => Ok((status.as_u16(), body)),
        Ok(Err(error)) => Err(AgentIdentityError::Unreachable(error)),
        Err(_) => Err(AgentIdentityError::NoAnswer),
    }
}

fn append(url: &mut Url, path: &str) {
    let path = format!("{}{path}", url.path().trim_end_matches('/'));
    url.set_path(&path);
}

/// The time of day as RFC 3339 has it, in whole seconds of UTC.
fn timestamp() -> String {
    let now = OffsetDateTime::now_utc().truncate_to_second();
    now.format(&Rfc3339).expect("a year with four digits")
}

impl std::fmt::Debug for AgentIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("AgentIdentity").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_others_write_them() {
        let text = timestamp();
        assert_eq!((text.len(), &text[10..11], &text[19..]), (20, "T", "Z"), "{text}");
    }

    #[test]
    fn addresses_that_others_could_listen_at_are_refused() {
        let document = "eyJhbGciOiJSUzI1NiJ9.e30.e30";
        let with = |base: &'static str| {
            AgentIdentity::from_environment(move |name| match name {
                "CODEX_ACCESS_TOKEN" => Some(document.to_owned()),
                "CODEX_AGENT_IDENTITY_JWKS_BASE_URL" => Some(base.to_owned()),
                _ => None,
            })
        };
        let jwks = |base| with(base).map(|identity| identity.jwks.to_string());
        assert_eq!(jwks("https://h/x/").unwrap(), "https://h/x/agent-identities/jwks");
        let behind = jwks("https://h/backend-api").unwrap();
        assert_eq!(behind, "https://h/backend-api/wham/agent-identities/jwks");
        assert!(jwks("http://127.0.0.1:1").is_ok());
        assert!(matches!(jwks("http://h"), Err(AgentIdentityError::Address(_))));
        assert!(matches!(jwks("nowhere"), Err(AgentIdentityError::Address(_))));
    }
}
