//! Reads small text files without ever waiting for a device, a pipe or a peer.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Why a file has no text for us.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is a directory, a pipe, a socket or a device.
    #[error("path `{0}` is not a file")]
    NotAFile(String),
    /// It is longer than the caller takes.
    #[error("exceeds the {0}-byte limit")]
    TooLong(u64),
    /// It is not text.
    #[error("{0}")]
    NotUtf8(std::str::Utf8Error),
    /// The system says no.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The text of a regular file of at most `limit` bytes; links are followed.
pub fn read_text(path: &Path, limit: u64) -> Result<String, ReadError> {
    let bytes = read_start(path, limit + 1)?;
    if bytes.len() as u64 > limit {
        return Err(ReadError::TooLong(limit));
    }
    String::from_utf8(bytes).map_err(|error| ReadError::NotUtf8(error.utf8_error()))
}

/// At most so many bytes from the start of a regular file; links are followed.
pub fn read_start(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let not_a_file = || ReadError::NotAFile(path.display().to_string());
    // To open a device can have effects, so the check comes before it as well as after it.
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
        // A pipe may have taken the file's place since the check, and opening one waits for its writer.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    options.open(path)
}
