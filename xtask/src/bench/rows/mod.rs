//! The measurements, one file per group of rows; each file declares its rows and bars above the
//! code that fills them.

mod backlog;
mod blocks;
mod burst;
mod client;
mod connecting;
mod directories;
mod files;
mod flood;
mod http;
mod http_bodies;
mod idle;
mod library;
mod oneshot;
mod pty;
mod remote;
mod rpc;
mod sandbox;
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
    /// What `--only` calls it.
    pub name: &'static str,
    /// In how many rounds it takes part; what is slow and hardly varies need not be repeated often.
    pub most_rounds: usize,
    /// The rows it fills.
    pub rows: &'static [Row],
    /// Makes the measurement; rows without a value when it fails have failed.
    pub measure: fn(&Scene<'_>, &mut Readings) -> Result<()>,
}

/// Groups of short measurements that depend on where the scheduler puts several programs, which it
/// decides anew for every server: one long turn a round would be one throw of the dice.
const THROWN_OFTEN: [&str; 1] = [http::GROUP.name];

/// How often the contestants take turns at those in one round.
const LAPS: usize = 5;

impl Group {
    /// How often the contestants take turns in one round.
    pub fn laps(&self) -> usize {
        if THROWN_OFTEN.contains(&self.name) { LAPS } else { 1 }
    }

    /// Whether `--only` means it: by its name, or by what its name begins with.
    pub fn is_called(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }
}

/// Every group, in the order of the table.
pub const GROUPS: [Group; 22] = [
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
    http::GROUP,
    http_bodies::GROUP,
    client::GROUP,
    remote::GROUP,
    stuck::GROUP,
    library::GROUP,
];

const EVERY_ROUND: usize = usize::MAX;
