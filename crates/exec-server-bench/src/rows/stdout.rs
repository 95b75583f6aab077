//! Throughput of output: one process, and four at a time on one connection.

use std::time::Instant;

use super::{EVERY_ROUND, Group};
use crate::client::{Kept, Launch};
use crate::failure::Result;
use crate::ledger::Content;
use crate::process_tree::Usage;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::percentile;
use crate::transfer::Transfer;

rows! {
    ONE = "stdout.one": "512 MiB of output, one process", Higher "MB/s", AtLeast(2.7, Peer);
    ONE_CPU = "stdout.cpu": "… server CPU", Lower "s/GiB", AtMost(0.3, Peer);
    CHUNK = "stdout.chunk": "… mean chunk", Neither "bytes";
    SPOOL = "stdout.spool": "512 MiB of output, one process with a spool", Higher "MB/s",
        AtLeast(0.95, OurRow(ONE));
    SPOOL_CPU = "stdout.spool-cpu": "… server CPU", Lower "s/GiB";
    FOUR = "stdout.four": "512 MiB of output, four processes on one connection", Higher "MB/s",
        AtLeast(3.0, Peer);
    FOUR_CPU = "stdout.four-cpu": "… server CPU", Lower "s/GiB";
}

/// One process without a spool and one with it alternate, because the bar between them is narrower than the noise.
const PAIRS: u64 = 3;

/// `head -c` of zeros.
pub const GROUP: Group = Group { name: "stdout", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let total = scene.effort.pick(512_u64 << 20, 128 << 20);
    let (mut plain, mut spooled) = (Vec::new(), Vec::new());
    for _ in 0..scene.effort.pick(PAIRS, 1) {
        let (one, chunks) = run(scene, readings, 1, total, Kept::InMemory)?;
        readings.enter(CHUNK, one.bytes as f64 / chunks as f64);
        plain.push(one);
        spooled.push(run(scene, readings, 1, total, Kept::InSpool)?.0);
    }
    for (transfers, speed, cpu) in [(plain, ONE, ONE_CPU), (spooled, SPOOL, SPOOL_CPU)] {
        let median = |of: fn(&Transfer) -> f64| {
            let values: Vec<f64> = transfers.iter().map(of).collect();
            percentile(&values, 0.5)
        };
        readings.enter(speed, median(Transfer::megabytes_per_second));
        readings.enter(cpu, median(Transfer::cpu_per_gib));
    }
    let (four, _) = run(scene, readings, 4, total, Kept::InMemory)?;
    readings.enter(FOUR, four.megabytes_per_second());
    readings.enter(FOUR_CPU, four.cpu_per_gib());
    Ok(())
}

/// Runs the processes; returns the received bytes and chunks.
fn run(
    scene: &Scene<'_>,
    readings: &mut Readings,
    processes: u64,
    total: u64,
    kept: Kept,
) -> Result<(Transfer, u64)> {
    let mut client = scene.connect()?;
    let share = total / processes;
    let count = share.to_string();
    let argv = ["/usr/bin/head", "-c", &count, "/dev/zero"];
    let launch = Launch { content: Content::Zeros, kept, ..Launch::new(&argv) };
    let before: Usage = scene.server.usage()?;
    let begun = Instant::now();
    let started: Vec<u64> = (0..processes).map(|_| client.queue_start(launch).process).collect();
    client.flush()?;
    while client.ledger().unfinished() > 0 {
        client.next_event()?;
    }
    let time = begun.elapsed();
    let cpu = scene.server.usage()?.cpu_since(&before);
    let mut chunks = 0;
    for process in started {
        chunks += client.ledger().settle(process, 0, share)?.chunks;
    }
    readings.enter_order(&mut client);
    Ok((Transfer { bytes: total, time, cpu }, chunks))
}
