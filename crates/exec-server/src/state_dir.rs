//! Where a server keeps what must outlive it.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use exec_server_os::{PlaceholderJournal, host};

/// A state directory that was asked for and cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep state in {}: {source}", path.display())]
pub struct StateDirError {
    path: PathBuf,
    source: io::Error,
}

/// The directory that was asked for, or else the first usual one that can be used.
///
/// All servers of a user should have the same, because it is how they know of each other.
pub fn find(asked_for: Option<&Path>) -> Result<Option<PathBuf>, StateDirError> {
    let Some(path) = asked_for else {
        return Ok(usual().into_iter().find(|path| can_be_used(path).is_ok()));
    };
    let with_path = |source| StateDirError { path: path.to_owned(), source };
    let path = std::path::absolute(path).map_err(with_path)?;
    can_be_used(&path).map_err(with_path)?;
    Ok(Some(path))
}

/// The journal of placeholders in a state directory.
pub fn journal(state_dir: Option<&Path>) -> PlaceholderJournal {
    let journal = state_dir.map(|dir| PlaceholderJournal::open(&placeholders(dir)));
    match journal {
        Some(Ok(journal)) => journal,
        Some(Err(error)) => {
            tracing::warn!(%error, "placeholders are not shared with other servers");
            PlaceholderJournal::unshared()
        }
        None => PlaceholderJournal::unshared(),
    }
}

fn can_be_used(dir: &Path) -> io::Result<()> {
    PlaceholderJournal::open(&placeholders(dir)).map(drop)
}

fn placeholders(dir: &Path) -> PathBuf {
    dir.join("placeholders")
}

fn usual() -> Vec<PathBuf> {
    let of_user = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|it| it.is_absolute());
    let of_home = host::home_dir().map(|home| home.join(".local/state"));
    let of_system = cfg!(unix).then(|| PathBuf::from("/var/lib"));
    let all = [of_user, of_home, of_system].into_iter().flatten();
    all.map(|dir| dir.join("exec-server")).collect()
}
