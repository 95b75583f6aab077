//! Resolves a path to its parent directory descriptor and last component.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

use super::metadata::Facts;
use crate::request::{FsError, Links};

/// The kernel's limit on links in one path; more are treated as a loop.
const MAX_LINKS: usize = 40;

/// `O_PATH` needs no permission to list the directory.
pub const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A write target: a name in an open directory, and the existing file, if any.
#[derive(Debug)]
pub struct Place {
    pub dir: OwnedFd,
    pub name: CString,
    pub existing: Option<Existing>,
}

/// The file that exists at a write target.
#[derive(Debug)]
pub struct Existing {
    /// Open for writing; `None` for a running program (`ETXTBSY`), which can only be replaced.
    pub file: Option<File>,
    pub facts: Facts,
    /// Whether the name in the directory refers to this file; if not, it can only be written in place.
    pub is_named: bool,
}

impl Place {
    /// Refreshes `existing`.
    pub fn look_again(&mut self) -> Result<(), FsError> {
        if let Some(old) = &mut self.existing {
            if !old.is_named {
                return Ok(());
            }
            let now = Facts::of_name(self.dir.as_fd(), &self.name);
            if let Ok(now) = now
                && now.identity() == old.facts.identity()
            {
                old.facts = now;
                return Ok(());
            }
        }
        self.existing = existing(&self.dir, &self.name)?;
        Ok(())
    }
}

/// Opens the root directory.
pub fn root() -> Result<OwnedFd, FsError> {
    openat(CWD, "/", DIRECTORY, Mode::empty()).map_err(system)
}

/// Opens the parent directory of a path; a symbolic link on the way gives `ENOTDIR`.
pub fn parent_without_links(path: &Path) -> Result<(OwnedFd, CString), FsError> {
    let mut dir = root()?;
    let mut names = names(path);
    let Some(last) = names.next_back() else { return Err(FsError::NoName) };
    for name in names {
        dir = enter(&dir, &name)?;
    }
    Ok((dir, last))
}

/// Opens a subdirectory; a symbolic link gives `ENOTDIR`.
pub fn enter(dir: &OwnedFd, name: &CStr) -> Result<OwnedFd, FsError> {
    openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(system)
}

/// Opens the parent directory of a path; links on the way are followed.
pub fn parent(path: &Path) -> Result<(OwnedFd, CString), FsError> {
    let Some(last) = names(path).next_back() else { return Err(FsError::NoName) };
    let parent = path.parent().unwrap_or(Path::new("/"));
    Ok((openat(CWD, parent, DIRECTORY, Mode::empty()).map_err(system)?, last))
}

/// Finds the write target of `path` and opens the existing file for writing, so that a replacement requires the same
/// permissions as a write.
pub fn target(path: &Path, links: Links) -> Result<Place, FsError> {
    match links {
        Links::Refuse => {
            let (dir, name) = parent_without_links(path)?;
            let existing = existing(&dir, &name)?;
            Ok(Place { dir, name, existing })
        }
        Links::Follow => match parent(path) {
            Ok((dir, name)) => target_in(dir, name),
            // The same error as for any other directory.
            Err(FsError::NoName) => Err(system(Errno::ISDIR)),
            Err(error) => Err(error),
        },
    }
}

/// Converts an errno of rustix.
pub fn system(errno: Errno) -> FsError {
    FsError::System(errno.into())
}

/// The components of a path below the root.
pub fn names(path: &Path) -> impl DoubleEndedIterator<Item = CString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => {
            Some(CString::new(name.as_bytes()).expect("a path URI holds no NUL byte"))
        }
        _ => None,
    })
}

const FOR_WRITING: OFlags = OFlags::WRONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

fn open_for_writing(dir: &OwnedFd, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    match openat(dir, name, flags, Mode::empty()) {
        // An append-only file can be opened only with O_APPEND.
        Err(Errno::PERM) => openat(dir, name, flags | OFlags::APPEND, Mode::empty()),
        other => other,
    }
}

/// Opens the file at a name for writing, if it exists.
fn existing(dir: &OwnedFd, name: &CStr) -> Result<Option<Existing>, FsError> {
    match open_for_writing(dir, name, FOR_WRITING) {
        Ok(fd) => {
            let facts = Facts::of_file(fd.as_fd())?;
            Ok(Some(Existing { file: Some(fd.into()), facts, is_named: true }))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::TXTBSY) => {
            let facts = Facts::of_name(dir.as_fd(), name)?;
            Ok(Some(Existing { file: None, facts, is_named: true }))
        }
        Err(errno) => Err(system(errno)),
    }
}

/// Finds the write target of a name in a directory; links are followed.
pub fn target_in(mut dir: OwnedFd, mut name: CString) -> Result<Place, FsError> {
    let mut reached = None;
    // One more iteration than links, for the target of the last link.
    for _ in 0..=MAX_LINKS {
        match existing(&dir, &name) {
            Err(FsError::System(error)) if error.raw_os_error() == Some(libc::ELOOP) => {}
            Err(error) => return Err(error),
            Ok(existing) => {
                let is_same = match (&reached, &existing) {
                    (Some(reached), Some(existing)) => is_same_file(reached, existing),
                    (reached, _) => reached.is_none(),
                };
                let existing = if is_same { existing } else { reached };
                return Ok(Place { dir, name, existing });
            }
        }
        if reached.is_none() {
            reached = through_link(&dir, &name)?;
            if reached.is_some() && is_procfs(&dir) {
                // A magic link in /proc refers to an open file, which is written directly and not by its name.
                return Ok(Place { dir, name, existing: reached });
            }
        }
        (dir, name) = match next_place(&dir, &name) {
            Ok(next) => next,
            // The name of the target cannot be resolved, as with magic links, but the file itself is open.
            Err(_) if reached.is_some() => return Ok(Place { dir, name, existing: reached }),
            Err(error) => return Err(error),
        };
    }
    Err(system(Errno::LOOP))
}

/// Opens the target of a link; `None` if the link is dangling.
fn through_link(dir: &OwnedFd, name: &CStr) -> Result<Option<Existing>, FsError> {
    match open_for_writing(dir, name, FOR_WRITING.difference(OFlags::NOFOLLOW)) {
        Ok(fd) => {
            let facts = Facts::of_file(fd.as_fd())?;
            Ok(Some(Existing { file: Some(fd.into()), facts, is_named: false }))
        }
        Err(Errno::TXTBSY) => {
            let facts = Facts::of_target(dir.as_fd(), name)?;
            Ok(Some(Existing { file: None, facts, is_named: false }))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(system(errno)),
    }
}

fn next_place(dir: &OwnedFd, name: &CStr) -> Result<(OwnedFd, CString), FsError> {
    let text = readlinkat(dir, name, Vec::new()).map_err(system)?;
    let path = Path::new(std::ffi::OsStr::from_bytes(text.as_bytes()));
    let Some(Component::Normal(last)) = path.components().next_back() else {
        return Err(system(Errno::ISDIR));
    };
    if text.as_bytes().ends_with(b"/") {
        return Err(system(Errno::ISDIR));
    }
    let last = CString::new(last.as_bytes()).expect("was part of a C string");
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((openat(dir, parent, DIRECTORY, Mode::empty()).map_err(system)?, last))
}

fn is_procfs(dir: &OwnedFd) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

fn is_same_file(one: &Existing, other: &Existing) -> bool {
    one.facts.identity() == other.facts.identity()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::AtFlags;

    use super::super::testing::{as_ordinary_user, errno, in_each_place};
    use super::*;

    #[test]
    fn the_parent_is_opened_and_the_last_name_is_given_back() {
        in_each_place(|place| {
            fs::create_dir(place.join("a")).unwrap();
            fs::write(place.join("a/file"), "12345").unwrap();
            let (dir, name) = parent_without_links(&place.join("a/file")).unwrap();
            assert_eq!(name.as_c_str(), c"file");
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            assert_eq!(stat.st_size, 5);
        });
    }

    #[test]
    fn the_last_name_need_not_exist() {
        in_each_place(|place| {
            let (_, name) = parent_without_links(&place.join("missing")).unwrap();
            assert_eq!(name.as_c_str(), c"missing");
        });
    }

    #[test]
    fn a_name_in_the_root_has_the_root_as_its_parent() {
        let (dir, name) = parent_without_links(Path::new("/proc")).unwrap();
        assert_eq!(name.as_c_str(), c"proc");
        let (found, root) = (rustix::fs::fstat(&dir).unwrap(), rustix::fs::stat("/").unwrap());
        assert_eq!((found.st_dev, found.st_ino), (root.st_dev, root.st_ino));
    }

    #[test]
    fn links_and_files_on_the_way_are_no_directories() {
        in_each_place(|place| {
            fs::create_dir(place.join("real")).unwrap();
            fs::write(place.join("file"), "").unwrap();
            symlink("real", place.join("link")).unwrap();
            for path in ["link/x", "file/x", "link/deeper/x"] {
                let error = parent_without_links(&place.join(path)).unwrap_err();
                assert_eq!(errno(&error), Some(libc::ENOTDIR), "{path}");
            }
            let error = parent_without_links(&place.join("missing/x")).unwrap_err();
            assert_eq!(errno(&error), Some(libc::ENOENT));
        });
    }

    #[test]
    fn the_root_has_no_name() {
        assert!(matches!(parent_without_links(Path::new("/")), Err(FsError::NoName)));
    }

    #[test]
    fn a_directory_without_read_permission_can_be_traversed() {
        as_ordinary_user(|place| {
            fs::create_dir_all(place.join("passage/inner")).unwrap();
            fs::set_permissions(place.join("passage"), PermissionsExt::from_mode(0o300)).unwrap();
            let outcome = parent_without_links(&place.join("passage/inner/x"));
            fs::set_permissions(place.join("passage"), PermissionsExt::from_mode(0o700)).unwrap();
            outcome.unwrap();
        });
    }
}
