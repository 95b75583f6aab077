//! Requests, errors and results of watches of trees; the same on every platform.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use exec_server_protocol::fs::FsChange;
use exec_server_protocol::limits::MAX_WATCHED_DIRECTORIES;
use serde::{Deserialize, Serialize};

use crate::byte_fields;

pub use crate::platform::tree_watch::TreeWatch;

/// What is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchSpec {
    /// A directory or a file.
    #[serde(with = "byte_fields::path")]
    pub path: PathBuf,
    /// Whether directories below it are watched, too.
    pub recursive: bool,
    /// How long changes are collected.
    pub window: Duration,
}

/// The first changes that a reader has not seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// In the order in which they happened.
    pub changes: Vec<FsChange>,
    /// Whether nothing more will come.
    pub ended: bool,
    /// Upper bound of the size of the changes as JSON.
    pub bytes: usize,
}

/// Memory for changes that are not read yet, shared by the watches of a session.
#[derive(Debug, Clone)]
pub struct ChangesRoom {
    free: Arc<AtomicUsize>,
}

/// With the unread replies of a connection, less than the 32 MiB that a client may cost that reads nothing.
const ROOM_BYTES: usize = 8 * 1024 * 1024;

impl Default for ChangesRoom {
    fn default() -> Self {
        Self { free: Arc::new(AtomicUsize::new(ROOM_BYTES)) }
    }
}

impl ChangesRoom {
    /// Takes nothing yet.
    pub fn share(&self) -> RoomShare {
        RoomShare { room: self.clone(), bytes: 0 }
    }
}

/// What one holder has taken of a [`ChangesRoom`]; given back when dropped.
#[derive(Debug)]
pub struct RoomShare {
    room: ChangesRoom,
    bytes: usize,
}

impl RoomShare {
    /// Takes more, if there is so much.
    pub fn try_take(&mut self, bytes: usize) -> bool {
        let less = |free: usize| free.checked_sub(bytes);
        let is_taken =
            self.room.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if is_taken {
            self.bytes += bytes;
        }
        is_taken
    }

    /// Gives back a part.
    pub fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.room.free.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back everything.
    pub fn clear(&mut self) {
        self.give_back(self.bytes);
    }
}

impl Drop for RoomShare {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Why a [`TreeWatch`] was not started.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum WatchError {
    /// The path does not exist or cannot be read.
    #[error(transparent)]
    Path(#[serde(with = "byte_fields::errno")] io::Error),
    /// The kernel's limit for this user is reached.
    #[error("the limit of the machine on inotify {} is reached", .0.name())]
    MachineLimit(InotifyLimit),
    /// The tree has more directories than one watch may have.
    #[error("the tree has more than {MAX_WATCHED_DIRECTORIES} directories; watch a part of it")]
    TooManyDirectories,
    /// The file system does not report every change, for example a network file system.
    #[error("`{}` is on a file system whose changes are not all reported", .0.display())]
    Silent(#[serde(with = "byte_fields::path")] PathBuf),
}

/// A limit of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InotifyLimit {
    /// One for each watch of a tree.
    Instances,
    /// One for each directory.
    Watches,
}

impl InotifyLimit {
    fn name(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::Watches => "watches",
        }
    }

    /// What helps.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Instances => "raise fs.inotify.max_user_instances, or end other watches",
            Self::Watches => "raise fs.inotify.max_user_watches, or watch a part of the tree",
        }
    }
}
