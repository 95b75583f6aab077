//! Finds plugins and skills: below a given directory for `capabilityRoots/discoverV1`, and in the install directories of
//! the user and the system for `capabilities/discoverV2`.
//!
//! All files are user input: a missing, invalid or too large file becomes a warning and never fails the request.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use exec_server_protocol::environment::{
    CapabilityRoot, DiscoveredFile, DiscoveredPlugin, DiscoveredRoot, DiscoveredSkill,
};
use exec_server_protocol::path_uri::PathUri;

pub use installed::discover_installed;

mod installed;
mod manifest;
mod skill_text;
mod walk;

use exec_server_fs::regular_file::{ReadError, read_text};
use manifest::ConfigFile;

use crate::environment::path_uri;

/// Finds a plugin and the skills below one root.
pub fn discover_root(root: &CapabilityRoot, path: &Path) -> DiscoveredRoot {
    match fs::metadata(path) {
        Err(error) => failed_root(root, error),
        Ok(metadata) if !metadata.is_dir() => {
            let error = format!("capability root {} is not a directory", root.path.as_str());
            DiscoveredRoot { error: Some(error), ..empty_root(root) }
        }
        Ok(_) => discover_folder(root, path),
    }
}

/// The result for a root that cannot be read.
pub fn failed_root(root: &CapabilityRoot, error: impl Display) -> DiscoveredRoot {
    let error = format!("failed to inspect capability root {}: {error}", root.path.as_str());
    DiscoveredRoot { error: Some(error), ..empty_root(root) }
}

fn empty_root(root: &CapabilityRoot) -> DiscoveredRoot {
    DiscoveredRoot {
        id: root.id.clone(),
        path: root.path.clone(),
        plugin: None,
        skills: Vec::new(),
        namespace_manifests: Vec::new(),
        warnings: Vec::new(),
        error: None,
    }
}

fn discover_folder(root: &CapabilityRoot, path: &Path) -> DiscoveredRoot {
    let found = walk::walk(path);
    let mut bundle = Bundle { left: MAX_BUNDLE_BYTES, warnings: found.warnings };
    if found.is_cut_short {
        let warning =
            format!("capability scan reached its traversal limit (root: {})", root.path.as_str());
        bundle.warn(warning);
    }
    let manifests: BTreeMap<PathBuf, DiscoveredFile> = found
        .manifests
        .into_iter()
        .filter_map(|(folder, manifest)| Some((folder, bundle.read(&manifest)?)))
        .collect();
    let plugin = manifests.get(path).map(|manifest| discover_plugin(path, manifest, &mut bundle));
    let skills =
        found.skills.iter().filter_map(|skill| discover_skill(skill, &mut bundle)).collect();
    let mut namespace_manifests: Vec<DiscoveredFile> = manifests.into_values().collect();
    namespace_manifests.sort_by(|one, other| one.path.as_str().cmp(other.path.as_str()));
    DiscoveredRoot {
        plugin,
        skills,
        namespace_manifests,
        warnings: bundle.warnings,
        ..empty_root(root)
    }
}

fn discover_plugin(
    root: &Path,
    manifest: &DiscoveredFile,
    bundle: &mut Bundle,
) -> DiscoveredPlugin {
    let mut config = |file: ConfigFile| {
        let relative = file.named_by(&manifest.contents).unwrap_or_else(|problem| {
            let manifest = manifest.path.as_str();
            bundle.warn(format!("ignoring {} in {manifest}: {problem}", file.member()));
            Some(file.default_path().into())
        })?;
        bundle.read_if_file(&root.join(relative))
    };
    let mcp_config = config(ConfigFile::McpServers);
    let apps_config = config(ConfigFile::Apps);
    DiscoveredPlugin { manifest: manifest.clone(), mcp_config, apps_config }
}

fn discover_skill(instructions: &Path, bundle: &mut Bundle) -> Option<DiscoveredSkill> {
    let metadata = instructions.with_file_name("agents").join("openai.yaml");
    let instructions = bundle.read(instructions)?;
    let has_metadata = fs::symlink_metadata(&metadata).is_ok_and(|metadata| metadata.is_file());
    let metadata = if has_metadata { bundle.read(&metadata) } else { None };
    Some(DiscoveredSkill { instructions, metadata })
}

/// Instructions are input of a model, so a longer file would be useless.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// All files of a root go into one message.
const MAX_BUNDLE_BYTES: u64 = 16 * 1024 * 1024;

/// Counts the bytes of all files of one root against their common limit.
struct Bundle {
    left: u64,
    warnings: Vec<String>,
}

impl Bundle {
    fn read(&mut self, path: &Path) -> Option<DiscoveredFile> {
        let uri = path_uri(path);
        let text = match read_text(path, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) => {
                self.warn(warning_about(&uri, &error));
                return None;
            }
        };
        match self.left.checked_sub(text.len() as u64) {
            Some(left) => self.left = left,
            None => {
                self.warn(format!(
                    "capability root bundle exceeds the {MAX_BUNDLE_BYTES}-byte limit"
                ));
                return None;
            }
        }
        Some(DiscoveredFile { path: uri, contents: text })
    }

    /// Reads an optional file; a missing one causes no warning.
    fn read_if_file(&mut self, path: &Path) -> Option<DiscoveredFile> {
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            self.read(path)
        } else {
            None
        }
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

fn warning_about(uri: &PathUri, error: &ReadError) -> String {
    let uri = uri.as_str();
    match error {
        ReadError::TooLong(_) => format!("capability file {uri} {error}"),
        ReadError::NotUtf8(_) => format!("capability file {uri} is not UTF-8: {error}"),
        ReadError::NotAFile(_) | ReadError::Io(_) => {
            format!("failed to read capability file {uri}: {error}")
        }
    }
}

#[cfg(test)]
mod tests;
