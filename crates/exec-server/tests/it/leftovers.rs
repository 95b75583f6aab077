//! Processes that outlive a server and its guardian are ended by the next server, also where `/proc` conceals them.

use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use exec_server_testkit::executor::copy_program;
use exec_server_testkit::process_count::state;
use exec_server_testkit::{TestExecutor, eventually};
use serde_json::json;

use crate::files::host::{NOBODY, as_nobody};

/// A server with another state directory has the pid of one that is gone, so a tag does not tell whose a process is.
#[tokio::test]
async fn processes_that_may_belong_to_a_running_server_are_named_and_left() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state_dir = |dir: &tempfile::TempDir| dir.path().to_str().unwrap().to_owned();
    let running = TestExecutor::start_with(&["--state-dir", &state_dir(&one)]).await;
    let mut client = running.client().await;
    let pid_file = one.path().join("pid");
    let script = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000", pid_file.display());
    client.start("p", &["sh", "-c", &script], json!({})).await.unwrap();
    eventually("the process runs", || pid_file.exists()).await;
    let pid: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    // Its record, without a lock, is that of a server that was killed.
    let record = format!("servers/{}", running.serving_pid());
    std::fs::create_dir(other.path().join("servers")).unwrap();
    std::fs::copy(one.path().join(&record), other.path().join(&record)).unwrap();
    let builder = TestExecutor::builder().args(&["--state-dir", &state_dir(&other)]);
    let mut next = builder.env("RUST_LOG", "warn").piped_stderr().start().await;
    let line = loop {
        let line = next.next_stderr_line().await.expect("a warning comes");
        if line.contains("its pid is in use again") {
            break line;
        }
    };
    assert!(line.contains(&pid.to_string()) && line.contains("end them manually"), "{line}");
    assert!(state(pid).is_some_and(|state| state != 'Z'), "{pid} was ended");
}

/// A program without read permission is not dumpable, so an ordinary user sees neither its namespaces nor its descriptors.
#[tokio::test]
async fn a_process_that_is_not_dumpable_is_ended_as_well() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (program, own) = (dir.path().join("sleep"), dir.path().join("state"));
    copy_program(Path::new("/bin/sleep"), &program);
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o111)).unwrap();
    std::fs::create_dir(&own).unwrap();
    if rustix::process::geteuid().is_root() {
        lchown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let start = || {
        let mut builder = TestExecutor::builder();
        builder.command().arg("--state-dir").arg(&own);
        as_nobody(builder)
    };
    let Some(builder) = start() else { return };
    let mut gone = builder.start().await;
    let mut client = gone.client().await;
    let pid_file = own.join("pid");
    let script = format!(
        "(setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec {1} 1000' </dev/null >/dev/null 2>&1 &); exec sleep 1000",
        pid_file.display(),
        program.display(),
    );
    client.start("p", &["sh", "-c", &script], json!({})).await.unwrap();
    eventually("the daemon runs", || pid_file.exists()).await;
    let pid: i32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    eventually("the daemon is the program", || comm() == "sleep\n").await;
    gone.cut_power().await;
    assert!(state(pid).is_some_and(|state| state != 'Z'), "the daemon outlives both");
    let _next = start().expect("the first server was started").start().await;
    eventually("the next server ends the daemon", || state(pid).is_none_or(|it| it == 'Z')).await;
}
