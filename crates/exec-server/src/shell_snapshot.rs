//! Runs a login shell's profile once and gives its effect to later commands: the pure part.
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
//! Kept are functions, aliases, options and what the profile exported. Not kept are what belongs to one shell alone:
//! traps, variables that are not exported, the directory, the mask and limits. A shell of kind `sh` that cannot list
//! its functions, such as dash, loses them.

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
    /// Any POSIX shell, with what all of them have in common.
    Sh,
}

/// Why a start request's `shellSnapshot` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The scope is the cache's key, so it has a length and a bound.
    #[error("shell snapshot scope must be non-empty and at most {MAX_SNAPSHOT_SCOPE_BYTES} bytes")]
    Scope,
    /// A shell whose state cannot be captured.
    #[error("shell snapshots are unsupported for shell `{0}`")]
    Shell(String),
}

/// Checks a request, whether or not it will be acted on.
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

/// Whether a command is one that the snapshot speaks about: a command line for that login shell.
pub fn applies(argv: &[String], snapshot: &ShellSnapshot) -> bool {
    match argv {
        // The shell would take a third word with a dash for one more option.
        [program, flags, command, ..] => {
            *program == snapshot.shell.path && flags == "-lc" && !command.starts_with(['-', '+'])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
