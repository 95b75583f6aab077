//! What a machine can enforce, and what that makes of its sandbox; the same words on every platform.

use serde::{Serialize, Serializer};

/// Everything that a sandbox can be built of, and how to get what is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// As `uname -r` says it.
    pub kernel_release: String,
    /// The user, mount, pid, network, IPC, UTS and cgroup namespaces that this user can make.
    pub user_namespaces: Finding,
    /// The same without a user namespace, which takes a privileged server.
    pub privileged_namespaces: Finding,
    /// A fresh `/proc` in such namespaces.
    pub proc_mount: Finding,
    /// The limit on user namespaces, if there is such a limit.
    pub max_user_namespaces: Option<u64>,
    /// Whether AppArmor keeps user namespaces from unprivileged programs, if it is there at all.
    pub apparmor_restricts_user_namespaces: Option<bool>,
    /// The system call filter.
    pub seccomp: Finding,
    /// Denials of the filter could be told to the server.
    pub seccomp_notify: Finding,
    /// The version of Landlock; 0 is none.
    pub landlock_abi: u32,
    /// The second lock, with all parts that the sandbox uses.
    pub landlock: Finding,
    /// What Landlock cannot restrict here, in the words of a start's reply.
    pub landlock_missing: Vec<&'static str>,
    /// A cgroup (version 2) of our own, for limits on memory and processes.
    pub cgroup: Finding,
}

/// Which limits of a process can be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitProbe {
    /// Memory of a whole tree.
    pub memory: Finding,
    /// Time on processors.
    pub cpu: Finding,
    /// Processes of any tree.
    pub pids: Finding,
    /// Processes of a sandbox.
    pub sandbox_pids: Finding,
}

/// Whether one thing works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Whether it does.
    pub works: bool,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How to get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    /// It does.
    pub fn works() -> Self {
        Self { works: true, reason: None, hint: None }
    }

    /// It does not.
    pub fn missing(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { works: false, reason: Some(reason.into()), hint: Some(hint.into()) }
    }
}

/// How much of a policy can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxLevel {
    /// All of it.
    Full,
    /// All of it by the first lock, without a complete second one.
    FullOldLandlock,
    /// A part of it, by Landlock alone, and only if the operator wants that.
    Landlock,
    /// Nothing.
    None,
}

/// The oldest Landlock that knows signals and abstract sockets.
const FULL_LANDLOCK: u32 = 6;
/// The oldest Landlock that keeps files from being truncated.
const USABLE_LANDLOCK: u32 = 3;

impl SandboxLevel {
    /// The level that the findings allow.
    pub fn of(probe: &Probe) -> Self {
        // The launcher always makes a user namespace, also for root, so nothing replaces it.
        match (probe.user_namespaces.works, probe.seccomp.works, probe.landlock_abi) {
            (true, true, FULL_LANDLOCK..) => Self::Full,
            (true, true, _) => Self::FullOldLandlock,
            (false, true, USABLE_LANDLOCK..) => Self::Landlock,
            _ => Self::None,
        }
    }

    /// Its name, as in a start's reply.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::FullOldLandlock => "full, old Landlock",
            Self::Landlock => "landlock",
            Self::None => "none",
        }
    }
}

impl Serialize for SandboxLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(namespaces: bool, seccomp: bool, landlock_abi: u32) -> &'static str {
        let finding = |works| Finding { works, reason: None, hint: None };
        let probe = Probe {
            kernel_release: String::new(),
            user_namespaces: finding(namespaces),
            privileged_namespaces: finding(true),
            proc_mount: finding(true),
            max_user_namespaces: None,
            apparmor_restricts_user_namespaces: None,
            seccomp: finding(seccomp),
            seccomp_notify: finding(true),
            landlock_abi,
            landlock: finding(landlock_abi >= 6),
            landlock_missing: Vec::new(),
            cgroup: finding(false),
        };
        SandboxLevel::of(&probe).name()
    }

    #[test]
    fn the_level_follows_from_what_works() {
        assert_eq!(level(true, true, 6), "full");
        assert_eq!(level(true, true, 0), "full, old Landlock");
        assert_eq!(level(false, true, 9), "landlock");
        assert_eq!(level(false, true, 2), "none");
        assert_eq!(level(true, false, 9), "none");
    }
}
