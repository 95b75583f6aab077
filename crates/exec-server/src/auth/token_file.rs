//! A capability token in a file, read again whenever the file changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use super::{SecretDigest, sha256};

/// A capability token in a file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    known: Mutex<Known>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("could not read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("the secret file {} is empty", .0.display())]
    Empty(PathBuf),
}

#[derive(Debug)]
struct Known {
    stamp: Option<Stamp>,
    digest: Option<SecretDigest>,
}

/// Changes whenever the file is written or replaced.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    length: u64,
    /// Inode and time of change: a file that was moved into place may have brought its old time along.
    #[cfg(unix)]
    identity: (u64, i64, i64),
}

impl TokenFile {
    /// Reads the token for the first time.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let stamp = stamp(path);
        let digest = read(path)?;
        Ok(Self { path: path.to_owned(), known: Mutex::new(Known { stamp, digest: Some(digest) }) })
    }

    /// The token's digest as the file stands now; none while the file holds no token.
    pub fn digest(&self) -> Option<SecretDigest> {
        let mut known = self.known.lock().expect("no holder panics");
        let now = stamp(&self.path);
        if now != known.stamp || known.digest.is_none() {
            known.digest = read(&self.path)
                .inspect_err(|error| tracing::error!(%error, "no client can connect"))
                .ok();
            known.stamp = now;
        }
        known.digest
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        modified: metadata.modified().ok()?,
        length: metadata.len(),
        #[cfg(unix)]
        identity: {
            use std::os::unix::fs::MetadataExt;
            (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
        },
    })
}

fn read(path: &Path) -> Result<SecretDigest, TokenFileError> {
    let text = read_secret(path)?;
    Ok(sha256(text.as_bytes()))
}

/// The trimmed, non-empty content of a secret file.
pub fn read_secret(path: &Path) -> Result<String, TokenFileError> {
    let text = fs::read_to_string(path)
        .map_err(|source| TokenFileError::Unreadable { path: path.to_owned(), source })?;
    let text = text.trim();
    if text.is_empty() {
        return Err(TokenFileError::Empty(path.to_owned()));
    }
    Ok(text.to_owned())
}
