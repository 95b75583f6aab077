//! The reference's executor, registered at a rendezvous.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::folder::RunFolder;

/// A running executor; killed when the test ends.
pub struct ReferenceExecutor {
    child: Child,
    _folder: RunFolder,
}

impl ReferenceExecutor {
    pub(super) fn start(binary: &Path, url: &str, environment: &str, token: &str) -> Self {
        let folder = RunFolder::create();
        let child = Command::new(binary)
            .args(["exec-server", "--remote", url, "--environment-id", environment])
            .current_dir(folder.workspace())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", folder.home())
            .env("CODEX_HOME", folder.home())
            .env("CODEX_API_KEY", token)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the executor can be started");
        Self { child, _folder: folder }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_none()
    }
}

impl Drop for ReferenceExecutor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
