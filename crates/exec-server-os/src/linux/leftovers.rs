//! Kills processes that a server left behind because it was killed together with its guardian.
//!
//! Every server has a record file in the state directory, named by its pid, which is also in the tags of its processes.
//! The server holds a lock on the file, which the kernel releases when the server exits. A file without a lock belongs
//! to a server that is gone: its tagged processes are killed while the lock is held here, then the file is removed.
//!
//! A tag is only a number, so a process is killed only if all of these hold:
//! - it has the tag of a server that is gone, and the pid namespace of that server, which equals our own;
//! - it has our own user, or this server can start processes as other users;
//! - it started before the scan did;
//! - it is no server, no guardian and no ancestor of this server;
//! - no running process other than this server has the pid in the tag.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::credentials::can_change_users;
use super::file_lock::{self as lock, Kind};
use super::{guardian, procfs};
use crate::guardian::Leftovers;
use crate::tree_tag::TreeTag;

/// The locked record file of this server; dropping it removes the file.
#[derive(Debug)]
pub struct ServerRecord {
    dir: PathBuf,
    path: PathBuf,
    _locked: File,
}

/// The scan repeats until it finds nothing, because a process may fork during a scan.
const MAX_SCANS: usize = 1000;

const LOCK_TRIES: usize = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

impl ServerRecord {
    /// Creates the record of this server, before it starts any process, and kills what an earlier server with the same pid
    /// left behind. `None` if this process has a record already.
    pub fn enter(dir: &Path) -> io::Result<Option<(Self, Leftovers)>> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir)?;
        let path = dir.join(std::process::id().to_string());
        let mut options = OpenOptions::new();
        let Some(mut file) = lock_with_retries(&path, options.create(true))? else {
            return Ok(None);
        };
        let own = Facts::of_this_server()?;
        let leftovers = match read_facts(&mut file)? {
            // The pid is ours and nothing was started yet, so every process with this tag is a leftover.
            Some(gone) => end_leftovers(dir, &gone, &own, Holder::ThisServer),
            None => Leftovers::default(),
        };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(own.to_text().as_bytes())?;
        Ok(Some((Self { dir: dir.to_owned(), path, _locked: file }, leftovers)))
    }

    /// Kills the leftover processes of all servers that are gone. May block.
    pub fn end_leftovers(&self) -> io::Result<Leftovers> {
        let own = Facts::of_this_server()?;
        let mut all = Leftovers::default();
        for path in entries(&self.dir)?.into_iter().filter(|path| *path != self.path) {
            // A running server holds its lock, and a server that is just starting has no processes yet.
            let Ok(Some(mut file)) = lock_file(&path, &mut OpenOptions::new()) else { continue };
            let Some(gone) = read_facts(&mut file)? else { continue };
            let found = end_leftovers(&self.dir, &gone, &own, Holder::NotThisServer);
            all.ended += found.ended;
            if found.unclear.is_empty() {
                fs::remove_file(&path)?;
            }
            all.unclear.extend(found.unclear);
        }
        Ok(all)
    }
}

impl Drop for ServerRecord {
    fn drop(&mut self) {
        // Ignore the error: a later scan finds the file unlocked and removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Content of a record file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Facts {
    boot: String,
    pid_namespace: String,
    pid: libc::pid_t,
    guardian: libc::pid_t,
}

impl Facts {
    fn of_this_server() -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let pid_namespace = own_pid_namespace()?;
        let guardian = guardian::pid().unwrap_or(0).cast_signed();
        Ok(Self { boot, pid_namespace, pid: std::process::id().cast_signed(), guardian })
    }

    fn to_text(&self) -> String {
        let Self { boot, pid_namespace, pid, guardian } = self;
        format!("{boot}\n{pid_namespace}\n{pid}\n{guardian}\n")
    }

    /// `None` if the text is incomplete.
    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n').map(str::to_owned);
        let facts = Self {
            boot: lines.next()?,
            pid_namespace: lines.next()?,
            pid: lines.next()?.parse().ok()?,
            guardian: lines.next()?.parse().ok()?,
        };
        lines.next().is_none().then_some(facts)
    }
}

/// Whether the pid in the tag is this server's own pid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    ThisServer,
    NotThisServer,
}

fn end_leftovers(dir: &Path, gone: &Facts, own: &Facts, holder: Holder) -> Leftovers {
    let mut found = Leftovers::default();
    // After a reboot no process is left, and in another pid namespace the pid means another process.
    if gone.boot != own.boot || gone.pid_namespace != own.pid_namespace {
        return found;
    }
    let Some(begun) = now_in_ticks() else { return found };
    let spared = spared(dir, own);
    for _ in 0..MAX_SCANS {
        let is_old = |pid: &libc::pid_t| {
            procfs::stat(*pid).is_some_and(|stat| !stat.is_zombie && stat.started < begun)
        };
        let candidates: Vec<_> = procfs::processes()
            .into_iter()
            .filter(|pid| !spared.contains(pid) && is_leftover(*pid, gone))
            .filter(is_old)
            .collect();
        if candidates.is_empty() {
            break;
        }
        // A server with another state directory may have reused the pid, and with it the tag.
        if holder == Holder::NotThisServer && is_living(gone.pid) {
            found.unclear = candidates;
            break;
        }
        found.ended += candidates.into_iter().filter(|pid| kill_leftover(*pid, gone)).count();
    }
    found
}

fn is_living(pid: libc::pid_t) -> bool {
    procfs::stat(pid).is_some_and(|stat| !stat.is_zombie)
}

fn is_leftover(pid: libc::pid_t, gone: &Facts) -> bool {
    let server = gone.pid.cast_unsigned();
    procfs::realtime_limit(pid).is_some_and(|limit| TreeTag::is_of_server(limit, server))
        && (can_change_users() || procfs::user(pid) == Some(rustix::process::geteuid().as_raw()))
        && procfs::is_in_own_pid_namespace(pid)
}

/// Checks the process again through a pidfd, which excludes pid reuse, and kills it.
fn kill_leftover(pid: libc::pid_t, gone: &Facts) -> bool {
    let flags = rustix::process::PidfdFlags::empty();
    let Some(handle) = rustix::process::Pid::from_raw(pid) else { return false };
    let Ok(pidfd) = rustix::process::pidfd_open(handle, flags) else { return false };
    is_leftover(pid, gone)
        && rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).is_ok()
}

/// This process, its ancestors, and the running servers with their guardians: each may descend from a process of the
/// server that is gone and have inherited its tag.
fn spared(dir: &Path, own: &Facts) -> Vec<libc::pid_t> {
    let mut spared = vec![own.pid, own.guardian];
    let mut pid = own.pid;
    while let Some(parent) = procfs::parent(pid).filter(|parent| *parent > 1) {
        spared.push(parent);
        pid = parent;
    }
    for path in entries(dir).unwrap_or_default() {
        let is_living = matches!(lock_file(&path, &mut OpenOptions::new()), Ok(None));
        let text = fs::read_to_string(&path).unwrap_or_default();
        if let Some(facts) = Facts::from_text(&text).filter(|_| is_living) {
            spared.extend([facts.pid, facts.guardian]);
        }
    }
    spared
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let is_number = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let all = fs::read_dir(dir)?.flatten();
    Ok(all.filter(|entry| is_number(&entry.file_name())).map(|entry| entry.path()).collect())
}

/// Retries, because another server that scans the directory holds the lock for a moment.
fn lock_with_retries(path: &Path, options: &mut OpenOptions) -> io::Result<Option<File>> {
    for _ in 0..LOCK_TRIES {
        if let Some(file) = lock_file(path, options)? {
            return Ok(Some(file));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(None)
}

/// Opens and locks a file; `None` if another server holds the lock.
fn lock_file(path: &Path, options: &mut OpenOptions) -> io::Result<Option<File>> {
    loop {
        let options = options.read(true).write(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        if !lock::try_to(&file, Kind::Exclusive)? {
            return Ok(None);
        }
        let stat = file.metadata()?;
        if stat.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // The file may have been removed between open and lock; then open the new one.
        if stat.nlink() > 0 {
            return Ok(Some(file));
        }
    }
}

fn read_facts(file: &mut File) -> io::Result<Option<Facts>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(Facts::from_text(&text))
}

fn own_pid_namespace() -> io::Result<String> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    Ok(link.to_string_lossy().into_owned())
}

/// Time since boot in clock ticks, the unit of process start times.
fn now_in_ticks() -> Option<u64> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // SAFETY: sysconf returns a number and touches no memory.
    let ticks = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    let seconds = u64::try_from(now.tv_sec).ok()?;
    let part = u64::try_from(now.tv_nsec).ok()? * ticks / 1_000_000_000;
    Some(seconds * ticks + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written_and_only_whole() {
        let facts = Facts {
            boot: "b".to_owned(),
            pid_namespace: "pid:[1]".to_owned(),
            pid: 12,
            guardian: 11,
        };
        let text = facts.to_text();
        assert_eq!(Facts::from_text(&text), Some(facts));
        for end in 0..text.len() {
            assert_eq!(Facts::from_text(&text[..end]), None, "{:?}", &text[..end]);
        }
    }

    #[test]
    fn a_process_has_one_record_and_removes_it_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let (record, leftovers) = ServerRecord::enter(dir.path()).unwrap().unwrap();
        assert_eq!(leftovers, Leftovers::default());
        assert!(ServerRecord::enter(dir.path()).unwrap().is_none());
        assert_eq!(record.end_leftovers().unwrap(), Leftovers::default());
        drop(record);
        assert!(entries(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn records_of_other_boots_and_namespaces_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (record, _) = ServerRecord::enter(dir.path()).unwrap().unwrap();
        let own = Facts::of_this_server().unwrap();
        let other_boot = Facts { boot: "another".to_owned(), ..own.clone() };
        let other_namespace = Facts { pid_namespace: "pid:[1]".to_owned(), ..own };
        for (name, facts) in [("1", other_boot), ("2", other_namespace)] {
            fs::write(dir.path().join(name), facts.to_text()).unwrap();
        }
        assert_eq!(record.end_leftovers().unwrap(), Leftovers::default());
        assert_eq!(entries(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn ticks_have_the_unit_of_process_start_times() {
        let stat = procfs::stat(std::process::id().cast_signed()).unwrap();
        let now = now_in_ticks().unwrap();
        assert!(stat.started <= now && now - stat.started < 100 * 3600, "{} {now}", stat.started);
    }
}
