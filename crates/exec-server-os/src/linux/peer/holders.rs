//! Finds the process that has a socket open.
//!
//! The kernel names no process for a TCP socket, so the search inspects the descriptors of processes, in this order:
//! processes in which peers were found before; the server and its ancestors, because most servers serve the program that
//! started them; the newest processes; processes that have another number of descriptors than when all were last listed;
//! the newest descriptor of the others, and then all of theirs; all processes and their threads. What is kept from one
//! search to the next decides only about the order.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, open, openat, readlinkat_raw, statat};
use rustix::io::Errno;
use rustix::path::DecInt;

use crate::linux::mark::Mark;
use crate::linux::procfs;

/// Result of the search for the holder of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// A process outside of every sandbox holds it.
    Outside,
    /// A process in a sandbox holds it.
    Inside,
    /// No holder was found, all processes of the machine are visible, and the descriptors of an unsandboxed process of
    /// the user are not readable.
    Concealed {
        /// Whether a sandbox of its user shares the machine's network.
        near_sandbox: bool,
    },
    /// No holder was found.
    Nowhere {
        /// Whether a sandbox of its user shares the machine's network.
        near_sandbox: bool,
    },
}

/// Searches for holders, and caches the processes in which earlier searches succeeded.
#[derive(Debug, Default)]
pub struct Holders {
    /// Most recent first.
    found_before: Mutex<Vec<Found>>,
    /// All processes when they were last listed; newest first.
    listed: Mutex<Arc<[Listed]>>,
}

/// A process with its user and its number of descriptors.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    pid: u32,
    uid: u32,
    /// Zero if the kernel does not report it.
    descriptors: i64,
}

/// A process to inspect, and where in it a peer was found before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    pid: u32,
    /// The next connection of a burst most often has a slightly higher number.
    descriptor: Option<i64>,
}

/// Few clients connect repeatedly.
const REMEMBERED: usize = 16;
/// Number of most recent pids to try: a command line client has just been started.
const RECENT: u32 = 128;
/// Of these, the ones whose descriptors are all tried: a terminal may have left descriptors with high numbers to a client.
const YOUNGEST: usize = 16;
/// Enough for a guardian, a wrapper or two, and the program that started the server.
const GENERATIONS: usize = 8;

impl Holders {
    /// Searches for the holder of a socket that user `uid` created.
    pub fn search(&self, inode: u64, uid: u32) -> Search {
        let wanted = Wanted::new(inode);
        let before = self.found_before.lock().expect("no holder panics").clone();
        let listed = self.listed.lock().expect("no holder panics").clone();
        let of_user = |listed: &Listed| listed.uid == uid;
        let proc = proc_dir();
        let own = own_and_ancestors().map(|pid| Found { pid, descriptor: None });
        for place in before.into_iter().chain(own) {
            if let Some(found) = self.look_at(place, &wanted) {
                return found;
            }
        }
        let all_of = |it: &Listed| self.look_at(Found { pid: it.pid, descriptor: None }, &wanted);
        let newest_of = |it: &Listed| self.look_at_newest(proc.as_ref(), *it, &wanted);
        let may_hold = |it: &Listed| of_user(it) && it.may_hold();
        let recent = recent().filter_map(|pid| Listed::of(proc.as_ref(), pid)).filter(may_hold);
        for (rank, process) in recent.enumerate() {
            let found = if rank < YOUNGEST { all_of(&process) } else { newest_of(&process) };
            if let Some(found) = found {
                return found;
            }
        }
        // A process that has just connected has one descriptor more, so one call for each of the others is enough.
        let mut others = Vec::new();
        for before in listed.iter() {
            let current = Listed::of(proc.as_ref(), before.pid);
            let Some(current) = current.filter(may_hold) else { continue };
            if current.descriptors == before.descriptors {
                others.push(current);
            } else if let Some(found) = all_of(&current) {
                return found;
            }
        }
        let known: HashSet<u32> = listed.iter().map(|listed| listed.pid).collect();
        let now = self.list();
        others.extend(now.iter().filter(|it| !known.contains(&it.pid) && may_hold(it)));
        let found = others.iter().find_map(newest_of);
        if let Some(found) = found.or_else(|| others.iter().find_map(all_of)) {
            return found;
        }
        // A socket that is passed between processes during the first pass is found in the second.
        for _ in 0..2 {
            let all = processes();
            if let Some(found) = all
                .iter()
                .find_map(|pid| self.look_at(Found { pid: *pid, descriptor: None }, &wanted))
            {
                return found;
            }
            if let Some(found) = all.iter().find_map(|pid| look_at_threads(*pid, &wanted)) {
                return found;
            }
        }
        explain(uid)
    }

    /// Lists all processes, also for later searches.
    pub fn list(&self) -> Arc<[Listed]> {
        let proc = proc_dir();
        let all = processes().into_iter();
        let all: Arc<[Listed]> = all.filter_map(|pid| Listed::of(proc.as_ref(), pid)).collect();
        *self.listed.lock().expect("no holder panics") = all.clone();
        all
    }

    /// Looks at the newest descriptor, which usually has the highest number; at all of them if the kernel does not count.
    fn look_at_newest(
        &self,
        proc: Option<&OwnedFd>,
        process: Listed,
        wanted: &Wanted,
    ) -> Option<Search> {
        let place = Found { pid: process.pid, descriptor: None };
        if process.descriptors == 0 {
            return self.look_at(place, wanted);
        }
        let newest = format!("{}/fd/{}\0", process.pid, process.descriptors - 1);
        let newest =
            CStr::from_bytes_with_nul(newest.as_bytes()).expect("it ends with its only nul");
        match is_wanted(proc?, newest, wanted) {
            Ok(true) => self.look_at(place, wanted),
            _ => None,
        }
    }

    fn look_at(&self, place: Found, wanted: &Wanted) -> Option<Search> {
        let pid = place.pid;
        let descriptors = match open(format!("/proc/{pid}/fd"), DIRECTORY, Mode::empty()) {
            Ok(descriptors) => descriptors,
            Err(Errno::NOENT) => return self.forget(pid),
            Err(_) => return None,
        };
        let Holds::At(descriptor) = look_into(&descriptors, wanted, place.descriptor) else {
            return None;
        };
        // Check again through the process directory, which excludes reuse of the pid.
        let process = Process::open(pid)?;
        let again = process.holds("fd", wanted, Some(descriptor));
        if !matches!(again, Holds::At(_)) {
            return None;
        }
        let is_sandboxed = process.is_sandboxed()?;
        let mut before = self.found_before.lock().expect("no holder panics");
        before.retain(|other| other.pid != pid);
        before.insert(0, Found { pid, descriptor: Some(descriptor) });
        before.truncate(REMEMBERED);
        Some(if is_sandboxed { Search::Inside } else { Search::Outside })
    }

    fn forget(&self, ended: u32) -> Option<Search> {
        self.found_before.lock().expect("no holder panics").retain(|found| found.pid != ended);
        None
    }
}

impl Listed {
    /// This takes one `stat`; reading the descriptors takes a call for each, which would dominate the search on a machine
    /// with 1,000 processes.
    fn of(proc: Option<&OwnedFd>, pid: u32) -> Option<Self> {
        let stat = statat(proc?, format!("{pid}/fd"), AtFlags::empty()).ok()?;
        Some(Self { pid, uid: stat.st_uid, descriptors: stat.st_size })
    }

    /// Whether it has more descriptors than the standard streams, or the kernel does not report how many.
    fn may_hold(&self) -> bool {
        const STANDARD_STREAMS: i64 = 3;
        self.descriptors > STANDARD_STREAMS || !descriptors_are_counted()
    }
}

/// The directory of all processes; a stat relative to it is faster.
fn proc_dir() -> Option<OwnedFd> {
    open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// A thread may have its own descriptor table, and outlive the main thread.
fn look_at_threads(pid: u32, wanted: &Wanted) -> Option<Search> {
    let process = Process::open(pid)?;
    let threads = numbers(Path::new(&format!("/proc/{pid}/task")));
    let holds = |thread: &u32| {
        matches!(process.holds(&format!("task/{thread}/fd"), wanted, None), Holds::At(_))
    };
    if !threads.iter().filter(|thread| **thread != pid).any(holds) {
        return None;
    }
    process.is_sandboxed().map(|is| if is { Search::Inside } else { Search::Outside })
}

/// Classifies a search that found no holder.
fn explain(uid: u32) -> Search {
    let (mut near_sandbox, mut is_concealed) = (false, false);
    for process in processes().into_iter().filter_map(Process::open) {
        let (Some(mark), Some(is_sandboxed)) = (process.mark(), process.is_sandboxed()) else {
            continue;
        };
        if process.uid() != Some(uid) {
            continue;
        }
        if is_sandboxed {
            near_sandbox |= mark.shares_network();
        } else {
            is_concealed |= process.holds("fd", &Wanted::new(0), None) == Holds::Concealed;
        }
    }
    // In another pid namespace the holder may be a process that is not visible, such as one in a sandbox of the host.
    if is_concealed && sees_all_processes() {
        Search::Concealed { near_sandbox }
    } else {
        Search::Nowhere { near_sandbox }
    }
}

/// Whether this process is in the initial pid namespace, whose inode number is fixed in the kernel.
fn sees_all_processes() -> bool {
    const INITIAL: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|own| own == Path::new(INITIAL))
}

/// The link text of a descriptor of the wanted socket.
struct Wanted(String);

impl Wanted {
    fn new(inode: u64) -> Self {
        Self(format!("socket:[{inode}]"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// The descriptor number.
    At(i64),
    No,
    /// The kernel denies access to the descriptors.
    Concealed,
}

/// A process by its open directory in `/proc`, which stays invalid if the pid is reused.
pub struct Process {
    dir: OwnedFd,
}

impl Process {
    /// Opens the process with this pid, if it exists and is visible.
    pub fn open(pid: u32) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(format!("/proc/{pid}"), flags, Mode::empty()).ok()?;
        Some(Self { dir })
    }

    /// Whether it is in a sandbox that this process is not in; `None` if it has exited.
    pub fn is_sandboxed(&self) -> Option<bool> {
        let (own, mark) = (Mark::own(), self.mark()?);
        // Sibling sandboxes of a sandboxed server may have its mark, so the pid namespace decides there.
        Some(mark.is_inside(own) || own.is_in_any() && !self.is_in_own_namespace())
    }

    fn mark(&self) -> Option<Mark> {
        Mark::in_limits(&self.read("limits")?)
    }

    fn is_in_own_namespace(&self) -> bool {
        let own = fs::read_link("/proc/self/ns/pid").ok();
        let its = rustix::fs::readlinkat(&self.dir, "ns/pid", Vec::new()).ok();
        match (own, its) {
            (Some(own), Some(its)) => own.as_os_str().as_bytes() == its.as_bytes(),
            _ => false,
        }
    }

    /// The file system uid, which new sockets get.
    fn uid(&self) -> Option<u32> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_ascii_whitespace().nth(3)?.parse().ok()
    }

    fn read(&self, name: &str) -> Option<String> {
        procfs::text_at(&self.dir, name).ok()
    }

    fn holds(&self, descriptors: &str, wanted: &Wanted, near: Option<i64>) -> Holds {
        match openat(&self.dir, descriptors, DIRECTORY, Mode::empty()) {
            Ok(dir) => look_into(&dir, wanted, near),
            Err(Errno::ACCESS | Errno::PERM) => Holds::Concealed,
            Err(_) => Holds::No,
        }
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Descriptor numbers to try around the newest one before all are listed.
const NEWEST: i64 = 24;

fn look_into(dir: &OwnedFd, wanted: &Wanted, near: Option<i64>) -> Holds {
    let count = count_of(dir);
    if count == Some(0) {
        return Holds::No;
    }
    let is = |number: i64| is_wanted(dir, DecInt::new(number).as_c_str(), wanted);
    if let Some(near) = near
        && let Some(found) =
            ((near - NEWEST / 6).max(0)..near + NEWEST).find(|it| is(*it) == Ok(true))
    {
        return Holds::At(found);
    }
    if let Some(count) = count {
        // The kernel assigns the lowest free number, so the newest descriptor is usually the highest.
        let newest = ((count - NEWEST).max(0)..count).rev().chain(count..count + NEWEST / 3);
        let mut seen = 0;
        for number in newest {
            match is(number) {
                Ok(true) => return Holds::At(number),
                Ok(false) => seen += 1,
                Err(Errno::ACCESS | Errno::PERM) => return Holds::Concealed,
                Err(_) => {}
            }
            if seen == count {
                return Holds::No;
            }
        }
    }
    let Ok(entries) = Dir::read_from(dir) else { return Holds::No };
    for entry in entries.flatten() {
        match is_wanted(dir, entry.file_name(), wanted) {
            Ok(true) => return number_of(entry.file_name()).map_or(Holds::No, Holds::At),
            Err(Errno::ACCESS | Errno::PERM) => return Holds::Concealed,
            Ok(false) | Err(_) => {}
        }
    }
    Holds::No
}

fn number_of(name: &std::ffi::CStr) -> Option<i64> {
    name.to_str().ok()?.parse().ok()
}

/// The number of descriptors, if the kernel reports it.
fn count_of(dir: &OwnedFd) -> Option<i64> {
    descriptors_are_counted().then(|| fstat(dir).ok().map(|stat| stat.st_size))?
}

/// Since Linux 6.2 the size of `/proc/PID/fd` is the number of descriptors; before, it was zero.
fn descriptors_are_counted() -> bool {
    static COUNTED: OnceLock<bool> = OnceLock::new();
    *COUNTED.get_or_init(|| fs::metadata("/proc/self/fd").is_ok_and(|own| own.len() > 0))
}

fn is_wanted(dir: &OwnedFd, name: &std::ffi::CStr, wanted: &Wanted) -> rustix::io::Result<bool> {
    let mut target = [MaybeUninit::uninit(); 64];
    let (target, _) = readlinkat_raw(dir, name, &mut target[..])?;
    Ok(target == wanted.0.as_bytes())
}

/// This process and its ancestors, at most [`GENERATIONS`], without pid 1.
fn own_and_ancestors() -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| {
        let parent = procfs::parent(pid.cast_signed())?.cast_unsigned();
        (parent > 1).then_some(parent)
    };
    std::iter::successors(Some(std::process::id()), parent).take(GENERATIONS)
}

/// The most recent pids, newest first.
fn recent() -> impl Iterator<Item = u32> {
    let load = procfs::text("/proc/loadavg").unwrap_or_default();
    let last = load.split_ascii_whitespace().nth(4).and_then(|last| last.parse::<u32>().ok());
    last.into_iter().flat_map(|last| (last.saturating_sub(RECENT) + 1..=last).rev())
}

/// All visible processes, highest pid first.
fn processes() -> Vec<u32> {
    let mut all = numbers(Path::new("/proc"));
    all.sort_unstable_by(|one, other| other.cmp(one));
    all
}

fn numbers(dir: &Path) -> Vec<u32> {
    let number = |name: &OsStr| std::str::from_utf8(name.as_bytes()).ok()?.parse().ok();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| number(&entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inode(socket: &UnixStream) -> u64 {
        fstat(socket).unwrap().st_ino
    }

    #[test]
    fn a_socket_is_found_at_any_descriptor_number() {
        let holders = Holders::default();
        let uid = rustix::process::geteuid().as_raw();
        let sockets: Vec<_> = (0..200).map(|_| UnixStream::pair().unwrap()).collect();
        for (socket, _) in &sockets {
            let found = holders.search(inode(socket), uid);
            assert_eq!(found, Search::Outside, "{}", socket.as_raw_fd());
        }
        let before = holders.found_before.lock().unwrap();
        assert_eq!(before.iter().map(|found| found.pid).collect::<Vec<_>>(), [std::process::id()]);
    }

    #[test]
    fn a_process_with_more_than_standard_streams_may_hold_a_socket() {
        let _sockets = UnixStream::pair().unwrap();
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        let all = Holders::default().list();
        let own = all.iter().find(|it| it.pid == pid).unwrap();
        assert!(own.uid == uid && own.may_hold());
        let idle = Listed { descriptors: 3, ..*own };
        assert_eq!(idle.may_hold(), !descriptors_are_counted());
    }

    #[test]
    fn the_newest_descriptor_is_found_without_the_others() {
        let holders = Holders::default();
        let proc = proc_dir();
        let own = || Listed::of(proc.as_ref(), std::process::id()).unwrap();
        if own().descriptors == 0 {
            return;
        }
        let socket = UnixStream::pair().unwrap().0;
        let wanted = Wanted::new(inode(&socket));
        // Tests beside this one open and close descriptors.
        let number = i64::from(socket.as_raw_fd());
        let at = |number| Listed { descriptors: number + 1, ..own() };
        let found = holders.look_at_newest(proc.as_ref(), at(number), &wanted);
        assert_eq!(found, Some(Search::Outside));
        assert_eq!(holders.look_at_newest(proc.as_ref(), at(number + 5000), &wanted), None);
    }

    #[test]
    fn a_socket_that_no_process_holds_may_be_in_flight() {
        let found = Holders::default().search(u64::MAX, u32::MAX - 7);
        assert_eq!(found, Search::Nowhere { near_sandbox: false });
    }

    #[test]
    fn a_process_that_has_ended_is_not_mistaken_for_the_next_with_its_number() {
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert_eq!(process.is_sandboxed(), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.is_sandboxed(), None);
        assert_eq!(process.holds("fd", &Wanted::new(0), None), Holds::No);
    }
}
