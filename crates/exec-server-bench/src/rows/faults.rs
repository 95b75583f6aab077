//! What the loss of a part of a cluster costs a session, and how fast revocations and claims spread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exec_server_testkit::executor::use_program;
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::rig::{NODES, Path, Rig};
use exec_server_testkit::session::Session;
use tokio::time::sleep;

use super::Group;
use crate::cluster::{BenchCluster, Node};
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::keep_alive::KeepAlive;
use crate::row::rows;
use crate::scene::{Effort, Readings, Scene, USUAL_TIME};
use crate::stats::{ms, percentile};
use crate::swarm::{self, Member, Pair, Peers};

rows! {
    HOME_P50 = "faults.home-p50": "gap of a session inside a node after `kill -9` of the node, p50", Lower "ms";
    HOME_P99 = "faults.home-p99": "… p99", Lower "ms", AtMost(1000.0, Unit);
    HOME_MOST = "faults.home-most": "… the longest", Lower "ms";
    TRUNK_HOME_P50 = "faults.trunk-home-p50": "gap of a session through two nodes after `kill -9` of the executor's, p50", Lower "ms";
    TRUNK_HOME_P99 = "faults.trunk-home-p99": "… p99", Lower "ms", AtMost(1000.0, Unit);
    TRUNK_HOME_MOST = "faults.trunk-home-most": "… the longest", Lower "ms";
    ARRIVAL_P50 = "faults.arrival-p50": "… after `kill -9` of the harness's node, p50", Lower "ms";
    ARRIVAL_P99 = "faults.arrival-p99": "… p99", Lower "ms", AtMost(1000.0, Unit);
    ARRIVAL_MOST = "faults.arrival-most": "… the longest", Lower "ms";
    NATS_P50 = "faults.nats-p50": "… after `kill -9` of one of three NATS servers, p50", Lower "ms";
    NATS_P99 = "faults.nats-p99": "… p99", Lower "ms", AtMost(1000.0, Unit);
    NATS_MOST = "faults.nats-most": "… the longest", Lower "ms";
    ROLLING_P50 = "faults.rolling-p50": "… while the nodes are restarted one after the other, p50", Lower "ms";
    ROLLING_P99 = "faults.rolling-p99": "… p99", Lower "ms";
    ROLLING_MOST = "faults.rolling-most": "… the longest", Lower "ms", AtMost(1000.0, Unit);
    REVOKED = "faults.revoked": "token revoked at one node to stream closed at another, p99", Lower "ms",
        AtMost(50.0, Unit);
    REVOKED_ALONE = "faults.revoked-alone": "… without NATS, p99", Lower "ms", AtMost(2000.0, Unit);
    REBUILT = "faults.rebuilt": "10,000 executors claimed again after the database has crashed and answers", Lower "s",
        AtMost(2.0, Unit);
}

/// Sessions in a cluster of three nodes and three NATS servers that loses parts.
pub const GROUP: Group = Group { name: "faults", most_rounds: 1, rows: ROWS, measure };

/// Sessions of clients of their own; each adds one gap per fault.
const SESSIONS: usize = 20;

/// Between two lines of a session.
const PAUSE: Duration = Duration::from_millis(20);

/// All sessions type before a fault, and go on for longer than a gap may be.
const BEFORE: Duration = Duration::from_millis(200);
const AFTER: Duration = Duration::from_millis(1500);

/// Revocations, and the pause between two of them where all wait for the same look at the database.
const REVOCATIONS: usize = 100;
const REVOCATION_PAUSE: Duration = Duration::from_millis(37);

/// How long it may take until all executors are claimed.
const CLAIM_TIME: Duration = Duration::from_secs(60);

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no rendezvous.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    use_program(scene.contestant.program().as_ref());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // The fixtures of the tests panic on what they do not expect.
    let sessions = || runtime.block_on(measure_sessions(scene.effort, readings));
    let measured = catch_unwind(AssertUnwindSafe(sessions));
    measured.map_err(|_| Failure::new("a session did not survive; the reason is above"))??;
    measure_revocations(scene, readings)?;
    measure_claims(scene, readings)
}

async fn measure_sessions(effort: Effort, readings: &mut Readings) -> Result<()> {
    let missing = || Failure::new("not installed: postgresql or nats-server");
    let database = tokio::task::spawn_blocking(Postgres::start_durable).await;
    let database = database.expect("no panic").ok_or_else(missing)?;
    let rig = Rig::start_on(Path::Trunk, "1s", database).await.ok_or_else(missing)?;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(Session::start_echo(&rig).await);
    }
    let mut bench = FaultBench { rig, sessions };
    let rounds = effort.pick(9, 1);
    let [mut home, mut trunk_home, mut arrival] = [const { Vec::new() }; 3];
    for round in 0..rounds {
        let node = |offset: usize| NODES[(round + offset) % NODES.len()];
        let (x, y, z) = (node(0), node(1), node(2));
        home.extend(bench.kill(x, [x, y, z], [x, y, z]).await);
        // The harness's node is the last that an executor tries, so that the stream still passes through two.
        trunk_home.extend(bench.kill(x, [x, z, y], [y, z, x]).await);
        arrival.extend(bench.kill(y, [x, z, y], [y, z, x]).await);
    }
    enter(readings, [HOME_P50, HOME_P99, HOME_MOST], &home);
    enter(readings, [TRUNK_HOME_P50, TRUNK_HOME_P99, TRUNK_HOME_MOST], &trunk_home);
    enter(readings, [ARRIVAL_P50, ARRIVAL_P99, ARRIVAL_MOST], &arrival);

    let mut nats = Vec::new();
    bench.arrange(["b", "c", "a"], ["a", "c", "b"]).await;
    for round in 0..rounds {
        nats.extend(bench.kill_nats(round % 3).await);
    }
    enter(readings, [NATS_P50, NATS_P99, NATS_MOST], &nats);

    let mut rolling = Vec::new();
    for _ in 0..effort.pick(3, 1) {
        for id in NODES {
            rolling.extend(bench.restart(id).await);
        }
    }
    enter(readings, [ROLLING_P50, ROLLING_P99, ROLLING_MOST], &rolling);
    Ok(())
}

fn enter(readings: &mut Readings, rows: [&'static str; 3], gaps: &[f64]) {
    for (row, share) in rows.into_iter().zip([0.5, 0.99, 1.0]) {
        readings.enter(row, percentile(gaps, share));
    }
}

/// A cluster and sessions through it.
struct FaultBench {
    rig: Rig,
    sessions: Vec<Session>,
}

impl FaultBench {
    /// The gaps after the kill of a node, with executor and harnesses at the first node of their orders.
    async fn kill(
        &mut self,
        id: &'static str,
        executors: [&'static str; 3],
        harnesses: [&'static str; 3],
    ) -> Vec<f64> {
        self.arrange(executors, harnesses).await;
        let gaps = self.gaps(async |rig| rig.kill(id).await).await;
        self.rig.restart(id).await;
        self.rig.wait_for_members().await;
        gaps
    }

    async fn kill_nats(&mut self, number: usize) -> Vec<f64> {
        let gaps = self.gaps(async |rig| rig.crash_nats(number).await).await;
        self.rig.resume_nats(number).await;
        self.rig.wait_for_members().await;
        self.echo_all().await;
        gaps
    }

    /// The gaps of a restart of a node, as an upgrade does it.
    async fn restart(&mut self, id: &'static str) -> Vec<f64> {
        self.rig.open_doors(&[]);
        self.echo_all().await;
        let gaps = self
            .gaps(async |rig| {
                rig.leave(id).await;
                rig.wait_until_left(id).await;
            })
            .await;
        self.rig.restart(id).await;
        self.rig.wait_for_members().await;
        gaps
    }

    async fn arrange(&mut self, executors: [&'static str; 3], harnesses: [&'static str; 3]) {
        self.rig.place_at(executors, harnesses);
        while self.rig.home().await != executors[0] {}
        self.echo_all().await;
    }

    async fn echo_all(&mut self) {
        for session in &mut self.sessions {
            session.echo().await;
        }
    }

    /// The longest time that a line took in each session while all type, in milliseconds.
    async fn gaps(&mut self, fault: impl AsyncFnOnce(&mut Rig)) -> Vec<f64> {
        let is_over = Arc::<AtomicBool>::default();
        let type_on = |mut session: Session| {
            let is_over = is_over.clone();
            tokio::spawn(async move {
                let longest = session.echo_until(&is_over, PAUSE).await;
                (session, longest)
            })
        };
        let typing: Vec<_> = self.sessions.drain(..).map(type_on).collect();
        sleep(BEFORE).await;
        fault(&mut self.rig).await;
        sleep(AFTER).await;
        is_over.store(true, Ordering::Relaxed);
        let mut gaps = Vec::new();
        for typing in typing {
            let (session, longest) = typing.await.expect("the session survives");
            self.sessions.push(session);
            gaps.push(ms(longest));
        }
        gaps
    }
}

fn measure_revocations(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let cluster = BenchCluster::start(scene)?;
    let count = scene.effort.pick(REVOCATIONS, 20);
    let members = cluster.members(2 * count);
    let (with_nats, alone) = members.split_at(count);
    {
        let (a, b) = (cluster.node("a")?, cluster.node("b")?);
        cluster.wait_for_nodes(&a, 2)?;
        let mut pairs = swarm::open(a.address, with_nats, Peers::Both)?;
        let times: Result<Vec<f64>> =
            pairs.iter_mut().zip(with_nats).map(|it| revoke(&cluster, &b, it)).collect();
        readings.enter(REVOKED, percentile(&times?, 0.99));
    }
    let (a, b) = (cluster.node_without_nats("c")?, cluster.node_without_nats("d")?);
    let mut pairs = swarm::open(a.address, alone, Peers::Both)?;
    // At different moments between two looks at the database.
    let times: Result<Vec<f64>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for pair in pairs.iter_mut().zip(alone) {
            let (cluster, b) = (&cluster, &b);
            threads.push(scope.spawn(move || revoke(cluster, b, pair)));
            thread::sleep(REVOCATION_PAUSE);
        }
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    readings.enter(REVOKED_ALONE, percentile(&times?, 0.99));
    Ok(())
}

/// Revokes the token of a harness at a node; returns how long its stream stays open, in milliseconds.
fn revoke(
    cluster: &BenchCluster<'_>,
    node: &Node<'_>,
    (pair, member): (&mut Pair, &Member),
) -> Result<f64> {
    let path = format!("/admin/tokens/{}", BenchCluster::harness_token_id(member));
    let mut http = KeepAlive::connect(node.address)?;
    let harness = pair.harness.as_mut().ok_or_else(|| Failure::new("a websocket is missing"))?;
    let begun = Instant::now();
    harness.set_deadline(begun + USUAL_TIME);
    let (status, answer) = http.delete(&path, &cluster.admin)?;
    if status != 200 {
        let answer = String::from_utf8_lossy(answer);
        return Err(Failure::new(format!("the token is not revoked ({status}): {answer}")));
    }
    while harness.next_message().is_ok() {}
    let time = begun.elapsed();
    if time >= USUAL_TIME {
        return Err(Failure::new("the stream of a revoked token stays open"));
    }
    Ok(ms(time))
}

fn measure_claims(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut cluster = BenchCluster::start(scene)?;
    let (a, b) = (cluster.node("a")?, cluster.node("b")?);
    cluster.wait_for_nodes(&a, 2)?;
    let members = cluster.members(scene.effort.pick(10_000, 500));
    let (at_a, at_b) = members.split_at(members.len() / 2);
    let _executors = [
        swarm::open(a.address, at_a, Peers::Executors)?,
        swarm::open(b.address, at_b, Peers::Executors)?,
    ];
    cluster.restart_database();
    let begun = Instant::now();
    // Nodes have a mark of their own in the table.
    let claimed = "SELECT count(*) FROM presence WHERE environment LIKE 'env-%' AND node <> ''";
    while cluster.run_sql(claimed) != members.len().to_string() {
        if begun.elapsed() >= CLAIM_TIME {
            return Err(Failure::new("the executors are not claimed again"));
        }
    }
    readings.enter(REBUILT, begun.elapsed().as_secs_f64());
    Ok(())
}
