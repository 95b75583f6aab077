//! What a measurement works with: a fresh server, clients for it, a pace, and a sheet for its
//! readings.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::client::Client;
use super::contestant::{Contestant, Server};
use super::failure::Result;
use super::scratch::Scratch;
use super::warden::Warden;
use super::websocket::QuickAck;

/// The time a client has unless its measurement says otherwise.
pub const USUAL_TIME: Duration = Duration::from_secs(30);

/// One contestant's turn at one group of rows.
pub struct Scene<'a> {
    /// Who is measured.
    pub contestant: &'a Contestant,
    /// A fresh server of the contestant.
    pub server: &'a Server<'a>,
    /// Watches servers that the measurement starts itself.
    pub warden: &'a Warden,
    /// Where files are.
    pub scratch: &'a Scratch,
    /// The kind of client to measure with.
    pub quickack: QuickAck,
    /// How much to do.
    pub effort: Effort,
}

impl Scene<'_> {
    /// A new connection to the server.
    pub fn connect(&self) -> Result<Client> {
        self.connect_to(self.server)
    }

    /// A new connection to a server that the measurement has started itself.
    pub fn connect_to(&self, server: &Server<'_>) -> Result<Client> {
        Client::connect(server.address, self.quickack, USUAL_TIME)
    }
}

/// How much work a run does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Enough for figures to be quoted.
    Full,
    /// Enough to see whether something is badly wrong.
    Quick,
}

impl Effort {
    /// One of two amounts.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }

    /// A pace with this budget, halved for a quick run.
    pub fn pace(self, most: usize, time: Duration) -> Pace {
        Pace { least: 20, most, time: self.pick(time, time / 2) }
    }
}

/// How often to repeat a step: a slow contestant gets fewer repetitions, but never too few for a
/// percentile.
pub struct Pace {
    least: usize,
    most: usize,
    time: Duration,
}

impl Pace {
    /// The same for a step so slow that its median has to do with fewer repetitions.
    pub fn for_slow_steps(self) -> Pace {
        Pace { least: 5, ..self }
    }

    /// Repeats the step and returns how often.
    pub fn run(&self, mut step: impl FnMut() -> Result<()>) -> Result<usize> {
        let begun = Instant::now();
        let mut count = 0;
        while count < self.least || (count < self.most && begun.elapsed() < self.time) {
            step()?;
            count += 1;
        }
        Ok(count)
    }
}

/// What one measurement of one contestant has found.
#[derive(Default)]
pub struct Readings {
    /// Values by row.
    pub values: BTreeMap<&'static str, f64>,
    /// Events that arrived ahead of one with a lower number.
    pub misordered: u64,
}

impl Readings {
    /// Enters a value for a row.
    pub fn enter(&mut self, row: &'static str, value: f64) {
        self.values.insert(row, value);
    }

    /// Enters a yes or no for a row.
    pub fn enter_whether(&mut self, row: &'static str, yes: bool) {
        self.enter(row, if yes { 1.0 } else { 0.0 });
    }

    /// Enters how often a client received events out of order; it can live with that, but it is a
    /// fault.
    pub fn enter_order(&mut self, client: &mut Client) {
        self.misordered += client.ledger().misordered();
    }
}
