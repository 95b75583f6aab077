//! Peers of a rendezvous that stop reading: what they cost it, and what is left afterwards.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use exec_server_relay::frame::{RelayBody, RelayData, RelayFrame};
use exec_server_relay::registry_types::PublicKey;

use super::Group;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::relay::BenchRendezvous;
use crate::relayed::path_of;
use crate::row::rows;
use crate::scene::{Readings, Scene, USUAL_TIME};
use crate::stats::{mib, percentile, us};
use crate::websocket::WebSocket;

rows! {
    HARNESSES = "stuck.harnesses": "200 harnesses that stop reading: memory of the rendezvous each, its sockets included", Lower "MiB",
        AtMost(1.0, Unit);
    HARNESSES_LEFT = "stuck.harnesses-left": "… RSS above before, 8 s after they were closed", Lower "MiB",
        AtMost(32.0, Unit);
    HARNESSES_BESIDE = "stuck.harnesses-beside": "… round trip of 1 KiB of another stream beside them, p99 ÷ p99 before", Lower "×",
        AtMost(2.0, Unit);
    EXECUTORS = "stuck.executors": "200 executors that stop reading: memory each, sockets included", Lower "MiB",
        AtMost(1.0, Unit);
    EXECUTORS_LEFT = "stuck.executors-left": "… RSS above before, 8 s after they were closed", Lower "MiB",
        AtMost(32.0, Unit);
    EXECUTORS_BESIDE = "stuck.executors-beside": "… round trip of 1 KiB of another stream beside them, p99 ÷ p99 before", Lower "×",
        AtMost(2.0, Unit);
}

/// More than every buffer on the way takes.
const FLOOD: usize = 16 << 20;
const RECORD: usize = 61_440;

/// Below the stall timeout, after which the rendezvous closes the peers.
const FLOOD_TIME: Duration = Duration::from_secs(3);

/// Until the queues are full; from then on the peers are stuck.
const FILL_TIME: Duration = Duration::from_secs(1);

/// Payload of the stream beside.
const SMALL: usize = 1024;

/// Round trips of the stream beside that a 99th percentile needs at least.
const LEAST_TRIPS: usize = 500;

/// The stall timeout and the time that the memory may take to go back.
const AFTERWARDS: Duration = Duration::from_secs(5 + 8);

/// Two hundred streams, each with its own executor.
pub const GROUP: Group = Group { name: "stuck", most_rounds: 2, rows: ROWS, measure };

/// Which side sends; the other reads nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Executor,
    Harness,
}

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // The others have no rendezvous.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    let rows = [HARNESSES, HARNESSES_LEFT, HARNESSES_BESIDE];
    measure_side(scene, readings, Sender::Executor, rows)?;
    measure_side(scene, readings, Sender::Harness, [EXECUTORS, EXECUTORS_LEFT, EXECUTORS_BESIDE])
}

fn measure_side(
    scene: &Scene<'_>,
    readings: &mut Readings,
    sender: Sender,
    [each, left, beside]: [&'static str; 3],
) -> Result<()> {
    let rendezvous = BenchRendezvous::start(scene, &scene.scratch.fresh(each)?, None)?;
    let count = scene.effort.pick(200, 50);
    let mut pairs =
        (0..count).map(|number| open(scene, &rendezvous, number)).collect::<Result<Vec<_>>>()?;
    let mut neighbour = open(scene, &rendezvous, count)?;
    let before_trip = percentile(&round_trips(&mut neighbour, FLOOD_TIME - FILL_TIME)?, 0.99);
    let before = rendezvous.rendezvous.usage()?.rss;
    let frame = record(RECORD);
    let until = Instant::now() + FLOOD_TIME;
    let trips = thread::scope(|scope| {
        for (executor, harness) in &mut pairs {
            let socket = if sender == Sender::Executor { executor } else { harness };
            let frame = &frame;
            scope.spawn(move || flood(socket, frame, until));
        }
        thread::sleep(FILL_TIME);
        round_trips(&mut neighbour, FLOOD_TIME - FILL_TIME)
    })?;
    readings.enter(beside, percentile(&trips, 0.99) / before_trip);
    let growth = rendezvous.rendezvous.usage()?.rss.saturating_sub(before);
    let kernel = kernel_bytes(rendezvous.address)?;
    readings.enter(each, mib((growth + kernel) as f64) / f64::from(count));
    thread::sleep(AFTERWARDS);
    let after = rendezvous.rendezvous.usage()?.rss;
    readings.enter(left, mib(after.saturating_sub(before) as f64));
    drop(pairs);
    Ok(())
}

/// An executor and a harness with a stream between them.
fn open(
    scene: &Scene<'_>,
    rendezvous: &BenchRendezvous<'_>,
    number: i32,
) -> Result<(WebSocket, WebSocket)> {
    let deadline = Instant::now() + USUAL_TIME;
    let key = PublicKey { x25519: [7; 32], mlkem768: Box::new([7; 1184]) };
    let environment = format!("env-{number}");
    let token = rendezvous.token("executor", &environment)?;
    let url = rendezvous.register(&environment, &token, &key)?;
    let connect = |url: &str| {
        WebSocket::connect_at(rendezvous.address, path_of(url)?, scene.quickack, deadline)
    };
    let mut executor = connect(&url)?;
    let harness = rendezvous.harness(&environment, scene.quickack)?;
    let way = harness.ask()?.ok_or_else(|| Failure::new("the executor is not there"))?;
    let mut harness = connect(&way.url)?;
    harness.queue_binary(&RelayFrame::new("s", RelayBody::Resume { next_seq: 0 }).encode());
    harness.flush()?;
    executor.next_message()?;
    Ok((executor, harness))
}

/// Times of a frame there and one back, in µs.
fn round_trips(
    (executor, harness): &mut (WebSocket, WebSocket),
    time: Duration,
) -> Result<Vec<f64>> {
    let frame = record(SMALL);
    let begun = Instant::now();
    for socket in [&mut *executor, &mut *harness] {
        socket.set_deadline(begun + USUAL_TIME);
    }
    let mut times = Vec::new();
    while begun.elapsed() < time || times.len() < LEAST_TRIPS {
        let sent = Instant::now();
        pass(harness, executor, &frame)?;
        pass(executor, harness, &frame)?;
        times.push(us(sent.elapsed()));
    }
    Ok(times)
}

fn pass(from: &mut WebSocket, to: &mut WebSocket, frame: &[u8]) -> Result<()> {
    from.queue_binary(frame);
    from.flush()?;
    to.next_message()?;
    Ok(())
}

fn record(bytes: usize) -> Vec<u8> {
    let payload = vec![7; bytes].into();
    let data = RelayData { seq: 0, segment_index: 0, segment_count: 1, payload };
    RelayFrame::new("s", RelayBody::Data(data)).encode()
}

/// Sends until nothing is taken any more; that it ends with a timeout is what is measured.
fn flood(socket: &mut WebSocket, frame: &[u8], until: Instant) {
    socket.set_deadline(until);
    for _ in 0..FLOOD / RECORD {
        socket.queue_binary(frame);
        if socket.flush().is_err() {
            return;
        }
    }
}

/// Bytes in the send and receive queues of all sockets of the rendezvous.
fn kernel_bytes(address: SocketAddr) -> Result<u64> {
    let port = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let queues = table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let local = words.next()?;
        let (sent, received) = words.nth(2)?.split_once(':')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        // A listening socket has no bytes in its queues, but the number of waiting connections.
        let is_ours = local.ends_with(&port) && !line.contains(" 0A ");
        is_ours.then(|| Some(number(sent)? + number(received)?)).flatten()
    });
    Ok(queues.sum())
}
