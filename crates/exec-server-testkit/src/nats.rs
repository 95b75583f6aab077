//! NATS servers of Debian's package, private to the tests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::DEADLINE;
use crate::isolation::free_address;

/// Printed once where the tests are skipped.
const MISSING: &str =
    "tests with NATS are skipped: not installed (on Debian: apt-get install nats-server)";

/// A running NATS server; it ends with its value, and with the test program at the latest.
pub struct Nats {
    program: PathBuf,
    address: SocketAddr,
    arguments: Vec<String>,
    pid: Option<Pid>,
    /// A shell that ends the server when its stdin is closed.
    keeper: Option<Child>,
}

impl Nats {
    /// Starts servers that form a cluster; none if NATS is not installed.
    pub fn start(count: usize) -> Option<Vec<Self>> {
        let Some(program) = program() else {
            static SAID: OnceLock<()> = OnceLock::new();
            SAID.get_or_init(|| {
                // Past the capture of the test harness: a skipped test must be noticed.
                let _ = writeln!(io::stderr(), "{MISSING}");
            });
            return None;
        };
        let routes: Vec<SocketAddr> = (0..count).map(|_| free_address()).collect();
        let all: Vec<String> = routes.iter().map(|it| format!("nats://{it}")).collect();
        let start = |route: &SocketAddr| {
            let mut arguments = vec!["--cluster_name".to_owned(), "test".to_owned()];
            arguments.extend(["--cluster".to_owned(), format!("nats://{route}")]);
            arguments.extend(["--routes".to_owned(), all.join(",")]);
            let arguments = if count > 1 { arguments } else { Vec::new() };
            Self::start_with(&program, arguments)
        };
        Some(routes.iter().map(start).collect())
    }

    /// Starts one server with a configuration file; none if NATS is not installed.
    pub fn configured(file: &Path) -> Option<Self> {
        let arguments = vec!["--config".to_owned(), file.display().to_string()];
        Some(Self::start_with(&program()?, arguments))
    }

    /// The URL of a server that all tests of this program share.
    pub fn shared() -> Option<String> {
        static SHARED: OnceLock<Option<Vec<Nats>>> = OnceLock::new();
        let servers = SHARED.get_or_init(|| Self::start(1)).as_ref()?;
        Some(servers[0].url())
    }

    fn start_with(program: &Path, arguments: Vec<String>) -> Self {
        let address = free_address();
        let mut server =
            Self { program: program.to_owned(), address, arguments, pid: None, keeper: None };
        server.resume();
        server
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid.expect("it runs"), signal).expect("it is ours");
    }

    /// Ends the server at once, as a crash does.
    pub fn crash(&mut self) {
        self.pid = None;
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().expect("the shell was started here");
        }
    }

    /// Starts the server again at its address.
    pub fn resume(&mut self) {
        let script = r#""$0" "$@" </dev/null >/dev/null 2>&1 & echo $!; cat >/dev/null; kill -KILL $!; wait $! 2>/dev/null"#;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).arg(&self.program).args(["--addr", "127.0.0.1", "--port"]);
        shell.arg(self.address.port().to_string()).args(&self.arguments);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = shell.spawn().expect("a shell can be started");
        let mut line = String::new();
        let stdout = keeper.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the shell writes");
        let pid: i32 = line.trim().parse().expect("a process id");
        (self.pid, self.keeper) = (Pid::from_raw(pid), Some(keeper));
        let deadline = Instant::now() + DEADLINE;
        while !self.is_ready() {
            assert!(Instant::now() < deadline, "NATS does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return false };
        let mut first = [0; 4];
        stream.read_exact(&mut first).is_ok() && &first == b"INFO"
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.crash();
    }
}

/// Publishes a message, as a node of another version or a broken client might.
pub async fn publish(url: &str, subject: &str, payload: &[u8]) {
    let head = format!("PUB {subject} {}\r\n", payload.len());
    send(url, &[head.as_bytes(), payload, b"\r\n"].concat()).await;
}

/// Sends a command of a client to a NATS server, and waits until it was executed.
pub async fn send(url: &str, command: &[u8]) {
    let address = url.strip_prefix("nats://").expect("a NATS URL");
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the server listens");
    let connect = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".as_slice();
    let bytes = [connect, command, b"PING\r\n"].concat();
    stream.write_all(&bytes).await.expect("the server reads");
    let mut lines = tokio::io::BufReader::new(stream).lines();
    let published = async {
        while lines.next_line().await.expect("the server answers").expect("it stays") != "PONG" {}
    };
    tokio::time::timeout(DEADLINE, published).await.expect("an answer comes in time");
}

/// The URLs of all servers, as `--nats` takes them.
pub fn urls(servers: &[Nats]) -> String {
    servers.iter().map(Nats::url).collect::<Vec<_>>().join(",")
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).collect::<Vec<_>>();
    let debian = ["/usr/sbin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    let places = places.into_iter().chain(debian);
    places.map(|place| place.join("nats-server")).find(|program| program.is_file())
}
