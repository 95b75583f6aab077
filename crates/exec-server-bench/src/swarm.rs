//! Thousands of executors and harnesses without encryption, which a relay cannot detect.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use exec_server_relay::frame::{RelayBody, RelayFrame};
use exec_server_relay::registry_types::PublicKey;
use serde_json::{Value, json};

use super::failure::{Failure, Result};
use super::keep_alive::KeepAlive;
use super::relayed::path_of;
use super::websocket::{QuickAck, WebSocket};

/// Threads that dial; each is idle while it waits for an answer.
const THREADS: usize = 8;

/// Longer than all of them together take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Pause before a refused request is repeated.
const PAUSE: Duration = Duration::from_millis(2);

/// Name and tokens of an environment.
#[derive(Clone)]
pub struct Member {
    /// Environment id.
    pub environment: String,
    /// Token of the executor.
    pub executor: String,
    /// Token of the harness.
    pub harness: String,
}

/// An executor, and a harness with a stream to it.
pub struct Pair {
    member: Member,
    /// The executor's URL.
    url: String,
    /// Id of the stream.
    pub stream: &'static str,
    /// The executor's websocket.
    pub executor: Option<WebSocket>,
    /// The harness's websocket.
    pub harness: Option<WebSocket>,
}

/// Which peers are opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// Executors only.
    Executors,
    /// Executors, and a harness for each.
    Both,
}

/// Opens the peers of all members through the rendezvous at an address.
pub fn open(registry: SocketAddr, members: &[Member], peers: Peers) -> Result<Vec<Pair>> {
    let slice = members.len().div_ceil(THREADS).max(1);
    thread::scope(|scope| {
        let threads: Vec<_> = members
            .chunks(slice)
            .map(|members| {
                scope.spawn(move || {
                    let mut line = Line::open(registry)?;
                    members.iter().map(|member| line.pair(member.clone(), peers)).collect()
                })
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let pairs: Result<Vec<Pair>> = thread.join().expect("no panic");
            all.extend(pairs?);
        }
        Ok(all)
    })
}

/// Brings all peers back through the rendezvous at an address, after their sockets were lost.
pub fn come_back(registry: SocketAddr, pairs: &mut [Pair]) -> Result<()> {
    let slice = pairs.len().div_ceil(THREADS).max(1);
    thread::scope(|scope| {
        let threads: Vec<_> = pairs
            .chunks_mut(slice)
            .map(|pairs| {
                scope.spawn(move || {
                    let mut line = Line::open(registry)?;
                    pairs.iter_mut().try_for_each(|pair| line.come_back(pair))
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Body of a registration.
pub fn register_body() -> String {
    let key = PublicKey { x25519: [7; 32], mlkem768: Box::new([7; 1184]) };
    json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key}).to_string()
}

/// Body of a connect request.
pub fn connect_body() -> String {
    let key = PublicKey { x25519: [8; 32], mlkem768: Box::new([8; 1184]) };
    json!({"harness_public_key": key}).to_string()
}

/// A connection to the registry.
pub struct Line {
    registry: SocketAddr,
    http: KeepAlive,
    deadline: Instant,
    register: String,
    connect: String,
}

impl Line {
    /// Connects; retries while nothing listens.
    pub fn open(registry: SocketAddr) -> Result<Line> {
        let deadline = Instant::now() + TIMEOUT;
        let http = loop {
            match KeepAlive::connect(registry) {
                Ok(http) => break http,
                Err(failure) if Instant::now() >= deadline => return Err(failure),
                Err(_) => thread::sleep(PAUSE),
            }
        };
        let (register, connect) = (register_body(), connect_body());
        Ok(Line { registry, http, deadline, register, connect })
    }

    fn pair(&mut self, member: Member, peers: Peers) -> Result<Pair> {
        let path = format!("/cloud/environment/{}/register", member.environment);
        let (status, body) = self.http.post(&path, &member.executor, &self.register)?;
        let url = url(status, body)?;
        let executor = self.executor(&url)?;
        let mut pair = Pair { member, url, stream: "s", executor: Some(executor), harness: None };
        if peers == Peers::Both {
            self.harness(&mut pair)?;
        }
        Ok(pair)
    }

    /// A URL for the harness of a pair.
    pub fn ask_for_url(&mut self, pair: &Pair) -> Result<String> {
        let path = format!("/cloud/environment/{}/connect", pair.member.environment);
        let (status, body) = self.http.post(&path, &pair.member.harness, &self.connect)?;
        url(status, body)
    }

    fn come_back(&mut self, pair: &mut Pair) -> Result<()> {
        (pair.executor, pair.harness) = (None, None);
        pair.executor = Some(self.executor(&pair.url)?);
        self.harness(pair)
    }

    /// Dials an executor's URL through the shared address, until it is accepted.
    fn executor(&self, url: &str) -> Result<WebSocket> {
        loop {
            let dialled =
                WebSocket::connect_at(self.registry, path_of(url)?, QuickAck::No, self.deadline);
            match dialled {
                Err(failure) if Instant::now() >= self.deadline => return Err(failure),
                Err(_) => thread::sleep(PAUSE),
                open => return open,
            }
        }
    }

    /// Asks for a URL until there is one whose websocket is accepted, and opens a stream.
    fn harness(&mut self, pair: &mut Pair) -> Result<()> {
        loop {
            let dialled = self.ask_for_url(pair).and_then(|url| {
                WebSocket::connect_at(
                    address_of(&url)?,
                    path_of(&url)?,
                    QuickAck::No,
                    self.deadline,
                )
            });
            match dialled {
                Err(failure) if Instant::now() >= self.deadline => return Err(failure),
                Err(_) => thread::sleep(PAUSE),
                Ok(mut harness) => {
                    let executor = pair.executor.as_mut().expect("it was dialled before");
                    executor.set_deadline(self.deadline);
                    let first = RelayFrame::new(pair.stream, RelayBody::Resume { next_seq: 0 });
                    harness.queue_binary(&first.encode());
                    harness.flush()?;
                    executor.next_message()?;
                    pair.harness = Some(harness);
                    return Ok(());
                }
            }
        }
    }
}

fn url(status: u16, body: &[u8]) -> Result<String> {
    let answer: Value = serde_json::from_slice(body)?;
    let url = answer["url"].as_str().map(str::to_owned);
    url.ok_or_else(|| Failure::new(format!("no URL ({status}): {answer}")))
}

/// The address in a URL with a numeric host.
pub fn address_of(url: &str) -> Result<SocketAddr> {
    let host = url.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let address = host.and_then(|host| host.parse().ok());
    address.ok_or_else(|| Failure::new(format!("no address in {url}")))
}
