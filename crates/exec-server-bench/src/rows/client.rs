//! Client commands compared with ssh, scp and rsync on loopback.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::Group;
use crate::contestant::Seat;
use crate::failure::Result;
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::scratch::pattern;
use crate::ssh::{Link, Ssh, run};
use crate::stats::{ms, percentile};

rows! {
    RUN = "client.run": "`exec-server run URL -- true`, p50", Lower "ms", AtMost(1.0, OurRow(SSH));
    SSH = "client.ssh": "… `ssh HOST true`", Lower "ms";
    SSH_SHARED = "client.ssh-shared": "… over a control socket that is open", Lower "ms";
    OUTPUT = "client.output": "`run URL -- cat` of 256 MiB", Higher "MB/s";
    UP = "client.up": "`cp` of 256 MiB to the server", Higher "MB/s", AtLeast(1.0, OurRow(SCP));
    DOWN = "client.down": "… from the server", Higher "MB/s", AtLeast(1.0, OurRow(SCP));
    SCP = "client.scp": "… `scp` to the server", Higher "MB/s";
    TREE = "client.tree": "`cp -r` of 10,000 files of 1 KiB to the server", Lower "s";
    TREE_BACK = "client.tree-back": "… from the server", Lower "s";
    RSYNC = "client.rsync": "… `rsync -r` over ssh to the server", Lower "s";
}

const LARGE: usize = 256 * 1024 * 1024;
const FILES: usize = 10_000;

/// Complete invocations of the commands.
pub const GROUP: Group = Group { name: "client", most_rounds: 2, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no client commands.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    let program = scene.contestant.program();
    let url = format!("ws://{}", scene.server.address);
    let ours = |words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words);
        command
    };
    let large = scene.scratch.once("client-large", |path| Ok(fs::write(path, pattern(LARGE))?))?;
    let tree = scene.scratch.once("client-tree", make_tree)?;
    let copy = large.with_file_name("client-copy");
    let message = |path: &Path| format!("{url}:{}", path.display());
    let (large_here, copy_here) = (large.display().to_string(), copy.display().to_string());
    let tree_here = tree.display().to_string();

    readings.enter(RUN, p50(scene, || ours(&["run", "-n", &url, "--", "true"]))?);
    readings.enter(OUTPUT, mb_per_s(&mut ours(&["run", "-n", &url, "--", "cat", &large_here]))?);
    readings.enter(UP, copied(&copy, &mut ours(&["cp", &large_here, &message(&copy)]))?);
    readings.enter(DOWN, copied(&copy, &mut ours(&["cp", &message(&large), &copy_here]))?);
    readings.enter(TREE, tree_time(&copy, &mut ours(&["cp", "-r", &tree_here, &message(&copy)]))?);
    readings
        .enter(TREE_BACK, tree_time(&copy, &mut ours(&["cp", "-r", &message(&tree), &copy_here]))?);

    let ssh = match Ssh::start(&large.with_file_name("client-ssh"), scene.warden) {
        Ok(ssh) => ssh,
        Err(failure) => {
            eprintln!("bench: the rows of ssh are left out: {failure}");
            return Ok(());
        }
    };
    readings.enter(SSH, p50(scene, || ssh.command(Link::New, &["true"]))?);
    ssh.share()?;
    readings.enter(SSH_SHARED, p50(scene, || ssh.command(Link::Shared, &["true"]))?);
    readings.enter(SCP, copied(&copy, &mut ssh.scp(&large, &copy))?);
    if let Some(mut rsync) = ssh.rsync(&tree, &copy) {
        readings.enter(RSYNC, tree_time(&copy, &mut rsync)?);
    }
    Ok(())
}

fn p50(scene: &Scene<'_>, command: impl Fn() -> Command) -> Result<f64> {
    let mut times = Vec::new();
    let pace = scene.effort.pace(100, Duration::from_secs(10)).for_slow_steps();
    pace.run(|| {
        times.push(ms(timed(&mut command())?));
        Ok(())
    })?;
    Ok(percentile(&times, 0.5))
}

fn timed(command: &mut Command) -> Result<Duration> {
    let begun = Instant::now();
    run(command)?;
    Ok(begun.elapsed())
}

fn mb_per_s(command: &mut Command) -> Result<f64> {
    Ok(LARGE as f64 / 1e6 / timed(command)?.as_secs_f64())
}

/// The best of three copies to a new name.
fn copied(copy: &Path, command: &mut Command) -> Result<f64> {
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        remove(copy)?;
        best = best.max(mb_per_s(command)?);
    }
    remove(copy)?;
    Ok(best)
}

fn tree_time(copy: &Path, command: &mut Command) -> Result<f64> {
    remove(copy)?;
    let time = timed(command)?;
    remove(copy)?;
    Ok(time.as_secs_f64())
}

fn remove(path: &Path) -> Result<()> {
    if path.is_dir() {
        fs::remove_dir_all(path)?;
    } else if path.exists() {
        fs::remove_file(path)?;
    }
    Ok(())
}

fn make_tree(root: &Path) -> Result<()> {
    let content = pattern(1024);
    for folder in 0..FILES / 100 {
        let folder = root.join(folder.to_string());
        fs::create_dir_all(&folder)?;
        for file in 0..100 {
            fs::write(folder.join(file.to_string()), &content)?;
        }
    }
    Ok(())
}
