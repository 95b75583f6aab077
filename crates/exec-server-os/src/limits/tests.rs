use super::*;

const ALL: Controllers = Controllers { memory: true, cpu: true, pids: true };
const INSIDE: SandboxMeans =
    SandboxMeans { pid_range: true, user_count: true, tmpfs_bytes: 256 << 20 };

fn means(cgroup: Controllers, sandbox: Option<SandboxMeans>) -> Means {
    Means { cgroup, sandbox, open_files: 4096, file_size: u64::MAX }
}

fn json(text: &str) -> ProcessLimits {
    serde_json::from_str(text).unwrap()
}

fn says(wanted: &str, means: &Means) -> String {
    match plan(&json(wanted), means) {
        Ok((_, report)) => serde_json::to_string(&report).unwrap(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn no_limit_is_set_without_a_request() {
    let (plan, report) = plan(&json("{}"), &means(ALL, None)).unwrap();
    assert_eq!(plan, LimitPlan::default());
    assert!(report.is_empty());
}

#[test]
fn a_sandbox_has_default_limits_by_the_best_mechanism() {
    let with = |cgroup, pid_range, user_count| {
        let inside = SandboxMeans { pid_range, user_count, ..INSIDE };
        plan(&json("{}"), &means(cgroup, Some(inside))).unwrap()
    };
    let (plan, report) = with(ALL, true, true);
    assert_eq!(
        (plan.cgroup.pids, plan.pid_range, plan.rlimits.processes),
        (Some(4098), None, None)
    );
    assert_eq!((report.applied.pids, report.applied.tmpfs_bytes), (Some(4096), Some(256 << 20)));
    let (plan, _) = with(Controllers::default(), true, true);
    assert_eq!(
        (plan.cgroup.pids, plan.pid_range, plan.rlimits.processes),
        (None, Some(4096), None)
    );
    let (plan, _) = with(Controllers::default(), false, true);
    assert_eq!(
        (plan.cgroup.pids, plan.pid_range, plan.rlimits.processes),
        (None, None, Some(4098))
    );
    let (plan, report) = with(Controllers::default(), false, false);
    assert_eq!((plan.cgroup.pids, plan.pid_range, plan.rlimits.processes), (None, None, None));
    assert_eq!(report.applied.pids, None);
}

#[test]
fn a_limit_that_cannot_be_enforced_is_rejected_by_name() {
    let nothing = means(Controllers::default(), None);
    for (wanted, start) in [
        (
            r#"{"memoryBytes":67108864}"#,
            "limits.memoryBytes cannot be enforced here: the server has no cgroup",
        ),
        (
            r#"{"cpuPercent":50}"#,
            "limits.cpuPercent cannot be enforced here: the server has no cgroup",
        ),
        (r#"{"pids":64}"#, "limits.pids cannot be enforced here: without a sandbox only a cgroup"),
        (r#"{"tmpfsBytes":65536}"#, "limits.tmpfsBytes cannot be enforced here: only a sandbox"),
    ] {
        let said = says(wanted, &nothing);
        assert!(said.starts_with(start), "{said}");
    }
    let inside = means(
        Controllers::default(),
        Some(SandboxMeans { pid_range: false, user_count: false, ..INSIDE }),
    );
    assert!(
        says(r#"{"pids":64}"#, &inside)
            .starts_with("limits.pids cannot be enforced here: the server has no")
    );
}

#[test]
fn cgroups_limit_whole_trees_and_rlimits_each_process() {
    let wanted = r#"{"memoryBytes":67108864,"cpuPercent":50,"pids":64,"fileSizeBytes":1000,"openFiles":9999}"#;
    assert_eq!(
        says(wanted, &means(ALL, None)),
        r#"{"applied":{"memoryBytes":67108864,"cpuPercent":50,"pids":64,"fileSizeBytes":1000,"openFiles":4096},"#
            .to_owned()
            + r#""by":{"memoryBytes":"cgroup","cpuPercent":"cgroup","pids":"cgroup","fileSizeBytes":"rlimit","openFiles":"rlimit"}}"#
    );
    let (plan, _) = plan(&json(wanted), &means(ALL, Some(INSIDE))).unwrap();
    let cgroup = CgroupLimits { memory: Some(64 << 20), cpu_percent: Some(50), pids: Some(66) };
    assert_eq!(plan.cgroup, cgroup);
    let rlimits = Rlimits { processes: None, open_files: Some(4096), file_size: Some(1000) };
    assert_eq!(plan.rlimits, rlimits);
}
