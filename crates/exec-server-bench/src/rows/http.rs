//! HTTP requests with small responses, which measure the cost per request.

use std::time::Duration;

use serde::Deserialize;

use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::one_core::OneCore;
use crate::row::{Bar, Better, Of, Row, Unit};
use crate::scene::{Pace, Readings, Scene};
use crate::stats::{percentile, us};
use crate::web::Web;
use crate::wire;

const SMALL_P50: &str = "http.small-p50";
const SMALL_P95: &str = "http.small-p95";
const SMALL_CPU: &str = "http.small-cpu";
const CORE_P50: &str = "http.core-p50";
const CORE_CPU: &str = "http.core-cpu";

const SMALL: usize = 1 << 10;

/// `http/request` with small bodies.
pub const GROUP: Group = Group {
    name: "http",
    most_rounds: EVERY_ROUND,
    rows: &[
        Row {
            id: SMALL_P50,
            label: "http/request of 1 KiB, p50",
            unit: Unit::Named("µs"),
            better: Better::Lower,
            // Most of the time is four wake-ups of a sleeping core for every server; the server's own work shows on one
            // core.
            bars: &[Bar::AtMost(1.0, Of::Peer), Bar::AtMost(1.3, Of::Bare)],
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
    ],
    measure,
};

/// Turns are short, because there are many.
const TURN: Duration = Duration::from_millis(400);

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let web = Web::start()?;
    let mut client = scene.connect()?;
    let (times, cpu) = paced(scene, &mut client, &web)?;
    readings.enter(SMALL_P50, percentile(&times, 0.5));
    readings.enter(SMALL_P95, percentile(&times, 0.95));
    readings.enter(SMALL_CPU, cpu);

    let _one_core = OneCore::share_with(scene.server)?;
    // Its threads start on the core of this one.
    let web = Web::start()?;
    let (times, cpu) = paced(scene, &mut client, &web)?;
    readings.enter(CORE_P50, percentile(&times, 0.5));
    readings.enter(CORE_CPU, cpu);
    Ok(())
}

/// Durations and server CPU time per request in microseconds, after a warm-up.
fn paced(scene: &Scene<'_>, client: &mut Client, web: &Web) -> Result<(Vec<f64>, f64)> {
    trips(client, web, &scene.effort.pace(200, Duration::MAX))?;
    let before = scene.server.usage()?;
    let times = trips(client, web, &scene.effort.pace(usize::MAX, TURN))?;
    let cpu = us(scene.server.usage()?.cpu_since(&before)) / times.len() as f64;
    Ok((times, cpu))
}

/// Durations of consecutive small requests in microseconds.
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

/// Params of a request for this many bytes.
pub fn params(web: &Web, length: usize, streamed: bool) -> String {
    let address = web.address;
    format!(
        r#"{{"method":"GET","url":"http://{address}/{length}","headers":[],"requestId":"r","streamResponse":{streamed}}}"#
    )
}

/// The checked part of a response.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer<'a> {
    /// The status.
    pub status: u16,
    /// The whole body.
    pub body_base64: &'a str,
}
