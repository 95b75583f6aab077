//! The measurements, one file per group; each file declares its rows and bars above the code that fills them.

mod backlog;
mod blocks;
mod burst;
mod client;
mod cluster;
mod connecting;
mod crowd;
mod directories;
mod faults;
mod files;
mod flood;
mod frames;
mod http;
mod http_bodies;
mod idle;
mod library;
mod mcp;
mod oneshot;
mod pty;
mod remote;
mod rpc;
mod sandbox;
mod searching;
mod stall;
mod startup;
mod stdin;
mod stdout;
mod stuck;

use super::failure::Result;
use super::row::Row;
use super::scene::{Readings, Scene};

/// Rows that are measured together on one fresh server.
pub struct Group {
    /// Its name for `--only`.
    pub name: &'static str,
    /// Maximum number of rounds; slow groups with little variance need few.
    pub most_rounds: usize,
    /// The rows it fills.
    pub rows: &'static [Row],
    /// Runs the measurement; rows without a value count as failed.
    pub measure: fn(&Scene<'_>, &mut Readings) -> Result<()>,
}

/// Groups of short measurements that depend on the placement of several programs by the scheduler, which differs for
/// every server.
const THROWN_OFTEN: [&str; 1] = [http::GROUP.name];

/// Turns per round for those groups.
const LAPS: usize = 5;

impl Group {
    /// Turns per round.
    pub fn laps(&self) -> usize {
        if THROWN_OFTEN.contains(&self.name) { LAPS } else { 1 }
    }

    /// Whether `--only` selects the group, by its name or a prefix.
    pub fn is_called(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

/// Every group, in the order of the table.
pub const GROUPS: [Group; 28] = [
    oneshot::GROUP,
    sandbox::GROUP,
    rpc::GROUP,
    pty::GROUP,
    stdout::GROUP,
    stdin::GROUP,
    burst::GROUP,
    idle::GROUP,
    startup::GROUP,
    connecting::GROUP,
    flood::GROUP,
    stall::GROUP,
    backlog::GROUP,
    files::GROUP,
    blocks::GROUP,
    directories::GROUP,
    searching::GROUP,
    http::GROUP,
    http_bodies::GROUP,
    client::GROUP,
    remote::GROUP,
    stuck::GROUP,
    frames::GROUP,
    cluster::GROUP,
    crowd::GROUP,
    faults::GROUP,
    library::GROUP,
    mcp::GROUP,
];

const EVERY_ROUND: usize = usize::MAX;
