//! Persistent state: environments, registrations, authorizations and tokens.
//!
//! Each operation is one round trip and one transaction, so that several nodes can share a store.
//! [`SqliteStore`] is the embedded store of a single node, [`PostgresStore`] is shared by several. One test suite
//! (`tests/it/rendezvous/store.rs` of the binary) runs on both.

mod postgres;
mod sqlite;
mod times;

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

use exec_server_relay::registry_types::PublicKey;
use serde::{Deserialize, Serialize};

use crate::clock::Seconds;
use crate::secrets::Digest;
use crate::signed_url::Claims;

pub use postgres::{
    ClaimId, ClaimRequest, Claimed, HeldClaim, ImportError, Located, NodeReport, NodeRow,
    OpenError, PostgresStore, Renewal, StoreUrlError,
};
pub use sqlite::SqliteStore;
pub use times::StoreTimes;

/// Recording every use of a token would cost a write per request.
const USE_NOTED_EVERY: Seconds = 60;

/// Two executors with one name replace each other every second, so old registrations must be bounded.
const KEPT_REGISTRATIONS: i64 = 16;

/// Retention of replaced registrations and of revoked or expired tokens, for inspection.
const KEPT_AFTER_THEIR_END: Seconds = 30 * 24 * 3600;

/// Retention of deleted tokens, in which every process learns that they have ended.
const KEPT_AFTER_DELETION: Seconds = 600;

/// Used authorizations are kept this much beyond their expiry, because clocks of nodes differ.
const PRUNED_AFTER_EXPIRY: Seconds = 60;

/// The outcome of an operation, once the store has answered.
pub type Query<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The cause of a failure, in the words of the database.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A write failed, possibly temporarily; nothing was written.
    #[error("the database cannot be written: {0}")]
    Unwritten(Cause),
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
    /// The database reported an error.
    #[error("the database failed: {0}")]
    Database(Cause),
    /// The database server cannot be reached, or the connection to it was lost.
    #[error("{engine} at {address} cannot be reached: {why}")]
    Unreachable {
        /// The kind of database.
        engine: &'static str,
        /// Where it is, without a password.
        address: String,
        /// The cause.
        why: String,
    },
    /// A stored value is invalid.
    #[error("the database is corrupt: cannot read {0}")]
    Corrupt(&'static str),
    /// The store has stopped.
    #[error("the database query was cancelled")]
    NotAsked,
}

impl StoreError {
    /// The same error for another caller of one statement.
    fn repeat(&self) -> Self {
        match self {
            Self::Unwritten(cause) => Self::Unwritten(cause.to_string().into()),
            Self::TooNew { found, known } => Self::TooNew { found: *found, known: *known },
            Self::Database(cause) => Self::Database(cause.to_string().into()),
            Self::Unreachable { engine, address, why } => {
                let (address, why) = (address.clone(), why.clone());
                Self::Unreachable { engine, address, why }
            }
            Self::Corrupt(what) => Self::Corrupt(what),
            Self::NotAsked => Self::NotAsked,
        }
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
    /// Registration of the executor that is attached now; with first-wins it keeps the environment.
    pub attached: Option<String>,
}

/// Why a registration was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRegistered {
    /// No token was ever made for the environment, or it was deleted.
    UnknownEnvironment,
    /// Another executor is attached, and the policy is first-wins.
    Taken,
}

/// Why a websocket is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The token was revoked, deleted or has expired.
    EndedToken,
    /// The registration is not the current one.
    OldRegistration,
    /// The URL was used before.
    UsedNonce,
}

/// An authorization to be stored.
#[derive(Debug, Clone)]
pub struct NewAuthorization {
    /// What is authorized; its registration must be the current one.
    pub authorization: Authorization,
    /// Id of the token that asked for it.
    pub token: String,
    /// Expiry time.
    pub expires: Seconds,
    /// How many unused authorizations a token may have.
    pub max_unused: u32,
}

/// Why an authorization was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotGranted {
    /// The environment does not exist.
    UnknownEnvironment,
    /// The registration is not the current one.
    OldRegistration,
    /// The token has too many unused authorizations.
    TooMany,
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
    /// Finds a token by its digest, and records its use in the background.
    fn authenticate(&self, hash: Digest, now: Seconds) -> Query<'_, Option<Token>>;
    /// All tokens.
    fn tokens(&self) -> Query<'_, Vec<Token>>;
    /// Adds a token, and its environment if necessary.
    fn add_token(&self, token: Token, hash: Digest) -> Query<'_, ()>;
    /// Revokes a token; returns whether it exists.
    fn revoke_token(&self, id: String, now: Seconds) -> Query<'_, bool>;
    /// Deletes a token, which also ends it; returns whether it exists.
    ///
    /// The row stays, hidden and without its label, until [`Store::prune`]: other processes learn from it that the token
    /// has ended.
    fn delete_token(&self, id: String, now: Seconds) -> Query<'_, bool>;
    /// Tokens revoked since `since`, or expired between `since` and `now`.
    fn ended_since(&self, since: Seconds, now: Seconds) -> Query<'_, Vec<(String, TokenEnd)>>;

    /// Finds an environment by id.
    fn environment(&self, id: String) -> Query<'_, Option<Environment>>;
    /// All environments.
    fn environments(&self) -> Query<'_, Vec<Environment>>;
    /// Sets the registration policy; returns whether the environment exists.
    fn set_policy(&self, id: String, policy: RegistrationPolicy) -> Query<'_, bool>;
    /// Deletes an environment with its tokens and registrations; returns the ids of the tokens, if it exists.
    fn delete_environment(&self, id: String, now: Seconds) -> Query<'_, Option<Vec<String>>>;
    /// Makes a registration the current one and returns its generation.
    fn register(&self, new: NewRegistration, now: Seconds)
    -> Query<'_, Result<u64, NotRegistered>>;

    /// Checks token and registration of an executor's URL; returns the generation.
    fn admit_executor(&self, claims: Claims, now: Seconds) -> Query<'_, Result<u64, Denial>>;
    /// Checks token and registration of a harness's URL and consumes its nonce; returns the token's stream limit.
    fn admit_harness(
        &self,
        claims: Claims,
        nonce: String,
        now: Seconds,
    ) -> Query<'_, Result<Option<u32>, Denial>>;
    /// Stores an authorization for the current registration, which it returns.
    fn authorize(&self, new: NewAuthorization) -> Query<'_, Result<Registration, NotGranted>>;
    /// Consumes an authorization that matches in every field and is current; otherwise returns why not.
    fn use_authorization(
        &self,
        asked: Authorization,
        now: Seconds,
    ) -> Query<'_, Result<(), NotAuthorized>>;

    /// Reads a named value.
    fn note(&self, name: &'static str) -> Query<'_, Option<String>>;
    /// Writes a named value.
    fn set_note(&self, name: &'static str, value: String) -> Query<'_, ()>;
    /// Whether the disk is so full that the database is open exclusively and most writes fail.
    fn is_cramped(&self) -> bool;
    /// Reopens the database in shared mode if there is space again; returns whether that happened.
    fn recover(&self) -> Query<'_, bool>;
    /// Deletes expired rows.
    fn prune(&self, now: Seconds) -> Query<'_, ()>;
    /// How long its operations take.
    fn times(&self) -> &StoreTimes;
}

/// A store that is shared by all connections.
pub type SharedStore = Arc<dyn Store>;

/// Whether the use of a token was recorded a moment ago.
fn is_use_noted(token: &Token, now: Seconds) -> bool {
    token.last_used_at.is_some_and(|last| now < last + USE_NOTED_EVERY)
}

impl NewRegistration {
    /// Whether another executor holds the environment; the same executor may always register again.
    fn is_taken(&self, known: &Environment) -> bool {
        let current = known.registration.as_ref();
        let attached = current.filter(|current| self.attached.as_ref() == Some(&current.id));
        known.policy == RegistrationPolicy::FirstWins
            && attached.is_some_and(|attached| attached.executor_key != self.executor_key)
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

    fn from_name(name: &str) -> Option<Self> {
        [Self::Executor, Self::Harness, Self::Admin].into_iter().find(|role| role.name() == name)
    }
}

impl NotAuthorized {
    /// Explains why a stored authorization was not used: whether its environment, registration, key, use and expiry fit.
    fn explain(found: Option<[bool; 5]>) -> Self {
        match found {
            None => Self::Unknown,
            Some([false, ..]) => Self::OtherEnvironment,
            Some([_, false, ..]) => Self::StaleRegistration,
            Some([_, _, false, ..]) => Self::OtherKey,
            Some([_, _, _, false, _]) => Self::Used,
            Some([.., false]) => Self::Expired,
            // Every field matches, so the registration has been replaced.
            Some(_) => Self::StaleRegistration,
        }
    }

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

    fn from_name(name: &str) -> Option<Self> {
        [Self::NewestWins, Self::FirstWins].into_iter().find(|policy| policy.name() == name)
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
