//! Block-wise reads of a file through a handle: speed and memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use serde::de::IgnoredAny;

use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::contestant::Server;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::scratch::{pattern, uri};
use crate::stats::mib;
use crate::transfer::Transfer;
use crate::wire;

rows! {
    ONE = "blocks.one": "256 MiB in blocks of 1 MiB, one in flight", Higher "MB/s", AtLeast(3.2, Peer);
    ONE_CPU = "blocks.one-cpu": "… server CPU", Lower "s/GiB";
    EIGHT = "blocks.eight": "256 MiB in blocks of 1 MiB, 8 in flight", Higher "MB/s", AtLeast(3.0, Peer);
    EIGHT_CPU = "blocks.eight-cpu": "… server CPU", Lower "s/GiB";
    GROWTH = "blocks.growth": "512 MiB in blocks of 1 MiB, 8 in flight: memory growth", Lower "MiB",
        AtMost(16.0, Unit);
}

/// Maximum size of a block.
const BLOCK: usize = 1 << 20;

/// Blocks differ in this many bytes at their start, a multiple of three, so that base64 characters align.
const NUMBER: usize = 18;

/// `fs/open`, `fs/readBlock` to the end, `fs/close`.
pub const GROUP: Group = Group { name: "blocks", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let blocks = scene.effort.pick(256, 64);
    let expected = NumberedBlocks::new();
    let path = scene.scratch.once("blocks", |path| expected.write(path, blocks))?;
    for (rate, cpu, in_flight) in [(ONE, ONE_CPU, 1), (EIGHT, EIGHT_CPU, 8)] {
        let mut client = scene.connect()?;
        let reading = Reading { uri: &uri(&path), blocks, in_flight };
        let transfer = transfer(scene.server, &mut client, &reading, &expected)?;
        readings.enter(rate, transfer.megabytes_per_second());
        readings.enter(cpu, transfer.cpu_per_gib());
    }
    // On a fresh server, because the other figures have filled the allocator.
    measure_growth(scene, &scene.contestant.start(scene.warden)?, readings)
}

fn transfer(
    server: &Server<'_>,
    client: &mut Client,
    reading: &Reading<'_>,
    expected: &NumberedBlocks,
) -> Result<Transfer> {
    // The first blocks also grow buffers on both sides.
    Reading { blocks: 8, ..*reading }.run(client, |index, text| expected.check(index, text))?;
    let before = server.usage()?;
    let begun = Instant::now();
    reading.run(client, |index, text| expected.check(index, text))?;
    let time = begun.elapsed();
    let cpu = server.usage()?.cpu_since(&before);
    Ok(Transfer { bytes: reading.blocks * BLOCK as u64, time, cpu })
}

/// Reads a sparse file, and samples the server's memory at every block.
fn measure_growth(scene: &Scene<'_>, server: &Server<'_>, readings: &mut Readings) -> Result<()> {
    let blocks = scene.effort.pick(512, 128);
    let path = scene
        .scratch
        .once("zeros", |path| Ok(File::create(path)?.set_len(blocks * BLOCK as u64)?))?;
    let zeros = base64_turbo::encode(vec![0; BLOCK]);
    let mut client = scene.connect_to(server)?;
    for _ in 0..100 {
        client.status()?;
    }
    let before = server.usage()?.rss;
    let mut peak = before;
    Reading { uri: &uri(&path), blocks, in_flight: 8 }.run(&mut client, |_, text| {
        peak = peak.max(server.usage()?.rss);
        match text == zeros.as_bytes() {
            true => Ok(()),
            false => Err(Failure::new("a block was read with other bytes than zeros")),
        }
    })?;
    readings.enter(GROWTH, mib((peak - before) as f64));
    Ok(())
}

/// How a file is read.
struct Reading<'a> {
    uri: &'a str,
    blocks: u64,
    in_flight: u64,
}

impl Reading<'_> {
    /// Opens the file, passes every block as base64 with its index to `look`, and closes it.
    fn run(
        &self,
        client: &mut Client,
        mut look: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        client.queue("fs/open", &format!(r#"{{"handleId":"h","path":"{}"}}"#, self.uri));
        let opened = client.exchange()?.1;
        let (open, _) = wire::parse_result::<IgnoredAny>(opened)?;
        let (mut asked, mut answered) = (0, 0);
        while answered < self.blocks {
            while asked < self.blocks && asked - answered < self.in_flight {
                let offset = asked * BLOCK as u64;
                let params = format!(r#"{{"handleId":"h","offset":{offset},"len":{BLOCK}}}"#);
                client.queue("fs/readBlock", &params);
                asked += 1;
            }
            client.flush()?;
            let (id, text) = wire::parse_data(client.next_text()?)?;
            // Request ids are consecutive.
            look(id - open - 1, text)?;
            answered += 1;
        }
        client.call("fs/close", r#"{"handleId":"h"}"#)
    }
}

/// A file whose blocks differ only in a number at their start, so that one block in base64 serves to check all.
struct NumberedBlocks {
    block: Vec<u8>,
    rest: String,
}

impl NumberedBlocks {
    fn new() -> NumberedBlocks {
        let block = pattern(BLOCK);
        NumberedBlocks { rest: base64_turbo::encode(&block[NUMBER..]), block }
    }

    fn write(&self, path: &Path, blocks: u64) -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for index in 0..blocks {
            file.write_all(number(index).as_bytes())?;
            file.write_all(&self.block[NUMBER..])?;
        }
        Ok(file.flush()?)
    }

    fn check(&self, index: u64, text: &[u8]) -> Result<()> {
        let number = base64_turbo::encode(number(index));
        match text.strip_prefix(number.as_bytes()) == Some(self.rest.as_bytes()) {
            true => Ok(()),
            false => Err(Failure::new(format!("block {index} was read with other bytes"))),
        }
    }
}

fn number(index: u64) -> String {
    format!("{index:>NUMBER$}")
}
