//! Start time, memory and program size of a server.

use std::thread;
use std::time::Duration;

use super::{EVERY_ROUND, Group};
use crate::failure::Result;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::{mib, ms, percentile};

rows! {
    LISTENING = "startup.listening": "start-up to the line with the address", Lower "ms",
        AtMost(1.0 / 3.0, Peer);
    INITIALIZED = "startup.initialized": "… to an initialised connection", Lower "ms";
    RSS = "startup.rss": "memory at rest, one connection", Lower "MiB", AtMost(0.25, Peer);
    BINARY = "startup.binary": "size of the program", Lower "MiB", AtMost(25.0, Unit);
}

/// Several consecutive starts.
pub const GROUP: Group = Group { name: "startup", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let _client = scene.connect()?;
    thread::sleep(Duration::from_millis(300));
    readings.enter(RSS, mib(scene.server.usage()?.rss as f64));
    readings.enter(BINARY, mib(scene.server.program_size()? as f64));

    let (mut listening, mut initialized) = (Vec::new(), Vec::new());
    for _ in 0..scene.effort.pick(7, 5) {
        let server = scene.contestant.start(scene.warden)?;
        let connecting = std::time::Instant::now();
        let _client = scene.connect_to(&server)?;
        listening.push(ms(server.startup));
        initialized.push(ms(server.startup + connecting.elapsed()));
    }
    readings.enter(LISTENING, percentile(&listening, 0.5));
    readings.enter(INITIALIZED, percentile(&initialized, 0.5));
    Ok(())
}
