//! The report of what a sandbox enforces, and what this machine's settings predict.

use exec_server_protocol::process::SandboxReport;

use super::landlock::{LandlockPart, kernel_abi};
use crate::policy::Allowances;
use crate::setup::{Base, Mechanism, Network, RootfsSpec, SandboxSetup};

/// The report that this machine's settings predict; `probe` verifies it by trying.
pub fn expected(mechanism: Mechanism, allow: Allowances) -> SandboxReport {
    let usual = SandboxSetup {
        view: RootfsSpec::new(Base::Everything),
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
            // Landlock cannot take a file out of a granted directory. Policies that read `/` grant the state directory,
            // so that a refusal of such policies would leave this level without a use: the operator is told instead.
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
