//! Other platforms: a copy to a local destination works, and every request for files returns an error.

use std::future::Ready;
use std::io;
use std::path::{Path, PathBuf};

use exec_server_os::{never_made, unsupported};
use exec_server_protocol::fs::FsWriteFileResponse;

use crate::missing_watch::NotWatched;
use crate::request::{Blocking, FsError, FsReply, FsRequest, Leftovers};

never_made! {
    OpenFile {
        fn size(&self) -> u64;
        fn version_tag(&self) -> io::Result<String>;
        fn read_pieces(&self, offset: u64, len: u64, patience: Blocking, take: impl FnMut(&[u8])) -> io::Result<u64>;
    }
    StagedFile {
        fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
        fn publish(self) -> Result<(FsWriteFileResponse, Leftovers), FsError>;
    }
    MissingWatch {
        fn changed(self) -> Ready<io::Result<()>>;
    }
}

impl MissingWatch {
    /// Fails, so that the client looks for itself.
    pub fn new(_missing: &[PathBuf], _present: Option<&Path>) -> Result<Self, NotWatched> {
        unsupported("watching").map_err(NotWatched::Unavailable)
    }
}

pub mod tree_watch {
    //! Watches of trees.

    use std::future::Ready;
    use std::io;

    use exec_server_os::never_made;

    use crate::tree_watch::{Changes, ChangesRoom, WatchError, WatchSpec};

    never_made! {
        TreeWatch {
            fn directories(&self) -> u64;
            fn skipped(&self) -> u64;
            fn changes_after(&self, seq: u64) -> Changes;
            fn wait_after(&self, seq: u64) -> Ready<()>;
        }
    }

    impl TreeWatch {
        /// Fails.
        pub fn start(_spec: &WatchSpec, _room: &ChangesRoom) -> Result<Self, WatchError> {
            Err(WatchError::Path(io::ErrorKind::Unsupported.into()))
        }
    }
}

pub mod search {
    //! Searches of trees.

    use exec_server_os::{never_made, unsupported};

    use crate::request::FsError;
    use crate::search::{LinePattern, PageText, SearchSpec};

    never_made! {
        Search {
            fn next_page(&self) -> PageText;
            fn cancel(&self) -> ();
        }
    }

    never_made! {
        LineMatcher {
            fn is_match(&self, line: &[u8]) -> bool;
        }
    }

    impl LineMatcher {
        /// Fails.
        pub fn new(_pattern: LinePattern) -> Result<Self, FsError> {
            Ok(unsupported("searches of lines")?)
        }
    }

    impl Search {
        /// Fails.
        pub fn start(_spec: SearchSpec) -> Result<Self, FsError> {
            Ok(unsupported("searches of trees")?)
        }
    }
}

never_made! {
    UnnamedFile {
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    }
}

impl UnnamedFile {
    /// Fails.
    pub fn create(_dir: &Path) -> io::Result<Self> {
        unsupported("a file without a name")
    }
}

/// Fails.
pub fn perform(_request: FsRequest) -> Result<FsReply, FsError> {
    Ok(unsupported("access to files")?)
}

/// Nothing is cached.
pub fn answer_from_cache(_request: &FsRequest) -> Option<Result<FsReply, FsError>> {
    None
}

/// No cursor was ever given out.
pub fn decode_cursor(_cursor: &str) -> Option<Vec<u8>> {
    None
}

/// Files have no identity.
pub type PathIdentity = ();

/// Files have no identity.
pub fn identity_of(_path: &Path) -> Option<PathIdentity> {
    None
}

/// Files have no identity.
pub fn identity_from_cache(_path: &Path) -> Option<Option<PathIdentity>> {
    Some(None)
}

/// The error of a descriptor that was opened for the other direction.
pub fn bad_descriptor() -> FsError {
    io::Error::from(io::ErrorKind::InvalidInput).into()
}
