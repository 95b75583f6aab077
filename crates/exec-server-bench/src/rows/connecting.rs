//! New connections on a machine with many processes, which a server may search for the connecting one.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::Group;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::{ms, percentile};

rows! {
    MEDIAN = "connecting.median": "initialised connection, 1000 processes on the machine", Lower "ms",
        AtMost(1.0, Unit);
    FIRST = "connecting.first": "… the first one of a client", Lower "ms";
}

const PROCESSES: usize = 1000;

/// Consecutive connections from a client that was started before the server.
pub const GROUP: Group = Group { name: "connecting", most_rounds: 2, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let _crowd = IdleProcesses::start()?;
    let mut times = Vec::new();
    for _ in 0..scene.effort.pick(200, 50) {
        let begun = Instant::now();
        let client = scene.connect()?;
        times.push(ms(begun.elapsed()));
        drop(client);
    }
    readings.enter(FIRST, times[0]);
    readings.enter(MEDIAN, percentile(&times, 0.5));
    Ok(())
}

/// Idle processes, killed on drop.
struct IdleProcesses(Vec<Child>);

impl IdleProcesses {
    fn start() -> Result<Self> {
        let mut crowd = Self(Vec::with_capacity(PROCESSES));
        for _ in 0..PROCESSES {
            let mut command = Command::new("sleep");
            command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn();
            crowd
                .0
                .push(child.map_err(|error| Failure::new(format!("cannot start sleep: {error}")))?);
        }
        Ok(crowd)
    }
}

impl Drop for IdleProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A child that has exited needs no signal.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
