//! Finds out by trying what this machine can enforce.

mod namespaces;

use std::fs;
use std::path::Path;

use exec_server_os::linux::cgroup::{self, CgroupParent};

use self::namespaces::{Stuck, Trial};
use super::landlock::{LandlockPart, kernel_abi};
use crate::probe::{Finding, LimitProbe, Probe};

/// Which limits can be enforced in the cgroup that a server would use.
pub fn probe_limits(cgroup: Option<&Path>) -> LimitProbe {
    cgroup::probe::probe(cgroup, super::limits::sandbox_capabilities())
}

/// Runs all probes; takes a few milliseconds and leaves nothing behind.
pub fn probe() -> Probe {
    let with_user = namespaces::attempt(Trial::WithUserNamespace);
    let without_user = namespaces::attempt(Trial::WithoutUserNamespace);
    let landlock_abi = kernel_abi().unwrap_or(0);
    let missing = LandlockPart::ALL.into_iter().filter(|(_, since)| *since > landlock_abi);
    Probe {
        kernel_release: kernel_release(),
        user_namespaces: user_namespaces(&with_user),
        privileged_namespaces: privileged_namespaces(&without_user),
        proc_mount: proc_mount(&with_user, &without_user),
        max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
        apparmor_restricts_user_namespaces: number(APPARMOR).map(|value| value != 0),
        seccomp: seccomp(),
        seccomp_notify: seccomp_notify(),
        landlock_abi,
        landlock: landlock(),
        landlock_missing: missing.map(|(part, _)| part.name()).collect(),
        cgroup: cgroup(),
    }
}

const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";

fn user_namespaces(result: &Result<(), Stuck>) -> Finding {
    let Some(stuck) = result.as_ref().err().filter(|stuck| !stuck.is_at_proc()) else {
        return Finding::works();
    };
    let hint = if number("/proc/sys/user/max_user_namespaces") == Some(0) {
        "allow them: sysctl user.max_user_namespaces=10000"
    } else if number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        "allow them: sysctl kernel.unprivileged_userns_clone=1"
    } else if number(APPARMOR) == Some(1) {
        "give exec-server an AppArmor profile (exec-server doctor --apparmor-profile prints it and where it goes), \
         or: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        "in a container, allow unshare and mount in its seccomp and AppArmor profiles \
         (Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined)"
    };
    Finding::missing(stuck.to_string(), hint)
}

fn privileged_namespaces(result: &Result<(), Stuck>) -> Finding {
    match result {
        Err(stuck) if !stuck.is_at_proc() => Finding::missing(
            stuck.to_string(),
            "needed only where user namespaces do not work: run the server with CAP_SYS_ADMIN",
        ),
        _ => Finding::works(),
    }
}

fn proc_mount(with_user: &Result<(), Stuck>, without_user: &Result<(), Stuck>) -> Finding {
    match (with_user, without_user) {
        (Ok(()), _) | (_, Ok(())) => Finding::works(),
        (Err(stuck), _) => Finding::missing(
            stuck.to_string(),
            "in a container, do not mask /proc (Docker: --security-opt systempaths=unconfined); \
             without it a command sees a minimal /proc",
        ),
    }
}

fn seccomp() -> Finding {
    let needed = [libc::SECCOMP_RET_ERRNO, libc::SECCOMP_RET_KILL_PROCESS];
    match needed.into_iter().try_for_each(action_available) {
        Ok(()) => Finding::works(),
        Err(error) => Finding::missing(
            error.to_string(),
            "use a kernel with CONFIG_SECCOMP_FILTER, Linux 4.14 or later",
        ),
    }
}

fn seccomp_notify() -> Finding {
    match action_available(libc::SECCOMP_RET_USER_NOTIF) {
        Ok(()) => Finding::works(),
        Err(error) => Finding::missing(error.to_string(), "use Linux 5.0 or later"),
    }
}

fn action_available(action: u32) -> std::io::Result<()> {
    let operation = libc::SECCOMP_GET_ACTION_AVAIL;
    // SAFETY: the kernel only reads the action, a live local.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0, &raw const action) };
    exec_server_os::linux::check(result as libc::c_int).map(drop)
}

fn landlock() -> Finding {
    match kernel_abi() {
        Ok(abi) if abi >= 6 => Finding::works(),
        Ok(abi) => Finding::missing(
            format!("Landlock is here in version {abi}, without signals and abstract sockets"),
            "use Linux 6.12 or later",
        ),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Finding::missing(
            "Landlock is not switched on",
            "add landlock to the kernel's lsm= parameter (see /sys/kernel/security/lsm)",
        ),
        Err(error) => Finding::missing(
            format!("the kernel has no Landlock: {error}"),
            "use a kernel with CONFIG_SECURITY_LANDLOCK, Linux 6.12 or later; \
             in a container, allow the landlock calls in its seccomp profile",
        ),
    }
}

fn cgroup() -> Finding {
    match CgroupParent::delegated() {
        Some(_) => Finding::works(),
        None => Finding::missing(
            "no cgroup (version 2) was delegated to this process",
            "start the server with one: systemd-run --user --scope -p Delegate=yes exec-server …, \
             or Delegate=yes in its unit",
        ),
    }
}

fn kernel_release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".to_owned(), |release| release.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
