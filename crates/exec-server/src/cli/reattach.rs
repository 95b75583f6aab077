//! The `attach` command that is shown to a user who leaves a running process.

use super::format;

/// The command that attaches to a process; `None` if the server does not support attaching.
#[derive(Debug, Clone)]
pub struct ReattachHint {
    command: String,
    is_there: bool,
}

impl ReattachHint {
    /// The command for process `id` on `target`.
    pub fn new(target: Option<&str>, id: &str) -> Self {
        let target = target.map(|target| format!("{target} ")).unwrap_or_default();
        let command = format!("exec-server attach {target}{}", format::plain(id));
        Self { command, is_there: true }
    }

    /// The server does not support attaching.
    pub fn forbid(&mut self) {
        self.is_there = false;
    }

    pub fn command(&self) -> &str {
        &self.command
    }

    /// The hint for a user who leaves.
    pub fn describe(&self) -> String {
        if self.is_there {
            format!("`{}` attaches again", self.command)
        } else {
            "this server has no way back to the command".to_owned()
        }
    }
}
