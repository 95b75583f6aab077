//! Ten thousand executors with a stream each: memory of one node, and the time until all are back after a crash.

use std::thread;
use std::time::{Duration, Instant};

use super::Group;
use crate::cluster::BenchCluster;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::relay::BenchRendezvous;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::mib;
use crate::swarm::{self, Member, Peers};

rows! {
    MEMORY = "crowd.memory": "one node with 10,000 executors and 10,000 streams, RSS", Lower "MiB",
        AtMost(400.0, Unit);
    BACK = "crowd.back": "… all back after `kill -9` and restart", Lower "s", AtMost(6.0, Unit);
    NODE_MEMORY = "crowd.node-memory": "two nodes with 10,000 executors and 10,000 streams each, RSS of the larger",
        Lower "MiB", AtMost(1024.0, Unit);
    NODE_BACK = "crowd.node-back": "… all of the first on the second after `kill -9` of the first", Lower "s";
    NODE_BACK_SHARE = "crowd.node-back-share": "… ÷ (474 µs per pair ÷ cores + 1 s)", Lower "×", AtMost(1.0, Unit);
    NODE_BACK_MEMORY = "crowd.node-back-memory": "… RSS of the second, with 20,000 executors and streams", Lower "MiB",
        AtMost(1024.0, Unit);
}

/// Crowds on one node, and on two nodes of which one is killed.
pub const GROUP: Group = Group { name: "crowd", most_rounds: 1, rows: ROWS, measure };

/// Two sockets per pair, and room for the rest.
const DESCRIPTORS: usize = 2 * 20_000 + 1000;

/// Threads that create tokens, which are synced to disk together.
const THREADS: usize = 32;

/// CPU time that brings one executor and one stream back.
const PAIR_TIME: Duration = Duration::from_micros(474);

/// Until the executors have noticed the end of their node.
const NOTICE_TIME: Duration = Duration::from_secs(1);

/// After the last socket was opened.
const REST: Duration = Duration::from_secs(1);

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no rendezvous.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let count = scene.effort.pick(10_000, 500);
    if limit.is_some_and(|limit| limit < scene.effort.pick(DESCRIPTORS as u64, 0)) {
        let why = format!("{DESCRIPTORS} open files are needed: raise the hard limit (ulimit -Hn)");
        return Err(Failure::new(why));
    }
    measure_alone(scene, readings, count)?;
    measure_two(scene, readings, count)
}

fn measure_alone(scene: &Scene<'_>, readings: &mut Readings, count: usize) -> Result<()> {
    let mut relay = BenchRendezvous::start(scene, &scene.scratch.fresh("crowd")?, None)?;
    let members = members(&relay, count)?;
    let mut pairs = swarm::open(relay.address, &members, Peers::Both)?;
    thread::sleep(REST);
    readings.enter(MEMORY, mib(relay.rendezvous.usage()?.rss as f64));
    let begun = Instant::now();
    relay.crash_and_restart(None)?;
    swarm::come_back(relay.address, &mut pairs)?;
    readings.enter(BACK, begun.elapsed().as_secs_f64());
    Ok(())
}

fn measure_two(scene: &Scene<'_>, readings: &mut Readings, count: usize) -> Result<()> {
    let cluster = BenchCluster::start(scene)?;
    let (mut a, b) = (cluster.node("a")?, cluster.node("b")?);
    cluster.wait_for_nodes(&a, 2)?;
    let members = cluster.members(2 * count);
    let (at_a, at_b) = members.split_at(count);
    let mut lost = swarm::open(a.address, at_a, Peers::Both)?;
    let _kept = swarm::open(b.address, at_b, Peers::Both)?;
    thread::sleep(REST);
    let memory = a.process.usage()?.rss.max(b.process.usage()?.rss);
    readings.enter(NODE_MEMORY, mib(memory as f64));
    a.process.kill();
    let begun = Instant::now();
    swarm::come_back(b.address, &mut lost)?;
    let time = begun.elapsed().as_secs_f64();
    let cores = thread::available_parallelism()?.get() as f64;
    let allowed = PAIR_TIME.as_secs_f64() * count as f64 / cores + NOTICE_TIME.as_secs_f64();
    readings.enter(NODE_BACK, time);
    readings.enter(NODE_BACK_SHARE, time / allowed);
    readings.enter(NODE_BACK_MEMORY, mib(b.process.usage()?.rss as f64));
    Ok(())
}

fn members(relay: &BenchRendezvous<'_>, count: usize) -> Result<Vec<Member>> {
    let numbers: Vec<usize> = (0..count).collect();
    thread::scope(|scope| {
        let make = |number: &usize| {
            let environment = format!("env-{number}");
            let executor = relay.token("executor", &environment)?;
            let harness = relay.token("harness", &environment)?;
            Ok(Member { environment, executor, harness })
        };
        let slices = numbers.chunks(count.div_ceil(THREADS).max(1));
        let threads: Vec<_> = slices
            .map(|part| scope.spawn(move || part.iter().map(make).collect::<Result<Vec<_>>>()))
            .collect();
        let made = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        Ok(made.collect::<Result<Vec<_>>>()?.concat())
    })
}
