//! Tables of the PostgreSQL store and their migrations.

use tokio_postgres::Client;

use crate::store::StoreError;

/// One migration per version; a released migration is never changed. A migration only adds; what it replaces is
/// removed one release later, so that nodes of two versions can share a database.
const STEPS: [&str; 3] = [
    "
    CREATE TABLE environments (
        id text PRIMARY KEY,
        policy text NOT NULL DEFAULT 'newest-wins',
        created_at bigint NOT NULL,
        generation bigint NOT NULL DEFAULT 0,
        registration text
    );
    CREATE TABLE registrations (
        id text PRIMARY KEY,
        environment text NOT NULL REFERENCES environments (id) ON DELETE CASCADE,
        generation bigint NOT NULL,
        executor_key text NOT NULL,
        created_at bigint NOT NULL,
        superseded_at bigint
    );
    CREATE INDEX registrations_by_environment ON registrations (environment);
    CREATE INDEX registrations_by_end ON registrations (superseded_at);
    CREATE TABLE tokens (
        id text PRIMARY KEY,
        hash bytea NOT NULL UNIQUE,
        role text NOT NULL,
        environment text REFERENCES environments (id) ON DELETE SET NULL,
        created_at bigint NOT NULL,
        expires_at bigint,
        revoked_at bigint,
        last_used_at bigint,
        max_streams bigint,
        label text,
        deleted_at bigint
    );
    CREATE INDEX tokens_by_environment ON tokens (environment);
    CREATE INDEX tokens_by_revocation ON tokens (revoked_at);
    CREATE INDEX tokens_by_expiry ON tokens (expires_at);
    CREATE TABLE authorizations (
        hash bytea PRIMARY KEY,
        environment text NOT NULL,
        registration text NOT NULL,
        harness_key bytea NOT NULL,
        token text NOT NULL,
        expires_at bigint NOT NULL,
        used_at bigint
    );
    CREATE INDEX authorizations_by_token ON authorizations (token) WHERE used_at IS NULL;
    CREATE INDEX authorizations_by_expiry ON authorizations (expires_at);
    CREATE TABLE nonces (nonce text PRIMARY KEY, expires_at bigint NOT NULL);
    CREATE INDEX nonces_by_expiry ON nonces (expires_at);
    CREATE TABLE notes (name text PRIMARY KEY, value text NOT NULL);
",
    "
    CREATE TABLE nodes (
        id text PRIMARY KEY,
        epoch bigint NOT NULL,
        url text NOT NULL,
        state text NOT NULL,
        version text NOT NULL,
        executors bigint NOT NULL,
        streams bigint NOT NULL,
        renewed_at timestamptz NOT NULL
    );
    CREATE SEQUENCE node_epochs;
    CREATE UNLOGGED TABLE presence (
        environment text PRIMARY KEY,
        generation bigint NOT NULL,
        sequence bigint NOT NULL,
        registration text NOT NULL,
        node text NOT NULL,
        epoch bigint NOT NULL,
        since bigint NOT NULL
    ) WITH (fillfactor = 70);
    CREATE SEQUENCE claim_sequence;
    CREATE UNLOGGED TABLE superseded (
        node text NOT NULL,
        epoch bigint NOT NULL,
        environment text NOT NULL,
        generation bigint NOT NULL,
        sequence bigint NOT NULL,
        told_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX superseded_by_node ON superseded (node, epoch);
",
    "
    ALTER TABLE presence
        ADD COLUMN previous_node text,
        ADD COLUMN previous_epoch bigint,
        ADD COLUMN previous_generation bigint,
        ADD COLUMN previous_sequence bigint;
",
];

/// The latest version that this program knows.
pub const KNOWN: i64 = STEPS.len() as i64;

/// Serializes migrations of several processes; any constant will do.
const LOCK: i64 = 0x6578_6563_7365_7276;

/// The version of a database; none before the first migration.
pub async fn version(client: &Client) -> Result<Option<i64>, tokio_postgres::Error> {
    let exists = "SELECT to_regclass('schema_version') IS NOT NULL";
    if !client.query_one(exists, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = client.query_opt("SELECT version FROM schema_version", &[]).await?;
    Ok(row.map(|row| row.get(0)))
}

/// Migrates a database to the current version; safe to run in several processes at once.
pub async fn migrate(
    client: &mut Client,
    failed: impl Fn(tokio_postgres::Error) -> StoreError + Copy,
) -> Result<(), StoreError> {
    let transaction = client.transaction().await.map_err(failed)?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await.map_err(failed)?;
    let create = "CREATE TABLE IF NOT EXISTS schema_version (version bigint NOT NULL)";
    transaction.batch_execute(create).await.map_err(failed)?;
    let row = transaction.query_opt("SELECT version FROM schema_version", &[]).await;
    let found: i64 = row.map_err(failed)?.map_or(0, |row| row.get(0));
    let Some(steps) = usize::try_from(found).ok().and_then(|done| STEPS.get(done..)) else {
        return Err(StoreError::TooNew { found, known: KNOWN });
    };
    for step in steps {
        transaction.batch_execute(step).await.map_err(failed)?;
    }
    transaction.batch_execute("DELETE FROM schema_version").await.map_err(failed)?;
    let note = "INSERT INTO schema_version (version) VALUES ($1)";
    transaction.execute(note, &[&KNOWN]).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}
