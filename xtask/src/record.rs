//! `cargo xtask record`: runs `exec-server demo` in a terminal and writes what it shows as an animated SVG.

mod svg;
mod transcript;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use transcript::Transcript;

/// Columns of the terminal; longer lines are wrapped.
const COLUMNS: u16 = 100;

/// Rows that are seen at once.
const ROWS: u16 = 26;

/// Options of `cargo xtask record`.
#[derive(Debug, Args)]
pub struct Options {
    /// Program to run [default: the debug build, which is made first]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// File to write [default: docs/demo.svg]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Records the demo.
pub fn run(options: &Options) -> ExitCode {
    match record(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("record: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn record(options: &Options) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no workspace")?;
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build(root)?,
    };
    let out = options.out.clone().unwrap_or_else(|| root.join("docs/demo.svg"));
    let transcript = play(&program)?;
    let text = svg::render(&transcript, usize::from(COLUMNS), usize::from(ROWS));
    std::fs::write(&out, &text).with_context(|| format!("cannot write {}", out.display()))?;
    let (lines, seconds) = (transcript.lines.len(), transcript.end.as_secs_f32());
    println!("{}: {lines} lines, {seconds:.1} s, {} bytes", out.display(), text.len());
    Ok(())
}

fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "-p", "exec-server"]).current_dir(root);
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "cargo build failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    Ok(target.unwrap_or_else(|| root.join("target")).join("debug/exec-server"))
}

/// Runs `exec-server demo` on a new terminal until it ends.
fn play(program: &Path) -> Result<Transcript> {
    let master =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("cannot make a terminal")?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size)?;
    let name = ptsname(&master, Vec::new())?;
    let name = name.to_str().context("the terminal has a strange name")?;
    let terminal =
        File::options().read(true).write(true).open(name).context("cannot open the terminal")?;
    let mut command = Command::new(program);
    command.arg("demo").env("TERM", "xterm").env_remove("NO_COLOR");
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    // The command holds descriptors of the terminal, which would otherwise never end.
    drop(command);
    let start = Instant::now();
    let mut transcript = Transcript::new(usize::from(COLUMNS));
    let mut master = File::from(master);
    let mut block = [0; 4096];
    // The read fails when the last descriptor of the terminal is closed.
    while let Ok(count @ 1..) = master.read(&mut block) {
        transcript.add(&block[..count], start.elapsed());
    }
    transcript.finish(start.elapsed());
    let status = child.wait()?;
    if !status.success() {
        let text: Vec<String> = transcript.lines.iter().map(transcript::Line::text).collect();
        bail!("the demo failed ({status}), so there is nothing to show:\n{}", text.join("\n"));
    }
    Ok(transcript)
}
