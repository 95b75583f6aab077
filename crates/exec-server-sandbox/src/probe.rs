//! Results of probing the features that a sandbox uses, and the sandbox level they allow.

use serde::{Serialize, Serializer};

pub use exec_server_os::probe::{Finding, LimitProbe};

/// Kernel features that a sandbox uses, each with a hint if it is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// As printed by `uname -r`.
    pub kernel_release: String,
    /// Creation of user, mount, pid, network, IPC, UTS and cgroup namespaces by this user.
    pub user_namespaces: Finding,
    /// The same without a user namespace, which requires a privileged server.
    pub privileged_namespaces: Finding,
    /// Mounting a new `/proc` in such namespaces.
    pub proc_mount: Finding,
    /// The sysctl limit on user namespaces, if the kernel has one.
    pub max_user_namespaces: Option<u64>,
    /// Whether AppArmor denies user namespaces to unprivileged programs; `None` without AppArmor.
    pub apparmor_restricts_user_namespaces: Option<bool>,
    /// Installing a system call filter.
    pub seccomp: Finding,
    /// Receiving the filter's denials in the server.
    pub seccomp_notify: Finding,
    /// Landlock ABI version; 0 without Landlock.
    pub landlock_abi: u32,
    /// Landlock with all features that the sandbox uses.
    pub landlock: Finding,
    /// Features that Landlock lacks here, with the names used in the reply of a start.
    pub landlock_missing: Vec<&'static str>,
    /// A cgroup (version 2) of the server's own, for limits on memory and processes.
    pub cgroup: Finding,
}

/// How much of a policy can be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxLevel {
    /// All of it, by namespaces, seccomp and Landlock.
    Full,
    /// All of it by namespaces and seccomp; Landlock, the second layer, is incomplete.
    FullOldLandlock,
    /// A part of it, by Landlock and seccomp, and only if the operator enables this fallback.
    Landlock,
    /// Nothing.
    None,
}

/// The first Landlock ABI that restricts signals and abstract sockets.
const FULL_LANDLOCK: u32 = 6;
/// The first Landlock ABI that restricts truncation.
const USABLE_LANDLOCK: u32 = 3;

impl SandboxLevel {
    /// The level that the findings allow.
    pub fn of(probe: &Probe) -> Self {
        // The launcher always creates a user namespace, even as root, so privileged namespaces do not replace it.
        match (probe.user_namespaces.works, probe.seccomp.works, probe.landlock_abi) {
            (true, true, FULL_LANDLOCK..) => Self::Full,
            (true, true, _) => Self::FullOldLandlock,
            (false, true, USABLE_LANDLOCK..) => Self::Landlock,
            _ => Self::None,
        }
    }

    /// The name used in the reply of a start.
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
