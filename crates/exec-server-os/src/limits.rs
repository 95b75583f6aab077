//! What limits a process: decided from what was asked for and what this machine has, without I/O.
//!
//! | limit | held by |
//! |---|---|
//! | memory, processors | a cgroup; nothing else counts a whole tree |
//! | processes | a cgroup; in a sandbox else its range of process ids, or the count of its user |
//! | size of files, open files | resource limits, which every process inherits |
//! | `/dev/shm` | the size of the sandbox's own |
//!
//! A limit that nothing holds is refused: whoever asks for one relies on it.

use exec_server_protocol::process::{LimitHolder, LimitName, LimitsReport, ProcessLimits};
use serde::{Deserialize, Serialize};

/// How many processes and threads a sandbox has if nobody says otherwise: enough for parallel builds and browsers, and
/// no way to take all process ids of a machine.
pub const DEFAULT_SANDBOX_PIDS: u64 = 4096;

/// What can hold limits for one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Means {
    /// What a cgroup of the process's own would limit.
    pub cgroup: Controllers,
    /// What is only there inside of a sandbox, if there is to be one.
    pub sandbox: Option<SandboxMeans>,
    /// The hard limit on open files, which nothing is raised above.
    pub open_files: u64,
    /// The hard limit on the size of files.
    pub file_size: u64,
}

/// What a cgroup can limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Memory.
    pub memory: bool,
    /// Time on processors.
    pub cpu: bool,
    /// Processes.
    pub pids: bool,
}

/// What a sandbox can limit by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxMeans {
    /// Its process ids come from a range of its own.
    pub pid_range: bool,
    /// Its processes are counted apart from others of the same user, and the count binds that user.
    pub user_count: bool,
    /// How large its `/dev/shm` is if nobody says otherwise.
    pub tmpfs_bytes: u64,
}

/// What to set for a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitPlan {
    /// In its cgroup.
    pub cgroup: CgroupLimits,
    /// In the process, or inside of its sandbox.
    pub rlimits: Rlimits,
    /// How many process ids a sandbox has beside its first.
    pub pid_range: Option<u64>,
    /// The size of a sandbox's `/dev/shm`.
    pub tmpfs_bytes: Option<u64>,
}

/// What to set in a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Bytes.
    pub memory: Option<u64>,
    /// 100 is one processor.
    pub cpu_percent: Option<u64>,
    /// Processes and threads, those around the command included.
    pub pids: Option<u64>,
}

/// Resource limits to set; none is ever raised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimits {
    /// Processes and threads of this user in this user namespace.
    pub processes: Option<u64>,
    /// Open descriptors of each process.
    pub open_files: Option<u64>,
    /// Bytes in each file that is written.
    pub file_size: Option<u64>,
}

/// A limit that nothing here holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("limits.{} cannot be held here: {reason}; {hint}", limit.name())]
pub struct LimitUnavailable {
    /// Which.
    pub limit: LimitName,
    /// Why not.
    pub reason: &'static str,
    /// How to get it.
    pub hint: &'static str,
}

/// The launcher and the first process inside, which every count but that of the range includes.
const AROUND_A_SANDBOX: u64 = 2;

/// Finds what holds each limit, and says so.
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
            // Nobody asked for it, so the process runs as it would have without this server.
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

/// How to get a cgroup that limits.
pub const CGROUP_HINT: &str = "start the server with one: `systemd-run --user --scope -p Delegate=yes exec-server …`, \
                               Delegate=yes in its unit, or --cgroup DIR; `exec-server doctor` tells what is missing";

#[cfg(test)]
mod tests;
