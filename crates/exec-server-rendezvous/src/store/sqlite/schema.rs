//! Database tables and schema migrations.

use rusqlite::Connection;

/// One migration per version; a released migration is never changed.
const STEPS: [&str; 3] = [
    "
    CREATE TABLE environments (
        id TEXT PRIMARY KEY,
        policy TEXT NOT NULL DEFAULT 'newest-wins',
        created_at INTEGER NOT NULL,
        generation INTEGER NOT NULL DEFAULT 0,
        registration TEXT
    ) STRICT;
    CREATE TABLE registrations (
        id TEXT PRIMARY KEY,
        environment TEXT NOT NULL REFERENCES environments (id),
        generation INTEGER NOT NULL,
        executor_key TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        superseded_at INTEGER
    ) STRICT;
    CREATE INDEX registrations_by_environment ON registrations (environment);
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY,
        hash BLOB NOT NULL UNIQUE,
        role TEXT NOT NULL,
        environment TEXT REFERENCES environments (id),
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER,
        last_used_at INTEGER,
        max_streams INTEGER
    ) STRICT;
    CREATE TABLE authorizations (
        hash BLOB PRIMARY KEY,
        environment TEXT NOT NULL,
        registration TEXT NOT NULL,
        harness_key BLOB NOT NULL,
        token TEXT NOT NULL,
        expires_at INTEGER NOT NULL,
        used_at INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX authorizations_by_token ON authorizations (token, used_at);
    CREATE INDEX authorizations_by_expiry ON authorizations (expires_at);
    CREATE TABLE nonces (
        nonce TEXT PRIMARY KEY,
        expires_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX nonces_by_expiry ON nonces (expires_at);
    CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
",
    "ALTER TABLE tokens ADD COLUMN label TEXT;",
    "ALTER TABLE tokens ADD COLUMN deleted_at INTEGER;",
];

/// Migrates a database to the current version; safe to run in several processes at once.
///
/// Returns the version of a database that is newer than the latest known one, with that.
pub fn migrate(connection: &mut Connection) -> Result<Option<(i64, i64)>, rusqlite::Error> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = i64::try_from(STEPS.len()).expect("few steps");
    let Some(steps) = usize::try_from(found).ok().and_then(|done| STEPS.get(done..)) else {
        return Ok(Some((found, known)));
    };
    // An up-to-date database is not written to, because the disk may be full.
    if steps.is_empty() {
        return Ok(None);
    }
    for step in steps {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    Ok(None)
}
