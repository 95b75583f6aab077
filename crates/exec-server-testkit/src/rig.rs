//! Three rendezvous nodes and three NATS servers with an executor: any part can be killed, stopped and started again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path as FilePath;

use exec_server_client::ExecServerClient;
use serde_json::Value;

use crate::DEADLINE;
use crate::balancer::Balancer;
use crate::cluster::{Cluster, Node};
use crate::executor::{Signal, TestExecutor};
use crate::isolation::free_address;
use crate::nats::{Nats, urls};
use crate::postgres::Postgres;
use crate::remote::{args, connect, join, wait_for_presence};

/// The ids of the nodes.
pub const NODES: [&str; 3] = ["a", "b", "c"];

/// The order in which executors try nodes.
const EXECUTORS: [&str; 3] = ["b", "c", "a"];

/// The cluster. Executors and harnesses have doors of their own, so that a test chooses where each arrives.
pub struct Rig {
    /// Database, tokens and options of the nodes.
    pub cluster: Cluster,
    /// The running nodes by their ids.
    pub nodes: BTreeMap<&'static str, Node>,
    /// Where clients ask and arrive.
    pub harness_door: Balancer,
    /// The token of clients.
    pub harness_token: String,
    executor_door: Balancer,
    nats: Vec<Nats>,
    database: Option<Postgres>,
    addresses: BTreeMap<&'static str, SocketAddr>,
    place: tempfile::TempDir,
    executor: Option<TestExecutor>,
    path: Path,
}

/// The way of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Inside the node of the executor, as harnesses that follow the answer to `connect`.
    Local,
    /// From another node, through NATS.
    Trunk,
}

impl Rig {
    /// Starts on the shared PostgreSQL server; none where a program is missing.
    pub async fn start(path: Path, drain_time: &'static str) -> Option<Self> {
        Self::start_with(path, drain_time, None).await
    }

    /// Starts on this PostgreSQL server, which can then be killed and stopped like the other parts.
    pub async fn start_on(path: Path, drain_time: &'static str, server: Postgres) -> Option<Self> {
        Self::start_with(path, drain_time, Some(server)).await
    }

    async fn start_with(
        path: Path,
        drain_time: &'static str,
        database: Option<Postgres>,
    ) -> Option<Self> {
        let nats = tokio::task::spawn_blocking(|| Nats::start(3)).await.expect("no panic")?;
        let (executor_door, harness_door) = (Balancer::start().await, Balancer::start().await);
        let mut cluster = match &database {
            Some(server) => Cluster::new(Some(server.database())).await?,
            None => Cluster::shared().await?,
        };
        cluster.nats = Some(urls(&nats));
        cluster.public_url = Some(executor_door.url());
        cluster.node_url = Some(harness_door.url());
        cluster.drain_time = drain_time;
        cluster.heartbeat = "100ms";
        let addresses: BTreeMap<_, _> = NODES.into_iter().map(|id| (id, free_address())).collect();
        let mut nodes = BTreeMap::new();
        for (id, address) in &addresses {
            nodes.insert(*id, cluster.node_at(id, *address).await);
        }
        cluster.wait_for_members(&nodes.values().collect::<Vec<_>>()).await;
        let place = tempfile::tempdir().expect("there is room for a directory");
        let executor_token = cluster.token(&nodes["a"], "executor", "env").await;
        let harness_token = cluster.token(&nodes["a"], "harness", "env").await;
        let mut rig = Self {
            cluster,
            nodes,
            harness_door,
            harness_token,
            executor_door,
            nats,
            database,
            addresses,
            place,
            executor: None,
            path,
        };
        rig.open_doors(&[]);
        let state = rig.place.path().join("executor");
        rig.executor = Some(join(&rig.executor_door.url(), &state, &executor_token).spawn());
        wait_for_presence(&rig.nodes["a"].url, &rig.cluster.admin, true).await;
        Some(rig)
    }

    /// A directory for files.
    pub fn place(&self) -> &FilePath {
        self.place.path()
    }

    /// Executors arrive at b, harnesses at a or beside them; if these are closed, at others. Connections of closed nodes are
    /// cut.
    pub fn open_doors(&self, closed: &[&str]) {
        self.executor_door.set(&self.order(EXECUTORS, closed));
        self.harness_door.set(&self.order(self.harnesses(), closed));
    }

    /// The same for new connections only.
    pub fn open_doors_softly(&self, closed: &[&str]) {
        self.executor_door.prefer(&self.order(EXECUTORS, closed));
        self.harness_door.prefer(&self.order(self.harnesses(), closed));
    }

    /// Sets the order in which executors and harnesses try nodes, and moves those that are not at the first one.
    pub fn place_at(&self, executors: [&str; 3], harnesses: [&str; 3]) {
        for (door, order) in [(&self.executor_door, executors), (&self.harness_door, harnesses)] {
            door.set(&[self.addresses[order[0]]]);
            door.prefer(&self.order(order, &[]));
        }
    }

    /// Cuts all connections, as the restart of a balancer does.
    pub fn restart_balancers(&self) {
        self.executor_door.set(&[]);
        self.harness_door.set(&[]);
        self.open_doors(&[]);
    }

    fn harnesses(&self) -> [&'static str; 3] {
        match self.path {
            Path::Local => EXECUTORS,
            Path::Trunk => ["a", "c", "b"],
        }
    }

    fn order(&self, order: [&str; 3], closed: &[&str]) -> Vec<SocketAddr> {
        let open = order.into_iter().filter(|id| !closed.contains(id));
        open.map(|id| self.addresses[id]).collect()
    }

    /// A client that has reached the executor.
    pub async fn client(&self) -> ExecServerClient {
        let state = self.place().join("client");
        connect(args(&self.harness_door.url(), &self.harness_token, &state)).await
    }

    /// The node that the executor is attached to; every node must run.
    pub async fn home(&self) -> &'static str {
        let asking = async {
            loop {
                let asked = &self.nodes["a"];
                let reply = asked.ask("GET", "/admin/nodes", &self.cluster.admin, &Value::Null);
                let list: Value = serde_json::from_str(&reply.await.body).unwrap_or_default();
                let nodes = list["nodes"].as_array().cloned().unwrap_or_default();
                let is_home = |it: &&Value| it["executors"] == 1 && it["state"] == "ready";
                let home = nodes.iter().find(is_home).and_then(|it| it["id"].as_str());
                if let Some(home) = home.and_then(|id| NODES.into_iter().find(|it| *it == id)) {
                    return home;
                }
            }
        };
        tokio::time::timeout(DEADLINE, asking).await.expect("the executor is at a node")
    }

    /// Kills a node.
    pub async fn kill(&mut self, id: &'static str) {
        self.nodes.get_mut(id).expect("it runs").kill().await;
    }

    /// Starts a node again that has ended.
    pub async fn restart(&mut self, id: &'static str) {
        let node = self.cluster.node_at(id, self.addresses[id]).await;
        self.nodes.insert(id, node);
    }

    /// Asks a node to stop; a balancer sends nothing new there, and what is open stays open.
    pub async fn leave(&self, id: &'static str) {
        self.nodes[id].process.signal(Signal::TERM);
        self.nodes[id].wait_for_status("/readyz", 503).await;
        self.open_doors_softly(&[id]);
    }

    /// Waits for the end of a node that was asked to stop.
    pub async fn wait_until_left(&mut self, id: &'static str) {
        let status = self.nodes.get_mut(id).expect("it runs").process.wait().await;
        assert_eq!(status.code(), Some(0), "{id}");
    }

    /// Stops a node without ending it; the balancer finds out, and cuts its connections.
    pub fn stop(&self, id: &'static str) {
        self.nodes[id].process.signal(Signal::STOP);
        self.open_doors(&[id]);
    }

    /// Lets a node go on that was stopped.
    pub fn resume(&self, id: &'static str) {
        self.nodes[id].process.signal(Signal::CONT);
        self.open_doors(&[]);
    }

    /// Waits until all nodes hear each other.
    pub async fn wait_for_members(&self) {
        self.cluster.wait_for_members(&self.nodes.values().collect::<Vec<_>>()).await;
    }

    /// Kills a NATS server.
    pub async fn crash_nats(&mut self, number: usize) {
        self.with_nats(number, Nats::crash).await;
    }

    /// Starts a NATS server again.
    pub async fn resume_nats(&mut self, number: usize) {
        self.with_nats(number, Nats::resume).await;
    }

    /// Sends a signal to a NATS server.
    pub fn signal_nats(&self, number: usize, signal: Signal) {
        self.nats[number].signal(signal);
    }

    async fn with_nats(&mut self, number: usize, act: fn(&mut Nats)) {
        let server = self.nats.remove(number);
        self.nats.insert(number, on_thread(server, act).await);
    }

    /// Kills, stops or starts the PostgreSQL server, which must be one of its own.
    pub async fn with_database(&mut self, act: fn(&mut Postgres)) {
        let server = self.database.take().expect("the server is not shared");
        self.database = Some(on_thread(server, act).await);
    }

    /// Whether something has passed through a trunk.
    pub async fn has_trunk(&self) -> bool {
        for node in self.nodes.values() {
            let bytes = "exec_server_trunk_bytes_total{dir=\"in\"}";
            if node.metric(&self.cluster.admin, bytes).await > 0 {
                return true;
            }
        }
        false
    }
}

/// Does on another thread what blocks.
async fn on_thread<T: Send + 'static>(mut value: T, act: fn(&mut T)) -> T {
    let acting = tokio::task::spawn_blocking(move || {
        act(&mut value);
        value
    });
    acting.await.expect("no panic")
}
