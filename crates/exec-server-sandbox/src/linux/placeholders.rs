//! Placeholder directories for missing protected names, shared by all servers of a user.
//!
//! Every directory that contains placeholders has an entry file in the journal, named by its device and inode. A server
//! that needs a placeholder there holds a shared lock on the entry; the kernel releases the lock when the server exits.
//! The last holder gets an exclusive lock, removes the placeholders that the entry lists, and then the entry.
//!
//! ```text
//! lock shared ─▶ write "making" ─▶ mkdir ─▶ write "made" ─▶ … ─▶ lock exclusive ─▶ rmdir ─▶ remove the file
//! ```
//!
//! Invariant: if a kill or a power cut loses any of these steps, still only an empty directory that the entry lists is
//! removed. [`Journal::sweep`] completes the removal for servers that were killed.
//!
//! Entries older than 1 s are fsynced in the background; starts never wait for fsync.

mod record;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use exec_server_os::linux::directory::Directory;
use exec_server_os::linux::file_lock::{self as lock, Kind};
use exec_server_os::linux::temp_registry::TempEntry;
use rustix::fs::{
    AtFlags, FileType, MemfdFlags, Mode, StatxFlags, memfd_create, mkdirat, statx, unlinkat,
};
use rustix::io::Errno;

use self::record::{Candidate, Identity, Line, Record};

/// Directory in which the servers of one user record their placeholders.
#[derive(Debug)]
pub struct Journal {
    /// `None` without a journal directory: other servers then do not see the entries.
    dir: Option<PathBuf>,
    /// Queue of new entries for the fsync thread, which is started with the first one.
    young: Mutex<Option<Sender<PathBuf>>>,
}

/// This server's shared lock on the journal entry of one directory.
#[derive(Debug)]
pub struct Claim {
    /// The directory that contains the placeholders.
    root: OwnedFd,
    path: PathBuf,
    file: File,
    /// Path of the entry file; `None` without a journal.
    entry: Option<PathBuf>,
    /// Registered with the guardian instead, if there is no journal.
    notes: Vec<TempEntry>,
}

/// Readable but not writable, so that tools find an empty directory and do not create files in it.
const MODE: Mode = Mode::from_raw_mode(0o555);

/// Entries that are removed within this time are never synced.
const DURABLE_AFTER: Duration = Duration::from_secs(1);

/// Entries of missing directories are kept this long, because the directory may be on a disk that is not mounted.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

impl Journal {
    /// Opens the journal in this directory, which is created with mode 0700 if it is missing.
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

    /// A journal in memory, which other servers do not see.
    pub fn unshared() -> Self {
        Self { dir: None, young: Mutex::default() }
    }

    /// The journal directory; `None` for a journal in memory.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Takes the shared lock on the entry of a directory. May wait for another server.
    pub fn claim(&self, root: Directory) -> io::Result<Claim> {
        let Directory { fd: root, path, .. } = root;
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
        Ok(claim)
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
            // The last holder may have removed the entry before this lock was granted; a locked entry is not removed.
            if stat.nlink() > 0 {
                if stat.len() == 0 {
                    self.make_durable_later(entry.clone());
                }
                return Ok((file, entry));
            }
        }
    }

    /// Queues the path and not a duplicated descriptor, which would keep the lock.
    fn make_durable_later(&self, entry: PathBuf) {
        let mut young = self.young.lock().expect("no holder panics");
        let young = young.get_or_insert_with(|| {
            let (sender, entries) = channel();
            let run = move || make_durable(&entries);
            let _ = std::thread::Builder::new().name("journal".to_owned()).spawn(run);
            sender
        });
        // Ignore the error: without the thread, the kernel writes the entry back later.
        let _ = young.send(entry);
    }

    /// Removes placeholders that no running server needs. May block.
    pub fn sweep(&self) {
        let entries = self.dir.as_deref().and_then(|dir| std::fs::read_dir(dir).ok());
        for entry in entries.into_iter().flatten().flatten() {
            if let Err(error) = sweep_entry(&entry.path()) {
                tracing::debug!(%error, entry = %entry.path().display(), "could not sweep a journal entry");
            }
        }
    }
}

/// Syncs entries that are older than [`DURABLE_AFTER`]; most entries are removed before that.
fn make_durable(young: &Receiver<PathBuf>) {
    let mut waiting = BTreeSet::new();
    while !waiting.is_empty() || young.recv().is_ok_and(|first| waiting.insert(first)) {
        std::thread::sleep(DURABLE_AFTER);
        waiting.extend(young.try_iter());
        for (entry, file) in take_old(&mut waiting, DURABLE_AFTER) {
            let dir = entry.parent().expect("an entry is in the journal directory");
            if let Err(error) = file.sync_all().and_then(|()| File::open(dir)?.sync_all()) {
                tracing::debug!(%error, "could not sync the placeholder journal; a power cut may lose entries");
            }
        }
    }
}

/// Takes the entries that are old enough and drops those that are gone. A young entry stays queued; it may be a new file
/// under the same name.
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
    // Another directory may be at this path now. Only the inode is compared, because the device number can change at a
    // reboot.
    let inode = entry.file_name().and_then(OsStr::to_str).and_then(|name| name.split_once('-'));
    let is_meant = |root: &Directory| {
        inode.is_some_and(|(_, inode)| inode == format!("{:x}", root.identity().1))
    };
    let root = Directory::open(path).ok().flatten().filter(is_meant);
    let Some(root) = root else {
        let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
        return if age > FORGOTTEN_AFTER { std::fs::remove_file(entry) } else { Ok(()) };
    };
    for name in record.names() {
        remove(&root.fd, name, &record)?;
    }
    std::fs::remove_file(entry)
}

impl Claim {
    /// Creates a placeholder at each missing name, and returns the names at which there is a placeholder.
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
                self.notes.extend(TempEntry::of_directory(&self.path.join(name)));
            }
            match mkdirat(&self.root, *name, MODE) {
                Ok(()) => {
                    if let Seen::Directory(found) = look(&self.root, name)? {
                        made.push(Line::Made((*name).into(), found.identity));
                    }
                    held.push(*name);
                }
                // Another server created the placeholder, or another process created a real entry.
                Err(Errno::EXIST) => {
                    let found = look(&self.root, name)?;
                    let is_one = matches!(found, Seen::Directory(found) if found.looks_like_one);
                    held.extend(is_one.then_some(*name));
                }
                // On a read-only file system or in a removed directory, no other process can create the entry either.
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

    /// Whether this user owns the directory, and so could grant itself write permission.
    fn is_in_own_directory(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstat(&self.root)?.st_uid == rustix::process::geteuid().as_raw())
    }

    /// Removes the placeholders that are not needed, if no other server holds the entry.
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

    /// Removes all placeholders of the directory and the entry, if no other server holds it.
    pub fn end(self) -> io::Result<()> {
        // Unlock first: if two servers end at the same time, one of them then gets the exclusive lock.
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

    /// Appends all lines in one write, so that concurrent writers do not interleave.
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

/// Kind of the entry at a name.
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
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let btime = has_btime.then(|| nanos(stat.stx_btime)).flatten();
    let since = btime.or_else(|| nanos(stat.stx_mtime)).unwrap_or(0) / 1_000_000_000;
    let is_mine = stat.stx_uid == rustix::process::geteuid().as_raw();
    Ok(Seen::Directory(Candidate {
        identity: Identity { inode: stat.stx_ino, btime },
        since,
        looks_like_one: is_mine && stat.stx_mode & 0o222 == 0,
    }))
}

/// Removes a placeholder; keeps a directory that is not ours or not empty.
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
