//! Parses the parts of a plugin manifest that name the plugin and its files.

use std::path::PathBuf;

use serde_json::{Map, Value};

/// Directories that can hold a manifest, in order of precedence.
pub(super) const MANIFEST_FOLDERS: [&str; 3] =
    [".codex-plugin", ".claude-plugin", ".cursor-plugin"];

/// The files that a manifest can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConfigFile {
    McpServers,
    Apps,
}

impl ConfigFile {
    /// The manifest's member that names the file.
    pub(super) fn member(self) -> &'static str {
        match self {
            Self::McpServers => "mcpServers",
            Self::Apps => "apps",
        }
    }

    /// The path of the file if the manifest does not name one.
    pub(super) fn default_path(self) -> &'static str {
        match self {
            Self::McpServers => ".mcp.json",
            Self::Apps => ".app.json",
        }
    }

    /// The path of the file below the plugin's directory; `None` if the manifest contains the servers itself.
    pub(super) fn named_by(self, manifest: &str) -> Result<Option<PathBuf>, &'static str> {
        let manifest = object(manifest).unwrap_or_default();
        match manifest.get(self.member()) {
            Some(Value::String(path)) => below_root(path).map(Some),
            Some(Value::Object(_)) if self == Self::McpServers => Ok(None),
            _ => Ok(Some(self.default_path().into())),
        }
    }
}

/// The names of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PluginNames {
    /// The prefix of the names of its skills.
    pub(super) name: String,
    pub(super) display_name: String,
}

/// The names in a manifest; `None` if the manifest is invalid. The default name is that of the directory.
pub(super) fn plugin_names(manifest: &str, folder: &str) -> Option<PluginNames> {
    let manifest = object(manifest)?;
    let name = match manifest.get("name") {
        None | Some(Value::Null) => folder.to_owned(),
        Some(name) => name.as_str()?.to_owned(),
    };
    let display_name =
        manifest.get("interface").and_then(|interface| interface["displayName"].as_str());
    let display_name =
        display_name.filter(|name| !name.trim().is_empty()).unwrap_or(&name).to_owned();
    Some(PluginNames { name, display_name })
}

fn object(manifest: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(manifest).ok()
}

/// A plugin is untrusted, so its manifest must not name files outside of its directory.
fn below_root(path: &str) -> Result<PathBuf, &'static str> {
    let Some(rest) = path.strip_prefix("./") else { return Err("path must start with `./`") };
    let segments = || rest.split('/').filter(|segment| !segment.is_empty() && *segment != ".");
    if rest.contains('\0')
        || segments().any(|segment| segment == "..")
        || segments().next().is_none()
    {
        return Err("path must remain below the capability root");
    }
    Ok(segments().collect())
}
