//! Searches compared with `rg` and `find` that are started by `process/start`, and the set-up of a large watch.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use exec_server_client::ExecServerClient;
use exec_server_protocol::fs::{FsFindParams, FsSearchParams};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::Group;
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::scratch::uri;
use crate::stats::{mib, ms, percentile};

rows! {
    SEARCH = "searching.search": "fs/search of 50,000 files, 1,000 matches, p50", Lower "ms",
        AtMost(0.7, OurRow(RG));
    RG = "searching.rg": "… `rg` by process/start", Lower "ms";
    FIND = "searching.find": "fs/find of 1,000 names among 50,000, p50", Lower "ms",
        AtMost(1.0, OurRow(FIND_PROGRAM));
    FIND_PROGRAM = "searching.find-program": "… `find` by process/start", Lower "ms";
    WATCH = "searching.watch": "fs/watch of 10,000 directories: set-up", Lower "ms", AtMost(1000.0, Unit);
    WATCH_MEMORY = "searching.watch-memory": "… memory growth", Lower "MiB", AtMost(20.0, Unit);
}

/// A tree of 50,000 files.
const FOLDERS: usize = 500;
const FILES: usize = 100;
/// One file of this many has a match.
const MATCHING: usize = 50;
const WATCHED: usize = 10_000;

/// The files are in the page cache.
pub const GROUP: Group = Group { name: "searching", most_rounds: 3, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no searches.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let url = format!("ws://{}", scene.server.address);
    let client = runtime.block_on(ExecServerClient::connect(url)).map_err(failed)?;
    measure_watch(scene, &runtime, &client, readings)?;
    let tree = scene.scratch.once("searched", make_tree)?;
    let path = tree.to_str().ok_or_else(|| Failure::new("the scratch path is not UTF-8"))?;
    readings.enter(SEARCH, p50(scene, || search(&runtime, &client, &tree))?);
    readings.enter(FIND, p50(scene, || find(&runtime, &client, &tree))?);
    let find = ["find", path, "-name", "*-match.txt"];
    readings.enter(FIND_PROGRAM, p50(scene, || program(&runtime, &client, &find))?);
    let rg = ["rg", "--line-number", "a needle", path];
    match program(&runtime, &client, &rg) {
        Ok(_) => readings.enter(RG, p50(scene, || program(&runtime, &client, &rg))?),
        Err(failure) => eprintln!("bench: the row of rg is left out: {failure}"),
    }
    Ok(())
}

fn p50(scene: &Scene<'_>, mut step: impl FnMut() -> Result<Duration>) -> Result<f64> {
    step()?;
    let mut times = Vec::new();
    scene.effort.pace(200, Duration::from_secs(4)).for_slow_steps().run(|| {
        times.push(ms(step()?));
        Ok(())
    })?;
    Ok(percentile(&times, 0.5))
}

fn search(runtime: &Runtime, client: &ExecServerClient, tree: &Path) -> Result<Duration> {
    let params: FsSearchParams =
        serde_json::from_value(json!({"path": uri(tree), "pattern": "a needle"}))?;
    let begun = Instant::now();
    let found = runtime.block_on(async {
        let mut pages = client.fs().search(params).await?;
        let mut found = 0;
        while let Some(page) = pages.next_page().await? {
            found += page.matches.len();
        }
        Ok(found)
    });
    expect_all(found.map_err(failed)?)?;
    Ok(begun.elapsed())
}

fn find(runtime: &Runtime, client: &ExecServerClient, tree: &Path) -> Result<Duration> {
    let params: FsFindParams =
        serde_json::from_value(json!({"path": uri(tree), "patterns": ["*-match.txt"]}))?;
    let begun = Instant::now();
    let found = runtime.block_on(async {
        let mut pages = client.fs().find(params).await?;
        let mut found = 0;
        while let Some(page) = pages.next_page().await? {
            found += page.entries.len();
        }
        Ok(found)
    });
    expect_all(found.map_err(failed)?)?;
    Ok(begun.elapsed())
}

/// Runs a program that prints one line for each match.
fn program(runtime: &Runtime, client: &ExecServerClient, argv: &[&str]) -> Result<Duration> {
    let mut command = client.command(argv[0]);
    command.args(argv[1..].iter().copied()).env("PATH", std::env::var("PATH").unwrap_or_default());
    let begun = Instant::now();
    let output = runtime.block_on(command.output()).map_err(failed)?;
    let time = begun.elapsed();
    expect_all(output.stdout.iter().filter(|byte| **byte == b'\n').count())?;
    Ok(time)
}

fn expect_all(found: usize) -> Result<()> {
    match FOLDERS * FILES / MATCHING {
        all if all == found => Ok(()),
        all => Err(Failure::new(format!("{found} of {all} were found"))),
    }
}

fn measure_watch(
    scene: &Scene<'_>,
    runtime: &Runtime,
    client: &ExecServerClient,
    readings: &mut Readings,
) -> Result<()> {
    let folders = scene.scratch.once("watched", make_folders)?;
    let before = scene.server.usage()?;
    let begun = Instant::now();
    let path = folders.to_str().ok_or_else(|| Failure::new("the scratch path is not UTF-8"))?;
    let watch = runtime.block_on(client.fs().watch(path, true)).map_err(failed)?;
    readings.enter(WATCH, ms(begun.elapsed()));
    let growth = scene.server.usage()?.rss as f64 - before.rss as f64;
    readings.enter(WATCH_MEMORY, mib(growth));
    drop(watch);
    Ok(())
}

fn make_tree(root: &Path) -> Result<()> {
    let plain = "a line of text that has nothing to find in it\n".repeat(20);
    let with_match = format!("{plain}here is a needle\n{plain}");
    for folder in 0..FOLDERS {
        let folder = root.join(format!("{folder:03}"));
        fs::create_dir_all(&folder)?;
        for file in 0..FILES {
            let (end, text) = match file % MATCHING {
                0 => ("-match.txt", &with_match),
                _ => (".txt", &plain),
            };
            fs::write(folder.join(format!("{file:02}{end}")), text)?;
        }
    }
    Ok(())
}

fn make_folders(root: &Path) -> Result<()> {
    // The root counts as one.
    for folder in 1..WATCHED {
        fs::create_dir_all(root.join(format!("{:02}/{folder}", folder % 100)))?;
    }
    Ok(())
}

fn failed(error: exec_server_client::ExecServerError) -> Failure {
    Failure::new(format!("the client failed: {error}"))
}
