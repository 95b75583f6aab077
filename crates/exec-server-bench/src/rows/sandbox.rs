//! The shortest sandboxed process: everything is readable, one directory is writable, no network.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::burst::run_at_once;
use super::files::{self, KnownFile};
use super::oneshot::{self, run_once};
use super::{EVERY_ROUND, Group};
use crate::client::{Client, Launch};
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::scratch::uri;
use crate::stats::{ms, percentile, us};

rows! {
    P50 = "sandbox.p50": "sandboxed `true`, start to closed, p50", Lower "ms",
        AtMost(1.0 / 15.0, NaglingPeer), AtMost(5.0, OurRow(oneshot::P50));
    P95 = "sandbox.p95": "… p95", Lower "ms";
    CPU = "sandbox.cpu": "… server CPU each", Lower "µs";
    CHILDREN_CPU = "sandbox.children-cpu": "… CPU of its children each (helpers and `true` itself)", Lower "µs";
    WARM = "sandbox.warm": "… a moment after the one before, p50", Lower "ms",
        AtMost(1.0 / 15.0, NaglingPeer), AtMost(3.0, OurRow(WARM_PLAIN));
    WARM_PLAIN = "sandbox.warm-plain": "… `true` without a sandbox in between, p50", Lower "ms";
    FIRST = "sandbox.first": "… the first of a session, p50", Lower "ms",
        AtMost(1.0 / 15.0, NaglingPeer), AtMost(5.0, OurRow(oneshot::P50));
    BURST = "sandbox.burst": "200 × sandboxed `true` at once, one connection", Higher "procs/s";
    ENTRIES = "sandbox.entries": "sandboxed `true` with 1,000 entries, p50", Lower "ms";
    GROWTH = "sandbox.growth": "… more than with 250, for each time more entries", Lower "×",
        AtMost(1.25, Unit);
    COMPILE = "sandbox.compile": "1,000 entries read and compiled, p50", Lower "ms", AtMost(10.0, Unit);
    READ = "sandbox.read": "sandboxed fs/readFile of 4 KiB, p50", Lower "µs",
        AtMost(1.0 / 80.0, Peer), AtMost(2.0, OurRow(files::READ_P50));
    WRITE = "sandbox.write": "sandboxed fs/writeFile of 4 KiB over a file, p50", Lower "µs",
        AtMost(1.0 / 80.0, Peer), AtMost(2.0, OurRow(files::WRITE_P50));
}

/// The size of the small files in the unsandboxed rows.
const SMALL: usize = 4096;

/// Entries of a large policy, and of one with a quarter of them.
const MANY: usize = 1000;
const FEWER: usize = MANY / 4;

/// Consecutive sandboxed processes.
pub const GROUP: Group = Group { name: "sandbox", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // The bare server has no sandbox.
    if scene.contestant.seat == Seat::Bare {
        return Ok(());
    }
    let root = scene.scratch.once("sandboxed", |path| Ok(fs::create_dir(path)?))?;
    let policy = workspace_write(&root);
    let mut client = scene.connect()?;
    check_that_it_confines(&mut client, &root, &policy)?;
    let launch = Launch { sandbox: Some(&policy), ..Launch::new(&["/usr/bin/true"]) };
    for _ in 0..5 {
        run_once(&mut client, launch)?;
    }
    let mut ends = Vec::new();
    let before = scene.server.usage()?;
    let count = scene.effort.pace(300, Duration::from_secs(3)).run(|| {
        ends.push(ms(run_once(&mut client, launch)?.1));
        Ok(())
    })?;
    let after = scene.server.usage()?;

    readings.enter(P50, percentile(&ends, 0.5));
    readings.enter(P95, percentile(&ends, 0.95));
    readings.enter(CPU, us(after.cpu_since(&before)) / count as f64);
    let children = after.children_cpu.saturating_sub(before.children_cpu);
    readings.enter(CHILDREN_CPU, us(children) / count as f64);
    readings.enter_order(&mut client);
    measure_warm(scene, &mut client, launch, readings)?;
    let mut firsts = Vec::new();
    scene.effort.pace(50, Duration::from_secs(2)).run(|| {
        let mut client = scene.connect()?;
        firsts.push(ms(run_once(&mut client, launch)?.1));
        Ok(())
    })?;
    readings.enter(FIRST, percentile(&firsts, 0.5));
    if scene.contestant.seat == Seat::Ours {
        // The peer takes seconds for these, or fails.
        let time = run_at_once(std::slice::from_mut(&mut client), 200, launch)?;
        readings.enter(BURST, 200.0 / time.as_secs_f64());
        measure_entries(scene, &mut client, &root, &policy, readings)?;
    }
    measure_files(scene, &mut client, &policy, readings)
}

/// Minimal think time of a client, and enough time to prepare the next sandbox.
const MOMENT: Duration = Duration::from_millis(10);

/// Start time with a warm sandbox and an idle machine, after a pause. Unsandboxed starts are measured after the same
/// pause.
fn measure_warm(
    scene: &Scene<'_>,
    client: &mut Client,
    launch: Launch<'_>,
    readings: &mut Readings,
) -> Result<()> {
    let (mut confined, mut plain) = (Vec::new(), Vec::new());
    scene.effort.pace(200, Duration::from_secs(6)).run(|| {
        for (launch, ends) in
            [(launch, &mut confined), (Launch { sandbox: None, ..launch }, &mut plain)]
        {
            std::thread::sleep(MOMENT);
            ends.push(ms(run_once(client, launch)?.1));
        }
        Ok(())
    })?;
    readings.enter(WARM, percentile(&confined, 0.5));
    readings.enter(WARM_PLAIN, percentile(&plain, 0.5));
    Ok(())
}

/// Start time with a policy of many entries, each of which is a mount.
fn measure_entries(
    scene: &Scene<'_>,
    client: &mut Client,
    root: &Path,
    policy: &str,
    readings: &mut Readings,
) -> Result<()> {
    for number in 0..MANY {
        fs::create_dir_all(root.join(format!("many/{number}")))?;
    }
    let [fewer, many] = [FEWER, MANY].map(|count| with_entries(policy, root, count));
    let mut time_of = |policy: &str| -> Result<f64> {
        let launch = Launch { sandbox: Some(policy), ..Launch::new(&["/usr/bin/true"]) };
        let mut ends = Vec::new();
        scene.effort.pace(20, Duration::from_secs(2)).run(|| {
            ends.push(ms(run_once(client, launch)?.1));
            Ok(())
        })?;
        Ok(percentile(&ends, 0.5))
    };
    let (fewer_time, many_time) = (time_of(&fewer)?, time_of(&many)?);
    readings.enter(ENTRIES, many_time);
    readings.enter(GROWTH, many_time / fewer_time / (MANY / FEWER) as f64);

    // A start without a program is rejected after its policy was compiled.
    let start = format!(
        r#"{{"processId":"none","argv":[],"cwd":"{}","env":{{}},"tty":false,"sandbox":{many}}}"#,
        uri(root)
    );
    let mut times = Vec::new();
    scene.effort.pace(50, Duration::from_secs(1)).run(|| {
        client.queue("process/start", &start);
        let (time, answer) = client.exchange()?;
        if !answer.windows(4).any(|word| word == b"argv") {
            return Err(Failure::new("a start without a program was not refused as such"));
        }
        times.push(ms(time));
        Ok(())
    })?;
    readings.enter(COMPILE, percentile(&times, 0.5));
    Ok(())
}

/// The same policy with read-only directories in the project.
fn with_entries(policy: &str, root: &Path, count: usize) -> String {
    let entry = |number: usize| {
        let path = uri(&root.join(format!("many/{number}")));
        format!(r#"{{"path":{{"type":"path","path":"{path}"}},"access":"read"}},"#)
    };
    let entries: String = (0..count).map(entry).collect();
    policy.replacen(r#""entries":["#, &format!(r#""entries":[{entries}"#), 1)
}

fn measure_files(
    scene: &Scene<'_>,
    client: &mut Client,
    policy: &str,
    readings: &mut Readings,
) -> Result<()> {
    // A denied sibling makes the reference use its helper for this file.
    let file = KnownFile::with_its_bytes(scene, "sandboxed/small", SMALL)?;
    let denying = format!(r#","sandbox":{}"#, with_a_denial(policy, &file));
    let writing = format!(r#","sandbox":{policy}"#);
    let mut times = Vec::new();
    scene.effort.pace(2_000, Duration::from_secs(2)).run(|| {
        times.push(us(files::read(client, &file, &denying)?));
        Ok(())
    })?;
    readings.enter(READ, percentile(&times, 0.5));

    let file = KnownFile::with_other_bytes(scene, "sandboxed/small-target", SMALL)?;
    let mut times = Vec::new();
    scene.effort.pace(2_000, Duration::from_secs(2)).run(|| {
        times.push(us(files::write(client, &file, &writing)?));
        Ok(())
    })?;
    file.check()?;
    readings.enter(WRITE, percentile(&times, 0.5));
    Ok(())
}

/// The same policy with one denied path; without one, the reference reads unconfined.
fn with_a_denial(policy: &str, file: &KnownFile) -> String {
    let denied =
        format!(r#"{{"path":{{"type":"path","path":"{}-denied"}},"access":"deny"}},"#, file.uri);
    policy.replacen(r#""entries":["#, &format!(r#""entries":[{denied}"#), 1)
}

/// The most common policy: everything is readable, the project is writable.
fn workspace_write(root: &Path) -> String {
    let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
    json!({
        "permissions": {"type": "managed", "network": "restricted", "file_system": {
            "type": "restricted",
            "entries": [special("root", "read"), special("project_roots", "write")],
        }},
        "windowsSandboxLevel": "disabled",
        "policyContext": {"cwd": uri(root), "workspaceRoots": [uri(root)]},
    })
    .to_string()
}

/// Rejects a server that ignores the policy.
fn check_that_it_confines(client: &mut Client, root: &Path, policy: &str) -> Result<()> {
    let (inside, outside) = (root.join("inside"), root.with_file_name("outside"));
    for file in [&inside, &outside] {
        // Another contestant may have created it.
        let _ = fs::remove_file(file);
        let argv = ["/usr/bin/touch", file.to_str().unwrap_or_default()];
        let started = client.start(Launch { sandbox: Some(policy), ..Launch::new(&argv) })?;
        client.wait_finished(started.process)?;
    }
    match (inside.exists(), outside.exists()) {
        (true, false) => Ok(()),
        _ => Err(Failure::new("the policy was not kept")),
    }
}
