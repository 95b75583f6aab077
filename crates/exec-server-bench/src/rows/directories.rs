//! Listing a large directory, walking a tree, and searching a marker in parent directories.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{EVERY_ROUND, Group};
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Pace, Readings, Scene};
use crate::scratch::uri;
use crate::stats::{ms, percentile};
use crate::wire::{self, Incoming};

rows! {
    LISTING = "directories.listing": "fs/readDirectory of 10,000 entries, p50", Lower "ms",
        AtMost(0.45, Peer);
    WALK = "directories.walk": "fs/walk of 50,000 entries, p50", Lower "ms", AtMost(0.5, Peer);
    WALKED = "directories.walked": "… entries that the answer had room for", Neither "entries";
    MARKERS = "directories.markers": "19 × fs/getMetadata at once, 9 of them refused, p50", Lower "ms",
        AtMost(1.0 / 20.0, NaglingPeer);
}

const ENTRIES: usize = 10_000;

/// A tree of 50,000 entries: this many directories with this many files each.
const BRANCHES: usize = 500;
const LEAVES: usize = 99;

/// Nested directories; the marker is only in the innermost one.
const DEPTH: usize = 10;

/// `fs/readDirectory`, `fs/walk` and `fs/getMetadata`.
pub const GROUP: Group =
    Group { name: "directories", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    let mut client = scene.connect()?;
    measure_listing(scene, &mut client, readings)?;
    measure_markers(scene, &mut client, readings)?;
    measure_walk(scene, &mut client, readings)
}

fn measure_listing(scene: &Scene<'_>, client: &mut Client, readings: &mut Readings) -> Result<()> {
    let path = scene.scratch.once("directory", make_directory)?;
    let params = format!(r#"{{"path":"{}"}}"#, uri(&path));
    let times = repeat(&pace(scene), || {
        let (time, listing) = list(client, "fs/readDirectory", &params)?;
        match listing.entries.len() {
            ENTRIES => Ok(time),
            other => Err(Failure::new(format!("{other} entries instead of {ENTRIES}"))),
        }
    })?;
    readings.enter(LISTING, percentile(&times, 0.5));
    Ok(())
}

fn measure_walk(scene: &Scene<'_>, client: &mut Client, readings: &mut Readings) -> Result<()> {
    let path = scene.scratch.once("tree", make_tree)?;
    let params = format!(
        r#"{{"path":"{}","options":{{"maxDepth":64,"maxDirectories":10000,"maxEntries":50000,"followDirectorySymlinks":false}}}}"#,
        uri(&path)
    );
    let mut walked = 0;
    let times = repeat(&pace(scene).for_slow_steps(), || {
        let (time, listing) = list(client, "fs/walk", &params)?;
        walked = listing.entries.len();
        match listing.truncated || walked == BRANCHES * (1 + LEAVES) {
            true => Ok(time),
            false => Err(Failure::new(format!("the walk ended after {walked} entries"))),
        }
    })?;
    readings.enter(WALK, percentile(&times, 0.5));
    readings.enter(WALKED, walked as f64);
    Ok(())
}

/// Requests metadata of all parents of a path and of a marker in them, as clients do to find the root of a project.
fn measure_markers(scene: &Scene<'_>, client: &mut Client, readings: &mut Readings) -> Result<()> {
    let path = scene.scratch.once("nest", |path| Ok(fs::create_dir_all(innermost(path))?))?;
    let innermost = innermost(&path);
    let directories: Vec<&Path> = innermost.ancestors().take(DEPTH).collect();
    let markers: Vec<_> = directories[1..].iter().map(|path| path.join(".git")).collect();
    let all = directories.iter().copied().chain(markers.iter().map(AsRef::as_ref));
    let params: Vec<String> = all.map(|path| format!(r#"{{"path":"{}"}}"#, uri(path))).collect();
    let times = repeat(&pace(scene), || {
        let begun = Instant::now();
        for params in &params {
            client.queue("fs/getMetadata", params);
        }
        client.flush()?;
        let missing = count_refusals(client, params.len())?;
        match missing == markers.len() {
            true => Ok(begun.elapsed()),
            false => Err(Failure::new(format!("{missing} of {} are missing", params.len()))),
        }
    })?;
    readings.enter(MARKERS, percentile(&times, 0.5));
    Ok(())
}

fn pace(scene: &Scene<'_>) -> Pace {
    scene.effort.pace(2000, Duration::from_secs(1))
}

/// Durations of consecutive steps in milliseconds.
fn repeat(pace: &Pace, mut step: impl FnMut() -> Result<Duration>) -> Result<Vec<f64>> {
    step()?;
    let mut times = Vec::new();
    pace.run(|| {
        times.push(ms(step()?));
        Ok(())
    })?;
    Ok(times)
}

/// Requests entries and returns them with the response time.
fn list(client: &mut Client, method: &str, params: &str) -> Result<(Duration, Listing)> {
    client.queue(method, params);
    let (time, answer) = client.exchange()?;
    let (_, listing) = wire::parse_result(answer)?;
    Ok((time, listing))
}

/// Reads replies and returns the number of errors.
fn count_refusals(client: &mut Client, answers: usize) -> Result<usize> {
    let mut refusals = 0;
    for _ in 0..answers {
        let answer = wire::parse(client.next_text()?)?;
        refusals += usize::from(matches!(answer, Incoming::Refusal { .. }));
    }
    Ok(refusals)
}

/// Files, and every tenth entry a directory.
fn make_directory(path: &Path) -> Result<()> {
    let name = |index| path.join(format!("entry-{index:05}"));
    let (directories, files): (Vec<usize>, Vec<usize>) =
        (0..ENTRIES).partition(|index| index % 10 == 0);
    fs::create_dir(path)?;
    for index in directories {
        fs::create_dir(name(index))?;
    }
    make_files(files.into_iter().map(name))
}

fn make_tree(path: &Path) -> Result<()> {
    for branch in 0..BRANCHES {
        let branch = path.join(format!("{branch:03}"));
        fs::create_dir_all(&branch)?;
        make_files((0..LEAVES).map(|leaf| branch.join(format!("{leaf:02}"))))?;
    }
    Ok(())
}

/// Creates many hard links to one file, which is much faster than creating files and equal for listings.
fn make_files(mut names: impl Iterator<Item = PathBuf>) -> Result<()> {
    let Some(first) = names.next() else { return Ok(()) };
    File::create(&first)?;
    for name in names {
        fs::hard_link(&first, name)?;
    }
    Ok(())
}

fn innermost(path: &Path) -> PathBuf {
    (1..DEPTH).fold(path.to_owned(), |outer, _| outer.join("inner"))
}

/// The checked part of a listing.
#[derive(Deserialize)]
struct Listing {
    entries: Vec<IgnoredAny>,
    #[serde(default)]
    truncated: bool,
}
