//! An outage of more than half a minute loses no process: with our defaults, clients that retry for 45 s or longer
//! resume their session.
//!
//! The outages take their full time, so they run concurrently in one test.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use exec_server::{ExecServerClient, Stdin};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::reference::{
    ClientTarget, ReferenceClient, ReferenceVersion, Run, Scenario, ToolCall,
};
use exec_server_testkit::remote::{args, connect, join, wait_for_presence};
use exec_server_testkit::{DEADLINE, FaultProxy, Fifo, TestExecutor, TestRendezvous};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::reference_client::blocking;

/// Deadline of an outage on a busy machine.
const RUN_DEADLINE: Duration = Duration::from_secs(150);

/// Longer than the 30 s of older servers, shorter than the 45 s for which the reference tries, and the 55 s of ours.
const OUTAGE: Duration = Duration::from_secs(40);

/// Through a relay, attempts of the reference are up to 7.5 s apart; one of them, and one more if it fails on a busy
/// machine, must fall between the end of the outage and 45 s.
const RELAY_OUTAGE: Duration = Duration::from_secs(31);

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_down_for_forty_seconds_costs_no_process() {
    tokio::join!(
        the_reference_comes_back_to_a_server(),
        the_reference_comes_back_through_a_relay(),
        our_client_comes_back(),
        our_client_comes_back_through_a_relay(),
    );
}

async fn the_reference_comes_back_to_a_server() {
    let find = || ReferenceClient::find(ReferenceVersion::V0_169);
    let Some(client) = blocking(find).await else { return };
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let mut command = Command::new();
    let (scenario, url) = (command.scenario(), proxy.url().to_owned());
    let running = blocking(move || client.run(&url, scenario, RUN_DEADLINE));
    let outage = async {
        command.has_begun().await;
        proxy.unplug();
        proxy.wait_for_refused(1).await;
        command.end_in_the_middle_of(OUTAGE).await;
        proxy.plug_in();
    };
    let (run, ()) = both(running, outage).await;
    command.has_lost_nothing(&run);
}

async fn the_reference_comes_back_through_a_relay() {
    let find = || ReferenceClient::find(ReferenceVersion::V0_169);
    let Some(client) = blocking(find).await else { return };
    let listen = free_address();
    // Sockets of both ends go through the fault proxy, registry requests of the harness through a forwarded port.
    let sockets = FaultProxy::to(&format!("ws://{listen}")).await;
    let registry = free_address();
    let registry_port = PortForward::open(registry, listen).await;
    let public = sockets.url().replace("ws://", "http://");
    let rendezvous = TestRendezvous::start_with(|config| {
        config.listen = listen;
        config.public_url = Some(public);
    })
    .await;
    let state = tempfile::tempdir().unwrap();
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
    let direct = format!("http://{listen}");
    let _executor = join(&direct, state.path(), &executor_token).spawn();
    wait_for_presence(&direct, rendezvous.admin_token(), true).await;

    let mut command = Command::new();
    let (scenario, url) = (command.scenario(), format!("http://{registry}"));
    let running = blocking(move || {
        let target = ClientTarget::Rendezvous { url: &url, environment: "env", token: &token };
        client.run_at(&target, scenario, RUN_DEADLINE)
    });
    let outage = async {
        command.has_begun().await;
        // Closed before the cut: a connection that is accepted and then reset makes the reference give up.
        registry_port.close().await;
        sockets.cut();
        command.end_in_the_middle_of(RELAY_OUTAGE).await;
        PortForward::open(registry, listen).await
    };
    let (run, _forward) = both(running, outage).await;
    command.has_lost_nothing(&run);
}

async fn our_client_comes_back() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let client = ExecServerClient::connect(proxy.url()).await.unwrap();
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    proxy.unplug();
    proxy.wait_for_refused(1).await;
    sleep(OUTAGE).await;
    proxy.plug_in();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"still here\n").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    let reading = child.stdout.take().unwrap().read_to_string(&mut text).await;
    reading.unwrap();
    assert_eq!(text, "still here\n");
    assert!(child.wait().await.unwrap().success());
}

/// Registry and relay are down for both ends.
async fn our_client_comes_back_through_a_relay() {
    let listen = free_address();
    let cable = FaultProxy::to(&format!("ws://{listen}")).await;
    let public = cable.url().replace("ws://", "http://");
    let rendezvous = TestRendezvous::start_with(|config| {
        config.listen = listen;
        config.public_url = Some(public.clone());
    })
    .await;
    let (executor_state, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
    let _executor = join(&public, executor_state.path(), &executor_token).spawn();
    wait_for_presence(&format!("http://{listen}"), rendezvous.admin_token(), true).await;
    let client = connect(args(&public, &token, state.path())).await;
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    cable.unplug();
    cable.wait_for_refused(1).await;
    sleep(OUTAGE).await;
    cable.plug_in();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"still here\n").await.unwrap();
    drop(stdin);
    let mut text = String::new();
    let reading = child.stdout.take().unwrap().read_to_string(&mut text).await;
    reading.unwrap();
    assert_eq!(text, "still here\n");
    assert!(child.wait().await.unwrap().success());
}

/// A command of the reference that waits for the test.
struct Command {
    is_known: UnboundedReceiver<()>,
    known: UnboundedSender<()>,
    gate: Fifo,
}

impl Command {
    fn new() -> Self {
        let (known, is_known) = unbounded_channel();
        Self { is_known, known, gate: Fifo::new() }
    }

    fn scenario(&self) -> Scenario {
        let command = format!("echo waiting; read _ <{}; echo released; exit 7", self.gate.path());
        Scenario::new()
            .turn([ToolCall::exec("waiter", &command).until("waiting")])
            .turn([ToolCall::poll("waiter").announced_to(self.known.clone())])
            .turn([ToolCall::exec("after", "echo the line is back")])
    }

    /// The client knows its process; a start that is cut off would be lost, because the reference never repeats one.
    async fn has_begun(&mut self) {
        let next = timeout(DEADLINE, self.is_known.recv()).await;
        next.expect("the model is asked in time").expect("the sender is held");
    }

    /// The command writes its output and exits during the outage.
    async fn end_in_the_middle_of(&mut self, outage: Duration) {
        sleep(outage / 2).await;
        self.gate.open().await;
        sleep(outage / 2).await;
    }

    fn has_lost_nothing(&self, run: &Run) {
        let waiter = run.result("waiter");
        assert_eq!(waiter.output, "waiting\nreleased\n", "{waiter:?}");
        assert_eq!(waiter.exit_code, Some(7), "{waiter:?}");
        assert_eq!(run.result("after").output, "the line is back\n");
    }
}

/// Forwards connections from one address to another; once closed, connections are refused, as by a restarting machine.
struct PortForward {
    /// Dropped to close it.
    is_open: watch::Sender<()>,
    accepting: JoinHandle<()>,
}

impl PortForward {
    async fn open(at: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).await.expect("the address is free");
        let (is_open, closed) = watch::channel(());
        let accepting = tokio::spawn(forward(listener, to, closed));
        Self { is_open, accepting }
    }

    /// Waits until the clients have given up their idle connections: a request on one that ends at that moment fails
    /// in a way that the reference does not retry.
    async fn close(self) {
        drop(self.is_open);
        let closed = timeout(DEADLINE, self.accepting).await;
        closed.expect("the clients close their connections").expect("no panic");
    }
}

async fn forward(listener: TcpListener, to: SocketAddr, mut closed: watch::Receiver<()>) {
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => links.spawn(forward_one(client, to, closed.clone())),
                Err(_) => continue,
            },
            _ = closed.changed() => break,
        };
    }
    drop(listener);
    while links.join_next().await.is_some() {}
}

async fn forward_one(mut client: TcpStream, to: SocketAddr, mut closed: watch::Receiver<()>) {
    let Ok(mut server) = TcpStream::connect(to).await else { return };
    tokio::select! {
        // The end of one side is passed to the other.
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = closed.changed() => {}
    }
    let _ = client.shutdown().await;
    let _ = copy(&mut client, &mut sink()).await;
}

/// Runs both concurrently; a failing run reports its own error.
async fn both<T, U>(run: impl Future<Output = T>, outage: impl Future<Output = U>) -> (T, U) {
    timeout(RUN_DEADLINE + DEADLINE, async { tokio::join!(run, outage) }).await.expect("an end")
}
