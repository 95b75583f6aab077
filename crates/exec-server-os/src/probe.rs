//! Results of probing which limits can be enforced; the same on every platform.

use serde::Serialize;

/// Which limits of a process can be enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitProbe {
    /// Memory limit on a process tree.
    pub memory: Finding,
    /// CPU limit on a process tree.
    pub cpu: Finding,
    /// Limit on the number of processes in any tree.
    pub pids: Finding,
    /// Limit on the number of processes in a sandbox.
    pub sandbox_pids: Finding,
}

/// Result of probing one feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Whether the feature is usable.
    pub works: bool,
    /// The cause, if it is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How to enable it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    /// A usable feature.
    pub fn works() -> Self {
        Self { works: true, reason: None, hint: None }
    }

    /// An unusable feature.
    pub fn missing(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { works: false, reason: Some(reason.into()), hint: Some(hint.into()) }
    }
}
