//! The store in PostgreSQL, shared by the nodes of a cluster.
//!
//! Each operation is one statement. Registrations and tokens are synced to disk; authorizations and nonces are not: after
//! a crash of the database, one could be used again within a minute, by the same harness key only.
//!
//! | module | contains |
//! |---|---|
//! | `pools` | connections, addresses, errors |
//! | `tls` | TLS for them |
//! | `schema` | tables and migrations |
//! | `cluster` | leases of nodes, claims of executors |
//! | `import` | the data of a single node |
//! | `rows` | from rows to values |

mod cluster;
mod import;
mod pools;
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
    KEPT_REGISTRATIONS, NewAuthorization, NewRegistration, NotAuthorized, NotGranted,
    NotRegistered, PRUNED_AFTER_EXPIRY, Query, Registration, RegistrationPolicy, Store, StoreError,
    Token, TokenEnd, is_use_noted,
};
use crate::clock::Seconds;
use crate::membership::LEASE;
use crate::secrets::Digest;
use crate::signed_url::Claims;
use pools::{Pools, STATEMENT_TIMEOUT};
use rows::{read_environment, read_registration, read_token};

pub use cluster::{ClaimId, ClaimRequest, Claimed, Located, NodeReport, NodeRow, Renewal};
pub use import::ImportError;
pub use pools::StoreUrlError;

const TOKEN: &str = "SELECT id, role, environment, created_at, expires_at, revoked_at, last_used_at, max_streams, label FROM tokens WHERE deleted_at IS NULL";
const ENVIRONMENT: &str = "
    SELECT e.id, e.policy, e.created_at, e.generation, r.id, r.generation, r.executor_key, r.created_at
    FROM environments e LEFT JOIN registrations r ON r.id = e.registration";
/// A token that is good at $2.
const GOOD_TOKEN: &str = "SELECT max_streams FROM tokens
    WHERE id = $1 AND deleted_at IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)";

/// A store in PostgreSQL.
pub struct PostgresStore {
    pools: Arc<Pools>,
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
    /// Connects to a database and checks its schema.
    pub async fn open(url: &str) -> Result<Self, OpenError> {
        let store = Self { pools: Arc::new(Pools::new(url)?) };
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
        let store = Self { pools: Arc::new(Pools::new(url)?) };
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
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        rows_of(&self.pools, lane, statement, parameters).await
    }

    async fn row(
        &self,
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(lane, statement, parameters).await?.into_iter().next())
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
            let find = format!("{TOKEN} AND hash = $1");
            let row = self.row(Lane::Quick, &find, &[&&hash[..]]).await?;
            let token = row.as_ref().map(read_token).transpose()?;
            if let Some(token) = token.as_ref().filter(|token| !is_use_noted(token, now)) {
                let (pools, id) = (self.pools.clone(), token.id.clone());
                tokio::spawn(async move {
                    let note = "UPDATE tokens SET last_used_at = $1 WHERE id = $2";
                    if let Err(error) = rows_of(&pools, Lane::Quick, note, &[&now, &id]).await {
                        tracing::debug!(%error, token = id, "could not record the use of a token");
                    }
                });
            }
            Ok(token)
        })
    }

    fn tokens(&self) -> Query<'_, Vec<Token>> {
        Box::pin(async move {
            let all = format!("{TOKEN} ORDER BY created_at, id");
            self.rows(Lane::Quick, &all, &[]).await?.iter().map(read_token).collect()
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
            self.rows(Lane::Durable, add, parameters).await.map(drop)
        })
    }

    fn revoke_token(&self, id: String, now: Seconds) -> Query<'_, bool> {
        Box::pin(async move {
            // Authorizations issued for the token must not be usable either.
            let revoke = "
                WITH unused AS (DELETE FROM authorizations WHERE token = $1)
                UPDATE tokens SET revoked_at = coalesce(revoked_at, $2)
                WHERE id = $1 AND deleted_at IS NULL RETURNING 1";
            Ok(self.row(Lane::Durable, revoke, &[&id, &now]).await?.is_some())
        })
    }

    fn delete_token(&self, id: String, now: Seconds) -> Query<'_, bool> {
        Box::pin(async move {
            let delete = "
                WITH unused AS (DELETE FROM authorizations WHERE token = $1)
                UPDATE tokens SET revoked_at = $2, deleted_at = $2, label = NULL
                WHERE id = $1 AND deleted_at IS NULL RETURNING 1";
            Ok(self.row(Lane::Durable, delete, &[&id, &now]).await?.is_some())
        })
    }

    fn ended_since(&self, since: Seconds, now: Seconds) -> Query<'_, Vec<(String, TokenEnd)>> {
        Box::pin(async move {
            let ended = "SELECT id, revoked_at IS NOT NULL FROM tokens
                WHERE revoked_at >= $1 OR (expires_at >= $1 AND expires_at <= $2)";
            let rows = self.rows(Lane::Quick, ended, &[&since, &now]).await?;
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
            self.row(Lane::Quick, &find, &[&id]).await?.as_ref().map(read_environment).transpose()
        })
    }

    fn environments(&self) -> Query<'_, Vec<Environment>> {
        Box::pin(async move {
            let all = format!("{ENVIRONMENT} ORDER BY e.id");
            self.rows(Lane::Quick, &all, &[]).await?.iter().map(read_environment).collect()
        })
    }

    fn set_policy(&self, id: String, policy: RegistrationPolicy) -> Query<'_, bool> {
        Box::pin(async move {
            let set = "UPDATE environments SET policy = $2 WHERE id = $1 RETURNING 1";
            Ok(self.row(Lane::Durable, set, &[&id, &policy.name()]).await?.is_some())
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
            let mut client = self.pools.durable().await?;
            let failed = |error| self.pools.failed(error);
            let transaction = client.transaction().await.map_err(failed)?;
            let row = transaction.query_one(delete, &[&id]).await.map_err(failed)?;
            let ended: Vec<String> = row.get(1);
            transaction.execute(end, &[&ended, &now]).await.map_err(failed)?;
            transaction.commit().await.map_err(failed)?;
            Ok(row.get::<_, bool>(0).then_some(ended))
        })
    }

    fn register(
        &self,
        new: NewRegistration,
        now: Seconds,
    ) -> Query<'_, Result<u64, NotRegistered>> {
        Box::pin(async move {
            // The row of the environment is locked first, so registrations at once come one after the other.
            let register = "
                WITH known AS (SELECT 1 FROM environments WHERE id = $1),
                    current AS (
                        UPDATE environments e SET generation = e.generation + 1, registration = $2
                        WHERE e.id = $1 AND NOT coalesce(
                            e.policy = 'first-wins' AND e.registration = $3
                            AND (SELECT r.executor_key FROM registrations r WHERE r.id = e.registration) <> $4,
                            false)
                        RETURNING e.generation),
                    ended AS (
                        UPDATE registrations SET superseded_at = $5
                        WHERE environment = $1 AND superseded_at IS NULL AND EXISTS (SELECT 1 FROM current)
                          AND generation > (SELECT generation FROM current) - $6),
                    dropped AS (
                        DELETE FROM registrations
                        WHERE environment = $1 AND generation <= (SELECT generation FROM current) - $6),
                    added AS (
                        INSERT INTO registrations (id, environment, generation, executor_key, created_at)
                        SELECT $2, $1, generation, $4, $5 FROM current)
                SELECT (SELECT generation FROM current), EXISTS (SELECT 1 FROM known)";
            let key = serde_json::to_string(&new.executor_key).expect("a key can be written");
            let parameters: Parameters =
                &[&new.environment, &new.id, &new.attached, &key, &now, &KEPT_REGISTRATIONS];
            let row =
                self.row(Lane::Durable, register, parameters).await?.ok_or(StoreError::NotAsked)?;
            Ok(match (row.get::<_, Option<i64>>(0), row.get(1)) {
                (Some(generation), _) => Ok(rows::count(generation)?),
                (None, true) => Err(NotRegistered::Taken),
                (None, false) => Err(NotRegistered::UnknownEnvironment),
            })
        })
    }

    fn admit_executor(&self, claims: Claims, now: Seconds) -> Query<'_, Result<u64, Denial>> {
        Box::pin(async move {
            let admit = format!(
                "SELECT EXISTS ({GOOD_TOKEN}),
                    (SELECT generation FROM environments WHERE id = $3 AND registration = $4)"
            );
            let parameters: Parameters =
                &[&claims.token, &now, &claims.environment, &claims.registration];
            let row =
                self.row(Lane::Quick, &admit, parameters).await?.ok_or(StoreError::NotAsked)?;
            Ok(match (row.get(0), row.get::<_, Option<i64>>(1)) {
                (false, _) => Err(Denial::EndedToken),
                (true, None) => Err(Denial::OldRegistration),
                (true, Some(generation)) => Ok(rows::count(generation)?),
            })
        })
    }

    fn admit_harness(
        &self,
        claims: Claims,
        nonce: String,
        now: Seconds,
    ) -> Query<'_, Result<Option<u32>, Denial>> {
        Box::pin(async move {
            let admit = format!(
                "WITH good AS ({GOOD_TOKEN}),
                    current AS (SELECT 1 FROM environments WHERE id = $3 AND registration = $4),
                    used AS (
                        INSERT INTO nonces (nonce, expires_at) SELECT $5, $6
                        WHERE EXISTS (SELECT 1 FROM good) AND EXISTS (SELECT 1 FROM current)
                        ON CONFLICT DO NOTHING RETURNING 1)
                SELECT EXISTS (SELECT 1 FROM good), EXISTS (SELECT 1 FROM current),
                    EXISTS (SELECT 1 FROM used), (SELECT max_streams FROM good)"
            );
            let parameters: Parameters = &[
                &claims.token,
                &now,
                &claims.environment,
                &claims.registration,
                &nonce,
                &claims.expires,
            ];
            let row =
                self.row(Lane::Quick, &admit, parameters).await?.ok_or(StoreError::NotAsked)?;
            Ok(match (row.get(0), row.get(1), row.get(2)) {
                (false, _, _) => Err(Denial::EndedToken),
                (true, false, _) => Err(Denial::OldRegistration),
                (true, true, false) => Err(Denial::UsedNonce),
                (true, true, true) => Ok(rows::stream_limit(row.get(3))?),
            })
        })
    }

    fn authorize(&self, new: NewAuthorization) -> Query<'_, Result<Registration, NotGranted>> {
        Box::pin(async move {
            let authorize = "
                WITH known AS (SELECT registration FROM environments WHERE id = $2),
                    current AS (
                        SELECT r.id, r.generation, r.executor_key, r.created_at
                        FROM registrations r, known WHERE r.id = known.registration AND r.id = $3),
                    added AS (
                        INSERT INTO authorizations (hash, environment, registration, harness_key, token, expires_at)
                        SELECT $1, $2, $3, $4, $5, $6 FROM current
                        WHERE (SELECT count(*) FROM authorizations WHERE token = $5 AND used_at IS NULL) < $7
                        RETURNING 1)
                SELECT EXISTS (SELECT 1 FROM known), EXISTS (SELECT 1 FROM added), current.*
                FROM (VALUES (1)) AS one LEFT JOIN current ON true";
            let Authorization { hash, environment, registration, harness_key } = &new.authorization;
            let parameters: Parameters = &[
                &&hash[..],
                environment,
                registration,
                &&harness_key[..],
                &new.token,
                &new.expires,
                &i64::from(new.max_unused),
            ];
            let row =
                self.row(Lane::Quick, authorize, parameters).await?.ok_or(StoreError::NotAsked)?;
            let (is_known, is_added) = (row.get(0), row.get(1));
            Ok(match read_registration(&row, 2)? {
                None if is_known => Err(NotGranted::OldRegistration),
                None => Err(NotGranted::UnknownEnvironment),
                Some(current) if is_added => Ok(current),
                Some(_) => Err(NotGranted::TooMany),
            })
        })
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
            let row =
                self.row(Lane::Quick, consume, parameters).await?.ok_or(StoreError::NotAsked)?;
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
            Ok(self.row(Lane::Quick, find, &[&name]).await?.map(|row| row.get(0)))
        })
    }

    fn set_note(&self, name: &'static str, value: String) -> Query<'_, ()> {
        Box::pin(async move {
            let set = "INSERT INTO notes (name, value) VALUES ($1, $2)
                ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            self.rows(Lane::Durable, set, &[&name, &value]).await.map(drop)
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
            self.rows(Lane::Quick, prune, &[&fresh, &old, &deleted]).await.map(drop)
        })
    }
}
