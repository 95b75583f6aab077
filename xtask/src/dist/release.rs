//! Facts that all artefacts of a release share: version, time, documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Map, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::program::Program;
use super::tree::{Effort, Tree};

/// The version of the workspace; every artefact takes it from here.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One sentence for package managers.
pub const SUMMARY: &str =
    "Runs commands, edits files and makes HTTP requests on any Linux machine for an agent";

/// The source tree that a release is made of.
pub struct Release {
    /// Root of the workspace.
    pub root: PathBuf,
    /// Time of the commit, in seconds; the time of every file in every archive.
    pub epoch: u64,
    /// How hard the archives are compressed.
    pub effort: Effort,
}

impl Release {
    /// Reads the commit of the workspace, or `SOURCE_DATE_EPOCH` outside of a clone.
    pub fn of_workspace(effort: Effort) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the workspace has no directory")?
            .to_owned();
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text.parse().context("SOURCE_DATE_EPOCH is not a number of seconds")?,
            Err(_) => commit_time(&root)?,
        };
        Ok(Self { root, epoch, effort })
    }

    /// The time of the commit as RFC 3339 has it.
    pub fn time(&self) -> Result<String> {
        let seconds = i64::try_from(self.epoch).context("the time of the commit is too large")?;
        Ok(OffsetDateTime::from_unix_timestamp(seconds)?.format(&Rfc3339)?)
    }

    /// `release.json`: the version, what compiled each program, and name, size and digest of each artefact.
    pub fn facts(
        &self,
        artefacts: &[(String, usize, String)],
        programs: &[Program],
    ) -> Result<Vec<u8>> {
        let mut toolchains = Map::new();
        for program in programs {
            toolchains.insert(program.target(), json!(program.toolchain()?));
        }
        let file = |(name, size, sha256): &(String, usize, String)| json!({"name": name, "size": size, "sha256": sha256});
        let files: Vec<_> = artefacts.iter().map(file).collect();
        let facts = json!({"name": "exec-server", "version": VERSION, "time": self.time()?, "toolchains": toolchains, "files": files});
        let mut text = serde_json::to_vec_pretty(&facts).context("cannot write release.json")?;
        text.push(b'\n');
        Ok(text)
    }

    /// The content of a file of the source tree.
    pub fn read(&self, path: &str) -> Result<String> {
        let file = self.root.join(path);
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// `exec-server-VERSION-TARGET`, the name that archives begin with.
    pub fn name(&self, target: &str) -> String {
        format!("exec-server-{VERSION}-{target}")
    }

    /// The systemd units, the users and the directories that they need, as they are installed.
    pub fn service_files(&self) -> Result<Tree> {
        let mut tree = Tree::default();
        for unit in UNITS {
            let text = self.read(&format!("crates/exec-server/systemd/{unit}"))?;
            tree.add(format!("usr/lib/systemd/system/{unit}"), text);
        }
        let users = self.read("crates/exec-server/systemd/exec-server.sysusers")?;
        tree.add("usr/lib/sysusers.d/exec-server.conf", users);
        Ok(tree)
    }
}

/// Units of the packages; `crates/exec-server/systemd/README.md` says what each is for. A socket is stopped before its service.
pub const UNITS: [&str; 5] = [
    "exec-server.socket",
    "exec-server-rendezvous.socket",
    "exec-server.service",
    "exec-server-executor@.service",
    "exec-server-rendezvous.service",
];

fn commit_time(root: &Path) -> Result<u64> {
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("this is not a clone: set SOURCE_DATE_EPOCH to the time of the release, in seconds");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().context("git printed no time")
}
