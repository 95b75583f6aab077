//! Per-process cgroups (version 2): limits for whole trees, and removal of their directories.
//!
//! Tests skip with a message where the kernel lacks a feature.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exec_server_testkit::executor::Signal;
use exec_server_testkit::{ProcessMarker, TestClient, TestExecutor, eventually};
use rustix::process::{Pid, kill_process};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// Buffers all its input in memory, once the test opens the gate.
pub const HOG: &str = "echo up; read _; exec tail /dev/zero";

#[tokio::test]
async fn a_tree_beyond_its_memory_is_killed_as_a_whole_and_reported() {
    let Some((cgroup, server)) = server_with("memory").await else { return };
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let mut more = process_count.params();
    more["pipeStdin"] = json!(true);
    more["limits"] = json!({"memoryBytes": 64 * MIB});
    // Without a group kill, the rest of the tree would keep running.
    let script = format!("setsid sleep 1000 & sh -c '{HOG}'; echo survived");
    let started = client.start("p", &["/bin/sh", "-c", &script], more).await.unwrap();
    let limits = json!({"applied": {"memoryBytes": 64 * MIB}, "by": {"memoryBytes": "cgroup"}});
    assert_eq!(started["limits"], limits);
    client.wait_output("p", "up").await;
    // Send no byte before the limit is in place.
    assert_eq!(cgroup.only_child("memory.max"), (64 * MIB).to_string());
    client.write("p", "w", "\n").await.unwrap();
    let finished = client.finish("p").await;
    assert_eq!(finished.exited["reason"], "oomKilled", "{finished:?}");
    assert_eq!((finished.exit_code, finished.text().as_str()), (137, ""));
    process_count.gone().await;
    // A process that another program kills is not reported as out of memory.
    let killed = client.sh("q", "kill -KILL $$").await;
    assert_eq!(killed.exited["reason"], "signaled");
}

#[tokio::test]
async fn the_children_of_a_tree_are_counted_by_its_cgroup() {
    let Some((cgroup, server)) = server_with("pids").await else { return };
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let mut more = process_count.params();
    more["limits"] = json!({"pids": 16});
    let script = "i=1; while [ $i -lt 40 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); echo $i; done; echo all";
    let started = client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
    assert_eq!(started["limits"]["by"], json!({"pids": "cgroup"}));
    let finished = client.finish("p").await;
    assert_eq!(finished.text().lines().last(), Some("16"), "{finished:?}");
    client.terminate("p", Some(0)).await;
    process_count.gone().await;
    assert_eq!(cgroup.only_child("pids.max"), "16");
}

#[tokio::test]
async fn the_limits_of_a_command_line_are_those_of_its_tree() {
    let Some((cgroup, server)) = server_with("pids").await else { return };
    let run = ["run", "-d", "--pids", "16", "--name", "p", server.url(), "--", "sleep", "1000"];
    let (code, out, err) = TestExecutor::builder().args(&run).run().await;
    assert_eq!((code, out.as_str()), (0, "p\n"), "{err}");
    assert_eq!(cgroup.only_child("pids.max"), "16");
}

#[tokio::test]
async fn time_on_processors_is_handed_out_by_the_cgroup() {
    let Some((cgroup, server)) = server_with("cpu").await else { return };
    let mut client = server.client().await;
    let more = json!({"limits": {"cpuPercent": 150}, "pipeStdin": true});
    let started = client.start("p", &["/bin/cat"], more).await.unwrap();
    assert_eq!(started["limits"]["applied"], json!({"cpuPercent": 150}));
    assert_eq!(cgroup.only_child("cpu.max"), "150000 100000");
    client.terminate("p", None).await;
    client.finish("p").await;
}

#[tokio::test]
async fn limits_of_the_operator_cap_those_of_a_request() {
    let Some(cgroup) = TestCgroup::with_controller("pids") else { return };
    let path = cgroup.path.to_str().unwrap();
    let server = TestExecutor::start_with(&["--cgroup", path, "--max-pids", "100"]).await;
    let mut client = server.client().await;
    for (limits, pids) in
        [(json!({}), 100), (json!({"pids": 50}), 50), (json!({"pids": 5000}), 100)]
    {
        let more = json!({"limits": limits});
        let started = client.start("p", &["/bin/true"], more).await.unwrap();
        assert_eq!(started["limits"]["applied"]["pids"], pids);
        client.finish("p").await;
        client = server.client().await;
    }
}

#[tokio::test]
async fn a_bound_of_the_operator_that_cannot_be_held_keeps_the_server_from_starting() {
    let Some(cgroup) = TestCgroup::make() else { return };
    if has_controller("memory") {
        return skip("the memory controller is here");
    }
    let path = cgroup.path.to_str().unwrap();
    let arguments = ["--cgroup", path, "--max-memory", "100000000"];
    let (code, _, stderr) = TestExecutor::builder().args(&arguments).run().await;
    assert_eq!(code, 1);
    assert!(stderr.contains("limits.memoryBytes cannot be enforced here"), "{stderr}");
    assert!(cgroup.children().is_empty());
}

#[tokio::test]
async fn a_server_inside_of_its_cgroup_makes_room_and_leaves_nothing() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let path = cgroup.path.to_str().unwrap().to_owned();
    let builder = TestExecutor::builder().after(&format!("echo $$ > {path}/cgroup.procs"));
    let mut server = builder.args(&["--cgroup", &path]).start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    if has_controller("pids") {
        let more = json!({"limits": {"pids": 20}});
        client.start("q", &["/bin/sleep", "1000"], more).await.unwrap();
    }
    kill(server.serving_pid());
    server.wait().await;
    eventually("no group is left", || cgroup.children().is_empty()).await;
}

#[tokio::test]
async fn a_server_that_was_killed_leaves_no_directory() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let path = cgroup.path.to_str().unwrap().to_owned();
    let mut server = TestExecutor::start_with(&["--cgroup", &path]).await;
    let mut client = server.client().await;
    let process_count = start_with_daemon(&mut client, "p").await;
    assert_eq!(cgroup.children().len(), 1);
    kill(server.serving_pid());
    server.wait().await;
    process_count.gone().await;
    assert!(cgroup.children().is_empty(), "{:?}", cgroup.children());
}

#[tokio::test]
async fn cgroups_that_were_left_behind_are_removed_by_the_next_server() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let path = cgroup.path.to_str().unwrap().to_owned();
    let mut server = TestExecutor::start_with(&["--cgroup", &path]).await;
    let mut client = server.client().await;
    let process_count = start_with_daemon(&mut client, "p").await;
    server.cut_power().await;
    let left = cgroup.children();
    assert_eq!(left.len(), 1, "{left:?}");
    fs::write(left[0].join("cgroup.kill"), "1").unwrap();
    process_count.gone().await;
    eventually("all have left it", || members(&left[0]).is_empty()).await;
    let next = TestExecutor::start_with(&["--cgroup", &path]).await;
    assert!(!left[0].exists());
    drop(next);
}

#[tokio::test]
async fn a_group_whose_daemon_outlives_the_session_end_is_removed() {
    let Some(cgroup) = TestCgroup::make() else { return };
    let path = cgroup.path.to_str().unwrap().to_owned();
    let arguments = ["--cgroup", &path, "--session-linger", "0"];
    let server = TestExecutor::start_with(&arguments).await;
    let mut client = server.client().await;
    let process_count = start_with_daemon(&mut client, "p").await;
    // A cgroup that the process created does not prevent the removal.
    fs::create_dir(cgroup.children()[0].join("inner")).unwrap();
    drop(client);
    process_count.gone().await;
    eventually("no group is left", || cgroup.children().is_empty()).await;
    server.client().await;
}

#[tokio::test]
async fn when_memory_runs_out_a_child_is_killed_and_not_the_server() {
    let Some(group) = MemoryGroup::make(256 * MIB) else { return };
    let server = TestExecutor::builder().after(&group.join_command()).start().await;
    let mut client = server.client().await;
    let more = json!({"pipeStdin": true});
    client.start("p", &["/bin/sh", "-c", HOG], more).await.unwrap();
    client.wait_output("p", "up").await;
    assert!(members(&group.path).len() >= 3, "the bound is there: {:?}", members(&group.path));
    client.write("p", "w", "\n").await.unwrap();
    let finished = client.finish("p").await;
    assert_eq!(finished.exited["reason"], "oomKilled", "{finished:?}");
    assert_eq!(finished.exited["signal"], "SIGKILL");
    assert_eq!(client.sh("q", "kill -KILL $$").await.exited["reason"], "signaled");
}

/// A closed process with a running daemon.
async fn start_with_daemon(client: &mut TestClient, id: &str) -> ProcessMarker {
    let process_count = ProcessMarker::new();
    let script = "setsid sleep 1000 </dev/null >/dev/null 2>&1 &";
    client.start(id, &["/bin/sh", "-c", script], process_count.params()).await.unwrap();
    assert_eq!(client.finish(id).await.exit_code, 0);
    process_count.counts(1).await;
    process_count
}

/// A server with a cgroup that has this controller; `None` if that is impossible here.
pub async fn server_with(controller: &str) -> Option<(TestCgroup, TestExecutor)> {
    let cgroup = TestCgroup::with_controller(controller)?;
    let server = TestExecutor::start_with(&["--cgroup", cgroup.path.to_str().unwrap()]).await;
    Some((cgroup, server))
}

/// A cgroup for this test, removed on drop.
pub struct TestCgroup {
    /// Its path.
    pub path: PathBuf,
}

impl TestCgroup {
    /// A cgroup without a required controller; `None` if that is impossible here.
    pub fn make() -> Option<Self> {
        let Some(root) = root() else {
            skip("no cgroup (version 2) is mounted");
            return None;
        };
        let path = root.join(unique_name());
        if let Err(error) = fs::create_dir(&path) {
            skip(&format!("no cgroup can be made in {}: {error}", root.display()));
            return None;
        }
        let cgroup = Self { path };
        if !cgroup.path.join("cgroup.kill").exists() {
            skip("this kernel cannot kill a cgroup");
            return None;
        }
        Some(cgroup)
    }

    /// A cgroup with this controller; `None` if that is impossible here.
    fn with_controller(name: &str) -> Option<Self> {
        if !has_controller(name) {
            skip(&format!("no cgroup (version 2) has the {name} controller here"));
            return None;
        }
        Self::make()
    }

    /// Its child cgroups.
    pub fn children(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).expect("it is ours");
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// Content of a file of its only child cgroup.
    pub fn only_child(&self, file: &str) -> String {
        let [child] = &self.children()[..] else { panic!("{:?}", self.children()) };
        fs::read_to_string(child.join(file)).unwrap().trim().to_owned()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // Processes of a failed test may still be exiting.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        for _ in 0..100 {
            for path in self.children() {
                let _ = fs::remove_dir(path);
            }
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A cgroup of either version with a memory limit, removed on drop.
struct MemoryGroup {
    path: PathBuf,
}

impl MemoryGroup {
    fn make(bytes: u64) -> Option<Self> {
        let (root, file) = if has_controller("memory") {
            (root()?, "memory.max")
        } else {
            (PathBuf::from("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
        };
        let group = Self { path: root.join(unique_name()) };
        let limited = fs::create_dir(&group.path)
            .and_then(|()| fs::write(group.path.join(file), bytes.to_string()));
        if let Err(error) = limited {
            skip(&format!("no group with a limit of memory can be made: {error}"));
            return None;
        }
        let _ = fs::write(group.path.join("memory.swap.max"), "0");
        Some(group)
    }

    fn join_command(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.path.display())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..500 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn root() -> Option<PathBuf> {
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    roots.into_iter().map(PathBuf::from).find(|root| root.join("cgroup.controllers").exists())
}

/// Whether groups below the root have this controller.
fn has_controller(name: &str) -> bool {
    let on = root().and_then(|root| fs::read_to_string(root.join("cgroup.subtree_control")).ok());
    on.is_some_and(|on| on.split_ascii_whitespace().any(|had| had == name))
}

fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("exec-server-test-{}-{count}", std::process::id())
}

fn members(group: &Path) -> Vec<String> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("a pid")
}

fn kill(victim: u32) {
    kill_process(pid(victim), Signal::KILL).expect("it is ours");
}

fn skip(reason: &str) {
    eprintln!("skipped, {reason}");
}
