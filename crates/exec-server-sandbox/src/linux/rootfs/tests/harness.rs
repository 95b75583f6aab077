//! Runs a script inside a view, as root and as an ordinary user, and looks at the host afterwards.
//!
//! ```text
//! test ──fork──> launcher: own namespaces ──fork──> pid 1: builds the view ──fork──> command: no capabilities, runs the script
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::process::{Signal, getgid, getuid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use super::super::{Base, BaseRootfs, MountAccess, MountRule, OldRoot, RootfsProfile, RootfsSpec};
use super::script;
use crate::linux::step::{Step, StepError};

pub const NOBODY: u32 = 65534;

/// Gets the directory of the host.
type Prepare = fn(&Path);

/// A directory with a workspace and things that a sandbox must not touch.
pub struct Host {
    dir: tempfile::TempDir,
    /// Runs as root in a mount namespace of its own, before the launcher has its namespaces.
    pub prepare: Option<Prepare>,
    pub user: User,
    /// Belongs to a group that the launcher cannot map.
    pub foreign_group: Option<PathBuf>,
    /// Belongs to another user.
    pub foreign_link: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Root,
    Nobody,
}

/// Runs a test on a new host as root, if the tests run as root, and on another as an ordinary user.
#[track_caller]
pub fn each_user(test: impl Fn(&mut Host)) {
    if getuid().is_root() {
        test(&mut Host::new(User::Root));
    }
    test(&mut Host::new(User::Nobody));
}

/// The same with something prepared that only root can do.
#[track_caller]
pub fn each_user_prepared(prepare: Prepare, test: impl Fn(&mut Host)) {
    if getuid().is_root() {
        for user in [User::Root, User::Nobody] {
            let mut host = Host::new(user);
            host.prepare = Some(prepare);
            test(&mut host);
        }
    }
}

impl Host {
    pub fn new(user: User) -> Self {
        let host = Self {
            dir: tempfile::tempdir().unwrap(),
            prepare: None,
            user,
            foreign_group: None,
            foreign_link: None,
        };
        for (path, content) in [
            ("out/secret", "secret"),
            ("out/dir/file", "outside"),
            ("ws/file", "file"),
            ("ws/.git/config", "config"),
            ("ws/.git/hooks/pre-commit", "hook"),
            ("ws/sub/deep/keep/file", "keep"),
            ("ws/sub/deep/free", "free"),
            ("ws/sub/other", "other"),
            ("ws/denied/key", "key"),
            ("ws/denied/open/file", "open"),
            ("ws/denied/read/file", "read"),
            ("ws/key.env", "env"),
        ] {
            host.write(path, content);
        }
        host
    }

    pub fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() || path.starts_with('/') {
            path.into()
        } else {
            self.dir.path().join(path)
        }
    }

    pub fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), content).unwrap();
    }

    pub fn link(&self, text: &str, path: &str) {
        symlink(text.replace('@', self.dir.path().to_str().unwrap()), self.path(path)).unwrap();
    }

    /// Gives a directory to the user that the sandbox is for.
    pub fn give(&self, path: &Path) {
        give(path, if self.user == User::Root { 0 } else { NOBODY });
    }

    /// `r path`, `w path` or `d path` per place.
    pub fn view(&self, base: Base, places: &[&str]) -> RootfsSpec {
        let place = |text: &&str| {
            let (access, path) = text.split_once(' ').unwrap();
            let access = match access {
                "r" => MountAccess::ReadOnly,
                "w" => MountAccess::Writable,
                "d" => MountAccess::Denied,
                other => panic!("no access is called {other}"),
            };
            MountRule { path: self.path(path), access }
        };
        RootfsSpec {
            places: places.iter().map(place).collect(),
            temp_bytes: 1 << 20,
            ..RootfsSpec::new(base)
        }
    }

    /// What programs need, and the places.
    pub fn bare_view(&self, places: &[&str]) -> RootfsSpec {
        let minimal =
            ["r /usr", "r /bin", "r /sbin", "r /lib", "r /lib64", "r /etc", "r /nix/store"];
        self.view(Base::Nothing, &[&minimal, places].concat())
    }

    /// Runs the script inside and checks every line of its output.
    #[track_caller]
    pub fn check(&self, view: &RootfsSpec, lines: &str) {
        let report = self.run(view, lines);
        assert!(report == "done\n", "as {:?}:\n{report}", self.user);
    }

    /// Runs the script and ignores its result; the host is checked as always.
    #[track_caller]
    pub fn attack(&self, view: &RootfsSpec, lines: &str) -> String {
        self.run(view, lines)
    }

    /// The error that building the view ends with.
    #[track_caller]
    pub fn refuses(&self, view: &RootfsSpec) -> String {
        let report = self.run(view, "");
        assert!(report.starts_with("could not set up"), "{report}");
        report
    }

    #[track_caller]
    fn run(&self, view: &RootfsSpec, lines: &str) -> String {
        let user = self.user;
        let owner = if user == User::Root { 0 } else { NOBODY };
        if getuid().is_root() {
            give(self.dir.path(), owner);
            if let Some(path) = &self.foreign_group {
                chown(path, None, Some(1234)).unwrap();
            }
            if let Some(path) = &self.foreign_link {
                std::os::unix::fs::lchown(path, Some(1234), None).unwrap();
            }
        }
        let before = snapshot(&self.path("out"));
        let (report, to_us) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let lines = lines.replace('@', self.dir.path().to_str().unwrap());
        let launcher = fork(|| launch(user, self.prepare, self.dir.path(), view, &lines, &to_us));
        drop(to_us);
        let mut text = String::new();
        fs::File::from(report).read_to_string(&mut text).unwrap();
        let status = wait(launcher);
        assert_eq!(
            snapshot(&self.path("out")),
            before,
            "the host was changed as {user:?}:\n{text}"
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()), "mounts were left:\n{mounts}");
        if status == 0 { text } else { format!("{text}status {status}\n") }
    }
}

/// Everything that could be changed about the files in a directory.
fn snapshot(path: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let about = fs::symlink_metadata(path).unwrap();
    let content = if about.is_file() { fs::read_to_string(path).unwrap() } else { String::new() };
    let facts =
        (about.mode(), about.uid(), about.nlink(), about.mtime_nsec(), about.mtime(), content);
    if about.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            all.extend(snapshot(&entry.unwrap().path()));
        }
    }
    all.insert(path.into(), format!("{facts:?}"));
    all
}

fn give(path: &Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).unwrap();
    if fs::symlink_metadata(path).unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), owner);
        }
    }
}

fn launch(
    user: User,
    prepare: Option<Prepare>,
    dir: &Path,
    view: &RootfsSpec,
    lines: &str,
    report: &OwnedFd,
) -> i32 {
    let host = mount_namespace();
    if let Some(prepare) = prepare {
        // SAFETY: this process has one thread.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        assert_ne!(mount_namespace(), host);
        super::super::mounts::stop_propagation().unwrap();
        prepare(dir);
    }
    if user == User::Nobody && getuid().is_root() {
        become_nobody();
    }
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let flags = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    // SAFETY: this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.unwrap();
    assert_ne!(mount_namespace(), host);
    fs::write("/proc/self/setgroups", "deny").unwrap();
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).unwrap();
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).unwrap();
    wait(fork(|| {
        let open = descriptors();
        let started = std::time::Instant::now();
        let built = build(view).and_then(|old_root| {
            old_root.unmount().step("let go of the old root")?;
            old_root.wait_until_gone(|| false)
        });
        if let Err(error) = built {
            say(report, &format!("{error}\n"));
            return 0;
        }
        if lines == "time" {
            say(report, &format!("{}\n", started.elapsed().as_micros()));
            return 0;
        }
        assert_eq!(std::env::current_dir().unwrap(), Path::new("/"));
        assert_eq!(descriptors(), open, "a descriptor was left");
        wait(fork(|| {
            // As every command: the terminal of the tests is not its own.
            rustix::process::setsid().unwrap();
            drop_privileges();
            say(report, &script::run(lines));
            0
        }))
    }))
}

fn become_nobody() {
    let (uid, gid) = (NOBODY, NOBODY);
    // SAFETY: plain numbers; this process has one thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(gid, gid, gid), 0);
        assert_eq!(libc::setresuid(uid, uid, uid), 0);
        // Without it /proc/self would belong to root.
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
    }
}

fn drop_privileges() {
    for capability in 0..=63 {
        // SAFETY: plain numbers; capabilities that do not exist are refused.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    rustix::thread::set_no_new_privs(true).unwrap();
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

fn descriptors() -> Vec<i32> {
    // SAFETY: asks about a number; nothing is done with the descriptor.
    (0..4096).filter(|number| unsafe { libc::fcntl(*number, libc::F_GETFD) } != -1).collect()
}

fn mount_namespace() -> PathBuf {
    fs::read_link("/proc/self/ns/mnt").unwrap()
}

fn say(report: &OwnedFd, text: &str) {
    rustix::io::write(report.as_fd(), text.as_bytes()).unwrap();
}

/// Runs something in a child, which never returns into the test.
fn fork(child: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child has one thread, touches only what is its own, and leaves by `_exit`. It may allocate: the C
    // library makes its allocator usable in a child.
    let pid = unsafe { libc::fork() };
    assert_ne!(pid, -1);
    if pid != 0 {
        return pid;
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    // SAFETY: ends this child if it hangs; reads nothing.
    unsafe { libc::alarm(20) };
    let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
    // SAFETY: ends this child alone.
    unsafe { libc::_exit(status) }
}

fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + status }
}

/// Builds a view as a launcher does.
pub fn build(view: &RootfsSpec) -> Result<OldRoot, StepError> {
    BaseRootfs::lay(RootfsProfile::of(view))?.build(view)
}

/// How long it takes to build a view, in microseconds.
pub fn time_of_build(host: &Host, view: &RootfsSpec) -> u64 {
    host.run(view, "time").trim().parse().unwrap()
}

/// Changes a mode on the host.
pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
