//! Tells when a missing path appears, by inotify on every directory that leads to it.
//!
//! A path is followed from the root to the first step that is missing:
//!
//! ```text
//! /w/a/b/.git    /  has `w`          told when it goes
//!                /w has `a`          told when it goes
//!                /w/a has no `b`     told when it comes
//! ```
//!
//! Invariant: what a step's parent was when we looked is what we watch. The watches are set from the root downwards,
//! then everything is looked at again; whoever changed a step in between either changed what is found there, or did
//! it under the eyes of the parent's watch.
//!
//! The parent is asked about a directory that goes, because the directory itself tells only when nobody has it open.

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

use exec_server_protocol::limits::MAX_WATCHED_PATHS;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;

use super::register;
use crate::missing_watch::NotWatched;

/// Paths that are looked up together share most of their directories; each costs one of the user's inotify watches,
/// of which there may be only 8192.
const MAX_STEPS: usize = 1024;

/// Room for a hundred events with short names; one with the longest name needs 272 bytes.
const EVENT_BYTES: usize = 4096;

/// What a directory tells of a name that is not in it.
const COMES: WatchFlags = WatchFlags::CREATE.union(WatchFlags::MOVED_TO);
/// What a directory tells of a name that is in it; something moved to that name takes its place.
const GOES: WatchFlags =
    WatchFlags::DELETE.union(WatchFlags::MOVED_FROM).union(WatchFlags::MOVED_TO);
/// What a file tells of itself. A directory told to say this also says it of its entries, by name.
const CHANGES: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::ATTRIB);

/// Tells when one of some missing paths appears, or what it was looked up by changes.
#[derive(Debug)]
pub struct MissingWatch {
    inotify: OwnedFd,
    names: Names,
}

impl MissingWatch {
    /// Watches for `missing` paths to come and the `present` one to change; all are absolute and normal. May block.
    ///
    /// A `present` directory changes when it gets other attributes or another place, not when its entries change.
    pub fn new(missing: &[PathBuf], present: Option<&Path>) -> Result<Self, NotWatched> {
        match missing.len() {
            0 => return Err(NotWatched::Nothing),
            1..=MAX_WATCHED_PATHS => {}
            _ => return Err(NotWatched::TooMany),
        }
        Self::begin(&Survey::new(missing, present)?, missing, present)
    }

    /// Watches what was found, provided that it still is what one finds.
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

    /// The map gives a directory before what is in it, which the invariant needs.
    fn set_all(&mut self, survey: &Survey, present: Option<&Path>) -> Result<(), NotWatched> {
        for (path, step) in &survey.steps {
            // Only the root has neither, and it stays.
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let events = if *step == Step::Missing { COMES } else { GOES };
            let id = self.set(parent, events | WatchFlags::ONLYDIR)?;
            self.names.0.entry(id).or_default().insert(name.to_owned());
        }
        present.map_or(Ok(()), |present| self.set(present, CHANGES).map(drop))
    }

    /// Adds to what is watched at `path` already, also if that was by another name.
    fn set(&self, path: &Path, events: WatchFlags) -> Result<i32, NotWatched> {
        let flags = events | WatchFlags::DONT_FOLLOW | WatchFlags::MASK_ADD;
        inotify::add_watch(&self.inotify, path, flags)
            .map_err(|error| unwatchable(path, error.into()))
    }

    /// Waits for the first change that matters, which may be over by now; needs a runtime.
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

/// By the watch of a directory, the names in it that matter.
#[derive(Debug, Default)]
struct Names(BTreeMap<i32, BTreeSet<OsString>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matters {
    Yes,
    No,
}

impl Names {
    /// Reads one buffer of events, or fewer when one matters.
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
        let entry_events = ReadFlags::from_bits_retain((COMES | GOES).bits());
        let matters = match name {
            Some(name) => {
                let name = OsStr::from_bytes(name.to_bytes());
                events.intersects(entry_events)
                    && self.0.get(&watch).is_some_and(|names| names.contains(name))
            }
            // The `present` path itself; or an unmount, a lost event or the end of a watch, after any of which we
            // would not know.
            None => true,
        };
        if matters { Matters::Yes } else { Matters::No }
    }
}

/// What was found at every step from the root to the paths, or to the first step of each that is missing.
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
    /// Looks at all paths, and refuses them unless they are what the caller thinks.
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
            // Nothing is below a file, until a directory takes its place.
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
                // Its width and sign differ between processors, the magic numbers have 32 bits everywhere.
                if is_silent(found.f_type as u32) {
                    return Err(NotWatched::Silent { path: path.clone() });
                }
            }
        }
        Ok(())
    }
}

/// Whether files change there without a system call on this machine, which is what inotify sees.
fn is_silent(file_system: u32) -> bool {
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
    // Also virtiofs and sshfs, whose files live elsewhere.
    const FUSE: u32 = 0x6573_5546;
    let is_invented = matches!(file_system, PROC | SYSFS | CGROUP | CGROUP2);
    let is_remote =
        matches!(file_system, NFS | SMB | SMB2 | CIFS | CEPH | AFS | OPEN_AFS | PLAN9 | FUSE);
    is_invented || is_remote
}

fn unwatchable(path: &Path, source: io::Error) -> NotWatched {
    NotWatched::Unwatchable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
