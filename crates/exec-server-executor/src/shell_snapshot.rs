//! Captures the effect of a login shell's profile and restores it for later commands; without I/O.
//!
//! ```text
//!   capture_argv ──▶ login shell ──stdout──▶ parse_capture ──▶ Snapshot
//!                                                                 │
//!   shell -lc CMD ARGS… ──▶ restore_argv ◀────────────────────────┘
//!                               │
//!                               ▼
//!              shell -c (read /dev/fd/3, then CMD) ARGS…, and the bytes for descriptor 3
//! ```
//!
//! A snapshot holds functions, aliases, options and exported variables. It does not hold traps, variables that are not
//! exported, the working directory, the umask and limits. Functions are lost in a shell of kind `sh` that cannot list
//! them, such as dash.

use exec_server_protocol::limits::MAX_SNAPSHOT_SCOPE_BYTES;
use exec_server_protocol::process::ShellSnapshot;

pub use capture::{MAX_SNAPSHOT_BYTES, Snapshot, capture_argv, parse_capture};
pub use restore::restore_argv;

mod capture;
mod restore;
mod variables;

/// The shells whose state can be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShellKind {
    /// GNU bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// Any POSIX shell, with the features that all of them share.
    Sh,
}

/// The reason why the `shellSnapshot` of a start request is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The scope is a cache key, so its length is bounded.
    #[error("shell snapshot scope must be non-empty and at most {MAX_SNAPSHOT_SCOPE_BYTES} bytes")]
    Scope,
    /// The state of this shell cannot be captured.
    #[error("shell snapshots are unsupported for shell `{0}`")]
    Shell(String),
}

/// Checks the request; also called for commands that the snapshot does not apply to.
pub fn validate(snapshot: &ShellSnapshot) -> Result<ShellKind, SnapshotError> {
    if snapshot.scope_id.is_empty() || snapshot.scope_id.len() > MAX_SNAPSHOT_SCOPE_BYTES {
        return Err(SnapshotError::Scope);
    }
    match snapshot.shell.name.as_str() {
        "bash" => Ok(ShellKind::Bash),
        "zsh" => Ok(ShellKind::Zsh),
        "sh" => Ok(ShellKind::Sh),
        other => Err(SnapshotError::Shell(other.to_owned())),
    }
}

/// Whether the command is `shell -lc COMMAND …` with the shell of the snapshot.
pub fn applies(argv: &[String], snapshot: &ShellSnapshot) -> bool {
    match argv {
        // The shell would parse a third word that starts with a dash or a plus as an option.
        [program, flags, command, ..] => {
            *program == snapshot.shell.path && flags == "-lc" && !command.starts_with(['-', '+'])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
