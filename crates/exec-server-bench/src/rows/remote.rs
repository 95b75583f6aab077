//! The same work through a rendezvous and directly, and the capacity of a rendezvous.

use std::thread;
use std::time::{Duration, Instant};

use exec_server_relay::frame::{RelayBody, RelayData, RelayFrame};
use exec_server_relay::registry_types::PublicKey;

use super::Group;
use super::oneshot::run_once;
use crate::client::{Client, Launch};
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::fault_proxy::FaultProxy;
use crate::ledger::Content;
use crate::relay::{BenchRendezvous, Harness};
use crate::relayed::path_of;
use crate::row::rows;
use crate::scene::{Readings, Scene, USUAL_TIME};
use crate::stats::{mib, ms, percentile};
use crate::transfer::Transfer;
use crate::websocket::WebSocket;

rows! {
    STRAIGHT = "remote.oneshot-direct": "one-shot `true`, straight, p50", Lower "ms";
    ONESHOT = "remote.oneshot": "… through a rendezvous, p50", Lower "ms", AtMost(2.0, OurRow(STRAIGHT));
    ADDED = "remote.added": "… added by that", Lower "ms", AtMost(1.0, Unit);
    OUTPUT_STRAIGHT = "remote.output-direct": "512 MiB of output, straight", Higher "MB/s";
    OUTPUT = "remote.output": "… through a rendezvous", Higher "MB/s";
    OUTPUT_SHARE = "remote.output-share": "… of 400 MB/s or 60 % of straight, whichever is less", Higher "×",
        AtLeast(1.0, Unit);
    EXECUTOR_CPU = "remote.executor-cpu": "… CPU of the executor", Lower "s/GiB";
    RELAY_CPU = "remote.relay-cpu": "… CPU of the rendezvous", Lower "s/GiB";
    OPEN = "remote.open": "a stream: connect, websocket, handshake, p50", Lower "ms";
    HANDSHAKES = "remote.handshakes": "… four harnesses at once", Higher "/s";
    CUT = "remote.cut": "session resumed after all sockets were cut, p50", Lower "ms", AtMost(100.0, Unit);
    CRASH = "remote.crash": "… after `kill -9` and restart of the rendezvous", Lower "ms";
    CRASH_KEPT = "remote.crash-kept": "… with the session and its process", Higher YesNo, AtLeast(1.0, Unit);
    CROWD = "remote.crowd": "rendezvous with 1,000 executors and 1,000 streams, RSS", Lower "MiB",
        AtMost(256.0, Unit);
}

/// Required output rate through a relay in MB/s, whichever is less.
const RATE_WANTED: f64 = 400.0;
const SHARE_WANTED: f64 = 0.6;

/// Concurrent harnesses.
const AT_ONCE: usize = 4;

/// An executor treats a relay socket as working after one second.
const GOOD_SOCKET: Duration = Duration::from_millis(1200);

/// A rendezvous, an executor and a harness on loopback.
pub const GROUP: Group = Group { name: "remote", most_rounds: 3, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no rendezvous.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    measure_work(scene, readings)?;
    measure_recovery(scene, readings)?;
    measure_crowd(scene, readings)
}

fn measure_work(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let relay = BenchRendezvous::start(scene, &scene.scratch.fresh("meeting")?, None)?;
    let executor = relay.executor("env", relay.address)?;
    let harness = relay.harness("env", scene.quickack)?;
    measure_oneshots(scene, readings, &harness)?;
    let (before, relay_before) = (executor.usage()?, relay.rendezvous.usage()?);
    let bytes = measure_output(scene, readings, &harness)?;
    let gib = bytes as f64 / f64::from(1 << 30);
    let cpu = |duration: Duration| duration.as_secs_f64() / gib;
    readings.enter(EXECUTOR_CPU, cpu(executor.usage()?.cpu_since(&before)));
    readings.enter(RELAY_CPU, cpu(relay.rendezvous.usage()?.cpu_since(&relay_before)));
    measure_streams(scene, readings, &harness)
}

fn measure_recovery(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let proxy = FaultProxy::start()?;
    let data = scene.scratch.fresh("cut-meeting")?;
    let mut relay = BenchRendezvous::start(scene, &data, Some(proxy.address))?;
    proxy.set_target(relay.address);
    let _executor = relay.executor("env", proxy.address)?;
    let harness = relay.harness("env", scene.quickack)?;
    measure_cuts(scene, readings, &harness, &proxy)?;
    measure_crash(readings, &harness, &mut relay, &proxy)
}

/// Alternates between direct and relayed processes.
fn measure_oneshots(scene: &Scene<'_>, readings: &mut Readings, harness: &Harness) -> Result<()> {
    let (mut straight, mut relayed) = (scene.connect()?, harness.connect()?);
    let launch = Launch::new(&["/usr/bin/true"]);
    for _ in 0..10 {
        run_once(&mut straight, launch)?;
        run_once(&mut relayed, launch)?;
    }
    let (mut times, mut relayed_times) = (Vec::new(), Vec::new());
    scene.effort.pace(500, Duration::from_secs(5)).run(|| {
        times.push(ms(run_once(&mut straight, launch)?.1));
        relayed_times.push(ms(run_once(&mut relayed, launch)?.1));
        Ok(())
    })?;
    let (direct, through) = (percentile(&times, 0.5), percentile(&relayed_times, 0.5));
    readings.enter(STRAIGHT, direct);
    readings.enter(ONESHOT, through);
    readings.enter(ADDED, through - direct);
    readings.enter_order(&mut relayed);
    Ok(())
}

/// Returns the number of bytes through the rendezvous.
fn measure_output(scene: &Scene<'_>, readings: &mut Readings, harness: &Harness) -> Result<u64> {
    let total = scene.effort.pick(512_u64 << 20, 128 << 20);
    let pieces = 4;
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..pieces {
        direct.push(output(&mut scene.connect()?, total / pieces)?.megabytes_per_second());
        through.push(output(&mut harness.connect()?, total / pieces)?.megabytes_per_second());
    }
    let (direct, through) = (percentile(&direct, 0.5), percentile(&through, 0.5));
    readings.enter(OUTPUT_STRAIGHT, direct);
    readings.enter(OUTPUT, through);
    readings.enter(OUTPUT_SHARE, through / RATE_WANTED.min(SHARE_WANTED * direct));
    Ok(total)
}

fn output(client: &mut Client, bytes: u64) -> Result<Transfer> {
    let count = bytes.to_string();
    let argv = ["/usr/bin/head", "-c", &count, "/dev/zero"];
    let launch = Launch { content: Content::Zeros, ..Launch::new(&argv) };
    let begun = Instant::now();
    let started = client.queue_start(launch);
    client.flush()?;
    client.wait_finished(started.process)?;
    let time = begun.elapsed();
    client.ledger().settle(started.process, 0, bytes)?;
    Ok(Transfer { bytes, time, cpu: Duration::ZERO })
}

fn measure_streams(scene: &Scene<'_>, readings: &mut Readings, harness: &Harness) -> Result<()> {
    let mut times = Vec::new();
    scene.effort.pace(300, Duration::from_secs(3)).run(|| {
        let begun = Instant::now();
        harness.open()?;
        times.push(ms(begun.elapsed()));
        Ok(())
    })?;
    readings.enter(OPEN, percentile(&times, 0.5));
    let each = scene.effort.pick(200, 50);
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| (0..each).try_for_each(|_| harness.open().map(drop))))
            .collect();
        threads.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })?;
    readings.enter(HANDSHAKES, (AT_ONCE * each) as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

fn measure_cuts(
    scene: &Scene<'_>,
    readings: &mut Readings,
    harness: &Harness,
    proxy: &FaultProxy,
) -> Result<()> {
    let mut client = harness.connect()?;
    let mut times = Vec::new();
    for _ in 0..scene.effort.pick(10, 3) {
        thread::sleep(GOOD_SOCKET);
        let begun = Instant::now();
        proxy.cut();
        client = resume(harness, client.session())?;
        times.push(ms(begun.elapsed()));
    }
    readings.enter(CUT, percentile(&times, 0.5));
    Ok(())
}

fn measure_crash(
    readings: &mut Readings,
    harness: &Harness,
    relay: &mut BenchRendezvous<'_>,
    proxy: &FaultProxy,
) -> Result<()> {
    let mut client = harness.connect()?;
    let process = client.start(Launch::new(&["/usr/bin/sleep", "600"]))?.process;
    relay.crash_and_restart(Some(proxy.address))?;
    let begun = Instant::now();
    let mut client = resume(harness, client.session())?;
    readings.enter(CRASH, ms(begun.elapsed()));
    let signal = format!(r#"{{"processId":"p{process}","signal":"interrupt"}}"#);
    readings.enter_whether(CRASH_KEPT, client.call("process/signal", &signal).is_ok());
    Ok(())
}

/// Retries until the executor has reconnected and has noticed the end of the old stream.
fn resume(harness: &Harness, session: &str) -> Result<Client> {
    let deadline = Instant::now() + USUAL_TIME;
    loop {
        match Client::resume(harness.open()?, session, USUAL_TIME) {
            Ok(client) => return Ok(client),
            Err(failure) if Instant::now() >= deadline => return Err(failure),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Peers without encryption, which a relay cannot detect.
fn measure_crowd(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let relay = BenchRendezvous::start(scene, &scene.scratch.fresh("crowd")?, None)?;
    let deadline = || Instant::now() + USUAL_TIME;
    let key = PublicKey { x25519: [7; 32], mlkem768: Box::new([7; 1184]) };
    let frame = |stream: &str, body| RelayFrame::new(stream, body).encode();
    let record = || RelayData {
        seq: 0,
        segment_index: 0,
        segment_count: 1,
        payload: vec![7; 61_440].into(),
    };
    let mut sockets = Vec::new();
    for number in 0..scene.effort.pick(1000, 100) {
        let environment = format!("env-{number}");
        let token = relay.token("executor", &environment)?;
        let url = relay.register(&environment, &token, &key)?;
        let mut executor =
            WebSocket::connect_at(relay.address, path_of(&url)?, scene.quickack, deadline())?;
        let harness = relay.harness(&environment, scene.quickack)?;
        let response = harness.ask()?.ok_or_else(|| Failure::new("the executor is not there"))?;
        let mut socket = WebSocket::connect_at(
            relay.address,
            path_of(&response.url)?,
            scene.quickack,
            deadline(),
        )?;
        socket.queue_binary(&frame("s", RelayBody::Resume { next_seq: 0 }));
        socket.queue_binary(&frame("s", RelayBody::Data(record())));
        socket.flush()?;
        executor.next_message()?;
        executor.next_message()?;
        executor.queue_binary(&frame("s", RelayBody::Data(record())));
        executor.flush()?;
        socket.next_message()?;
        sockets.push((executor, socket));
    }
    readings.enter(CROWD, mib(relay.rendezvous.usage()?.rss as f64));
    Ok(())
}
