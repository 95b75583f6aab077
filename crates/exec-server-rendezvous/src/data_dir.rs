//! Data directory: the database and the URL signing keys, readable only by the owner.
//!
//! The keys are persistent, so that executors can reconnect with their URLs after a restart.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use exec_server_protocol::hex;

use crate::key_ring::KeyRing;
use crate::secrets::{new_id, random};

const DATABASE: &str = "rendezvous.sqlite3";
const KEYS: &str = "signing-keys";
const LOCK: &str = "lock";
const PRESENCE: &str = "presence.sock";

/// A data directory.
#[derive(Debug, Clone)]
pub struct DataDir {
    path: PathBuf,
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// A file operation failed.
    #[error("could not use {}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory is not empty and readable by others; restricting its mode could break other uses.
    #[error("{} holds other things, and other users can read it; use a directory for the rendezvous alone", .0.display())]
    Shared(PathBuf),
    /// The directory has no database.
    #[error("{} holds no rendezvous; start one there with: exec-server rendezvous --data {}", .0.display(), .0.display())]
    Missing(PathBuf),
    /// Another rendezvous holds the lock; two processes would not see each other's sockets.
    #[error("another rendezvous uses {}; choose another directory with --data DIR", .0.display())]
    InUse(PathBuf),
    /// The key file is invalid.
    #[error("{} has no usable key: each line is an id, a space, and at least 32 bytes in hex", .0.display())]
    Keys(PathBuf),
}

impl DataDir {
    /// Creates the directory if necessary and restricts it to the owner, unless it contains other files.
    pub fn create(path: &Path) -> Result<Self, DataDirError> {
        let failed = |source| DataDirError::Io { path: path.to_owned(), source };
        match fs::create_dir_all(path) {
            // The path exists and is not a directory; "file exists" would be misleading.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(failed(io::ErrorKind::NotADirectory.into()));
            }
            made => made.map_err(failed)?,
        }
        let dir = Self { path: path.to_owned() };
        if is_open_to_others(path).map_err(failed)? {
            let is_ours = dir.database().exists();
            let mut entries = fs::read_dir(path).map_err(failed)?;
            if !is_ours && entries.next().is_some() {
                return Err(DataDirError::Shared(dir.path));
            }
            keep_to_owner(path, 0o700).map_err(failed)?;
        }
        Ok(dir)
    }

    /// Opens the directory of an existing rendezvous.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let dir = Self { path: path.to_owned() };
        match fs::metadata(dir.database()) {
            Ok(_) => Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(DataDirError::Missing(dir.path))
            }
            Err(source) => Err(DataDirError::Io { path: dir.database(), source }),
        }
    }

    /// Locks the directory until the result is dropped.
    pub fn lock(&self) -> Result<File, DataDirError> {
        let path = self.path.join(LOCK);
        let mut options = owner_only();
        let opened = options.create_new(false).create(true).open(&path);
        let file = opened.map_err(|source| DataDirError::Io { path: path.clone(), source })?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(DataDirError::InUse(self.path.clone())),
            Err(TryLockError::Error(source)) => Err(DataDirError::Io { path, source }),
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the presence socket.
    pub fn presence_socket(&self) -> PathBuf {
        self.path.join(PRESENCE)
    }

    /// Path of the database.
    pub fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Reads the signing keys; creates the first one if there is none.
    pub(crate) fn signing_keys(&self) -> Result<KeyRing, DataDirError> {
        let path = self.path.join(KEYS);
        let failed = |source| DataDirError::Io { path: path.clone(), source };
        if !path.try_exists().map_err(failed)? {
            let text = format!("{} {}\n", new_id("k"), hex::encode(&random::<32>()));
            self.write_new(&path, text.as_bytes()).map_err(failed)?;
        }
        keep_to_owner(&path, 0o600).map_err(failed)?;
        KeyRing::load(&path)
    }

    /// Writes a file atomically, so that a crash cannot leave half a key.
    fn write_new(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let staged = self.path.join(new_id(".new-"));
        let mut file = owner_only().open(&staged)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&staged, path)?;
        // Makes the directory entry durable; only unix can open a directory.
        #[cfg(unix)]
        File::open(&self.path)?.sync_all()?;
        Ok(())
    }

    /// Creates the database file with restricted mode, because SQLite would create it readable by others.
    pub fn prepare_database(&self) -> Result<PathBuf, DataDirError> {
        let path = self.database();
        let failed = |source| DataDirError::Io { path: path.clone(), source };
        match owner_only().open(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        keep_to_owner(&path, 0o600).map_err(failed)?;
        Ok(path)
    }
}

fn owner_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(unix)]
fn is_open_to_others(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::metadata(path)?.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_path: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
fn keep_to_owner(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(path)?.permissions().mode() & 0o7777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_to_owner(_path: &Path, _mode: u32) -> io::Result<()> {
    Ok(())
}
