//! The store in PostgreSQL, shared by the nodes of a cluster.
//!
//! Each operation is one statement. Registrations and tokens are synced to disk; authorizations and nonces are not: after
//! a crash of the database, one could be used again within a minute, by the same harness key only.
//!
//! | module | contains |
//! |---|---|
//! | `pools` | connections, addresses, errors |
//! | `gather` | one statement for several requests that arrive together |
//! | `admission`, `registration` | statements of that kind, for what all peers do after a crash |
//! | `tls` | TLS for them |
//! | `schema` | tables and migrations |
//! | `cluster` | leases of nodes, claims of executors |
//! | `import` | the data of a single node |
//! | `rows` | from rows to values |

mod admission;
mod cluster;
mod gather;
mod import;
mod pools;
mod registration;
mod rows;
mod schema;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Object;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{
    Authorization, Denial, Environment, KEPT_AFTER_DELETION, KEPT_AFTER_THEIR_END,
    NewAuthorization, NewRegistration, NotAuthorized, NotGranted, NotRegistered,
    PRUNED_AFTER_EXPIRY, Query, Registration, RegistrationPolicy, Store, StoreError, StoreTimes,
    Token, TokenEnd, is_use_noted,
};
use crate::clock::Seconds;
use crate::membership::LEASE;
use crate::secrets::Digest;
use crate::signed_url::Claims;
use admission::{
    AdmitExecutor, AdmitHarness, Authenticate, ExecutorUrl, HarnessUrl, NoteUse, TokenUse,
};
use cluster::{Locate, Supersede};
use gather::Gather;
use pools::{Pools, STATEMENT_TIMEOUT};
use registration::{Authorize, Register, Registering};
use rows::{read_environment, read_token};

pub use cluster::{
    ClaimId, ClaimRequest, Claimed, HeldClaim, Located, NodeReport, NodeRow, Renewal,
};
pub use import::ImportError;
pub use pools::StoreUrlError;

const TOKEN: &str = "SELECT id, role, environment, created_at, expires_at, revoked_at, last_used_at, max_streams, label, hash FROM tokens WHERE deleted_at IS NULL";
const ENVIRONMENT: &str = "
    SELECT e.id, e.policy, e.created_at, e.generation, r.id, r.generation, r.executor_key, r.created_at
    FROM environments e LEFT JOIN registrations r ON r.id = e.registration";
/// A store in PostgreSQL.
pub struct PostgresStore {
    pools: Arc<Pools>,
    times: StoreTimes,
    authenticate: Gather<Authenticate>,
    note_use: Arc<Gather<NoteUse>>,
    register: Gather<Register>,
    admit_executor: Gather<AdmitExecutor>,
    admit_harness: Gather<AdmitHarness>,
    authorize: Gather<Authorize>,
    locate: Gather<Locate>,
    supersede: Gather<Supersede>,
}

/// The connections that a statement uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// Synced to disk before it is answered.
    Durable,
    /// Not synced.
    Quick,
    /// Not synced, and never waits for other statements: a late renewal would end the lease.
    Lease,
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

impl PostgresStore {
    fn new(url: &str) -> Result<Self, StoreUrlError> {
        let (pools, times) = (Arc::new(Pools::new(url)?), StoreTimes::default());
        Ok(Self {
            authenticate: Gather::new(&pools, &times),
            note_use: Arc::new(Gather::new(&pools, &times)),
            register: Gather::new(&pools, &times),
            admit_executor: Gather::new(&pools, &times),
            admit_harness: Gather::new(&pools, &times),
            authorize: Gather::new(&pools, &times),
            locate: Gather::new(&pools, &times),
            supersede: Gather::new(&pools, &times),
            pools,
            times,
        })
    }

    /// Connects to a database and checks its schema.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        let store = Self::new(url)?;
        let client = store.pools.quick().await?;
        let found = schema::version(&client).await.map_err(|error| store.pools.failed(error))?;
        match found {
            None => Err(OpenError::NoSchema(store.address().to_owned())),
            Some(found) if found < schema::KNOWN => Err(OpenError::OldSchema {
                address: store.address().to_owned(),
                found,
                known: schema::KNOWN,
            }),
            // The next version only adds to this one, so nodes of two versions can share a database.
            Some(found) if found > schema::KNOWN + 1 => {
                Err(StoreError::TooNew { found, known: schema::KNOWN }.into())
            }
            Some(_) => Ok(store),
        }
    }

    /// Creates the tables, or brings them to the current version.
    pub async fn migrate(url: &str) -> Result<Self, OpenError> {
        let store = Self::new(url)?;
        let mut client = store.pools.durable().await?;
        schema::migrate(&mut client, |error| store.pools.failed(error)).await?;
        Ok(store)
    }

    /// Host, port and database.
    pub fn address(&self) -> &str {
        self.pools.address()
    }

    async fn rows(
        &self,
        operation: &'static str,
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        self.times.of(operation, rows_of(&self.pools, lane, statement, parameters)).await
    }

    async fn row(
        &self,
        operation: &'static str,
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(operation, lane, statement, parameters).await?.into_iter().next())
    }
}

async fn rows_of(
    pools: &Pools,
    lane: Lane,
    statement: &str,
    parameters: Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    let client = match lane {
        Lane::Durable => pools.durable().await?,
        Lane::Quick => pools.quick().await?,
        Lane::Lease => pools.lease().await?,
    };
    let asked = async {
        let statement = client.prepare_cached(statement).await?;
        client.query(&statement, parameters).await
    };
    match tokio::time::timeout(lane.timeout(), asked).await {
        Ok(answer) => answer.map_err(|error| pools.failed(error)),
        Err(_) => {
            // The answer may come late, and would hold up the next user of the connection.
            drop(Object::take(client));
            Err(pools.silent(lane.timeout()))
        }
    }
}

impl Lane {
    /// How long an answer may take; the server gives up a statement a little earlier.
    fn timeout(self) -> Duration {
        match self {
            Self::Durable | Self::Quick => STATEMENT_TIMEOUT + Duration::from_secs(1),
            Self::Lease => LEASE,
        }
    }
}

/// Why a PostgreSQL store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not usable.
    #[error(transparent)]
    Url(#[from] StoreUrlError),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database has no tables yet.
    #[error(
        "the PostgreSQL database {0} has no tables yet; create them with: exec-server rendezvous migrate"
    )]
    NoSchema(String),
    /// The tables are of an older version.
    #[error(
        "the PostgreSQL database {address} has schema version {found}, but this program needs {known}; change it with: exec-server rendezvous migrate"
    )]
    OldSchema {
        /// Host, port and database.
        address: String,
        /// Version of the database.
        found: i64,
        /// Version of this program.
        known: i64,
    },
}

impl Store for PostgresStore {
    fn authenticate(&self, hash: Digest, now: Seconds) -> Query<'_, Option<Token>> {
        Box::pin(async move {
            let token = self.authenticate.ask(hash).await?;
            if let Some(token) = token.as_ref().filter(|token| !is_use_noted(token, now)) {
                let (note_use, token) = (self.note_use.clone(), token.id.clone());
                tokio::spawn(async move {
                    if let Err(error) = note_use.ask(TokenUse { token, at: now }).await {
                        tracing::debug!(%error, "could not record the use of a token");
                    }
                });
            }
            Ok(token)
        })
    }

    fn tokens(&self) -> Query<'_, Vec<Token>> {
        Box::pin(async move {
            let all = format!("{TOKEN} ORDER BY created_at, id");
            self.rows("tokens", Lane::Quick, &all, &[]).await?.iter().map(read_token).collect()
        })
    }

    fn add_token(&self, token: Token, hash: Digest) -> Query<'_, ()> {
        Box::pin(async move {
            let add = "
                WITH made AS (
                    INSERT INTO environments (id, created_at) SELECT $4, $5 WHERE $4::text IS NOT NULL
                    ON CONFLICT DO NOTHING)
                INSERT INTO tokens (id, hash, role, environment, created_at, expires_at, max_streams, label)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
            let max_streams = token.max_streams.map(i64::from);
            let parameters: Parameters = &[
                &token.id,
                &&hash[..],
                &token.role.name(),
                &token.environment,
                &token.created_at,
                &token.expires_at,
                &max_streams,
                &token.label,
            ];
            self.rows("add_token", Lane::Durable, add, parameters).await.map(drop)
        })
    }

    fn revoke_token(&self, id: String, now: Seconds) -> Query<'_, bool> {
        Box::pin(async move {
            // Authorizations issued for the token must not be usable either.
            let revoke = "
                WITH unused AS (DELETE FROM authorizations WHERE token = $1)
                UPDATE tokens SET revoked_at = coalesce(revoked_at, $2)
                WHERE id = $1 AND deleted_at IS NULL RETURNING 1";
            Ok(self.row("revoke_token", Lane::Durable, revoke, &[&id, &now]).await?.is_some())
        })
    }

    fn delete_token(&self, id: String, now: Seconds) -> Query<'_, bool> {
        Box::pin(async move {
            let delete = "
                WITH unused AS (DELETE FROM authorizations WHERE token = $1)
                UPDATE tokens SET revoked_at = $2, deleted_at = $2, label = NULL
                WHERE id = $1 AND deleted_at IS NULL RETURNING 1";
            Ok(self.row("delete_token", Lane::Durable, delete, &[&id, &now]).await?.is_some())
        })
    }

    fn ended_since(&self, since: Seconds, now: Seconds) -> Query<'_, Vec<(String, TokenEnd)>> {
        Box::pin(async move {
            let ended = "SELECT id, revoked_at IS NOT NULL FROM tokens
                WHERE revoked_at >= $1 OR (expires_at >= $1 AND expires_at <= $2)";
            let rows = self.rows("ended_since", Lane::Quick, ended, &[&since, &now]).await?;
            let end = |row: Row| match row.get(1) {
                true => (row.get(0), TokenEnd::Revoked),
                false => (row.get(0), TokenEnd::Expired),
            };
            Ok(rows.into_iter().map(end).collect())
        })
    }

    fn environment(&self, id: String) -> Query<'_, Option<Environment>> {
        Box::pin(async move {
            let find = format!("{ENVIRONMENT} WHERE e.id = $1");
            self.row("environment", Lane::Quick, &find, &[&id])
                .await?
                .as_ref()
                .map(read_environment)
                .transpose()
        })
    }

    fn environments(&self) -> Query<'_, Vec<Environment>> {
        Box::pin(async move {
            let all = format!("{ENVIRONMENT} ORDER BY e.id");
            self.rows("environments", Lane::Quick, &all, &[])
                .await?
                .iter()
                .map(read_environment)
                .collect()
        })
    }

    fn set_policy(&self, id: String, policy: RegistrationPolicy) -> Query<'_, bool> {
        Box::pin(async move {
            let set = "UPDATE environments SET policy = $2 WHERE id = $1 RETURNING 1";
            Ok(self.row("set_policy", Lane::Durable, set, &[&id, &policy.name()]).await?.is_some())
        })
    }

    fn delete_environment(&self, id: String, now: Seconds) -> Query<'_, Option<Vec<String>>> {
        Box::pin(async move {
            // Registrations and the tokens' references go with the row of the environment.
            let delete = "
                WITH gone AS (DELETE FROM environments WHERE id = $1 RETURNING 1),
                    unused AS (DELETE FROM authorizations WHERE environment = $1),
                    ended AS (SELECT id FROM tokens WHERE environment = $1 AND deleted_at IS NULL)
                SELECT EXISTS (SELECT 1 FROM gone), coalesce((SELECT array_agg(id) FROM ended), '{}')";
            let end = "UPDATE tokens SET revoked_at = $2, deleted_at = $2, label = NULL WHERE id = ANY($1)";
            let failed = |error| self.pools.failed(error);
            let deleting = async {
                let mut client = self.pools.durable().await?;
                let transaction = client.transaction().await.map_err(failed)?;
                let row = transaction.query_one(delete, &[&id]).await.map_err(failed)?;
                let ended: Vec<String> = row.get(1);
                transaction.execute(end, &[&ended, &now]).await.map_err(failed)?;
                transaction.commit().await.map_err(failed)?;
                Ok(row.get::<_, bool>(0).then_some(ended))
            };
            self.times.of("delete_environment", deleting).await
        })
    }

    fn register(
        &self,
        new: NewRegistration,
        now: Seconds,
    ) -> Query<'_, Result<u64, NotRegistered>> {
        Box::pin(self.register.ask(Registering { new, now }))
    }

    fn admit_executor(&self, claims: Claims, now: Seconds) -> Query<'_, Result<u64, Denial>> {
        Box::pin(self.admit_executor.ask(ExecutorUrl { claims, now }))
    }

    fn admit_harness(
        &self,
        claims: Claims,
        nonce: String,
        now: Seconds,
    ) -> Query<'_, Result<Option<u32>, Denial>> {
        Box::pin(self.admit_harness.ask(HarnessUrl { claims, nonce, now }))
    }

    fn authorize(&self, new: NewAuthorization) -> Query<'_, Result<Registration, NotGranted>> {
        Box::pin(self.authorize.ask(new))
    }

    fn use_authorization(
        &self,
        asked: Authorization,
        now: Seconds,
    ) -> Query<'_, Result<(), NotAuthorized>> {
        Box::pin(async move {
            let consume = "
                WITH used AS (
                    UPDATE authorizations SET used_at = $5
                    WHERE hash = $1 AND environment = $2 AND registration = $3 AND harness_key = $4
                      AND used_at IS NULL AND expires_at > $5
                      AND EXISTS (SELECT 1 FROM environments WHERE id = $2 AND registration = $3)
                    RETURNING 1)
                SELECT EXISTS (SELECT 1 FROM used),
                    EXISTS (SELECT 1 FROM environments WHERE id = $2 AND registration = $3),
                    a.environment = $2, a.registration = $3, a.harness_key = $4, a.used_at IS NULL, a.expires_at > $5
                FROM (VALUES (1)) AS one LEFT JOIN authorizations a ON a.hash = $1";
            let Authorization { hash, environment, registration, harness_key } = &asked;
            let parameters: Parameters =
                &[&&hash[..], environment, registration, &&harness_key[..], &now];
            let row = self
                .row("use_authorization", Lane::Quick, consume, parameters)
                .await?
                .ok_or(StoreError::NotAsked)?;
            if row.get(0) {
                return Ok(Ok(()));
            }
            let is_current: bool = row.get(1);
            let found = row.get::<_, Option<bool>>(2).map(|fits| {
                let fit = |index| row.get::<_, Option<bool>>(index).unwrap_or(false);
                [fits, fit(3), fit(4), fit(5), fit(6)]
            });
            Ok(Err(match found {
                // Another statement used it after this one had begun.
                Some([true, true, true, true, true]) if is_current => NotAuthorized::Used,
                found => NotAuthorized::explain(found),
            }))
        })
    }

    fn note(&self, name: &'static str) -> Query<'_, Option<String>> {
        Box::pin(async move {
            let find = "SELECT value FROM notes WHERE name = $1";
            Ok(self.row("note", Lane::Quick, find, &[&name]).await?.map(|row| row.get(0)))
        })
    }

    fn set_note(&self, name: &'static str, value: String) -> Query<'_, ()> {
        Box::pin(async move {
            let set = "INSERT INTO notes (name, value) VALUES ($1, $2)
                ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            self.rows("set_note", Lane::Durable, set, &[&name, &value]).await.map(drop)
        })
    }

    fn is_cramped(&self) -> bool {
        false
    }

    fn recover(&self) -> Query<'_, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    fn prune(&self, now: Seconds) -> Query<'_, ()> {
        Box::pin(async move {
            let prune = "
                WITH a AS (DELETE FROM authorizations WHERE expires_at < $1),
                    n AS (DELETE FROM nonces WHERE expires_at < $1),
                    r AS (DELETE FROM registrations WHERE superseded_at < $2)
                DELETE FROM tokens WHERE revoked_at < $2 OR expires_at < $2 OR deleted_at < $3";
            let (fresh, old) = (now - PRUNED_AFTER_EXPIRY, now - KEPT_AFTER_THEIR_END);
            let deleted = now - KEPT_AFTER_DELETION;
            self.rows("prune", Lane::Quick, prune, &[&fresh, &old, &deleted]).await.map(drop)
        })
    }

    fn times(&self) -> &StoreTimes {
        &self.times
    }
}
