//! Files with secrets of the user's servers: with a token, a sandboxed process could start an unconfined one.
//!
//! They are denied in every sandbox, regardless of the policy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::RootfsSpec;

use super::denied;

/// Variables that name files with tokens, or a directory with the keys of a rendezvous.
const VARIABLES: [&str; 4] = [
    "EXEC_SERVER_TOKEN_FILE",
    "EXEC_SERVER_ADMIN_TOKEN_FILE",
    "EXEC_SERVER_REMOTE_TOKEN_FILE",
    "EXEC_SERVER_RENDEZVOUS_DATA",
];

/// Entries of the state directory that are always denied, even if a policy allows a workspace inside it.
const IN_STATE_DIR: [&str; 5] =
    ["placeholders", "identity.json", "harness-identity.json", "known_hosts", "rendezvous"];

/// Files and directories that are denied in every sandbox.
#[derive(Debug)]
pub struct Secrets {
    named: Vec<PathBuf>,
    /// The real path of the state directory; it stays valid, because every sandbox is denied access to it.
    state_dir: Option<PathBuf>,
    in_state_dir: Vec<PathBuf>,
}

impl Secrets {
    /// Collects the paths given at startup and those in the environment.
    pub fn new(
        named: &[PathBuf],
        state_dir: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let of_environment = VARIABLES.into_iter().filter_map(variable).map(PathBuf::from);
        let all = named.iter().cloned().chain(of_environment);
        let all = all.filter(|path| !path.as_os_str().is_empty());
        let named = all.filter_map(|path| std::path::absolute(path).ok()).collect();
        let state_dir = state_dir.and_then(real);
        let in_state_dir =
            state_dir.iter().flat_map(|dir| IN_STATE_DIR.map(|name| dir.join(name))).collect();
        Self { named, state_dir, in_state_dir }
    }

    /// Whether a path is inside one of them, by its text only.
    pub fn hold(&self, path: &Path) -> bool {
        self.named.iter().chain(&self.in_state_dir).any(|secret| path.starts_with(secret))
    }

    /// Denies all of them by their real paths, because a file that is rotated often is a link.
    pub fn deny_in(&self, view: &mut RootfsSpec) {
        view.places.extend(self.state_dir.as_deref().map(denied));
        view.sealed.extend(self.named.iter().filter_map(|path| real(path)));
        view.sealed.extend(self.in_state_dir.iter().cloned());
    }
}

/// `None` for a missing path, which needs no denial.
fn real(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

#[cfg(all(test, unix))]
mod tests {
    use crate::Base;

    use super::*;

    #[test]
    fn existing_secrets_are_denied_by_their_real_paths() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("state/placeholders")).unwrap();
        std::fs::write(root.join("today"), "").unwrap();
        std::os::unix::fs::symlink("today", root.join("token")).unwrap();
        let variable = |name: &str| {
            (name == "EXEC_SERVER_TOKEN_FILE").then(|| root.join("missing").into_os_string())
        };
        let secrets = Secrets::new(&[root.join("token")], Some(&root.join("state")), variable);
        let mut view = RootfsSpec::new(Base::Everything);
        secrets.deny_in(&mut view);
        assert_eq!(view.sealed.len(), 1 + IN_STATE_DIR.len());
        assert_eq!(view.sealed[..2], [root.join("today"), root.join("state/placeholders")]);
        assert_eq!(view.places, [denied(&root.join("state"))]);
        assert!(secrets.hold(&root.join("state/placeholders/x")));
        assert!(!secrets.hold(&root.join("state/work")));
    }
}
