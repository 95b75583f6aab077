//! Whole files in one request: small ones measure the cost per request, large ones the cost per byte.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::IgnoredAny;

use super::rpc::paced_trips;
use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::one_core::OneCore;
use crate::row::{Bar, Better, Of, Row, Unit};
use crate::scene::{Pace, Readings, Scene};
use crate::scratch::{pattern, uri};
use crate::stats::{percentile, us};
use crate::transfer::Transfer;
use crate::wire;

pub const READ_P50: &str = "files.read-p50";
const READ_P95: &str = "files.read-p95";
const READ_CPU: &str = "files.read-cpu";
const CORE_P50: &str = "files.core-p50";
const CORE_CPU: &str = "files.core-cpu";
pub const WRITE_P50: &str = "files.write-p50";
const WRITE_P95: &str = "files.write-p95";
const WRITE_CPU: &str = "files.write-cpu";
const BIG_READ: &str = "files.big-read";
const BIG_READ_CPU: &str = "files.big-read-cpu";
const BIG_WRITE: &str = "files.big-write";
const BIG_WRITE_CPU: &str = "files.big-write-cpu";

const SMALL: usize = 4 << 10;
const BIG: usize = 8 << 20;

/// `fs/readFile` and `fs/writeFile`.
pub const GROUP: Group = Group {
    name: "files",
    most_rounds: EVERY_ROUND,
    rows: &[
        Row {
            id: READ_P50,
            label: "fs/readFile of 4 KiB, p50",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: READ_P95,
            label: "… p95",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: READ_CPU,
            label: "… server CPU each",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: CORE_P50,
            label: "… client and server on one core, p50",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[Bar::AtMost(1.0, Of::Peer)],
        },
        Row {
            id: CORE_CPU,
            label: "… and server CPU each",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[Bar::AtMost(0.7, Of::Peer)],
        },
        Row {
            id: WRITE_P50,
            label: "fs/writeFile of 4 KiB over a file, p50",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[Bar::AtMost(1.5, Of::Peer)],
        },
        Row {
            id: WRITE_P95,
            label: "… p95",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: WRITE_CPU,
            label: "… server CPU each",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: BIG_READ,
            label: "fs/readFile of 8 MiB",
            unit: Unit::Named("MB/s"),
            better: Better::Higher,
            bars: &[Bar::AtLeast(3.2, Of::Peer)],
        },
        Row {
            id: BIG_READ_CPU,
            label: "… server CPU",
            unit: Unit::Named("s/GiB"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: BIG_WRITE,
            label: "fs/writeFile of 8 MiB over a file",
            unit: Unit::Named("MB/s"),
            better: Better::Higher,
            bars: &[Bar::AtLeast(1.7, Of::Peer)],
        },
        Row {
            id: BIG_WRITE_CPU,
            label: "… server CPU",
            unit: Unit::Named("s/GiB"),
            better: Better::Lower,
            bars: &[],
        },
    ],
    measure,
};

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
