//! File operations on this machine. All disk access runs on blocking threads.
//!
//! Not by `FsRequest`: names come from a server, so every change is made below the descriptor of a directory, which
//! `exec_server_fs::destination` does on every platform.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exec_server_fs::destination::{Beneath, Kept, Staged, is_stream};
use tokio::sync::mpsc;

use super::super::failure::Failure;
use super::super::format::plain;
use super::destination_path::DestinationPath;
use super::endpoint::{Attributes, Entry, Kind};
use super::unfinished;

/// Equal to the block size of a server.
const PIECE: usize = 1024 * 1024;
const PIECES_AHEAD: usize = 4;

/// A file that a blocking thread reads ahead.
pub struct LocalReader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    path: PathBuf,
}

/// A file that gets its final name only when it is complete.
pub struct LocalWriter {
    unfinished: Option<Unfinished>,
    attributes: Attributes,
    path: PathBuf,
}

/// A staged file; the note is dropped after it, so that an interrupt in between still removes the file.
struct Unfinished {
    staged: Staged,
    _note: unfinished::Note,
}

/// Runs `work` on a blocking thread; errors name `path`.
async fn blocking<R: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce(&Path) -> io::Result<R> + Send + 'static,
) -> Result<R, Failure> {
    let shown = plain(&path.display().to_string());
    let result = tokio::task::spawn_blocking(move || work(&path)).await;
    match result {
        Ok(result) => result.map_err(|source| Failure::local(shown, source)),
        Err(_) => Err(Failure::local(shown, io::Error::other("interrupted"))),
    }
}

pub async fn stat(path: &[u8]) -> Result<Option<Entry>, Failure> {
    blocking(path_of(path), |path| match fs::metadata(path) {
        Ok(metadata) => Ok(Some(entry(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .await
}

pub async fn list(path: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
    blocking(path_of(path), |path| {
        let mut entries = Vec::new();
        for found in fs::read_dir(path)? {
            let found = found?;
            match found.metadata() {
                Ok(metadata) => {
                    entries.push((bytes_of(Path::new(&found.file_name())), entry(&metadata)));
                }
                // Removed since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    })
    .await
}

pub async fn read_link(path: &[u8]) -> Result<Vec<u8>, Failure> {
    blocking(path_of(path), |path| Ok(bytes_of(&fs::read_link(path)?))).await
}

pub async fn read(path: &[u8]) -> Result<Vec<u8>, Failure> {
    blocking(path_of(path), |path| fs::read(path)).await
}

pub async fn reader(path: &[u8]) -> Result<LocalReader, Failure> {
    let path = path_of(path);
    let mut file = blocking(path.clone(), |path| File::open(path)).await?;
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    tokio::task::spawn_blocking(move || {
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let read = (&mut file).take(PIECE as u64).read_to_end(&mut piece);
            let is_over = !matches!(read, Ok(1..));
            let result = read.map(|_| Bytes::from(piece));
            if sender.blocking_send(result).is_err() || is_over {
                return;
            }
        }
    });
    Ok(LocalReader { pieces, path })
}

pub async fn write(
    dest: &DestinationPath,
    content: Vec<u8>,
    attributes: Attributes,
) -> Result<(), Failure> {
    let inner = dest.clone();
    blocking(path_of(dest.path()), move |_| {
        let mut unfinished = stage(&inner, attributes)?;
        unfinished.staged.file().write_all(&content)?;
        unfinished.staged.publish(kept(attributes))
    })
    .await
}

pub async fn writer(
    dest: &DestinationPath,
    attributes: Attributes,
) -> Result<LocalWriter, Failure> {
    let (inner, path) = (dest.clone(), path_of(dest.path()));
    let unfinished = blocking(path.clone(), move |_| stage(&inner, attributes)).await?;
    Ok(LocalWriter { unfinished: Some(unfinished), attributes, path })
}

pub async fn make_directory(dest: &DestinationPath) -> Result<(), Failure> {
    let inner = dest.clone();
    blocking(path_of(dest.path()), move |path| {
        if inner.is_below() {
            return Beneath::open(&path_of(inner.root()))?.create_directory(&names(&inner));
        }
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match path.is_dir() {
                true => Ok(()),
                false => Err(io::ErrorKind::NotADirectory.into()),
            },
            result => result,
        }
    })
    .await
}

pub async fn make_link(dest: &DestinationPath, target: Vec<u8>) -> Result<(), Failure> {
    let inner = dest.clone();
    blocking(path_of(dest.path()), move |_| {
        let (beneath, names) = open(&inner)?;
        beneath.link(&names, &path_of(&target), &token())
    })
    .await
}

pub async fn set_attributes(
    dest: &DestinationPath,
    mode: Option<u32>,
    modified_ms: i64,
) -> Result<(), Failure> {
    let inner = dest.clone();
    blocking(path_of(dest.path()), move |_| {
        let kept = Kept { mode, modified: time_of(modified_ms)? };
        Beneath::open(&path_of(inner.root()))?.set_attributes(&names(&inner), kept)
    })
    .await
}

fn stage(dest: &DestinationPath, attributes: Attributes) -> io::Result<Unfinished> {
    let mode = match attributes {
        // The kernel applies the umask.
        Attributes::New(mode) => mode & 0o777,
        Attributes::Keep { .. } => 0o600,
    };
    let (beneath, names) = open(dest)?;
    let token = token();
    let note = unfinished::note(token.clone(), beneath.aside(&names, &token)?);
    Ok(Unfinished { staged: beneath.stage(&names, mode, &token)?, _note: note })
}

/// The directory to open, and the components below it, which must not be links.
fn open(dest: &DestinationPath) -> io::Result<(Beneath, Vec<OsString>)> {
    if dest.is_below() {
        return Ok((Beneath::open(&path_of(dest.root()))?, names(dest)));
    }
    let mut path = path_of(dest.path());
    // A link that the user named is followed: its target gets the content.
    if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
        path = fs::canonicalize(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), "the symbolic link points to a missing file")
            }
            _ => error,
        })?;
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((Beneath::open(parent.unwrap_or(Path::new(".")))?, vec![name]))
}

fn names(dest: &DestinationPath) -> Vec<OsString> {
    dest.below().map(|name| path_of(name).into_os_string()).collect()
}

fn kept(attributes: Attributes) -> Option<Kept> {
    match attributes {
        Attributes::New(_) => None,
        Attributes::Keep { mode, modified_ms } => {
            let modified = time_of(modified_ms).unwrap_or(SystemTime::UNIX_EPOCH);
            Some(Kept { mode, modified })
        }
    }
}

/// A random part for the name of a staged file.
fn token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

impl LocalReader {
    /// The next block; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self.pieces.recv().await {
            None => Ok(None),
            Some(Ok(piece)) if piece.is_empty() => Ok(None),
            Some(Ok(piece)) => Ok(Some(piece)),
            Some(Err(source)) => {
                Err(Failure::local(plain(&self.path.display().to_string()), source))
            }
        }
    }
}

impl LocalWriter {
    /// Appends a block; after an error the writer must not be used again.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), Failure> {
        let mut unfinished = self.unfinished.take().expect("a failed write is not repeated");
        let written = blocking(self.path.clone(), move |_| {
            unfinished.staged.file().write_all(&piece)?;
            Ok(unfinished)
        });
        self.unfinished = Some(written.await?);
        Ok(())
    }

    /// Moves the complete content to its final name.
    pub async fn finish(mut self) -> Result<(), Failure> {
        let unfinished = self.unfinished.take().expect("a failed write is not finished");
        let attributes = self.attributes;
        blocking(self.path, move |_| unfinished.staged.publish(kept(attributes))).await
    }
}

/// Converts a time from a server, which may be out of range.
fn time_of(ms: i64) -> io::Result<SystemTime> {
    let distance = Duration::from_millis(ms.unsigned_abs());
    let time = match ms < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    };
    time.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the modification time {ms} ms is out of range"),
        )
    })
}

fn ms_of(time: io::Result<SystemTime>) -> i64 {
    let Ok(time) = time else { return 0 };
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    }
}

fn entry(metadata: &fs::Metadata) -> Entry {
    let kind = match metadata.file_type() {
        kind if kind.is_symlink() => Kind::Link,
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_file() => Kind::File,
        kind if is_stream(kind) => Kind::Stream,
        _ => Kind::Other,
    };
    let modified_ms = ms_of(metadata.modified());
    Entry { kind, size: metadata.len(), mode: Some(mode_of(metadata)), modified_ms }
}

#[cfg(unix)]
mod system {
    use std::fs::Metadata;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    pub fn path_of(bytes: &[u8]) -> PathBuf {
        std::ffi::OsString::from_vec(bytes.to_vec()).into()
    }

    pub fn bytes_of(path: &Path) -> Vec<u8> {
        path.as_os_str().as_bytes().to_vec()
    }

    pub fn mode_of(metadata: &Metadata) -> u32 {
        metadata.permissions().mode() & 0o7777
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::Metadata;
    use std::path::{Path, PathBuf};

    pub fn path_of(bytes: &[u8]) -> PathBuf {
        String::from_utf8_lossy(bytes).into_owned().into()
    }

    pub fn bytes_of(path: &Path) -> Vec<u8> {
        path.to_string_lossy().replace('\\', "/").into_bytes()
    }

    pub fn mode_of(_metadata: &Metadata) -> u32 {
        0o644
    }
}

use system::mode_of;
pub use system::{bytes_of, path_of};
