//! Registrations of executors, and authorizations of harnesses for them.

use tokio_postgres::Row;

use super::gather::Gathered;
use super::pools::Pools;
use super::rows::{answers, count, read_registration};
use super::{Lane, Parameters, rows_of};
use crate::clock::Seconds;
use crate::store::{
    KEPT_REGISTRATIONS, NewAuthorization, NewRegistration, NotGranted, NotRegistered, Registration,
    StoreError,
};

/// A registration to be stored, with its time.
pub struct Registering {
    pub new: NewRegistration,
    pub now: Seconds,
}

/// Makes registrations the current ones; each batch is synced to disk once.
pub struct Register;

impl Gathered for Register {
    type Request = Registering;
    type Answer = Result<u64, NotRegistered>;

    const NAME: &'static str = "register";

    fn key(request: &Registering) -> Option<&str> {
        Some(&request.new.environment)
    }

    async fn ask(
        pools: &Pools,
        requests: &[Registering],
    ) -> Result<Vec<Result<u64, NotRegistered>>, StoreError> {
        // The rows of the environments are locked first and in order: registrations of one environment come one after
        // the other, and statements of several nodes cannot wait for each other in a circle.
        let register = "
            WITH known AS (
                SELECT a.*, e.id AS known FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
                    WITH ORDINALITY AS a (environment, id, attached, executor_key, at, place)
                JOIN environments e ON e.id = a.environment
                ORDER BY e.id FOR NO KEY UPDATE OF e),
                current AS (
                    UPDATE environments e SET generation = e.generation + 1, registration = a.id
                    FROM known a WHERE e.id = a.environment AND NOT coalesce(
                        e.policy = 'first-wins' AND e.registration = a.attached
                        AND (SELECT r.executor_key FROM registrations r WHERE r.id = e.registration) <> a.executor_key,
                        false)
                    RETURNING a.place, e.id AS environment, e.generation, a.id, a.executor_key, a.at),
                old AS (
                    SELECT r.id, c.at, r.generation <= c.generation - $6::bigint AS is_dropped
                    FROM current c CROSS JOIN LATERAL (
                        SELECT id, generation, superseded_at FROM registrations
                        WHERE environment = c.environment ORDER BY generation LIMIT 2 * $6::bigint) r
                    WHERE r.superseded_at IS NULL OR r.generation <= c.generation - $6::bigint),
                ended AS (
                    UPDATE registrations r SET superseded_at = old.at FROM old
                    WHERE r.id = old.id AND NOT old.is_dropped),
                dropped AS (
                    DELETE FROM registrations r USING old WHERE r.id = old.id AND old.is_dropped),
                added AS (
                    INSERT INTO registrations (id, environment, generation, executor_key, created_at)
                    SELECT id, environment, generation, executor_key, at FROM current)
            SELECT place, generation FROM current
            UNION ALL
            SELECT place, NULL FROM known WHERE (place IN (SELECT place FROM current)) IS NOT TRUE";
        let text = |field: fn(&NewRegistration) -> &String| -> Vec<&str> {
            requests.iter().map(|it| field(&it.new).as_str()).collect()
        };
        let attached: Vec<Option<&str>> =
            requests.iter().map(|it| it.new.attached.as_deref()).collect();
        let key = |it: &Registering| serde_json::to_string(&it.new.executor_key);
        let keys = requests.iter().map(|it| key(it).expect("a key can be written"));
        let (keys, times): (Vec<String>, Vec<Seconds>) =
            keys.zip(requests.iter().map(|it| it.now)).unzip();
        let parameters: Parameters = &[
            &text(|it| &it.environment),
            &text(|it| &it.id),
            &attached,
            &keys,
            &times,
            &KEPT_REGISTRATIONS,
        ];
        let rows = rows_of(pools, Lane::Durable, register, parameters).await?;
        let unknown = || Err(NotRegistered::UnknownEnvironment);
        answers(&rows, requests.len(), unknown, |row: &Row| {
            Ok(match row.get::<_, Option<i64>>(1) {
                Some(generation) => Ok(count(generation)?),
                None => Err(NotRegistered::Taken),
            })
        })
    }
}

/// Stores authorizations for current registrations.
pub struct Authorize;

impl Gathered for Authorize {
    type Request = NewAuthorization;
    type Answer = Result<Registration, NotGranted>;

    const NAME: &'static str = "authorize";

    async fn ask(
        pools: &Pools,
        requests: &[NewAuthorization],
    ) -> Result<Vec<Result<Registration, NotGranted>>, StoreError> {
        let authorize = "
            WITH asked AS (
                SELECT *, row_number() OVER (PARTITION BY token ORDER BY place) AS nth
                FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::bigint[], $7::bigint[])
                    WITH ORDINALITY
                    AS a (hash, environment, registration, harness_key, token, expires_at, max_unused, place)),
                current AS (
                    SELECT a.*, r.generation, r.executor_key, r.created_at
                    FROM asked a JOIN environments e ON e.id = a.environment AND e.registration = a.registration
                    JOIN registrations r ON r.id = e.registration),
                added AS (
                    INSERT INTO authorizations (hash, environment, registration, harness_key, token, expires_at)
                    SELECT hash, environment, registration, harness_key, token, expires_at FROM current c
                    WHERE c.nth + (
                        SELECT count(*) FROM authorizations u WHERE u.token = c.token AND u.used_at IS NULL
                    ) <= c.max_unused
                    RETURNING hash)
            SELECT place, (hash IN (SELECT hash FROM added)) IS TRUE, registration, generation, executor_key, created_at
            FROM current
            UNION ALL
            SELECT a.place, false, NULL, NULL, NULL, NULL
            FROM asked a JOIN environments e ON e.id = a.environment
            WHERE (a.place IN (SELECT place FROM current)) IS NOT TRUE";
        let hashes: Vec<&[u8]> = requests.iter().map(|it| &it.authorization.hash[..]).collect();
        let keys: Vec<&[u8]> =
            requests.iter().map(|it| &it.authorization.harness_key[..]).collect();
        let text = |field: fn(&NewAuthorization) -> &String| -> Vec<&str> {
            requests.iter().map(|it| field(it).as_str()).collect()
        };
        let expires: Vec<Seconds> = requests.iter().map(|it| it.expires).collect();
        let most: Vec<i64> = requests.iter().map(|it| i64::from(it.max_unused)).collect();
        let parameters: Parameters = &[
            &hashes,
            &text(|it| &it.authorization.environment),
            &text(|it| &it.authorization.registration),
            &keys,
            &text(|it| &it.token),
            &expires,
            &most,
        ];
        let rows = rows_of(pools, Lane::Quick, authorize, parameters).await?;
        let unknown = || Err(NotGranted::UnknownEnvironment);
        answers(&rows, requests.len(), unknown, |row: &Row| {
            let is_added = row.get(1);
            Ok(match read_registration(row, 2)? {
                None => Err(NotGranted::OldRegistration),
                Some(current) if is_added => Ok(current),
                Some(_) => Err(NotGranted::TooMany),
            })
        })
    }
}
