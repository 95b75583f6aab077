//! The sandbox on Linux: namespaces and mounts made in process, Landlock and seccomp on top.
//!
//! | look here | for |
//! |---|---|
//! | [`spawner`], [`launch`] | the server's side of a sandboxed start |
//! | [`foreground`] | a command with the standard streams of this process, and a trial of the sandbox |
//! | [`zygote`], [`packet`] | the process that launchers are forked from, and its message socket |
//! | [`prepared`], [`warm_pool`] | a sandbox that waits for its job, and the pool of sandboxes prepared ahead of starts |
//! | [`launcher`], [`init`] | the parent of one sandbox, and pid 1 inside |
//! | [`setup_timeout`] | the time limit of the set-up |
//! | [`rootfs`] | the file system that the command sees, and its mounts |
//! | [`exit_report`] | the exit status of the command, sent by pid 1 |
//! | [`exit_hook`] | what is released when the command has exited |
//! | [`teardown`] | background release of mount namespaces and reaping of launchers |
//! | [`namespaces`] | system calls that create and enter namespaces |
//! | [`netns`] | the network namespace that the isolated sandboxes of one session share |
//! | [`confinement`] | the restrictions that are applied between fork and exec: |
//! | [`limits`] | … resource limits |
//! | [`privileges`] | … capabilities, securebits, `no_new_privs` |
//! | [`keyring`] | … a new session keyring |
//! | [`landlock`] | … file rules a second time, signals and abstract sockets |
//! | [`seccomp`] | … the system call filter, which [`bpf`] assembles |
//! | [`denials`] | counts the calls that the filter refuses |
//! | [`worker`], [`file_worker`], [`wire`] | file requests that run inside: the worker, its client in the server, the frames |
//! | [`probe`] | which of these mechanisms work on this machine |
//! | [`step`] | the error type of the set-up |

pub mod bpf;
pub mod confinement;
pub mod denials;
pub mod exit_hook;
pub mod exit_report;
pub mod file_worker;
pub mod foreground;
pub mod init;
pub mod keyring;
pub mod landlock;
pub mod launch;
pub mod launcher;
pub mod limits;
pub mod namespaces;
pub mod netns;
pub mod packet;
pub mod prepared;
pub mod privileges;
pub mod probe;
pub mod rootfs;
pub mod seccomp;
pub mod setup_timeout;
pub mod spawner;
pub mod step;
pub mod teardown;
pub mod warm_pool;
pub mod wire;
pub mod worker;
pub mod zygote;

#[cfg(test)]
mod tests;

use exec_server_protocol::process::SandboxReport;
use serde::{Deserialize, Serialize};

use landlock::{LandlockPart, kernel_abi};
use rootfs::RootfsSpec;

use crate::sandbox::Allowances;

pub use crate::linux::mark::Network;

/// The confinement of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSetup {
    /// The file system.
    pub view: RootfsSpec,
    /// The network access.
    pub network: Network,
    /// The enforcement mechanism.
    pub mechanism: Mechanism,
    /// Permissions beyond the default set.
    pub allow: Allowances,
}

/// The enforcement mechanism, in addition to the system call filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mechanism {
    /// Namespaces and mounts, with Landlock as a second layer.
    #[default]
    Namespaces,
    /// Landlock alone, for what [`can_hold`](crate::sandbox::can_hold) allows.
    Landlock,
}

/// The report that this machine's settings predict; `probe` verifies it by trying.
pub fn expected(mechanism: Mechanism, allow: Allowances) -> SandboxReport {
    let usual = SandboxSetup {
        view: RootfsSpec::new(rootfs::Base::Everything),
        network: Network::Isolated,
        mechanism,
        allow,
    };
    // Landlock is chosen only after namespaces failed and Landlock was found to work.
    if mechanism == Mechanism::Landlock {
        return usual.report();
    }
    let setting = |path: &str| std::fs::read_to_string(path).ok();
    let is = |path: &str, value: &str| setting(path).is_some_and(|text| text.trim() == value);
    let is_root = rustix::process::geteuid().is_root();
    let mut missing = Vec::new();
    if is("/proc/sys/user/max_user_namespaces", "0")
        || (!is_root && is("/proc/sys/kernel/unprivileged_userns_clone", "0"))
        || (!is_root && is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"))
    {
        missing.push("userNamespaces".to_owned());
    }
    if setting("/proc/sys/kernel/seccomp/actions_avail").is_none() {
        missing.push("seccomp".to_owned());
    }
    if !missing.is_empty() {
        return SandboxReport { level: "none".to_owned(), enforced: Vec::new(), missing };
    }
    usual.report()
}

impl SandboxSetup {
    /// The report for a process that runs with this setup: a start fails if any listed part cannot be enforced.
    pub fn report(&self) -> SandboxReport {
        let abi = kernel_abi().unwrap_or(0);
        let mut missing = Vec::new();
        let mut enforced = vec!["ipc", "seccomp", "noNewPrivileges"];
        let by_namespaces = match self.mechanism {
            Mechanism::Namespaces => &mut enforced,
            Mechanism::Landlock => &mut missing,
        };
        by_namespaces.splice(..0, ["mounts", "processes"]);
        if self.mechanism == Mechanism::Landlock {
            missing.extend(["protectedNames", "serverSecrets"]);
        }
        missing.extend(self.allow.missing());
        if self.network == Network::Isolated {
            enforced.push("network");
        }
        for (part, since) in LandlockPart::ALL {
            let list = if abi >= since { &mut enforced } else { &mut missing };
            list.push(part.name());
        }
        // With the host's network, only Landlock hides abstract sockets.
        let is_full = abi >= 6 || self.network == Network::Isolated;
        let level = match self.mechanism {
            Mechanism::Landlock => "landlock",
            Mechanism::Namespaces if is_full => "full",
            Mechanism::Namespaces => "full, old Landlock",
        };
        let words = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
        SandboxReport {
            level: level.to_owned(),
            enforced: words(enforced),
            missing: words(missing),
        }
    }
}
