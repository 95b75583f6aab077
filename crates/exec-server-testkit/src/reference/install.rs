//! Finds the reference's binary in a version, or installs it with npm on first use.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::REFERENCE_BIN;
use super::child::run_to_end;

/// The package has about 100 MB; a slower link needs an installation beforehand.
const INSTALL_DEADLINE: Duration = Duration::from_secs(300);

/// Enough for the first start of a large program from a cold disk.
const VERSION_DEADLINE: Duration = Duration::from_secs(60);

/// A version of the reference that the tests support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferenceVersion {
    /// 0.166.0: a client reconnects for 25 s, a server keeps its session for 30 s.
    V0_166,
    /// 0.169.0: 45 s and 80 s.
    V0_169,
}

impl ReferenceVersion {
    /// Every supported version, oldest first.
    pub const ALL: [Self; 2] = [Self::V0_166, Self::V0_169];

    /// The version as the package registry writes it.
    pub fn number(self) -> &'static str {
        match self {
            Self::V0_166 => "0.166.0",
            Self::V0_169 => "0.169.0",
        }
    }
}

impl fmt::Display for ReferenceVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.number())
    }
}

pub(super) fn find_binary(version: ReferenceVersion) -> Result<PathBuf, String> {
    if let Some(binaries) = std::env::var_os(REFERENCE_BIN) {
        return binary_among(std::env::split_paths(&binaries), version);
    }
    let folder = reference_folder().join(version.number());
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    // Concurrent test processes: one installs, the others wait.
    let guard = File::create(folder.join("install.lock")).map_err(|error| error.to_string())?;
    guard.lock().map_err(|error| error.to_string())?;
    if let Some(binary) = installed_binary(&folder) {
        return Ok(binary);
    }
    install(&folder, version)
        .map_err(|reason| format!("{reason}\nset {REFERENCE_BIN} to use one that is there"))?;
    installed_binary(&folder)
        .ok_or_else(|| format!("{} has no binary for this platform", package(version)))
}

/// The binary with this version.
fn binary_among(
    mut binaries: impl Iterator<Item = PathBuf>,
    version: ReferenceVersion,
) -> Result<PathBuf, String> {
    let has_version = |binary: &PathBuf| {
        assert!(binary.is_file(), "{REFERENCE_BIN} names no file: `{}`", binary.display());
        let mut command = Command::new(binary);
        command.arg("--version");
        let ended = run_to_end(command, VERSION_DEADLINE).expect("the reference can be started");
        ended.stdout.trim_end().ends_with(version.number())
    };
    binaries.find(has_version).ok_or_else(|| format!("{REFERENCE_BIN} names no {version}"))
}

fn package(version: ReferenceVersion) -> String {
    format!("@openai/codex@{version}")
}

fn install(folder: &Path, version: ReferenceVersion) -> Result<(), String> {
    let package = package(version);
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .args(["--prefer-offline", "--fetch-retries=0", &package, "--prefix"])
        .arg(folder);
    let ended = run_to_end(npm, INSTALL_DEADLINE)
        .map_err(|error| format!("could not start npm: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(()),
        _ => Err(format!("npm could not install {package}: {}", ended.stderr)),
    }
}

/// The package is a launcher script; the binary is in the platform package.
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

/// `target/reference` in the target directory of this build.
pub(super) fn reference_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let mut folders = test.ancestors();
    let target = folders.find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let folder = target.expect("cargo marks its target folder with this file").join("reference");
    fs::create_dir_all(&folder).expect("cargo could write to the target folder, so we can");
    folder
}
