//! Helpers of the file tests.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::request::FsError;

/// Runs a check in a new directory on disk and in one in memory, because the two list and number names differently.
pub fn in_each_place(check: impl Fn(&Path)) {
    for place in places() {
        check(&real_path(&place));
    }
}

/// Like [`in_each_place`], but bound by permissions even if the tests run as root.
pub fn as_ordinary_user(check: impl Fn(&Path)) {
    for place in places() {
        let path = real_path(&place);
        if !rustix::process::geteuid().is_root() {
            check(&path);
            continue;
        }
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        let _powerless = Powerless::new();
        check(&path);
    }
}

/// The number of the operating system's error, if it is one.
pub fn errno(error: &FsError) -> Option<i32> {
    match error {
        FsError::System(source) => io::Error::raw_os_error(source),
        FsError::Incomplete { cause: source, .. } => errno(source),
        _ => None,
    }
}

/// Makes directories below each other, deeper than any path can be long; each has the same name.
pub fn make_deep(top: &Path, name: &str, levels: usize) {
    let mut dir = super::entries::open(top).unwrap();
    for _ in 0..levels {
        rustix::fs::mkdirat(&dir, name, rustix::fs::Mode::RWXU).unwrap();
        dir = super::entries::open_at(dir.as_fd(), name, rustix::fs::OFlags::empty()).unwrap();
    }
}

const NOBODY: u32 = 65534;

/// Drops the thread's root file-access privileges until it is dropped.
struct Powerless;

impl Powerless {
    fn new() -> Self {
        // SAFETY: changes one number of the calling thread and touches no memory.
        unsafe { libc::setfsuid(NOBODY) };
        Self
    }
}

impl Drop for Powerless {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::setfsuid(0) };
    }
}

fn places() -> Vec<TempDir> {
    let in_memory = tempfile::tempdir_in("/dev/shm").ok();
    [Some(tempfile::tempdir().unwrap()), in_memory].into_iter().flatten().collect()
}

fn real_path(place: &TempDir) -> PathBuf {
    place.path().canonicalize().unwrap()
}
