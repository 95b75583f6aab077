//! To be told when a path appears: why that can be refused; the same on every platform.

use std::io;
use std::path::PathBuf;

use exec_server_protocol::limits::MAX_WATCHED_PATHS;

pub use crate::platform::missing_watch::MissingWatch;

/// Why a [`MissingWatch`] was not begun: it would say too little, or say it too late.
#[derive(Debug, thiserror::Error)]
pub enum NotWatched {
    /// No missing path was given.
    #[error("there is no path to watch")]
    Nothing,
    /// More paths were given, or more directories lead to them, than one watch may have.
    #[error("there are more than {MAX_WATCHED_PATHS} paths, or too many directories, to watch")]
    TooMany,
    /// A path that should be missing is there.
    #[error("`{path}` exists")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The path that should be there is missing.
    #[error("`{path}` does not exist")]
    Absent {
        /// The path.
        path: PathBuf,
    },
    /// A path is a link or goes through one, so that it can change in places that are not watched.
    #[error("`{path}` is a link")]
    Link {
        /// Where the link is.
        path: PathBuf,
    },
    /// The kernel does not see every change there.
    #[error("`{path}` is on a file system whose changes are not all reported")]
    Silent {
        /// The first directory on it.
        path: PathBuf,
    },
    /// The paths changed while the watch was begun.
    #[error("the paths are being changed")]
    Changing,
    /// The system did not let us look at a path, or watch it.
    #[error("`{path}` cannot be watched")]
    Unwatchable {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The system has no watch for us, whatever the path.
    #[error("watching is not available")]
    Unavailable(#[source] io::Error),
}
