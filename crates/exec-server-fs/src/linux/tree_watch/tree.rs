//! The watched directories of one tree, and their paths.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use exec_server_protocol::fs::ChangeKind;
use exec_server_protocol::limits::MAX_WATCHED_DIRECTORIES;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::super::missing_watch::is_silent;
use super::staged::Staged;
use crate::tree_watch::{InotifyLimit, WatchError};

const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK);

/// A directory below the root; a link that replaced it is not followed.
const BELOW: WatchFlags = EVENTS.union(WatchFlags::ONLYDIR).union(WatchFlags::DONT_FOLLOW);

/// Room for a hundred events with short names.
const EVENT_BYTES: usize = 8192;

/// The watches of one tree.
#[derive(Debug)]
pub struct Tree {
    inotify: OwnedFd,
    root: PathBuf,
    is_recursive: bool,
    paths: HashMap<i32, PathBuf>,
    watches: BTreeMap<PathBuf, i32>,
    skipped: u64,
}

/// Whether the watch goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// The root was removed or moved.
    Ended,
}

impl Tree {
    pub fn new(root: &Path, is_recursive: bool) -> Result<Self, WatchError> {
        let found = std::fs::metadata(root).map_err(WatchError::Path)?;
        let system = rustix::fs::statfs(root).map_err(|errno| WatchError::Path(errno.into()))?;
        // The width and sign of `f_type` depend on the architecture; the magic numbers have 32 bits.
        if is_silent(system.f_type as u32) {
            return Err(WatchError::Silent(root.to_owned()));
        }
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).map_err(|errno| match errno {
            Errno::MFILE | Errno::NFILE => WatchError::MachineLimit(InotifyLimit::Instances),
            errno => WatchError::Path(errno.into()),
        })?;
        let mut tree = Self {
            inotify,
            root: root.to_owned(),
            is_recursive,
            paths: HashMap::new(),
            watches: BTreeMap::new(),
            skipped: 0,
        };
        tree.add(root, EVENTS)?;
        if is_recursive && found.is_dir() {
            tree.add_below(root, &mut |_| {})?;
        }
        Ok(tree)
    }

    pub fn inotify(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub fn directories(&self) -> u64 {
        self.watches.len() as u64
    }

    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn add(&mut self, path: &Path, flags: WatchFlags) -> Result<(), WatchError> {
        if self.watches.len() >= MAX_WATCHED_DIRECTORIES {
            return Err(WatchError::TooManyDirectories);
        }
        match inotify::add_watch(&self.inotify, path, flags) {
            Ok(watch) => {
                if let Some(old) = self.paths.insert(watch, path.to_owned()) {
                    self.watches.remove(&old);
                }
                self.watches.insert(path.to_owned(), watch);
                Ok(())
            }
            Err(Errno::NOSPC) => Err(WatchError::MachineLimit(InotifyLimit::Watches)),
            Err(errno) => Err(WatchError::Path(errno.into())),
        }
    }

    /// Watches all directories below a watched one; calls `found` for every entry.
    fn add_below(&mut self, top: &Path, found: &mut dyn FnMut(&Path)) -> Result<(), WatchError> {
        let mut waiting = vec![top.to_owned()];
        while let Some(directory) = waiting.pop() {
            let entries = match std::fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if is_gone(&error) => continue,
                Err(_) => {
                    self.skipped += 1;
                    continue;
                }
            };
            for entry in entries.flatten() {
                let path = entry.path();
                found(&path);
                // A link to a directory is not one, so links are not followed.
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                match self.add(&path, BELOW) {
                    Ok(()) => waiting.push(path),
                    Err(WatchError::Path(error)) if is_gone(&error) => {}
                    Err(WatchError::Path(_)) => self.skipped += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Watches a directory that has appeared; what it has already is reported as created.
    fn add_new(&mut self, path: &Path, staged: &mut Staged) {
        let added = self.add(path, BELOW).and_then(|()| {
            self.add_below(path, &mut |entry| staged.push(ChangeKind::Create, entry))
        });
        match added {
            Ok(()) => {}
            Err(WatchError::Path(error)) if is_gone(&error) => {}
            // What cannot be watched must be looked at by the client itself.
            Err(_) => staged.push(ChangeKind::Rescan, path),
        }
    }

    /// Reads all events that are there.
    pub fn read(&mut self, staged: &mut Staged) -> Flow {
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        loop {
            let events = self.read_some(&mut buffer);
            if events.is_empty() {
                return Flow::Continue;
            }
            for event in events {
                if self.handle(event, staged) == Flow::Ended {
                    return Flow::Ended;
                }
            }
        }
    }

    fn read_some(&self, buffer: &mut [MaybeUninit<u8>]) -> Vec<Event> {
        let mut reader = Reader::new(&self.inotify, buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => events.push(Event {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()),
                }),
                Err(Errno::INTR) => continue,
                Err(_) => return events,
            }
            if reader.is_buffer_empty() {
                return events;
            }
        }
    }

    fn handle(&mut self, event: Event, staged: &mut Staged) -> Flow {
        let flags = event.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            staged.overflow();
            if self.is_recursive {
                let root = self.root.clone();
                // Directories that appeared meanwhile have to be watched; the client is told to look at everything.
                let _ = self.add_below(&root, &mut |_| {});
            }
            return Flow::Continue;
        }
        let Some(directory) = self.paths.get(&event.watch).cloned() else { return Flow::Continue };
        if flags.contains(ReadFlags::IGNORED) {
            self.paths.remove(&event.watch);
            self.watches.remove(&directory);
            return if directory == self.root { Flow::Ended } else { Flow::Continue };
        }
        let Some(name) = event.name else { return self.handle_itself(&directory, flags, staged) };
        let path = directory.join(OsStr::from_bytes(&name));
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let enters = is_directory && self.is_recursive;
        if flags.contains(ReadFlags::CREATE) {
            staged.push(ChangeKind::Create, &path);
            if enters {
                self.add_new(&path, staged);
            }
        } else if flags.contains(ReadFlags::MODIFY) {
            staged.push(ChangeKind::Write, &path);
        } else if flags.contains(ReadFlags::ATTRIB) {
            staged.push(ChangeKind::Chmod, &path);
        } else if flags.contains(ReadFlags::DELETE) {
            staged.push(ChangeKind::Remove, &path);
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            staged.push_moved_from(event.cookie, path, is_directory);
        } else if flags.contains(ReadFlags::MOVED_TO) {
            match staged.push_moved_to(event.cookie, &path) {
                Some(from) if is_directory => self.rename(&from, &path),
                None if enters => self.add_new(&path, staged),
                _ => {}
            }
        }
        Flow::Continue
    }

    /// An event of a watched path itself; those of a directory below the root also come from its parent.
    fn handle_itself(&self, path: &Path, flags: ReadFlags, staged: &mut Staged) -> Flow {
        if path != self.root {
            return Flow::Continue;
        }
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
            staged.push(ChangeKind::Remove, path);
            return Flow::Ended;
        }
        if flags.contains(ReadFlags::MODIFY) {
            staged.push(ChangeKind::Write, path);
        } else if flags.contains(ReadFlags::ATTRIB) {
            staged.push(ChangeKind::Chmod, path);
        }
        Flow::Continue
    }

    /// Gives the watches of a renamed directory their new paths.
    fn rename(&mut self, from: &Path, to: &Path) {
        for (old, watch) in self.take_below(from) {
            let below = old.strip_prefix(from).expect("it is below");
            let new = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
            self.paths.insert(watch, new.clone());
            self.watches.insert(new, watch);
        }
    }

    /// Ends the watches of directories that were moved out of the tree.
    pub fn forget(&mut self, directories: &[PathBuf]) {
        for directory in directories {
            for (_, watch) in self.take_below(directory) {
                self.paths.remove(&watch);
                // It may be gone already.
                let _ = inotify::remove_watch(&self.inotify, watch);
            }
        }
    }

    fn take_below(&mut self, top: &Path) -> Vec<(PathBuf, i32)> {
        let from_top = self.watches.range(top.to_owned()..);
        // Names such as `a-b` sort between `a` and `a/b` in bytes, but paths compare by component.
        let below = from_top.take_while(|(path, _)| path.starts_with(top));
        let below: Vec<(PathBuf, i32)> =
            below.map(|(path, watch)| (path.clone(), *watch)).collect();
        for (path, _) in &below {
            self.watches.remove(path);
        }
        below
    }
}

/// One event of the kernel.
struct Event {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
