//! Sessions of our client through a cluster, while parts of the cluster are killed, stopped and restarted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exec_server::{Child, ExecServerClient, ExecServerError, ExecutorFileSystem, Stdin};
use exec_server_testkit::DEADLINE;
use exec_server_testkit::balancer::Balancer;
use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::executor::{Signal, TestExecutor};
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::nats::{Nats, urls};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::cluster_rounds::rounds;
use super::executor::{join, wait_for_presence};
use crate::remote_client::{args, connect};

/// Random faults go on for this many seconds; by default only some are tried.
const CHAOS: &str = "EXEC_SERVER_TEST_CHAOS_SECONDS";

/// The order in which executors try nodes.
const EXECUTORS: [&str; 3] = ["b", "c", "a"];

/// Three nodes and three NATS servers. Executors and harnesses have doors of their own, so that the test chooses where
/// each arrives, and streams pass through the trunk.
struct Rig {
    cluster: Cluster,
    nats: Vec<Nats>,
    addresses: BTreeMap<&'static str, SocketAddr>,
    nodes: BTreeMap<&'static str, Node>,
    executor_door: Balancer,
    harness_door: Balancer,
    harness_token: String,
    place: tempfile::TempDir,
    executor: Option<TestExecutor>,
    path: Path,
}

/// The way of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// Inside the node of the executor, as harnesses that follow the answer to `connect`.
    Usual,
    /// From another node, through NATS.
    Trunk,
}

impl Rig {
    async fn start(drain_time: &'static str) -> Option<Self> {
        Self::start_with(drain_time, Path::Trunk).await
    }

    async fn start_with(drain_time: &'static str, path: Path) -> Option<Self> {
        let nats = tokio::task::spawn_blocking(|| Nats::start(3)).await.unwrap()?;
        let (executor_door, harness_door) = (Balancer::start().await, Balancer::start().await);
        let mut cluster = Cluster::shared().await?;
        cluster.nats = Some(urls(&nats));
        cluster.public_url = Some(executor_door.url());
        cluster.node_url = Some(harness_door.url());
        cluster.drain_time = drain_time;
        cluster.heartbeat = "100ms";
        let addresses: BTreeMap<_, _> =
            ["a", "b", "c"].into_iter().map(|id| (id, free_address())).collect();
        let mut nodes = BTreeMap::new();
        for (id, address) in &addresses {
            nodes.insert(*id, cluster.node_at(id, *address).await);
        }
        cluster.wait_for_members(&nodes.values().collect::<Vec<_>>()).await;
        let place = tempfile::tempdir().unwrap();
        let executor_token = cluster.token(&nodes["a"], "executor", "env").await;
        let harness_token = cluster.token(&nodes["a"], "harness", "env").await;
        let mut rig = Self {
            nats,
            addresses,
            nodes,
            executor_door,
            harness_door,
            harness_token,
            executor: None,
            place,
            path,
            cluster,
        };
        rig.open_doors(&[]);
        let state = rig.place.path().join("executor");
        rig.executor = Some(join(&rig.executor_door.url(), &state, &executor_token).spawn());
        wait_for_presence(&rig.nodes["a"].url, &rig.cluster.admin, true).await;
        Some(rig)
    }

    /// Executors arrive at b, harnesses at a or beside them; if these are closed, at others. Connections of closed nodes are
    /// cut.
    fn open_doors(&self, closed: &[&str]) {
        self.executor_door.set(&self.order(EXECUTORS, closed));
        self.harness_door.set(&self.order(self.harnesses(), closed));
    }

    /// The same for new connections only.
    fn open_doors_softly(&self, closed: &[&str]) {
        self.executor_door.prefer(&self.order(EXECUTORS, closed));
        self.harness_door.prefer(&self.order(self.harnesses(), closed));
    }

    fn harnesses(&self) -> [&'static str; 3] {
        match self.path {
            Path::Usual => EXECUTORS,
            Path::Trunk => ["a", "c", "b"],
        }
    }

    fn order(&self, order: [&str; 3], closed: &[&str]) -> Vec<SocketAddr> {
        let open = order.into_iter().filter(|id| !closed.contains(id));
        open.map(|id| self.addresses[id]).collect()
    }

    async fn client(&self) -> ExecServerClient {
        let state = self.place.path().join("client");
        connect(args(&self.harness_door.url(), &self.harness_token, &state)).await
    }

    async fn kill(&mut self, id: &'static str) {
        self.nodes.get_mut(id).unwrap().kill().await;
    }

    async fn restart(&mut self, id: &'static str) {
        let node = self.cluster.node_at(id, self.addresses[id]).await;
        self.nodes.insert(id, node);
    }

    async fn crash_nats(&mut self, number: usize) {
        let mut server = self.nats.remove(number);
        let crashed = tokio::task::spawn_blocking(move || {
            server.crash();
            server
        });
        self.nats.insert(number, crashed.await.unwrap());
    }

    async fn resume_nats(&mut self, number: usize) {
        let mut server = self.nats.remove(number);
        let resumed = tokio::task::spawn_blocking(move || {
            server.resume();
            server
        });
        self.nats.insert(number, resumed.await.unwrap());
    }

    /// The links that end here; what passes through a trunk has one at each of two nodes.
    async fn has_trunk(&self) -> bool {
        for node in self.nodes.values() {
            let bytes = "exec_server_trunk_bytes_total{dir=\"in\"}";
            if node.metric(&self.cluster.admin, bytes).await > 0 {
                return true;
            }
        }
        false
    }
}

/// A session with an echo, and a counter and copies of a file that go on all the time.
struct Session {
    client: ExecServerClient,
    session: Option<String>,
    echo: (exec_server::ChildStdin, BufReader<exec_server::ChildOutput>),
    _echo: Child,
    counter: Child,
    stop: std::path::PathBuf,
    lines: u64,
    is_over: Arc<AtomicBool>,
    copies: JoinHandle<usize>,
}

impl Session {
    async fn start(rig: &Rig) -> Self {
        let client = rig.client().await;
        let mut echo = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
        let pipes = (echo.stdin.take().unwrap(), BufReader::new(echo.stdout.take().unwrap()));
        let stop = rig.place.path().join("stop");
        let script =
            r#"i=0; while [ ! -e "$0" ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 7"#;
        let stop_name = stop.display().to_string();
        let counter = client.command("sh").args(["-c", script, &stop_name]).spawn().await.unwrap();
        let session = client.session_id();
        let content: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let file = rig.place.path().join("file");
        std::fs::write(&file, &content).unwrap();
        let is_over = Arc::<AtomicBool>::default();
        let copies = tokio::spawn(copy(client.fs(), file, content, is_over.clone()));
        let lines = 0;
        Self { client, session, echo: pipes, _echo: echo, counter, stop, lines, is_over, copies }
    }

    /// Types a line and waits for its echo; returns how long that took.
    async fn echo(&mut self) -> Duration {
        let start = Instant::now();
        self.lines += 1;
        let line = format!("line {}\n", self.lines);
        let (stdin, stdout) = &mut self.echo;
        let echoed = async {
            stdin.write_all(line.as_bytes()).await.expect("the session goes on");
            let mut back = String::new();
            stdout.read_line(&mut back).await.expect("the session goes on");
            back
        };
        let back = timeout(DEADLINE, echoed).await.expect("the session comes back");
        assert_eq!(back, line, "every line once and in order");
        assert_eq!(self.client.session_id(), self.session, "the session is the same");
        start.elapsed()
    }

    /// Ends the counter; its output has no hole and its exit code is right.
    async fn finish(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let copies = timeout(DEADLINE, self.copies).await.unwrap().expect("no copy fails");
        assert!(copies > 0);
        std::fs::write(&self.stop, "").unwrap();
        let mut counted = String::new();
        let mut stdout = self.counter.stdout.take().unwrap();
        timeout(DEADLINE, stdout.read_to_string(&mut counted)).await.unwrap().unwrap();
        let count = counted.lines().count();
        let expected: String = (1..=count).map(|number| format!("{number}\n")).collect();
        assert!(count > 0 && counted == expected, "every number once and in order");
        let status = timeout(DEADLINE, self.counter.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), 7);
    }
}

/// Copies a file from the executor again and again; returns how often.
async fn copy(
    files: ExecutorFileSystem,
    path: std::path::PathBuf,
    content: Vec<u8>,
    is_over: Arc<AtomicBool>,
) -> usize {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let read = files.read_file(path.to_str().expect("UTF-8"));
        let read = timeout(DEADLINE, read).await.expect("it ends in time");
        assert!(read.expect("no copy fails") == content, "every byte once and in order");
        count += 1;
        // Leaves the machine to the others.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    count
}

#[tokio::test]
async fn a_session_survives_the_end_of_every_node_and_every_nats_server() {
    let Some(mut rig) = Rig::start("0s").await else { return };
    let mut session = Session::start(&rig).await;
    session.echo().await;
    assert!(rig.has_trunk().await, "the stream passes through a trunk");
    for id in ["a", "b", "c"] {
        rig.kill(id).await;
        session.echo().await;
        rig.restart(id).await;
        session.echo().await;
    }
    for number in 0..3 {
        rig.crash_nats(number).await;
        session.echo().await;
        rig.resume_nats(number).await;
        session.echo().await;
    }
    session.finish().await;
}

#[tokio::test]
async fn a_session_survives_nodes_that_hang_and_go_on() {
    let Some(rig) = Rig::start("0s").await else { return };
    let mut session = Session::start(&rig).await;
    let mut stops = vec![("a", 200), ("b", 1000), ("b", 5000)];
    stops.extend((rounds(0, 1) > 0).then_some(("b", 30_000)));
    for (id, stopped) in stops {
        session.echo().await;
        rig.nodes[id].process.signal(Signal::STOP);
        // The balancer finds out, and cuts the connections.
        rig.open_doors(&[id]);
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
    let Some(mut rig) = Rig::start("1s").await else { return };
    let mut session = Session::start(&rig).await;
    let load = Load::start(&rig).await;
    for id in ["a", "b", "c"] {
        session.echo().await;
        rig.nodes[id].process.signal(Signal::TERM);
        rig.nodes[id].wait_for_status("/readyz", 503).await;
        // As a balancer does: nothing new, and what is open stays open.
        rig.open_doors_softly(&[id]);
        session.echo().await;
        let status = rig.nodes.get_mut(id).unwrap().process.wait().await;
        assert_eq!(status.code(), Some(0), "{id}");
        session.echo().await;
        rig.restart(id).await;
        rig.open_doors(&[]);
    }
    session.finish().await;
    let (requests, slowest) = load.finish().await;
    println!("{requests} requests during the restarts, the slowest took {slowest:?}");
    assert!(requests > 0);
}

/// Clients that read files and run commands all the time, on one connection or on a new one for each; no read may fail.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Duration>>>,
}

impl Load {
    async fn start(rig: &Rig) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let mut tasks = Vec::new();
        for number in 0..3 {
            let (stop, state) = (stop.clone(), rig.place.path().join(format!("load-{number}")));
            let (door, token) = (rig.harness_door.url(), rig.harness_token.clone());
            let mut client = connect(args(&door, &token, &state)).await;
            tasks.push(tokio::spawn(async move {
                let mut times = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    if number == 0 {
                        // A first connection that is cut is not repeated by the client.
                        let new = async {
                            loop {
                                let args = args(&door, &token, &state);
                                if let Ok(new) = ExecServerClient::connect_relay(args).await {
                                    return new;
                                }
                            }
                        };
                        client = timeout(DEADLINE, new).await.expect("it is reached");
                    }
                    if number == 2 {
                        // Not repeated by the client: a start whose answer was lost may have happened.
                        let mut command = client.command("echo");
                        match timeout(DEADLINE, command.arg("text").output()).await {
                            Ok(Ok(output)) => assert_eq!(output.stdout, b"text\n"),
                            Ok(Err(ExecServerError::Ambiguous { .. })) => {}
                            failed => panic!("{failed:?}"),
                        }
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
    let Some(mut rig) = Rig::start("0s").await else { return };
    // Both ends at one node.
    rig.harness_door.set(&[rig.addresses["b"]]);
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
    rig.cluster.wait_for_members(&rig.nodes.values().collect::<Vec<_>>()).await;
    session.echo().await;
    another.finish().await;
}

#[tokio::test]
async fn a_session_through_a_trunk_survives_random_faults() {
    survive_random_faults(Path::Trunk).await;
}

#[tokio::test]
async fn a_session_inside_a_node_survives_random_faults() {
    survive_random_faults(Path::Usual).await;
}

async fn survive_random_faults(path: Path) {
    let seconds = std::env::var(CHAOS).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(seconds);
    let Some(mut rig) = Rig::start_with("0s", path).await else { return };
    let mut session = Session::start(&rig).await;
    let seed = std::process::id();
    let mut random = u64::from(seed) | 1;
    let mut gaps = BTreeMap::<&str, Vec<Duration>>::new();
    let mut round = 0;
    while round < 3 || Instant::now() < end {
        round += 1;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let id = ["a", "b", "c"][(random / 16 % 3) as usize];
        let number = (random / 64 % 3) as usize;
        session.echo().await;
        let fault = random % 4;
        match fault {
            0 | 1 => rig.kill(id).await,
            2 => rig.crash_nats(number).await,
            _ => {
                rig.nodes[id].process.signal(Signal::STOP);
                rig.open_doors(&[id]);
            }
        }
        let name = ["a node killed", "a NATS server killed", "a node stopped"];
        let name = name[usize::try_from(fault.max(1) - 1).expect("it is small")];
        gaps.entry(name).or_default().push(session.echo().await);
        match fault {
            0 | 1 => rig.restart(id).await,
            2 => rig.resume_nats(number).await,
            _ => {
                rig.nodes[id].process.signal(Signal::CONT);
                rig.open_doors(&[]);
            }
        }
        gaps.entry("it came back").or_default().push(session.echo().await);
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
