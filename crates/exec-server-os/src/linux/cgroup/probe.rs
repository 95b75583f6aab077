//! Doctor report on limits: which are enforceable, and how to enable the others.

use std::path::{Path, PathBuf};

use super::{controllers, find_delegated, mount_point, own_group, try_dividing};
use crate::limits::{Controllers, SandboxMeans};
use crate::probe::{Finding, LimitProbe};

/// Checks the cgroup that a server would use; leaves it unchanged. `sandbox` is what a sandbox enforces by itself.
pub fn probe(cgroup: Option<&Path>, sandbox: SandboxMeans) -> LimitProbe {
    let found = match cgroup {
        Some(path) => Ok(path.to_owned()),
        None => find_delegated().ok_or_else(no_cgroup),
    };
    let group = found.and_then(usable);
    let finding = |has: fn(&Controllers) -> bool, name: &str| match &group {
        Ok((_, controllers)) if has(controllers) => Finding::works(),
        Ok((path, _)) => without_controller(path, name),
        Err(missing) => missing.clone(),
    };
    let pids = finding(|controllers| controllers.pids, "pids");
    LimitProbe {
        sandbox_pids: sandbox_pids(&pids, sandbox),
        memory: finding(|controllers| controllers.memory, "memory"),
        cpu: finding(|controllers| controllers.cpu, "cpu"),
        pids,
    }
}

fn usable(path: PathBuf) -> Result<(PathBuf, Controllers), Finding> {
    match try_dividing(&path) {
        Ok(()) => {
            let controllers = controllers::available(&path);
            Ok((path, controllers))
        }
        Err(error) => {
            let reason = format!("{}: {error}", path.display());
            Err(Finding::missing(reason, "give the server a cgroup that its user may divide"))
        }
    }
}

fn no_cgroup() -> Finding {
    if mount_point().is_none() {
        return Finding::missing(
            "no cgroup (version 2) file system is mounted",
            "boot with systemd.unified_cgroup_hierarchy=1; in a container, mount cgroup2 at /sys/fs/cgroup",
        );
    }
    // A cgroup namespace shows its own root as `/`.
    if own_group().is_some_and(|own| own.is_empty()) {
        return Finding::missing(
            "this process is in the root of its cgroup namespace, which has no delegation marker",
            "name a cgroup with --cgroup DIR; in a container, with --cgroupns=private and a writable cgroup mount, \
             that is --cgroup /sys/fs/cgroup",
        );
    }
    Finding::missing(
        "no cgroup (version 2) was delegated to this process",
        "start the server with one: systemd-run --user --scope -p Delegate=yes exec-server …, or Delegate=yes in its unit",
    )
}

fn without_controller(path: &Path, name: &str) -> Finding {
    let reason = format!("{} does not have the {name} controller", path.display());
    let is_old = std::fs::read_to_string("/proc/self/cgroup")
        .is_ok_and(|text| text.lines().any(|line| in_old_hierarchy(line, name)));
    let hint = if is_old {
        "cgroup version 1 uses it; boot with systemd.unified_cgroup_hierarchy=1".to_owned()
    } else {
        format!("delegate it: Delegate={name} in the unit, and in those above (user@.service)")
    };
    Finding::missing(reason, hint)
}

/// Whether this line of `/proc/self/cgroup` names a version 1 hierarchy with the controller.
fn in_old_hierarchy(line: &str, name: &str) -> bool {
    line.split(':').nth(1).is_some_and(|names| names.split(',').any(|used| used == name))
}

fn sandbox_pids(by_cgroup: &Finding, inside: SandboxMeans) -> Finding {
    if by_cgroup.works || inside.pid_range || inside.user_count {
        return Finding::works();
    }
    Finding::missing(
        "nothing bounds the processes of a sandbox, so a fork bomb in one can fill the machine",
        "use Linux 6.14 or later, run the server as an ordinary user, or give it a cgroup with the pids controller",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_version_one_are_recognised() {
        assert!(in_old_hierarchy("8:pids:/", "pids"));
        assert!(in_old_hierarchy("4:cpu,cpuacct:/a:b", "cpu"));
        assert!(!in_old_hierarchy("4:cpu,cpuacct:/pids", "pids"));
        assert!(!in_old_hierarchy("0::/pids", "pids"));
    }

    #[test]
    fn every_missing_limit_has_a_reason_and_a_hint() {
        for cgroup in [None, Some(Path::new("/proc/self"))] {
            let LimitProbe { memory, cpu, pids, sandbox_pids } =
                probe(cgroup, SandboxMeans::default());
            for finding in [memory, cpu, pids, sandbox_pids] {
                assert_eq!(finding.works, finding.reason.is_none() && finding.hint.is_none());
            }
        }
        assert!(!probe(Some(Path::new("/proc/self")), SandboxMeans::default()).memory.works);
    }
}
