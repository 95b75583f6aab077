//! Persistent state: environments, registrations, authorizations and tokens.
//!
//! The trait is blocking; [`Storage`] runs it on blocking threads. Every check-and-write is one statement or transaction,
//! so that several nodes can share a store.

mod schema;
mod sqlite;

use std::sync::Arc;

use exec_server_relay::registry_types::PublicKey;
use serde::{Deserialize, Serialize};

use crate::clock::Seconds;
use crate::secrets::Digest;

pub use sqlite::SqliteStore;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A concurrent update; nothing was written.
    #[error("conflicting concurrent update")]
    Conflict,
    /// A write failed, possibly temporarily; nothing was written.
    #[error("the database cannot be written: {0}")]
    Unwritten(rusqlite::Error),
    /// The database was written by a newer version of this program.
    #[error(
        "the database has schema version {found}, but this program supports only up to {known}; upgrade exec-server"
    )]
    TooNew {
        /// Version of the database.
        found: i64,
        /// Latest supported version.
        known: i64,
    },
    /// SQLite reported an error.
    #[error("the database failed: {0}")]
    Database(rusqlite::Error),
    /// A stored value is invalid.
    #[error("the database is corrupt: cannot read {0}")]
    Corrupt(&'static str),
    /// The blocking task was cancelled or panicked.
    #[error("the database query was cancelled")]
    NotAsked,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// Role that a token grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// The executor of the token's environment.
    Executor,
    /// A harness of the token's environment.
    Harness,
    /// Manages tokens and environments.
    Admin,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// Token id.
    pub id: String,
    /// Granted role.
    pub role: TokenRole,
    /// Environment; `None` for an admin token.
    pub environment: Option<String>,
    /// Creation time.
    pub created_at: Seconds,
    /// Expiry time.
    pub expires_at: Option<Seconds>,
    /// Revocation time.
    pub revoked_at: Option<Seconds>,
    /// Time of last use, accurate to a minute.
    pub last_used_at: Option<Seconds>,
    /// Limit of concurrent streams.
    pub max_streams: Option<u32>,
    /// Label chosen by the administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Why a token is no longer valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenEnd {
    /// Revoked by an administrator.
    Revoked,
    /// Past its expiry time.
    Expired,
}

/// Decides between two executors that register for one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegistrationPolicy {
    /// The latest registration replaces earlier ones.
    NewestWins,
    /// The attached executor keeps the environment while it is attached.
    FirstWins,
}

/// An environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Environment id.
    pub id: String,
    /// Registration policy.
    pub policy: RegistrationPolicy,
    /// Creation time.
    pub created_at: Seconds,
    /// Number of registrations so far.
    pub generation: u64,
    /// Current registration.
    pub registration: Option<Registration>,
}

/// A registration of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Registration id.
    pub id: String,
    /// Sequence number within the environment.
    pub generation: u64,
    /// Public key of the executor.
    pub executor_key: PublicKey,
    /// Creation time.
    pub created_at: Seconds,
}

/// A registration to be stored.
#[derive(Debug, Clone)]
pub struct NewRegistration {
    /// Registration id.
    pub id: String,
    /// Environment id.
    pub environment: String,
    /// Public key of the executor.
    pub executor_key: PublicKey,
    /// Expected current generation; a different one is a conflict.
    pub after: u64,
}

/// A single-use authorization of a harness key.
#[derive(Debug, Clone)]
pub struct Authorization {
    /// Digest of the authorization secret.
    pub hash: Digest,
    /// Environment id.
    pub environment: String,
    /// Registration id.
    pub registration: String,
    /// Digest of the harness's public key.
    pub harness_key: Digest,
}

/// Why a harness is not authorized, for logs and metrics; the executor is told only that it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAuthorized {
    /// No such authorization exists, or its token was revoked.
    Unknown,
    /// Issued for another environment.
    OtherEnvironment,
    /// Issued for another registration, or that registration was replaced.
    StaleRegistration,
    /// Issued for another harness key.
    OtherKey,
    /// Already used.
    Used,
    /// Past its expiry time.
    Expired,
}

/// Persistent state of a rendezvous.
pub trait Store: Send + Sync + 'static {
    /// Finds a token by its digest and records its use.
    fn use_token(&self, hash: &Digest, now: Seconds) -> Result<Option<Token>, StoreError>;
    /// Finds a token by id.
    fn token(&self, id: &str) -> Result<Option<Token>, StoreError>;
    /// All tokens.
    fn tokens(&self) -> Result<Vec<Token>, StoreError>;
    /// Adds a token, and its environment if necessary.
    fn add_token(&self, token: &Token, hash: &Digest) -> Result<(), StoreError>;
    /// Revokes a token; returns whether it exists.
    fn revoke_token(&self, id: &str, now: Seconds) -> Result<bool, StoreError>;
    /// Deletes a token, which also ends it; returns whether it exists.
    ///
    /// The row stays, hidden and without its label, until [`Store::prune`]: other processes learn from it that the token
    /// has ended.
    fn delete_token(&self, id: &str, now: Seconds) -> Result<bool, StoreError>;
    /// Tokens revoked since `since`, or expired between `since` and `now`.
    fn ended_since(
        &self,
        since: Seconds,
        now: Seconds,
    ) -> Result<Vec<(String, TokenEnd)>, StoreError>;

    /// Finds an environment by id.
    fn environment(&self, id: &str) -> Result<Option<Environment>, StoreError>;
    /// All environments.
    fn environments(&self) -> Result<Vec<Environment>, StoreError>;
    /// Sets the registration policy; returns whether the environment exists.
    fn set_policy(&self, id: &str, policy: RegistrationPolicy) -> Result<bool, StoreError>;
    /// Deletes an environment with its tokens and registrations; returns whether it exists.
    fn delete_environment(&self, id: &str, now: Seconds) -> Result<bool, StoreError>;
    /// Makes a registration the current one and returns its generation.
    fn register(&self, new: &NewRegistration, now: Seconds) -> Result<u64, StoreError>;

    /// Adds an authorization; returns false if the token already has `max_unused` unused ones.
    fn add_authorization(
        &self,
        authorization: &Authorization,
        token: &str,
        expires: Seconds,
        max_unused: u32,
    ) -> Result<bool, StoreError>;
    /// Consumes an authorization that matches in every field and is current; otherwise returns why not.
    fn use_authorization(
        &self,
        authorization: &Authorization,
        now: Seconds,
    ) -> Result<Result<(), NotAuthorized>, StoreError>;
    /// Consumes a nonce; returns whether it was unused.
    fn use_nonce(&self, nonce: &str, expires: Seconds) -> Result<bool, StoreError>;

    /// Reads a named value.
    fn note(&self, name: &str) -> Result<Option<String>, StoreError>;
    /// Writes a named value.
    fn set_note(&self, name: &str, value: &str) -> Result<(), StoreError>;
    /// Whether the disk is so full that the database is open exclusively and most writes fail.
    fn is_cramped(&self) -> bool;
    /// Reopens the database in shared mode if there is space again; returns whether that happened.
    fn recover(&self) -> Result<bool, StoreError>;
    /// Deletes expired rows.
    fn prune(&self, now: Seconds) -> Result<(), StoreError>;
}

/// Asynchronous access to a store.
#[derive(Clone)]
pub struct Storage(Arc<dyn Store>);

impl Storage {
    /// Wraps a store.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }

    /// Runs a query on a blocking thread.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.0.clone();
        let answer = tokio::task::spawn_blocking(move || question(&*store));
        answer.await.unwrap_or(Err(StoreError::NotAsked))
    }
}

impl Token {
    /// Whether the token is valid at `now`.
    pub fn is_good(&self, now: Seconds) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires| now < expires)
    }
}

impl TokenRole {
    /// Name in the store, on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Executor => "executor",
            Self::Harness => "harness",
            Self::Admin => "admin",
        }
    }
}

impl NotAuthorized {
    /// Label in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown_authorization",
            Self::OtherEnvironment => "other_environment",
            Self::StaleRegistration => "stale_registration",
            Self::OtherKey => "other_key",
            Self::Used => "used_authorization",
            Self::Expired => "expired_authorization",
        }
    }
}

impl RegistrationPolicy {
    /// Name in the store, on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewestWins => "newest-wins",
            Self::FirstWins => "first-wins",
        }
    }
}

/// Whether an id is valid: it must survive in a URL path even if a peer does not encode it.
pub fn is_environment_id(id: &str) -> bool {
    let is_bad =
        |letter: char| letter.is_control() || matches!(letter, '/' | '\\' | '?' | '#' | '%');
    !id.is_empty()
        && id.len() <= MAX_ENVIRONMENT_ID_BYTES
        && id.trim() == id
        && !matches!(id, "." | "..")
        && !id.contains(is_bad)
}

/// Bounds the length of log lines.
const MAX_ENVIRONMENT_ID_BYTES: usize = 128;
