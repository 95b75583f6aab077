//! What a rendezvous remembers: environments, registrations, authorizations and tokens.
//!
//! The trait is blocking, and [`Storage`] keeps it off the event loop. All that must happen once happens in one
//! statement, so that several nodes can share a store.

mod schema;
mod sqlite;

use std::sync::Arc;

use exec_server_protocol::registry::PublicKey;
use serde::{Deserialize, Serialize};

use crate::clock::Seconds;
use crate::secrets::Digest;

pub use sqlite::SqliteStore;

/// Why a store does not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else was faster; nothing was written.
    #[error("somebody else changed it at the same time")]
    Conflict,
    /// It cannot be written, at least for now; nothing was written.
    #[error("the database cannot be written: {0}")]
    Unwritten(#[source] rusqlite::Error),
    /// A database of a later version.
    #[error("the database has version {found}, and this program knows only up to {known}")]
    TooNew {
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The database itself failed.
    #[error("the database failed: {0}")]
    Database(#[from] rusqlite::Error),
    /// What is stored cannot be understood.
    #[error("the database holds something that cannot be read: {0}")]
    Corrupt(&'static str),
    /// The thread that asked is gone.
    #[error("the database was not asked")]
    NotAsked,
}

/// What the bearer of a token may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// The executor of its environment.
    Executor,
    /// A harness in its environment.
    Harness,
    /// Who makes and revokes tokens.
    Admin,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Token {
    /// Its name.
    pub id: String,
    /// What its bearer may be.
    pub role: TokenRole,
    /// Where; an admin is bound to no environment.
    pub environment: Option<String>,
    /// Since when it exists.
    pub created_at: Seconds,
    /// Until when it is good.
    pub expires_at: Option<Seconds>,
    /// Since when it is not.
    pub revoked_at: Option<Seconds>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Seconds>,
    /// How many streams it may have at once.
    pub max_streams: Option<u32>,
}

/// Why a token is not good any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenEnd {
    /// Somebody took it back.
    Revoked,
    /// Its time is over.
    Expired,
}

/// Who wins when two executors register for one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegistrationPolicy {
    /// The one that comes last.
    NewestWins,
    /// The one that is attached, as long as it is.
    FirstWins,
}

/// An environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Its id.
    pub id: String,
    /// Who wins.
    pub policy: RegistrationPolicy,
    /// Since when it exists.
    pub created_at: Seconds,
    /// How often an executor was registered for it.
    pub generation: u64,
    /// The registration that counts.
    pub registration: Option<Registration>,
}

/// A registration of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Its id.
    pub id: String,
    /// Its place among the registrations of the environment.
    pub generation: u64,
    /// Who the executor is.
    pub executor_key: PublicKey,
    /// Since when it exists.
    pub created_at: Seconds,
}

/// A registration that is to be.
#[derive(Debug, Clone)]
pub struct NewRegistration {
    /// Its id.
    pub id: String,
    /// For which environment.
    pub environment: String,
    /// Who the executor is.
    pub executor_key: PublicKey,
    /// The generation that the caller saw; another one now is a conflict.
    pub after: u64,
}

/// The word of the registry for a harness, to be used once.
#[derive(Debug, Clone)]
pub struct Authorization {
    /// Known by this.
    pub hash: Digest,
    /// In which environment.
    pub environment: String,
    /// With which registration.
    pub registration: String,
    /// For whom.
    pub harness_key: Digest,
}

/// Why a harness is not let in, for logs and metrics; an executor hears only that it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAuthorized {
    /// Nobody gave out such an authorization, or its token was revoked.
    Unknown,
    /// It is for another environment.
    OtherEnvironment,
    /// It is for another registration, or that one was replaced.
    StaleRegistration,
    /// It is for another harness.
    OtherKey,
    /// It was used.
    Used,
    /// It came too late.
    Expired,
}

/// What a rendezvous remembers.
pub trait Store: Send + Sync + 'static {
    /// The token with this digest, and notes that it was used.
    fn use_token(&self, hash: &Digest, now: Seconds) -> Result<Option<Token>, StoreError>;
    /// The token with this id.
    fn token(&self, id: &str) -> Result<Option<Token>, StoreError>;
    /// All tokens.
    fn tokens(&self) -> Result<Vec<Token>, StoreError>;
    /// Keeps a token, and makes its environment if there is none.
    fn add_token(&self, token: &Token, hash: &Digest) -> Result<(), StoreError>;
    /// Revokes a token; whether there was one.
    fn revoke_token(&self, id: &str, now: Seconds) -> Result<bool, StoreError>;
    /// The tokens that were revoked at or after a time, or expired from then until now.
    fn ended_since(
        &self,
        since: Seconds,
        now: Seconds,
    ) -> Result<Vec<(String, TokenEnd)>, StoreError>;

    /// The environment with this id.
    fn environment(&self, id: &str) -> Result<Option<Environment>, StoreError>;
    /// All environments.
    fn environments(&self) -> Result<Vec<Environment>, StoreError>;
    /// Sets who wins; whether there is such an environment.
    fn set_policy(&self, id: &str, policy: RegistrationPolicy) -> Result<bool, StoreError>;
    /// Makes a registration the one that counts, and returns its generation.
    fn register(&self, new: &NewRegistration, now: Seconds) -> Result<u64, StoreError>;

    /// Keeps an authorization; how many of its token are unused must stay below `max_unused`, else it says false.
    fn add_authorization(
        &self,
        authorization: &Authorization,
        token: &str,
        expires: Seconds,
        max_unused: u32,
    ) -> Result<bool, StoreError>;
    /// Uses an authorization up, if it is there, fresh, for all of this, and the registration counts; else says what is wrong.
    fn use_authorization(
        &self,
        authorization: &Authorization,
        now: Seconds,
    ) -> Result<Result<(), NotAuthorized>, StoreError>;
    /// Uses a nonce up; whether nobody had.
    fn use_nonce(&self, nonce: &str, expires: Seconds) -> Result<bool, StoreError>;

    /// A note to ourselves.
    fn note(&self, name: &str) -> Result<Option<String>, StoreError>;
    /// Keeps a note.
    fn set_note(&self, name: &str, value: &str) -> Result<(), StoreError>;
    /// Forgets what is over.
    fn prune(&self, now: Seconds) -> Result<(), StoreError>;
}

/// A store that can be asked from the event loop.
#[derive(Clone)]
pub struct Storage(Arc<dyn Store>);

impl Storage {
    /// Puts a store behind threads that may wait.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }

    /// Asks the store.
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
    /// Whether it is good now.
    pub fn is_good(&self, now: Seconds) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|expires| now < expires)
    }
}

impl TokenRole {
    /// The word for it, in the store, on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Executor => "executor",
            Self::Harness => "harness",
            Self::Admin => "admin",
        }
    }
}

impl NotAuthorized {
    /// The word for it, in logs and metrics.
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
    /// The word for it, in the store, on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewestWins => "newest-wins",
            Self::FirstWins => "first-wins",
        }
    }
}

/// Whether an environment can have this id: one that stays itself in a URL, also where a peer does not encode it.
pub fn is_environment_id(id: &str) -> bool {
    let is_bad =
        |letter: char| letter.is_control() || matches!(letter, '/' | '\\' | '?' | '#' | '%');
    !id.is_empty()
        && id.len() <= MAX_ENVIRONMENT_ID_BYTES
        && id.trim() == id
        && !matches!(id, "." | "..")
        && !id.contains(is_bad)
}

/// Long enough for any name, short enough for any log line.
const MAX_ENVIRONMENT_ID_BYTES: usize = 128;
