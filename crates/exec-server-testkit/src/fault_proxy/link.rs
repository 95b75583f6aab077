//! One proxied connection: two copy tasks and the scripted fault.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;

use super::{Ending, Plan, Shared, Toward};

const BUFFER: usize = 64 * 1024;

/// Address of the server.
pub enum Address {
    Tcp(String),
    Unix(PathBuf),
}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Address {
    /// The address in a URL, and the path after it.
    pub fn parse(url: &str) -> (Self, String) {
        if let Some(path) = url.strip_prefix("unix://") {
            return (Self::Unix(path.into()), String::new());
        }
        let rest = url.strip_prefix("ws://").expect("a ws:// or unix:// URL");
        match rest.split_once('/') {
            Some((address, path)) => (Self::Tcp(address.to_owned()), format!("/{path}")),
            None => (Self::Tcp(rest.to_owned()), String::new()),
        }
    }
}

impl Listener {
    /// A listener of the same kind as the server's, its URL, and a directory that must live as long.
    pub async fn beside(server: &Address, path: &str) -> (Self, String, Option<tempfile::TempDir>) {
        match server {
            Address::Tcp(_) => {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
                let address = listener.local_addr().expect("it is bound");
                (Self::Tcp(listener), format!("ws://{address}{path}"), None)
            }
            Address::Unix(_) => {
                let directory = tempfile::tempdir().expect("there is room for a directory");
                let path = directory.path().join("proxy.sock");
                let listener = UnixListener::bind(&path).expect("the directory is ours");
                (Self::Unix(listener), format!("unix://{}", path.display()), Some(directory))
            }
        }
    }

    pub async fn accept(&self) -> Socket {
        match self {
            Self::Tcp(listener) => Socket::tcp(listener.accept().await.expect("loopback works").0),
            Self::Unix(listener) => Socket::Unix(listener.accept().await.expect("it is bound").0),
        }
    }
}

impl Socket {
    pub async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Ok(Self::tcp(TcpStream::connect(address).await?)),
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
        }
    }

    fn tcp(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a socket has options");
        Self::Tcp(stream)
    }

    /// Unix sockets have no reset; their peer reads the end of the stream.
    pub fn reset_when_dropped(&self) {
        if let Self::Tcp(stream) = self {
            // A closed connection needs no reset.
            let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }

    fn end_writing(&self) {
        // The peer may have closed first.
        let _ = shutdown(self.fd(), Shutdown::Write);
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            Self::Unix(stream) => stream.try_read(buffer),
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match self {
                Self::Tcp(stream) => {
                    stream.writable().await?;
                    stream.try_write(bytes)
                }
                Self::Unix(stream) => {
                    stream.writable().await?;
                    stream.try_write(bytes)
                }
            };
            match written {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Why a copy task stopped.
enum Stop {
    /// The source ended.
    EndOfStream,
    /// One side failed.
    Broken,
    /// The plan or the fault schedule cut the connection.
    Cut(Ending),
}

/// Copies bytes in both directions until a side, the plan or the fault schedule ends the connection.
pub async fn run_link(
    shared: Arc<Shared>,
    client: Socket,
    server: Socket,
    begun: Plan,
    number: u64,
) {
    let stop = {
        let up = pump(&shared, Toward::Server, &client, &server, &begun, number);
        let down = pump(&shared, Toward::Client, &server, &client, &begun, number);
        tokio::select! {
            stop = both(up, down) => stop,
            ending = wait_for_cut(shared.plan.subscribe(), begun.cuts) => Stop::Cut(ending),
        }
    };
    if matches!(stop, Stop::Cut(Ending::Reset) | Stop::Broken) {
        client.reset_when_dropped();
        server.reset_when_dropped();
    }
    drop((client, server));
    shared.counters.send_modify(|counters| counters.open -= 1);
}

/// The end of one direction leaves the other open; any other stop ends both.
async fn both(up: impl Future<Output = Stop>, down: impl Future<Output = Stop>) -> Stop {
    tokio::pin!(up, down);
    let (first, is_up) = tokio::select! {
        stop = &mut up => (stop, true),
        stop = &mut down => (stop, false),
    };
    match first {
        Stop::EndOfStream if is_up => down.await,
        Stop::EndOfStream => up.await,
        stop => stop,
    }
}

async fn wait_for_cut(mut plan: watch::Receiver<Plan>, before: u64) -> Ending {
    match plan.wait_for(|plan| plan.cuts != before).await {
        Ok(plan) => plan.ending.expect("a cut says how"),
        Err(_) => Ending::Close,
    }
}

async fn pump(
    shared: &Shared,
    toward: Toward,
    from: &Socket,
    to: &Socket,
    begun: &Plan,
    number: u64,
) -> Stop {
    let mut plan = shared.plan.subscribe();
    let half_closes = *begun.half_closes.get(toward);
    let mut is_half_closed = false;
    let mut dice = FaultRng::new(begun, number, toward);
    let mut buffer = vec![0; BUFFER];
    loop {
        let flows = |plan: &Plan| !plan.is_stalled.get(toward) && plan.dead_through < number;
        if plan.wait_for(flows).await.is_err() {
            return Stop::Cut(Ending::Close);
        }
        let orders = plan.borrow_and_update().clone();
        if *orders.half_closes.get(toward) != half_closes && !is_half_closed {
            to.end_writing();
            is_half_closed = true;
        }
        tokio::select! {
            biased;
            changed = plan.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Stop::Cut(Ending::Close),
            },
            ready = from.readable() => if ready.is_err() {
                return Stop::Broken;
            },
        }
        let piece = dice.next_piece(orders.faults.as_ref());
        let before_cut = orders
            .cut_at
            .get(toward)
            .map(|at| at.saturating_sub(*shared.counters.borrow().carried.get(toward)).max(1));
        let room = BUFFER
            .min(piece)
            .min(before_cut.map_or(BUFFER, |left| usize::try_from(left).unwrap_or(BUFFER)));
        let count = match from.try_read(&mut buffer[..room]) {
            Ok(0) => {
                to.end_writing();
                return Stop::EndOfStream;
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Stop::Broken,
        };
        if is_half_closed {
            continue;
        }
        dice.delay(orders.faults.as_ref()).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return Stop::Broken;
        }
        let carried = count as u64;
        shared.counters.send_modify(|counters| *counters.carried.get_mut(toward) += carried);
        if before_cut.is_some_and(|left| carried >= left) {
            shared.plan.send_modify(|plan| *plan.cut_at.get_mut(toward) = None);
            return Stop::Cut(Ending::Close);
        }
        if dice.is_cut_due(orders.faults.as_ref(), carried) {
            return Stop::Cut(Ending::Close);
        }
    }
}

/// Random faults of one direction of one connection, determined by seed and number.
struct FaultRng {
    state: u64,
    until_cut: Option<u64>,
}

impl FaultRng {
    fn new(plan: &Plan, number: u64, toward: Toward) -> Self {
        let seed = plan.faults.as_ref().map_or(0, |faults| faults.seed);
        let side = match toward {
            Toward::Server => 1,
            Toward::Client => 2,
        };
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number << 2 | side);
        Self { state, until_cut: None }
    }

    /// SplitMix64: small, and sufficient for fault injection.
    fn roll(&mut self, from: u64, to: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        from + (mixed ^ (mixed >> 31)) % to.saturating_sub(from).max(1)
    }

    fn next_piece(&mut self, faults: Option<&super::FaultSchedule>) -> usize {
        let Some(faults) = faults else { return BUFFER };
        let piece = self.roll(faults.piece.start as u64, faults.piece.end as u64);
        usize::try_from(piece).unwrap_or(BUFFER).max(1)
    }

    async fn delay(&mut self, faults: Option<&super::FaultSchedule>) {
        let Some(faults) = faults else { return };
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let delay = self.roll(micros(faults.delay.start), micros(faults.delay.end));
        if delay > 0 {
            tokio::time::sleep(Duration::from_micros(delay)).await;
        }
    }

    fn is_cut_due(&mut self, faults: Option<&super::FaultSchedule>, carried: u64) -> bool {
        let Some(every) = faults.and_then(|faults| faults.cut_every.clone()) else {
            self.until_cut = None;
            return false;
        };
        let left = match self.until_cut {
            Some(left) => left,
            None => self.roll(every.start, every.end),
        };
        self.until_cut = Some(left.saturating_sub(carried));
        left <= carried
    }
}
