//! Client for the admin API of a rendezvous.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_server::logging::chain;
use exec_server::protocol::escape_untrusted::escape_untrusted;
use exec_server_relay::registry_client::is_secure;
use exec_server_relay::registry_types::RegistryFailureDetail;
use exec_server_rendezvous::admin::{
    EnvironmentChange, EnvironmentStatus, MadeToken, NewToken, NodeStatus, Nodes,
};
use exec_server_rendezvous::presence::Environments;
use exec_server_rendezvous::store::{RegistrationPolicy, Token};
use exec_server_transport::dial::{DialError, DialOptions};
use exec_server_transport::http_exchange::{ExchangeError, exchange};
use exec_server_transport::proxy::Proxies;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

const TOKEN: &str = "EXEC_SERVER_ADMIN_TOKEN";
const TOKEN_FILE: &str = "EXEC_SERVER_ADMIN_TOKEN_FILE";

/// Timeout of a request; a user waits for it.
const DEADLINE: Duration = Duration::from_secs(20);

/// Enough for a hundred thousand tokens.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Longer than any secret; ours have 73 bytes.
const MAX_SECRET_BYTES: usize = 512;

/// Longest error text that is shown.
const MAX_MESSAGE_CHARS: usize = 400;

/// Why a request to the admin API failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The URL is invalid.
    #[error("`{0}` is not http://HOST or https://HOST")]
    Url(String),
    /// The admin token would be sent unencrypted.
    #[error(
        "{0} is plain HTTP and would expose the admin token; use https://, or http:// on this machine"
    )]
    Readable(String),
    /// No admin token is configured.
    #[error("an admin token is needed, in {TOKEN} or in the file that {TOKEN_FILE} names")]
    NoToken,
    /// The token file cannot be read.
    #[error("could not read {}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The connection failed.
    #[error("could not reach {url}: {cause}{}", refused_hint(cause))]
    Unreachable {
        /// The URL.
        url: String,
        /// The I/O error.
        cause: io::Error,
    },
    /// The certificate was rejected.
    #[error(
        "could not reach {url}: {cause}; a certificate that the system does not know needs --ca-file FILE"
    )]
    Unproven {
        /// The URL.
        url: String,
        /// The I/O error.
        cause: io::Error,
    },
    /// The server does not speak TLS.
    #[error("could not reach {url}: {cause}; the server may not use TLS, try http://")]
    NoTls {
        /// The URL.
        url: String,
        /// The I/O error.
        cause: io::Error,
    },
    /// The connection failed during the exchange, or the reply is invalid.
    #[error("{url} did not answer: {why}")]
    Broken {
        /// The URL.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The rendezvous rejected the request.
    #[error("{url} rejected the request: {message} ({status}){}", another_token(*status))]
    Refused {
        /// The URL.
        url: String,
        /// The HTTP status.
        status: StatusCode,
        /// The reason.
        message: String,
    },
}

/// Admin API of one rendezvous.
pub struct RemoteRegistry {
    url: Url,
    text: String,
    token: String,
    dial: DialOptions,
}

impl RemoteRegistry {
    /// Client for this URL, with the token from the environment.
    pub fn new(text: &str, ca_file: Option<PathBuf>) -> Result<Self, RemoteError> {
        let text = text.trim().trim_end_matches('/').to_owned();
        let url = Url::parse(&text).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https") && url.has_host() && url.query().is_none()
        });
        let url = url.ok_or_else(|| RemoteError::Url(text.clone()))?;
        if !is_secure(&url) {
            return Err(RemoteError::Readable(text));
        }
        let proxies = Proxies::from_environment();
        let dial = DialOptions { headers: Vec::new(), authorities: ca_file, proxies };
        Ok(Self { url, text, token: admin_token()?, dial })
    }

    /// The URL without a trailing slash.
    pub fn url(&self) -> &str {
        &self.text
    }

    /// Creates a token.
    pub fn create_token(&self, new: &NewToken) -> Result<MadeToken, RemoteError> {
        let body = serde_json::to_vec(new).expect("plain data can be written");
        let made: Option<MadeToken> = self.ask(Method::POST, "/admin/tokens", body)?;
        let made = made.ok_or_else(|| self.broken("it makes no tokens"))?;
        // The secret is printed as part of a shell command.
        let is_word = |letter: u8| letter.is_ascii_alphanumeric() || b"_-.".contains(&letter);
        let is_token = (1..=MAX_SECRET_BYTES).contains(&made.secret.len())
            && made.secret.bytes().all(is_word)
            && (made.token.role, &made.token.environment) == (new.role, &new.environment);
        if is_token {
            Ok(made)
        } else {
            Err(self.broken("it made another token than it was asked for"))
        }
    }

    /// Lists all tokens.
    pub fn tokens(&self) -> Result<Vec<Token>, RemoteError> {
        #[derive(Deserialize)]
        struct Tokens {
            tokens: Vec<Token>,
        }
        let answer: Option<Tokens> = self.ask(Method::GET, "/admin/tokens", Vec::new())?;
        Ok(answer.map(|it| it.tokens).unwrap_or_default())
    }

    /// Revokes a token; returns whether it existed.
    pub fn revoke_token(&self, id: &str) -> Result<bool, RemoteError> {
        let path = format!("/admin/tokens/{}", encoded(id));
        Ok(self.ask::<serde_json::Value>(Method::DELETE, &path, Vec::new())?.is_some())
    }

    /// Deletes a token; whether there was one.
    pub fn delete_token(&self, id: &str) -> Result<bool, RemoteError> {
        let path = format!("/admin/tokens/{}?delete=true", encoded(id));
        match self.ask::<serde_json::Value>(Method::DELETE, &path, Vec::new())? {
            None => Ok(false),
            Some(answer) if answer.get("deleted").is_some() => Ok(true),
            Some(_) => Err(self.broken("it has revoked the token, but is too old to delete it")),
        }
    }

    /// Deletes an environment with its tokens; whether there was one.
    pub fn delete_environment(&self, id: &str) -> Result<bool, RemoteError> {
        let path = format!("/admin/environments/{}", encoded(id));
        Ok(self.ask::<serde_json::Value>(Method::DELETE, &path, Vec::new())?.is_some())
    }

    /// Lists all environments.
    pub fn environments(&self) -> Result<Vec<EnvironmentStatus>, RemoteError> {
        let answer: Option<Environments> =
            self.ask(Method::GET, "/admin/environments", Vec::new())?;
        Ok(answer.map(|it| it.environments).unwrap_or_default())
    }

    /// Lists the nodes of the cluster.
    pub fn nodes(&self) -> Result<Vec<NodeStatus>, RemoteError> {
        let answer: Option<Nodes> = self.ask(Method::GET, "/admin/nodes", Vec::new())?;
        Ok(answer.map(|it| it.nodes).unwrap_or_default())
    }

    /// Sets the policy; returns whether the environment exists.
    pub fn set_policy(&self, id: &str, policy: RegistrationPolicy) -> Result<bool, RemoteError> {
        let path = format!("/admin/environments/{}", encoded(id));
        let body = serde_json::to_vec(&EnvironmentChange { policy }).expect("plain data");
        Ok(self.ask::<serde_json::Value>(Method::PATCH, &path, body)?.is_some())
    }

    /// Sends one request; `None` for status 404.
    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Option<T>, RemoteError> {
        let unreachable = |cause| RemoteError::Unreachable { url: self.text.clone(), cause };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(unreachable)?;
        let answer = runtime.block_on(async {
            tokio::time::timeout(DEADLINE, self.request(method, path, body)).await
        });
        let (status, body) = answer.unwrap_or_else(|_| Err(self.broken("it took too long")))?;
        // A reply without an error code comes from a proxy or another server.
        let detail = RegistryFailureDetail::parse(&body);
        if status == StatusCode::NOT_FOUND && detail.code.as_deref() == Some("not_found") {
            return Ok(None);
        }
        if !status.is_success() {
            let no_reason = || "it gives no reason; is a rendezvous there?".to_owned();
            let message = detail.message.unwrap_or_else(no_reason);
            let message = escape_untrusted(&message, MAX_MESSAGE_CHARS);
            return Err(RemoteError::Refused { url: self.text.clone(), status, message });
        }
        serde_json::from_slice(&body).map(Some).map_err(|error| self.broken(error))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), RemoteError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url.path().trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(Full::from(body))
            .map_err(|error| self.broken(error))?;
        let answer = exchange(&self.url, &self.dial, request, MAX_ANSWER_BYTES).await;
        let url = || self.text.clone();
        answer.map_err(|error| match error {
            ExchangeError::Unreachable(DialError::Connect(cause)) => {
                RemoteError::Unreachable { url: url(), cause }
            }
            ExchangeError::Unreachable(DialError::Handshake(cause)) => {
                if cause.to_string().contains("certificate") {
                    RemoteError::Unproven { url: url(), cause }
                } else {
                    RemoteError::NoTls { url: url(), cause }
                }
            }
            ExchangeError::Unreachable(error) => self.broken(chain(&error)),
            ExchangeError::Broken(error) => self.broken(chain(&error)),
        })
    }

    fn broken(&self, why: impl ToString) -> RemoteError {
        let why = escape_untrusted(&why.to_string(), MAX_MESSAGE_CHARS);
        RemoteError::Broken { url: self.text.clone(), why }
    }
}

fn admin_token() -> Result<String, RemoteError> {
    let from = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    if let Some(token) = from(TOKEN) {
        return Ok(token.trim().to_owned());
    }
    let path = from(TOKEN_FILE).map(PathBuf::from).ok_or(RemoteError::NoToken)?;
    read_token(&path)
}

fn read_token(path: &Path) -> Result<String, RemoteError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| RemoteError::TokenFile { path: path.to_owned(), source })?;
    let token = text.trim().to_owned();
    if token.is_empty() { Err(RemoteError::NoToken) } else { Ok(token) }
}

fn refused_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "; is `exec-server rendezvous` running there?",
        _ => "",
    }
}

fn another_token(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; where it runs, `exec-server token create --role admin` makes another"
        }
        _ => "",
    }
}

/// Percent-encodes a path segment.
fn encoded(segment: &str) -> String {
    percent_encoding::utf8_percent_encode(segment, percent_encoding::NON_ALPHANUMERIC).to_string()
}
