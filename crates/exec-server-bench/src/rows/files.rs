//! Whole files in one request: small ones measure the cost per request, large ones the cost per byte.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::IgnoredAny;

use super::rpc::paced_trips;
use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::one_core::OneCore;
use crate::row::rows;
use crate::scene::{Pace, Readings, Scene};
use crate::scratch::{pattern, uri};
use crate::stats::{percentile, us};
use crate::transfer::Transfer;
use crate::wire;

rows! {
    pub READ_P50 = "files.read-p50": "fs/readFile of 4 KiB, p50", Lower "µs";
    READ_P95 = "files.read-p95": "… p95", Lower "µs";
    READ_CPU = "files.read-cpu": "… server CPU each", Lower "µs";
    CORE_P50 = "files.core-p50": "… client and server on one core, p50", Lower "µs", AtMost(1.0, Peer);
    CORE_CPU = "files.core-cpu": "… and server CPU each", Lower "µs", AtMost(0.7, Peer);
    pub WRITE_P50 = "files.write-p50": "fs/writeFile of 4 KiB over a file, p50", Lower "µs",
        AtMost(1.5, Peer);
    WRITE_P95 = "files.write-p95": "… p95", Lower "µs";
    WRITE_CPU = "files.write-cpu": "… server CPU each", Lower "µs";
    BIG_READ = "files.big-read": "fs/readFile of 8 MiB", Higher "MB/s", AtLeast(3.2, Peer);
    BIG_READ_CPU = "files.big-read-cpu": "… server CPU", Lower "s/GiB";
    BIG_WRITE = "files.big-write": "fs/writeFile of 8 MiB over a file", Higher "MB/s", AtLeast(1.7, Peer);
    BIG_WRITE_CPU = "files.big-write-cpu": "… server CPU", Lower "s/GiB";
}

const SMALL: usize = 4 << 10;
const BIG: usize = 8 << 20;

/// `fs/readFile` and `fs/writeFile`.
pub const GROUP: Group = Group { name: "files", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    let small = KnownFile::with_its_bytes(scene, "small", SMALL)?;
    read_trips(&mut client, &small, &scene.effort.pace(100, Duration::MAX))?;
    let (times, cpu) = paced_trips(scene, |pace| read_trips(&mut client, &small, pace))?;
    readings.enter(READ_P50, percentile(&times, 0.5));
    readings.enter(READ_P95, percentile(&times, 0.95));
    readings.enter(READ_CPU, cpu);

    measure_small_writes(scene, &mut client, readings)?;
    measure_big_files(scene, &mut client, readings)?;

    let _one_core = OneCore::share_with(scene.server)?;
    let (times, cpu) = paced_trips(scene, |pace| read_trips(&mut client, &small, pace))?;
    readings.enter(CORE_P50, percentile(&times, 0.5));
    readings.enter(CORE_CPU, cpu);
    Ok(())
}

fn measure_small_writes(
    scene: &Scene<'_>,
    client: &mut Client,
    readings: &mut Readings,
) -> Result<()> {
    let file = KnownFile::with_other_bytes(scene, "small-target", SMALL)?;
    let (times, cpu) = paced_trips(scene, |pace| write_trips(client, &file, pace))?;
    file.check()?;
    readings.enter(WRITE_P50, percentile(&times, 0.5));
    readings.enter(WRITE_P95, percentile(&times, 0.95));
    readings.enter(WRITE_CPU, cpu);
    Ok(())
}

fn measure_big_files(
    scene: &Scene<'_>,
    client: &mut Client,
    readings: &mut Readings,
) -> Result<()> {
    let file = KnownFile::with_its_bytes(scene, "big", BIG)?;
    let transfer = repeat(scene, || read(client, &file, UNCONFINED))?;
    readings.enter(BIG_READ, transfer.megabytes_per_second());
    readings.enter(BIG_READ_CPU, transfer.cpu_per_gib());

    let file = KnownFile::with_other_bytes(scene, "big-target", BIG)?;
    let transfer = repeat(scene, || write(client, &file, UNCONFINED))?;
    file.check()?;
    readings.enter(BIG_WRITE, transfer.megabytes_per_second());
    readings.enter(BIG_WRITE_CPU, transfer.cpu_per_gib());
    Ok(())
}

/// Durations of consecutive reads in microseconds.
fn read_trips(client: &mut Client, file: &KnownFile, pace: &Pace) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    pace.run(|| {
        times.push(us(read(client, file, UNCONFINED)?));
        Ok(())
    })?;
    Ok(times)
}

/// Durations of consecutive writes in microseconds.
fn write_trips(client: &mut Client, file: &KnownFile, pace: &Pace) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    pace.run(|| {
        times.push(us(write(client, file, UNCONFINED)?));
        Ok(())
    })?;
    Ok(times)
}

/// Transfers a large file repeatedly.
fn repeat(scene: &Scene<'_>, mut once: impl FnMut() -> Result<Duration>) -> Result<Transfer> {
    // The first transfer also grows buffers on both sides.
    once()?;
    let before = scene.server.usage()?;
    let mut time = Duration::ZERO;
    let count = scene.effort.pace(usize::MAX, Duration::from_secs(1)).run(|| {
        time += once()?;
        Ok(())
    })?;
    let cpu = scene.server.usage()?.cpu_since(&before);
    Ok(Transfer { bytes: (count * BIG) as u64, time, cpu })
}

/// Reads the file, with a policy member if given; returns the duration.
pub fn read(client: &mut Client, file: &KnownFile, sandbox: &str) -> Result<Duration> {
    client.queue("fs/readFile", &format!(r#"{{"path":"{}"{sandbox}}}"#, file.uri));
    let (time, answer) = client.exchange()?;
    let (_, text) = wire::parse_data(answer)?;
    match text == file.text.as_bytes() {
        true => Ok(time),
        false => Err(Failure::new("a file was read with other bytes than it has")),
    }
}

/// Writes the file, with a policy member if given; returns the duration.
pub fn write(client: &mut Client, file: &KnownFile, sandbox: &str) -> Result<Duration> {
    let head = format!(r#"{{"path":"{}"{sandbox},"dataBase64":""#, file.uri);
    client.queue_pieces("fs/writeFile", &[head.as_bytes(), file.text.as_bytes(), br#""}"#]);
    let (time, answer) = client.exchange()?;
    wire::parse_result::<IgnoredAny>(answer)?;
    Ok(time)
}

/// No policy.
const UNCONFINED: &str = "";

/// A file with its current or expected bytes, raw and as base64.
pub struct KnownFile {
    path: PathBuf,
    /// Its URI.
    pub uri: String,
    bytes: Vec<u8>,
    text: String,
}

impl KnownFile {
    /// A file to read.
    pub fn with_its_bytes(scene: &Scene<'_>, name: &str, length: usize) -> Result<KnownFile> {
        let bytes = pattern(length);
        let path = scene.scratch.put(name, &bytes)?;
        Ok(KnownFile { uri: uri(&path), text: base64_turbo::encode(&bytes), path, bytes })
    }

    /// A file of the same length to overwrite.
    pub fn with_other_bytes(scene: &Scene<'_>, name: &str, length: usize) -> Result<KnownFile> {
        let file = KnownFile::with_its_bytes(scene, name, length)?;
        scene.scratch.put(name, &vec![0; length])?;
        Ok(file)
    }

    /// Checks its content.
    pub fn check(&self) -> Result<()> {
        match std::fs::read(&self.path)? == self.bytes {
            true => Ok(()),
            false => Err(Failure::new("a file has other bytes than were written")),
        }
    }
}
