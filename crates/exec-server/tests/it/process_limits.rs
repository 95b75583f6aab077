//! `limits` in `process/start`: enforced limits are reported, others are rejected.

use exec_server_testkit::TestExecutor;
use serde_json::{Value, json};

#[tokio::test]
async fn file_limits_apply_to_every_process_and_are_in_the_reply() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let script = format!(
        "ulimit -n; head -c 5000 /dev/zero > {}; echo $?; wc -c < {}",
        file.display(),
        file.display()
    );
    let more = json!({"limits": {"fileSizeBytes": 1000, "openFiles": 50}});
    let started = client.start("p", &["/bin/sh", "-c", &script], more).await.unwrap();
    let expected = json!({"applied": {"fileSizeBytes": 1000, "openFiles": 50},
                          "by": {"fileSizeBytes": "rlimit", "openFiles": "rlimit"}});
    assert_eq!(started["limits"], expected);
    // 153 is 128 plus SIGXFSZ.
    assert_eq!(client.finish("p").await.text(), "50\n153\n1000\n");
}

#[tokio::test]
async fn without_limits_the_reply_has_none() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for limits in [Value::Null, json!({})] {
        let started = client.start("p", &["/bin/true"], json!({"limits": limits})).await.unwrap();
        assert_eq!(started, json!({"processId": "p", "sandboxType": "none"}));
        client.finish("p").await;
        client = server.client().await;
    }
}

#[tokio::test]
async fn limits_out_of_range_are_invalid() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for limits in [
        json!({"pids": 0}),
        json!({"pids": -1}),
        json!({"pids": 1.5}),
        json!({"pids": "many"}),
        json!({"memoryBytes": 1000}),
        json!({"memoryBytes": u64::MAX}),
        json!({"cpuPercent": 0}),
        json!({"openFiles": 2}),
        json!({"fileSizeBytes": 0}),
        json!({"tmpfsBytes": 1}),
        json!({"memory": 100_000_000}),
        json!(64),
    ] {
        let more = json!({"limits": limits});
        let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{limits}: {error}");
    }
    let error = client.start("p", &["/bin/true"], json!({"limits": {"pids": 0}})).await;
    assert_eq!(error.unwrap_err()["message"], "limits.pids must be between 1 and 4194304");
    // The rejected starts left the id free.
    assert_eq!(client.sh("p", "echo free").await.text(), "free\n");
}

#[tokio::test]
async fn a_limit_that_nothing_holds_is_refused_by_name_and_with_a_way_to_get_it() {
    let (_, text, _) = TestExecutor::builder().args(&["doctor", "--json"]).run().await;
    let found: Value = serde_json::from_str(&text).unwrap();
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let limits =
        [("memoryBytes", 100_000_000, "memory"), ("cpuPercent", 50, "cpu"), ("pids", 64, "pids")];
    for (name, value, controller) in limits {
        if found["limits"][controller]["works"] == true {
            eprintln!("skipped, {controller} can be limited here");
            continue;
        }
        let more = json!({"limits": {name: value}});
        let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
        assert_eq!(error["code"], -32600, "{error}");
        assert_eq!(error["data"]["kind"], "limit_unavailable");
        assert_eq!(error["data"]["limit"], name);
        assert!(error["data"]["hint"].as_str().unwrap().contains("Delegate=yes"), "{error}");
        let start = format!("limits.{name} cannot be enforced here: ");
        assert!(error["message"].as_str().unwrap().starts_with(&start), "{error}");
    }
    let more = json!({"limits": {"tmpfsBytes": 1_000_000}});
    let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
    assert_eq!(error["data"]["limit"], "tmpfsBytes");
}

#[tokio::test]
async fn children_are_killed_before_the_server_when_memory_runs_out() {
    let server = TestExecutor::start().await;
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", server.serving_pid()));
    let own: i32 = own.unwrap().trim().parse().unwrap();
    let mut client = server.client().await;
    let said = client.sh("p", "cat /proc/self/oom_score_adj").await;
    assert_eq!(said.text().trim().parse(), Ok((own + 200).clamp(0, 1000)));
}
