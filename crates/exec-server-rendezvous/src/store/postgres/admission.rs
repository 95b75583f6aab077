//! Tokens of requests and sockets: authentication, and the admission of executors and harnesses.

use std::collections::HashMap;

use tokio_postgres::Row;

use super::gather::Gathered;
use super::pools::Pools;
use super::rows::{answers, count, read_token, stream_limit};
use super::{Lane, Parameters, TOKEN, rows_of};
use crate::clock::Seconds;
use crate::secrets::Digest;
use crate::signed_url::Claims;
use crate::store::{Denial, StoreError, Token};

/// Finds tokens by their digests.
pub struct Authenticate;

impl Gathered for Authenticate {
    type Request = Digest;
    type Answer = Option<Token>;

    const NAME: &'static str = "authenticate";

    async fn ask(pools: &Pools, requests: &[Digest]) -> Result<Vec<Option<Token>>, StoreError> {
        let hashes: Vec<&[u8]> = requests.iter().map(|hash| &hash[..]).collect();
        let find = format!("{TOKEN} AND hash IN (SELECT unnest($1::bytea[]))");
        let rows = rows_of(pools, Lane::Quick, &find, &[&hashes]).await?;
        let mut found: HashMap<&[u8], Token> = HashMap::new();
        for row in &rows {
            found.insert(row.get(9), read_token(row)?);
        }
        Ok(hashes.into_iter().map(|hash| found.get(hash).cloned()).collect())
    }
}

/// A use of a token.
pub struct TokenUse {
    pub token: String,
    pub at: Seconds,
}

/// Notes uses of tokens.
pub struct NoteUse;

impl Gathered for NoteUse {
    type Request = TokenUse;
    type Answer = ();

    const NAME: &'static str = "note_use";

    async fn ask(pools: &Pools, requests: &[TokenUse]) -> Result<Vec<()>, StoreError> {
        // A row that another node is writing is left to that node.
        let note = "
            UPDATE tokens SET last_used_at = $1 WHERE id IN (
                SELECT id FROM tokens WHERE id = ANY($2) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)";
        let tokens: Vec<&str> = requests.iter().map(|it| it.token.as_str()).collect();
        let latest = requests.iter().map(|it| it.at).max().unwrap_or_default();
        rows_of(pools, Lane::Quick, note, &[&latest, &tokens]).await?;
        Ok(vec![(); requests.len()])
    }
}

/// An executor's URL at a moment.
pub struct ExecutorUrl {
    pub claims: Claims,
    pub now: Seconds,
}

/// Checks token and registration of executors' URLs.
pub struct AdmitExecutor;

impl Gathered for AdmitExecutor {
    type Request = ExecutorUrl;
    type Answer = Result<u64, Denial>;

    const NAME: &'static str = "admit_executor";

    async fn ask(
        pools: &Pools,
        requests: &[ExecutorUrl],
    ) -> Result<Vec<Result<u64, Denial>>, StoreError> {
        let admit = "
            SELECT a.place,
                EXISTS (
                    SELECT 1 FROM tokens t WHERE t.id = a.token AND t.deleted_at IS NULL AND t.revoked_at IS NULL
                      AND (t.expires_at IS NULL OR t.expires_at > a.at)),
                (SELECT e.generation FROM environments e WHERE e.id = a.environment AND e.registration = a.registration)
            FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[])
                WITH ORDINALITY AS a (token, at, environment, registration, place)";
        let text = |field: fn(&Claims) -> &String| -> Vec<&str> {
            requests.iter().map(|it| field(&it.claims).as_str()).collect()
        };
        let times: Vec<Seconds> = requests.iter().map(|it| it.now).collect();
        let parameters: Parameters = &[
            &text(|it| &it.token),
            &times,
            &text(|it| &it.environment),
            &text(|it| &it.registration),
        ];
        let rows = rows_of(pools, Lane::Quick, admit, parameters).await?;
        let ended = || Err(Denial::EndedToken);
        answers(&rows, requests.len(), ended, |row: &Row| {
            Ok(match (row.get(1), row.get::<_, Option<i64>>(2)) {
                (false, _) => Err(Denial::EndedToken),
                (true, None) => Err(Denial::OldRegistration),
                (true, Some(generation)) => Ok(count(generation)?),
            })
        })
    }
}

/// A harness's URL at a moment.
pub struct HarnessUrl {
    pub claims: Claims,
    pub nonce: String,
    pub now: Seconds,
}

/// Checks token and registration of harnesses' URLs, and uses their nonces up.
pub struct AdmitHarness;

impl Gathered for AdmitHarness {
    type Request = HarnessUrl;
    type Answer = Result<Option<u32>, Denial>;

    const NAME: &'static str = "admit_harness";

    fn key(request: &HarnessUrl) -> Option<&str> {
        Some(&request.nonce)
    }

    async fn ask(
        pools: &Pools,
        requests: &[HarnessUrl],
    ) -> Result<Vec<Result<Option<u32>, Denial>>, StoreError> {
        // Nonces are inserted in order: two statements with the same ones must not wait for each other.
        let admit = "
            WITH asked AS (
                SELECT a.*, t.id IS NOT NULL AS is_good, t.max_streams, e.id IS NOT NULL AS is_current
                FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::bigint[])
                    WITH ORDINALITY AS a (token, at, environment, registration, nonce, expires_at, place)
                LEFT JOIN tokens t ON t.id = a.token AND t.deleted_at IS NULL AND t.revoked_at IS NULL
                    AND (t.expires_at IS NULL OR t.expires_at > a.at)
                LEFT JOIN environments e ON e.id = a.environment AND e.registration = a.registration),
                used AS (
                    INSERT INTO nonces (nonce, expires_at)
                    SELECT nonce, expires_at FROM asked WHERE is_good AND is_current ORDER BY nonce
                    ON CONFLICT DO NOTHING RETURNING nonce)
            SELECT place, is_good, is_current, (nonce IN (SELECT nonce FROM used)) IS TRUE, max_streams FROM asked";
        let text = |field: fn(&HarnessUrl) -> &String| -> Vec<&str> {
            requests.iter().map(|it| field(it).as_str()).collect()
        };
        let number = |field: fn(&HarnessUrl) -> Seconds| -> Vec<Seconds> {
            requests.iter().map(field).collect()
        };
        let parameters: Parameters = &[
            &text(|it| &it.claims.token),
            &number(|it| it.now),
            &text(|it| &it.claims.environment),
            &text(|it| &it.claims.registration),
            &text(|it| &it.nonce),
            &number(|it| it.claims.expires),
        ];
        let rows = rows_of(pools, Lane::Quick, admit, parameters).await?;
        let ended = || Err(Denial::EndedToken);
        answers(&rows, requests.len(), ended, |row: &Row| {
            Ok(match (row.get(1), row.get(2), row.get(3)) {
                (false, _, _) => Err(Denial::EndedToken),
                (true, false, _) => Err(Denial::OldRegistration),
                (true, true, false) => Err(Denial::UsedNonce),
                (true, true, true) => Ok(stream_limit(row.get(4))?),
            })
        })
    }
}
