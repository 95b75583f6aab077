//! HTTP requests with small responses, which measure the cost per request.

use std::time::Duration;

use serde::Deserialize;

use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::one_core::OneCore;
use crate::row::rows;
use crate::scene::{Pace, Readings, Scene};
use crate::stats::{percentile, us};
use crate::web::Web;
use crate::wire;

rows! {
    // Most of the time is four wake-ups of a sleeping core for every server; the server's own work shows on one
    // core.
    SMALL_P50 = "http.small-p50": "http/request of 1 KiB, p50", Lower "µs",
        AtMost(1.0, Peer), AtMost(1.3, Bare);
    SMALL_P95 = "http.small-p95": "… p95", Lower "µs";
    SMALL_CPU = "http.small-cpu": "… server CPU each", Lower "µs";
    CORE_P50 = "http.core-p50": "… client, server and web server on one core, p50", Lower "µs",
        AtMost(0.7, Peer);
    CORE_CPU = "http.core-cpu": "… and server CPU each", Lower "µs";
}

const SMALL: usize = 1 << 10;

/// `http/request` with small bodies.
pub const GROUP: Group = Group { name: "http", most_rounds: EVERY_ROUND, rows: ROWS, measure };

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
