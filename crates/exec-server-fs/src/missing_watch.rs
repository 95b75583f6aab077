//! Errors of the missing-path watch; the same on every platform.

use std::io;
use std::path::PathBuf;

use exec_server_protocol::limits::MAX_WATCHED_PATHS;

pub use crate::platform::MissingWatch;

/// Why a [`MissingWatch`] was not started: it could miss changes or report them too late.
#[derive(Debug, thiserror::Error)]
pub enum NotWatched {
    /// No missing path was given.
    #[error("there is no path to watch")]
    Nothing,
    /// There are more paths, or more directories on the way to them, than one watch may cover.
    #[error("there are more than {MAX_WATCHED_PATHS} paths, or too many directories, to watch")]
    TooMany,
    /// A path that should be missing exists.
    #[error("`{path}` exists")]
    Exists {
        /// The path in question.
        path: PathBuf,
    },
    /// A path that should exist is missing.
    #[error("`{path}` does not exist")]
    Absent {
        /// The path in question.
        path: PathBuf,
    },
    /// A path is or contains a symbolic link, so it can change in places that are not watched.
    #[error("`{path}` is a link")]
    Link {
        /// Location of the link.
        path: PathBuf,
    },
    /// A path is on a file system that does not report every change, for example a network file system.
    #[error("`{path}` is on a file system whose changes are not all reported")]
    Silent {
        /// The first directory on that file system.
        path: PathBuf,
    },
    /// The paths changed while the watch was being set up.
    #[error("the paths are being changed")]
    Changing,
    /// A path could not be inspected or watched.
    #[error("`{path}` cannot be watched")]
    Unwatchable {
        /// The path in question.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// No watch could be created, regardless of the path.
    #[error("watching is not available")]
    Unavailable(#[source] io::Error),
}
