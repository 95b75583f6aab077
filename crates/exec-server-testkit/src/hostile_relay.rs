//! Man-in-the-middle relay: a test can alter every frame between a rendezvous and its peers.
//!
//! Registry requests are forwarded unchanged; websocket messages can be altered in all four directions.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use exec_server_relay::frame::RelayFrame;
use exec_server_rendezvous::RendezvousConfig;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_websockets::{ClientBuilder, Limits, Message, ServerBuilder};

use crate::DEADLINE;
use crate::rendezvous::TestRendezvous;

/// Direction of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    /// From the executor.
    FromExecutor,
    /// To the executor.
    ToExecutor,
    /// From a harness.
    FromHarness,
    /// To a harness.
    ToHarness,
}

/// Handles a frame; the returned frames are forwarded in this order.
pub type FrameFilter = Box<dyn FnMut(Leg, Bytes) -> Vec<Bytes> + Send>;

/// A rendezvous behind a man-in-the-middle relay.
pub struct HostileRelay {
    /// The rendezvous behind the relay; its URLs point to the relay.
    pub rendezvous: TestRendezvous,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: SocketAddr,
    filter: Mutex<FrameFilter>,
    captured: Mutex<VecDeque<(Leg, Bytes)>>,
    seen: watch::Sender<u64>,
    injected: broadcast::Sender<(Leg, Bytes)>,
}

impl HostileRelay {
    /// Starts without a filter.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts with a changed rendezvous configuration.
    pub async fn start_with(change: impl FnOnce(&mut RendezvousConfig)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let public = format!("http://{address}");
        let rendezvous = TestRendezvous::start_with(|config| {
            config.public_url = Some(public);
            change(config);
        })
        .await;
        let shared = Arc::new(Shared {
            target: rendezvous.address(),
            filter: Mutex::new(Box::new(|_, frame| vec![frame])),
            captured: Mutex::default(),
            seen: watch::Sender::new(0),
            injected: broadcast::channel(4096).0,
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { rendezvous, shared, accepting }
    }

    /// Sets the filter for all frames from now on.
    pub fn set_filter(&self, filter: impl FnMut(Leg, Bytes) -> Vec<Bytes> + Send + 'static) {
        *self.shared.filter.lock().expect("no meddler panics") = Box::new(filter);
    }

    /// Removes the filter.
    pub fn clear_filter(&self) {
        self.set_filter(|_, frame| vec![frame]);
    }

    /// Sends a message to every peer of this leg.
    pub fn inject(&self, leg: Leg, frame: impl Into<Bytes>) {
        // No peer may be connected.
        let _ = self.shared.injected.send((leg, frame.into()));
    }

    /// All frames in order of arrival.
    pub fn captured(&self) -> Vec<(Leg, Bytes)> {
        self.shared.captured.lock().expect("no holder panics").iter().cloned().collect()
    }

    /// Waits for the first captured frame on this leg that matches `is_it`.
    pub async fn wait_for(&self, leg: Leg, mut is_it: impl FnMut(&RelayFrame) -> bool) -> Bytes {
        let mut seen = self.shared.seen.subscribe();
        let mut checked = 0;
        let looking = async {
            loop {
                seen.borrow_and_update();
                let captured = self.captured();
                for (at, frame) in captured.iter().skip(checked) {
                    checked += 1;
                    let decoded = RelayFrame::decode(frame.clone());
                    if *at == leg && decoded.is_ok_and(|frame| is_it(&frame)) {
                        return frame.clone();
                    }
                }
                seen.changed().await.expect("the sender is held");
            }
        };
        timeout(DEADLINE, looking).await.expect("such a frame comes in time")
    }
}

impl Drop for HostileRelay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Limit of captured frames, so that floods are not stored.
const MAX_CAPTURED: usize = 20_000;

impl Shared {
    fn set_filter(&self, leg: Leg, frame: Bytes) -> Vec<Bytes> {
        let mut captured = self.captured.lock().expect("no holder panics");
        if captured.len() < MAX_CAPTURED {
            captured.push_back((leg, frame.clone()));
        }
        drop(captured);
        self.seen.send_modify(|count| *count += 1);
        (self.filter.lock().expect("no meddler panics"))(leg, frame)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while links.try_join_next().is_some() {}
        links.spawn(run_link(client, shared.clone()));
    }
}

async fn run_link(mut client: TcpStream, shared: Arc<Shared>) {
    let Ok(mut server) = TcpStream::connect(shared.target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut head = [0; 16];
    // Enough bytes for the method and the first path segment.
    while client.peek(&mut head).await.is_ok_and(|count| (1..head.len()).contains(&count)) {
        tokio::task::yield_now().await;
    }
    if head.starts_with(b"GET /cloud-agent") {
        run_websocket(client, server, &shared).await;
    } else {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

async fn run_websocket(client: TcpStream, server: TcpStream, shared: &Shared) {
    let limits = Limits::default().max_payload_len(None);
    let accepted = ServerBuilder::new().limits(limits).accept(client).await;
    let Ok((request, mut client)) = accepted else { return };
    let is_executor = request.uri().query().is_some_and(|query| query.contains("environment&"));
    let (from, to) = if is_executor {
        (Leg::FromExecutor, Leg::ToExecutor)
    } else {
        (Leg::FromHarness, Leg::ToHarness)
    };
    let url = format!("ws://{}{}", shared.target, request.uri());
    let builder = ClientBuilder::new().uri(&url).expect("a URL").limits(limits);
    // A rejected upgrade becomes a lost connection here; tests of rejections use the rendezvous directly.
    let Ok((mut server, _)) = builder.connect_on(server).await else { return };
    let mut injected = shared.injected.subscribe();
    loop {
        let (sink_is_server, frames) = tokio::select! {
            message = client.next() => match message {
                Some(Ok(message)) if message.is_binary() => {
                    (true, shared.set_filter(from, message.into_payload().into()))
                }
                Some(Ok(_)) => continue,
                _ => return,
            },
            message = server.next() => match message {
                Some(Ok(message)) if message.is_binary() => {
                    (false, shared.set_filter(to, message.into_payload().into()))
                }
                Some(Ok(message)) if message.is_close() => return,
                Some(Ok(_)) => continue,
                _ => return,
            },
            injected = injected.recv() => match injected {
                Ok((leg, frame)) if leg == from => (true, vec![frame]),
                Ok((leg, frame)) if leg == to => (false, vec![frame]),
                _ => continue,
            },
        };
        for frame in frames {
            let message = Message::binary(frame);
            let sent = if sink_is_server {
                server.send(message).await
            } else {
                client.send(message).await
            };
            if sent.is_err() {
                return;
            }
        }
    }
}
