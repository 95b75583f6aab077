//! Files of this machine. Everything that may wait for a disk does so on a thread that may.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::super::failure::Failure;
use super::side::{Attributes, Entry, Kind};

/// As long as the blocks of a server.
const PIECE: usize = 1024 * 1024;
const PIECES_AHEAD: usize = 4;

/// A file that is read ahead by a thread.
pub struct LocalReader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    path: PathBuf,
}

/// A file that is written aside.
pub struct LocalWriter {
    aside: Option<Aside>,
}

/// New content that lies beside its place, and goes if it is not put there.
struct Aside {
    file: File,
    path: PathBuf,
    target: PathBuf,
    attributes: Attributes,
    is_placed: bool,
}

/// Does something that may wait for a disk.
async fn at_leisure<R: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce(&Path) -> io::Result<R> + Send + 'static,
) -> Result<R, Failure> {
    let shown = path.display().to_string();
    let result = tokio::task::spawn_blocking(move || work(&path)).await;
    match result {
        Ok(result) => result.map_err(|source| Failure::here(shown, source)),
        Err(_) => Err(Failure::here(shown, io::Error::other("interrupted"))),
    }
}

pub async fn look(path: &[u8]) -> Result<Option<Entry>, Failure> {
    at_leisure(path_of(path), |path| match fs::metadata(path) {
        Ok(metadata) => Ok(Some(entry(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .await
}

pub async fn list(path: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
    at_leisure(path_of(path), |path| {
        let mut entries = Vec::new();
        for found in fs::read_dir(path)? {
            let found = found?;
            match found.metadata() {
                Ok(metadata) => {
                    entries.push((bytes_of(Path::new(&found.file_name())), entry(&metadata)));
                }
                // It went away meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    })
    .await
}

pub async fn read_link(path: &[u8]) -> Result<Vec<u8>, Failure> {
    at_leisure(path_of(path), |path| Ok(bytes_of(&fs::read_link(path)?))).await
}

pub async fn read(path: &[u8]) -> Result<Vec<u8>, Failure> {
    at_leisure(path_of(path), |path| fs::read(path)).await
}

pub async fn reader(path: &[u8]) -> Result<LocalReader, Failure> {
    let path = path_of(path);
    let mut file = at_leisure(path.clone(), |path| File::open(path)).await?;
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

pub async fn write(path: &[u8], content: Vec<u8>, attributes: Attributes) -> Result<(), Failure> {
    at_leisure(path_of(path), move |path| {
        let mut aside = Aside::create(path, attributes)?;
        aside.file.write_all(&content)?;
        aside.put()
    })
    .await
}

pub async fn writer(path: &[u8], attributes: Attributes) -> Result<LocalWriter, Failure> {
    let aside = at_leisure(path_of(path), move |path| Aside::create(path, attributes)).await?;
    Ok(LocalWriter { aside: Some(aside) })
}

pub async fn make_directory(path: &[u8]) -> Result<(), Failure> {
    at_leisure(path_of(path), |path| match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match path.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        },
        result => result,
    })
    .await
}

pub async fn make_link(path: &[u8], target: Vec<u8>) -> Result<(), Failure> {
    at_leisure(path_of(path), move |path| {
        let target = path_of(&target);
        match symlink(&target, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !fs::symlink_metadata(path)?.is_symlink() {
                    return Err(error);
                }
                let aside = aside_path(path)?;
                symlink(&target, &aside)?;
                fs::rename(&aside, path).inspect_err(|_| drop(fs::remove_file(&aside)))
            }
            result => result,
        }
    })
    .await
}

pub async fn set_attributes(path: &[u8], mode: u32, modified_ms: i64) -> Result<(), Failure> {
    at_leisure(path_of(path), move |path| {
        // The time first: the new bits may forbid to open it.
        File::open(path)?.set_modified(time_of(modified_ms))?;
        change_mode(path, mode)
    })
    .await
}

impl LocalReader {
    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self.pieces.recv().await {
            None => Ok(None),
            Some(Ok(piece)) if piece.is_empty() => Ok(None),
            Some(Ok(piece)) => Ok(Some(piece)),
            Some(Err(source)) => Err(Failure::here(self.path.display().to_string(), source)),
        }
    }
}

impl LocalWriter {
    /// Takes the next piece.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), Failure> {
        let mut aside = self.aside.take().expect("a failed write is not repeated");
        let path = aside.target.clone();
        let written = at_leisure(path, move |_| {
            aside.file.write_all(&piece)?;
            Ok(aside)
        });
        self.aside = Some(written.await?);
        Ok(())
    }

    /// Puts the content in its place.
    pub async fn finish(mut self) -> Result<(), Failure> {
        let mut aside = self.aside.take().expect("a failed write is not finished");
        at_leisure(aside.target.clone(), move |_| aside.put()).await
    }
}

impl Aside {
    fn create(path: &Path, attributes: Attributes) -> io::Result<Self> {
        // A link stays a link.
        let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
        let target = if is_link { fs::canonicalize(path)? } else { path.to_owned() };
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let path = aside_path(&target)?;
        let file = create_private(&path, attributes)?;
        Ok(Self { file, path, target, attributes, is_placed: false })
    }

    fn put(&mut self) -> io::Result<()> {
        match self.attributes {
            Attributes::New(_) => {
                if let Ok(old) = fs::metadata(&self.target) {
                    self.file.set_permissions(old.permissions())?;
                }
            }
            Attributes::Keep { mode, modified_ms } => {
                change_mode(&self.path, mode)?;
                self.file.set_modified(time_of(modified_ms))?;
            }
        }
        fs::rename(&self.path, &self.target)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.is_placed {
            // If even this fails there is nothing left to try.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A name beside a file that nobody else uses.
fn aside_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut aside = std::ffi::OsString::from(".");
    // Names may be no longer than 255 bytes, and this one is longer than the file's.
    aside.push(if name.len() <= 200 { name } else { std::ffi::OsStr::new("long") });
    aside.push(format!(".{}.part", uuid::Uuid::new_v4().simple()));
    Ok(path.with_file_name(aside))
}

fn time_of(ms: i64) -> SystemTime {
    let distance = Duration::from_millis(ms.unsigned_abs());
    if ms < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
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
        _ => Kind::Other,
    };
    let modified_ms = ms_of(metadata.modified());
    Entry { kind, size: metadata.len(), mode: mode_of(metadata), modified_ms }
}

#[cfg(unix)]
mod system {
    use std::fs::{File, Metadata, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::path::{Path, PathBuf};

    use super::Attributes;

    pub use std::os::unix::fs::symlink;

    pub fn path_of(bytes: &[u8]) -> PathBuf {
        std::ffi::OsString::from_vec(bytes.to_vec()).into()
    }

    pub fn bytes_of(path: &Path) -> Vec<u8> {
        path.as_os_str().as_bytes().to_vec()
    }

    pub fn mode_of(metadata: &Metadata) -> u32 {
        metadata.permissions().mode() & 0o7777
    }

    pub fn change_mode(path: &Path, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(path, Permissions::from_mode(mode))
    }

    /// A new file that is as open as it will be, or less.
    pub fn create_private(path: &Path, attributes: Attributes) -> io::Result<File> {
        let mode = match attributes {
            // The system takes away what new files should not have.
            Attributes::New(mode) => mode & 0o777 | 0o600,
            Attributes::Keep { .. } => 0o600,
        };
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::{File, Metadata, OpenOptions};
    use std::io;
    use std::path::{Path, PathBuf};

    use super::Attributes;

    pub fn symlink(_target: &Path, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn path_of(bytes: &[u8]) -> PathBuf {
        String::from_utf8_lossy(bytes).into_owned().into()
    }

    pub fn bytes_of(path: &Path) -> Vec<u8> {
        path.to_string_lossy().replace('\\', "/").into_bytes()
    }

    pub fn mode_of(_metadata: &Metadata) -> u32 {
        0o644
    }

    pub fn change_mode(_path: &Path, _mode: u32) -> io::Result<()> {
        Ok(())
    }

    pub fn create_private(path: &Path, _attributes: Attributes) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(path)
    }
}

pub use system::bytes_of;
use system::{change_mode, create_private, mode_of, path_of, symlink};
