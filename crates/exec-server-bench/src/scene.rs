//! Context of a measurement: a fresh server, clients for it, repetition counts, and the readings.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::client::Client;
use super::contestant::{Contestant, Server};
use super::failure::Result;
use super::scratch::Scratch;
use super::warden::Warden;
use super::websocket::QuickAck;

/// Default time limit of a client.
pub const USUAL_TIME: Duration = Duration::from_secs(30);

/// One contestant's turn at one group.
pub struct Scene<'a> {
    /// The contestant.
    pub contestant: &'a Contestant,
    /// A fresh server of the contestant.
    pub server: &'a Server<'a>,
    /// Kills servers that the measurement starts itself, if the benchmark is killed.
    pub warden: &'a Warden,
    /// Directory for files.
    pub scratch: &'a Scratch,
    /// Kind of client.
    pub quickack: QuickAck,
    /// Amount of work.
    pub effort: Effort,
}

impl Scene<'_> {
    /// A new connection to the server.
    pub fn connect(&self) -> Result<Client> {
        self.connect_to(self.server)
    }

    /// A new connection to a server that the measurement has started.
    pub fn connect_to(&self, server: &Server<'_>) -> Result<Client> {
        Client::connect(server.address, self.quickack, USUAL_TIME)
    }
}

/// Amount of work per run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Enough for published figures.
    Full,
    /// Enough to find gross regressions.
    Quick,
}

impl Effort {
    /// Selects one of two values.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Effort::Full => full,
            Effort::Quick => quick,
        }
    }

    /// A repetition limit, halved for a quick run.
    pub fn pace(self, most: usize, time: Duration) -> Pace {
        Pace { least: 20, most, time: self.pick(time, time / 2) }
    }
}

/// Number of repetitions of a step: fewer for a slow contestant, but enough for a percentile.
pub struct Pace {
    least: usize,
    most: usize,
    time: Duration,
}

impl Pace {
    /// The same for slow steps, whose median needs fewer repetitions.
    pub fn for_slow_steps(self) -> Pace {
        Pace { least: 5, ..self }
    }

    /// Repeats the step and returns the number of repetitions.
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

/// Results of one measurement of one contestant.
#[derive(Default)]
pub struct Readings {
    /// Values by row.
    pub values: BTreeMap<&'static str, f64>,
    /// Events that arrived before one with a lower number.
    pub misordered: u64,
}

impl Readings {
    /// Sets the value of a row.
    pub fn enter(&mut self, row: &'static str, value: f64) {
        self.values.insert(row, value);
    }

    /// Sets yes or no for a row.
    pub fn enter_whether(&mut self, row: &'static str, yes: bool) {
        self.enter(row, if yes { 1.0 } else { 0.0 });
    }

    /// Records how often a client received events out of order, which is a fault although the client tolerates it.
    pub fn enter_order(&mut self, client: &mut Client) {
        self.misordered += client.ledger().misordered();
    }
}
