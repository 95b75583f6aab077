//! Throughput of stdin, and whether all input arrives in order.

use std::path::PathBuf;
use std::time::Instant;

use super::{EVERY_ROUND, Group};
use crate::client::{Client, Event, Launch, Stdio};
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};

rows! {
    RATE = "stdin.rate": "input in writes of 64 KiB, 16 in flight", Higher "MB/s", AtLeast(1.4, Peer);
}

const WRITE_SIZE: usize = 64 * 1024;
const IN_FLIGHT: u64 = 16;
const CHECKED_WRITES: u64 = 32;

/// A reader that exits after a given number of bytes, which proves that they arrived.
pub const GROUP: Group = Group { name: "stdin", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    check_content(&mut client)?;

    let writes = scene.effort.pick(4096, 1024);
    let chunk = base64_turbo::encode(pattern(0));
    let process = start_reader(&mut client, "/dev/null", writes)?;
    let begun = Instant::now();
    pour(&mut client, process, writes, |_| &chunk)?;
    client.wait_finished(process)?;
    let bytes = writes as f64 * WRITE_SIZE as f64;
    readings.enter(RATE, bytes / 1e6 / begun.elapsed().as_secs_f64());
    client.ledger().settle(process, 0, 0)?;
    Ok(())
}

/// Writes distinct chunks to a file and compares it.
fn check_content(client: &mut Client) -> Result<()> {
    let sent: Vec<Vec<u8>> = (0..CHECKED_WRITES).map(pattern).collect();
    let chunks: Vec<String> = sent.iter().map(base64_turbo::encode).collect();
    let file = Scratch::new();
    let process = start_reader(client, &file.0.to_string_lossy(), CHECKED_WRITES)?;
    pour(client, process, CHECKED_WRITES, |index| &chunks[index as usize])?;
    client.wait_finished(process)?;
    client.ledger().settle(process, 0, 0)?;
    match std::fs::read(&file.0)? == sent.concat() {
        true => Ok(()),
        false => Err(Failure::new("the process read other bytes than were written")),
    }
}

fn start_reader(client: &mut Client, file: &str, writes: u64) -> Result<u64> {
    let output = format!("of={file}");
    let count = format!("count={writes}");
    let argv = ["/bin/dd", &output, &count, "bs=65536", "iflag=fullblock", "status=none"];
    let launch = Launch { stdio: Stdio::Piped, ..Launch::new(&argv) };
    Ok(client.start(launch)?.process)
}

/// Sends writes with a number of them in flight.
fn pour<'a>(
    client: &mut Client,
    process: u64,
    writes: u64,
    chunk: impl Fn(u64) -> &'a str,
) -> Result<()> {
    let (mut sent, mut answered) = (0, 0);
    while answered < writes {
        while sent < writes && sent - answered < IN_FLIGHT {
            client.queue_write(process, sent + 1, chunk(sent));
            sent += 1;
        }
        client.flush()?;
        let mut event = Some(client.next_event()?);
        while let Some(seen) = event {
            answered += u64::from(matches!(seen, Event::Reply(_)));
            event = client.ready_event()?;
        }
    }
    Ok(())
}

/// Bytes that differ between writes and positions.
fn pattern(write: u64) -> Vec<u8> {
    let byte = |index: usize| (index as u64 ^ (index as u64 >> 8) ^ write.wrapping_mul(37)) as u8;
    (0..WRITE_SIZE).map(byte).collect()
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(
            std::env::temp_dir().join(format!("exec-server-bench-stdin-{}", std::process::id())),
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The file is missing if the reader never started.
        let _ = std::fs::remove_file(&self.0);
    }
}
