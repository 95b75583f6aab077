//! Overhead of the Rust client: the same process with it and with a bare websocket client, in turns.

use std::time::{Duration, Instant};

use exec_server_client::{Command, ExecServerClient};
use tokio::runtime::{Builder, Runtime};

use super::oneshot::run_once;
use super::{EVERY_ROUND, Group};
use crate::client::Launch;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::{ms, percentile};

rows! {
    CLIENT = "library.oneshot": "one-shot `true` with an open Rust client, p50", Lower "ms",
        AtMost(1.15, OurRow(BARE));
    BARE = "library.oneshot-bare": "… with a bare websocket client, in turns", Lower "ms";
}

/// Consecutive processes by two connected clients.
pub const GROUP: Group = Group { name: "library", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    if scene.contestant.seat == Seat::Bare {
        // The bare server supports only the bare client.
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let url = format!("ws://{}", scene.server.address);
    let client = runtime.block_on(ExecServerClient::connect(url)).map_err(failed)?;
    let mut command = client.command("/usr/bin/true");
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
    let mut bare = scene.connect()?;
    for _ in 0..20 {
        run_with_client(&runtime, &command)?;
        run_once(&mut bare, Launch::new(&["/usr/bin/true"]))?;
    }
    let (mut with_client, mut with_bare) = (Vec::new(), Vec::new());
    scene.effort.pace(1000, Duration::from_secs(8)).run(|| {
        with_client.push(ms(run_with_client(&runtime, &command)?));
        let (_, end) = run_once(&mut bare, Launch::new(&["/usr/bin/true"]))?;
        with_bare.push(ms(end));
        Ok(())
    })?;
    readings.enter(CLIENT, percentile(&with_client, 0.5));
    readings.enter(BARE, percentile(&with_bare, 0.5));
    readings.enter_order(&mut bare);
    Ok(())
}

/// Runs one process to its close with the client's API.
fn run_with_client(runtime: &Runtime, command: &Command) -> Result<Duration> {
    let begun = Instant::now();
    let output = runtime.block_on(command.output()).map_err(failed)?;
    let time = begun.elapsed();
    match output.status.success() {
        true => Ok(time),
        false => Err(Failure::new(format!("`true` ended with {}", output.status))),
    }
}

fn failed(error: exec_server_client::ExecServerError) -> Failure {
    Failure::new(format!("the client failed: {error}"))
}
