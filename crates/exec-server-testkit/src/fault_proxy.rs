//! A TCP proxy that a test can cut, stall, slow down and half-close.
//!
//! A client dials [`FaultProxy::url`] instead of the server's URL. The proxied bytes are unchanged; only when it arrives,
//! and whether, is up to the test: on command, at a byte count, or by [`Weather`] that a seed decides.

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
    /// What the client says.
    Server,
    /// What the server says.
    Client,
}

/// How a connection comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Both sides get a reset; what was on its way may be lost.
    Reset,
    /// Both sides read to the end of what was carried, and then the end of the stream.
    Close,
}

/// What a seed decides about everything that is carried from now on.
#[derive(Debug, Clone)]
pub struct Weather {
    /// The same seed does the same to the same bytes.
    pub seed: u64,
    /// How long each piece is on its way.
    pub delay: Range<Duration>,
    /// How many bytes travel together.
    pub piece: Range<usize>,
    /// After how many bytes of one direction a connection is cut, again and again; none for never.
    pub cut_every: Option<Range<u64>>,
}

impl Default for Weather {
    fn default() -> Self {
        Self { seed: 1, delay: Duration::ZERO..Duration::ZERO, piece: 1..65536, cut_every: None }
    }
}

/// A cable; it is gone with the test.
pub struct FaultProxy {
    shared: Arc<Shared>,
    url: String,
    accepting: JoinHandle<()>,
    /// Holds the socket of a cable to a `unix://` server.
    _directory: Option<tempfile::TempDir>,
}

struct Shared {
    server: Address,
    plan: watch::Sender<Plan>,
    tally: watch::Sender<Tally>,
    links: Mutex<tokio::task::JoinSet<()>>,
}

/// What the test wants.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// Raised by each cut; a connection ends when it is no longer the one that it began with.
    cuts: u64,
    ending: Option<Ending>,
    is_unplugged: bool,
    is_stalled: PerDirection<bool>,
    /// Connections up to this number carry nothing any more, in either direction.
    dead_through: u64,
    /// Raised by each half-close.
    half_closes: PerDirection<u64>,
    /// The count of carried bytes at which the connection that carries them is cut.
    cut_at: PerDirection<Option<u64>>,
    weather: Option<Weather>,
}

/// What has happened.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
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
    /// A cable to the server of this `ws://` or `unix://` URL.
    pub async fn to(server: &str) -> Self {
        let (server, path) = Address::parse(server);
        let (listener, url, directory) = Listener::beside(&server, &path).await;
        let shared = Arc::new(Shared {
            server,
            plan: watch::Sender::default(),
            tally: watch::Sender::default(),
            links: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(shared.clone(), listener));
        Self { shared, url, accepting, _directory: directory }
    }

    /// What a client dials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Resets every connection; the next one gets through.
    pub fn cut(&self) {
        self.end_all(Ending::Reset);
    }

    /// Ends every connection; the next one gets through.
    pub fn end_all(&self, ending: Ending) {
        self.shared.plan.send_modify(|plan| {
            plan.cuts += 1;
            plan.ending = Some(ending);
        });
    }

    /// Cuts the connection that carries the `bytes`th byte from now on in this direction, right behind that byte.
    pub fn cut_after(&self, toward: Toward, bytes: u64) {
        let carried = *self.shared.tally.borrow().carried.get(toward);
        self.shared.plan.send_modify(|plan| *plan.cut_at.get_mut(toward) = Some(carried + bytes));
    }

    /// Carries nothing more in this direction, as if the road were blocked, and keeps connections open.
    pub fn stall(&self, toward: Toward) {
        self.shared.plan.send_modify(|plan| *plan.is_stalled.get_mut(toward) = true);
    }

    /// The connections of now carry nothing any more and stay open, as if their road were gone; later ones get through.
    pub fn stall_open_connections(&self) {
        let connections = self.connections();
        self.shared.plan.send_modify(|plan| plan.dead_through = connections);
    }

    /// Lets everything that is stalled go on.
    pub fn flow(&self) {
        self.shared.plan.send_modify(|plan| {
            plan.is_stalled = PerDirection::default();
            plan.dead_through = 0;
        });
    }

    /// One side reads the end of the stream, while the other direction goes on.
    pub fn half_close(&self, toward: Toward) {
        self.shared.plan.send_modify(|plan| *plan.half_closes.get_mut(toward) += 1);
    }

    /// Resets every connection, and every later one until [`FaultProxy::plug_in`].
    pub fn unplug(&self) {
        self.shared.plan.send_modify(|plan| plan.is_unplugged = true);
        self.cut();
    }

    /// Takes connections again.
    pub fn plug_in(&self) {
        self.shared.plan.send_modify(|plan| plan.is_unplugged = false);
    }

    /// Lets a seed decide about pieces, delays and cuts; none makes it a plain cable again.
    pub fn set_weather(&self, weather: Option<Weather>) {
        self.shared.plan.send_modify(|plan| plan.weather = weather);
    }

    /// How many connections got through so far.
    pub fn connections(&self) -> u64 {
        self.shared.tally.borrow().connections
    }

    /// How many bytes were carried so far.
    pub fn carried(&self, toward: Toward) -> u64 {
        *self.shared.tally.borrow().carried.get(toward)
    }

    /// Waits until that many connections have got through.
    pub async fn wait_for_connections(&self, count: u64) {
        self.wait_for("that many connections", |tally| tally.connections >= count).await;
    }

    /// Waits until that many connections were turned away by an unplugged cable.
    pub async fn wait_for_refused(&self, count: u64) {
        self.wait_for("that many refused connections", |tally| tally.refused >= count).await;
    }

    /// Waits until that many bytes were carried.
    pub async fn wait_for_carried(&self, toward: Toward, bytes: u64) {
        self.wait_for("that many bytes", |tally| *tally.carried.get(toward) >= bytes).await;
    }

    /// Waits until no connection is open.
    pub async fn wait_for_silence(&self) {
        self.wait_for("the end of every connection", |tally| tally.open == 0).await;
    }

    async fn wait_for(&self, what: &str, is_so: impl Fn(&Tally) -> bool) {
        let mut tally = self.shared.tally.subscribe();
        let waiting = tally.wait_for(|tally| is_so(tally));
        let came = timeout(DEADLINE, waiting).await;
        assert!(came.is_ok(), "the cable never saw {what}: {:?}", self.shared.tally.borrow());
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
        // Known before the server hears of the connection, so that no order of a test falls in between.
        let begun = shared.plan.borrow().clone();
        if begun.is_unplugged {
            client.reset_when_dropped();
            shared.tally.send_modify(|tally| tally.refused += 1);
            continue;
        }
        let server = match Socket::connect(&shared.server).await {
            Ok(server) => server,
            Err(_) => {
                // The server is gone: the client sees what it would see without a cable, a little later.
                client.reset_when_dropped();
                shared.tally.send_modify(|tally| tally.refused += 1);
                continue;
            }
        };
        let mut number = 0;
        shared.tally.send_modify(|tally| {
            tally.connections += 1;
            tally.open += 1;
            number = tally.connections;
        });
        let task = run_link(shared.clone(), client, server, begun, number);
        shared.links.lock().expect("no holder panics").spawn(task);
    }
}

#[cfg(test)]
mod tests;
