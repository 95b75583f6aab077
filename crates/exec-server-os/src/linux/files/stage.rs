//! New content for a file, written aside and then put in its place at once.
//!
//! ```text
//! begin ─▶ staged ─write_at…─▶ staged ─publish─▶ published: renamed over the old file, or linked as a new one
//!                                 │         └──▶ published in place: the old file had to stay the same file
//!                                 └─drop───────▶ gone, and the old file is untouched
//! ```
//!
//! Invariant: until it is published, nobody can see anything of it. Where the file system can, it has no name either,
//! so that not even a crash leaves anything behind.

use std::ffi::CString;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::LazyLock;

use exec_server_protocol::fs::{Durability, FsWriteFileResponse};
use rustix::fs::{
    AtFlags, CWD, MemfdFlags, Mode, OFlags, RenameFlags, Timestamps, UTIME_NOW, fdatasync, fsync,
    futimens, linkat, memfd_create, openat, renameat, renameat_with, syncfs, unlinkat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::super::litter::{self, Note, PREFIX};
use super::attributes;
use super::in_place;
use super::metadata::Facts;
use super::resolve::{self, Existing, Place, system};
use super::turns;
use crate::files::{FsError, Leftovers, Links, WriteOptions};

/// New content for a file, not yet in its place.
#[derive(Debug)]
pub struct StagedFile {
    file: File,
    /// Where it lies until then.
    aside: Aside,
    place: Place,
    /// The permission bits of the new file, if they are not those of the old one.
    mode: Option<u32>,
    /// The permission bits of the old file, in case that it is removed before the new one takes its place; those that
    /// were asked for, if there is none.
    old_mode: Option<u32>,
    options: WriteOptions,
}

#[derive(Debug)]
enum Aside {
    /// In the target's directory, without a name.
    Unnamed,
    /// In the target's directory, under this name, which the guardian knows of.
    Named { name: CString, _note: Option<Note> },
    /// In another directory, because the target's takes no new names.
    Elsewhere,
}

/// What new files may be used for before the umask has its say.
const NEW_FILE: Mode = Mode::from_raw_mode(0o666);

const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);

const STAGING: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

/// Gives a file new content.
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
            // Without links there is no way to a device, with them `/dev/null` is a fine place to write to.
            let file = existing.file.as_ref().filter(|_| links == Links::Follow);
            let Some(file) = file else { return Err(FsError::NotAFile(path.to_owned())) };
            in_place::write_all(file, data)?;
            let response = FsWriteFileResponse { in_place: Some(true), ..Default::default() };
            return Ok((response, Leftovers::default()));
        }
    }
    let staged = StagedFile::new(place, options)?;
    staged.write_at(data, 0)?;
    staged.publish()
}

/// Begins new content for a regular file.
pub fn begin(path: &Path, links: Links, options: WriteOptions) -> Result<StagedFile, FsError> {
    let place = resolve::target(path, links)?;
    if place.existing.as_ref().is_some_and(|existing| !existing.facts.is_regular()) {
        return Err(FsError::NotAFile(path.to_owned()));
    }
    check(place.existing.as_ref().map(|existing| &existing.facts), &options)?;
    StagedFile::new(place, options)
}

/// Checks the conditions of a write against what is there.
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
    /// New content for what is at `place`.
    pub(super) fn new(place: Place, options: WriteOptions) -> Result<Self, FsError> {
        let old = place.existing.as_ref();
        if old.is_some_and(|old| old.facts.only_grows()) {
            return Err(system(Errno::PERM));
        }
        let created = match old {
            // It can only be written in place, if at all.
            Some(old) if !old.is_named && old.file.is_none() => return Err(system(Errno::TXTBSY)),
            Some(old) if !old.is_named => Err(Errno::PERM.into()),
            // A temporary name could not be taken away again.
            Some(_) if Facts::of_file(place.dir.as_fd())?.only_grows() => Err(Errno::PERM.into()),
            // Until it has the rights of the old file nobody else may see what is in it.
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

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the new file these permission bits instead of the old one's.
    pub(super) fn set_mode(&mut self, mode: u32) {
        self.mode = Some(mode);
    }

    /// Writes at any place; what is left out is zero.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Puts the content in its place.
    pub fn publish(mut self) -> Result<(FsWriteFileResponse, Leftovers), FsError> {
        sync(&self.file, self.options.durability)?;
        let Put { in_place, facts } = {
            let _turn = turns::take(&self.place);
            self.set_time(&self.file)?;
            self.put()?
        };
        if !in_place {
            // Its attributes are new, and there are file systems that put off whatever has no name.
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
            // A directory that may be changed but not listed goes to disk with everything else.
            Err(Errno::ACCESS) => syncfs(&self.file).map_err(system),
            Err(errno) => Err(system(errno)),
        }
    }

    /// Renames, links or copies.
    fn put(&mut self) -> Result<Put, FsError> {
        // Between two looks somebody else may create or remove the target, but not for ever.
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
                // A mount point, a sticky directory, a file that may only grow: it can at best be written to.
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
        // A running program cannot be opened for writing, but its attributes can be read all the same.
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
            // The clock of the file system is too coarse to tell two quick writes apart.
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
                    // Not every file system can do that, but a second name never replaces anything either.
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
            let note = litter::note(dir, &name);
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
        let _turn = turns::take_file(&facts);
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

/// How content was put in its place.
struct Put {
    /// Whether it had to be a copy into the old file.
    in_place: bool,
    /// About the file that has it, before anybody else could change it again.
    facts: Facts,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Aside::Named { name, .. } = &self.aside {
            // If even this fails there is nothing left to try.
            let _ = unlinkat(&self.place.dir, name, AtFlags::empty());
        }
    }
}

const MAX_LOOKS: usize = 100;

/// Whether another file may take its place: not if it has other names, which would then go on naming the old one.
fn can_be_replaced(old: &Existing) -> bool {
    old.is_named && old.facts.links() <= 1
}

fn create_aside(dir: &OwnedFd, mode: Mode) -> io::Result<(File, Aside)> {
    if *CAN_NAME_LATER {
        match openat(dir, c".", STAGING | OFlags::TMPFILE, mode) {
            Ok(fd) => return Ok((fd.into(), Aside::Unnamed)),
            // Not every file system has files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let name = temporary_name();
    let note = litter::note(dir, &name);
    let fd = openat(dir, &name, STAGING | OFlags::CREATE | OFlags::EXCL, mode)?;
    Ok((fd.into(), Aside::Named { name, _note: note }))
}

/// In the directory for temporary files, or in memory where a sandbox has none.
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

/// A file without a name gets one through `/proc`.
static CAN_NAME_LATER: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/fd").exists());

fn give_name(file: &File, dir: &OwnedFd, name: &CString) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// The time of the content, and now for the last look at it.
pub fn modified_at(millis: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        last_modification: Timespec {
            tv_sec: millis.div_euclid(1000),
            tv_nsec: millis.rem_euclid(1000) * 1_000_000,
        },
    }
}

/// A name that nobody else uses; it says whose it is, in case a crash leaves it behind.
pub fn temporary_name() -> CString {
    let random = RandomState::new().build_hasher().finish();
    CString::new(format!("{PREFIX}{random:016x}.tmp")).expect("it has no NUL")
}

/// Waits until as much of a file is on disk as was asked for.
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
