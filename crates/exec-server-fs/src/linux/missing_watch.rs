//! Reports when a missing path appears, by inotify on every directory on the way to it.
//!
//! A path is followed from the root to the first missing component:
//!
//! ```text
//! /w/a/b/.git    /  has `w`          watched for removal
//!                /w has `a`          watched for removal
//!                /w/a has no `b`     watched for creation
//! ```
//!
//! Invariant: every watched directory is the one that the survey found. The watches are set from the root downwards,
//! then the survey is repeated. A change in between either changes the result of the survey, or is reported by the watch
//! on the parent.
//!
//! The removal of a directory is watched in its parent, because the directory itself reports it only after the last
//! process has closed it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::task::{Poll, ready};

use exec_server_os::linux::register;
use exec_server_protocol::limits::MAX_WATCHED_PATHS;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;

use crate::missing_watch::NotWatched;

/// The paths of one watch share most of their directories. Each directory costs one inotify watch, of which a user may
/// have only 8192.
const MAX_STEPS: usize = 1024;

/// Room for a hundred events with short names; one with the longest name needs 272 bytes.
const EVENT_BYTES: usize = 4096;

/// Events of a directory when a missing name appears in it.
const APPEARS: WatchFlags = WatchFlags::CREATE.union(WatchFlags::MOVED_TO);
/// Events of a directory when an existing name in it is removed or replaced.
const DISAPPEARS: WatchFlags =
    WatchFlags::DELETE.union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);
/// Events of the `present` path itself. A directory also reports them for its entries, with their names.
const CHANGES: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::ATTRIB);

/// Reports when one of several missing paths appears, or a directory on the way to it changes.
#[derive(Debug)]
pub struct MissingWatch {
    inotify: OwnedFd,
    names: Names,
}

impl MissingWatch {
    /// Watches for `missing` paths to appear and the `present` one to change; all are absolute and normalized. May block.
    ///
    /// A `present` directory changes when its attributes change or it is moved, not when its entries change.
    pub fn new(missing: &[PathBuf], present: Option<&Path>) -> Result<Self, NotWatched> {
        match missing.len() {
            0 => return Err(NotWatched::Nothing),
            1..=MAX_WATCHED_PATHS => {}
            _ => return Err(NotWatched::TooMany),
        }
        Self::begin(&Survey::new(missing, present)?, missing, present)
    }

    /// Sets the watches, and fails if a second survey differs from `survey`.
    fn begin(
        survey: &Survey,
        missing: &[PathBuf],
        present: Option<&Path>,
    ) -> Result<Self, NotWatched> {
        survey.refuse_silent_file_systems()?;
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let inotify =
            inotify::init(flags).map_err(|error| NotWatched::Unavailable(error.into()))?;
        let mut watch = Self { inotify, names: Names::default() };
        watch.set_all(survey, present)?;
        if Survey::new(missing, present)? != *survey {
            return Err(NotWatched::Changing);
        }
        Ok(watch)
    }

    /// The sorted map yields a directory before its entries, as the invariant requires.
    fn set_all(&mut self, survey: &Survey, present: Option<&Path>) -> Result<(), NotWatched> {
        for (path, step) in &survey.steps {
            // Only the root has neither, and it cannot be removed.
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let events = if *step == Step::Missing { APPEARS } else { DISAPPEARS };
            let id = self.set(parent, events | WatchFlags::ONLYDIR)?;
            self.names.0.entry(id).or_default().insert(name.to_owned());
        }
        present.map_or(Ok(()), |present| self.set(present, CHANGES).map(drop))
    }

    /// Adds events to a watch; `MASK_ADD` keeps the events that are already set on the same inode.
    fn set(&self, path: &Path, events: WatchFlags) -> Result<i32, NotWatched> {
        let flags = events | WatchFlags::DONT_FOLLOW | WatchFlags::MASK_ADD;
        inotify::add_watch(&self.inotify, path, flags)
            .map_err(|error| unwatchable(path, error.into()))
    }

    /// Waits for the first relevant change, which may have been undone since; needs a runtime.
    ///
    /// Dropping the future ends the watch.
    pub async fn changed(self) -> io::Result<()> {
        let Self { inotify, names } = self;
        let inotify = register(inotify, Interest::READABLE)?;
        poll_fn(|cx| {
            loop {
                let mut ready = ready!(inotify.poll_read_ready(cx))?;
                match names.read_events(inotify.get_ref()) {
                    Ok(Matters::Yes) => return Poll::Ready(Ok(())),
                    Ok(Matters::No) | Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => ready.clear_ready(),
                    Err(error) => return Poll::Ready(Err(error.into())),
                }
            }
        })
        .await
    }
}

/// For each directory watch, the relevant names in the directory.
#[derive(Debug, Default)]
struct Names(BTreeMap<i32, BTreeSet<OsString>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matters {
    Yes,
    No,
}

impl Names {
    /// Reads one buffer of events; stops early at a relevant one.
    fn read_events(&self, inotify: &OwnedFd) -> rustix::io::Result<Matters> {
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut events = Reader::new(inotify, &mut buffer);
        loop {
            let event = events.next()?;
            if self.judge(event.wd(), event.events(), event.file_name()) == Matters::Yes {
                return Ok(Matters::Yes);
            }
            if events.is_buffer_empty() {
                return Ok(Matters::No);
            }
        }
    }

    fn judge(&self, watch: i32, events: ReadFlags, name: Option<&CStr>) -> Matters {
        let entry_events = ReadFlags::from_bits_retain((APPEARS | DISAPPEARS).bits());
        let matters = match name {
            Some(name) => {
                let name = OsStr::from_bytes(name.to_bytes());
                events.intersects(entry_events)
                    && self.0.get(&watch).is_some_and(|names| names.contains(name))
            }
            // A change of the `present` path itself; or an unmount, a queue overflow or the end of a watch, after
            // which events may be missing.
            None => true,
        };
        if matters { Matters::Yes } else { Matters::No }
    }
}

/// The entry at every component from the root to each path, up to its first missing component.
#[derive(Debug, Default, PartialEq, Eq)]
struct Survey {
    steps: BTreeMap<PathBuf, Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Missing,
    Directory(FileId),
    File(FileId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl Survey {
    /// Inspects all paths, and fails if a `missing` path exists or the `present` one does not.
    fn new(missing: &[PathBuf], present: Option<&Path>) -> Result<Self, NotWatched> {
        let mut survey = Self::default();
        for path in missing {
            if survey.follow(path)? != Step::Missing {
                return Err(NotWatched::Exists { path: path.clone() });
            }
        }
        if let Some(path) = present
            && survey.follow(path)? == Step::Missing
        {
            return Err(NotWatched::Absent { path: path.to_owned() });
        }
        Ok(survey)
    }

    fn follow(&mut self, path: &Path) -> Result<Step, NotWatched> {
        let upwards: Vec<&Path> = path.ancestors().collect();
        for parent in upwards[1..].iter().rev() {
            // A path below a file is missing until a directory replaces the file.
            if !matches!(self.look(parent)?, Step::Directory(_)) {
                return Ok(Step::Missing);
            }
        }
        self.look(path)
    }

    fn look(&mut self, path: &Path) -> Result<Step, NotWatched> {
        if let Some(step) = self.steps.get(path) {
            return Ok(*step);
        }
        if self.steps.len() >= MAX_STEPS {
            return Err(NotWatched::TooMany);
        }
        let step = match fs::symlink_metadata(path) {
            Ok(found) => {
                let id = FileId { device: found.dev(), inode: found.ino() };
                match found.file_type() {
                    kind if kind.is_symlink() => {
                        return Err(NotWatched::Link { path: path.to_owned() });
                    }
                    kind if kind.is_dir() => Step::Directory(id),
                    _ => Step::File(id),
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Step::Missing,
                _ => return Err(unwatchable(path, error)),
            },
        };
        self.steps.insert(path.to_owned(), step);
        Ok(step)
    }

    fn refuse_silent_file_systems(&self) -> Result<(), NotWatched> {
        let mut devices = BTreeSet::new();
        for (path, step) in &self.steps {
            let (Step::Directory(id) | Step::File(id)) = step else { continue };
            if devices.insert(id.device) {
                let found =
                    rustix::fs::statfs(path).map_err(|error| unwatchable(path, error.into()))?;
                // The width and sign of `f_type` depend on the architecture; the magic numbers have 32 bits.
                if is_silent(found.f_type as u32) {
                    return Err(NotWatched::Silent { path: path.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Whether files on this file system change without a system call on this machine; inotify reports only those.
pub(super) fn is_silent(file_system: u32) -> bool {
    // From linux/magic.h and the file systems' own sources.
    const PROC: u32 = 0x9fa0;
    const SYSFS: u32 = 0x6265_6572;
    const CGROUP: u32 = 0x0027_e0eb;
    const CGROUP2: u32 = 0x6367_7270;
    const NFS: u32 = 0x6969;
    const SMB: u32 = 0x517b;
    const SMB2: u32 = 0xfe53_4d42;
    const CIFS: u32 = 0xff53_4d42;
    const CEPH: u32 = 0x00c3_6400;
    const AFS: u32 = 0x6b41_4653;
    const OPEN_AFS: u32 = 0x5346_414f;
    const PLAN9: u32 = 0x0102_1997;
    // Includes virtiofs and sshfs, whose files are on other machines.
    const FUSE: u32 = 0x6573_5546;
    let is_virtual = matches!(file_system, PROC | SYSFS | CGROUP | CGROUP2);
    let is_remote =
        matches!(file_system, NFS | SMB | SMB2 | CIFS | CEPH | AFS | OPEN_AFS | PLAN9 | FUSE);
    is_virtual || is_remote
}

fn unwatchable(path: &Path, source: io::Error) -> NotWatched {
    NotWatched::Unwatchable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
