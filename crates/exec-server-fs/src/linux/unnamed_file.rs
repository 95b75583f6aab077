//! A file without a name: its space is freed when it is closed, also after a crash.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A file without a name in some directory.
#[derive(Debug)]
pub struct UnnamedFile(File);

const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

impl UnnamedFile {
    /// Creates the file, and the directory for the server's user alone if it is missing. May block.
    pub fn create(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        match rustix::fs::open(dir, FLAGS | OFlags::TMPFILE, PRIVATE) {
            Ok(file) => Ok(Self(file.into())),
            // Some file systems do not support O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::create_and_unlink(dir),
            Err(error) => Err(error.into()),
        }
    }

    fn create_and_unlink(dir: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{}-{count}", std::process::id()));
        // A server with the same pid may have been killed between the two steps.
        let _ = std::fs::remove_file(&path);
        let file = rustix::fs::open(&path, FLAGS | OFlags::CREATE | OFlags::EXCL, PRIVATE)?;
        std::fs::remove_file(&path)?;
        Ok(Self(file.into()))
    }

    /// Writes all bytes. May block.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    /// Fills the buffer. May block.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_kept_and_the_directory_stays_empty() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("new/spool");
        for make in [UnnamedFile::create, UnnamedFile::create_and_unlink] {
            let _ = std::fs::create_dir_all(&dir);
            let file = make(&dir).unwrap();
            file.write_at(b"abc", 5).unwrap();
            let mut read = [0; 4];
            file.read_at(&mut read, 4).unwrap();
            assert_eq!(&read, b"\0abc");
            assert!(file.read_at(&mut read, 6).is_err());
            assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        }
    }
}
