//! Errors and results of watches of trees; the same on every platform.

use std::io;
use std::path::PathBuf;

use exec_server_protocol::fs::FsChange;
use exec_server_protocol::limits::MAX_WATCHED_DIRECTORIES;

pub use crate::platform::tree_watch::TreeWatch;

/// Changes that a reader has not seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// In the order in which they happened.
    pub changes: Vec<FsChange>,
    /// Whether nothing more will come.
    pub ended: bool,
}

/// Why a [`TreeWatch`] was not started.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The path does not exist or cannot be read.
    #[error("{0}")]
    Path(#[source] io::Error),
    /// The kernel's limit for this user is reached.
    #[error("the limit of the machine on inotify {what} is reached")]
    MachineLimit {
        /// Watches, or instances.
        what: &'static str,
        /// The setting that raises it.
        hint: &'static str,
    },
    /// The tree has more directories than one watch may have.
    #[error("the tree has more than {MAX_WATCHED_DIRECTORIES} directories; watch a part of it")]
    TooManyDirectories,
    /// The file system does not report every change, for example a network file system.
    #[error("`{}` is on a file system whose changes are not all reported", .0.display())]
    Silent(PathBuf),
}
