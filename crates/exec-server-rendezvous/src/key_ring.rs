//! The signing keys of a file, loaded again when the file changes.
//!
//! The nodes of a cluster have the same file, and each reads its own: a new key is appended on all of them first, and moved
//! to the first line when all verify it. A message between nodes would say nothing about the files of the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_protocol::hex;

use crate::data_dir::DataDirError;
use crate::secrets::{Digest, sha256};
use crate::signed_url::SigningKeys;

/// The keys in use.
pub struct KeyRing {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    keys: Arc<SigningKeys>,
    /// Content that was read last, whether it could be used or not, so that a failure is logged once.
    seen: Option<Digest>,
}

/// Outcome of a look at the file.
#[derive(Debug)]
pub enum Reload {
    /// The content is that of the last look.
    Unchanged,
    /// New URLs are signed with the first key of the new content.
    Loaded,
    /// The file cannot be used; the old keys stay in use.
    Failed(DataDirError),
}

impl KeyRing {
    /// Reads the file.
    pub fn load(path: &Path) -> Result<Self, DataDirError> {
        let text = read(path)?;
        let keys = parse(path, &text)?;
        let state = Mutex::new(State { keys: Arc::new(keys), seen: Some(sha256(text.as_bytes())) });
        Ok(Self { path: path.to_owned(), state })
    }

    /// The keys in use.
    pub fn current(&self) -> Arc<SigningKeys> {
        self.state.lock().expect("no holder panics").keys.clone()
    }

    /// Reads the file again; blocks on the file system.
    pub fn reload(&self) -> Reload {
        let read = read(&self.path);
        let found = read.as_ref().ok().map(|text| sha256(text.as_bytes()));
        let mut state = self.state.lock().expect("no holder panics");
        if state.seen == found {
            return Reload::Unchanged;
        }
        state.seen = found;
        match read.and_then(|text| parse(&self.path, &text)) {
            Ok(keys) => {
                state.keys = Arc::new(keys);
                Reload::Loaded
            }
            Err(error) => Reload::Failed(error),
        }
    }
}

/// Reads the file again whenever it has changed.
pub async fn renew_keys(ring: &Arc<KeyRing>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let read = ring.clone();
        match tokio::task::spawn_blocking(move || read.reload()).await {
            Ok(Reload::Loaded) => {
                let keys = ring.current().ids().collect::<Vec<_>>().join(",");
                tracing::info!(keys, "loaded new signing keys; the first one signs");
            }
            Ok(Reload::Failed(error)) => tracing::warn!(
                error = exec_server_transport::causes::chain(&error),
                "the new signing keys cannot be used; the old ones stay in use"
            ),
            Ok(Reload::Unchanged) | Err(_) => {}
        }
    }
}

fn read(path: &Path) -> Result<String, DataDirError> {
    fs::read_to_string(path).map_err(|source| DataDirError::Io { path: path.to_owned(), source })
}

/// Parses one key per line: an id, a space, and at least 32 bytes in hex.
fn parse(path: &Path, text: &str) -> Result<SigningKeys, DataDirError> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys = lines.map(|line| {
        let (id, secret) = line.split_once(' ')?;
        let secret = hex::decode(secret.trim()).filter(|secret| secret.len() >= 32)?;
        Some((id.to_owned(), secret))
    });
    let keys = keys.collect::<Option<Vec<_>>>().and_then(SigningKeys::new);
    keys.ok_or_else(|| DataDirError::Keys(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_used_and_a_broken_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("keys");
        let line = |id: &str, byte: &str| format!("{id} {}\n", byte.repeat(32));
        fs::write(&path, line("k1", "ab")).unwrap();
        let ring = KeyRing::load(&path).unwrap();
        let ids = || ring.current().ids().map(str::to_owned).collect::<Vec<_>>();
        assert!(matches!(ring.reload(), Reload::Unchanged));
        fs::write(&path, line("k2", "cd") + &line("k1", "ab")).unwrap();
        assert!(matches!(ring.reload(), Reload::Loaded));
        assert_eq!(ids(), ["k2", "k1"]);
        for broken in ["", "k3", "k3 abcd", "k3 no-hex"] {
            fs::write(&path, broken).unwrap();
            assert!(matches!(ring.reload(), Reload::Failed(DataDirError::Keys(_))), "{broken:?}");
            assert!(matches!(ring.reload(), Reload::Unchanged), "said once");
            assert_eq!(ids(), ["k2", "k1"]);
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(ring.reload(), Reload::Failed(DataDirError::Io { .. })));
        fs::write(&path, line("k4", "ef")).unwrap();
        assert!(matches!(ring.reload(), Reload::Loaded));
        assert_eq!(ids(), ["k4"]);
    }
}
