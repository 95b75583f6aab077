//! The audit log as a file with a bounded size; older records are in `FILE.1`, `FILE.2` and so on.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::writer::Sink;

/// A log file that this server alone writes to.
pub struct LogFile {
    path: PathBuf,
    file: File,
    max_bytes: u64,
    keep: usize,
    /// Whether the log already has the current error of a rotation.
    is_reported: bool,
}

impl LogFile {
    pub fn open(path: &Path, max_bytes: u64, keep: usize) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = open(&path)?;
        Ok(Self { path, file, max_bytes, keep, is_reported: false })
    }

    /// Opens the path again if another program has moved or removed the file.
    fn follow(&mut self) -> io::Result<u64> {
        let held = self.file.metadata()?;
        let is_same = fs::symlink_metadata(&self.path).is_ok_and(|named| same_file(&named, &held));
        if is_same {
            return Ok(held.len());
        }
        self.file = open(&self.path)?;
        Ok(self.file.metadata()?.len())
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.keep == 0 {
            return self.file.set_len(0);
        }
        let names = names(&self.path, self.keep);
        for pair in names.windows(2).rev() {
            match fs::rename(&pair[0], &pair[1]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        self.file = match open(&self.path) {
            Ok(file) => file,
            Err(error) => {
                // The old file stays in use under its own name.
                fs::rename(&names[1], &self.path)?;
                return Err(error);
            }
        };
        Ok(())
    }
}

impl Sink for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut size = self.follow()?;
        if size > 0 && size + line.len() as u64 > self.max_bytes {
            let rotated = self.rotate();
            if let Err(error) = &rotated
                && !self.is_reported
            {
                tracing::error!(%error, file = %self.path.display(), "cannot rotate the audit log");
            }
            self.is_reported = rotated.is_err();
            size = self.file.metadata()?.len();
        }
        self.file.write_all(line).inspect_err(|_| {
            // A part of a line would spoil the next one.
            let _ = self.file.set_len(size);
        })
    }
}

/// The name of the log, followed by those of rotated logs, newest first.
pub fn names(path: &Path, keep: usize) -> Vec<PathBuf> {
    let numbered = |number: usize| {
        let mut name = OsString::from(path);
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    std::iter::once(path.to_owned()).chain((1..=keep).map(numbered)).collect()
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let text = "another server writes to it; give each server a file of its own";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

#[cfg(unix)]
fn same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut log = LogFile::open(&path, 8, 2).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "a line longer than the limit\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        let found: Vec<_> = names(&path, 3).iter().map(|name| read(name)).collect();
        assert_eq!(found, ["a line longer than the limit\n", "four\n", "three\n", ""]);
        use std::os::unix::fs::MetadataExt;
        for name in names(&path, 2) {
            assert_eq!(fs::metadata(name).unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_full_file_without_rotated_ones_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut log = LogFile::open(&path, 8, 0).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        let found: Vec<_> = names(&path, 1).iter().map(|name| read(name)).collect();
        assert_eq!(found, ["three\n", ""]);
    }

    #[test]
    fn a_file_that_was_moved_away_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let mut log = LogFile::open(&path, 1000, 2).unwrap();
        log.write(b"one\n").unwrap();
        fs::rename(&path, dir.path().join("old")).unwrap();
        log.write(b"two\n").unwrap();
        assert_eq!((read(&path), read(&dir.path().join("old"))), ("two\n".into(), "one\n".into()));
    }

    #[test]
    fn a_log_has_one_writer_and_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let _log = LogFile::open(&path, 1000, 2).unwrap();
        let refused = LogFile::open(&path, 1000, 2).err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&link, dir.path(), Path::new("/dev/null")] {
            assert!(LogFile::open(path, 1000, 2).is_err(), "{}", path.display());
        }
    }
}
