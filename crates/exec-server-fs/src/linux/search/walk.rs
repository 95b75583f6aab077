//! Walks a tree on several threads.
//!
//! ```text
//! work: directories, names of files ──▶ threads ──▶ visitors, one per thread
//!   ▲                                      │
//!   └── directories that were found; files, if another thread has nothing to do
//! ```
//!
//! Directories are opened relative to the one around them, and entries are judged by their type in the directory, so an
//! entry costs no system call. Invariant: work is added only by threads that have some, so the walk is over when all
//! threads wait.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::available_parallelism;

use exec_server_protocol::path_uri::PathUri;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, fstat, statat};
use rustix::io::Errno;

use super::super::entries::{self, EntryReader};
use super::filter::Filter;
use super::ignore_files::Rules;
use super::open;
use super::queue::Shared;

/// More threads than this wait for the same disk.
const MAX_THREADS: usize = 8;
/// Directories that one walk keeps open; entries of others are opened from the root.
const MAX_OPEN: usize = 128;
/// Files that a thread hands to another one at a time.
const HANDED_OVER: usize = 64;

/// Looks at entries, on one thread.
pub trait Visitor {
    /// Whether looking at a file takes longer than finding it, so that files are shared among threads.
    const IS_COSTLY: bool;
    /// Looks at an entry that the filter admits; false ends the walk.
    fn visit(&mut self, directory: &Directory, name: &CStr, kind: FileType) -> bool;
    /// Publishes what was found, before the thread waits; false ends the walk.
    fn flush(&mut self) -> bool;
}

/// A directory of the tree.
pub struct Directory {
    pub path: PathBuf,
    /// None if too many are open.
    open: Option<Arc<OwnedFd>>,
    count: Arc<AtomicUsize>,
    depth: usize,
    rules: Rules,
}

/// A walk that is ready to run.
pub struct Walk {
    filter: Filter,
    root: Arc<Directory>,
    /// Of the root; always open.
    root_fd: Arc<OwnedFd>,
    work: Mutex<Work>,
    changed: Condvar,
    /// Threads that wait for work.
    waiting: AtomicUsize,
}

struct Work {
    tasks: Vec<Task>,
    /// Threads that do not wait.
    busy: usize,
    is_over: bool,
}

enum Task {
    Directory { around: Arc<Directory>, name: CString },
    Files { directory: Arc<Directory>, names: Vec<CString> },
}

impl Walk {
    /// Opens the root.
    pub fn new(root: &Path, filter: Filter) -> io::Result<Self> {
        let root_fd = Arc::new(open::open_root(root)?);
        let root = Directory {
            path: root.to_owned(),
            open: Some(root_fd.clone()),
            count: Arc::new(AtomicUsize::new(1)),
            depth: 0,
            rules: None,
        };
        let work = Mutex::new(Work { tasks: Vec::new(), busy: 0, is_over: false });
        let (changed, waiting) = (Condvar::new(), AtomicUsize::new(0));
        Ok(Self { filter, root: Arc::new(root), root_fd, work, changed, waiting })
    }

    /// The directory that the walk begins in.
    #[cfg(test)]
    pub fn root(&self) -> &Directory {
        &self.root
    }

    /// The filter of this walk.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Walks the tree to its end; `visitor` is called once per thread.
    pub fn run<V: Visitor>(&self, shared: &Shared, visitor: impl Fn() -> V + Sync) {
        let threads = available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        self.lock().busy = threads;
        std::thread::scope(|scope| {
            let helper = || Walker::new(self, shared, visitor()).run(None);
            for _ in 1..threads {
                let spawned = std::thread::Builder::new()
                    .name("search".to_owned())
                    .spawn_scoped(scope, helper);
                // Without more threads the walk takes longer.
                if spawned.is_err() {
                    self.lock().busy -= 1;
                }
            }
            Walker::new(self, shared, visitor()).run(Some(&self.root));
        });
    }

    /// Opens an entry of a directory, without following a link.
    pub fn open(&self, directory: &Directory, name: &CStr, kind: OFlags) -> io::Result<OwnedFd> {
        match &directory.open {
            Some(open) => open::open_in(open, name, kind),
            None => self.open_from_root(directory, name, open::FOR_READING | kind),
        }
    }

    /// The facts of an entry of a directory, without following a link.
    pub fn stat(&self, directory: &Directory, name: &CStr) -> io::Result<Stat> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match &directory.open {
            Some(open) => Ok(statat(open, name, flags)?),
            None => Ok(fstat(self.open_from_root(directory, name, OFlags::PATH)?)?),
        }
    }

    fn open_from_root(
        &self,
        directory: &Directory,
        name: &CStr,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let path = directory.path.join(OsStr::from_bytes(name.to_bytes()));
        open::open_below(&self.root_fd, super::below(&path, &self.root.path), flags)
    }

    /// Takes a task; waits while others may still find one. None at the end of the walk.
    fn next(&self, before_waiting: impl FnOnce() -> bool) -> Option<Task> {
        let mut work = self.lock();
        if work.tasks.is_empty() && !work.is_over {
            drop(work);
            let goes_on = before_waiting();
            work = self.lock();
            work.is_over |= !goes_on;
        }
        work.busy -= 1;
        loop {
            if work.is_over || (work.tasks.is_empty() && work.busy == 0) {
                work.is_over = true;
                self.changed.notify_all();
                return None;
            }
            if let Some(task) = work.tasks.pop() {
                work.busy += 1;
                return Some(task);
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            work = self.changed.wait(work).expect("no holder panics");
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn add(&self, tasks: impl IntoIterator<Item = Task>) {
        self.lock().tasks.extend(tasks);
        if self.is_any_waiting() {
            self.changed.notify_all();
        }
    }

    fn is_any_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no holder panics")
    }
}

/// One thread of a walk.
struct Walker<'a, V> {
    walk: &'a Walk,
    shared: &'a Shared,
    visitor: V,
    reader: EntryReader,
}

impl<'a, V: Visitor> Walker<'a, V> {
    fn new(walk: &'a Walk, shared: &'a Shared, visitor: V) -> Self {
        Self { walk, shared, visitor, reader: EntryReader::new() }
    }

    fn run(mut self, first: Option<&Arc<Directory>>) {
        // A thread that panics ends the walk, so that the others do not wait for it.
        let _end = EndOnPanic(self.walk);
        let mut goes_on = match first {
            Some(root) => self.enter_root(root),
            None => true,
        };
        while goes_on {
            let Some(task) = self.walk.next(|| self.visitor.flush()) else { return };
            goes_on = match task {
                Task::Directory { around, name } => self.enter(&around, &name),
                Task::Files { directory, names } => {
                    names.iter().all(|name| self.visit_file(&directory, name))
                }
            };
        }
        self.walk.end();
    }

    fn enter_root(&mut self, root: &Arc<Directory>) -> bool {
        if self.walk.filter.max_depth == 0 {
            return true;
        }
        let directory = Directory {
            path: root.path.clone(),
            open: root.open.clone(),
            count: root.count.clone(),
            depth: 0,
            rules: None,
        };
        root.count.fetch_add(1, Ordering::Relaxed);
        let walk = self.walk;
        self.list(&walk.root_fd, directory)
    }

    fn enter(&mut self, around: &Arc<Directory>, name: &CStr) -> bool {
        if self.shared.is_over() {
            return false;
        }
        let path = around.path.join(OsStr::from_bytes(name.to_bytes()));
        let fd = match self.walk.open(around, name, OFlags::DIRECTORY) {
            Ok(fd) => Arc::new(fd),
            Err(error) => {
                self.note(&path, &error);
                return true;
            }
        };
        let count = around.count.clone();
        let is_kept = count.fetch_add(1, Ordering::Relaxed) < MAX_OPEN;
        let open = is_kept.then(|| fd.clone());
        let (depth, rules) = (around.depth + 1, around.rules.clone());
        self.list(&fd, Directory { path, open, count, depth, rules })
    }

    /// Visits the entries of a directory, which comes with the rules around it, and queues its directories.
    fn list(&mut self, fd: &OwnedFd, mut directory: Directory) -> bool {
        let Self { walk, shared, visitor, reader } = self;
        let fd = fd.as_fd();
        let names = reader.read_ahead(fd);
        let note = |path: &Path, error: io::Error| shared.note_error(path, error.to_string());
        let rules = walk.filter.enter(fd, &names, &directory.path, &directory.rules, note);
        directory.rules = rules;
        let directory = &Arc::new(directory);
        let (mut folders, mut files) = (Vec::new(), Vec::new());
        let may_enter = directory.depth + 1 < walk.filter.max_depth;
        let mut path = PathBuffer::new(&directory.path);
        let outcome = names.visit(|name, reported| {
            let kind = match entries::kind(fd, name, reported) {
                Ok(kind) => kind,
                // It was removed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => {
                    shared.note_error(path.with(name), error.to_string());
                    return Ok(());
                }
            };
            let is_dir = kind == FileType::Directory;
            if !walk.filter.admits(&directory.rules, path.with(name), name.to_bytes(), is_dir) {
                return Ok(());
            }
            if V::IS_COSTLY && kind == FileType::RegularFile && walk.is_any_waiting() {
                files.push(name.to_owned());
                if files.len() == HANDED_OVER {
                    let names = std::mem::take(&mut files);
                    walk.add([Task::Files { directory: directory.clone(), names }]);
                }
                return Ok(());
            }
            if !visitor.visit(directory, name, kind) {
                return Err(Stop::Over);
            }
            if is_dir && may_enter {
                folders.push(Task::Directory { around: directory.clone(), name: name.to_owned() });
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(Stop::Over) => return false,
            Err(Stop::Failed(error)) => self.note(&directory.path, &error),
        }
        if !folders.is_empty() {
            self.walk.add(folders);
        }
        files.iter().all(|name| self.visit_file(directory, name))
    }

    fn visit_file(&mut self, directory: &Directory, name: &CStr) -> bool {
        self.visitor.visit(directory, name, FileType::RegularFile)
    }

    /// Records why a directory could not be read.
    fn note(&self, path: &Path, error: &io::Error) {
        if !is_gone(error) {
            self.shared.note_error(path, error.to_string());
        }
    }
}

/// Whether an entry was removed, or replaced by a link, since its directory was listed; then it is not part of the tree.
pub fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
}

enum Stop {
    Over,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

struct EndOnPanic<'a>(&'a Walk);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The paths of the entries of one directory, in one buffer.
struct PathBuffer {
    bytes: Vec<u8>,
    prefix: usize,
}

impl PathBuffer {
    fn new(directory: &Path) -> Self {
        let mut bytes = Vec::with_capacity(directory.as_os_str().len() + 64);
        bytes.extend_from_slice(directory.as_os_str().as_bytes());
        if bytes.last() != Some(&b'/') {
            bytes.push(b'/');
        }
        Self { prefix: bytes.len(), bytes }
    }

    fn with(&mut self, name: &CStr) -> &Path {
        self.bytes.truncate(self.prefix);
        self.bytes.extend_from_slice(name.to_bytes());
        Path::new(OsStr::from_bytes(&self.bytes))
    }
}

pub fn path_uri(path: &Path) -> PathUri {
    PathUri::from_posix(path.as_os_str().as_bytes())
}
