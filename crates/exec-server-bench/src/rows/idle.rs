//! Cost of idle objects: processes, connections, and retained output of closed processes.

use std::thread;
use std::time::Duration;

use super::Group;
use crate::client::{Client, Event, Launch};
use crate::contestant::Server;
use crate::failure::Result;
use crate::ledger::Content;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::kib;

rows! {
    PROCESS = "idle.process": "500 idle processes: memory each", Lower "KiB", AtMost(16.0, Unit);
    THREADS = "idle.threads": "… server threads", Lower "threads";
    // A pool may grow a little, but not with the number of processes.
    NEW_THREADS = "idle.new-threads": "… server threads more than before", Lower "threads",
        AtMost(16.0, Unit);
    CONNECTION = "idle.connection": "500 idle connections: memory each", Lower "KiB";
    RETAINED = "idle.retained": "memory kept per closed process that wrote 2 MiB", Lower "KiB",
        AtMost(1.1 * 1024.0, Unit);
}

/// Requests in flight; some servers deadlock with more.
const IN_FLIGHT: usize = 64;

/// Time for the server to finish its work after the last event.
const SETTLE: Duration = Duration::from_millis(300);

/// Mostly memory.
pub const GROUP: Group = Group { name: "idle", most_rounds: 3, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Each figure needs a server with a fresh allocator.
    measure_retained(scene, scene.server, readings)?;
    measure_processes(scene, &scene.contestant.start(scene.warden)?, readings)?;
    measure_connections(scene, &scene.contestant.start(scene.warden)?, readings)
}

fn measure_retained(scene: &Scene<'_>, server: &Server<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect_to(server)?;
    // The first processes also fill buffers that are reused.
    for _ in 0..3 {
        write_two_mib(&mut client)?;
    }
    thread::sleep(SETTLE);
    let before = server.usage()?;
    for _ in 0..20 {
        write_two_mib(&mut client)?;
    }
    thread::sleep(SETTLE);
    let growth = server.usage()?.rss as f64 - before.rss as f64;
    readings.enter(RETAINED, kib(growth) / 20.0);
    readings.enter_order(&mut client);
    Ok(())
}

fn write_two_mib(client: &mut Client) -> Result<()> {
    let launch = Launch {
        content: Content::Zeros,
        ..Launch::new(&["/usr/bin/head", "-c", "2097152", "/dev/zero"])
    };
    let process = client.start(launch)?.process;
    client.wait_finished(process)?;
    client.ledger().settle(process, 0, 2 << 20)?;
    Ok(())
}

fn measure_processes(
    scene: &Scene<'_>,
    server: &Server<'_>,
    readings: &mut Readings,
) -> Result<()> {
    let mut client = scene.connect_to(server)?;
    start_sleepers(&mut client, 8)?;
    thread::sleep(SETTLE);
    let before = server.usage()?;
    let count = scene.effort.pick(500, 200);
    start_sleepers(&mut client, count)?;
    thread::sleep(SETTLE);
    let after = server.usage()?;
    let growth = after.rss as f64 - before.rss as f64;
    readings.enter(PROCESS, kib(growth) / count as f64);
    readings.enter(THREADS, after.threads as f64);
    readings.enter(NEW_THREADS, after.threads as f64 - before.threads as f64);
    Ok(())
}

fn start_sleepers(client: &mut Client, count: usize) -> Result<()> {
    let (mut asked, mut answered) = (0, 0);
    while answered < count {
        while asked < count && asked - answered < IN_FLIGHT {
            client.queue_start(Launch::new(&["/usr/bin/sleep", "1000"]));
            asked += 1;
        }
        client.flush()?;
        answered += usize::from(matches!(client.next_event()?, Event::Reply(_)));
    }
    Ok(())
}

fn measure_connections(
    scene: &Scene<'_>,
    server: &Server<'_>,
    readings: &mut Readings,
) -> Result<()> {
    let mut clients = vec![scene.connect_to(server)?];
    thread::sleep(SETTLE);
    let before = server.usage()?;
    let count = scene.effort.pick(500, 200);
    for _ in 0..count {
        clients.push(scene.connect_to(server)?);
    }
    thread::sleep(SETTLE);
    let growth = server.usage()?.rss as f64 - before.rss as f64;
    readings.enter(CONNECTION, kib(growth) / f64::from(count));
    Ok(())
}
