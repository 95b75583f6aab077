//! Changes below one directory through descriptors, so that no name and no symbolic link leads outside of it.
//!
//! Every directory on the way is opened by its name in its parent's descriptor, without following links.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::destination::{Kept, aside_name, check_name, in_the_way};

/// `O_PATH` needs no permission to list the directory.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory below which names supplied by a server are used.
#[derive(Debug)]
pub struct Beneath {
    root: OwnedFd,
}

/// New content in a temp file beside its target; dropped before [`Staged::publish`], it is removed.
#[derive(Debug)]
pub struct Staged {
    file: File,
    dir: OwnedFd,
    name: OsString,
    aside: OsString,
    is_placed: bool,
}

/// The temp name of staged content; the file may not exist.
#[derive(Debug)]
pub struct Aside {
    dir: OwnedFd,
    name: OsString,
}

impl Beneath {
    /// Opens a directory that the local user named; symbolic links in its path are followed.
    pub fn open(root: &Path) -> io::Result<Self> {
        Ok(Self { root: openat(CWD, root, DIRECTORY, Mode::empty())? })
    }

    /// Creates a directory, or accepts an existing one.
    pub fn create_directory(&self, names: &[OsString]) -> io::Result<()> {
        let (dir, name) = self.parent(names)?;
        match mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => match look(&dir, name)? {
                Some((FileType::Directory, _)) => Ok(()),
                Some((kind, _)) => Err(in_the_way(describe(kind))),
                None => Err(Errno::NOENT.into()),
            },
            result => Ok(result?),
        }
    }

    /// The temp name that [`Beneath::stage`] uses, for removing the file without waiting for its writer.
    pub fn aside(&self, names: &[OsString], token: &str) -> io::Result<Aside> {
        let (dir, name) = self.parent(names)?;
        Ok(Aside { name: aside_name(name, token), dir })
    }

    /// Stages new content for a new or existing regular file.
    pub fn stage(&self, names: &[OsString], mode: u32, token: &str) -> io::Result<Staged> {
        let (dir, name) = self.parent(names)?;
        regular(&dir, name)?;
        let aside = aside_name(name, token);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&dir, &aside, flags, Mode::from_raw_mode(mode & 0o777 | 0o600))?.into();
        Ok(Staged { file, dir, name: name.to_owned(), aside, is_placed: false })
    }

    /// Creates a symbolic link; replaces an existing symbolic link.
    pub fn link(&self, names: &[OsString], target: &Path, token: &str) -> io::Result<()> {
        let (dir, name) = self.parent(names)?;
        match symlinkat(target, &dir, name) {
            Err(Errno::EXIST) => {}
            result => return Ok(result?),
        }
        match look(&dir, name)? {
            Some((FileType::Symlink, _)) | None => {}
            Some((kind, _)) => return Err(in_the_way(describe(kind))),
        }
        let aside = aside_name(name, token);
        symlinkat(target, &dir, &aside)?;
        renameat(&dir, &aside, &dir, name).inspect_err(|_| {
            // Best effort: the temp name stays if this fails.
            let _ = unlinkat(&dir, &aside, AtFlags::empty());
        })?;
        Ok(())
    }

    /// Sets the mode and modification time of a directory; without names, of the root itself.
    pub fn set_attributes(&self, names: &[OsString], kept: Kept) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory: File = if names.is_empty() {
            openat(&self.root, ".", flags, Mode::empty())?.into()
        } else {
            let (dir, name) = self.parent(names)?;
            openat(&dir, name, flags, Mode::empty())?.into()
        };
        // Set the time first, because the new mode may deny changes.
        directory.set_modified(kept.modified)?;
        kept.mode.map_or(Ok(()), |mode| directory.set_permissions(Permissions::from_mode(mode)))
    }

    /// Opens the parent directory of the last name.
    fn parent<'a>(&self, names: &'a [OsString]) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (last, way) = names.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        check_name(last)?;
        let mut dir = self.root.as_fd().try_clone_to_owned()?;
        for name in way {
            check_name(name)?;
            dir = openat(&dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok((dir, last))
    }
}

impl Aside {
    /// Unlinks the temp file.
    pub fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.dir, &self.name, AtFlags::empty())?)
    }
}

impl Staged {
    /// The temp file to write the content to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Renames the content to its name; an existing file passes its mode on unless `kept` has one.
    pub fn publish(mut self, kept: Option<Kept>) -> io::Result<()> {
        let old = regular(&self.dir, &self.name)?;
        // setuid and setgid are not passed on to new content.
        let mode = kept.and_then(|kept| kept.mode).or(old.map(|mode| mode & 0o1777));
        if let Some(mode) = mode {
            self.file.set_permissions(Permissions::from_mode(mode))?;
        }
        if let Some(kept) = kept {
            self.file.set_modified(kept.modified)?;
        }
        let (dir, aside, name) = (&self.dir, &self.aside, &self.name);
        let placed = match old {
            Some(_) => renameat(dir, aside, dir, name),
            None => match renameat_with(dir, aside, dir, name, RenameFlags::NOREPLACE) {
                // The file system does not support this flag.
                Err(Errno::INVAL | Errno::NOSYS) => renameat(dir, aside, dir, name),
                result => result,
            },
        };
        placed?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_placed {
            // Best effort: the temp name stays if this fails.
            let _ = unlinkat(&self.dir, &self.aside, AtFlags::empty());
        }
    }
}

/// Opens a pipe or a device for writing; a pipe without a reader waits for one.
pub fn open_stream(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

/// Whether the file is a pipe or a device, which is written to and never replaced.
pub fn is_stream(kind: std::fs::FileType) -> bool {
    kind.is_fifo() || kind.is_char_device() || kind.is_block_device()
}

/// The mode of an existing regular file, `None` if nothing exists; an error for any other kind.
fn regular(dir: &OwnedFd, name: &OsStr) -> io::Result<Option<u32>> {
    match look(dir, name)? {
        None => Ok(None),
        Some((FileType::RegularFile, mode)) => Ok(Some(mode)),
        Some((kind, _)) => Err(in_the_way(describe(kind))),
    }
}

fn look(dir: &OwnedFd, name: &OsStr) -> io::Result<Option<(FileType, u32)>> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some((FileType::from_raw_mode(stat.st_mode), stat.st_mode & 0o7777))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something",
    }
}
