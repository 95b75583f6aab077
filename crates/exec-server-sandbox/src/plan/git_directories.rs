//! The directories that a `.git` file points to: hooks and configuration in them decide what git runs outside the sandbox.

use std::path::{Path, PathBuf};

use exec_server_fs::byte_fields::path_from_bytes;
use exec_server_fs::regular_file::read_start;

use super::missing_paths::first_missing;

/// Far more than the longest path; the rest of the file is ignored.
const MAX_BYTES: u64 = 64 * 1024;

/// The directories to protect because of the `.git` file at `path`; may block.
///
/// A worktree has its own directory and shares one with others. For a missing directory this returns its first missing
/// component, because a sandboxed process could create it.
pub fn named_by(path: &Path) -> Vec<PathBuf> {
    let is_git_file = path.file_name().is_some_and(|name| name == ".git")
        && path.symlink_metadata().is_ok_and(|found| found.is_file());
    if !is_git_file {
        return Vec::new();
    }
    let own = named_in(path, b"gitdir:");
    let shared = own.as_deref().and_then(|own| named_in(&own.join("commondir"), b""));
    own.into_iter().chain(shared).collect()
}

/// The path in the file after the prefix `word`, up to its first missing component.
fn named_in(file: &Path, word: &[u8]) -> Option<PathBuf> {
    let text = read_start(file, MAX_BYTES).ok()?;
    let named = text.strip_prefix(word)?.trim_ascii();
    let named = file.parent()?.join(path_from_bytes(named.to_owned()));
    named.canonicalize().ok().or_else(|| first_missing(&named).map(|missing| missing.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worktree_names_its_own_directory_and_the_shared_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (own, git) = (root.join("main/.git/worktrees/x"), root.join("work/.git"));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir(root.join("work")).unwrap();
        assert!(named_by(&git).is_empty());
        std::fs::write(&git, "gitdir: ../main/.git/worktrees/x\n\n").unwrap();
        assert_eq!(named_by(&git), [&*own]);
        std::fs::write(own.join("commondir"), "../..\n").unwrap();
        assert_eq!(named_by(&git), [own, root.join("main/.git")]);
        std::fs::write(&git, "gitdir: ../gone/.git/worktrees/x\n").unwrap();
        assert_eq!(named_by(&git), [root.join("gone")]);
        std::fs::write(&git, "nothing").unwrap();
        assert!(named_by(&git).is_empty());
        assert!(named_by(&root.join("main/.git")).is_empty());
    }
}
