//! Requests without work: latency, CPU time and throughput.

use std::time::{Duration, Instant};

use super::{EVERY_ROUND, Group};
use crate::client::{Client, Event};
use crate::failure::Result;
use crate::one_core::OneCore;
use crate::row::rows;
use crate::scene::{Pace, Readings, Scene};
use crate::stats::{percentile, us};

rows! {
    P50 = "rpc.p50": "environment/status round trip, p50", Lower "µs";
    P95 = "rpc.p95": "… p95", Lower "µs";
    CPU = "rpc.cpu": "… server CPU each", Lower "µs";
    CORE_P50 = "rpc.core-p50": "… client and server on one core, p50", Lower "µs", AtMost(0.9, Peer);
    CORE_CPU = "rpc.core-cpu": "… and server CPU each", Lower "µs", AtMost(0.6, Peer);
    BATCHED = "rpc.batched": "… 64 sent at once, then all 64 answers awaited", Higher "req/s",
        AtLeast(20.0, NaglingPeer);
    STREAMED = "rpc.streamed": "… 64 in flight, each answer followed by a new request", Higher "req/s";
}

const IN_FLIGHT: usize = 64;

/// `environment/status`, one by one and pipelined.
pub const GROUP: Group = Group { name: "rpc", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    for _ in 0..100 {
        client.status()?;
    }
    let (times, cpu) = paced_trips(scene, |pace| round_trips(&mut client, pace))?;
    readings.enter(P50, percentile(&times, 0.5));
    readings.enter(P95, percentile(&times, 0.95));
    readings.enter(CPU, cpu);

    let time = scene.effort.pick(Duration::from_millis(1500), Duration::from_millis(750));
    readings.enter(BATCHED, answer_rate(&mut client, time, Refill::WhenEmpty)?);
    readings.enter(STREAMED, answer_rate(&mut client, time, Refill::AtOnce)?);

    let _one_core = OneCore::share_with(scene.server)?;
    let (times, cpu) = paced_trips(scene, |pace| round_trips(&mut client, pace))?;
    readings.enter(CORE_P50, percentile(&times, 0.5));
    readings.enter(CORE_CPU, cpu);
    Ok(())
}

/// Durations and server CPU time per request in microseconds.
pub fn paced_trips(
    scene: &Scene<'_>,
    trips: impl FnOnce(&Pace) -> Result<Vec<f64>>,
) -> Result<(Vec<f64>, f64)> {
    let before = scene.server.usage()?;
    let times = trips(&scene.effort.pace(20_000, Duration::from_millis(1500)))?;
    let cpu = us(scene.server.usage()?.cpu_since(&before)) / times.len() as f64;
    Ok((times, cpu))
}

/// When new requests replace answered ones.
///
/// New requests carry acknowledgements, so only a client that waits for a whole batch is delayed by a server's Nagle
/// algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refill {
    WhenEmpty,
    AtOnce,
}

/// Durations of consecutive round trips in microseconds.
pub fn round_trips(client: &mut Client, pace: &Pace) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    pace.run(|| {
        let begun = Instant::now();
        client.status()?;
        times.push(us(begun.elapsed()));
        Ok(())
    })?;
    Ok(times)
}

/// Keeps requests in flight for some time and returns the number of replies per second.
fn answer_rate(client: &mut Client, time: Duration, refill: Refill) -> Result<f64> {
    let begun = Instant::now();
    let (mut answered, mut waiting) = (0_u64, 0);
    while begun.elapsed() < time || waiting > 0 {
        let wanted = waiting == 0 || refill == Refill::AtOnce;
        if wanted && begun.elapsed() < time {
            for _ in waiting..IN_FLIGHT {
                client.queue("environment/status", "{}");
            }
            client.flush()?;
            waiting = IN_FLIGHT;
        }
        // Waits for one reply, then handles all buffered ones, as a client with a read buffer does.
        let mut event = Some(client.next_event()?);
        while let Some(seen) = event {
            if matches!(seen, Event::Reply(_)) {
                waiting -= 1;
                answered += 1;
            }
            event = client.ready_event()?;
        }
    }
    Ok(answered as f64 / begun.elapsed().as_secs_f64())
}
