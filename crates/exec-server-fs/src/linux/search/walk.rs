//! Sets up the walk through a tree; symbolic links in it are never followed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::available_parallelism;

use exec_server_protocol::path_uri::PathUri;
use ignore::overrides::OverrideBuilder;
use ignore::types::TypesBuilder;
use ignore::{WalkBuilder, WalkParallel};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::queue::Shared;
use crate::request::FsError;
use crate::search::SearchSpec;

/// More threads than this wait for the same disk.
const MAX_THREADS: usize = 8;

/// The parallel walk of a search.
pub fn builder(spec: &SearchSpec) -> Result<WalkParallel, FsError> {
    let filter = &spec.filter;
    let mut overrides = OverrideBuilder::new(&spec.root);
    for glob in &filter.globs {
        overrides.add(glob).map_err(wrong)?;
    }
    let mut types = TypesBuilder::new();
    types.add_defaults();
    for name in &filter.types {
        types.select(name);
    }
    let depth = filter.max_depth.map(|depth| usize::try_from(depth).unwrap_or(usize::MAX));
    let threads = available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    Ok(WalkBuilder::new(&spec.root)
        .hidden(!filter.hidden)
        .ignore(filter.ignore)
        .git_ignore(filter.ignore)
        .git_exclude(filter.ignore)
        .git_global(filter.ignore)
        .parents(filter.ignore)
        .require_git(false)
        .follow_links(false)
        .max_depth(depth)
        .max_filesize(filter.max_file_bytes)
        .overrides(overrides.build().map_err(wrong)?)
        .types(types.build().map_err(wrong)?)
        .threads(threads)
        .build_parallel())
}

fn wrong(error: ignore::Error) -> FsError {
    FsError::Pattern(error.to_string())
}

/// Records why an entry could not be read.
pub fn note(shared: &Shared, root: &Path, error: &ignore::Error) {
    let path = path_of(error).unwrap_or(root);
    let message = match error.io_error() {
        Some(error) => error.to_string(),
        None => error.to_string(),
    };
    // A file that was removed since its directory was listed is not part of the tree.
    if error.io_error().is_none_or(|error| error.kind() != io::ErrorKind::NotFound) {
        shared.note_error(path, message);
    }
}

fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithLineNumber { err, .. } | ignore::Error::WithDepth { err, .. } => {
            path_of(err)
        }
        ignore::Error::Loop { child, .. } => Some(child),
        _ => None,
    }
}

/// Opens a directory that files are opened below.
pub fn open_root(root: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, root, flags, Mode::empty())?)
}

const FOR_READING: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a file below a directory; a link anywhere on the way is refused, also one that has just replaced a directory.
pub fn open_below(root: &OwnedFd, below: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(root, below, FOR_READING, Mode::empty(), resolve) {
        // Not known to old kernels and old container runtimes.
        Err(Errno::NOSYS | Errno::PERM) => {
            Ok(openat(root, below, FOR_READING | OFlags::NOFOLLOW, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

/// Opens a file that the request names itself.
pub fn open_file(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, FOR_READING, Mode::empty())?)
}

pub fn path_uri(path: &Path) -> PathUri {
    PathUri::from_posix(path.as_os_str().as_bytes())
}
