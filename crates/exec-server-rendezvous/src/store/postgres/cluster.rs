//! Operations of a cluster: leases of nodes, and claims of executors.
//!
//! A claim says at which node an executor is attached. (generation, sequence) is its fencing token: a newer one replaces
//! an older one, and a release names the claim that it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::gather::Gathered;
use super::pools::Pools;
use super::rows::{answers, count};
use super::{Lane, Parameters, PostgresStore, rows_of};
use crate::clock::Seconds;
use crate::held_claims::Entry;
use crate::membership::{LEASE, Lease};
use crate::store::StoreError;

/// The fencing token of an executor's place at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimId {
    /// Generation of the registration.
    pub generation: u64,
    /// Orders the sockets of one registration.
    pub sequence: u64,
}

/// An executor that attaches.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Environment id.
    pub environment: String,
    /// Registration id.
    pub registration: String,
    /// Generation of the registration.
    pub generation: u64,
}

/// An executor that is attached.
#[derive(Debug, Clone)]
pub struct HeldClaim {
    /// Environment id.
    pub environment: String,
    /// Registration id.
    pub registration: String,
    /// The claim by which it is attached.
    pub claim: ClaimId,
}

/// A claim that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The claim.
    pub claim: ClaimId,
    /// Node, epoch and claim that it has replaced, if they differ from the node that claims.
    pub previous: Option<(String, u64, ClaimId)>,
}

/// Where an executor is, or was a moment ago.
#[derive(Debug, Clone)]
pub struct Located {
    /// Environment id.
    pub environment: String,
    /// Registration id.
    pub registration: String,
    /// The claim.
    pub claim: ClaimId,
    /// When the executor attached, or left.
    pub since: Seconds,
    /// Whether the executor has left.
    pub is_released: bool,
    /// The lease of its node, if that epoch still has one.
    pub lease: Option<Lease>,
}

/// A node as it describes itself.
#[derive(Debug, Clone)]
pub struct NodeReport {
    /// Node id.
    pub node: String,
    /// Its epoch.
    pub epoch: u64,
    /// Whether it is shutting down.
    pub is_leaving: bool,
    /// Whether it does not hear its own heartbeats, or sends none.
    pub is_deaf: bool,
    /// Attached executors.
    pub executors: usize,
    /// Attached harnesses.
    pub streams: usize,
}

/// The answer to a renewal.
#[derive(Debug)]
pub struct Renewal {
    /// Whether the lease is still this node's.
    pub is_held: bool,
    /// The time of the database.
    pub time: Seconds,
    /// Claims of this node that were replaced by another one.
    pub superseded: Vec<(String, ClaimId)>,
    /// Whether the table of claims is the one that this epoch has marked; a crash of the database empties it.
    pub is_marked: bool,
}

/// A row of the list of nodes.
#[derive(Debug, Clone)]
pub struct NodeRow {
    /// Its lease.
    pub lease: Lease,
    /// Version of the program.
    pub version: String,
    /// Attached executors.
    pub executors: u64,
    /// Attached harnesses.
    pub streams: u64,
}

impl PostgresStore {
    /// Takes a lease for a node and returns its new epoch; none while another process holds it.
    pub async fn join(&self, node: &str, url: &str) -> Result<Option<u64>, StoreError> {
        let join = "
            INSERT INTO nodes AS n (id, epoch, url, state, version, executors, streams, renewed_at)
            VALUES ($1, nextval('node_epochs'), $2, 'ready', $3, 0, 0, now())
            ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, url = excluded.url, state = 'ready',
                version = excluded.version, executors = 0, streams = 0, renewed_at = now()
            WHERE n.state = 'left' OR n.renewed_at < now() - make_interval(secs => $4)
            RETURNING epoch";
        let version = env!("CARGO_PKG_VERSION");
        let parameters: Parameters = &[&node, &url, &version, &LEASE.as_secs_f64()];
        let row = self.row("join", Lane::Lease, join, parameters).await?;
        row.map(|row| count(row.get(0))).transpose()
    }

    /// Renews the lease, and collects what others have to say to this node.
    pub async fn renew(&self, report: &NodeReport) -> Result<Renewal, StoreError> {
        let renew = "
            WITH held AS (
                UPDATE nodes SET renewed_at = now(), state = $3, executors = $4, streams = $5
                WHERE id = $1 AND epoch = $2 RETURNING 1),
                told AS (
                    DELETE FROM superseded WHERE node = $1 AND epoch = $2
                    RETURNING environment, generation, sequence)
            SELECT EXISTS (SELECT 1 FROM held), extract(epoch FROM now())::bigint,
                told.environment, told.generation, told.sequence,
                EXISTS (SELECT 1 FROM presence WHERE environment = $6 AND epoch = $2)
            FROM (VALUES (1)) AS one LEFT JOIN told ON true";
        let state = match report {
            NodeReport { is_leaving: true, .. } => "leaving",
            NodeReport { is_deaf: true, .. } => "deaf",
            _ => "ready",
        };
        let parameters: Parameters = &[
            &report.node,
            &number(report.epoch)?,
            &state,
            &number(report.executors as u64)?,
            &number(report.streams as u64)?,
            &marker(&report.node),
        ];
        let rows = self.rows("renew", Lane::Lease, renew, parameters).await?;
        let first = rows.first().ok_or(StoreError::NotAsked)?;
        let (is_held, time, is_marked) = (first.get(0), first.get(1), first.get(5));
        let mut superseded = Vec::new();
        for row in &rows {
            if let Some(environment) = row.get::<_, Option<String>>(2) {
                superseded.push((environment, read_claim(row, 3)?));
            }
        }
        Ok(Renewal { is_held, time, superseded, is_marked })
    }

    /// Marks the table of claims; [`PostgresStore::renew`] says whether the mark is still there.
    pub async fn mark_presence(&self, node: &str, epoch: u64) -> Result<(), StoreError> {
        let mark = "
            INSERT INTO presence (environment, generation, sequence, registration, node, epoch, since)
            VALUES ($1, 0, 0, '', $2, $3, extract(epoch FROM now())::bigint)
            ON CONFLICT (environment) DO UPDATE SET node = excluded.node, epoch = excluded.epoch,
                since = excluded.since";
        self.rows("mark", Lane::Lease, mark, &[&marker(node), &node, &number(epoch)?])
            .await
            .map(drop)
    }

    /// Ends the lease at once, so that the node can start again without waiting.
    pub async fn leave(&self, node: &str, epoch: u64) -> Result<(), StoreError> {
        let leave = "
            WITH mark AS (DELETE FROM presence WHERE environment = $3 AND epoch = $2)
            UPDATE nodes SET state = 'left' WHERE id = $1 AND epoch = $2";
        self.rows("leave", Lane::Lease, leave, &[&node, &number(epoch)?, &marker(node)])
            .await
            .map(drop)
    }

    /// All nodes whose lease was renewed within the last day.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let list = "
            SELECT id, epoch, url, state, greatest(extract(epoch FROM now() - renewed_at), 0)::float8,
                version, executors, streams
            FROM nodes WHERE renewed_at > now() - interval '1 day' AND state <> 'left' ORDER BY id";
        let rows = self.rows("nodes", Lane::Lease, list, &[]).await?;
        let node = |row: &Row| {
            let lease = read_lease(row, 0)?.ok_or(StoreError::Corrupt("a node"))?;
            let (executors, streams) = (count(row.get(6))?, count(row.get(7))?);
            Ok(NodeRow { lease, version: row.get(5), executors, streams })
        };
        rows.iter().map(node).collect()
    }

    /// Claims executors for a node; a claim fails if its registration is not the current one, or is older than the
    /// one that is attached. The environments must differ.
    pub async fn claim(
        &self,
        node: &str,
        epoch: u64,
        asked: &[ClaimRequest],
    ) -> Result<Vec<Option<Claimed>>, StoreError> {
        // The token is drawn under the lock of the row: claims of one environment come one after the other.
        let claim = claim_statement(
            "nextval('claim_sequence')",
            "greatest(nextval('claim_sequence'), p.sequence + 1)",
            "p.generation <= excluded.generation",
        );
        let generations = asked.iter().map(|it| number(it.generation));
        let generations = generations.collect::<Result<Vec<_>, _>>()?;
        let environments: Vec<&str> = asked.iter().map(|it| it.environment.as_str()).collect();
        let registrations: Vec<&str> = asked.iter().map(|it| it.registration.as_str()).collect();
        let sequences: Vec<i64> = vec![0; asked.len()];
        let parameters: Parameters =
            &[&environments, &generations, &registrations, &sequences, &node, &number(epoch)?];
        self.make_claims("claim", &claim, &environments, parameters).await
    }

    /// Makes claims of a node again, after the table was emptied or with a new epoch. A claim stays the same, so that it
    /// fails if a newer one was made, and replaces an older one.
    pub async fn claim_again(
        &self,
        node: &str,
        epoch: u64,
        held: &[HeldClaim],
    ) -> Result<Vec<Option<Claimed>>, StoreError> {
        let claim = claim_statement(
            "sequence",
            "excluded.sequence",
            "(p.generation, p.sequence) < (excluded.generation, excluded.sequence)
                OR (p.generation, p.sequence, p.node) = (excluded.generation, excluded.sequence, excluded.node)",
        );
        let environments: Vec<&str> = held.iter().map(|it| it.environment.as_str()).collect();
        let registrations: Vec<&str> = held.iter().map(|it| it.registration.as_str()).collect();
        let (generations, sequences) = numbers(held.iter().map(|it| it.claim))?;
        let parameters: Parameters =
            &[&environments, &generations, &registrations, &sequences, &node, &number(epoch)?];
        self.make_claims("claim_again", &claim, &environments, parameters).await
    }

    async fn make_claims(
        &self,
        operation: &'static str,
        statement: &str,
        environments: &[&str],
        parameters: Parameters<'_>,
    ) -> Result<Vec<Option<Claimed>>, StoreError> {
        self.times.note_together(operation, environments.len());
        let places: HashMap<&str, usize> = environments.iter().copied().zip(0..).collect();
        let mut claims: Vec<Option<Claimed>> = vec![None; environments.len()];
        for row in self.rows(operation, Lane::Quick, statement, parameters).await? {
            let place = places.get(row.get::<_, &str>(0)).ok_or(StoreError::Corrupt("a claim"))?;
            let previous = match row.get::<_, Option<String>>(3) {
                Some(node) => Some((node, count(row.get(4))?, read_claim(&row, 5)?)),
                None => None,
            };
            claims[*place] = Some(Claimed { claim: read_claim(&row, 1)?, previous });
        }
        Ok(claims)
    }

    /// What is known about these environments, to check the claims of a node.
    pub async fn entries(
        &self,
        node: &str,
        epoch: u64,
        environments: &[&str],
    ) -> Result<HashMap<String, Entry>, StoreError> {
        let find = "
            SELECT a.environment, e.generation, p.generation, p.sequence, (p.node, p.epoch) = ($2, $3)
            FROM unnest($1::text[]) AS a (environment)
            LEFT JOIN environments e ON e.id = a.environment
            LEFT JOIN presence p ON p.environment = a.environment";
        let parameters: Parameters = &[&environments, &node, &number(epoch)?];
        let rows = self.rows("entries", Lane::Quick, find, parameters).await?;
        let entry = |row: &Row| {
            let generation = row.get::<_, Option<i64>>(1).map(count).transpose()?;
            let claim = match row.get::<_, Option<i64>>(2) {
                Some(_) => Some(read_claim(row, 2)?),
                None => None,
            };
            let is_here = row.get::<_, Option<bool>>(4).unwrap_or(false);
            Ok((row.get(0), Entry { generation, claim, is_here }))
        };
        rows.iter().map(entry).collect()
    }

    /// Finds the claim of an older registration at another node, and notes for that node that it was replaced.
    pub async fn supersede(
        &self,
        node: &str,
        environment: &str,
        generation: u64,
    ) -> Result<Option<(String, u64, ClaimId)>, StoreError> {
        let (node, environment) = (node.to_owned(), environment.to_owned());
        self.supersede.ask(Superseding { node, environment, generation }).await
    }

    /// Tells this database from all others, also after a failover to a replica.
    pub async fn identity(&self) -> Result<String, StoreError> {
        let ask = "
            SELECT (SELECT system_identifier FROM pg_control_system())::text || '-' || oid::text
            FROM pg_database WHERE datname = current_database()";
        let row = self.row("identity", Lane::Quick, ask, &[]).await?;
        Ok(row.ok_or(StoreError::NotAsked)?.get(0))
    }

    /// Ends claims; newer ones stay.
    pub async fn release(
        &self,
        node: &str,
        claims: &[(String, ClaimId)],
    ) -> Result<(), StoreError> {
        // In the order in which claims lock the rows: two statements cannot wait for each other.
        let release = "
            WITH ended AS (
                SELECT p.environment FROM presence p
                JOIN unnest($2::text[], $3::bigint[], $4::bigint[]) AS a (environment, generation, sequence)
                    ON p.environment = a.environment AND p.generation = a.generation AND p.sequence = a.sequence
                WHERE p.node = $1 ORDER BY p.environment FOR UPDATE OF p)
            UPDATE presence p SET node = '', epoch = 0, since = extract(epoch FROM now())::bigint
            FROM ended WHERE p.environment = ended.environment";
        let environments: Vec<&str> = claims.iter().map(|it| it.0.as_str()).collect();
        let (generations, sequences) = numbers(claims.iter().map(|it| it.1))?;
        let parameters: Parameters = &[&node, &environments, &generations, &sequences];
        self.rows("release", Lane::Quick, release, parameters).await.map(drop)
    }

    /// Where executors are; environments without an entry are left out.
    pub async fn locate(&self, environments: &[String]) -> Result<Vec<Located>, StoreError> {
        match environments {
            [environment] => {
                let located = self.locate.ask(environment.clone()).await?;
                Ok(located.into_iter().collect())
            }
            environments => self.times.of("locate_many", find(&self.pools, environments)).await,
        }
    }

    /// Deletes entries of executors that left long ago, and messages to nodes that are gone.
    pub async fn prune_presence(&self) -> Result<(), StoreError> {
        // A row that is being claimed is left alone.
        let prune = "
            WITH old AS (
                SELECT environment FROM presence WHERE node = '' AND since < extract(epoch FROM now())::bigint - 60
                FOR UPDATE SKIP LOCKED),
                gone AS (DELETE FROM presence p USING old WHERE p.environment = old.environment)
            DELETE FROM superseded WHERE told_at < now() - interval '1 minute'";
        self.rows("prune_presence", Lane::Quick, prune, &[]).await.map(drop)
    }
}

/// The statement that makes claims, with the sequence of a new row, that of a row that there is, and the condition to
/// replace it. What was replaced is read under the lock of the row, so the snapshot of the statement need not know it.
fn claim_statement(new: &str, next: &str, condition: &str) -> String {
    format!(
        "
        WITH good AS (
            SELECT a.*
            FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[])
                AS a (environment, generation, registration, sequence)
            JOIN environments e ON e.id = a.environment AND e.registration = a.registration),
            claimed AS (
                INSERT INTO presence AS p (environment, generation, sequence, registration, node, epoch, since)
                SELECT environment, generation, {new}, registration, $5, $6, extract(epoch FROM now())::bigint
                FROM good ORDER BY environment
                ON CONFLICT (environment) DO UPDATE SET generation = excluded.generation, sequence = {next},
                    registration = excluded.registration,
                    node = excluded.node, epoch = excluded.epoch, since = excluded.since,
                    previous_node = p.node, previous_epoch = p.epoch,
                    previous_generation = p.generation, previous_sequence = p.sequence
                WHERE {condition}
                RETURNING p.*),
            told AS (
                INSERT INTO superseded (node, epoch, environment, generation, sequence)
                SELECT previous_node, previous_epoch, environment, previous_generation, previous_sequence
                FROM claimed WHERE previous_node NOT IN ('', $5))
        SELECT environment, generation, sequence, nullif(nullif(previous_node, ''), $5),
            previous_epoch, previous_generation, previous_sequence
        FROM claimed"
    )
}

/// The entry by which a node notices that the table was emptied; no environment id contains a slash.
fn marker(node: &str) -> String {
    format!("/node/{node}")
}

/// Finds executors, one environment each.
pub struct Locate;

impl Gathered for Locate {
    type Request = String;
    type Answer = Option<Located>;

    const NAME: &'static str = "locate";

    async fn ask(pools: &Pools, requests: &[String]) -> Result<Vec<Option<Located>>, StoreError> {
        let located = find(pools, requests).await?;
        let found: HashMap<&str, &Located> =
            located.iter().map(|it| (it.environment.as_str(), it)).collect();
        Ok(requests.iter().map(|it| found.get(it.as_str()).map(|it| (*it).clone())).collect())
    }
}

/// A registration that replaces older ones.
pub struct Superseding {
    /// The node that has registered it, and closes its own executors by itself.
    pub node: String,
    pub environment: String,
    pub generation: u64,
}

/// Finds claims of older registrations.
pub struct Supersede;

impl Gathered for Supersede {
    type Request = Superseding;
    type Answer = Option<(String, u64, ClaimId)>;

    const NAME: &'static str = "supersede";

    async fn ask(
        pools: &Pools,
        requests: &[Superseding],
    ) -> Result<Vec<Option<(String, u64, ClaimId)>>, StoreError> {
        let supersede = "
            WITH old AS (
                SELECT a.place, p.node, p.epoch, p.environment, p.generation, p.sequence
                FROM unnest($1::text[], $2::bigint[], $3::text[])
                    WITH ORDINALITY AS a (environment, generation, node, place)
                JOIN presence p ON p.environment = a.environment
                WHERE p.generation < a.generation AND p.node NOT IN ('', a.node)),
                told AS (
                    INSERT INTO superseded (node, epoch, environment, generation, sequence)
                    SELECT node, epoch, environment, generation, sequence FROM old)
            SELECT place, node, epoch, generation, sequence FROM old";
        let environments: Vec<&str> = requests.iter().map(|it| it.environment.as_str()).collect();
        let nodes: Vec<&str> = requests.iter().map(|it| it.node.as_str()).collect();
        let generations = requests.iter().map(|it| number(it.generation));
        let generations = generations.collect::<Result<Vec<_>, _>>()?;
        let parameters: Parameters = &[&environments, &generations, &nodes];
        let rows = rows_of(pools, Lane::Quick, supersede, parameters).await?;
        answers(
            &rows,
            requests.len(),
            || None,
            |row: &Row| Ok(Some((row.get(1), count(row.get(2))?, read_claim(row, 3)?))),
        )
    }
}

async fn find(pools: &Pools, environments: &[String]) -> Result<Vec<Located>, StoreError> {
    let locate = "
        SELECT n.id, n.epoch, n.url, n.state, greatest(extract(epoch FROM now() - n.renewed_at), 0)::float8,
            p.environment, p.registration, p.generation, p.sequence, p.since, p.node
        FROM unnest($1::text[]) AS a (environment) JOIN presence p ON p.environment = a.environment
        LEFT JOIN nodes n ON n.id = p.node AND n.epoch = p.epoch AND n.state <> 'left'";
    let rows = rows_of(pools, Lane::Quick, locate, &[&environments]).await?;
    let located = |row: &Row| {
        Ok(Located {
            environment: row.get(5),
            registration: row.get(6),
            claim: read_claim(row, 7)?,
            since: row.get(9),
            is_released: row.get::<_, &str>(10).is_empty(),
            lease: read_lease(row, 0)?,
        })
    };
    rows.iter().map(located).collect()
}

/// Reads a lease from this column on; none if the node has none.
fn read_lease(row: &Row, first: usize) -> Result<Option<Lease>, StoreError> {
    let Some(node) = row.get::<_, Option<String>>(first) else { return Ok(None) };
    let url: Arc<str> = row.get::<_, &str>(first + 2).into();
    let age = Duration::try_from_secs_f64(row.get(first + 4));
    Ok(Some(Lease {
        node,
        epoch: count(row.get(first + 1))?,
        url,
        is_leaving: row.get::<_, &str>(first + 3) == "leaving",
        is_deaf: row.get::<_, &str>(first + 3) == "deaf",
        age: age.map_err(|_| StoreError::Corrupt("the age of a lease"))?,
    }))
}

fn read_claim(row: &Row, first: usize) -> Result<ClaimId, StoreError> {
    Ok(ClaimId { generation: count(row.get(first))?, sequence: count(row.get(first + 1))? })
}

/// Generations and sequences of claims.
fn numbers(claims: impl Iterator<Item = ClaimId>) -> Result<(Vec<i64>, Vec<i64>), StoreError> {
    claims.map(|it| Ok((number(it.generation)?, number(it.sequence)?))).collect()
}

fn number(count: u64) -> Result<i64, StoreError> {
    i64::try_from(count).map_err(|_| StoreError::Corrupt("a number"))
}
