//! Changes below one directory by path, for platforms other than Linux.
//!
//! Every component is checked before use. Unlike on Linux, a local program that swaps a directory and a link at the
//! same moment can redirect a change; a server alone cannot.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::destination::{Kept, aside_name, check_name, in_the_way};

/// A directory below which a server's names are used.
#[derive(Debug)]
pub struct Beneath {
    root: PathBuf,
}

/// New content beside its destination; dropping it before [`Staged::publish`] discards it.
#[derive(Debug)]
pub struct Staged {
    file: File,
    path: PathBuf,
    aside: PathBuf,
    is_placed: bool,
}

/// Temporary name of unfinished content; the file may not exist.
#[derive(Debug)]
pub struct Aside {
    path: PathBuf,
}

impl Beneath {
    /// Opens a directory that the user named; links in its path are followed.
    pub fn open(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        if root.is_dir() { Ok(Self { root }) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }

    /// Creates a directory; an existing one is accepted.
    pub fn create_directory(&self, names: &[OsString]) -> io::Result<()> {
        let path = self.path(names)?;
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let kind = fs::symlink_metadata(&path)?.file_type();
                if kind.is_dir() { Ok(()) } else { Err(in_the_way(describe(kind))) }
            }
            result => result,
        }
    }

    /// Temporary path used by [`Beneath::stage`], for a removal that does not wait for its writer.
    pub fn aside(&self, names: &[OsString], token: &str) -> io::Result<Aside> {
        let name = names.last().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Aside { path: self.path(names)?.with_file_name(aside_name(name, token)) })
    }

    /// Starts new content for a regular file, new or existing.
    pub fn stage(&self, names: &[OsString], _mode: u32, token: &str) -> io::Result<Staged> {
        let path = self.path(names)?;
        regular(&path)?;
        let name = names.last().ok_or(io::ErrorKind::InvalidInput)?;
        let aside = path.with_file_name(aside_name(name, token));
        let file = OpenOptions::new().write(true).create_new(true).open(&aside)?;
        Ok(Staged { file, path, aside, is_placed: false })
    }

    /// Creates a symbolic link, or replaces an existing link.
    pub fn link(&self, names: &[OsString], target: &Path, token: &str) -> io::Result<()> {
        let path = self.path(names)?;
        match symlink(target, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
        let kind = fs::symlink_metadata(&path)?.file_type();
        if !kind.is_symlink() {
            return Err(in_the_way(describe(kind)));
        }
        let name = names.last().ok_or(io::ErrorKind::InvalidInput)?;
        let aside = path.with_file_name(aside_name(name, token));
        symlink(target, &aside)?;
        fs::rename(&aside, &path).inspect_err(|_| drop(fs::remove_file(&aside)))
    }

    /// Sets permission bits and time of a directory as far as the platform supports them; without names, of the root.
    pub fn set_attributes(&self, names: &[OsString], kept: Kept) -> io::Result<()> {
        let path = if names.is_empty() { self.root.clone() } else { self.path(names)? };
        if fs::symlink_metadata(&path)?.is_symlink() {
            return Err(in_the_way("a symbolic link"));
        }
        // The time first: the new bits may forbid to change it.
        File::open(&path)?.set_modified(kept.modified)?;
        kept.mode.map_or(Ok(()), |mode| set_mode(&path, mode))
    }

    /// The path of the last name; checks every directory above it.
    fn path(&self, names: &[OsString]) -> io::Result<PathBuf> {
        let (last, way) = names.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        check_name(last)?;
        let mut path = self.root.clone();
        for name in way {
            check_name(name)?;
            path.push(name);
            if !fs::symlink_metadata(&path)?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
        }
        path.push(last);
        Ok(path)
    }
}

impl Aside {
    /// Removes the file, if it exists.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

impl Staged {
    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Moves the content to its destination; it inherits the permission bits of the replaced file unless others are
    /// kept.
    pub fn publish(mut self, kept: Option<Kept>) -> io::Result<()> {
        match (kept.and_then(|kept| kept.mode), regular(&self.path)?) {
            (Some(mode), _) => set_mode(&self.aside, mode)?,
            (None, Some(old)) => self.file.set_permissions(old.permissions())?,
            (None, None) => {}
        }
        if let Some(kept) = kept {
            self.file.set_modified(kept.modified)?;
        }
        fs::rename(&self.aside, &self.path)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_placed {
            // A failure leaves the temporary file behind; nothing else can be done.
            let _ = fs::remove_file(&self.aside);
        }
    }
}

/// Opens a pipe or a device for writing.
pub fn open_stream(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Whether the file type is a pipe or device, which is written in order and never replaced.
pub fn is_stream(kind: fs::FileType) -> bool {
    system::is_stream(kind)
}

fn regular(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(metadata)),
        Ok(metadata) => Err(in_the_way(describe(metadata.file_type()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn describe(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_file() => "a file",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link",
        _ => "a pipe, a socket or a device",
    }
}

#[cfg(unix)]
mod system {
    use std::fs::{FileType, Permissions};
    use std::io;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::path::Path;

    pub use std::os::unix::fs::symlink;

    pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(path, Permissions::from_mode(mode))
    }

    pub fn is_stream(kind: FileType) -> bool {
        kind.is_fifo() || kind.is_char_device() || kind.is_block_device()
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::FileType;
    use std::io;
    use std::path::Path;

    pub fn symlink(_target: &Path, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn set_mode(_path: &Path, _mode: u32) -> io::Result<()> {
        Ok(())
    }

    pub fn is_stream(_kind: FileType) -> bool {
        false
    }
}

use system::{set_mode, symlink};
