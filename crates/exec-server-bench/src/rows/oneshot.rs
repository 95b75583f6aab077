//! The shortest process: start `true` and wait for its close.

use std::time::{Duration, Instant};

use super::{EVERY_ROUND, Group};
use crate::client::{Client, Event, Launch};
use crate::failure::Result;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::{ms, percentile, us};

rows! {
    // From the start of `true` to its close.
    pub P50 = "oneshot.p50": "one-shot `true`, start to closed, p50", Lower "ms",
        AtMost(1.0 / 20.0, NaglingPeer), AtMost(1.0 / 5.0, PeerRow(REPLY)), AtMost(1.3, Bare);
    P95 = "oneshot.p95": "… p95", Lower "ms";
    REPLY = "oneshot.reply": "… start to reply, p50", Lower "ms";
    CPU = "oneshot.cpu": "… server CPU each", Lower "µs";
    CHILDREN_CPU = "oneshot.children-cpu": "… CPU of its children each (helpers and `true` itself)", Lower "µs";
}

/// Consecutive processes.
pub const GROUP: Group = Group { name: "oneshot", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    for _ in 0..5 {
        run_once(&mut client, Launch::new(&["/usr/bin/true"]))?;
    }
    let (mut replies, mut ends) = (Vec::new(), Vec::new());
    let before = scene.server.usage()?;
    let count = scene.effort.pace(500, Duration::from_secs(3)).run(|| {
        let (reply, end) = run_once(&mut client, Launch::new(&["/usr/bin/true"]))?;
        replies.push(ms(reply));
        ends.push(ms(end));
        Ok(())
    })?;
    let after = scene.server.usage()?;

    readings.enter(P50, percentile(&ends, 0.5));
    readings.enter(P95, percentile(&ends, 0.95));
    readings.enter(REPLY, percentile(&replies, 0.5));
    readings.enter(CPU, us(after.cpu_since(&before)) / count as f64);
    let children = after.children_cpu.saturating_sub(before.children_cpu);
    readings.enter(CHILDREN_CPU, us(children) / count as f64);
    readings.enter_order(&mut client);
    Ok(())
}

/// Runs one process; returns the times of the start reply and of the close.
pub fn run_once(client: &mut Client, launch: Launch<'_>) -> Result<(Duration, Duration)> {
    let begun = Instant::now();
    let started = client.queue_start(launch);
    client.flush()?;
    let (mut reply, mut end) = (None, None);
    while reply.is_none() || end.is_none() {
        if client.next_event()? == Event::Reply(started.request) {
            reply = Some(begun.elapsed());
        }
        if end.is_none() && client.ledger().is_finished(started.process) {
            end = Some(begun.elapsed());
        }
    }
    client.ledger().settle(started.process, 0, 0)?;
    Ok((reply.unwrap_or_default(), end.unwrap_or_default()))
}
