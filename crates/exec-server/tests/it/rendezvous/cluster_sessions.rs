//! Sessions of our client through a cluster, while parts of the cluster are killed, stopped and restarted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exec_server::ExecServerClient;
use exec_server_testkit::executor::Signal;
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::remote::{args, connect};
use exec_server_testkit::rig::{NODES, Path, Rig};
use exec_server_testkit::session::Session;
use exec_server_testkit::{DEADLINE, Terminal};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::cluster_rounds::rounds;

/// Random faults go on for this many seconds; by default only some are tried.
const CHAOS: &str = "EXEC_SERVER_TEST_CHAOS_SECONDS";

/// A cluster with a PostgreSQL server of its own.
async fn rig_with_database(path: Path) -> Option<Rig> {
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap()?;
    Rig::start_on(path, "0s", server).await
}

/// What happens to a part of a cluster.
#[derive(Debug, Clone, Copy)]
enum Fault {
    NodeKilled,
    NodeStopped,
    NatsKilled,
    NatsStopped,
    DatabaseKilled,
    DatabaseStopped,
    BalancersRestarted,
}

const FAULTS: [Fault; 7] = [
    Fault::NodeKilled,
    Fault::NodeStopped,
    Fault::NatsKilled,
    Fault::NatsStopped,
    Fault::DatabaseKilled,
    Fault::DatabaseStopped,
    Fault::BalancersRestarted,
];

impl Fault {
    /// The number of parts that it can happen to.
    fn parts(self) -> usize {
        match self {
            Self::NodeKilled | Self::NodeStopped | Self::NatsKilled | Self::NatsStopped => 3,
            Self::DatabaseKilled | Self::DatabaseStopped | Self::BalancersRestarted => 1,
        }
    }

    async fn begin(self, rig: &mut Rig, part: usize) {
        match self {
            Self::NodeKilled => rig.kill(NODES[part]).await,
            Self::NodeStopped => rig.stop(NODES[part]),
            Self::NatsKilled => rig.crash_nats(part).await,
            Self::NatsStopped => rig.signal_nats(part, Signal::STOP),
            Self::DatabaseKilled => rig.with_database(Postgres::crash).await,
            Self::DatabaseStopped => rig.with_database(Postgres::stop).await,
            Self::BalancersRestarted => rig.restart_balancers(),
        }
    }

    async fn end(self, rig: &mut Rig, part: usize) {
        match self {
            Self::NodeKilled => rig.restart(NODES[part]).await,
            Self::NodeStopped => rig.resume(NODES[part]),
            Self::NatsKilled => rig.resume_nats(part).await,
            Self::NatsStopped => rig.signal_nats(part, Signal::CONT),
            Self::DatabaseKilled => rig.with_database(Postgres::resume).await,
            Self::DatabaseStopped => rig.with_database(Postgres::go_on).await,
            Self::BalancersRestarted => {}
        }
    }
}

#[tokio::test]
async fn a_session_through_a_trunk_survives_the_loss_of_every_part() {
    survive_every_part(Path::Trunk).await;
}

#[tokio::test]
async fn a_session_inside_a_node_survives_the_loss_of_every_part() {
    survive_every_part(Path::Local).await;
}

async fn survive_every_part(path: Path) {
    let Some(mut rig) = rig_with_database(path).await else { return };
    let mut session = Session::start(&rig).await;
    session.echo().await;
    assert_eq!(rig.has_trunk().await, path == Path::Trunk, "the way of the stream");
    for fault in FAULTS {
        for part in 0..fault.parts() {
            fault.begin(&mut rig, part).await;
            session.echo().await;
            fault.end(&mut rig, part).await;
            session.echo().await;
        }
    }
    // New ones are possible, too.
    Session::start_echo(&rig).await.echo().await;
    session.finish().await;
}

#[tokio::test]
async fn a_session_survives_nodes_that_hang_and_go_on() {
    let Some(rig) = Rig::start(Path::Trunk, "0s").await else { return };
    let mut session = Session::start(&rig).await;
    let mut stops = vec![("a", 200), ("b", 1000), ("b", 5000)];
    stops.extend((rounds(0, 1) > 0).then_some(("b", 30_000)));
    for (id, stopped) in stops {
        session.echo().await;
        rig.stop(id);
        let stop = Instant::now() + Duration::from_millis(stopped);
        session.echo().await;
        tokio::time::sleep_until(stop.into()).await;
        rig.nodes[id].process.signal(Signal::CONT);
        session.echo().await;
        rig.nodes[id].wait_for_status("/readyz", 200).await;
        rig.open_doors(&[]);
        session.echo().await;
    }
    session.finish().await;
}

#[tokio::test]
async fn nodes_that_are_restarted_one_after_the_other_hand_their_executors_over() {
    let Some(mut rig) = Rig::start(Path::Trunk, "1s").await else { return };
    let mut session = Session::start(&rig).await;
    let load = Load::start(&rig).await;
    for id in NODES {
        session.echo().await;
        rig.leave(id).await;
        session.echo().await;
        rig.wait_until_left(id).await;
        session.echo().await;
        rig.restart(id).await;
        rig.open_doors(&[]);
    }
    session.finish().await;
    let (requests, slowest) = load.finish().await;
    println!("{requests} requests during the restarts, the slowest took {slowest:?}");
    assert!(requests > 0);
}

/// Clients that read files and run commands all the time, on one connection or on a new one for each. None may fail.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Duration>>>,
}

impl Load {
    async fn start(rig: &Rig) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let mut tasks = Vec::new();
        for number in 0..3 {
            let (stop, state) = (stop.clone(), rig.place().join(format!("load-{number}")));
            let (door, token) = (rig.harness_door.url(), rig.harness_token.clone());
            let mut client = connect(args(&door, &token, &state)).await;
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    if number == 0 {
                        let new = ExecServerClient::connect_relay(args(&door, &token, &state));
                        client = timeout(DEADLINE, new)
                            .await
                            .expect("it is reached")
                            .expect("no request fails");
                    }
                    if number == 2 {
                        let mut command = client.command("echo");
                        let output = timeout(DEADLINE, command.arg("text").output()).await;
                        let output = output.expect("it ends in time").expect("no request fails");
                        assert_eq!(output.stdout, b"text\n");
                    } else {
                        let read = timeout(DEADLINE, client.fs().read_file("/etc/passwd")).await;
                        let read = read.expect("it ends in time").expect("no request fails");
                        assert!(read.starts_with(b"root:"), "{read:?}");
                    }
                    times.push(start.elapsed());
                }
                times
            }));
        }
        Self { stop, tasks }
    }

    /// Number of requests, and the time of the slowest.
    async fn finish(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.expect("no request fails"));
        }
        (all.len(), all.into_iter().max().unwrap_or_default())
    }
}

#[tokio::test]
async fn while_all_of_nats_is_away_sessions_at_one_node_go_on() {
    let Some(mut rig) = Rig::start(Path::Local, "0s").await else { return };
    let mut session = Session::start(&rig).await;
    session.echo().await;
    for number in 0..3 {
        rig.crash_nats(number).await;
    }
    session.echo().await;
    // Without a heartbeat to be heard anywhere, the nodes stay ready, and the database says who is alive.
    for node in rig.nodes.values() {
        let is_dead = async || {
            let reply = node.ask("GET", "/readyz", "", &serde_json::Value::Null).await;
            reply.status != 200
        };
        let settled = async { while is_dead().await {} };
        timeout(DEADLINE, settled).await.expect("the nodes are ready by their leases");
    }
    let mut another = Session::start(&rig).await;
    another.echo().await;
    for number in 0..3 {
        rig.resume_nats(number).await;
    }
    rig.wait_for_members().await;
    session.echo().await;
    another.finish().await;
}

#[tokio::test]
async fn a_session_through_a_trunk_survives_random_faults() {
    survive_random_faults(Path::Trunk).await;
}

#[tokio::test]
async fn a_session_inside_a_node_survives_random_faults() {
    survive_random_faults(Path::Local).await;
}

async fn survive_random_faults(path: Path) {
    let seconds = std::env::var(CHAOS).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
    let Some(mut rig) = rig_with_database(path).await else { return };
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut session = Session::start(&rig).await;
    let seed = std::process::id();
    let mut random = u64::from(seed) | 1;
    let mut gaps = BTreeMap::<String, Vec<Duration>>::new();
    let mut round = 0;
    while round < 3 || Instant::now() < end {
        round += 1;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let fault = FAULTS[(random % 7) as usize];
        let part = (random / 16) as usize % fault.parts();
        session.echo().await;
        fault.begin(&mut rig, part).await;
        gaps.entry(format!("{fault:?}")).or_default().push(session.echo().await);
        // Long enough at times for leases, pings and statements to run out.
        let held = Instant::now() + Duration::from_millis(random / 64 % 8000);
        while Instant::now() < held.min(end) {
            gaps.entry(format!("{fault:?}, later")).or_default().push(session.echo().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fault.end(&mut rig, part).await;
        gaps.entry(format!("{fault:?}, at its end")).or_default().push(session.echo().await);
    }
    println!("{path:?}: {round} faults, seed {seed}");
    for (name, mut gaps) in gaps {
        gaps.sort();
        let (count, most) = (gaps.len(), gaps[gaps.len() - 1]);
        let (p50, p99) = (gaps[count / 2], gaps[count * 99 / 100]);
        println!("  {name}: {count} times, p50 {p50:?}, p99 {p99:?}, most {most:?}");
    }
    session.finish().await;
}

#[tokio::test]
async fn a_shell_on_a_terminal_survives_its_node_the_node_of_its_executor_and_nats() {
    let Some(mut rig) = Rig::start(Path::Trunk, "0s").await else { return };
    let state = tempfile::tempdir().unwrap();
    let token = state.path().join("token");
    std::fs::write(&token, &rig.harness_token).unwrap();
    // The terminal comes from a server of ours, which passes no token on.
    let environment = [
        ("EXEC_SERVER_REMOTE_URL", rig.harness_door.url()),
        ("EXEC_SERVER_REMOTE_TOKEN_FILE", token.display().to_string()),
        ("EXEC_SERVER_STATE_DIR", state.path().display().to_string()),
    ];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let program = exec_server_testkit::executor::binary().display().to_string();
    let mut shell = Terminal::start(&[&program, "shell", "env:env"], &environment).await;
    shell.expect("for the first time").await;
    shell.type_keys("X=kept; echo $((1000 + 1))\n").await;
    shell.expect("1001").await;
    assert!(rig.has_trunk().await, "shell and executor are at different nodes");
    // The shell is at a, its executor at b; then at c and b.
    assert_eq!(rig.home().await, "b");
    let mut number = 1;
    for fault in [(Fault::NodeKilled, 0), (Fault::NatsKilled, 0), (Fault::NatsKilled, 1)]
        .into_iter()
        .chain([(Fault::NatsKilled, 2), (Fault::NodeKilled, 1), (Fault::BalancersRestarted, 0)])
    {
        number += 1;
        let (fault, part) = fault;
        // In the middle of a line.
        shell.type_keys("echo $X $((10").await;
        fault.begin(&mut rig, part).await;
        shell.type_keys(&format!("00 + {number}))\n")).await;
        shell.expect(&format!("kept {}", 1000 + number)).await;
        fault.end(&mut rig, part).await;
    }
    shell.type_keys("exit 5\n").await;
    assert_eq!(shell.finish().await.0, 5);
}
