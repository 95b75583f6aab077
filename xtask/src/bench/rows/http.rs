//! Requests to a web server: small answers, where the request is what costs, big ones, where the
//! bytes are, and one that nobody reads.

use std::thread;
use std::time::{Duration, Instant};

use base64_turbo::STANDARD;
use serde::Deserialize;

use super::rpc::paced_trips;
use super::{EVERY_ROUND, Group};
use crate::bench::client::Client;
use crate::bench::contestant::Seat;
use crate::bench::failure::{Failure, Result};
use crate::bench::one_core::OneCore;
use crate::bench::row::{Bar, Better, Of, Row, Unit};
use crate::bench::scene::{Pace, Readings, Scene};
use crate::bench::stats::{mib, percentile, us};
use crate::bench::transfer::Transfer;
use crate::bench::web::Web;
use crate::bench::wire;

const SMALL_P50: &str = "http.small-p50";
const SMALL_P95: &str = "http.small-p95";
const SMALL_CPU: &str = "http.small-cpu";
const CORE_P50: &str = "http.core-p50";
const CORE_CPU: &str = "http.core-cpu";
const STREAM: &str = "http.stream";
const STREAM_CPU: &str = "http.stream-cpu";
const STREAM_CHUNK: &str = "http.stream-chunk";
const GROWTH: &str = "http.stall-growth";

const SMALL: usize = 1 << 10;
const BIG: usize = 256 << 20;
const HUGE: usize = 1 << 30;

/// `http/request`.
pub const GROUP: Group = Group {
    name: "http",
    most_rounds: EVERY_ROUND,
    rows: &[
        Row {
            id: SMALL_P50,
            label: "http/request of 1 KiB, p50",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[Bar::AtMost(0.7, Of::Peer)],
        },
        Row {
            id: SMALL_P95,
            label: "… p95",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: SMALL_CPU,
            label: "… server CPU each",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: CORE_P50,
            label: "… client, server and web server on one core, p50",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[Bar::AtMost(0.7, Of::Peer)],
        },
        Row {
            id: CORE_CPU,
            label: "… and server CPU each",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: STREAM,
            label: "http/request of 256 MiB, streamed",
            unit: Unit::Named("MB/s"),
            better: Better::Higher,
            bars: &[Bar::AtLeast(2.0, Of::Peer)],
        },
        Row {
            id: STREAM_CPU,
            label: "… server CPU",
            unit: Unit::Named("s/GiB"),
            better: Better::Lower,
            bars: &[],
        },
        Row {
            id: STREAM_CHUNK,
            label: "… mean delta",
            unit: Unit::Named("bytes"),
            better: Better::Neither,
            bars: &[],
        },
        Row {
            id: GROWTH,
            label: "client does not read 1 GiB of an answer: memory growth",
            unit: Unit::Named("MiB"),
            better: Better::Lower,
            bars: &[Bar::AtMost(64.0, Of::Unit)],
        },
    ],
    measure,
};

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let web = Web::start()?;
    let mut client = scene.connect()?;
    trips(&mut client, &web, &scene.effort.pace(200, Duration::MAX))?;
    let (times, cpu) = paced_trips(scene, |pace| trips(&mut client, &web, pace))?;
    readings.enter(SMALL_P50, percentile(&times, 0.5));
    readings.enter(SMALL_P95, percentile(&times, 0.95));
    readings.enter(SMALL_CPU, cpu);
    // The bare server only shows what the wake-ups of three programs cost.
    if scene.contestant.seat != Seat::Bare {
        measure_big(scene, readings, &mut client, &web)?;
    }

    let _one_core = OneCore::share_with(scene.server)?;
    // Its threads are born on the core of this one.
    let web = Web::start()?;
    trips(&mut client, &web, &scene.effort.pace(200, Duration::MAX))?;
    let (times, cpu) = paced_trips(scene, |pace| trips(&mut client, &web, pace))?;
    readings.enter(CORE_P50, percentile(&times, 0.5));
    readings.enter(CORE_CPU, cpu);
    Ok(())
}

/// Answers where the bytes are what costs.
fn measure_big(
    scene: &Scene<'_>,
    readings: &mut Readings,
    client: &mut Client,
    web: &Web,
) -> Result<()> {
    let big = scene.effort.pick(BIG, BIG / 4);
    stream(scene, client, web, big / 8)?;
    let (transfer, deltas) = stream(scene, client, web, big)?;
    readings.enter(STREAM, transfer.megabytes_per_second());
    readings.enter(STREAM_CPU, transfer.cpu_per_gib());
    readings.enter(STREAM_CHUNK, big as f64 / deltas as f64);

    readings.enter(GROWTH, mib(growth_of_a_stall(scene, web)? as f64));
    Ok(())
}

/// The times of one small request after the other, in microseconds.
fn trips(client: &mut Client, web: &Web, pace: &Pace) -> Result<Vec<f64>> {
    let params = params(web, SMALL, false);
    let mut times = Vec::new();
    pace.run(|| {
        client.queue("http/request", &params);
        let (time, answer) = client.exchange()?;
        let (_, answer) = wire::parse_result::<Answer>(answer)?;
        if answer.status != 200 || answer.body_base64.len() != SMALL.div_ceil(3) * 4 {
            return Err(Failure::new("an answer is not what the web server said"));
        }
        times.push(us(time));
        Ok(())
    })?;
    Ok(times)
}

/// Streams an answer, and says in how many deltas it came.
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

/// How much memory a server needs for a client that asks for much and reads nothing.
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

fn params(web: &Web, length: usize, streamed: bool) -> String {
    let address = web.address;
    format!(
        r#"{{"method":"GET","url":"http://{address}/{length}","headers":[],"requestId":"r","streamResponse":{streamed}}}"#
    )
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

/// Reads a delta in its usual member order without looking at every byte.
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    status: u16,
    body_base64: &'a str,
}
