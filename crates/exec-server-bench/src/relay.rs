//! A rendezvous with executors, and requests to its registry.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exec_server_relay::noise::SystemRandom;
use exec_server_relay::noise::identity::Identity;
use exec_server_relay::registry_types::{ConnectResponse, PublicKey};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::{Failure, Result};
use super::process_tree::{self, Usage};
use super::relayed::Relayed;
use super::scene::{Scene, USUAL_TIME};
use super::warden::{self, Warden};
use super::websocket::QuickAck;

/// Longer than any working operation takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running program, stopped on drop.
pub struct Running<'a> {
    child: Child,
    warden: &'a Warden,
}

impl<'a> Running<'a> {
    /// Starts a program in its own process group.
    pub fn start(command: &mut Command, warden: &'a Warden) -> Result<Running<'a>> {
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
        warden.watch(child.id());
        Ok(Running { child, warden })
    }

    /// Kills it.
    pub fn kill(&mut self) {
        warden::kill_all(self.child.id());
        let _ = self.child.wait();
    }

    /// Current resource usage.
    pub fn usage(&self) -> Result<Usage> {
        process_tree::usage(&process_tree::own_processes(self.child.id()))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.kill();
        self.warden.forget(self.child.id());
    }
}

/// A running rendezvous.
pub struct BenchRendezvous<'a> {
    /// Listening address.
    pub address: SocketAddr,
    /// Its process.
    pub rendezvous: Running<'a>,
    program: PathBuf,
    data: PathBuf,
    admin: String,
    warden: &'a Warden,
}

impl<'a> BenchRendezvous<'a> {
    /// Starts a rendezvous with new data; `public` is the address in its URLs, if it is not its own.
    pub fn start(scene: &Scene<'a>, data: &Path, public: Option<SocketAddr>) -> Result<Self> {
        let program = PathBuf::from(scene.contestant.program());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (rendezvous, address) = serve(&program, data, any, public, scene.warden)?;
        let mut command = Command::new(&program);
        command.args(["token", "create", "--role", "admin", "-o", "json", "--data"]).arg(data);
        let made: Value = serde_json::from_slice(&command.output()?.stdout)?;
        let admin = secret(&made)?;
        let (data, warden) = (data.to_owned(), scene.warden);
        Ok(BenchRendezvous { address, rendezvous, program, data, admin, warden })
    }

    /// Kills the rendezvous and starts it again at the same address.
    pub fn crash_and_restart(&mut self, public: Option<SocketAddr>) -> Result<()> {
        self.rendezvous.kill();
        let (again, _) = serve(&self.program, &self.data, self.address, public, self.warden)?;
        self.rendezvous = again;
        Ok(())
    }

    /// Creates a token.
    pub fn token(&self, role: &str, environment: &str) -> Result<String> {
        let body = json!({"role": role, "environment": environment});
        let (status, made) = post(self.address, "/admin/tokens", &self.admin, &body)?;
        if !(200..300).contains(&status) {
            return Err(Failure::new(format!("no token ({status}): {made}")));
        }
        secret(&made)
    }

    /// Starts an executor that connects to the address `via`.
    pub fn executor(&self, environment: &str, via: SocketAddr) -> Result<Running<'a>> {
        let token = self.token("executor", environment)?;
        let mut command = Command::new(&self.program);
        command
            .args(["--remote", &format!("http://{via}"), "--environment-id", environment])
            .arg("--state-dir")
            .arg(self.data.join("state"))
            .env("EXEC_SERVER_REMOTE_TOKEN", token)
            .stdout(Stdio::null());
        Running::start(&mut command, self.warden)
    }

    /// A harness with a token for this environment.
    pub fn harness(&self, environment: &str, quickack: QuickAck) -> Result<Harness> {
        Ok(Harness {
            address: self.address,
            environment: environment.to_owned(),
            token: self.token("harness", environment)?,
            identity: Identity::generate(&mut SystemRandom),
            quickack,
        })
    }

    /// Registers an executor with this key; returns its websocket URL.
    pub fn register(&self, environment: &str, token: &str, key: &PublicKey) -> Result<String> {
        let path = format!("/cloud/environment/{environment}/register");
        let body = json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key});
        let (status, answer) = post(self.address, &path, token, &body)?;
        let url = answer["url"].as_str().map(str::to_owned);
        url.ok_or_else(|| Failure::new(format!("not registered ({status}): {answer}")))
    }
}

/// A harness with a key and a token.
pub struct Harness {
    address: SocketAddr,
    environment: String,
    token: String,
    identity: Identity,
    quickack: QuickAck,
}

impl Harness {
    /// Sends a connect request; `None` if the executor is not ready.
    pub fn ask(&self) -> Result<Option<ConnectResponse>> {
        let path = format!("/cloud/environment/{}/connect", self.environment);
        let body = json!({"harness_public_key": self.identity.public_key()});
        match post(self.address, &path, &self.token, &body)? {
            (200, answer) => Ok(Some(serde_json::from_value(answer)?)),
            (409 | 429 | 500.., _) => Ok(None),
            (status, answer) => {
                Err(Failure::new(format!("no connect response ({status}): {answer}")))
            }
        }
    }

    /// Opens a stream; retries the connect request.
    pub fn open(&self) -> Result<Relayed> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let tried = self.ask().and_then(|response| match response {
                Some(response) => self.open_at(&response, deadline).map(Some),
                None => Ok(None),
            });
            match tried {
                Ok(Some(stream)) => return Ok(stream),
                Err(failure) if Instant::now() >= deadline => return Err(failure),
                Ok(None) if Instant::now() >= deadline => {
                    return Err(Failure::new("the executor never came"));
                }
                Ok(None) | Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Opens a stream with this connect response.
    pub fn open_at(&self, response: &ConnectResponse, deadline: Instant) -> Result<Relayed> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("bench-stream-{:08x}-{number:08x}", std::process::id());
        Relayed::open(self.address, id, &self.identity, response, self.quickack, deadline)
    }

    /// A client with a session.
    pub fn connect(&self) -> Result<Client> {
        Client::over(self.open()?, USUAL_TIME)
    }
}

fn serve<'a>(
    program: &Path,
    data: &Path,
    listen: SocketAddr,
    public: Option<SocketAddr>,
    warden: &'a Warden,
) -> Result<(Running<'a>, SocketAddr)> {
    // It prints its public URL, so the port is chosen here.
    let free = match listen.port() {
        0 => std::net::TcpListener::bind(listen)?.local_addr()?,
        _ => listen,
    };
    let mut command = Command::new(program);
    command.args(["rendezvous", "--listen", &format!("http://{free}"), "--data"]).arg(data);
    if let Some(public) = public {
        command.args(["--public-url", &format!("http://{public}")]);
    }
    let mut running = Running::start(command.stdout(Stdio::piped()), warden)?;
    let stdout = running.child.stdout.take().expect("was asked for");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    match line.is_empty() {
        true => Err(Failure::new("the rendezvous did not start")),
        false => Ok((running, free)),
    }
}

fn secret(made: &Value) -> Result<String> {
    let secret = made["secret"].as_str().map(str::to_owned);
    secret.ok_or_else(|| Failure::new("no token was made"))
}

/// Sends one request on a new connection; returns status and JSON body.
fn post(address: SocketAddr, path: &str, token: &str, body: &Value) -> Result<(u16, Value)> {
    let body = body.to_string();
    let mut link = TcpStream::connect(address)?;
    link.set_nodelay(true)?;
    link.set_read_timeout(Some(TIMEOUT))?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    link.write_all((head + &body).as_bytes())?;
    let mut reply = String::new();
    link.read_to_string(&mut reply)?;
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Failure::new("no answer from the registry"))?;
    let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, serde_json::from_str(body).unwrap_or_default()))
}
