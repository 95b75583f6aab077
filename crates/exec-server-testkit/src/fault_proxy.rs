//! A TCP proxy that a test can cut, stall, slow down and half-close.
//!
//! A client dials [`FaultProxy::url`] instead of the server's URL. The proxied bytes are unchanged; the test decides
//! when and whether they arrive: on command, at a byte count, or by a seeded [`FaultSchedule`].

mod link;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::DEADLINE;
use link::{Address, Listener, Socket, run_link};

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// From client to server.
    Server,
    /// From server to client.
    Client,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Both sides get a reset; bytes in flight may be lost.
    Reset,
    /// Both sides read all forwarded bytes, then the end of the stream.
    Close,
}

/// Seeded faults for all bytes from now on.
#[derive(Debug, Clone)]
pub struct FaultSchedule {
    /// The same seed gives the same faults for the same bytes.
    pub seed: u64,
    /// Delay of each piece.
    pub delay: Range<Duration>,
    /// Size of the forwarded pieces.
    pub piece: Range<usize>,
    /// Number of bytes in one direction after which a connection is cut, repeatedly; `None` for never.
    pub cut_every: Option<Range<u64>>,
}

impl Default for FaultSchedule {
    fn default() -> Self {
        Self { seed: 1, delay: Duration::ZERO..Duration::ZERO, piece: 1..65536, cut_every: None }
    }
}

/// A proxy; it stops with the test.
pub struct FaultProxy {
    shared: Arc<Shared>,
    url: String,
    accepting: JoinHandle<()>,
    /// Directory of the proxy's socket for a `unix://` server.
    _directory: Option<tempfile::TempDir>,
}

struct Shared {
    server: Address,
    plan: watch::Sender<Plan>,
    counters: watch::Sender<Counters>,
    links: Mutex<tokio::task::JoinSet<()>>,
}

/// Commands of the test.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// Incremented by each cut; a connection ends when the value differs from the one at its start.
    cuts: u64,
    ending: Option<Ending>,
    is_unplugged: bool,
    is_stalled: PerDirection<bool>,
    /// Connections up to this number are stalled in both directions.
    dead_through: u64,
    /// Incremented by each half-close.
    half_closes: PerDirection<u64>,
    /// Byte count at which the connection is cut.
    cut_at: PerDirection<Option<u64>>,
    faults: Option<FaultSchedule>,
}

/// Counters.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    connections: u64,
    open: u64,
    refused: u64,
    carried: PerDirection<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PerDirection<T> {
    to_server: T,
    to_client: T,
}

impl<T> PerDirection<T> {
    fn get(&self, toward: Toward) -> &T {
        match toward {
            Toward::Server => &self.to_server,
            Toward::Client => &self.to_client,
        }
    }

    fn get_mut(&mut self, toward: Toward) -> &mut T {
        match toward {
            Toward::Server => &mut self.to_server,
            Toward::Client => &mut self.to_client,
        }
    }
}

impl FaultProxy {
    /// A proxy to the server at this `ws://` or `unix://` URL.
    pub async fn to(server: &str) -> Self {
        let (server, path) = Address::parse(server);
        let (listener, url, directory) = Listener::beside(&server, &path).await;
        let shared = Arc::new(Shared {
            server,
            plan: watch::Sender::default(),
            counters: watch::Sender::default(),
            links: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(shared.clone(), listener));
        Self { shared, url, accepting, _directory: directory }
    }

    /// URL for clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Resets every connection; new connections are accepted.
    pub fn cut(&self) {
        self.end_all(Ending::Reset);
    }

    /// Ends every connection; new connections are accepted.
    pub fn end_all(&self, ending: Ending) {
        self.shared.plan.send_modify(|plan| {
            plan.cuts += 1;
            plan.ending = Some(ending);
        });
    }

    /// Cuts the connection that forwards the `bytes`th byte from now on in this direction, right after that byte.
    pub fn cut_after(&self, toward: Toward, bytes: u64) {
        let carried = *self.shared.counters.borrow().carried.get(toward);
        self.shared.plan.send_modify(|plan| *plan.cut_at.get_mut(toward) = Some(carried + bytes));
    }

    /// Stops forwarding in this direction; connections stay open.
    pub fn stall(&self, toward: Toward) {
        self.shared.plan.send_modify(|plan| *plan.is_stalled.get_mut(toward) = true);
    }

    /// Stalls all current connections, which stay open; new connections are forwarded.
    pub fn stall_open_connections(&self) {
        let connections = self.connections();
        self.shared.plan.send_modify(|plan| plan.dead_through = connections);
    }

    /// Resumes all stalled traffic.
    pub fn resume(&self) {
        self.shared.plan.send_modify(|plan| {
            plan.is_stalled = PerDirection::default();
            plan.dead_through = 0;
        });
    }

    /// Resumes traffic of new connections; those of [`FaultProxy::stall_open_connections`] stay as they are.
    pub fn resume_new_connections(&self) {
        self.shared.plan.send_modify(|plan| plan.is_stalled = PerDirection::default());
    }

    /// Ends one direction of the stream; the other direction continues.
    pub fn half_close(&self, toward: Toward) {
        self.shared.plan.send_modify(|plan| *plan.half_closes.get_mut(toward) += 1);
    }

    /// Resets every connection and rejects new ones until [`FaultProxy::plug_in`].
    pub fn unplug(&self) {
        self.shared.plan.send_modify(|plan| plan.is_unplugged = true);
        self.cut();
    }

    /// Accepts connections again.
    pub fn plug_in(&self) {
        self.shared.plan.send_modify(|plan| plan.is_unplugged = false);
    }

    /// Sets the seeded faults; `None` removes them.
    pub fn set_faults(&self, faults: Option<FaultSchedule>) {
        self.shared.plan.send_modify(|plan| plan.faults = faults);
    }

    /// Number of forwarded connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.counters.borrow().connections
    }

    /// Number of forwarded bytes so far.
    pub fn carried(&self, toward: Toward) -> u64 {
        *self.shared.counters.borrow().carried.get(toward)
    }

    /// Waits until that many connections were forwarded.
    pub async fn wait_for_connections(&self, count: u64) {
        self.wait_for("that many connections", |counters| counters.connections >= count).await;
    }

    /// Waits until that many connections were rejected while unplugged.
    pub async fn wait_for_refused(&self, count: u64) {
        self.wait_for("that many refused connections", |counters| counters.refused >= count).await;
    }

    /// Waits until that many bytes were forwarded.
    pub async fn wait_for_carried(&self, toward: Toward, bytes: u64) {
        self.wait_for("that many bytes", |counters| *counters.carried.get(toward) >= bytes).await;
    }

    /// Waits until no connection is open.
    pub async fn wait_for_silence(&self) {
        self.wait_for("the end of every connection", |counters| counters.open == 0).await;
    }

    async fn wait_for(&self, what: &str, is_so: impl Fn(&Counters) -> bool) {
        let mut counters = self.shared.counters.subscribe();
        let waiting = counters.wait_for(|counters| is_so(counters));
        let came = timeout(DEADLINE, waiting).await;
        assert!(came.is_ok(), "the proxy never saw {what}: {:?}", self.shared.counters.borrow());
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.shared.links.lock().expect("no holder panics").abort_all();
    }
}

async fn accept(shared: Arc<Shared>, listener: Listener) {
    loop {
        let client = listener.accept().await;
        // Read before the server sees the connection, so that no command of the test is missed in between.
        let begun = shared.plan.borrow().clone();
        if begun.is_unplugged {
            client.reset_when_dropped();
            shared.counters.send_modify(|counters| counters.refused += 1);
            continue;
        }
        let server = match Socket::connect(&shared.server).await {
            Ok(server) => server,
            Err(_) => {
                // The server is gone: the client sees a reset, as without the proxy but later.
                client.reset_when_dropped();
                shared.counters.send_modify(|counters| counters.refused += 1);
                continue;
            }
        };
        let mut number = 0;
        shared.counters.send_modify(|counters| {
            counters.connections += 1;
            counters.open += 1;
            number = counters.connections;
        });
        let task = run_link(shared.clone(), client, server, begun, number);
        shared.links.lock().expect("no holder panics").spawn(task);
    }
}

#[cfg(test)]
mod tests;
