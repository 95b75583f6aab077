//! Requests beside a process that writes as fast as it can, on the same connection and on another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::rpc::round_trips;
use super::{EVERY_ROUND, Group};
use crate::client::{Client, Launch};
use crate::failure::{Failure, Result};
use crate::ledger::Content;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::percentile;

rows! {
    SAME_P50 = "flood.same-p50": "round trip on the connection that a process floods, p50", Lower "ms";
    SAME_P95 = "flood.same-p95": "… p95", Lower "ms", AtMost(1.0 / 8.0, Peer);
    RATE = "flood.rate": "… output meanwhile", Higher "MB/s";
    OTHER_P50 = "flood.other-p50": "round trip on another connection, p50", Lower "ms";
    OTHER_P95 = "flood.other-p95": "… p95", Lower "ms";
}

/// Round trips count only once the flood has started.
const UNDER_WAY: u64 = 32 << 20;

/// Round trips of `environment/status`.
pub const GROUP: Group = Group { name: "flood", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut flooded = scene.connect()?;
    let mut other = scene.connect()?;
    let launch = Launch { content: Content::Zeros, ..Launch::new(&["/bin/cat", "/dev/zero"]) };
    let process = flooded.start(launch)?.process;
    while flooded.ledger().bytes(process) < UNDER_WAY {
        flooded.next_event()?;
    }
    let pace = scene.effort.pace(usize::MAX, Duration::from_secs(2));
    let (before, begun) = (flooded.ledger().bytes(process), Instant::now());
    let same = round_trips(&mut flooded, &pace)?;
    let (bytes, time) = (flooded.ledger().bytes(process) - before, begun.elapsed());
    readings.enter(SAME_P50, percentile(&same, 0.5) / 1e3);
    readings.enter(SAME_P95, percentile(&same, 0.95) / 1e3);
    readings.enter(RATE, bytes as f64 / 1e6 / time.as_secs_f64());

    let beside = while_draining(&mut flooded, || round_trips(&mut other, &pace))?;
    readings.enter(OTHER_P50, percentile(&beside, 0.5) / 1e3);
    readings.enter(OTHER_P95, percentile(&beside, 0.95) / 1e3);
    readings.enter_order(&mut flooded);
    Ok(())
}

/// Runs `work` while another thread reads the flooded connection.
fn while_draining<T>(flooded: &mut Client, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let drain = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                flooded.next_event()?;
            }
            Ok(())
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        let drained =
            drain.join().unwrap_or_else(|_| Err(Failure::new("the draining thread panicked")));
        drained.and(result)
    })
}
