//! The report of `exec-server doctor`, on any machine.

use exec_server_testkit::TestExecutor;
use serde_json::Value;

#[tokio::test]
async fn the_doctor_reports_features_and_their_meaning() {
    let (code, text, errors) = run(&["doctor"]).await;
    assert_eq!(errors, "");
    let lines: Vec<&str> = text.lines().collect();
    for name in [
        "kernel",
        "user namespaces",
        "AppArmor",
        "own /proc",
        "seccomp",
        "Landlock",
        "limit of memory",
        "limit of CPU",
        "limit of pids",
        "sandbox's pids",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(name)), "no {name}: {text}");
    }
    // A missing feature is followed by its fix, in the same column.
    for (index, line) in lines.iter().enumerate() {
        if line.get(17..).is_some_and(|value| value.starts_with("no: ")) {
            assert_eq!(lines[index + 1].find("-> "), Some(17), "{text}");
        }
    }
    let level = lines.iter().find_map(|line| line.strip_prefix("sandbox level: "));
    assert_eq!(code, if level == Some("full") { 0 } else { 1 }, "{text}");
}

#[tokio::test]
async fn programs_get_the_same_as_json() {
    let (code, text, _) = run(&["doctor", "--json"]).await;
    let found: Value = serde_json::from_str(&text).unwrap();
    let level = found["level"].as_str().unwrap();
    assert!(["full", "full, old Landlock", "landlock", "none"].contains(&level));
    assert_eq!(code, if level == "full" { 0 } else { 1 });
    for name in [
        "sandbox",
        "landlockSandbox",
        "userNamespaces",
        "procMount",
        "seccomp",
        "landlock",
        "cgroup",
    ] {
        let finding = &found[name];
        assert_eq!(finding["works"] == true, finding["hint"].is_null(), "{name}: {finding}");
        assert_eq!(finding["works"] == true, finding["reason"].is_null(), "{name}: {finding}");
    }
    for name in ["memory", "cpu", "pids", "sandboxPids"] {
        let finding = &found["limits"][name];
        assert!(finding["works"].is_boolean(), "{name}: {finding}");
        assert_eq!(finding["works"] == true, finding["hint"].is_null(), "{name}: {finding}");
    }
    assert!(found["landlockAbi"].is_u64() && found["landlockMissing"].is_array());
    assert!(found["meaning"].as_str().unwrap().ends_with('.'));
}

#[tokio::test]
async fn the_doctor_prints_a_profile_for_apparmor() {
    let (code, text, errors) = run(&["doctor", "--apparmor-profile"]).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    let binary = exec_server_testkit::executor::binary();
    let head = format!("profile exec-server \"{}\" flags=(unconfined) {{", binary.display());
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "abi <abi/4.0>,",
        "include <tunables/global>",
        "",
        &head,
        "  userns,",
        "",
        "  include if exists <local/exec-server>",
        "}",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_cgroup_that_the_server_would_be_given_is_looked_at() {
    let (_, text, _) = run(&["doctor", "--cgroup", "/proc/self"]).await;
    let start = "limit of memory  no: /proc/self: /proc/self is not a cgroup (version 2) directory";
    let platform = "limit of memory  no: not supported on this platform yet";
    assert!(text.contains(if cfg!(target_os = "linux") { start } else { platform }), "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_doctor_reports_missing_namespaces() {
    // The seccomp filter prevents nested sandboxes.
    let binary = exec_server_testkit::executor::binary();
    let (code, text, _) =
        run(&["sandbox", "--policy", "read-only", "--", binary.to_str().unwrap(), "doctor"]).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("user namespaces  no: a user namespace: Operation not permitted"));
    assert!(text.contains("trial sandbox    no: could not set up the sandbox (namespaces)"));
    assert!(text.contains("nothing runs weaker than asked"), "{text}");
}

async fn run(arguments: &[&str]) -> (i32, String, String) {
    TestExecutor::builder().args(arguments).run().await
}
