//! Uses an agent identity as a credential: a signed document (JWT) that contains a key, and an assertion per request.
//!
//! ```text
//! document ─verified with its issuer's keys▶ verified ─task registered▶ asserting (a new signature per request)
//! ```
//!
//! Both steps run when the first headers are needed. A failure is not cached; callers retry only
//! if [`AgentIdentityError::is_passing`].

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::Bytes;
use exec_server_protocol::base64;
use exec_server_relay::registry_client::{Header, is_secure};
use exec_server_transport::dial::DialOptions;
use exec_server_transport::http_exchange::{ExchangeError, exchange};
use exec_server_transport::proxy::Proxies;
use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

use super::sealed_box;
use crate::remote::credential::account_headers;

/// The required `iss` and `aud` claims of the document.
const ISSUER: &str = "https://chatgpt.com/codex-backend/agent-identity";
const AUDIENCE: &str = "codex-app-server";
/// Default base URLs of the issuer's keys and of the task registration.
const JWKS_BASE: &str = "https://chatgpt.com/backend-api";
const AUTHAPI_BASE: &str = "https://auth.openai.com/api/accounts";
/// Time limit for each of the two requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Above the size of every expected response.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// The reason why an identity is not usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgentIdentityError {
    /// The document is missing, malformed, or has an account id that does not fit into a header.
    #[error(
        "CODEX_ACCESS_TOKEN does not contain a valid agent identity; set it to a signed identity document"
    )]
    NoDocument,
    /// The URL is invalid, or requests to it would not be encrypted.
    #[error("{0} must be an https:// URL, or an http:// URL on loopback")]
    Address(&'static str),
    /// The signature, the issuer, the audience or the expiry is wrong.
    #[error("the agent identity is not valid")]
    NotValid(#[source] Arc<jsonwebtoken::errors::Error>),
    /// The key id of the document is not in the JWKS of the issuer.
    #[error("the agent identity is signed with a key that its issuer does not publish")]
    UnknownKey,
    /// The document does not contain a valid Ed25519 key.
    #[error("the key of the agent identity is not usable")]
    Key,
    /// The issuer rejected the task registration with this HTTP status.
    #[error("no task was registered for the agent identity (HTTP status {0})")]
    Refused(u16),
    /// The HTTP request failed, so a retry may succeed.
    #[error("cannot reach the issuer of the agent identity")]
    Unreachable(#[source] Arc<ExchangeError>),
    /// The response is missing, late, a server error, or malformed.
    #[error("the issuer of the agent identity sent no valid response")]
    NoAnswer,
}

impl AgentIdentityError {
    /// Whether a retry may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NoAnswer)
    }
}

/// An agent identity, verified on first use.
pub struct AgentIdentity {
    document: Arc<Document>,
    /// Running or successful; concurrent callers share it. The lock is not held while it runs.
    inquiry: Mutex<Option<Inquiry>>,
}

/// The task that verifies and registers the identity; dropping it aborts the task.
struct Inquiry {
    answer: watch::Receiver<Option<Answer>>,
    task: JoinHandle<()>,
}

type Answer = Result<Arc<Known>, AgentIdentityError>;

/// A signed document and the URLs of its issuer.
struct Document {
    text: String,
    jwks: Url,
    authapi: Url,
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
    /// Reads the document and the URLs from environment variables.
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
        let document = Arc::new(Document { text: document, jwks, authapi });
        Ok(Self { document, inquiry: Mutex::new(None) })
    }

    /// The headers for one request, freshly signed.
    pub async fn headers(&self) -> Result<Vec<Header>, AgentIdentityError> {
        let known = self.known().await?;
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

    /// The verified identity. A failure goes to all waiting callers and is then dropped, so that the next call retries.
    async fn known(&self) -> Answer {
        let mut waiting = {
            let mut current = self.lock();
            let inquiry = current.get_or_insert_with(|| Inquiry::begin(self.document.clone()));
            inquiry.answer.clone()
        };
        let answer = match waiting.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().expect("was just seen"),
            // The runtime of the task has shut down.
            Err(_) => Err(AgentIdentityError::NoAnswer),
        };
        if answer.is_err() {
            let is_old = |inquiry: &mut Inquiry| inquiry.answer.same_channel(&waiting);
            drop(self.lock().take_if(is_old));
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Option<Inquiry>> {
        self.inquiry.lock().expect("no holder panics")
    }
}

impl Inquiry {
    fn begin(document: Arc<Document>) -> Self {
        let (tell, answer) = watch::channel(None);
        let task = tokio::spawn(async move {
            let found = document.find_out().await;
            tell.send_replace(Some(found.map(Arc::new)));
        });
        Self { answer, task }
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Document {
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

    /// Verifies the document with the keys of its issuer.
    async fn check(&self) -> Result<Claims, AgentIdentityError> {
        let (status, body) = ask(&self.jwks, Method::GET, Vec::new()).await?;
        let keys: JwkSet = match status {
            200..300 => serde_json::from_slice(&body).map_err(|_| AgentIdentityError::NoAnswer)?,
            _ => return Err(AgentIdentityError::NoAnswer),
        };
        let not_valid = |error| AgentIdentityError::NotValid(Arc::new(error));
        let header = decode_header(&self.text).map_err(not_valid)?;
        let key = header.kid.as_deref().and_then(|kid| keys.find(kid));
        let key = DecodingKey::from_jwk(key.ok_or(AgentIdentityError::UnknownKey)?);
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_issuer(&[ISSUER]);
        validation.set_audience(&[AUDIENCE]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let key = key.map_err(not_valid)?;
        Ok(decode::<Claims>(&self.text, &key, &validation).map_err(not_valid)?.claims)
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

/// A registered task; some issuers encrypt its id for the agent.
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
        // The receiver expects sorted keys; `serde_json` sorts the keys of a value.
        let assertion = serde_json::json!({
            "agent_runtime_id": agent,
            "signature": signature,
            "task_id": task,
            "timestamp": timestamp,
        });
        format!("AgentAssertion {}", base64::encode_url(assertion.to_string().as_bytes()))
    }
}

fn sign(key: &Ed25519KeyPair, text: &str) -> String {
    base64::encode(key.sign(text.as_bytes()).as_ref())
}

/// Sends one request; redirects are not followed.
async fn ask(url: &Url, method: Method, body: Vec<u8>) -> Result<(u16, Bytes), AgentIdentityError> {
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = url.path().parse().map_err(|_| AgentIdentityError::NoAnswer)?;
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    let dial = DialOptions { proxies: Proxies::from_environment(), ..DialOptions::default() };
    let asked = exchange(url, &dial, request, MAX_ANSWER_BYTES);
    match tokio::time::timeout(REQUEST_TIMEOUT, asked).await {
        Ok(Ok((status, body))) => Ok((status.as_u16(), body)),
        Ok(Err(error)) => Err(AgentIdentityError::Unreachable(Arc::new(error))),
        Err(_) => Err(AgentIdentityError::NoAnswer),
    }
}

fn append(url: &mut Url, path: &str) {
    let path = format!("{}{path}", url.path().trim_end_matches('/'));
    url.set_path(&path);
}

/// The current time in RFC 3339 format, in UTC and whole seconds.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn timestamps_are_rfc_3339_in_whole_seconds() {
        let text = timestamp();
        assert_eq!((text.len(), &text[10..11], &text[19..]), (20, "T", "Z"), "{text}");
    }

    #[test]
    fn unencrypted_issuer_urls_are_rejected() {
        let document = "eyJhbGciOiJSUzI1NiJ9.e30.e30";
        let with = |base: &'static str| {
            AgentIdentity::from_environment(move |name| match name {
                "CODEX_ACCESS_TOKEN" => Some(document.to_owned()),
                "CODEX_AGENT_IDENTITY_JWKS_BASE_URL" => Some(base.to_owned()),
                _ => None,
            })
        };
        let jwks = |base| with(base).map(|identity| identity.document.jwks.to_string());
        assert_eq!(jwks("https://h/x/").unwrap(), "https://h/x/agent-identities/jwks");
        let behind = jwks("https://h/backend-api").unwrap();
        assert_eq!(behind, "https://h/backend-api/wham/agent-identities/jwks");
        assert!(jwks("http://127.0.0.1:1").is_ok());
        assert!(matches!(jwks("http://h"), Err(AgentIdentityError::Address(_))));
        assert!(matches!(jwks("nowhere"), Err(AgentIdentityError::Address(_))));
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_request() {
        let issuer = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", issuer.local_addr().unwrap());
        let identity = AgentIdentity::from_environment(|name| match name {
            "CODEX_ACCESS_TOKEN" => Some("eyJhbGciOiJSUzI1NiJ9.e30.e30".to_owned()),
            _ => Some(base.clone()),
        });
        let identity = identity.unwrap();
        let requests = AtomicUsize::new(0);
        let serve = async {
            loop {
                let (mut stream, _) = issuer.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                requests.fetch_add(1, Ordering::Relaxed);
                let busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(busy).await.unwrap();
            }
        };
        tokio::pin!(serve);
        for round in 1..=2 {
            let ask =
                async { tokio::join!(identity.headers(), identity.headers(), identity.headers()) };
            let (one, two, three) = tokio::select! {
                answers = ask => answers,
                () = &mut serve => unreachable!("the server loop does not end"),
            };
            for answer in [one, two, three] {
                assert!(matches!(answer, Err(AgentIdentityError::NoAnswer)), "{answer:?}");
            }
            assert_eq!(requests.load(Ordering::Relaxed), round, "a failure is retried");
        }
    }
}
