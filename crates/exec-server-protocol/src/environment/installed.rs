//! The result of `capabilities/discoverV2`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::DiscoveredPlugin;
use crate::path_uri::PathUri;

/// Result of `capabilities/discoverV2`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilitiesResponse {
    /// The installed plugins, ordered by id.
    pub plugins: Vec<InstalledPlugin>,
    /// Skills outside of plugins.
    pub skills: Vec<SkillSummary>,
    /// What could not be read.
    pub warnings: Vec<String>,
}

/// An installed plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstalledPlugin {
    /// `NAME@MARKETPLACE`.
    pub id: String,
    /// The name to show.
    pub display_name: String,
    /// Always `None`: the plugin's key at a remote marketplace is not known here.
    #[serde(default)]
    pub remote_plugin_id: Option<String>,
    /// The installed version.
    pub version: String,
    pub root: PathUri,
    pub files: DiscoveredPlugin,
    pub skills: Vec<SkillSummary>,
}

/// A skill, without its instructions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkillSummary {
    /// `NAME`, or `PLUGIN:NAME` for a skill of a plugin.
    pub name: String,
    /// What the skill is for.
    pub description: String,
    /// The same in a few words.
    #[serde(default)]
    pub short_description: Option<String>,
    pub path: PathUri,
    /// `None` for the skills of a plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_root: Option<DiscoveryRoot>,
    #[serde(default)]
    pub dependencies: Option<SkillDependencies>,
    #[serde(default)]
    pub policy: Option<SkillPolicy>,
}

/// A directory where skills are installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveryRoot {
    /// Which of the install directories it is.
    pub id: String,
    pub path: PathUri,
}

/// The dependencies of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillDependencies {
    pub tools: Vec<ToolDependency>,
}

/// A tool that a skill needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ToolDependency {
    /// Such as `mcp`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The name of the tool.
    pub value: String,
    /// What the tool is for.
    #[serde(default)]
    pub description: Option<String>,
    /// The transport of an MCP server.
    #[serde(default)]
    pub transport: Option<String>,
    /// The command that starts the server.
    #[serde(default)]
    pub command: Option<String>,
    /// The address of the server.
    #[serde(default)]
    pub url: Option<String>,
    /// The local port of its sign-in.
    #[serde(default)]
    pub oauth_callback_port: Option<u16>,
}

/// The usage policy of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkillPolicy {
    /// Whether a model may select the skill without a request of the user.
    #[serde(default)]
    pub allow_implicit_invocation: Option<bool>,
    /// The products that may use the skill; an empty list means all.
    pub products: Vec<String>,
}
