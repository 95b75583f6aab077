//! A client that stops reading while its process writes: cost for the server, for other clients, and for its own
//! requests.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::Group;
use super::rpc::round_trips;
use crate::client::{Client, Launch};
use crate::contestant::Server;
use crate::failure::{Failure, Result};
use crate::ledger::Content;
use crate::one_core::OneCore;
use crate::process_tree;
use crate::row::rows;
use crate::scene::{Effort, Readings, Scene};
use crate::stats::{mib, percentile};

rows! {
    GROWTH = "stall.growth": "client does not read for 5 s: memory growth", Lower "MiB", AtMost(8.0, Unit);
    CALM = "stall.calm-p50": "… another connection's round trip before, on one core, p50", Lower "µs";
    OTHER = "stall.other-p50": "… and meanwhile, p50", Lower "µs";
    TIMES = "stall.times": "… meanwhile ÷ before", Lower "×", AtMost(2.0, Unit);
    OBEYED = "stall.terminate": "… terminate obeyed in 2 s before it reads again", Higher YesNo,
        AtLeast(1.0, Unit);
    RESUMED = "stall.resumed": "… reading again: no gap, then closed", Higher YesNo, AtLeast(1.0, Unit);
}

/// `cat /dev/zero` for a client that does not read.
pub const GROUP: Group = Group { name: "stall", most_rounds: 2, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut stalled = scene.connect()?;
    let mut other = scene.connect()?;
    for _ in 0..100 {
        other.status()?;
    }
    let before = scene.server.usage()?.rss;
    let one_core = OneCore::share_with(scene.server)?;
    let (calm, _) = probe(&mut other, scene.server, Duration::from_secs(1))?;

    let pid_file = PidFile::new();
    let script = format!("echo $$ >'{}'; exec cat /dev/zero", pid_file.0.display());
    let argv = ["/bin/sh", "-c", &script];
    let launch = Launch { content: Content::Zeros, ..Launch::new(&argv) };
    let process = stalled.queue_start(launch).process;
    stalled.flush()?;
    let (meanwhile, peak) = probe(
        &mut other,
        scene.server,
        scene.effort.pick(Duration::from_secs(5), Duration::from_secs(3)),
    )?;
    drop(one_core);
    readings.enter(GROWTH, mib(peak.saturating_sub(before) as f64));
    readings.enter(CALM, calm);
    readings.enter(OTHER, meanwhile);
    readings.enter(TIMES, meanwhile / calm);

    let pid = pid_file.read()?;
    if !process_tree::is_alive(pid) {
        return Err(Failure::new("the process ended although no request asked for it"));
    }
    stalled.set_time(Duration::from_secs(2));
    stalled.queue("process/terminate", &format!(r#"{{"processId":"p{process}"}}"#));
    stalled.flush()?;
    readings.enter_whether(OBEYED, ends_within(pid, Duration::from_secs(2)));

    stalled.set_time(Duration::from_secs(10));
    readings.enter_whether(RESUMED, stalled.wait_finished(process).is_ok());
    readings.enter_order(&mut stalled);
    Ok(())
}

/// Round trips in short bursts: their p50 in microseconds, and the peak memory in between.
fn probe(client: &mut Client, server: &Server<'_>, time: Duration) -> Result<(f64, u64)> {
    let begun = Instant::now();
    let (mut times, mut peak) = (Vec::new(), 0);
    while begun.elapsed() < time {
        times.extend(round_trips(client, &Effort::Full.pace(50, Duration::from_millis(200)))?);
        peak = peak.max(server.usage()?.rss);
        thread::sleep(Duration::from_millis(50));
    }
    Ok((percentile(&times, 0.5), peak))
}

fn ends_within(pid: u32, time: Duration) -> bool {
    let begun = Instant::now();
    while process_tree::is_alive(pid) {
        if begun.elapsed() > time {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// File for the pid of the process, which the protocol does not report.
struct PidFile(PathBuf);

impl PidFile {
    fn new() -> PidFile {
        PidFile(std::env::temp_dir().join(format!("xtask-bench-pid-{}", std::process::id())))
    }

    fn read(&self) -> Result<u32> {
        let text = std::fs::read_to_string(&self.0)?;
        text.trim().parse().map_err(|_| Failure::new("the process did not write its number"))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The file is missing if the process never started.
        let _ = std::fs::remove_file(&self.0);
    }
}
