//! The reference's server.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::folder::RunFolder;
use super::{ReferenceClient, ReferenceVersion};
use crate::DEADLINE;

/// A running server; killed when the test ends.
pub struct ReferenceServer {
    url: String,
    _child: Child,
    _folder: RunFolder,
}

impl ReferenceServer {
    /// Starts a server; prints a message and returns `None` if the version is not available.
    pub async fn start(version: ReferenceVersion) -> Option<Self> {
        let finding = tokio::task::spawn_blocking(move || ReferenceClient::find(version));
        let program = finding.await.expect("finding does not panic")?;
        let folder = RunFolder::create();
        let mut child = Command::new(program.binary())
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .current_dir(folder.workspace())
            .env("CODEX_HOME", folder.home())
            // What a command must not get, and what only looks like it.
            .envs([("DB_PASSWORD", "secret"), ("CI_PAT", "secret"), ("PATTERN_DIR", "plain")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the reference can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let line = timeout(DEADLINE, lines.next_line()).await.expect("it starts in time");
        let url = line.expect("its output can be read").expect("the first line is the URL");
        Some(Self { url, _child: child, _folder: folder })
    }

    /// URL of the listener.
    pub fn url(&self) -> &str {
        &self.url
    }
}
