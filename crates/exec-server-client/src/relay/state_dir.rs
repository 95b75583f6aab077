//! The directory with a client's own key and the pinned keys of executors.

use std::io;
use std::path::{Path, PathBuf};

use super::known_hosts::KnownHosts;

/// A directory with state that clients share and keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStateDir(PathBuf);

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// None of the variables that locate the directory is set.
    #[error(
        "no place to keep this client's key: set EXEC_SERVER_STATE_DIR, XDG_STATE_HOME or HOME"
    )]
    Nowhere,
    /// The directory cannot be created.
    #[error("cannot keep this client's key in {}", path.display())]
    Make {
        /// The path of the directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl ClientStateDir {
    /// The user's default: `$EXEC_SERVER_STATE_DIR`, or `exec-server` in `$XDG_STATE_HOME` or `~/.local/state`.
    pub fn find(lookup: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, StateDirError> {
        let set = |name| lookup(name).filter(|path| !path.as_os_str().is_empty());
        let of_state = || set("XDG_STATE_HOME").filter(|path| path.is_absolute());
        let of_home = || set("HOME").map(|home| home.join(".local/state"));
        let usual = || of_state().or_else(of_home).map(|path| path.join("exec-server"));
        let path = set("EXEC_SERVER_STATE_DIR").or_else(usual).ok_or(StateDirError::Nowhere)?;
        Self::open(&path)
    }

    /// Uses this directory and creates it if it does not exist.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let failed = |source| StateDirError::Make { path: path.to_owned(), source };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path).map_err(failed)?;
        Ok(Self(path.to_owned()))
    }

    /// The file with the client's own key.
    pub fn identity_file(&self) -> PathBuf {
        self.0.join("harness-identity.json")
    }

    /// The file with the pinned keys of executors.
    pub fn known_hosts(&self) -> KnownHosts {
        KnownHosts::at(self.0.join("known_hosts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_place_wins_and_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let find = |names: &[&str]| {
            ClientStateDir::find(|name| names.contains(&name).then(|| at(name))).unwrap().0
        };
        assert_eq!(find(&["HOME"]), at("HOME/.local/state/exec-server"));
        assert_eq!(find(&["HOME", "XDG_STATE_HOME"]), at("XDG_STATE_HOME/exec-server"));
        let all = find(&["HOME", "XDG_STATE_HOME", "EXEC_SERVER_STATE_DIR"]);
        assert_eq!(all, at("EXEC_SERVER_STATE_DIR"));
        assert!(all.is_dir());
        assert!(matches!(ClientStateDir::find(|_| None), Err(StateDirError::Nowhere)));
        let nowhere = ClientStateDir::open(Path::new("/dev/null/x")).unwrap_err();
        assert!(nowhere.to_string().contains("/dev/null/x"), "{nowhere}");
    }
}
