//! Finds the state directory, which holds state that outlives the server and that the servers of one user share.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_os::{Leftovers, ServerRecord, host};
use exec_server_sandbox::PlaceholderJournal;

/// The requested state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep state in {}", path.display())]
pub struct StateDirError {
    path: PathBuf,
    source: io::Error,
}

/// Returns the requested directory, or else the first default directory that can be used.
///
/// All servers of one user should share the directory, because they find each other through it.
pub fn find(asked_for: Option<&Path>) -> Result<Option<PathBuf>, StateDirError> {
    let Some(path) = asked_for else {
        return Ok(usual().into_iter().find(|path| can_be_used(path).is_ok()));
    };
    let with_path = |source| StateDirError { path: path.to_owned(), source };
    let path = std::path::absolute(path).map_err(with_path)?;
    can_be_used(&path).map_err(with_path)?;
    Ok(Some(path))
}

/// Opens the placeholder journal of a state directory; falls back to an unshared one.
pub fn journal(state_dir: Option<&Path>) -> PlaceholderJournal {
    let journal = state_dir.map(|dir| PlaceholderJournal::open(&placeholders(dir)));
    match journal {
        Some(Ok(journal)) => journal,
        Some(Err(error)) => {
            tracing::warn!(%error, "cannot open the placeholder journal; placeholders are not shared with other servers");
            PlaceholderJournal::unshared()
        }
        None => PlaceholderJournal::unshared(),
    }
}

/// Registers this server, and ends the processes of servers that were killed together with their guardians.
///
/// Must be called before the first process starts; the record is held as long as the server runs.
pub fn enter_server(state_dir: Option<&Path>) -> Option<Arc<ServerRecord>> {
    let Some(dir) = state_dir else {
        tracing::warn!(
            "cannot find processes left by servers that were killed together with their guardians: no state directory \
             is usable (set --state-dir)"
        );
        return None;
    };
    let entered = ServerRecord::enter(&dir.join("servers"));
    let (record, own) = match entered {
        Ok(entered) => entered?,
        Err(error) => {
            tracing::warn!(%error, "cannot find processes left by servers that were killed together with their guardians");
            return None;
        }
    };
    let record = Arc::new(record);
    let look = {
        let record = record.clone();
        move || {
            report(&own);
            match record.end_leftovers() {
                Ok(leftovers) => report(&leftovers),
                Err(error) => {
                    tracing::warn!(%error, "cannot search for processes left by killed servers");
                }
            }
        }
    };
    // The thread is detached; if it cannot be spawned, the next server repeats the search.
    let _ = std::thread::Builder::new().name("leftovers".to_owned()).spawn(look);
    Some(record)
}

fn report(leftovers: &Leftovers) {
    if leftovers.ended > 0 {
        tracing::warn!(
            count = leftovers.ended,
            "ended processes of a server that was killed together with its guardian"
        );
    }
    if !leftovers.unclear.is_empty() {
        tracing::warn!(
            pids = ?leftovers.unclear,
            "found processes with the tag of a killed server, but its pid is in use again; end them manually if they are \
             not needed"
        );
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
