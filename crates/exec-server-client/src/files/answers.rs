//! Validates names and paths from a server before a caller builds local paths from them.

use std::collections::HashSet;

use exec_server_protocol::fs::{FsWalkParams, FsWalkResponse};
use exec_server_protocol::path_uri::{NativePaths, PathUri};

use crate::error::ExecServerError;

/// The last component of a path URI; `None` if the path has no POSIX form.
pub(super) fn last_component(uri: &PathUri) -> Option<Vec<u8>> {
    let path = uri.to_posix(NativePaths::Accept).ok()?;
    Some(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec())
}

/// Checks that the entries of a walk are below its root, without duplicates, and within the requested number.
pub(super) fn check_walk(
    params: &FsWalkParams,
    found: &FsWalkResponse,
) -> Result<(), ExecServerError> {
    let wrong = |text: String| Err(ExecServerError::Protocol(text));
    if found.entries.len() as u64 > params.options.max_entries {
        return wrong(format!(
            "a walk over at most {} entries found {}",
            params.options.max_entries,
            found.entries.len()
        ));
    }
    let mut root = comparable(&params.path);
    if !root.ends_with(b"/") {
        root.push(b'/');
    }
    let mut seen = HashSet::new();
    for entry in &found.entries {
        let path = comparable(&entry.path);
        let (entry, root_uri) = (entry.path.as_str(), params.path.as_str());
        if !path.starts_with(&root) || path.len() == root.len() {
            return wrong(format!("a walk below {root_uri} found {entry}"));
        }
        if !seen.insert(path) {
            return wrong(format!("a walk found {entry} twice"));
        }
    }
    Ok(())
}

/// The POSIX path of a URI, or the URI itself if it has none; both are free of dot segments.
fn comparable(uri: &PathUri) -> Vec<u8> {
    uri.to_posix(NativePaths::Accept).unwrap_or_else(|_| uri.as_str().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::fs::{FsWalkEntry, FsWalkOptions, WalkKind};

    use super::*;

    #[test]
    fn a_walk_stays_below_its_root() {
        check("file:///a", &["file:///a/b", "file:///a/b/c"], true);
        check("file:///", &["file:///a"], true);
        check("file:///C:/a", &["file:///C:/a/b"], true);
        check("file:///a", &["file:///ab"], false);
        check("file:///a", &["file:///a"], false);
        check("file:///a", &["file:///a/../b"], false);
        check("file:///a", &["file:///a/%2e%2e/b"], false);
        check("file:///a", &["file:///a/b%2f..%2f..%2fc"], false);
        check("file:///C:/a", &["file:///C:/b"], false);
        check("file:///a", &["file:///a/b", "file:///a/b"], false);
        check("file:///a", &["file:///a/1", "file:///a/2", "file:///a/3"], false);
    }

    fn check(root: &str, found: &[&str], is_fine: bool) {
        let uri = |text: &str| PathUri::parse(text).expect("a URI");
        let options = FsWalkOptions {
            max_depth: 9,
            max_directories: 9,
            max_entries: 2,
            follow_directory_symlinks: false,
            prune_hidden_directories: false,
        };
        let params = FsWalkParams { path: uri(root), options, sandbox: None, user: None };
        let entry = |path: &&str| FsWalkEntry { path: uri(path), kind: WalkKind::File };
        let entries = found.iter().map(entry).collect();
        let found_all = FsWalkResponse { entries, ..FsWalkResponse::default() };
        assert_eq!(check_walk(&params, &found_all).is_ok(), is_fine, "{root} {found:?}");
    }
}
