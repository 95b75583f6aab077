//! The sandbox on Linux: namespaces and mounts made in process, Landlock and seccomp on top.
//!
//! | look here | for |
//! |---|---|
//! | [`launch`] | the server's side of a sandboxed start |
//! | [`zygote`], [`packet`] | the process that launchers are copied from, and how it is asked |
//! | [`prepared`], [`spares`] | a sandbox that waits to be told what to run, and those that are made ahead |
//! | [`launcher`], [`inside`] | the process between the server and the command, and pid 1 of the sandbox |
//! | [`set_up_time`] | how long all of that may take |
//! | [`view`] | what of the file system is seen, and how that is mounted |
//! | [`ending`] | how the command ended, told by pid 1 |
//! | [`undertaker`] | mounts and launchers that are waited for after the end |
//! | [`namespaces`] | what a sandbox has of its own |
//! | [`network`] | the loopback that sandboxes without a network share |
//! | [`connect_back`] | whether a connection comes from inside |
//! | [`confinement`] | what the command loses between fork and exec: |
//! | [`limits`] | … resource limits |
//! | [`privileges`] | … capabilities, securebits, `no_new_privs` |
//! | [`keyring`] | … the keyring of the server's session |
//! | [`landlock`] | … a second lock on the file rules, signals and abstract sockets |
//! | [`filter`] | … the system call filter, which [`bpf`] assembles |
//! | [`denials`] | what the filter refused, counted |
//! | [`worker`], [`file_worker`], [`wire`] | requests about files, carried out inside: both sides, and between them |
//! | [`probe`] | what of all this works here |
//! | [`step`] | the error that they share |

pub mod bpf;
pub mod confinement;
pub mod connect_back;
pub mod denials;
pub mod ending;
pub mod file_worker;
pub mod filter;
pub mod inside;
pub mod keyring;
pub mod landlock;
pub mod launch;
pub mod launcher;
pub mod limits;
pub mod namespaces;
pub mod network;
pub mod packet;
pub mod prepared;
pub mod privileges;
pub mod probe;
pub mod set_up_time;
pub mod spares;
pub mod step;
pub mod undertaker;
pub mod view;
pub mod wire;
pub mod worker;
pub mod zygote;

#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

use exec_server_protocol::process::SandboxReport;
use serde::{Deserialize, Serialize};

use landlock::{LandlockPart, kernel_abi};
use view::View;

use crate::sandbox::Allowances;

/// What confines a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSetup {
    /// What of the file system it sees.
    pub view: View,
    /// What it has of the network.
    pub network: Network,
    /// What keeps it closed.
    pub mechanism: Mechanism,
    /// What a command may do beyond the usual.
    pub allow: Allowances,
}

/// What keeps a sandbox closed, beside the system call filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mechanism {
    /// Namespaces and mounts, with Landlock as a second lock.
    #[default]
    Namespaces,
    /// Landlock alone, for what [`can_hold`](crate::sandbox::can_hold) allows.
    Landlock,
}

/// What a sandbox has of the machine's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Nothing but a loopback of its own.
    Isolated,
    /// All of it.
    Host,
}

/// What a sandbox will hold on this machine, as far as its settings tell; `probe` finds out for certain.
pub fn expected(mechanism: Mechanism, allow: Allowances) -> SandboxReport {
    let usual = SandboxSetup {
        view: View::new(view::Base::Everything),
        network: Network::Isolated,
        mechanism,
        allow,
    };
    // It was chosen because it works, and namespaces do not.
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
    /// What holds for a process that was started with this; had anything else failed, it would not run.
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
            missing.push("protectedNames");
        }
        missing.extend(self.allow.missing());
        if self.network == Network::Isolated {
            enforced.push("network");
        }
        for (part, since) in LandlockPart::ALL {
            let list = if abi >= since { &mut enforced } else { &mut missing };
            list.push(part.name());
        }
        // Without a network of its own nothing but Landlock hides abstract sockets.
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
