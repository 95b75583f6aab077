//! Small scripts of attempts: `rename /a /b = EBUSY`. What is right of the sign is one of the expected outcomes.
//!
//! The tests run as root, and a view may be broken: outside of the directory of a test, a script tries only what would
//! change nothing if it succeeded. Modes and times are set to what they are, and removing a name that does not exist
//! gives `EROFS` on a read-only file system and `ENOENT` on any other.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags, linkat, mknodat,
    renameat_with, setxattr, utimensat,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use exec_server_os::linux::check;
use exec_server_os::linux::signals::errno_name;

/// Runs every line and returns `done`, or the lines that went otherwise.
pub fn run(lines: &str) -> String {
    let mut wrong = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (attempt, expected) = line.rsplit_once(" = ").expect("an attempt has an outcome");
        let outcome = outcome(attempt);
        if !expected.split('|').any(|expected| expected == outcome) {
            wrong.push_str(&format!("{line}, but got {outcome}\n"));
        }
    }
    if wrong.is_empty() { "done\n".to_owned() } else { wrong }
}

fn outcome(attempt: &str) -> String {
    let mut words = attempt.split_whitespace();
    let words = [(); 3].map(|()| words.next().unwrap_or_default());
    match perform(words) {
        Ok(text) => text,
        Err(error) => errno_name(&error).map_or_else(|| error.to_string(), str::to_owned),
    }
}

fn perform([verb, one, two]: [&str; 3]) -> io::Result<String> {
    let new = Mode::from_raw_mode(0o644);
    match verb {
        "read" => return fs::read_to_string(one),
        "begins" => {
            let mut start = [0; 4];
            let length = File::open(one)?.read(&mut start)?;
            return Ok(format!("{length}"));
        }
        "list" => return list(one),
        "has" => return Ok(if fs::symlink_metadata(one).is_ok() { "yes" } else { "no" }.to_owned()),
        "readlink" => return Ok(fs::read_link(one)?.display().to_string()),
        "stat" => return fs::metadata(one).map(|_| "ok".to_owned()),
        "write" => File::create(one)?.write_all(b"written")?,
        "overwrite" => OpenOptions::new().write(true).open(one)?.write_all(b"written")?,
        "append" => OpenOptions::new().append(true).open(one)?.write_all(b"0")?,
        "open-for-writing" => drop(OpenOptions::new().write(true).open(one)?),
        "open-path" => {
            OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(one)?;
        }
        "truncate" => {
            let path = CString::new(one)?;
            // SAFETY: the path is valid for the length of the call.
            check(unsafe { libc::truncate(path.as_ptr(), 0) })?;
        }
        "mkdir" => fs::create_dir(one)?,
        "rmdir" => fs::remove_dir(one)?,
        "unlink" => fs::remove_file(one)?,
        "rename" => fs::rename(one, two)?,
        "exchange" => renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?,
        "link" => linkat(CWD, one, CWD, two, AtFlags::SYMLINK_FOLLOW)?,
        "symlink" => symlink(one, two)?,
        "chmod" => {
            let mode = Mode::from_raw_mode(fs::metadata(one)?.mode() & 0o7777);
            rustix::fs::chmod(one, mode)?;
        }
        "chown" => {
            let me = rustix::process::getuid();
            rustix::fs::chown(one, Some(me), None)?;
        }
        "utime" => {
            let about = fs::metadata(one)?;
            let last_access = Timespec { tv_sec: about.atime(), tv_nsec: about.atime_nsec() };
            let last_modification = Timespec { tv_sec: about.mtime(), tv_nsec: about.mtime_nsec() };
            let times = Timestamps { last_access, last_modification };
            utimensat(CWD, one, &times, AtFlags::empty())?;
        }
        "xattr" => setxattr(one, "user.test", b"1", XattrFlags::empty())?,
        "fifo" => mknodat(CWD, one, FileType::Fifo, new, 0)?,
        "device" => {
            mknodat(CWD, one, FileType::CharacterDevice, new, rustix::fs::makedev(1, 3))?;
        }
        "mount" => mount("none", one, "tmpfs", MountFlags::empty(), None)?,
        "remount" => mount_remount(one, MountFlags::BIND, "")?,
        "unmount" => unmount(one, UnmountFlags::DETACH)?,
        "bind" => rustix::mount::mount_bind_recursive(one, two)?,
        "bind-alone" => rustix::mount::mount_bind(one, two)?,
        "new-namespaces" => new_namespaces()?,
        "await" => {
            while fs::symlink_metadata(one).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        "fill" => return fill(one),
        "run" => return program(one, two),
        "terminal" => {
            let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
            let terminal = rustix::pty::openpt(flags)?;
            rustix::pty::grantpt(&terminal)?;
            rustix::pty::unlockpt(&terminal)?;
            let name = rustix::pty::ptsname(&terminal, Vec::new())?;
            OpenOptions::new().read(true).custom_flags(libc::O_NOCTTY).open(path(&name))?;
        }
        other => panic!("no attempt is called {other}"),
    }
    Ok("ok".to_owned())
}

fn list(path: &str) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().into_string().unwrap());
    }
    names.sort();
    Ok(format!("[{}]", names.join(" ")))
}

fn new_namespaces() -> io::Result<()> {
    let flags = rustix::thread::UnshareFlags::NEWUSER | rustix::thread::UnshareFlags::NEWNS;
    // SAFETY: this process has one thread.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Writes until there is no room; the outcome is how many MiB fit, rounded up.
fn fill(path: &str) -> io::Result<String> {
    let mut file = File::create(path)?;
    let piece = vec![0; 64 << 10];
    for written in 0..1024 {
        if file.write_all(&piece).is_err() {
            return Ok(format!("{}", (written as usize).div_ceil(16)));
        }
    }
    Ok("endless".to_owned())
}

fn program(program: &str, argument: &str) -> io::Result<String> {
    let output = std::process::Command::new(program).arg(argument).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(format!("{}{}", text.trim(), output.status.code().unwrap_or(-1)))
}

fn path(name: &CString) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(OsStr::from_bytes(name.as_bytes()))
}
