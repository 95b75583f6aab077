//! HTTP requests with large responses, which measure the cost per byte, and one response that the client does not read.

use std::thread;
use std::time::{Duration, Instant};

use base64_turbo::STANDARD;

use super::http::{Answer, params};
use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::mib;
use crate::transfer::Transfer;
use crate::web::Web;
use crate::wire;

rows! {
    STREAM = "http.stream": "http/request of 256 MiB, streamed", Higher "MB/s", AtLeast(2.0, Peer);
    STREAM_CPU = "http.stream-cpu": "… server CPU", Lower "s/GiB";
    STREAM_CHUNK = "http.stream-chunk": "… mean delta", Neither "bytes";
    GROWTH = "http.stall-growth": "client does not read 1 GiB of an answer: memory growth", Lower "MiB",
        AtMost(64.0, Unit);
}

const BIG: usize = 256 << 20;
const HUGE: usize = 1 << 30;

/// `http/request` with large bodies.
pub const GROUP: Group =
    Group { name: "http-bodies", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // The bare server supports only small responses.
    if scene.contestant.seat == Seat::Bare {
        return Ok(());
    }
    let web = Web::start()?;
    let mut client = scene.connect()?;
    let big = scene.effort.pick(BIG, BIG / 4);
    stream(scene, &mut client, &web, big / 8)?;
    let (transfer, deltas) = stream(scene, &mut client, &web, big)?;
    readings.enter(STREAM, transfer.megabytes_per_second());
    readings.enter(STREAM_CPU, transfer.cpu_per_gib());
    readings.enter(STREAM_CHUNK, big as f64 / deltas as f64);

    readings.enter(GROWTH, mib(growth_of_a_stall(scene, &web)? as f64));
    Ok(())
}

/// Streams a response and returns its number of deltas.
fn stream(
    scene: &Scene<'_>,
    client: &mut Client,
    web: &Web,
    length: usize,
) -> Result<(Transfer, u64)> {
    let before = scene.server.usage()?;
    let begun = Instant::now();
    client.queue("http/request", &params(web, length, true));
    client.flush()?;
    wire::parse_result::<Answer>(client.next_text()?)?;
    let (mut bytes, mut seq, mut decoded) = (0, 0, Vec::new());
    loop {
        let delta = parse_delta(client.next_text()?)?;
        seq += 1;
        if delta.seq != seq {
            return Err(Failure::new("a delta is missing or out of order"));
        }
        bytes += check_zeros(delta.base64, &mut decoded)?;
        if delta.is_last {
            break;
        }
    }
    if bytes != length {
        return Err(Failure::new(format!("{bytes} bytes instead of {length}")));
    }
    let time = begun.elapsed();
    let cpu = scene.server.usage()?.cpu_since(&before);
    Ok((Transfer { bytes: bytes as u64, time, cpu }, seq - 1))
}

/// Memory growth of a server whose client requests a large response and does not read.
fn growth_of_a_stall(scene: &Scene<'_>, web: &Web) -> Result<u64> {
    let mut stalled = scene.connect()?;
    let before = scene.server.usage()?.rss;
    stalled.queue("http/request", &params(web, HUGE, true));
    stalled.flush()?;
    let time = scene.effort.pick(Duration::from_secs(4), Duration::from_secs(2));
    let begun = Instant::now();
    let mut most = before;
    while begun.elapsed() < time {
        thread::sleep(Duration::from_millis(50));
        most = most.max(scene.server.usage()?.rss);
    }
    Ok(most - before)
}

fn check_zeros(text: &[u8], decoded: &mut Vec<u8>) -> Result<usize> {
    let room = STANDARD.decoded_len_estimate(text.len());
    if decoded.len() < room {
        decoded.resize(room, 0);
    }
    let count =
        STANDARD.decode_slice(text, decoded).map_err(|_| Failure::new("a delta is not base64"))?;
    match decoded[..count].iter().fold(0, |all, byte| all | byte) {
        0 => Ok(count),
        _ => Err(Failure::new("a delta has the wrong content")),
    }
}

struct Delta<'a> {
    seq: u64,
    base64: &'a [u8],
    is_last: bool,
}

/// Parses a delta in its usual member order, without scanning its content.
fn parse_delta(text: &[u8]) -> Result<Delta<'_>> {
    let usual = || {
        let head =
            br#"{"method":"http/request/bodyDelta","params":{"requestId":"r","seq":"#.as_slice();
        let rest = text.strip_prefix(head)?;
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let seq = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        let rest = rest[digits..].strip_prefix(br#","deltaBase64":""#)?;
        let (base64, is_last) = match rest.strip_suffix(br#"","done":false,"error":null}}"#) {
            Some(base64) => (base64, false),
            None => (rest.strip_suffix(br#"","done":true,"error":null}}"#)?, true),
        };
        Some(Delta { seq, base64, is_last })
    };
    usual().ok_or_else(|| {
        let shown = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
        Failure::new(format!("not a delta: {shown}"))
    })
}
