//! Kills a server before each system call of a write, one call later in each run.

use std::path::Path;
use std::process::Stdio;

use exec_server_testkit::fs_fixture::on_each_file_system;
use exec_server_testkit::{DEADLINE, TestExecutor};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::crashing::{requests, work};
use super::host::{How, names, skip};

/// System calls that a write may use.
const CALLS: [&str; 12] = [
    "openat",
    "statx",
    "pwrite64",
    "fallocate",
    "copy_file_range",
    "ftruncate",
    "fchown",
    "fsetxattr",
    "fchmod",
    "linkat",
    "renameat",
    "renameat2",
];

/// More calls of each kind than a write makes.
const MAX_STEPS: usize = 60;

#[tokio::test]
async fn a_write_that_is_stopped_at_any_step_has_happened_or_not() {
    if !Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .await
        .is_ok_and(|s| s.success())
    {
        return skip("only strace can stop a server at a step");
    }
    on_each_file_system(async |fixture| {
        let path = fixture.path("f");
        // Of different length, so that a mixture is detected.
        let (old, new) = (vec![b'o'; 90_000], vec![b'n'; 40_000]);
        for how in How::ALL {
            for before in [None, Some(&old)] {
                let mut stopped = 0;
                for call in CALLS {
                    for step in 1..MAX_STEPS {
                        let _ = std::fs::remove_file(&path);
                        if let Some(before) = before {
                            std::fs::write(&path, before).unwrap();
                        }
                        let has_ended = write_until(call, step, how, &path, &new).await;
                        let now = std::fs::read(&path).ok();
                        let is_new = now.as_ref() == Some(&new);
                        assert!(is_new || now.as_ref() == before, "torn at {call} {step}");
                        let left: Vec<_> =
                            names(fixture.root()).into_iter().filter(|name| name != "f").collect();
                        assert!(left.is_empty(), "{left:?} left at {call} {step}");
                        if has_ended {
                            assert!(is_new, "it was not stopped");
                            break;
                        }
                        stopped += 1;
                    }
                }
                let what = if before.is_some() { "replaced" } else { "new" };
                println!("{how:?}, {what}: {stopped} steps");
                assert!((6..MAX_STEPS).contains(&stopped), "{stopped} steps");
            }
        }
    })
    .await;
}

/// Lets a new server write a file and kills it before the given call of one kind; returns whether there are fewer.
async fn write_until(call: &str, step: usize, how: How, path: &Path, content: &[u8]) -> bool {
    let mut server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut stopper = attach(server.serving_pid(), call, step).await;
    let mut texts = Vec::new();
    requests(how, path, content, &mut texts);
    let is_answered = work(&mut client, &texts).await;
    if !is_answered {
        server.wait().await;
    }
    stopper.kill().await.expect("it is ours");
    is_answered
}

/// Kills a process when one of its threads enters the given call of one kind.
async fn attach(pid: u32, call: &str, step: usize) -> Child {
    let mut command = Command::new("strace");
    command
        .args(["-f", "-o", "/dev/null", "-p", &pid.to_string(), "-e", &format!("trace={call}")])
        .args(["-e", &format!("inject={call}:signal=SIGKILL:when={step}")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("it was just asked for its version");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let line = timeout(DEADLINE, lines.next_line()).await.expect("it attaches in time");
    let line = line.expect("stderr is readable").unwrap_or_default();
    assert!(line.contains("attached"), "{line}");
    // Stderr is drained, because the child would notice a closed pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    child
}
