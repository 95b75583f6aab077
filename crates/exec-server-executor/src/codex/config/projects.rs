//! Decides which project directories are trusted; only their settings are read.
//!
//! Project settings can start programs, so the system's or the user's configuration must trust a directory: by an entry
//! for the directory itself, else for the project root, else for the main checkout of its repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use exec_server_fs::regular_file::read_text;

/// The trust settings of the system and the user.
pub(super) struct Trust {
    levels: BTreeMap<String, bool>,
    markers: Vec<String>,
}

impl Trust {
    /// Merges the layers that may decide about trust, given weakest first.
    pub(super) fn new<'a>(layers: impl Iterator<Item = &'a Table>) -> Self {
        let mut trust = Self { levels: BTreeMap::new(), markers: vec![".git".to_owned()] };
        for layer in layers {
            let projects = layer.get("projects").and_then(Value::as_table);
            for (path, project) in projects.into_iter().flatten() {
                if let Some(level) = project.get("trust_level").and_then(Value::as_str) {
                    trust.levels.insert(path.clone(), level == "trusted");
                }
            }
            if let Some(markers) = layer.get("project_root_markers").and_then(Value::as_array) {
                trust.markers =
                    markers.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            }
        }
        trust
    }

    /// The trusted directories from the project root down to `cwd`.
    pub(super) fn trusted_folders(&self, cwd: &Path) -> Vec<PathBuf> {
        let has_marker =
            |folder: &&Path| self.markers.iter().any(|marker| is_marked(folder, marker));
        let root = cwd.ancestors().find(has_marker).unwrap_or(cwd);
        let inherited = self.level(root).or_else(|| self.level(&main_checkout(cwd)?));
        let mut folders: Vec<PathBuf> = cwd
            .ancestors()
            .take_while(|folder| folder.starts_with(root))
            .filter(|folder| self.level(folder).or(inherited) == Some(true))
            .map(Path::to_path_buf)
            .collect();
        folders.reverse();
        folders
    }

    fn level(&self, folder: &Path) -> Option<bool> {
        self.levels.get(folder.to_str()?).copied()
    }
}

/// Drops keys that only the user may set: model provider, service URLs, notifications, telemetry and profiles.
pub(super) fn drop_user_only_keys(settings: &mut Table) {
    const USER_ONLY: [&str; 8] = [
        "chatgpt_base_url",
        "model_provider",
        "model_providers",
        "notify",
        "openai_base_url",
        "otel",
        "profile",
        "profiles",
    ];
    settings.retain(|key, _| !USER_ONLY.contains(&key));
}

fn is_marked(folder: &Path, marker: &str) -> bool {
    let path = folder.join(marker);
    // A `.git` directory without `HEAD` is not a repository and does not mark a project.
    if marker == ".git" && path.is_dir() { path.join("HEAD").exists() } else { path.exists() }
}

/// The checkout that owns the repository around `folder`, if there is one.
fn main_checkout(folder: &Path) -> Option<PathBuf> {
    let checkout = folder.ancestors().find(|folder| is_marked(folder, ".git"))?;
    if checkout.join(".git").is_dir() {
        return Some(checkout.to_path_buf());
    }
    let repository = linked_repository(checkout)?;
    Some(repository.parent()?.to_path_buf())
}

/// The `.git` directory that a linked worktree belongs to.
fn linked_repository(worktree: &Path) -> Option<PathBuf> {
    /// The file holds one path.
    const LIMIT: u64 = 64 * 1024;
    let link = worktree.join(".git");
    let text = read_text(&link, LIMIT).ok()?;
    let entry = worktree.join(text.strip_prefix("gitdir:")?.trim());
    let [repository, worktrees] = [entry.ancestors().nth(2)?, entry.parent()?];
    if repository.file_name()? != ".git" || worktrees.file_name()? != "worktrees" {
        return None;
    }
    // Any `.git` file can name a trusted repository, so the repository must point back to the worktree.
    let back = read_text(&entry.join("gitdir"), LIMIT).ok()?;
    let points_back = fs::canonicalize(back.trim()).ok()? == fs::canonicalize(&link).ok()?;
    points_back.then(|| repository.to_path_buf())
}
