//! Atomic file replacement: content is staged, then published by rename or link.
//!
//! ```text
//! begin ─▶ staged ─write_at…─▶ staged ─publish─▶ published: renamed over the old file, or linked as a new one
//!                                 │         └──▶ published in place: the inode of the old file had to be kept
//!                                 └─drop───────▶ discarded, and the old file is unchanged
//! ```
//!
//! Invariant: the staged content is invisible until it is published. Where the file system supports it, the staged file
//! has no name, so that a crash leaves nothing behind.

use std::ffi::CString;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::LazyLock;

use exec_server_os::linux::temp_registry::{self, PREFIX, TempEntry};
use exec_server_protocol::fs::{Durability, FsWriteFileResponse};
use rustix::fs::{
    AtFlags, CWD, MemfdFlags, Mode, OFlags, RenameFlags, Timestamps, UTIME_NOW, fdatasync, fsync,
    futimens, linkat, memfd_create, openat, renameat, renameat_with, syncfs, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::attributes;
use super::in_place;
use super::metadata::Facts;
use super::path_locks;
use super::resolve::{self, Existing, Place, system};
use crate::request::{FsError, Leftovers, Links, WriteOptions};

/// New content for a file, not yet published.
#[derive(Debug)]
pub struct StagedFile {
    file: File,
    /// Location of the staged file.
    aside: Aside,
    place: Place,
    /// Mode of the new file, if it differs from that of the old one.
    mode: Option<u32>,
    /// Mode of the old file, used if it is removed before the new one is published; without an old file, the requested
    /// mode of new files.
    old_mode: Option<u32>,
    options: WriteOptions,
}

#[derive(Debug)]
enum Aside {
    /// In the target's directory, without a name.
    Unnamed,
    /// In the target's directory, under this name, which is registered with the guardian.
    Named { name: CString, _note: Option<TempEntry> },
    /// In the temp directory or in memory, because no file can be created in the target's directory.
    Elsewhere,
}

/// Mode of new files before the umask is applied.
const NEW_FILE: Mode = Mode::from_raw_mode(0o666);

const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);

const STAGING: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

/// Replaces the content of a file, or creates it.
pub fn write(
    path: &Path,
    links: Links,
    data: &[u8],
    options: WriteOptions,
) -> Result<(FsWriteFileResponse, Leftovers), FsError> {
    let place = resolve::target(path, links)?;
    if let Some(existing) = &place.existing {
        check(Some(&existing.facts), &options)?;
        if !existing.facts.is_regular() {
            // With links, writing to a device such as `/dev/null` is allowed; without links it is rejected.
            let file = existing.file.as_ref().filter(|_| links == Links::Follow);
            let Some(file) = file else {
                return Err(FsError::NotAFile(path.to_owned(), existing.facts.nature()));
            };
            in_place::write_all(file, data)?;
            let response = FsWriteFileResponse { in_place: Some(true), ..Default::default() };
            return Ok((response, Leftovers::default()));
        }
    }
    let staged = StagedFile::new(place, options)?;
    staged.write_at(data, 0)?;
    staged.publish()
}

/// Stages new content for a regular file.
pub fn begin(path: &Path, links: Links, options: WriteOptions) -> Result<StagedFile, FsError> {
    let place = resolve::target(path, links)?;
    if let Some(existing) = place.existing.as_ref().filter(|found| !found.facts.is_regular()) {
        return Err(FsError::NotAFile(path.to_owned(), existing.facts.nature()));
    }
    check(place.existing.as_ref().map(|existing| &existing.facts), &options)?;
    StagedFile::new(place, options)
}

/// Checks the preconditions of a write against the existing file.
pub fn check(existing: Option<&Facts>, options: &WriteOptions) -> Result<(), FsError> {
    if options.if_absent && existing.is_some() {
        return Err(system(Errno::EXIST));
    }
    match (&options.if_match, existing) {
        (Some(tag), Some(facts)) if *tag == facts.version_tag() => Ok(()),
        (Some(_), _) => Err(FsError::VersionMismatch),
        (None, _) => Ok(()),
    }
}

impl StagedFile {
    /// Stages new content for the file at `place`.
    pub(super) fn new(place: Place, options: WriteOptions) -> Result<Self, FsError> {
        let old = place.existing.as_ref();
        if old.is_some_and(|old| old.facts.only_grows()) {
            return Err(system(Errno::PERM));
        }
        let created = match old {
            // A file that was not found by name can only be written in place.
            Some(old) if !old.is_named && old.file.is_none() => return Err(system(Errno::TXTBSY)),
            Some(old) if !old.is_named => Err(Errno::PERM.into()),
            // In an append-only directory a temp name could not be removed.
            Some(_) if Facts::of_file(place.dir.as_fd())?.only_grows() => Err(Errno::PERM.into()),
            // Private until the permissions of the old file are applied.
            Some(_) => create_aside(&place.dir, PRIVATE_FILE),
            None => create_aside(&place.dir, NEW_FILE),
        };
        let (file, aside) = match created {
            Ok(created) => created,
            Err(error) => {
                let can_write = old.is_some_and(|old| old.file.is_some());
                let takes_no_names = matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)
                );
                if !(can_write && takes_no_names) {
                    return Err(error.into());
                }
                (create_elsewhere()?, Aside::Elsewhere)
            }
        };
        let old_mode = old.map(|old| old.facts.mode()).or(options.attributes.new_mode);
        let mode = options.attributes.mode;
        Ok(Self { file, aside, place, mode, old_mode, options })
    }

    /// The file with the new content.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Sets the mode of the new file, instead of that of the old one.
    pub(super) fn set_mode(&mut self, mode: u32) {
        self.mode = Some(mode);
    }

    /// Writes at any offset; gaps read as zeros.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Publishes the content.
    pub fn publish(mut self) -> Result<(FsWriteFileResponse, Leftovers), FsError> {
        sync(&self.file, self.options.durability)?;
        let Put { in_place, facts } = {
            let _turn = path_locks::take(&self.place);
            self.set_time(&self.file)?;
            self.put()?
        };
        if !in_place {
            // The attributes have changed since the first sync, and some file systems defer files without a name.
            sync(&self.file, self.options.durability)?;
            if self.options.durability == Durability::Full {
                self.sync_directory()?;
            }
        }
        let mut response =
            FsWriteFileResponse { in_place: in_place.then_some(true), ..Default::default() };
        if self.options.detailed {
            response.size = Some(facts.size());
            response.version_tag = Some(facts.version_tag());
        }
        let old = self.place.existing.take().and_then(|old| old.file);
        Ok((response, Leftovers { _old: old, ..Leftovers::default() }))
    }

    fn set_time(&self, file: &File) -> Result<(), FsError> {
        let Some(millis) = self.options.attributes.modified_at_ms else { return Ok(()) };
        futimens(file, &modified_at(millis)).map_err(system)
    }

    fn sync_directory(&self) -> Result<(), FsError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(&self.place.dir, c".", flags, Mode::empty()) {
            Ok(dir) => fsync(dir).map_err(system),
            // A directory that cannot be opened for reading is synced with its whole file system.
            Err(Errno::ACCESS) => syncfs(&self.file).map_err(system),
            Err(errno) => Err(system(errno)),
        }
    }

    /// Publishes by rename, link or copy.
    fn put(&mut self) -> Result<Put, FsError> {
        // Another process may create or remove the target between two checks, so retry a bounded number of times.
        for _ in 0..MAX_LOOKS {
            self.place.look_again()?;
            let facts = self.place.existing.as_ref().map(|old| &old.facts);
            check(facts, &self.options)?;
            let Some(old) = &self.place.existing else {
                match self.put_as_new() {
                    Err(Errno::EXIST) if !self.options.if_absent => continue,
                    other => return other.map_err(system).and_then(|()| self.replaced()),
                }
            };
            if !old.facts.is_regular() {
                return Err(system(Errno::EXIST));
            }
            if !can_be_replaced(old) || matches!(self.aside, Aside::Elsewhere) {
                return self.put_in_place();
            }
            if self.take_over(old).is_err() {
                return self.put_in_place();
            }
            return match self.put_over() {
                Ok(()) => self.replaced(),
                // A mount point, a sticky directory or an append-only file cannot be replaced, only written.
                Err(Errno::BUSY | Errno::PERM | Errno::ACCESS | Errno::XDEV) => self.put_in_place(),
                Err(errno) => Err(system(errno)),
            };
        }
        Err(system(Errno::BUSY))
    }

    fn replaced(&self) -> Result<Put, FsError> {
        Ok(Put { in_place: false, facts: Facts::of_file(self.file.as_fd())? })
    }

    fn take_over(&self, old: &Existing) -> io::Result<()> {
        // A running program cannot be opened for writing, but its attributes can be read.
        let opened;
        let file = match &old.file {
            Some(file) => file.as_fd(),
            None => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                opened = openat(&self.place.dir, &self.place.name, flags, Mode::empty())?;
                opened.as_fd()
            }
        };
        attributes::take_over(self.file.as_fd(), file, &old.facts)?;
        if let Some(mode) = self.mode {
            attributes::set_mode(self.file.as_fd(), mode)?;
        }
        if self.options.if_match.is_some() && self.options.attributes.modified_at_ms.is_none() {
            // The file system clock is too coarse to give two quick writes different version tags.
            let now = clock_gettime(ClockId::Realtime);
            let times = Timestamps { last_access: now, last_modification: now };
            futimens(&self.file, &times)?;
        }
        Ok(())
    }

    fn put_as_new(&mut self) -> rustix::io::Result<()> {
        if let Some(mode) = self.mode.or(self.old_mode) {
            attributes::set_mode(self.file.as_fd(), mode).map_err(errno)?;
        }
        let (dir, name) = (&self.place.dir, &self.place.name);
        match &self.aside {
            Aside::Unnamed => give_name(&self.file, dir, name),
            Aside::Named { name: aside, .. } => {
                match renameat_with(dir, aside, dir, name, RenameFlags::NOREPLACE) {
                    // Some file systems lack NOREPLACE; a hard link never replaces an existing name either.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        linkat(dir, aside, dir, name, AtFlags::empty())?;
                        unlinkat(dir, aside, AtFlags::empty())?;
                    }
                    other => other?,
                }
                self.aside = Aside::Unnamed;
                Ok(())
            }
            Aside::Elsewhere => Err(Errno::XDEV),
        }
    }

    fn put_over(&mut self) -> rustix::io::Result<()> {
        let dir = &self.place.dir;
        if matches!(self.aside, Aside::Unnamed) {
            let name = temporary_name();
            let note = temp_registry::note(dir, &name);
            give_name(&self.file, dir, &name)?;
            self.aside = Aside::Named { name, _note: note };
        }
        if let Aside::Named { name: aside, .. } = &self.aside {
            renameat(dir, aside, dir, &self.place.name)?;
            self.aside = Aside::Unnamed;
        }
        Ok(())
    }

    fn put_in_place(&self) -> Result<Put, FsError> {
        let old = self.place.existing.as_ref().and_then(|old| old.file.as_ref());
        let Some(old) = old else { return Err(system(Errno::TXTBSY)) };
        let facts = Facts::of_file(old.as_fd())?;
        let _turn = path_locks::take_file(&facts);
        check(Some(&Facts::of_file(old.as_fd())?), &self.options)?;
        in_place::copy(&self.file, old)?;
        if let Some(mode) = self.mode {
            attributes::set_mode(old.as_fd(), mode)?;
        }
        self.set_time(old)?;
        sync(old, self.options.durability)?;
        Ok(Put { in_place: true, facts: Facts::of_file(old.as_fd())? })
    }
}

/// Result of publishing.
struct Put {
    /// Whether the content was copied into the old file.
    in_place: bool,
    /// Metadata of the published file, read while the path lock is held.
    facts: Facts,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Aside::Named { name, .. } = &self.aside {
            // Best effort: the temp name stays if this fails.
            let _ = unlinkat(&self.place.dir, name, AtFlags::empty());
        }
    }
}

const MAX_LOOKS: usize = 100;

/// Whether the file may be replaced; not if it has other hard links, which would keep the old content.
fn can_be_replaced(old: &Existing) -> bool {
    old.is_named && old.facts.links() <= 1
}

fn create_aside(dir: &OwnedFd, mode: Mode) -> io::Result<(File, Aside)> {
    if *CAN_NAME_LATER {
        match openat(dir, c".", STAGING | OFlags::TMPFILE, mode) {
            Ok(fd) => return Ok((fd.into(), Aside::Unnamed)),
            // Some file systems do not support O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let name = temporary_name();
    let note = temp_registry::note(dir, &name);
    let fd = openat(dir, &name, STAGING | OFlags::CREATE | OFlags::EXCL, mode)?;
    Ok((fd.into(), Aside::Named { name, _note: note }))
}

/// In the temp directory, or in memory where that fails, as in a sandbox without one.
fn create_elsewhere() -> io::Result<File> {
    create_in_temporary_directory()
        .or_else(|_| Ok(memfd_create("exec-server", MemfdFlags::CLOEXEC)?.into()))
}

fn create_in_temporary_directory() -> io::Result<File> {
    let dir = openat(
        CWD,
        std::env::temp_dir(),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let (file, aside) = create_aside(&dir, PRIVATE_FILE)?;
    if let Aside::Named { name, .. } = aside {
        unlinkat(&dir, &name, AtFlags::empty())?;
    }
    Ok(file)
}

/// An unnamed file is linked to a name through `/proc`.
static CAN_NAME_LATER: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/fd").exists());

fn give_name(file: &File, dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Timestamps with this modification time and the current access time.
pub fn modified_at(millis: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        last_modification: Timespec {
            tv_sec: millis.div_euclid(1000),
            tv_nsec: millis.rem_euclid(1000) * 1_000_000,
        },
    }
}

/// A random temp name; its prefix identifies a file that a crash leaves behind.
pub fn temporary_name() -> CString {
    let random = RandomState::new().build_hasher().finish();
    CString::new(format!("{PREFIX}{random:016x}.tmp")).expect("it has no NUL")
}

/// Syncs a file as `durability` requires.
pub fn sync(file: &File, durability: Durability) -> Result<(), FsError> {
    match durability {
        Durability::None => Ok(()),
        Durability::Data => fdatasync(file).map_err(system),
        Durability::Full => fsync(file).map_err(system),
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
