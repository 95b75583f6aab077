//! The SQLite database file: opening, recovery from a full disk, classification of errors.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::schema;
use crate::store::StoreError;

/// How long opening waits for another process; admin commands take far less.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// SQLite's busy timeout per attempt, during which reads wait.
const ATTEMPT: Duration = Duration::from_millis(5);

/// An open database.
pub struct Database {
    path: PathBuf,
    connection: Connection,
    /// Whether the disk has no space for the shared-memory file, so that the database is open exclusively.
    is_cramped: bool,
}

impl Database {
    /// Opens a database and migrates it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (connection, is_cramped) = match connect(path, Sharing::Shared) {
            Ok(connection) => (connection, false),
            Err(error) if lacks_room(&error) => {
                (connect(path, Sharing::Alone).map_err(StoreError::from)?, true)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { path: path.to_owned(), connection, is_cramped })
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn is_cramped(&self) -> bool {
        self.is_cramped
    }

    /// Reopens the database in shared mode if there is space again; returns whether that happened.
    pub fn recover(&mut self) -> Result<bool, StoreError> {
        // The exclusive lock of the old connection must be released first.
        self.connection = Connection::open_in_memory()?;
        let shared = connect(&self.path, Sharing::Shared);
        self.is_cramped = shared.is_err();
        self.connection = shared.or_else(|_| connect(&self.path, Sharing::Alone))?;
        Ok(!self.is_cramped)
    }
}

/// Why a database cannot be opened.
#[derive(Debug)]
enum OpenError {
    Sqlite(rusqlite::Error),
    TooNew { found: i64, known: i64 },
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Sqlite(error) => error.into(),
            OpenError::TooNew { found, known } => Self::TooNew { found, known },
        }
    }
}

/// Whether other processes can use the database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Shared,
    /// Exclusive lock; the shared-memory index is kept in memory instead of a file.
    Alone,
}

fn connect(path: &Path, sharing: Sharing) -> Result<Connection, OpenError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(OPEN_TIMEOUT)?;
    if sharing == Sharing::Alone {
        connection.pragma_update(None, "locking_mode", "exclusive")?;
    }
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "synchronous", "normal")?;
    if let Some((found, known)) = schema::migrate(&mut connection)? {
        return Err(OpenError::TooNew { found, known });
    }
    connection.busy_timeout(ATTEMPT)?;
    Ok(connection)
}

/// Whether an exclusive open may succeed where a shared one ran out of disk space.
fn lacks_room(error: &OpenError) -> bool {
    let OpenError::Sqlite(error) = error else { return false };
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure))
}

/// Whether another process holds the lock.
pub fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

impl From<rusqlite::Error> for StoreError {
    /// After lock timeouts and disk errors nothing was written.
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::ReadOnly
                | ErrorCode::CannotOpen,
            ) => Self::Unwritten(Box::new(error)),
            _ => Self::Database(Box::new(error)),
        }
    }
}

/// Classifies an error inside a transaction, which is rolled back.
pub fn unwritten(error: StoreError) -> StoreError {
    match error {
        StoreError::Database(error) => StoreError::Unwritten(error),
        error => error,
    }
}
