//! Command line of the benchmark: servers, groups and number of rounds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use super::contestant::{Contestant, Seat};
use super::failure::{Failure, Result};
use super::rows::{GROUPS, Group};
use super::scene::Effort;
use super::websocket::QuickAck;

/// The options of `cargo xtask bench`.
#[derive(Args)]
pub struct Options {
    /// Command of the measured server, with leading NAME=value words if needed [default: build and
    /// run exec-server]
    #[arg(long, value_name = "CMD")]
    ours: Option<String>,
    /// Command of the server to compare with; it must print its ws:// address first
    #[arg(long, value_name = "CMD")]
    peer: Option<String>,
    /// Number of rounds [default: 5, quick: 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Measure only these groups, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Write everything to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the table to this file in markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Measure less and only once, to find gross regressions
    #[arg(long)]
    quick: bool,
    /// Acknowledge every segment at once, which hides the cost of Nagle's algorithm in servers
    #[arg(long)]
    quickack: bool,
}

impl Options {
    /// Number of rounds.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(self.effort().pick(5, 1)).max(1)
    }

    /// Amount of work per round.
    pub fn effort(&self) -> Effort {
        if self.quick { Effort::Quick } else { Effort::Full }
    }

    /// Kind of client.
    pub fn quickack(&self) -> QuickAck {
        if self.quickack { QuickAck::Yes } else { QuickAck::No }
    }

    /// Groups to measure.
    pub fn groups(&self) -> Result<Vec<&'static Group>> {
        static ALL: [Group; GROUPS.len()] = GROUPS;
        let names: Vec<&str> = ALL.iter().map(|group| group.name).collect();
        let is_unknown = |name: &&String| !ALL.iter().any(|group| group.is_called(name));
        if let Some(unknown) = self.only.iter().find(is_unknown) {
            let known = names.join(", ");
            return Err(Failure::new(format!("no group is called `{unknown}`; there are {known}")));
        }
        let wanted = |group: &&Group| {
            self.only.is_empty() || self.only.iter().any(|name| group.is_called(name))
        };
        Ok(ALL.iter().filter(wanted).collect())
    }

    /// Servers to measure.
    pub fn contestants(&self) -> Result<Vec<Contestant>> {
        let mut contestants = vec![match &self.ours {
            Some(line) => Contestant::from_command_line(Seat::Ours, line)?,
            None => build_ours()?,
        }];
        if let Some(line) = &self.peer {
            contestants.push(Contestant::from_command_line(Seat::Peer, line)?);
        }
        let bare = vec![std::env::current_exe()?.into(), OsString::from("bare-server")];
        contestants.push(Contestant::from_words(Seat::Bare, bare));
        Ok(contestants)
    }
}

fn build_ours() -> Result<Contestant> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
        .args(["build", "--release", "-p", "exec-server", "--bin", "exec-server"])
        .current_dir(&root)
        .status()?;
    if !status.success() {
        return Err(Failure::new("exec-server could not be built"));
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = std::path::absolute(target.join("release/exec-server"))?;
    let words = [program.into_os_string(), "--listen".into(), "ws://127.0.0.1:0".into()];
    Ok(Contestant::from_words(Seat::Ours, words.into()))
}
