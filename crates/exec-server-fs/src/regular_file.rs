//! Reads small regular files; never blocks on a device or a pipe.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// The reason why a file cannot be read as text.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The path is a directory, a pipe, a socket or a device.
    #[error("path `{0}` is not a file")]
    NotAFile(String),
    /// The file is longer than the caller's limit.
    #[error("exceeds the {0}-byte limit")]
    TooLong(u64),
    /// The content is not UTF-8.
    #[error("{0}")]
    NotUtf8(std::str::Utf8Error),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads a regular file of at most `limit` bytes as text; symlinks are followed.
pub fn read_text(path: &Path, limit: u64) -> Result<String, ReadError> {
    let bytes = read_start(path, limit + 1)?;
    if bytes.len() as u64 > limit {
        return Err(ReadError::TooLong(limit));
    }
    String::from_utf8(bytes).map_err(|error| ReadError::NotUtf8(error.utf8_error()))
}

/// Reads at most `limit` bytes from the start of a regular file; symlinks are followed.
pub fn read_start(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let not_a_file = || ReadError::NotAFile(path.display().to_string());
    // Opening a device can have side effects, so the type is checked before and after the open.
    if !fs::metadata(path)?.is_file() {
        return Err(not_a_file());
    }
    let file = open_without_waiting(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn open_without_waiting(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe may have replaced the file since the check, and opening a pipe blocks until it has a writer.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    options.open(path)
}
