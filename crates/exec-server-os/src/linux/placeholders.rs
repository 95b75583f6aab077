//! Directories that stand where a protected name is missing, kept by all servers of a user together.
//!
//! Every directory that holds placeholders has a file in the journal, named by its identity. Whoever needs one of them
//! holds a shared lock on that file, and the kernel gives the lock back however its holder ends. The last one out gets
//! an exclusive lock, removes what the file tells of, and then the file.
//!
//! ```text
//! lock shared ─▶ write "making" ─▶ mkdir ─▶ write "made" ─▶ … ─▶ lock exclusive ─▶ rmdir ─▶ remove the file
//! ```
//!
//! Invariant: whatever of these steps is lost, by a kill or a power cut, only an empty directory is ever removed, and
//! only one that the file tells of. So [`Journal::sweep`] finishes what others could not.
//!
//! Nobody waits for the disk: a file that is still there after a moment is made durable behind everybody's back.

mod lock;
mod record;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, StatxFlags, memfd_create, mkdirat, openat,
    statx, unlinkat,
};
use rustix::io::Errno;

use self::lock::Kind;
use self::record::{Candidate, Identity, Line, Record};
use super::litter::Note;

/// Where servers of one user write down which placeholders they need.
#[derive(Debug)]
pub struct Journal {
    /// Nowhere, if there is no directory for it: then nobody else knows.
    dir: Option<PathBuf>,
    /// Entries that are new.
    young: Mutex<Option<Sender<PathBuf>>>,
}

/// The need for placeholders in one directory.
#[derive(Debug)]
pub struct Claim {
    /// Where they are.
    root: OwnedFd,
    path: PathBuf,
    file: File,
    /// The name of the file.
    entry: Option<PathBuf>,
    /// For the guardian, where there is no journal.
    notes: Vec<Note>,
}

/// Readable and not writable, so that tools which look at it find nothing and leave it alone.
const MODE: Mode = Mode::from_raw_mode(0o555);

/// What is needed for less than this costs no write to the disk.
const DURABLE_AFTER: Duration = Duration::from_secs(1);

/// How long an entry waits for a directory that is not there; it may be on a disk that is not mounted.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

impl Journal {
    /// A journal in this directory, which is made if it is missing; nobody else may look into it.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir)?;
        let found = dir.symlink_metadata()?;
        let is_private = found.is_dir()
            && found.mode() & 0o077 == 0
            && found.uid() == rustix::process::geteuid().as_raw();
        if !is_private {
            let reason = "is not a directory of this user that is closed to others (mode 0700)";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
        Ok(Self { dir: Some(dir.to_owned()), young: Mutex::default() })
    }

    /// A journal that no other server knows.
    pub fn unshared() -> Self {
        Self { dir: None, young: Mutex::default() }
    }

    /// Where it is, if it is anywhere.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Says that placeholders in `root` are needed; nothing if that is no directory. May wait for another server.
    pub fn claim(&self, root: &Path) -> io::Result<Option<Claim>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match openat(CWD, root, flags, Mode::empty()) {
            Ok(root) => root,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let path = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd()))?;
        let shared = match &self.dir {
            Some(dir) => self.open_entry(dir, &root),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let (file, entry) = match shared {
            Ok((file, entry)) => (file, Some(entry)),
            Err(error) => {
                if self.dir.is_some() {
                    tracing::warn!(%error, "placeholders are not shared with other servers");
                }
                (File::from(memfd_create("placeholders", MemfdFlags::CLOEXEC)?), None)
            }
        };
        let claim = Claim { root, path, file, entry, notes: Vec::new() };
        let record = claim.read()?;
        if record.is_torn {
            (&claim.file).write_all(b"\n")?;
        }
        if record.root().is_none() {
            claim.add(&[Line::Root(claim.path.clone())])?;
        }
        Ok(Some(claim))
    }

    fn open_entry(&self, dir: &Path, root: &OwnedFd) -> io::Result<(File, PathBuf)> {
        let stat = rustix::fs::fstat(root)?;
        let entry = dir.join(format!("{:x}-{:x}", stat.st_dev, stat.st_ino));
        loop {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(true).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&entry)?;
            lock::wait_for(&file, Kind::Shared)?;
            let stat = file.metadata()?;
            // The last one out may have removed it meanwhile; from now on nobody can.
            if stat.nlink() > 0 {
                if stat.len() == 0 {
                    self.make_durable_later(entry.clone());
                }
                return Ok((file, entry));
            }
        }
    }

    /// By name: a second descriptor would keep the lock.
    fn make_durable_later(&self, entry: PathBuf) {
        let mut young = self.young.lock().expect("no holder panics");
        let young = young.get_or_insert_with(|| {
            let (sender, entries) = channel();
            let run = move || make_durable(&entries);
            let _ = std::thread::Builder::new().name("journal".to_owned()).spawn(run);
            sender
        });
        // Without the thread it becomes durable when the kernel finds the time.
        let _ = young.send(entry);
    }

    /// Removes the placeholders that nobody needs any more, whoever made them. May block.
    pub fn sweep(&self) {
        let entries = self.dir.as_deref().and_then(|dir| std::fs::read_dir(dir).ok());
        for entry in entries.into_iter().flatten().flatten() {
            if let Err(error) = sweep_entry(&entry.path()) {
                tracing::debug!(%error, entry = %entry.path().display(), "not swept");
            }
        }
    }
}

/// Waits a little for each, because most are needed for a moment only, and then perhaps again.
fn make_durable(young: &Receiver<PathBuf>) {
    let mut waiting = BTreeSet::new();
    while !waiting.is_empty() || young.recv().is_ok_and(|first| waiting.insert(first)) {
        std::thread::sleep(DURABLE_AFTER);
        waiting.extend(young.try_iter());
        for (entry, file) in take_old(&mut waiting, DURABLE_AFTER) {
            let dir = entry.parent().expect("it is in a directory");
            if let Err(error) = file.sync_all().and_then(|()| File::open(dir)?.sync_all()) {
                tracing::debug!(%error, "the journal of placeholders may not survive a power cut");
            }
        }
    }
}

/// Takes the entries that are old enough, and forgets those that are gone. The others are other files than those
/// that were meant, under the same name.
fn take_old(waiting: &mut BTreeSet<PathBuf>, age: Duration) -> Vec<(PathBuf, File)> {
    let mut old = Vec::new();
    waiting.retain(|entry| {
        let Ok(file) = File::open(entry) else { return false };
        let made = file.metadata().and_then(|stat| stat.created().or_else(|_| stat.modified()));
        let is_young = made.is_ok_and(|made| made.elapsed().is_ok_and(|passed| passed < age));
        if !is_young {
            old.push((entry.clone(), file));
        }
        is_young
    });
    old
}

fn is_linked(file: &File) -> bool {
    file.metadata().is_ok_and(|stat| stat.nlink() > 0)
}

fn sweep_entry(entry: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = options.read(true).append(true).custom_flags(libc::O_NOFOLLOW).open(entry)?;
    if !lock::try_to(&file, Kind::Exclusive)? || !is_linked(&file) {
        return Ok(());
    }
    let record = read(&file)?;
    let Some(path) = record.root() else { return std::fs::remove_file(entry) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match openat(CWD, path, flags, Mode::empty()) {
        Ok(root) => root,
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
            return if age > FORGOTTEN_AFTER { std::fs::remove_file(entry) } else { Ok(()) };
        }
        Err(errno) => return Err(errno.into()),
    };
    for name in record.names() {
        remove(&root, name, &record)?;
    }
    std::fs::remove_file(entry)
}

impl Claim {
    /// Makes sure that there is something at each name, and says which of them are placeholders.
    pub fn hold<'a>(&mut self, names: &[&'a OsStr]) -> io::Result<Vec<&'a OsStr>> {
        let mut held = Vec::new();
        let mut missing = Vec::new();
        let mut record = None;
        for name in names {
            match look(&self.root, name)? {
                Seen::Nothing => missing.push(*name),
                Seen::Other => {}
                Seen::Directory(found) if !found.looks_like_one => {}
                Seen::Directory(found) => {
                    let record = match &mut record {
                        Some(record) => record,
                        None => record.insert(self.read()?),
                    };
                    if record.tells_of(name, &found) {
                        held.push(*name);
                    }
                }
            }
        }
        if !missing.is_empty() {
            held.extend(self.make(&missing)?);
        }
        Ok(held)
    }

    fn make<'a>(&mut self, names: &[&'a OsStr]) -> io::Result<Vec<&'a OsStr>> {
        let since = seconds_now().saturating_sub(1);
        let making: Vec<_> = names.iter().map(|name| Line::Making((*name).into(), since)).collect();
        self.add(&making)?;
        let (mut held, mut made) = (Vec::new(), Vec::new());
        for name in names {
            if self.entry.is_none() {
                self.notes.extend(Note::of_directory(&self.path.join(name)));
            }
            match mkdirat(&self.root, *name, MODE) {
                Ok(()) => {
                    if let Seen::Directory(found) = look(&self.root, name)? {
                        made.push(Line::Made((*name).into(), found.identity));
                    }
                    held.push(*name);
                }
                // Another server was faster, or somebody who means it.
                Err(Errno::EXIST) => {
                    let found = look(&self.root, name)?;
                    let is_one = matches!(found, Seen::Directory(found) if found.looks_like_one);
                    held.extend(is_one.then_some(*name));
                }
                // Nobody else can make it either.
                Err(Errno::ROFS | Errno::NOENT) => {}
                Err(Errno::ACCESS | Errno::PERM) if !self.is_in_own_directory()? => {}
                Err(errno) => {
                    self.add(&made)?;
                    return Err(errno.into());
                }
            }
        }
        self.add(&made)?;
        Ok(held)
    }

    /// Whether this user can allow itself to make names here.
    fn is_in_own_directory(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.root)?.st_uid == rustix::process::geteuid().as_raw())
    }

    /// Removes what neither this server nor another one needs.
    pub fn give_up(&self, is_needed: impl Fn(&OsStr) -> bool) -> io::Result<()> {
        if !lock::try_to(&self.file, Kind::Exclusive)? {
            return Ok(());
        }
        let record = self.read()?;
        let names = record.names().into_iter().filter(|name| !is_needed(name));
        let removed: io::Result<Vec<_>> =
            names.map(|name| remove(&self.root, name, &record).map(|()| name)).collect();
        let gone = removed?.into_iter().map(|name| Line::Gone(name.into()));
        self.add(&gone.collect::<Vec<_>>())?;
        lock::try_to(&self.file, Kind::Shared).map(drop)
    }

    /// The same for all of them, and nothing in this directory is needed any more.
    pub fn end(self) -> io::Result<()> {
        // Given up before it is asked for alone: of two who do this at the same time one is the last.
        lock::try_to(&self.file, Kind::None)?;
        if !lock::try_to(&self.file, Kind::Exclusive)?
            || (self.entry.is_some() && !is_linked(&self.file))
        {
            return Ok(());
        }
        let record = self.read()?;
        for name in record.names() {
            remove(&self.root, name, &record)?;
        }
        self.entry.map_or(Ok(()), std::fs::remove_file)
    }

    fn read(&self) -> io::Result<Record> {
        read(&self.file)
    }

    /// In one piece, so that others who write at the same time do not come between.
    fn add(&self, lines: &[Line]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let text: String = lines.iter().map(Line::to_text).collect();
        (&self.file).write_all(text.as_bytes())
    }
}

fn read(file: &File) -> io::Result<Record> {
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Record::parse(&bytes))
}

/// What is at a name.
enum Seen {
    Nothing,
    Directory(Candidate),
    Other,
}

fn look(root: &OwnedFd, name: &OsStr) -> io::Result<Seen> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = match statx(root, name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Seen::Nothing),
        Err(errno) => return Err(errno.into()),
    };
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return Ok(Seen::Other);
    }
    let nanos = |time: rustix::fs::StatxTimestamp| {
        let seconds = u64::try_from(time.tv_sec).ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(time.tv_nsec.into())
    };
    let knows_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born = knows_birth.then(|| nanos(stat.stx_btime)).flatten();
    let since = born.or_else(|| nanos(stat.stx_mtime)).unwrap_or(0) / 1_000_000_000;
    let is_mine = stat.stx_uid == rustix::process::geteuid().as_raw();
    Ok(Seen::Directory(Candidate {
        identity: Identity { inode: stat.stx_ino, born },
        since,
        looks_like_one: is_mine && stat.stx_mode & 0o222 == 0,
    }))
}

/// Removes a placeholder. Whatever else is there now is somebody's; so is one that is not empty.
fn remove(root: &OwnedFd, name: &OsStr, record: &Record) -> io::Result<()> {
    match look(root, name)? {
        Seen::Directory(found) if record.tells_of(name, &found) => {}
        _ => return Ok(()),
    }
    match unlinkat(root, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
