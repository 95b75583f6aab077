//! Credentials of an executor at its registry.

use std::future::pending;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use exec_server_relay::registry_client::Header;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use tokio::sync::watch;

use super::{AgentIdentity, AgentIdentityError};
use crate::codex::sign_in;

/// The longest line of the credential pipe, including its newline.
const MAX_LINE_BYTES: u64 = 16_384;

/// How an executor authenticates to the registry.
#[derive(Clone)]
pub enum Credential {
    /// A fixed bearer token.
    Bearer(Arc<str>),
    /// The access token of a signed-in user, and its account.
    Account {
        /// Sent as the bearer token.
        token: Arc<str>,
        /// Sent as `chatgpt-account-id`, if the sign-in names the account.
        account_id: Option<Arc<str>>,
        /// Whether `x-openai-fedramp` is sent.
        is_fedramp: bool,
    },
    /// An agent's identity, which signs every request.
    Agent(Arc<AgentIdentity>),
    /// A file with a token; read for every request, so that the token can be replaced.
    File(PathBuf),
    /// The sign-in file of the Codex command line; read for every request, because its tokens are short-lived.
    SignIn(PathBuf),
    /// Tokens that the parent process sends on stdin, each with an expiry.
    Stdin(Arc<watch::Sender<Option<Piped>>>),
}

/// A token from stdin, with its expiry in Unix seconds.
#[derive(Clone)]
pub struct Piped {
    token: Arc<str>,
    expires_at: i64,
}

/// Why no credential can be sent.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// No credential is configured.
    #[error(
        "no credential for the registry; set EXEC_SERVER_REMOTE_TOKEN or EXEC_SERVER_REMOTE_TOKEN_FILE \
         (`exec-server token create` makes a token)"
    )]
    Missing,
    /// A file with a token cannot be read.
    #[error("could not read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the read.
        #[source]
        source: std::io::Error,
    },
    /// The token cannot be sent in a header.
    #[error(
        "the credential for the registry is empty or has characters that a header cannot carry"
    )]
    Unusable,
    /// Stdin has no complete line, or the line is too long.
    #[error("expected a newline-terminated registration bearer of at most 16 KiB on stdin")]
    NoBearerLine,
    /// The line on stdin is not a valid token.
    #[error(
        "invalid registration bearer on stdin: it is empty, or has blanks or characters that a header cannot carry"
    )]
    BearerLine,
    /// Stdin ended before the first registration.
    #[error("stdin ended before this executor was registered; keep the pipe open while it runs")]
    EndedEarly,
    /// A line of the credential pipe is invalid.
    #[error("the credential on stdin is not usable: {0}")]
    Line(&'static str),
    /// The agent identity failed, perhaps temporarily.
    #[error(transparent)]
    Agent(#[from] AgentIdentityError),
    /// The latest token from stdin has expired.
    #[error("the credential from stdin has expired")]
    Expired,
}

impl Credential {
    /// The file that the credential is read from, if any.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) | Self::SignIn(path) => Some(path),
            Self::Bearer(_) | Self::Account { .. } | Self::Agent(_) | Self::Stdin(_) => None,
        }
    }

    /// A token in a file, which must be readable now.
    pub fn from_file(path: &Path) -> Result<Self, CredentialError> {
        Self::read_file(path)?;
        Ok(Self::File(path.to_owned()))
    }

    /// Searches environment variables and the sign-in file, the most specific first.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CredentialError> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        if let Some(token) = set("EXEC_SERVER_REMOTE_TOKEN") {
            return Self::bearer(&token);
        }
        if let Some(path) = set("EXEC_SERVER_REMOTE_TOKEN_FILE") {
            return Self::from_file(Path::new(&path));
        }
        for name in ["CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN", "CODEX_API_KEY"] {
            if let Some(token) = set(name) {
                return Self::bearer(&token);
            }
        }
        let home = set("CODEX_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(Path::new(&set("HOME")?).join(".codex")));
        match home {
            Some(home) => {
                let path = home.join("auth.json");
                sign_in::read(&path)?;
                Ok(Self::SignIn(path))
            }
            None => Err(CredentialError::Missing),
        }
    }

    fn read_file(path: &Path) -> Result<Self, CredentialError> {
        let token = std::fs::read_to_string(path)
            .map_err(|source| CredentialError::File { path: path.to_owned(), source })?;
        Self::bearer(&token)
    }

    /// A fixed token; surrounding white space is removed.
    pub fn bearer(token: &str) -> Result<Self, CredentialError> {
        let token = token.trim();
        check(token)?;
        Ok(Self::Bearer(token.into()))
    }

    /// The access token of a signed-in user.
    pub(crate) fn account(
        token: &str,
        account_id: Option<&str>,
        is_fedramp: bool,
    ) -> Result<Self, CredentialError> {
        check(token)?;
        account_id.map_or(Ok(()), check)?;
        Ok(Self::Account {
            token: token.into(),
            account_id: account_id.map(Into::into),
            is_fedramp,
        })
    }

    /// Reads the first line as the token; white space in it is an error.
    pub fn from_line(input: impl BufRead) -> Result<Self, CredentialError> {
        let mut line = Vec::new();
        let read = input.take(MAX_LINE_BYTES + 2).read_until(b'\n', &mut line);
        read.map_err(|_| CredentialError::NoBearerLine)?;
        let line = line.strip_suffix(b"\n").ok_or(CredentialError::NoBearerLine)?;
        let token = line.strip_suffix(b"\r").unwrap_or(line);
        if token.len() as u64 > MAX_LINE_BYTES {
            return Err(CredentialError::NoBearerLine);
        }
        let token = std::str::from_utf8(token).map_err(|_| CredentialError::BearerLine)?;
        check(token).map_err(|_| CredentialError::BearerLine)?;
        Ok(Self::Bearer(token.into()))
    }

    /// Waits for the next token from the parent process; for ever if tokens do not come from stdin.
    pub(super) async fn replaced(&self) {
        let Self::Stdin(tokens) = self else { return pending().await };
        // `self` holds the sender, so `changed` cannot fail.
        let _ = tokens.subscribe().changed().await;
    }

    /// A credential without a token yet; `read_tokens` supplies tokens.
    pub fn from_stdin() -> Self {
        Self::Stdin(Arc::new(watch::Sender::new(None)))
    }

    /// The headers for one request. Waits for the first token from stdin.
    pub async fn headers(&self) -> Result<Vec<Header>, CredentialError> {
        let read;
        let current = match self {
            Self::File(path) => {
                read = Self::read_file(path)?;
                &read
            }
            Self::SignIn(path) => {
                read = sign_in::read(path)?;
                &read
            }
            _ => self,
        };
        match current {
            Self::File(_) | Self::SignIn(_) => unreachable!("files contain only tokens"),
            Self::Bearer(token) => Ok(vec![bearer(token)]),
            Self::Account { token, account_id, is_fedramp } => {
                let account = account_id
                    .as_ref()
                    .map(|account| HeaderValue::from_str(account).expect("was checked"));
                let mut headers = vec![bearer(token)];
                headers.extend(account_headers(account, *is_fedramp));
                Ok(headers)
            }
            Self::Agent(identity) => Ok(identity.headers().await?),
            Self::Stdin(tokens) => {
                let mut tokens = tokens.subscribe();
                let current = tokens.wait_for(Option::is_some).await;
                let current = current.map_err(|_| CredentialError::Missing)?.clone();
                let current = current.expect("was waited for");
                if current.expires_at <= now() {
                    return Err(CredentialError::Expired);
                }
                Ok(vec![bearer(&current.token)])
            }
        }
    }
}

/// Reads one token per line until the pipe ends; an invalid line is an error.
pub async fn read_tokens(
    mut pipe: impl AsyncBufRead + Unpin,
    environment_id: &str,
    tokens: &watch::Sender<Option<Piped>>,
) -> Result<(), CredentialError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut pipe).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        match read {
            Ok(0) => return Ok(()),
            Ok(_) => tokens.send_replace(Some(parse(&line, environment_id)?)),
            Err(_) => return Err(CredentialError::Line("it cannot be read")),
        };
    }
}

fn parse(line: &[u8], environment_id: &str) -> Result<Piped, CredentialError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        version: u64,
        environment_id: String,
        token: String,
        expires_at: i64,
    }
    let Some(line) = line.strip_suffix(b"\n") else {
        return Err(CredentialError::Line("a line is too long or does not end"));
    };
    let line: Line =
        serde_json::from_slice(line).map_err(|_| CredentialError::Line("it has another form"))?;
    if line.version != 1 {
        return Err(CredentialError::Line("its version is not 1"));
    }
    if line.environment_id != environment_id {
        return Err(CredentialError::Line("it is for another environment"));
    }
    if line.expires_at <= now() {
        return Err(CredentialError::Line("it has expired"));
    }
    check(&line.token).map_err(|_| CredentialError::Line("its token cannot be sent"))?;
    Ok(Piped { token: line.token.into(), expires_at: line.expires_at })
}

fn check(token: &str) -> Result<(), CredentialError> {
    let is_usable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_usable { Ok(()) } else { Err(CredentialError::Unusable) }
}

fn bearer(token: &str) -> Header {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).expect("was checked");
    value.set_sensitive(true);
    (AUTHORIZATION, value)
}

/// The headers that identify an account to the registry.
pub(crate) fn account_headers(
    account: Option<HeaderValue>,
    is_fedramp: bool,
) -> impl Iterator<Item = Header> {
    let account = account.map(|id| (HeaderName::from_static("chatgpt-account-id"), id));
    let fedramp = is_fedramp
        .then(|| (HeaderName::from_static("x-openai-fedramp"), HeaderValue::from_static("true")));
    account.into_iter().chain(fedramp)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bearer(_) => "Bearer",
            Self::Account { .. } => "Account",
            Self::File(_) => "File",
            Self::SignIn(_) => "SignIn",
            Self::Agent(_) => "Agent",
            Self::Stdin(_) => "Stdin",
        })
    }
}

#[cfg(test)]
mod tests;
