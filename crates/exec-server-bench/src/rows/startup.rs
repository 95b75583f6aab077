//! Start time, memory and program size of a server.

use std::thread;
use std::time::Duration;

use super::{EVERY_ROUND, Group};
use crate::failure::Result;
use crate::row::{Bar, Better, Of, Row, Unit};
use crate::scene::{Readings, Scene};
use crate::stats::{mib, ms, percentile};

const LISTENING: &str = "startup.listening";
const INITIALIZED: &str = "startup.initialized";
const RSS: &str = "startup.rss";
const BINARY: &str = "startup.binary";

/// Several consecutive starts.
pub const GROUP: Group = Group {
    name: "startup",
    most_rounds: EVERY_ROUND,
    rows: &[
        Row {
            id: LISTENING,
            label: "start-up to the line with the address",
            unit: Unit::Named("ms"),
            better: Better::Lower,
            bars: &[Bar::AtMost(1.0 / 3.0, Of::Peer)],
        },
        Row {
            id: INITIALIZED,
            label: "… to an initialised connection",
            unit: Unit::Named("ms"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: RSS,
            label: "memory at rest, one connection",
            unit: Unit::Named("MiB"),
            better: Better::Lower,
            bars: &[Bar::AtMost(0.25, Of::Peer)],
        },
        Row {
            id: BINARY,
            label: "size of the program",
            unit: Unit::Named("MiB"),
            better: Better::Lower,
            bars: &[Bar::AtMost(25.0, Of::Unit)],
        },
    ],
    measure,
};

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
