//! The store in one SQLite database.
//!
//! One connection under a mutex: a statement takes microseconds, and the write-ahead log lets admin commands use the
//! file at the same time. A write that finds the database busy sleeps without the mutex, so reads are not blocked.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_relay::registry_types::PublicKey;
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior, params,
};

use super::{
    Authorization, Environment, NewRegistration, NotAuthorized, Registration, RegistrationPolicy,
    Store, StoreError, Token, TokenEnd, TokenRole, schema,
};
use crate::clock::Seconds;
use crate::secrets::Digest;

/// How long a write retries while another process writes; admin commands take far less.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// SQLite's busy timeout per attempt, during which the mutex is held.
const ATTEMPT: Duration = Duration::from_millis(5);

/// Sleep between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Recording every use of a token would cost a write per request.
const USE_NOTED_EVERY: Seconds = 60;

/// Two executors with one name replace each other every second, so old registrations must be bounded.
const KEPT_REGISTRATIONS: u64 = 16;

/// Retention of replaced registrations and of revoked or expired tokens, for inspection.
const KEPT_AFTER_THEIR_END: Seconds = 30 * 24 * 3600;

/// Retention of deleted tokens, in which every process learns that they have ended.
const KEPT_AFTER_DELETION: Seconds = 600;

/// Used authorizations are kept this much beyond their expiry, because clocks of nodes differ.
const CLOCK_DIFFERENCE: Seconds = 60;

const TOKEN: &str = "SELECT id, role, environment, created_at, expires_at, revoked_at, last_used_at, max_streams, label FROM tokens WHERE deleted_at IS NULL";
/// The time of an earlier revocation is overwritten, so that the end is noticed once more.
const DELETE_TOKENS: &str =
    "UPDATE tokens SET revoked_at = ?1, deleted_at = ?1, label = NULL WHERE deleted_at IS NULL";
const ENVIRONMENT: &str = "
    SELECT e.id, e.policy, e.created_at, e.generation, r.id, r.generation, r.executor_key, r.created_at
    FROM environments e LEFT JOIN registrations r ON r.id = e.registration";

/// A store in one SQLite database.
pub struct SqliteStore {
    path: PathBuf,
    connection: Mutex<Connection>,
    /// Whether the disk has no space for the shared-memory file, so that the database is open exclusively.
    is_cramped: AtomicBool,
    /// How long a write retries while another process writes.
    busy_timeout: Duration,
}

impl SqliteStore {
    /// Opens a database and migrates it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (connection, is_cramped) = match connect(path, Sharing::Shared) {
            Ok(connection) => (connection, false),
            Err(error) if lacks_room(&error) => (connect(path, Sharing::Alone)?, true),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            connection: Mutex::new(connection),
            is_cramped: AtomicBool::new(is_cramped),
            busy_timeout: BUSY_TIMEOUT,
        })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().expect("no holder panics")
    }

    /// Runs a write and retries while another process writes.
    fn write<T>(
        &self,
        write: impl Fn(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.busy_timeout;
        loop {
            let result = write(&mut self.connection());
            match &result {
                Err(StoreError::Unwritten(error))
                    if is_busy(error) && Instant::now() < deadline =>
                {
                    std::thread::sleep(PAUSE);
                }
                _ => return result,
            }
        }
    }

    /// Runs a write in a transaction that is durable against power loss.
    fn write_durably<T>(
        &self,
        write: impl Fn(&Transaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.write(|connection| write_transaction(connection, &write))
    }
}

fn write_transaction<T>(
    connection: &mut Connection,
    write: impl Fn(&Transaction) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.pragma_update(None, "synchronous", "full").map_err(StoreError::Unwritten)?;
    let result = (|| {
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begun.map_err(StoreError::Unwritten)?;
        // An error before the commit rolls back.
        let value = write(&transaction).map_err(unwritten)?;
        transaction.commit().map_err(database)?;
        Ok(value)
    })();
    // If this fails, later writes are only slower.
    let _ = connection.pragma_update(None, "synchronous", "normal");
    result
}

/// Whether other processes can use the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Shared,
    /// Exclusive lock; the shared-memory index is kept in memory instead of a file.
    Alone,
}

fn connect(path: &Path, sharing: Sharing) -> Result<Connection, StoreError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    if sharing == Sharing::Alone {
        connection.pragma_update(None, "locking_mode", "exclusive")?;
    }
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    schema::migrate(&mut connection)?;
    connection.busy_timeout(ATTEMPT)?;
    Ok(connection)
}

/// Whether an exclusive open may succeed where a shared one ran out of disk space.
fn lacks_room(error: &StoreError) -> bool {
    let (StoreError::Database(error) | StoreError::Unwritten(error)) = error else { return false };
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure))
}

impl Store for SqliteStore {
    fn is_cramped(&self) -> bool {
        self.is_cramped.load(Ordering::Relaxed)
    }

    fn recover(&self) -> Result<bool, StoreError> {
        if !self.is_cramped() {
            return Ok(false);
        }
        let mut connection = self.connection();
        // The exclusive lock of the old connection must be released first.
        *connection = Connection::open_in_memory()?;
        let shared = connect(&self.path, Sharing::Shared);
        let has_room = shared.is_ok();
        *connection = shared.or_else(|_| connect(&self.path, Sharing::Alone))?;
        self.is_cramped.store(!has_room, Ordering::Relaxed);
        Ok(has_room)
    }

    fn use_token(&self, hash: &Digest, now: Seconds) -> Result<Option<Token>, StoreError> {
        let connection = self.connection();
        let token = connection
            .prepare_cached(&format!("{TOKEN} AND hash = ?"))?
            .query_row([&hash[..]], |row| Ok(read_token(row)))
            .optional()
            .map_err(database)?
            .transpose()?;
        if let Some(token) = &token
            && token.last_used_at.is_none_or(|last| now >= last + USE_NOTED_EVERY)
        {
            let note = "UPDATE tokens SET last_used_at = ? WHERE id = ?";
            let noted = connection
                .prepare_cached(note)
                .and_then(|mut statement| statement.execute(params![now, token.id]));
            // A full disk or a long write of another process must not reject a valid token.
            if let Err(error) = noted {
                tracing::debug!(%error, token = token.id, "could not record the use of a token");
            }
        }
        Ok(token)
    }

    fn token(&self, id: &str) -> Result<Option<Token>, StoreError> {
        self.connection()
            .prepare_cached(&format!("{TOKEN} AND id = ?"))?
            .query_row([id], |row| Ok(read_token(row)))
            .optional()
            .map_err(database)?
            .transpose()
    }

    fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare(&format!("{TOKEN} ORDER BY created_at, id"))?;
        let rows = statement.query_map([], |row| Ok(read_token(row)))?;
        rows.map(|row| row.map_err(database)?).collect()
    }

    fn add_token(&self, token: &Token, hash: &Digest) -> Result<(), StoreError> {
        self.write_durably(|transaction| {
            if let Some(environment) = &token.environment {
                transaction.execute(
                    "INSERT INTO environments (id, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                    params![environment, token.created_at],
                )?;
            }
            transaction.execute(
                "INSERT INTO tokens (id, hash, role, environment, created_at, expires_at, max_streams, label)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    token.id,
                    &hash[..],
                    token.role.name(),
                    token.environment,
                    token.created_at,
                    token.expires_at,
                    token.max_streams,
                    token.label
                ],
            )?;
            Ok(())
        })
    }

    fn revoke_token(&self, id: &str, now: Seconds) -> Result<bool, StoreError> {
        self.write_durably(|transaction| {
            let revoke = "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?)
                 WHERE id = ? AND deleted_at IS NULL";
            let changed = transaction.execute(revoke, params![now, id])?;
            // Authorizations issued for the token must not be usable either.
            transaction.execute("DELETE FROM authorizations WHERE token = ?", [id])?;
            Ok(changed == 1)
        })
    }

    fn delete_token(&self, id: &str, now: Seconds) -> Result<bool, StoreError> {
        self.write_durably(|transaction| {
            let changed =
                transaction.execute(&format!("{DELETE_TOKENS} AND id = ?2"), params![now, id])?;
            transaction.execute("DELETE FROM authorizations WHERE token = ?", [id])?;
            Ok(changed == 1)
        })
    }

    fn ended_since(
        &self,
        since: Seconds,
        now: Seconds,
    ) -> Result<Vec<(String, TokenEnd)>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "SELECT id, revoked_at IS NOT NULL FROM tokens
             WHERE revoked_at >= ?1 OR (expires_at >= ?1 AND expires_at <= ?2)",
        )?;
        let rows = statement.query_map([since, now], |row| {
            let end = if row.get(1)? { TokenEnd::Revoked } else { TokenEnd::Expired };
            Ok((row.get(0)?, end))
        })?;
        rows.collect::<Result<_, _>>().map_err(database)
    }

    fn environment(&self, id: &str) -> Result<Option<Environment>, StoreError> {
        find_environment(&self.connection(), id)
    }

    fn environments(&self) -> Result<Vec<Environment>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare(&format!("{ENVIRONMENT} ORDER BY e.id"))?;
        let rows = statement.query_map([], |row| Ok(read_environment(row)))?;
        rows.map(|row| row.map_err(database)?).collect()
    }

    fn set_policy(&self, id: &str, policy: RegistrationPolicy) -> Result<bool, StoreError> {
        self.write_durably(|transaction| {
            let set = "UPDATE environments SET policy = ? WHERE id = ?";
            Ok(transaction.execute(set, params![policy.name(), id])? == 1)
        })
    }

    fn delete_environment(&self, id: &str, now: Seconds) -> Result<bool, StoreError> {
        self.write_durably(|transaction| {
            transaction
                .execute(&format!("{DELETE_TOKENS} AND environment = ?2"), params![now, id])?;
            // Tokens that were deleted before refer to the environment as well.
            for delete in [
                "UPDATE tokens SET environment = NULL WHERE environment = ?",
                "DELETE FROM authorizations WHERE environment = ?",
                "DELETE FROM registrations WHERE environment = ?",
            ] {
                transaction.execute(delete, [id])?;
            }
            Ok(transaction.execute("DELETE FROM environments WHERE id = ?", [id])? == 1)
        })
    }

    fn register(&self, new: &NewRegistration, now: Seconds) -> Result<u64, StoreError> {
        let generation = new.after + 1;
        let key = serde_json::to_string(&new.executor_key).expect("a key can be written");
        self.write_durably(|transaction| {
            let changed = transaction.execute(
                "UPDATE environments SET generation = ?, registration = ? WHERE id = ? AND generation = ?",
                params![number(generation)?, new.id, new.environment, number(new.after)?],
            )?;
            if changed == 0 {
                return Err(StoreError::Conflict);
            }
            transaction.execute(
                "UPDATE registrations SET superseded_at = ? WHERE environment = ? AND superseded_at IS NULL",
                params![now, new.environment],
            )?;
            transaction.execute(
                "DELETE FROM registrations WHERE environment = ? AND generation <= ?",
                params![new.environment, number(generation.saturating_sub(KEPT_REGISTRATIONS))?],
            )?;
            transaction.execute(
                "INSERT INTO registrations (id, environment, generation, executor_key, created_at)
                 VALUES (?, ?, ?, ?, ?)",
                params![new.id, new.environment, number(generation)?, key, now],
            )?;
            Ok(generation)
        })
    }

    fn add_authorization(
        &self,
        authorization: &Authorization,
        token: &str,
        expires: Seconds,
        max_unused: u32,
    ) -> Result<bool, StoreError> {
        let added = self.write(|connection| connection
            .prepare_cached(
                "INSERT INTO authorizations (hash, environment, registration, harness_key, token, expires_at)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6
                 WHERE (SELECT count(*) FROM authorizations WHERE token = ?5 AND used_at IS NULL) < ?7",
            )?
            .execute(params![
                &authorization.hash[..],
                authorization.environment,
                authorization.registration,
                &authorization.harness_key[..],
                token,
                expires,
                max_unused
            ])
            .map_err(database))?;
        Ok(added == 1)
    }

    fn use_authorization(
        &self,
        authorization: &Authorization,
        now: Seconds,
    ) -> Result<Result<(), NotAuthorized>, StoreError> {
        let used = self.write(|connection| {
            connection
                .prepare_cached(
                    "UPDATE authorizations SET used_at = ?1
                 WHERE hash = ?2 AND environment = ?3 AND registration = ?4 AND harness_key = ?5
                   AND used_at IS NULL AND expires_at > ?1
                   AND EXISTS (SELECT 1 FROM environments WHERE id = ?3 AND registration = ?4)",
                )?
                .execute(params![
                    now,
                    &authorization.hash[..],
                    authorization.environment,
                    authorization.registration,
                    &authorization.harness_key[..]
                ])
                .map_err(database)
        })?;
        if used == 1 {
            return Ok(Ok(()));
        }
        Ok(Err(why_not(&self.connection(), authorization, now)?))
    }

    fn use_nonce(&self, nonce: &str, expires: Seconds) -> Result<bool, StoreError> {
        let added = self.write(|connection| {
            connection
                .prepare_cached(
                    "INSERT INTO nonces (nonce, expires_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                )?
                .execute(params![nonce, expires])
                .map_err(database)
        })?;
        Ok(added == 1)
    }

    fn note(&self, name: &str) -> Result<Option<String>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT value FROM notes WHERE name = ?")?;
        statement.query_row([name], |row| row.get(0)).optional().map_err(database)
    }

    fn set_note(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.write_durably(|transaction| {
            let set = "INSERT INTO notes (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value";
            transaction.execute(set, params![name, value])?;
            Ok(())
        })
    }

    fn prune(&self, now: Seconds) -> Result<(), StoreError> {
        let connection = self.connection();
        let fresh = now - CLOCK_DIFFERENCE;
        let old = now - KEPT_AFTER_THEIR_END;
        for (delete, before) in [
            ("DELETE FROM authorizations WHERE expires_at < ?", fresh),
            ("DELETE FROM nonces WHERE expires_at < ?", fresh),
            ("DELETE FROM registrations WHERE superseded_at < ?", old),
            ("DELETE FROM tokens WHERE revoked_at < ?1 OR expires_at < ?1", old),
            ("DELETE FROM tokens WHERE deleted_at < ?", now - KEPT_AFTER_DELETION),
        ] {
            connection.prepare_cached(delete)?.execute([before]).map_err(database)?;
        }
        Ok(())
    }
}

fn find_environment(connection: &Connection, id: &str) -> Result<Option<Environment>, StoreError> {
    connection
        .prepare_cached(&format!("{ENVIRONMENT} WHERE e.id = ?"))?
        .query_row([id], |row| Ok(read_environment(row)))
        .optional()
        .map_err(database)?
        .transpose()
}

/// Finds out why an authorization could not be used.
fn why_not(
    connection: &Connection,
    asked: &Authorization,
    now: Seconds,
) -> Result<NotAuthorized, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT environment = ?2, registration = ?3, harness_key = ?4, used_at IS NULL, expires_at > ?5
             FROM authorizations WHERE hash = ?1",
        )?
        .query_row(
            params![
                &asked.hash[..],
                asked.environment,
                asked.registration,
                &asked.harness_key[..],
                now
            ],
            |row| {
                let fits: [bool; 5] =
                    [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?];
                Ok(fits)
            },
        )
        .optional()
        .map_err(database)?;
    Ok(match found {
        None => NotAuthorized::Unknown,
        Some([false, ..]) => NotAuthorized::OtherEnvironment,
        Some([_, false, ..]) => NotAuthorized::StaleRegistration,
        Some([_, _, false, ..]) => NotAuthorized::OtherKey,
        Some([_, _, _, false, _]) => NotAuthorized::Used,
        Some([.., false]) => NotAuthorized::Expired,
        // Every field matches, so the registration has been replaced.
        Some(_) => NotAuthorized::StaleRegistration,
    })
}

fn read_environment(row: &Row) -> Result<Environment, StoreError> {
    let policy = match row.get_ref(1)?.as_str() {
        Ok("newest-wins") => RegistrationPolicy::NewestWins,
        Ok("first-wins") => RegistrationPolicy::FirstWins,
        _ => return Err(StoreError::Corrupt("a registration policy")),
    };
    let registration = match row.get::<_, Option<String>>(4)? {
        None => None,
        Some(id) => {
            let key: String = row.get(6)?;
            let executor_key: PublicKey = serde_json::from_str(&key)
                .map_err(|_| StoreError::Corrupt("an executor's public key"))?;
            let (generation, created_at) = (count(row, 5)?, row.get(7)?);
            Some(Registration { id, generation, executor_key, created_at })
        }
    };
    let (id, created_at, generation) = (row.get(0)?, row.get(2)?, count(row, 3)?);
    Ok(Environment { id, policy, created_at, generation, registration })
}

fn read_token(row: &Row) -> Result<Token, StoreError> {
    let role = match row.get_ref(1)?.as_str() {
        Ok("executor") => TokenRole::Executor,
        Ok("harness") => TokenRole::Harness,
        Ok("admin") => TokenRole::Admin,
        _ => return Err(StoreError::Corrupt("a token's role")),
    };
    Ok(Token {
        id: row.get(0)?,
        role,
        environment: row.get(2)?,
        created_at: row.get(3)?,
        expires_at: row.get(4)?,
        revoked_at: row.get(5)?,
        last_used_at: row.get(6)?,
        max_streams: row.get(7)?,
        label: row.get(8)?,
    })
}

/// Reads a non-negative number.
fn count(row: &Row, index: usize) -> Result<u64, StoreError> {
    u64::try_from(row.get::<_, i64>(index)?).map_err(|_| StoreError::Corrupt("a generation"))
}

fn number(count: u64) -> Result<i64, StoreError> {
    i64::try_from(count).map_err(|_| StoreError::Corrupt("a generation"))
}

/// Whether another process holds the lock.
fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Classifies an error: after lock timeouts and disk errors nothing was written.
fn database(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::DiskFull
            | ErrorCode::ReadOnly
            | ErrorCode::CannotOpen,
        ) => StoreError::Unwritten(error),
        _ => StoreError::Database(error),
    }
}

/// Classifies an error inside a transaction, which is rolled back.
fn unwritten(error: StoreError) -> StoreError {
    match error {
        StoreError::Database(error) => StoreError::Unwritten(error),
        error => error,
    }
}

#[cfg(test)]
mod tests;
