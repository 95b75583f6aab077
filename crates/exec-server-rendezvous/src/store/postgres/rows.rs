//! From rows to values.

use exec_server_relay::registry_types::PublicKey;
use tokio_postgres::Row;

use crate::store::{Environment, Registration, RegistrationPolicy, StoreError, Token, TokenRole};

pub fn read_environment(row: &Row) -> Result<Environment, StoreError> {
    let policy = RegistrationPolicy::from_name(row.get(1));
    Ok(Environment {
        id: row.get(0),
        policy: policy.ok_or(StoreError::Corrupt("a registration policy"))?,
        created_at: row.get(2),
        generation: count(row.get(3))?,
        registration: read_registration(row, 4)?,
    })
}

/// Reads id, generation, key and creation time from this column on.
pub fn read_registration(row: &Row, first: usize) -> Result<Option<Registration>, StoreError> {
    let Some(id) = row.get::<_, Option<String>>(first) else { return Ok(None) };
    let executor_key: PublicKey = serde_json::from_str(row.get(first + 2))
        .map_err(|_| StoreError::Corrupt("an executor's public key"))?;
    let (generation, created_at) = (count(row.get(first + 1))?, row.get(first + 3));
    Ok(Some(Registration { id, generation, executor_key, created_at }))
}

pub fn read_token(row: &Row) -> Result<Token, StoreError> {
    let role = TokenRole::from_name(row.get(1));
    Ok(Token {
        id: row.get(0),
        role: role.ok_or(StoreError::Corrupt("a token's role"))?,
        environment: row.get(2),
        created_at: row.get(3),
        expires_at: row.get(4),
        revoked_at: row.get(5),
        last_used_at: row.get(6),
        max_streams: stream_limit(row.get(7))?,
        label: row.get(8),
    })
}

pub fn stream_limit(stored: Option<i64>) -> Result<Option<u32>, StoreError> {
    let limit = stored.map(u32::try_from).transpose();
    limit.map_err(|_| StoreError::Corrupt("a token's stream limit"))
}

/// A non-negative number.
pub fn count(stored: i64) -> Result<u64, StoreError> {
    u64::try_from(stored).map_err(|_| StoreError::Corrupt("a generation"))
}

/// Sorts the answers of one statement to several requests by the place in their first column.
pub fn answers<T>(
    rows: &[Row],
    requests: usize,
    missing: impl Fn() -> T,
    read: impl Fn(&Row) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut answers: Vec<T> = (0..requests).map(|_| missing()).collect();
    for row in rows {
        let place = usize::try_from(row.get::<_, i64>(0) - 1).ok();
        let answer = place.and_then(|place| answers.get_mut(place));
        *answer.ok_or(StoreError::NotAsked)? = read(row)?;
    }
    Ok(answers)
}
