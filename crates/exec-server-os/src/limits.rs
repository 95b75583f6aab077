//! Chooses the mechanism for each requested resource limit, without I/O.
//!
//! | limit | enforced by |
//! |---|---|
//! | memory, CPU | a cgroup, the only mechanism that counts a whole tree |
//! | processes | a cgroup; without one, the pid range of the sandbox's pid namespace, or `RLIMIT_NPROC` in it |
//! | size of files, open files | resource limits, which every process inherits |
//! | `/dev/shm` | the size of the sandbox's own tmpfs |
//!
//! A limit that cannot be enforced is rejected, because the caller relies on it.

use exec_server_protocol::process::{LimitHolder, LimitName, LimitsReport, ProcessLimits};
use serde::{Deserialize, Serialize};

/// Default limit on processes and threads of a sandbox: enough for parallel builds and browsers, too few to
/// exhaust the process ids of a machine.
pub const DEFAULT_SANDBOX_PIDS: u64 = 4096;

/// Enforcement mechanisms that are available for one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Means {
    /// Controllers that a cgroup for this process would have.
    pub cgroup: Controllers,
    /// Mechanisms inside the sandbox; `None` without a sandbox.
    pub sandbox: Option<SandboxMeans>,
    /// The hard limit on open files; a higher request is lowered to it.
    pub open_files: u64,
    /// The hard limit on file size; a higher request is lowered to it.
    pub file_size: u64,
}

/// Enabled controllers of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Controllers {
    /// `memory.max` can be set.
    pub memory: bool,
    /// `cpu.max` can be set.
    pub cpu: bool,
    /// `pids.max` can be set.
    pub pids: bool,
}

/// Limits that a sandbox can enforce without a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxMeans {
    /// The kernel supports a maximum pid per pid namespace.
    pub pid_range: bool,
    /// `RLIMIT_NPROC` counts the sandbox separately and applies to its user.
    pub user_count: bool,
    /// Default size of its `/dev/shm`.
    pub tmpfs_bytes: u64,
}

/// The limits to set for a process, by mechanism.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitPlan {
    /// Set in the cgroup of the process.
    pub cgroup: CgroupLimits,
    /// Set in the process itself, inside its sandbox if it has one.
    pub rlimits: Rlimits,
    /// Process ids of a sandbox, not counting its first process.
    pub pid_range: Option<u64>,
    /// Size of the sandbox's `/dev/shm`.
    pub tmpfs_bytes: Option<u64>,
}

/// Limits to set in a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Bytes.
    pub memory: Option<u64>,
    /// 100 is one CPU.
    pub cpu_percent: Option<u64>,
    /// Processes and threads, including the launcher and the first process of a sandbox.
    pub pids: Option<u64>,
}

/// Resource limits to set; no limit is ever raised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimits {
    /// Processes and threads of this user in this user namespace.
    pub processes: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Maximum size in bytes of a file that is written.
    pub file_size: Option<u64>,
}

/// A requested limit that no available mechanism enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limits.{} cannot be enforced here: {reason}; {hint}", limit.name())]
pub struct LimitUnavailable {
    /// The requested limit.
    pub limit: LimitName,
    /// The missing mechanism.
    pub reason: &'static str,
    /// How to make the mechanism available.
    pub hint: &'static str,
}

/// The launcher and the first process inside; the cgroup and `RLIMIT_NPROC` count both, the pid range does not.
const AROUND_A_SANDBOX: u64 = 2;

/// Chooses the mechanism for each limit, and reports the choice.
pub fn plan(
    wanted: &ProcessLimits,
    means: &Means,
) -> Result<(LimitPlan, LimitsReport), LimitUnavailable> {
    let mut plan = LimitPlan::default();
    let mut report = LimitsReport::default();
    if let Some(bytes) = wanted.memory_bytes {
        needs_cgroup(means.cgroup.memory, LimitName::MemoryBytes)?;
        plan.cgroup.memory = Some(bytes);
        report.add(LimitName::MemoryBytes, bytes, LimitHolder::Cgroup);
    }
    if let Some(percent) = wanted.cpu_percent {
        needs_cgroup(means.cgroup.cpu, LimitName::CpuPercent)?;
        plan.cgroup.cpu_percent = Some(percent);
        report.add(LimitName::CpuPercent, percent, LimitHolder::Cgroup);
    }
    let default_pids = means.sandbox.map(|_| DEFAULT_SANDBOX_PIDS);
    if let Some(pids) = wanted.pids.or(default_pids) {
        match (plan_pids(pids, means, &mut plan), wanted.pids) {
            (Some(holder), _) => report.add(LimitName::Pids, pids, holder),
            (None, Some(_)) => return Err(no_pids(means)),
            // Not requested, so the inherited limit stays.
            (None, None) => {}
        }
    }
    if let Some(bytes) = wanted.file_size_bytes {
        let bytes = bytes.min(means.file_size);
        plan.rlimits.file_size = Some(bytes);
        report.add(LimitName::FileSizeBytes, bytes, LimitHolder::Rlimit);
    }
    if let Some(count) = wanted.open_files {
        let count = count.min(means.open_files);
        plan.rlimits.open_files = Some(count);
        report.add(LimitName::OpenFiles, count, LimitHolder::Rlimit);
    }
    match (means.sandbox, wanted.tmpfs_bytes) {
        (Some(sandbox), wanted) => {
            let bytes = wanted.unwrap_or(sandbox.tmpfs_bytes);
            plan.tmpfs_bytes = Some(bytes);
            report.add(LimitName::TmpfsBytes, bytes, LimitHolder::Tmpfs);
        }
        (None, Some(_)) => {
            return Err(LimitUnavailable {
                limit: LimitName::TmpfsBytes,
                reason: "only a sandbox has a /dev/shm of its own",
                hint: "start the process with a sandbox, or limit its memory",
            });
        }
        (None, None) => {}
    }
    Ok((plan, report))
}

fn plan_pids(pids: u64, means: &Means, plan: &mut LimitPlan) -> Option<LimitHolder> {
    let around = means.sandbox.map_or(0, |_| AROUND_A_SANDBOX);
    let sandbox = means.sandbox.unwrap_or_default();
    if means.cgroup.pids {
        plan.cgroup.pids = Some(pids + around);
        Some(LimitHolder::Cgroup)
    } else if sandbox.pid_range {
        plan.pid_range = Some(pids);
        Some(LimitHolder::PidNamespace)
    } else if sandbox.user_count {
        plan.rlimits.processes = Some(pids + around);
        Some(LimitHolder::Rlimit)
    } else {
        None
    }
}

fn needs_cgroup(has: bool, limit: LimitName) -> Result<(), LimitUnavailable> {
    let reason = "the server has no cgroup (version 2) with this controller";
    if has { Ok(()) } else { Err(LimitUnavailable { limit, reason, hint: CGROUP_HINT }) }
}

fn no_pids(means: &Means) -> LimitUnavailable {
    let reason = match means.sandbox {
        None => {
            "without a sandbox only a cgroup counts the processes of one tree, and the server has none that does"
        }
        Some(_) => {
            "the server has no cgroup (version 2) that counts processes, and neither this kernel nor this user lets a \
             sandbox be counted apart"
        }
    };
    LimitUnavailable { limit: LimitName::Pids, reason, hint: CGROUP_HINT }
}

/// How to start the server with a usable cgroup.
pub const CGROUP_HINT: &str = "start the server with one: `systemd-run --user --scope -p Delegate=yes exec-server …`, \
                               Delegate=yes in its unit, or --cgroup DIR; `exec-server doctor` tells what is missing";

#[cfg(test)]
mod tests;
