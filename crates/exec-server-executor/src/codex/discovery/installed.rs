//! Lists the plugins and skills that the user and the administrator have installed, for `capabilities/discoverV2`.
//!
//! The working directory of the request is not used, because the client finds the skills of a project itself.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use exec_server_protocol::environment::{
    CapabilitiesResponse, CapabilityRoot, DiscoveredFile, DiscoveredRoot, DiscoveredSkill,
    DiscoveryRoot, InstalledPlugin, SkillSummary,
};
use exec_server_protocol::path_uri::{NativePaths, PathUri};

use super::manifest::{PluginNames, plugin_names};
use super::{discover_root, skill_text};
use crate::codex::config::ConfigPaths;
use crate::environment::path_uri;

/// Searches the install directories of plugins and skills.
pub fn discover_installed(paths: &ConfigPaths) -> CapabilitiesResponse {
    let mut response = CapabilitiesResponse::default();
    let mut places = Vec::new();
    match paths.codex_home() {
        Ok(codex_home) => {
            add_plugins(&codex_home.join("plugins/cache"), &mut response);
            places.push(("codex-home-skills", codex_home.join("skills")));
        }
        Err(error) => response.warnings.push(error.to_string()),
    }
    if let Some(home) = &paths.home {
        places.push(("user-agent-skills", home.join(".agents/skills")));
    }
    places.push(("system-skills", paths.system.join("skills")));
    for (id, path) in places.into_iter().filter(|(_, path)| path.is_dir()) {
        add_skills(id, &path, &mut response);
    }
    response
}

fn add_skills(id: &str, path: &Path, response: &mut CapabilitiesResponse) {
    let found = discover(id, path);
    let place = DiscoveryRoot { id: id.to_owned(), path: path_uri(path) };
    let mut skills = summaries(&found, &mut response.warnings);
    for skill in &mut skills {
        skill.discovery_root = Some(place.clone());
    }
    response.skills.extend(skills);
    response.warnings.extend(found.warnings.into_iter().chain(found.error));
}

fn add_plugins(cache: &Path, response: &mut CapabilitiesResponse) {
    for marketplace in plain_folders(cache) {
        for plugin in plain_folders(&cache.join(&marketplace)) {
            let folder = cache.join(&marketplace).join(&plugin);
            let versions = plain_folders(&folder);
            let Some(version) = versions.iter().max_by(|a, b| compare_versions(a, b)) else {
                continue;
            };
            let id = format!("{plugin}@{marketplace}");
            add_plugin(id, version, folder.join(version), response);
        }
    }
    response.plugins.sort_by(|one, other| one.id.cmp(&other.id));
}

fn add_plugin(id: String, version: &str, path: PathBuf, response: &mut CapabilitiesResponse) {
    let found = discover(&id, &path);
    let names =
        found.plugin.as_ref().and_then(|plugin| plugin_names(&plugin.manifest.contents, version));
    match (&found.plugin, names) {
        (Some(files), Some(PluginNames { display_name, .. })) => {
            let (version, root, files) = (version.to_owned(), path_uri(&path), files.clone());
            let skills = summaries(&found, &mut response.warnings);
            let plugin = InstalledPlugin {
                id,
                display_name,
                remote_plugin_id: None,
                version,
                root,
                files,
                skills,
            };
            response.plugins.push(plugin);
        }
        _ => response.warnings.push(format!("plugin {id} is skipped: it has no usable manifest")),
    }
    response.warnings.extend(found.warnings.into_iter().chain(found.error));
}

fn discover(id: &str, path: &Path) -> DiscoveredRoot {
    let root = CapabilityRoot { id: id.to_owned(), path: path_uri(path), sandbox: None };
    discover_root(&root, path)
}

fn summaries(found: &DiscoveredRoot, warnings: &mut Vec<String>) -> Vec<SkillSummary> {
    let mut skills = Vec::new();
    for skill in &found.skills {
        match summary(skill, &found.namespace_manifests) {
            Ok(summary) => skills.push(summary),
            Err(error) => {
                warnings.push(format!(
                    "skill {} is skipped: {error}",
                    skill.instructions.path.as_str()
                ));
            }
        }
    }
    skills
}

fn summary(
    skill: &DiscoveredSkill,
    manifests: &[DiscoveredFile],
) -> Result<SkillSummary, skill_text::SkillError> {
    let path = &skill.instructions.path;
    let front = skill_text::front_matter(&skill.instructions.contents)?;
    let name = front.name.unwrap_or_else(|| folder_name(path, 1));
    let metadata = skill.metadata.as_ref().map(|metadata| metadata.contents.as_str());
    Ok(SkillSummary {
        name: match namespace(path, manifests) {
            Some(namespace) => format!("{namespace}:{name}"),
            None => name,
        },
        description: front.description,
        short_description: front.short_description,
        path: path.clone(),
        discovery_root: None,
        dependencies: metadata.and_then(skill_text::dependencies),
        policy: metadata.and_then(skill_text::policy),
    })
}

/// The name of the innermost plugin that contains the skill.
fn namespace(skill: &PathUri, manifests: &[DiscoveredFile]) -> Option<String> {
    let around = manifests.iter().filter_map(|manifest| {
        let folder = manifest.path.as_str().rsplitn(3, '/').nth(2)?;
        let rest = skill.as_str().strip_prefix(folder)?;
        rest.starts_with('/').then_some((folder.len(), manifest))
    });
    let (_, manifest) = around.max_by_key(|(length, _)| *length)?;
    Some(plugin_names(&manifest.contents, &folder_name(&manifest.path, 2))?.name)
}

/// The name of the directory `up` levels above a file.
fn folder_name(file: &PathUri, up: usize) -> String {
    let path = file.to_posix(NativePaths::Reject).unwrap_or_default();
    String::from_utf8_lossy(&path).rsplit('/').nth(up).unwrap_or_default().to_owned()
}

/// The directories whose names are valid in a plugin id; others are leftovers of an installation.
fn plain_folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
    let is_plain = |name: &String| {
        !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte))
    };
    names.filter(is_plain).collect()
}

/// `local` is a development version, so it is newer than every release.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let key = |version: &str| {
        (version == "local", version.split('.').map(version_part).collect::<Vec<_>>())
    };
    key(one).cmp(&key(other))
}

/// Sort key: the number, whether it is a release, and the suffix.
fn version_part(part: &str) -> (u64, bool, String) {
    let digits = part.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = part.split_at(digits);
    (number.parse().unwrap_or(u64::MAX), rest.is_empty(), rest.to_owned())
}
