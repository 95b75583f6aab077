//! The `sandbox` object of `process/start` and of every `fs/*` call: what the request may touch.
//!
//! | look here | for |
//! |---|---|
//! | [`SandboxParams`] | the object itself and the context that its entries are read in |
//! | [`permissions`] | the profile: files by entry, the network by word, and the older tagged forms |
//!
//! The members of the object are camelCase, everything below `permissions` is snake_case. Unknown members are ignored;
//! an unknown word is an error, because a rule that is not understood cannot be kept.

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

/// What a request may touch.
///
/// The older spellings are read too: `sandboxPolicy` in place of `permissions`, and a bare tagged policy.
// `remote` keeps the derived code apart, so that the older spellings can be rewritten before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "camelCase")]
pub struct SandboxParams {
    pub permissions: PermissionProfile,
    /// Why the client asks for another sandbox than usual; no policy depends on it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sandbox_override: SandboxOverride,
    /// The older place of the directory that relative patterns start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// Where the entries are read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_context: Option<PolicyContext>,
    /// The older place of the project's directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workspace_roots: Vec<PathUri>,
    /// The user's home as the client knows it; no policy depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    /// Temporary directories as the client knows them; no policy depends on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    /// How Windows would enforce it; must be said on every system.
    pub windows_sandbox_level: WindowsSandboxLevel,
    /// What Windows does with the proxy settings of its sandbox users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_proxy_settings_mode: Option<ProxySettingsMode>,
    /// Asks for the reference's former mechanism.
    #[serde(default)]
    pub use_legacy_landlock: bool,
}

impl SandboxParams {
    /// A sandbox with these permissions and nothing else said.
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

    /// The directory that relative patterns start from: the context's, else the flat one.
    pub fn policy_cwd(&self) -> Option<&PathUri> {
        let of_context = self.policy_context.as_ref().and_then(|context| context.cwd.as_ref());
        of_context.or(self.cwd.as_ref())
    }

    /// The project's directories: the context's if there is one, even if it names none.
    pub fn policy_roots(&self) -> &[PathUri] {
        match &self.policy_context {
            Some(context) => &context.workspace_roots,
            None => &self.workspace_roots,
        }
    }

    /// The same sandbox, with a directory for relative patterns if it names none; a process has one of its own.
    #[must_use]
    pub fn with_default_cwd(mut self, cwd: &PathUri) -> Self {
        if self.policy_cwd().is_none() {
            self.cwd = Some(cwd.clone());
        }
        self
    }
}

/// Where the entries of a policy are read from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyContext {
    /// The directory that relative patterns start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    /// The project's directories.
    #[serde(default)]
    pub workspace_roots: Vec<PathUri>,
}

/// Why a client asks for another sandbox than usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SandboxOverride {
    /// It does not.
    #[default]
    NoOverride,
    /// More was granted, and the rest is still forbidden.
    EscalatedSandboxWithRestrictions,
    /// The first attempt was meant to run without a sandbox.
    BypassSandboxFirstAttempt,
}

/// How Windows enforces a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowsSandboxLevel {
    /// Not at all.
    Disabled,
    /// With a restricted token.
    RestrictedToken,
    /// With users of the sandbox's own.
    Elevated,
    /// With the system's own containers.
    Mxc,
}

/// What Windows does with the proxy settings of its sandbox users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxySettingsMode {
    /// Makes them what the policy needs.
    Reconcile,
    /// Leaves them alone.
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

/// Takes out the policy of an object that is written in an older spelling.
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

/// The members beside the policy, if there are any, mean what they always do.
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
