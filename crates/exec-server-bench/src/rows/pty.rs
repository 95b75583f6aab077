//! Typing: one byte to a terminal, and its echo back.

use std::time::{Duration, Instant};

use super::{EVERY_ROUND, Group};
use crate::client::{Client, Event, Launch, Stdio};
use crate::failure::Result;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::{ms, percentile};

rows! {
    P50 = "pty.p50": "terminal echo of one byte, p50", Lower "ms",
        AtMost(1.0 / 100.0, NaglingPeer), AtMost(0.3, Unit);
    P95 = "pty.p95": "… p95", Lower "ms";
}

/// A terminal stops echoing when the line it is collecting reaches 4096 bytes.
const MOST_KEYS: usize = 2000;

/// The terminal's echo, which does not involve the program.
pub const GROUP: Group = Group { name: "pty", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    let launch = Launch { stdio: Stdio::Terminal, ..Launch::new(&["/bin/cat"]) };
    let process = client.start(launch)?.process;
    let mut key = 0;
    let mut times = Vec::new();
    for _ in 0..10 {
        key += 1;
        press(&mut client, process, key)?;
    }
    scene.effort.pace(MOST_KEYS, Duration::from_secs(3)).run(|| {
        key += 1;
        times.push(ms(press(&mut client, process, key)?));
        Ok(())
    })?;
    readings.enter(P50, percentile(&times, 0.5));
    readings.enter(P95, percentile(&times, 0.95));
    readings.enter_order(&mut client);
    Ok(())
}

/// Writes one byte and returns the time of its echo; also waits for the write reply, so that keys do not overlap.
fn press(client: &mut Client, process: u64, key: u64) -> Result<Duration> {
    let begun = Instant::now();
    let request = client.queue_write(process, key, "eA==");
    client.flush()?;
    let (mut echo, mut answered) = (None, false);
    loop {
        match client.next_event()? {
            Event::Output(from) if from == process => echo = echo.or(Some(begun.elapsed())),
            event => answered |= event == Event::Reply(request),
        }
        if let (Some(time), true) = (echo, answered) {
            return Ok(time);
        }
    }
}
