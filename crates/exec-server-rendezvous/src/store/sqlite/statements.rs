//! The statements of the SQLite store; each function is one operation, run inside a transaction if it writes.

use exec_server_relay::registry_types::PublicKey;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::clock::Seconds;
use crate::secrets::Digest;
use crate::signed_url::Claims;
use crate::store::{
    Authorization, Denial, Environment, KEPT_AFTER_DELETION, KEPT_AFTER_THEIR_END,
    KEPT_REGISTRATIONS, NewAuthorization, NewRegistration, NotAuthorized, NotGranted,
    NotRegistered, PRUNED_AFTER_EXPIRY, Registration, RegistrationPolicy, StoreError, Token,
    TokenEnd, TokenRole,
};

type Result<T> = std::result::Result<T, StoreError>;

const TOKEN: &str = "SELECT id, role, environment, created_at, expires_at, revoked_at, last_used_at, max_streams, label FROM tokens WHERE deleted_at IS NULL";
/// The time of an earlier revocation is overwritten, so that the end is noticed once more.
const DELETE_TOKENS: &str =
    "UPDATE tokens SET revoked_at = ?1, deleted_at = ?1, label = NULL WHERE deleted_at IS NULL";
const ENVIRONMENT: &str = "
    SELECT e.id, e.policy, e.created_at, e.generation, r.id, r.generation, r.executor_key, r.created_at
    FROM environments e LEFT JOIN registrations r ON r.id = e.registration";

pub fn token_by_hash(connection: &Connection, hash: &Digest) -> Result<Option<Token>> {
    connection
        .prepare_cached(&format!("{TOKEN} AND hash = ?"))?
        .query_row([&hash[..]], |row| Ok(read_token(row)))
        .optional()?
        .transpose()
}

pub fn note_use(connection: &Connection, id: &str, now: Seconds) -> Result<()> {
    let note = "UPDATE tokens SET last_used_at = ? WHERE id = ?";
    connection.prepare_cached(note)?.execute(params![now, id])?;
    Ok(())
}

pub fn tokens(connection: &Connection) -> Result<Vec<Token>> {
    let mut statement = connection.prepare(&format!("{TOKEN} ORDER BY created_at, id"))?;
    let rows = statement.query_map([], |row| Ok(read_token(row)))?;
    rows.map(|row| row?).collect()
}

pub fn add_token(connection: &Connection, token: &Token, hash: &Digest) -> Result<()> {
    if let Some(environment) = &token.environment {
        connection.execute(
            "INSERT INTO environments (id, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
            params![environment, token.created_at],
        )?;
    }
    connection.execute(
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
}

pub fn revoke_token(connection: &Connection, id: &str, now: Seconds) -> Result<bool> {
    let revoke = "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?)
         WHERE id = ? AND deleted_at IS NULL";
    let changed = connection.execute(revoke, params![now, id])?;
    // Authorizations issued for the token must not be usable either.
    connection.execute("DELETE FROM authorizations WHERE token = ?", [id])?;
    Ok(changed == 1)
}

pub fn delete_token(connection: &Connection, id: &str, now: Seconds) -> Result<bool> {
    let changed = connection.execute(&format!("{DELETE_TOKENS} AND id = ?2"), params![now, id])?;
    connection.execute("DELETE FROM authorizations WHERE token = ?", [id])?;
    Ok(changed == 1)
}

pub fn ended_since(
    connection: &Connection,
    since: Seconds,
    now: Seconds,
) -> Result<Vec<(String, TokenEnd)>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, revoked_at IS NOT NULL FROM tokens
         WHERE revoked_at >= ?1 OR (expires_at >= ?1 AND expires_at <= ?2)",
    )?;
    let rows = statement.query_map([since, now], |row| {
        let end = if row.get(1)? { TokenEnd::Revoked } else { TokenEnd::Expired };
        Ok((row.get(0)?, end))
    })?;
    Ok(rows.collect::<std::result::Result<_, _>>()?)
}

pub fn environment(connection: &Connection, id: &str) -> Result<Option<Environment>> {
    connection
        .prepare_cached(&format!("{ENVIRONMENT} WHERE e.id = ?"))?
        .query_row([id], |row| Ok(read_environment(row)))
        .optional()?
        .transpose()
}

pub fn environments(connection: &Connection) -> Result<Vec<Environment>> {
    let mut statement = connection.prepare(&format!("{ENVIRONMENT} ORDER BY e.id"))?;
    let rows = statement.query_map([], |row| Ok(read_environment(row)))?;
    rows.map(|row| row?).collect()
}

pub fn set_policy(connection: &Connection, id: &str, policy: RegistrationPolicy) -> Result<bool> {
    let set = "UPDATE environments SET policy = ? WHERE id = ?";
    Ok(connection.execute(set, params![policy.name(), id])? == 1)
}

pub fn delete_environment(
    connection: &Connection,
    id: &str,
    now: Seconds,
) -> Result<Option<Vec<String>>> {
    let mut ended =
        connection.prepare("SELECT id FROM tokens WHERE environment = ? AND deleted_at IS NULL")?;
    let ended = ended.query_map([id], |row| row.get(0))?;
    let ended = ended.collect::<std::result::Result<_, _>>()?;
    connection.execute(&format!("{DELETE_TOKENS} AND environment = ?2"), params![now, id])?;
    // Tokens that were deleted before refer to the environment as well.
    for delete in [
        "UPDATE tokens SET environment = NULL WHERE environment = ?",
        "DELETE FROM authorizations WHERE environment = ?",
        "DELETE FROM registrations WHERE environment = ?",
    ] {
        connection.execute(delete, [id])?;
    }
    let deleted = connection.execute("DELETE FROM environments WHERE id = ?", [id])?;
    Ok((deleted == 1).then_some(ended))
}

pub fn register(
    connection: &Connection,
    new: &NewRegistration,
    now: Seconds,
) -> Result<std::result::Result<u64, NotRegistered>> {
    let Some(known) = environment(connection, &new.environment)? else {
        return Ok(Err(NotRegistered::UnknownEnvironment));
    };
    if new.is_taken(&known) {
        return Ok(Err(NotRegistered::Taken));
    }
    let generation = number(known.generation + 1)?;
    let key = serde_json::to_string(&new.executor_key).expect("a key can be written");
    connection.execute(
        "UPDATE environments SET generation = ?, registration = ? WHERE id = ?",
        params![generation, new.id, new.environment],
    )?;
    connection.execute(
        "UPDATE registrations SET superseded_at = ? WHERE environment = ? AND superseded_at IS NULL",
        params![now, new.environment],
    )?;
    connection.execute(
        "DELETE FROM registrations WHERE environment = ? AND generation <= ?",
        params![new.environment, generation - KEPT_REGISTRATIONS],
    )?;
    connection.execute(
        "INSERT INTO registrations (id, environment, generation, executor_key, created_at)
         VALUES (?, ?, ?, ?, ?)",
        params![new.id, new.environment, generation, key, now],
    )?;
    Ok(Ok(known.generation + 1))
}

pub fn admit_executor(
    connection: &Connection,
    claims: &Claims,
    now: Seconds,
) -> Result<std::result::Result<u64, Denial>> {
    Ok(match admit(connection, claims, now)? {
        Ok((_, current)) => Ok(current.generation),
        Err(denial) => Err(denial),
    })
}

pub fn admit_harness(
    connection: &Connection,
    claims: &Claims,
    nonce: &str,
    now: Seconds,
) -> Result<std::result::Result<Option<u32>, Denial>> {
    let token = match admit(connection, claims, now)? {
        Ok((token, _)) => token,
        Err(denial) => return Ok(Err(denial)),
    };
    let added = connection
        .prepare_cached(
            "INSERT INTO nonces (nonce, expires_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
        )?
        .execute(params![nonce, claims.expires])?;
    Ok(if added == 1 { Ok(token.max_streams) } else { Err(Denial::UsedNonce) })
}

fn admit(
    connection: &Connection,
    claims: &Claims,
    now: Seconds,
) -> Result<std::result::Result<(Token, Registration), Denial>> {
    let token = connection
        .prepare_cached(&format!("{TOKEN} AND id = ?"))?
        .query_row([&claims.token], |row| Ok(read_token(row)))
        .optional()?
        .transpose()?;
    let Some(token) = token.filter(|token| token.is_good(now)) else {
        return Ok(Err(Denial::EndedToken));
    };
    let current = environment(connection, &claims.environment)?.and_then(|it| it.registration);
    let current = current.filter(|current| current.id == claims.registration);
    Ok(current.map(|current| (token, current)).ok_or(Denial::OldRegistration))
}

pub fn authorize(
    connection: &Connection,
    new: &NewAuthorization,
) -> Result<std::result::Result<Registration, NotGranted>> {
    let Authorization { hash, environment: id, registration, harness_key } = &new.authorization;
    let Some(known) = environment(connection, id)? else {
        return Ok(Err(NotGranted::UnknownEnvironment));
    };
    let Some(current) = known.registration.filter(|current| current.id == *registration) else {
        return Ok(Err(NotGranted::OldRegistration));
    };
    let added = connection
        .prepare_cached(
            "INSERT INTO authorizations (hash, environment, registration, harness_key, token, expires_at)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6
             WHERE (SELECT count(*) FROM authorizations WHERE token = ?5 AND used_at IS NULL) < ?7",
        )?
        .execute(params![
            &hash[..],
            id,
            registration,
            &harness_key[..],
            new.token,
            new.expires,
            new.max_unused
        ])?;
    Ok(if added == 1 { Ok(current) } else { Err(NotGranted::TooMany) })
}

pub fn use_authorization(
    connection: &Connection,
    asked: &Authorization,
    now: Seconds,
) -> Result<std::result::Result<(), NotAuthorized>> {
    let used = connection
        .prepare_cached(
            "UPDATE authorizations SET used_at = ?1
             WHERE hash = ?2 AND environment = ?3 AND registration = ?4 AND harness_key = ?5
               AND used_at IS NULL AND expires_at > ?1
               AND EXISTS (SELECT 1 FROM environments WHERE id = ?3 AND registration = ?4)",
        )?
        .execute(params![
            now,
            &asked.hash[..],
            asked.environment,
            asked.registration,
            &asked.harness_key[..]
        ])?;
    if used == 1 {
        return Ok(Ok(()));
    }
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
            |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]),
        )
        .optional()?;
    Ok(Err(NotAuthorized::explain(found)))
}

pub fn note(connection: &Connection, name: &str) -> Result<Option<String>> {
    let mut statement = connection.prepare_cached("SELECT value FROM notes WHERE name = ?")?;
    Ok(statement.query_row([name], |row| row.get(0)).optional()?)
}

pub fn set_note(connection: &Connection, name: &str, value: &str) -> Result<()> {
    let set = "INSERT INTO notes (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value";
    connection.execute(set, params![name, value])?;
    Ok(())
}

pub fn prune(connection: &Connection, now: Seconds) -> Result<()> {
    let (fresh, old) = (now - PRUNED_AFTER_EXPIRY, now - KEPT_AFTER_THEIR_END);
    for (delete, before) in [
        ("DELETE FROM authorizations WHERE expires_at < ?", fresh),
        ("DELETE FROM nonces WHERE expires_at < ?", fresh),
        ("DELETE FROM registrations WHERE superseded_at < ?", old),
        ("DELETE FROM tokens WHERE revoked_at < ?1 OR expires_at < ?1", old),
        ("DELETE FROM tokens WHERE deleted_at < ?", now - KEPT_AFTER_DELETION),
    ] {
        connection.prepare_cached(delete)?.execute([before])?;
    }
    Ok(())
}

fn read_environment(row: &Row) -> Result<Environment> {
    let policy = row.get_ref(1)?.as_str().ok().and_then(RegistrationPolicy::from_name);
    let policy = policy.ok_or(StoreError::Corrupt("a registration policy"))?;
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

fn read_token(row: &Row) -> Result<Token> {
    let role = row.get_ref(1)?.as_str().ok().and_then(TokenRole::from_name);
    Ok(Token {
        id: row.get(0)?,
        role: role.ok_or(StoreError::Corrupt("a token's role"))?,
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
fn count(row: &Row, index: usize) -> Result<u64> {
    u64::try_from(row.get::<_, i64>(index)?).map_err(|_| StoreError::Corrupt("a generation"))
}

fn number(count: u64) -> Result<i64> {
    i64::try_from(count).map_err(|_| StoreError::Corrupt("a generation"))
}
