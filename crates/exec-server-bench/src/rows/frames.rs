//! Raw frames through one node, through a node of a cluster, and through two nodes.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use exec_server_relay::frame::{RelayBody, RelayData, RelayFrame};

use super::Group;
use crate::cluster::BenchCluster;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::process_tree::{self, Usage};
use crate::relay::{BenchRendezvous, Running};
use crate::relayed::path_of;
use crate::row::rows;
use crate::scene::{Readings, Scene, USUAL_TIME};
use crate::stats::{percentile, us};
use crate::swarm::{self, Line, Member, Pair, Peers};
use crate::transfer::Transfer;
use crate::websocket::{QuickAck, WebSocket};

rows! {
    ALONE_RATE = "frames.alone-rate": "frames of 60 KiB through one node with SQLite", Higher "MB/s";
    ALONE_CPU = "frames.alone-cpu": "… CPU of the node", Lower "s/GiB", AtMost(0.23, Unit);
    ALONE_P50 = "frames.alone-p50": "… one frame of 1 KiB, one way, p50", Lower "µs";
    HOME_RATE = "frames.home-rate": "frames of 60 KiB inside one node of a cluster", Higher "MB/s";
    HOME_CPU = "frames.home-cpu": "… CPU of the node", Lower "s/GiB", AtMost(0.23, Unit);
    HOME_P50 = "frames.home-p50": "… one frame of 1 KiB, one way, p50", Lower "µs", AtMost(1.1, OurRow(ALONE_P50));
    TRUNK_RATE = "frames.trunk-rate": "frames of 60 KiB of one stream through two nodes and two NATS servers",
        Higher "MB/s", AtLeast(250.0, Unit);
    TRUNK_CPU = "frames.trunk-cpu": "… CPU of both nodes", Lower "s/GiB";
    TRUNK_NATS = "frames.trunk-nats": "… CPU of both NATS servers", Lower "s/GiB";
    TRUNK_P50 = "frames.trunk-p50": "… one frame of 1 KiB, one way, p50", Lower "µs";
    TRUNK_ADDED = "frames.trunk-added": "… added by the trunk", Lower "µs", AtMost(500.0, Unit);
    TRUNK_LARGE = "frames.trunk-large": "… one frame of 60 KiB, one way, p50", Lower "µs";
    MANY_RATE = "frames.many-rate": "four streams at once through two nodes", Higher "MB/s";
}

/// Streams with the two ends at one node and at two nodes.
pub const GROUP: Group = Group { name: "frames", most_rounds: 3, rows: ROWS, measure };

/// A frame as peers send it when they have much to send, and a small one.
const LARGE: usize = 61_440;
const SMALL: usize = 1024;

/// Streams that share the lanes of a trunk.
const STREAMS: usize = 4;

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no rendezvous.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    measure_alone(scene, readings)?;
    measure_cluster(scene, readings)
}

fn measure_alone(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let relay = BenchRendezvous::start(scene, &scene.scratch.fresh("frames")?, None)?;
    let member = Member {
        environment: "env-1".to_owned(),
        executor: relay.token("executor", "env-1")?,
        harness: relay.token("harness", "env-1")?,
    };
    let mut pair = open_one(relay.address, &member)?;
    let flow = flood(scene, std::slice::from_mut(&mut pair), &[&relay.rendezvous])?;
    readings.enter(ALONE_RATE, flow.megabytes_per_second());
    readings.enter(ALONE_CPU, flow.cpu_per_gib());
    readings.enter(ALONE_P50, one_way(scene, &mut pair, SMALL)?);
    Ok(())
}

fn measure_cluster(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let cluster = BenchCluster::start(scene)?;
    let (a, b) = (cluster.node("a")?, cluster.node("b")?);
    cluster.wait_for_nodes(&a, 2)?;
    let members = cluster.members(1 + STREAMS);
    let mut pair = open_one(b.address, &members[0])?;
    let flow = flood(scene, std::slice::from_mut(&mut pair), &[&b.process])?;
    readings.enter(HOME_RATE, flow.megabytes_per_second());
    readings.enter(HOME_CPU, flow.cpu_per_gib());
    let home = one_way(scene, &mut pair, SMALL)?;
    readings.enter(HOME_P50, home);

    move_harness(&mut pair, a.address)?;
    let nats: Vec<u32> = cluster.nats.iter().filter_map(|server| server.pid()).collect();
    let before = process_tree::usage(&nats)?;
    let flow = flood(scene, std::slice::from_mut(&mut pair), &[&a.process, &b.process])?;
    let nats_cpu = process_tree::usage(&nats)?.cpu_since(&before);
    readings.enter(TRUNK_RATE, flow.megabytes_per_second());
    readings.enter(TRUNK_CPU, flow.cpu_per_gib());
    readings.enter(TRUNK_NATS, Transfer { cpu: nats_cpu, ..flow }.cpu_per_gib());
    let trunk = one_way(scene, &mut pair, SMALL)?;
    readings.enter(TRUNK_P50, trunk);
    readings.enter(TRUNK_ADDED, trunk - home);
    readings.enter(TRUNK_LARGE, one_way(scene, &mut pair, LARGE)?);

    let mut pairs = swarm::open(b.address, &members[1..], Peers::Executors)?;
    pairs.iter_mut().try_for_each(|pair| move_harness(pair, a.address))?;
    let flow = flood(scene, &mut pairs, &[&a.process, &b.process])?;
    readings.enter(MANY_RATE, flow.megabytes_per_second());
    Ok(())
}

fn open_one(address: SocketAddr, member: &Member) -> Result<Pair> {
    let mut pairs = swarm::open(address, std::slice::from_ref(member), Peers::Both)?;
    pairs.pop().ok_or_else(|| Failure::new("no pair was opened"))
}

/// Opens a stream for the harness of a pair at this node, wherever the executor is.
fn move_harness(pair: &mut Pair, node: SocketAddr) -> Result<()> {
    pair.harness = None;
    let url = Line::open(node)?.ask_for_url(pair)?;
    let deadline = Instant::now() + USUAL_TIME;
    let harness = WebSocket::connect_at(node, path_of(&url)?, QuickAck::No, deadline)?;
    (pair.harness, pair.stream) = (Some(harness), "t");
    let first = RelayFrame::new(pair.stream, RelayBody::Resume { next_seq: 0 }).encode();
    let (executor, harness) = ends(pair)?;
    executor.set_deadline(deadline);
    harness.queue_binary(&first);
    harness.flush()?;
    // The end of the stream before may be told first.
    while !is_resume(executor)? {}
    Ok(())
}

fn is_resume(executor: &mut WebSocket) -> Result<bool> {
    let place = executor.next_message()?;
    let frame = RelayFrame::decode(bytes::Bytes::copy_from_slice(executor.bytes(&place)));
    Ok(frame.is_ok_and(|frame| matches!(frame.body, RelayBody::Resume { .. })))
}

/// Executor and harness of a pair.
fn ends(pair: &mut Pair) -> Result<(&mut WebSocket, &mut WebSocket)> {
    match (&mut pair.executor, &mut pair.harness) {
        (Some(executor), Some(harness)) => Ok((executor, harness)),
        _ => Err(Failure::new("a websocket is missing")),
    }
}

fn data(stream: &str, bytes: usize) -> Vec<u8> {
    let payload = vec![7; bytes].into();
    let data = RelayData { seq: 0, segment_index: 0, segment_count: 1, payload };
    RelayFrame::new(stream, RelayBody::Data(data)).encode()
}

/// Sends from all executors at once; the CPU time is that of the nodes.
fn flood(scene: &Scene<'_>, pairs: &mut [Pair], nodes: &[&Running<'_>]) -> Result<Transfer> {
    let total = scene.effort.pick(2048_usize << 20, 256 << 20);
    let each = total / LARGE / pairs.len();
    let usage = || nodes.iter().map(|node| node.usage()).collect::<Result<Vec<Usage>>>();
    let stream = pairs.iter().map(|pair| pair.stream).collect::<Vec<_>>();
    let deadline = Instant::now() + 2 * USUAL_TIME;
    let (before, begun) = (usage()?, Instant::now());
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (pair, stream) in pairs.iter_mut().zip(stream) {
            let (executor, harness) = ends(pair)?;
            executor.set_deadline(deadline);
            harness.set_deadline(deadline);
            let frame = data(stream, LARGE);
            threads.push(scope.spawn(move || {
                executor.queue_binary(&frame);
                executor.flush_times(each)
            }));
            threads.push(scope.spawn(move || {
                for _ in 0..each {
                    let place = harness.next_message()?;
                    if harness.bytes(&place).len() < LARGE {
                        return Err(Failure::new("a frame is too short"));
                    }
                }
                Ok(())
            }));
        }
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let time = begun.elapsed();
    let cpu = usage()?.iter().zip(&before).map(|(now, then)| now.cpu_since(then)).sum();
    Ok(Transfer { bytes: (each * LARGE * pairs.len()) as u64, time, cpu })
}

/// Time from one peer to the other in µs, in both directions, p50.
fn one_way(scene: &Scene<'_>, pair: &mut Pair, bytes: usize) -> Result<f64> {
    let frame = data(pair.stream, bytes);
    let (executor, harness) = ends(pair)?;
    let mut times = Vec::new();
    let pass = |from: &mut WebSocket, to: &mut WebSocket, times: &mut Vec<f64>| {
        from.queue_binary(&frame);
        let begun = Instant::now();
        from.flush()?;
        to.next_message()?;
        times.push(us(begun.elapsed()));
        Ok(())
    };
    scene.effort.pace(5000, Duration::from_secs(4)).run(|| {
        pass(harness, executor, &mut times)?;
        pass(executor, harness, &mut times)
    })?;
    Ok(percentile(&times, 0.5))
}
