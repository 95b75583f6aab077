//! Rendezvous nodes with PostgreSQL and NATS, all on this machine.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use exec_server_testkit::nats::{self, Nats};
use exec_server_testkit::postgres::Postgres;

use super::failure::{Failure, Result};
use super::keep_alive::KeepAlive;
use super::relay::Running;
use super::scene::Scene;
use super::swarm::Member;
use super::warden::Warden;

/// How long a node may take until it is ready.
const START_TIME: Duration = Duration::from_secs(20);

/// Database, NATS servers and the files that all nodes share. PostgreSQL has the settings of its package, so commits are
/// synced to disk.
pub struct BenchCluster<'a> {
    /// Two servers; the first node is connected to the first one, all others to the second.
    pub nats: Vec<Nats>,
    /// An admin token.
    pub admin: String,
    postgres: Postgres,
    store: String,
    place: PathBuf,
    program: PathBuf,
    warden: &'a Warden,
}

/// A running node.
pub struct Node<'a> {
    /// Its own address.
    pub address: SocketAddr,
    /// Its process.
    pub process: Running<'a>,
}

impl<'a> BenchCluster<'a> {
    /// Starts database and NATS servers.
    pub fn start(scene: &Scene<'a>) -> Result<Self> {
        let program = PathBuf::from(scene.contestant.program());
        let missing = |name| Failure::new(format!("not installed: {name}"));
        let postgres = Postgres::start_durable().ok_or_else(|| missing("postgresql"))?;
        let nats = Nats::start(2).ok_or_else(|| missing("nats-server"))?;
        let store = postgres.database();
        let migrate = Command::new(&program)
            .args(["rendezvous", "migrate"])
            .env("EXEC_SERVER_STORE", &store)
            .output()?;
        let said = String::from_utf8_lossy(&migrate.stderr).into_owned();
        let admin = said.lines().map(str::trim).find(|line| line.starts_with("xs_admin_"));
        let admin = admin.ok_or_else(|| Failure::new(format!("no admin token: {said}")))?;
        let place = scene.scratch.fresh("cluster")?;
        std::fs::write(place.join("keys"), format!("k1 {}\n", "ab".repeat(32)))?;
        let (admin, warden) = (admin.to_owned(), scene.warden);
        Ok(Self { nats, admin, postgres, store, place, program, warden })
    }

    /// Starts a node and waits until it is ready.
    pub fn node(&self, id: &str) -> Result<Node<'a>> {
        // Different servers, so that frames take the longest way.
        let servers = if id == "a" { &self.nats[..1] } else { &self.nats[1..] };
        self.start_node(id, &["--nats", &nats::urls(servers)])
    }

    /// Starts a node that knows others by the database only.
    pub fn node_without_nats(&self, id: &str) -> Result<Node<'a>> {
        self.start_node(id, &[])
    }

    fn start_node(&self, id: &str, more: &[&str]) -> Result<Node<'a>> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let url = format!("http://{address}");
        let mut command = Command::new(&self.program);
        command
            .args(["rendezvous", "--listen", &url, "--public-url", &url, "--node-url", &url])
            .args(["--node-id", id, "--signing-keys"])
            .arg(self.place.join("keys"))
            .args(more)
            .env("EXEC_SERVER_STORE", &self.store)
            .stdout(Stdio::null());
        let process = Running::start(&mut command, self.warden)?;
        let deadline = Instant::now() + START_TIME;
        while !is_ready(address) {
            if Instant::now() >= deadline {
                return Err(Failure::new(format!("node {id} does not become ready")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(Node { address, process })
    }

    /// Waits until a node sees this many nodes.
    pub fn wait_for_nodes(&self, node: &Node<'_>, count: usize) -> Result<()> {
        let deadline = Instant::now() + START_TIME;
        while self.metric(node, "exec_server_cluster_nodes{state=\"ready\"}")? < count as f64 {
            if Instant::now() >= deadline {
                return Err(Failure::new("the nodes do not see each other"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Creates environments with their tokens; by a statement, because requests would sync each token to disk.
    pub fn members(&self, count: usize) -> Vec<Member> {
        let token = |role: &str| {
            format!(
                "INSERT INTO tokens (id, hash, role, environment, created_at)
                SELECT 'tok_{role}_' || n, sha256(('{role}-' || n)::bytea), '{role}', 'env-' || n, 0
                FROM generate_series(1, {count}) n;"
            )
        };
        let environments = format!(
            "INSERT INTO environments (id, created_at) SELECT 'env-' || n, 0 FROM generate_series(1, {count}) n;"
        );
        let all = [environments, token("executor"), token("harness"), "ANALYZE;".to_owned()];
        self.run_sql(&all.concat());
        let member = |number| Member {
            environment: format!("env-{number}"),
            executor: format!("executor-{number}"),
            harness: format!("harness-{number}"),
        };
        (1..=count).map(member).collect()
    }

    /// The id of a token that [`Self::members`] has created.
    pub fn harness_token_id(member: &Member) -> String {
        member.environment.replacen("env-", "tok_harness_", 1)
    }

    /// Runs statements on the database; returns what it answers.
    pub fn run_sql(&self, statements: &str) -> String {
        self.postgres.run_sql(&self.store, statements)
    }

    /// Kills the database, and starts it again on its data.
    pub fn restart_database(&mut self) {
        self.postgres.crash();
        self.postgres.resume();
    }

    /// The value of a metric of a node; 0 before it is first counted.
    pub fn metric(&self, node: &Node<'_>, name: &str) -> Result<f64> {
        let mut http = KeepAlive::connect(node.address)?;
        let (_, text) = http.get("/metrics", &self.admin)?;
        let text = String::from_utf8_lossy(text);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.and_then(|value| value.parse().ok()).unwrap_or(0.0))
    }
}

fn is_ready(address: SocketAddr) -> bool {
    let asked = KeepAlive::connect(address).and_then(|mut http| Ok(http.get("/readyz", "")?.0));
    asked.is_ok_and(|status| status == 200)
}
