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
    #[error("could not read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The token is too short to be secure.
    #[error(
        "the token in {} has {length} bytes, and must have at least {}: make one with `openssl rand -hex 32`",
        path.display(),
        super::MIN_TOKEN_BYTES
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The file is empty or has only white space.
    #[error("the secret file {} is empty", .0.display())]
    Empty(PathBuf),
}

#[derive(Debug)]
struct Known {
    stamp: Option<Stamp>,
    digest: Option<SecretDigest>,
    /// Whether the log already has the current read error.
    is_reported: bool,
}

/// Changes whenever the file is written or replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: SystemTime,
    length: u64,
    /// Inode and ctime: a file that was moved into place keeps its old mtime.
    #[cfg(unix)]
    identity: (u64, i64, i64),
}

impl TokenFile {
    /// Reads the token for the first time.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let stamp = stamp(path);
        let digest = read(path)?;
        let known = Known { stamp, digest: Some(digest), is_reported: false };
        Ok(Self { path: path.to_owned(), known: Mutex::new(known) })
    }

    /// The path, for the permission warning.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The digest of the file's current token; `None` while the file holds no valid token.
    pub fn digest(&self) -> Option<SecretDigest> {
        let mut known = self.known.lock().expect("no holder panics");
        let now = stamp(&self.path);
        if now != known.stamp || known.digest.is_none() {
            let is_news = now != known.stamp || !known.is_reported;
            let read = read(&self.path);
            if let Err(error) = read.as_ref()
                && is_news
            {
                let error = crate::logging::chain(error);
                tracing::error!(
                    error,
                    "no client can connect: the token file holds no valid token"
                );
            }
            known.is_reported = read.is_err();
            known.digest = read.ok();
            known.stamp = now;
        }
        known.digest
    }
}

pub(super) fn stamp(path: &Path) -> Option<Stamp> {
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
    if text.len() < super::MIN_TOKEN_BYTES {
        return Err(TokenFileError::Short { path: path.to_owned(), length: text.len() });
    }
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
