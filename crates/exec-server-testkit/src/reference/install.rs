//! Finds the reference client, or installs it with npm on first use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::REFERENCE_BIN;
use super::child::run_to_end;

/// The version that the protocol notes describe; another one may send something else.
const PACKAGE: &str = "@openai/codex@0.166.0";

/// The package is some 100 MB; whoever needs longer for that should install it beforehand.
const INSTALL_DEADLINE: Duration = Duration::from_secs(300);

pub(super) fn find_binary() -> Result<PathBuf, String> {
    if let Some(binary) = std::env::var_os(REFERENCE_BIN).map(PathBuf::from) {
        assert!(binary.is_file(), "{REFERENCE_BIN} names no file: `{}`", binary.display());
        return Ok(binary);
    }
    let folder = reference_folder();
    // Test processes may run side by side: one installs, the others wait and find.
    let guard = File::create(folder.join("install.lock")).map_err(|error| error.to_string())?;
    guard.lock().map_err(|error| error.to_string())?;
    if let Some(binary) = installed_binary(&folder) {
        return Ok(binary);
    }
    install(&folder)
        .map_err(|reason| format!("{reason}\nset {REFERENCE_BIN} to use one that is there"))?;
    installed_binary(&folder).ok_or_else(|| format!("{PACKAGE} has no binary for this platform"))
}

fn install(folder: &Path) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .args(["--prefer-offline", "--fetch-retries=0", PACKAGE, "--prefix"])
        .arg(folder);
    let ended = run_to_end(npm, INSTALL_DEADLINE)
        .map_err(|error| format!("could not start npm: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(()),
        _ => Err(format!("npm could not install {PACKAGE}: {}", ended.stderr)),
    }
}

/// The package itself is a launcher script; the binary sits in the package of the platform.
fn installed_binary(folder: &Path) -> Option<PathBuf> {
    let subfolders = |path: PathBuf| {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let name = format!("bin/codex{}", std::env::consts::EXE_SUFFIX);
    subfolders(folder.join("node_modules/@openai"))
        .flat_map(|package| subfolders(package.join("vendor")))
        .map(|platform| platform.join(&name))
        .find(|binary| binary.is_file())
}

/// `target/reference`, wherever cargo has the target folder that this test was built into.
pub(super) fn reference_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let mut folders = test.ancestors();
    let target = folders.find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let folder = target.expect("cargo marks its target folder with this file").join("reference");
    fs::create_dir_all(&folder).expect("cargo could write to the target folder, so we can");
    folder
}
