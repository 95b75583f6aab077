//! Operations on names and permissions: mkdir, symlink, rename, canonicalize, chmod.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use exec_server_os::linux::temp_registry;
use exec_server_protocol::fs::FsCanonicalizeResponse;
use exec_server_protocol::path_uri::PathUri;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, chmodat, mkdirat, openat, renameat, renameat_with,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::metadata::Facts;
use super::resolve::{self, system};
use super::stage::{modified_at, temporary_name};
use crate::request::{FsError, Links};

/// Mode of new directories before the umask is applied.
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o777);

/// Creates a directory.
pub fn create_directory(path: &Path, recursive: bool, links: Links) -> Result<(), FsError> {
    match (links, recursive) {
        (Links::Follow, false) => mkdirat(CWD, path, NEW_DIRECTORY).map_err(system),
        (Links::Follow, true) => create_with_parents(path),
        (Links::Refuse, false) => match resolve::parent_without_links(path) {
            Err(FsError::NoName) => Err(FsError::DirectoryExists),
            Err(error) => Err(error),
            Ok((dir, name)) => mkdirat(dir, name, NEW_DIRECTORY).map_err(system),
        },
        (Links::Refuse, true) => create_without_links(path),
    }
}

/// Retries for parents that are removed concurrently.
const MAX_REMOVED_MEANWHILE: usize = 16;

/// Creates a directory and its missing parents; concurrent creation of the same directories is accepted.
pub fn create_with_parents(path: &Path) -> Result<(), FsError> {
    let mut missing = Vec::new();
    let mut next = path;
    // A concurrent removal also gives this error, but some file systems return it for every name in an existing directory.
    let mut steps_back = path.components().count() + MAX_REMOVED_MEANWHILE;
    loop {
        match mkdirat(CWD, next, NEW_DIRECTORY) {
            Ok(()) => {}
            Err(Errno::NOENT) if next.parent().is_some() && steps_back > 0 => {
                steps_back -= 1;
                missing.push(next);
                next = next.parent().expect("was just seen");
                continue;
            }
            Err(errno) => {
                let is_directory = Facts::of_path(next).is_ok_and(|facts| facts.is_directory());
                if !is_directory {
                    return Err(system(errno));
                }
            }
        }
        match missing.pop() {
            Some(below) => next = below,
            None => return Ok(()),
        }
    }
}

fn create_without_links(path: &Path) -> Result<(), FsError> {
    let mut dir = resolve::root()?;
    for name in resolve::names(path) {
        match mkdirat(&dir, &name, NEW_DIRECTORY) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                // mkdir may fail for another reason, such as EROFS, although the directory exists.
                if Facts::of_name(dir.as_fd(), &name).is_err() {
                    return Err(system(errno));
                }
            }
        }
        dir = resolve::enter(&dir, &name)?;
    }
    Ok(())
}

/// Resolves all links in a path.
pub fn canonicalize(path: &Path) -> Result<FsCanonicalizeResponse, FsError> {
    let path = std::fs::canonicalize(path)?;
    Ok(FsCanonicalizeResponse { path: PathUri::from_posix(path.as_os_str().as_bytes()) })
}

/// Renames a file or a directory.
pub fn rename(source: &Path, destination: &Path, no_replace: bool) -> Result<(), FsError> {
    if no_replace {
        renameat_with(CWD, source, CWD, destination, RenameFlags::NOREPLACE).map_err(system)
    } else {
        renameat(CWD, source, CWD, destination).map_err(system)
    }
}

/// Creates a symbolic link; with `replace`, an existing link is replaced atomically.
pub fn symlink(path: &Path, target: &[u8], replace: bool) -> Result<(), FsError> {
    let target = CString::new(target).map_err(|_| system(Errno::INVAL))?;
    let (dir, name) = resolve::parent(path)?;
    match symlinkat(target.as_c_str(), &dir, &name) {
        Err(Errno::EXIST) if replace && Facts::of_name(dir.as_fd(), &name)?.is_link() => {}
        other => return other.map_err(system),
    }
    let aside = temporary_name();
    let _note = temp_registry::note(&dir, &aside);
    symlinkat(target.as_c_str(), &dir, &aside).map_err(system)?;
    renameat(&dir, &aside, &dir, &name).map_err(|errno| {
        // Best effort: the temp name stays if this fails.
        let _ = unlinkat(&dir, &aside, AtFlags::empty());
        system(errno)
    })
}

/// Sets the permission bits, and the modification time if one is given.
pub fn set_permissions(
    path: &Path,
    mode: u32,
    modified_at_ms: Option<i64>,
    links: Links,
) -> Result<(), FsError> {
    let (dir, name) = match links {
        Links::Follow => return set_both(path, mode, modified_at_ms),
        Links::Refuse => resolve::parent_without_links(path)?,
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::empty()).map_err(system)?;
    if Facts::of_file(file.as_fd())?.is_link() {
        return Err(FsError::IsLink);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    set_both(Path::new(&path), mode, modified_at_ms)
}

fn set_both(path: &Path, mode: u32, modified_at_ms: Option<i64>) -> Result<(), FsError> {
    chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(system)?;
    let Some(millis) = modified_at_ms else { return Ok(()) };
    utimensat(CWD, path, &modified_at(millis), AtFlags::empty()).map_err(system)
}
