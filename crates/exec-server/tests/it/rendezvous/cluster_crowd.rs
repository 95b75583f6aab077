//! Many executors and streams in a cluster: readers that are stuck, a database that comes back empty, a node that is killed.
//!
//! The number is small by default; `EXEC_SERVER_TEST_LONG=1` takes those of the design.

use std::time::{Duration, Instant};

use exec_server_relay::frame::RelayBody;
use exec_server_rendezvous::clock;
use exec_server_rendezvous::signed_url::{Claims, SigningKeys, SocketRole};
use exec_server_rendezvous::store::{NewRegistration, PostgresStore, Store, Token, TokenRole};
use exec_server_testkit::cluster::{Cluster, Node};
use exec_server_testkit::nats::Nats;
use exec_server_testkit::postgres::Postgres;
use exec_server_testkit::rendezvous::public_key;
use exec_server_testkit::{DEADLINE, RelaySocket, Relayed};
use futures_util::StreamExt;
use futures_util::stream::iter;

use super::cluster::expect_echo;
use super::cluster_rounds::rounds;
use super::trust::rss;

/// Stuck readers of one executor, which waits for each of them.
const READERS: usize = 5;

/// Sockets that are opened at a time.
const AT_ONCE: usize = 32;

/// Environments that were registered in the database, without asking a node.
struct Crowd {
    store: PostgresStore,
    keys: SigningKeys,
    /// Environment and registration.
    environments: Vec<(String, String)>,
}

impl Crowd {
    async fn register(cluster: &Cluster, count: usize) -> Self {
        let store = PostgresStore::open(&cluster.store).await.unwrap();
        let text = std::fs::read_to_string(cluster.keys()).unwrap();
        let (id, secret) = text.trim().split_once(' ').unwrap();
        let secret = exec_server_protocol::hex::decode(secret).unwrap();
        let keys = SigningKeys::new(vec![(id.to_owned(), secret)]).unwrap();
        for (name, role) in [("executors", TokenRole::Executor), ("harnesses", TokenRole::Harness)]
        {
            let token = Token {
                id: name.into(),
                role,
                environment: Some("env".into()),
                created_at: clock::now(),
                expires_at: None,
                revoked_at: None,
                last_used_at: None,
                max_streams: None,
                label: None,
            };
            store.add_token(token, [role as u8; 32]).await.unwrap();
        }
        let register = |number: usize| {
            let store = &store;
            async move {
                let (environment, id) = (format!("env-{number}"), format!("reg-{number}"));
                let token = Token {
                    id: format!("token-{number}"),
                    role: TokenRole::Executor,
                    environment: Some(environment.clone()),
                    created_at: clock::now(),
                    expires_at: None,
                    revoked_at: None,
                    last_used_at: None,
                    max_streams: None,
                    label: None,
                };
                let mut hash = [7; 32];
                hash[..8].copy_from_slice(&(number as u64).to_be_bytes());
                store.add_token(token, hash).await.unwrap();
                let new = NewRegistration {
                    id: id.clone(),
                    environment: environment.clone(),
                    executor_key: public_key(1),
                    attached: None,
                };
                assert_eq!(store.register(new, clock::now()).await.unwrap(), Ok(1));
                (environment, id)
            }
        };
        let environments = iter(0..count).map(register).buffered(4).collect().await;
        Self { store, keys, environments }
    }

    /// A signed URL at a node.
    fn url(&self, node: &Node, number: usize, role: SocketRole) -> String {
        let (environment, registration) = self.environments[number].clone();
        let token = if role == SocketRole::Executor { "executors" } else { "harnesses" };
        let expires = clock::now() + 600;
        let claims = Claims { environment, registration, token: token.into(), expires, role };
        self.keys.sign(&node.url.replacen("http", "ws", 1), &claims)
    }

    async fn executor(&self, node: &Node, number: usize) -> RelaySocket {
        RelaySocket::open(&self.url(node, number, SocketRole::Executor)).await
    }

    async fn try_harness(&self, node: &Node, number: usize) -> Option<RelaySocket> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let nonce = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let role = SocketRole::Harness { nonce: format!("nonce-{nonce}") };
        RelaySocket::try_open(&self.url(node, number, role)).await
    }

    /// Opens a stream, again while its executor is on its way.
    async fn harness(&self, node: &Node, number: usize) -> RelaySocket {
        let opening = async {
            loop {
                if let Some(socket) = self.try_harness(node, number).await {
                    return socket;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, opening).await.expect("the executor is found")
    }

    /// The executors that the database knows to be at a live node.
    async fn present(&self) -> usize {
        let names: Vec<String> = self.environments.iter().map(|it| it.0.clone()).collect();
        let Ok(located) = self.store.locate(&names).await else { return 0 };
        located.iter().filter(|it| !it.is_released && it.lease.is_some()).count()
    }

    async fn wait_for_presence(&self) {
        let waiting = async { while self.present().await < self.environments.len() {} };
        tokio::time::timeout(DEADLINE, waiting).await.expect("every executor is claimed");
    }
}

#[tokio::test]
async fn readers_that_are_stuck_behind_a_trunk_cost_no_more_than_the_budget() {
    exec_server_os::raise_open_file_limit();
    const BUDGET: u64 = 32 << 20;
    let Some(mut cluster) = Cluster::with_nats().await else { return };
    cluster.more = vec!["--buffer-budget", "32m", "--max-streams", "100"];
    let (door, home) = (cluster.node("door").await, cluster.node("home").await);
    cluster.wait_for_members(&[&door, &home]).await;
    let count = rounds(200, 1000);
    let crowd = Crowd::register(&cluster, 1 + count / READERS).await;
    // The first environment is the neighbour.
    let mut neighbour = crowd.executor(&home, 0).await;
    let mut stream = crowd.harness(&door, 0).await;
    expect_echo(&mut stream, &mut neighbour).await;
    let mut executors = Vec::new();
    let mut stuck = Vec::new();
    for number in 1..crowd.environments.len() {
        let mut executor = crowd.executor(&home, number).await;
        for reader in 0..READERS {
            let mut harness = crowd.harness(&door, number).await;
            let name = format!("stuck-{reader}");
            harness.resume(&name).await;
            executor.expect(&name, RelayBody::Resume { next_seq: 0 }).await;
            stuck.push(harness);
        }
        executors.push(executor);
    }
    let before = [&door, &home].map(|node| rss(node.process.pid()));
    let admin = cluster.admin.clone();
    let metric = async |node: &Node, name: &str| node.metric(&admin, name).await;
    let flood = |mut executor: RelaySocket| async move {
        // All readers get the same, until the last of them is closed.
        loop {
            for reader in 0..READERS {
                if !executor.try_send_data(&format!("stuck-{reader}"), vec![0; 16_000]).await {
                    return;
                }
            }
        }
    };
    let floods: Vec<_> = executors.into_iter().map(|it| tokio::spawn(flood(it))).collect();
    let mut trips = Vec::new();
    let mut most = 0;
    let all_closed = async {
        let mut number = 0;
        loop {
            // The neighbour goes on all the time.
            let start = Instant::now();
            number += 1;
            stream.send_data("s", format!("there {number}")).await;
            assert_eq!(neighbour.next_data().await.1, format!("there {number}"));
            neighbour.send_data("s", format!("back {number}")).await;
            assert_eq!(stream.next_data().await.1, format!("back {number}"));
            trips.push(start.elapsed());
            for node in [&door, &home] {
                let buffered = metric(node, "exec_server_relay_buffered_bytes").await;
                assert!(buffered <= BUDGET, "{buffered} bytes are queued");
                most = most.max(buffered);
            }
            // The neighbour's link is left.
            if metric(&door, "exec_server_trunk_links").await <= 1 {
                break;
            }
        }
    };
    tokio::time::timeout(2 * DEADLINE, all_closed).await.expect("the stall timeout passes");
    let after = [&door, &home].map(|node| rss(node.process.pid()));
    floods.into_iter().for_each(|flood| flood.abort());
    drop(stuck);
    trips.sort();
    println!(
        "{count} stuck readers: neighbour p50 {:?}, p99 {:?}; at most {} KiB queued; memory grew by {:?} MiB",
        trips[trips.len() / 2],
        trips[trips.len() * 99 / 100],
        most >> 10,
        [0, 1].map(|node| after[node].saturating_sub(before[node]) >> 20),
    );
    // The budget, and what the design allows per socket; the allocator of a debug build keeps as much again.
    for (before, after) in before.into_iter().zip(after) {
        let bound = 2 * (BUDGET + count as u64 * 64 * 1024);
        assert!(after < before + bound, "{} MiB", (after - before) >> 20);
    }
    // Everything is given back.
    let released = async {
        for node in [&door, &home] {
            while metric(node, "exec_server_trunk_links").await > 1
                || metric(node, "exec_server_relay_buffered_bytes").await > 0
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    tokio::time::timeout(DEADLINE, released).await.expect("queues are emptied");
    stream.send_data("s", "after all").await;
    assert_eq!(neighbour.next_data().await.1, "after all");
}

#[tokio::test]
async fn after_a_crash_of_the_database_every_executor_is_claimed_again() {
    exec_server_os::raise_open_file_limit();
    let nats = tokio::task::spawn_blocking(Nats::shared).await.unwrap();
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let (Some(nats), Some(mut server)) = (nats, server) else { return };
    let mut cluster = Cluster::new(Some(server.database())).await.unwrap();
    cluster.nats = Some(nats);
    let (a, b) = (cluster.node("a").await, cluster.node("b").await);
    cluster.wait_for_members(&[&a, &b]).await;
    let crowd = Crowd::register(&cluster, rounds(300, 10_000)).await;
    let at = |number: usize| if number.is_multiple_of(2) { &a } else { &b };
    let open = |number| crowd.executor(at(number), number);
    let opening = iter(0..crowd.environments.len()).map(open).buffered(AT_ONCE);
    let mut executors: Vec<RelaySocket> = opening.collect().await;
    crowd.wait_for_presence().await;
    let mut stream = crowd.harness(&b, 0).await;
    expect_echo(&mut stream, &mut executors[0]).await;
    let restarting = tokio::task::spawn_blocking(move || {
        server.crash();
        server.resume();
        server
    });
    let server = restarting.await.unwrap();
    let start = Instant::now();
    crowd.wait_for_presence().await;
    println!("{} claims rebuilt {:?} after the restart", executors.len(), start.elapsed());
    // No socket was closed for it.
    stream.send_data("s", "whole").await;
    assert_eq!(executors[0].next_data().await.1, "whole");
    let (last, mut another) = (executors.len() - 1, crowd.harness(&a, executors.len() - 1).await);
    expect_echo(&mut another, &mut executors[last]).await;
    for executor in executors.iter_mut().step_by(50) {
        executor.ping().await;
    }
    drop(server);
}

#[tokio::test]
async fn all_executors_of_a_node_that_is_killed_are_served_by_another() {
    exec_server_os::raise_open_file_limit();
    let Some(cluster) = Cluster::with_nats().await else { return };
    let (mut a, b) = (cluster.node("a").await, cluster.node("b").await);
    cluster.wait_for_members(&[&a, &b]).await;
    let pairs = rounds(100, 2000);
    let crowd = Crowd::register(&cluster, 2 * pairs).await;
    let at = |number: usize| if number < pairs { &a } else { &b };
    let pair = |number| {
        let (crowd, at) = (&crowd, &at);
        async move {
            let mut executor = crowd.executor(at(number), number).await;
            let mut harness = crowd.harness(at(number), number).await;
            expect_echo(&mut harness, &mut executor).await;
            (executor, harness)
        }
    };
    let all: Vec<_> = iter(0..2 * pairs).map(pair).buffered(AT_ONCE).collect().await;
    a.kill().await;
    let start = Instant::now();
    let back = |(number, (mut executor, mut harness)): (usize, (RelaySocket, RelaySocket))| {
        let (crowd, b) = (&crowd, &b);
        async move {
            if number < pairs {
                assert_eq!(executor.next().await, Relayed::Cut);
                assert_eq!(harness.next().await, Relayed::Cut);
                executor = crowd.executor(b, number).await;
                harness = crowd.harness(b, number).await;
                expect_echo(&mut harness, &mut executor).await;
            }
            (executor, harness)
        }
    };
    let all: Vec<_> =
        iter(all.into_iter().enumerate()).map(back).buffered(8 * AT_ONCE).collect().await;
    println!("{pairs} of {} pairs are back after {:?}", all.len(), start.elapsed());
    let memory = rss(b.process.pid());
    println!("the surviving node has {} MiB", memory >> 20);
    assert!(memory < 1 << 30, "{} MiB", memory >> 20);
    // Those of the node that lives have noticed nothing.
    for (number, (mut executor, mut harness)) in all.into_iter().enumerate() {
        harness.send_data("s", format!("{number}")).await;
        assert_eq!(executor.next_data().await.1, format!("{number}"));
    }
}
