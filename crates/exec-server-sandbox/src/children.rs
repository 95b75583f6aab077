//! What the server holds of processes in a sandbox; the same on every platform.

use exec_server_fs::FsReply;
use exec_server_os::spawn::Spawned;
use serde::{Deserialize, Serialize};

use crate::{ConfinedFile, RefusedCalls};

/// The hidden argument that makes this program a zygote.
pub const ZYGOTE_ARGUMENT: &str = "--sandbox-zygote";

/// A command that runs in a sandbox.
#[derive(Debug)]
pub struct SandboxedChild {
    /// The launcher with the command's streams; its exit status is the command's.
    pub spawned: Spawned,
    /// Calls that the sandbox has denied so far.
    pub refused: RefusedCalls,
}

/// What a watch has found at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    /// How many directories are watched.
    pub directories: u64,
    /// How many directories could not be read.
    pub skipped: u64,
}

/// The result of a file request that may stage content.
#[derive(Debug)]
#[cfg_attr(
    not(exec_server_unsupported),
    expect(clippy::large_enum_variant, reason = "it is unpacked where it is received")
)]
pub enum WorkerOutcome {
    /// A reply like that of a request outside a sandbox.
    Reply(FsReply),
    /// Staged content, which the worker holds.
    Staged(ConfinedFile),
}
