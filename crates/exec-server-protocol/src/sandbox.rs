//! The `sandbox` object of `process/start` and of every `fs/*` request.
//!
//! | look here | for |
//! |---|---|
//! | [`SandboxParams`] | the object, and the directories that its entries refer to |
//! | [`permissions`] | the profile: file entries, network mode, and the older tagged forms |
//!
//! Members of the object are camelCase, everything below `permissions` is snake_case. Unknown members are ignored; an
//! unknown enum value is an error, because an unknown rule cannot be enforced.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::path_uri::PathUri;

pub mod permissions;

pub use permissions::{
    EntryAccess, EntryPath, FileEntry, FilePermissions, MissingPathBehavior, Network,
    PermissionProfile, SpecialPath, WorkspaceWrite,
};

/// The sandbox policy of a request.
///
/// Older spellings are accepted: `sandboxPolicy` in place of `permissions`, and a bare tagged policy.
// `remote` keeps the derived code apart, so that the older spellings can be rewritten before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "camelCase")]
pub struct SandboxParams {
    pub permissions: PermissionProfile,
    /// Why the client requests a different sandbox than usual; ignored by the server.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sandbox_override: SandboxOverride,
    /// Older location of `policyContext.cwd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// Directories that the entries refer to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_context: Option<PolicyContext>,
    /// Older location of `policyContext.workspaceRoots`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workspace_roots: Vec<PathUri>,
    /// The user's home as known to the client; ignored by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    /// Temporary directories as known to the client; ignored by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    /// Windows mechanism; required on every operating system.
    pub windows_sandbox_level: WindowsSandboxLevel,
    /// How Windows handles the proxy settings of its sandbox users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_proxy_settings_mode: Option<ProxySettingsMode>,
    /// Requests the reference's former Landlock mechanism.
    #[serde(default)]
    pub use_legacy_landlock: bool,
}

impl SandboxParams {
    /// A sandbox with these permissions and defaults otherwise.
    pub fn new(permissions: PermissionProfile) -> Self {
        Self {
            permissions,
            sandbox_override: SandboxOverride::default(),
            cwd: None,
            policy_context: None,
            workspace_roots: Vec::new(),
            user_home_dir: None,
            temporary_directories: None,
            windows_sandbox_level: WindowsSandboxLevel::Disabled,
            windows_sandbox_proxy_settings_mode: None,
            use_legacy_landlock: false,
        }
    }

    /// Base directory of relative patterns: the context's, else the older member.
    pub fn policy_cwd(&self) -> Option<&PathUri> {
        let of_context = self.policy_context.as_ref().and_then(|context| context.cwd.as_ref());
        of_context.or(self.cwd.as_ref())
    }

    /// The project directories: the context's if there is a context, even if it is empty.
    pub fn policy_roots(&self) -> &[PathUri] {
        match &self.policy_context {
            Some(context) => &context.workspace_roots,
            None => &self.workspace_roots,
        }
    }

    /// Sets the base directory of relative patterns if there is none; a process uses its working directory.
    #[must_use]
    pub fn with_default_cwd(mut self, cwd: &PathUri) -> Self {
        if self.policy_cwd().is_none() {
            self.cwd = Some(cwd.clone());
        }
        self
    }
}

/// Directories that the entries of a policy refer to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PolicyContext {
    /// Base directory of relative patterns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// The project's directories.
    #[serde(default)]
    pub workspace_roots: Vec<PathUri>,
}

/// Why a client requests a different sandbox than usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SandboxOverride {
    /// No override.
    #[default]
    NoOverride,
    /// More was granted; the remaining restrictions apply.
    EscalatedSandboxWithRestrictions,
    /// The first attempt was meant to run without a sandbox.
    BypassSandboxFirstAttempt,
}

/// Windows mechanism of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WindowsSandboxLevel {
    /// No enforcement.
    Disabled,
    /// With a restricted token.
    RestrictedToken,
    /// With dedicated sandbox users.
    Elevated,
    /// With Windows containers.
    Mxc,
}

/// How Windows handles the proxy settings of its sandbox users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProxySettingsMode {
    /// Sets them as the policy requires.
    Reconcile,
    /// Leaves them unchanged.
    Preserve,
}

impl<'de> Deserialize<'de> for SandboxParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        match take_older_policy(&mut value) {
            None => Self::deserialize(value).map_err(de::Error::custom),
            Some(policy) => with_older_policy(value, policy).map_err(de::Error::custom),
        }
    }
}

impl Serialize for SandboxParams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// Removes and returns the policy of an object in an older spelling.
fn take_older_policy(sandbox: &mut Value) -> Option<Value> {
    let members = sandbox.as_object_mut()?;
    if members.contains_key("permissions") {
        return None;
    }
    if let Some(policy) = members.remove("sandboxPolicy") {
        return Some(policy);
    }
    members.contains_key("type").then(|| std::mem::take(sandbox))
}

/// Combines an older policy with the remaining members, which keep their meaning.
fn with_older_policy(rest: Value, policy: Value) -> Result<SandboxParams, serde_json::Error> {
    let profile = PermissionProfile::deserialize(&policy)?;
    if !profile.is_older_form() {
        return Err(de::Error::missing_field("permissions"));
    }
    let Value::Object(mut members) = rest else { return Ok(SandboxParams::new(profile)) };
    members.insert("permissions".to_owned(), policy);
    members.entry("windowsSandboxLevel").or_insert_with(|| "disabled".into());
    SandboxParams::deserialize(Value::Object(members))
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
