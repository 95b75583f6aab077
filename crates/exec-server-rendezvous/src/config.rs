//! How a rendezvous is set up: where it is, what it allows, how long things take.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Clock;

/// How a rendezvous is set up.
#[derive(Debug, Clone)]
pub struct RendezvousConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where it keeps what it must remember.
    pub data: PathBuf,
    /// Under which URL others reach it, if not under the address where it listens.
    pub public_url: Option<String>,
    /// Certificate chain and private key, as PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Where metrics are served to anyone who asks.
    pub metrics: Option<SocketAddr>,
    /// What it allows.
    pub limits: Limits,
    /// How long things take.
    pub timings: Timings,
    /// By which clock tokens, URLs and authorizations expire.
    pub clock: Clock,
}

/// What a rendezvous allows.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once; each may be a socket that stays.
    pub connections: usize,
    /// Harnesses of one executor at once; an executor itself takes 128 that have proven who they are.
    pub streams_per_environment: usize,
    /// Authorizations of one token that nobody has used yet; a harness needs one at a time.
    pub unused_authorizations: u32,
}

/// How long things take.
#[derive(Debug, Clone)]
pub struct Timings {
    /// How often a socket is asked for a sign of life; less than proxies allow for silence.
    pub ping_interval: Duration,
    /// How long it has to give one.
    pub pong_deadline: Duration,
    /// How long a TLS handshake, the head of a request, or its body may take.
    pub handshake: Duration,
    /// How long a harness may be silent before it claims its stream.
    pub claim: Duration,
    /// How long an executor waits for a harness that has too much to read.
    pub patience: Duration,
    /// How long a socket that is told to go may take.
    pub close: Duration,
    /// How long an executor's URL is good; afterwards it registers again by itself.
    pub executor_url: Duration,
    /// How long a harness's URL and authorization are good.
    pub harness_bundle: Duration,
    /// How often what is over is forgotten, and tokens are looked for that expired or that another program revoked.
    pub maintenance: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16_384, streams_per_environment: 256, unused_authorizations: 256 }
    }
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(20),
            pong_deadline: Duration::from_secs(60),
            handshake: Duration::from_secs(10),
            claim: Duration::from_secs(10),
            patience: Duration::from_secs(5),
            close: Duration::from_secs(5),
            executor_url: Duration::from_secs(30 * 24 * 3600),
            harness_bundle: Duration::from_secs(60),
            maintenance: Duration::from_secs(2),
        }
    }
}

impl RendezvousConfig {
    /// The usual limits and times.
    pub fn new(listen: SocketAddr, data: PathBuf) -> Self {
        Self {
            listen,
            data,
            public_url: None,
            tls: None,
            metrics: None,
            limits: Limits::default(),
            timings: Timings::default(),
            clock: Clock::default(),
        }
    }
}
