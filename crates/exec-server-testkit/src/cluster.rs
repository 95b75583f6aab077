//! Several rendezvous nodes with one database, and NATS if the test wants it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::DEADLINE;
#[cfg(target_os = "linux")]
use crate::FaultProxy;
use crate::executor::{ExecutorBuilder, Signal, TestExecutor};
use crate::http::{HttpReply, request_with_body};
use crate::isolation::free_address;
use crate::nats::Nats;
use crate::postgres::Postgres;
use crate::rendezvous::{connect_body, public_key, register_body};

/// The database and the files that all nodes share.
pub struct Cluster {
    /// URL of the database.
    pub store: String,
    /// An admin token.
    pub admin: String,
    /// The value of `--nats`.
    pub nats: Option<String>,
    /// The value of `--public-url`; each node's own URL if none.
    pub public_url: Option<String>,
    /// The value of `--node-url`; each node's own URL if none.
    pub node_url: Option<String>,
    /// The value of `--heartbeat-interval`: by default long, so that a busy machine makes no node silent.
    pub heartbeat: &'static str,
    /// The value of `--drain-time`.
    pub drain_time: &'static str,
    /// More arguments of every node.
    pub more: Vec<&'static str>,
    name: String,
    place: tempfile::TempDir,
}

/// A node, running.
pub struct Node {
    /// Its process.
    pub process: TestExecutor,
    /// Its own URL.
    pub url: String,
}

impl Cluster {
    /// A cluster on this database, which it migrates; none without a database.
    pub async fn new(store: Option<String>) -> Option<Self> {
        let store = store?;
        let place = tempfile::tempdir().expect("there is room for a directory");
        let keys = format!("k1 {}\n", "ab".repeat(32));
        std::fs::write(place.path().join("keys"), keys).expect("the directory is new");
        let migrate = TestExecutor::builder().args(&["rendezvous", "migrate"]);
        let (code, _, stderr) = migrate.env("EXEC_SERVER_STORE", &store).run().await;
        assert_eq!(code, 0, "{stderr}");
        let admin = stderr.lines().map(str::trim).find(|line| line.starts_with("xs_admin_"));
        let admin = admin.expect("the first migration makes an admin token").to_owned();
        // Clusters on one NATS are told apart by their names.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        let (nats, public_url, node_url, drain_time) = (None, None, None, "0s");
        let heartbeat = "700ms";
        let more = Vec::new();
        Some(Self {
            store,
            admin,
            nats,
            public_url,
            node_url,
            heartbeat,
            drain_time,
            more,
            name,
            place,
        })
    }

    /// A cluster on a database of the shared PostgreSQL server, without NATS.
    pub async fn shared() -> Option<Self> {
        let store = tokio::task::spawn_blocking(Postgres::shared_database).await;
        Self::new(store.expect("no panic")).await
    }

    /// A cluster on a database of the shared PostgreSQL server, and the shared NATS server.
    pub async fn with_nats() -> Option<Self> {
        let nats = tokio::task::spawn_blocking(Nats::shared).await.expect("no panic")?;
        let cluster = Self::shared().await?;
        Some(Self { nats: Some(nats), ..cluster })
    }

    /// The file with the signing keys.
    pub fn keys(&self) -> PathBuf {
        self.place.path().join("keys")
    }

    /// The name of the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Changes the name of the cluster.
    pub fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Starts a node.
    pub async fn node(&self, id: &str) -> Node {
        // A node cannot name its port before it has one, and must tell others its URL.
        self.node_at(id, free_address()).await
    }

    /// Starts a node at an address.
    pub async fn node_at(&self, id: &str, address: SocketAddr) -> Node {
        let process = self.command(id, address).env("RUST_LOG", "info").start().await;
        Node { process, url: format!("http://{address}") }
    }

    /// Starts a node that reaches PostgreSQL and NATS only through these proxies.
    #[cfg(target_os = "linux")]
    pub async fn node_behind(&self, id: &str, database: &FaultProxy, nats: &FaultProxy) -> Node {
        let (host, to) = (host(&self.store), host(database.url()));
        let store = self.store.replacen(host, to, 1);
        let nats = format!("nats://{}", self::host(nats.url()));
        let address = free_address();
        let command = self.command_with(id, address, Some(&nats), &store);
        let process = command.env("RUST_LOG", "info").start().await;
        Node { process, url: format!("http://{address}") }
    }

    /// A proxy in front of the database.
    #[cfg(target_os = "linux")]
    pub async fn database_proxy(&self) -> FaultProxy {
        FaultProxy::to(&format!("ws://{}", host(&self.store))).await
    }

    /// A proxy in front of NATS, which must be one server: several tell their clients each other's addresses.
    #[cfg(target_os = "linux")]
    pub async fn nats_proxy(&self) -> FaultProxy {
        let nats = self.nats.as_deref().expect("the cluster has NATS");
        FaultProxy::to(&format!("ws://{}", host(nats))).await
    }

    /// The command that starts a node.
    pub fn command(&self, id: &str, address: SocketAddr) -> ExecutorBuilder {
        self.command_with(id, address, self.nats.as_deref(), &self.store)
    }

    fn command_with(
        &self,
        id: &str,
        address: SocketAddr,
        nats: Option<&str>,
        store: &str,
    ) -> ExecutorBuilder {
        let url = format!("http://{address}");
        let public = self.public_url.clone().unwrap_or_else(|| url.clone());
        let own = self.node_url.clone().unwrap_or_else(|| url.clone());
        let keys = self.keys().display().to_string();
        let mut builder = TestExecutor::builder()
            .args(&["rendezvous", "--listen", &url, "--node-url", &own, "--public-url", &public])
            .args(&["--node-id", id, "--signing-keys", &keys, "--cluster", &self.name])
            .args(&["--drain-time", self.drain_time])
            .args(&self.more);
        if let Some(nats) = nats {
            builder = builder.args(&["--nats", nats, "--heartbeat-interval", self.heartbeat]);
        }
        builder.env("EXEC_SERVER_STORE", store)
    }

    /// A new token for an environment.
    pub async fn token(&self, node: &Node, role: &str, environment: &str) -> String {
        let wanted = json!({"role": role, "environment": environment});
        let reply = node.ask("POST", "/admin/tokens", &self.admin, &wanted).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        let made: Value = serde_json::from_str(&reply.body).expect("JSON");
        made["secret"].as_str().expect("a secret").to_owned()
    }

    /// Waits until each of these nodes hears all of them.
    pub async fn wait_for_members(&self, nodes: &[&Node]) {
        let asking = async {
            for node in nodes {
                loop {
                    let reply = node.ask("GET", "/admin/nodes", &self.admin, &Value::Null).await;
                    let list: Value = serde_json::from_str(&reply.body).unwrap_or_default();
                    let all = list["nodes"].as_array().cloned().unwrap_or_default();
                    if all.iter().filter(|it| it["state"] == "ready").count() >= nodes.len() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        tokio::time::timeout(DEADLINE, asking).await.expect("the nodes hear each other");
    }
}

impl Node {
    /// Sends a request with a JSON body.
    pub async fn ask(&self, method: &str, path: &str, token: &str, body: &Value) -> HttpReply {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        request_with_body(&self.url, method, path, &headers, body.as_bytes()).await
    }

    /// Registers an executor of the environment `env`.
    pub async fn register(&self, token: &str) -> Value {
        let path = "/cloud/environment/env/register";
        let reply = self.ask("POST", path, token, &register_body(&public_key(1))).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        serde_json::from_str(&reply.body).expect("JSON")
    }

    /// Asks for a way to the environment `env`.
    pub async fn try_connect(&self, token: &str) -> HttpReply {
        let path = "/cloud/environment/env/connect";
        self.ask("POST", path, token, &connect_body(&public_key(2))).await
    }

    /// Asks until there is a way.
    pub async fn connect(&self, token: &str) -> Value {
        let asking = async {
            loop {
                let reply = self.try_connect(token).await;
                match reply.status {
                    200 => return serde_json::from_str(&reply.body).expect("JSON"),
                    409 | 502 | 503 => {}
                    _ => panic!("{reply:?}"),
                }
            }
        };
        tokio::time::timeout(DEADLINE, asking).await.expect("the executor is found")
    }

    /// Kills the node and waits for its end.
    pub async fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait().await;
    }

    /// Waits until a path answers with this status.
    pub async fn wait_for_status(&self, path: &str, status: u16) {
        let asking = async {
            while self.ask("GET", path, "", &Value::Null).await.status != status {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, asking).await.expect("the status changes in time");
    }

    /// The URL of a websocket, led to this node.
    pub fn at(&self, url: &str) -> String {
        let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        let path = path.expect("a URL has a path").1;
        format!("{}/{path}", self.url.replacen("http", "ws", 1))
    }

    /// The value of a metric; 0 before it is first counted.
    pub async fn metric(&self, admin: &str, name: &str) -> u64 {
        let text = self.ask("GET", "/metrics", admin, &Value::Null).await.body;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse::<f64>().expect("a number") as u64)
    }
}

/// Host and port of a URL.
#[cfg(target_os = "linux")]
fn host(url: &str) -> &str {
    let rest = url.split_once("://").expect("a URL has a scheme").1;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority)
}
