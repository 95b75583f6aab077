//! `exec-server sandbox`: one command under a policy.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::isolation::isolate;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_command_writes_only_where_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let (work, other) = (dir.path().join("work"), dir.path().join("other"));
    for dir in [&work, &other] {
        std::fs::create_dir(dir).unwrap();
    }
    let script = "echo in > in; echo out > ../other/out";
    let flags = ["--policy", "read-only", "--write", work.to_str().unwrap()];
    let (code, _, errors) = sh(&work, &flags, script).await;
    assert!(code != 0 && errors.contains("Read-only file system"), "{code}: {errors}");
    assert_eq!(names(&work), ["in"]);
    assert_eq!(names(&other), [""; 0]);

    let (code, _, errors) = sh(&other, &["--policy", "read-only"], "echo x > x").await;
    assert!(code != 0 && errors.contains("Read-only file system"), "{code}: {errors}");
    assert_eq!(sh(&other, &[], "echo x > x && mkdir .git/y").await.0, 1);
    assert_eq!(names(&other), ["x"]);
}

#[tokio::test]
async fn it_exits_as_the_command_does() {
    let dir = tempfile::tempdir().unwrap();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)] {
        assert_eq!(sh(dir.path(), &[], script).await, (code, String::new(), String::new()));
    }
    for (command, code, reason) in [
        ("no-such-program", 127, "no-such-program: could not run the program: No such file"),
        ("/etc/passwd", 126, "/etc/passwd: could not run the program: Permission denied"),
    ] {
        let (exit, _, errors) = run(&["sandbox", "--", command]).await;
        assert_eq!(exit, code);
        assert!(errors.contains(reason), "{errors}");
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[tokio::test]
async fn a_command_has_no_more_processes_than_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let script = "i=1; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); echo $i; done; echo all";
    let (code, said, errors) = sh(dir.path(), &["--max-pids", "20"], script).await;
    if errors.contains("limits.pids cannot be enforced here") {
        return eprintln!("skipped, {errors}");
    }
    assert_eq!((code, said.lines().last()), (2, Some("20")), "{errors}");
    assert_eq!(sh(dir.path(), &["--max-pids", "0"], "true").await.0, 125);
}

#[tokio::test]
async fn our_own_failures_have_another_exit_code_than_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let broken = file("broken.json", "{");
    let unknown = file("unknown.json", r#"{"permissions": {"type": "magic"}}"#);
    let open = json!({"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"});
    let open = file("open.json", &open.to_string());
    for (flags, reason) in [
        (vec!["--policy", "/no/such/policy.json"], "/no/such/policy.json: No such file"),
        (vec!["--policy", &broken], "broken.json: EOF"),
        (vec!["--policy", &unknown], "magic"),
        (vec!["--policy", &open], "the policy does not request a sandbox"),
        (vec!["--policy", &open, "--network"], "a policy file sets both itself"),
        (vec!["--write", "/no/such/dir"], "/no/such/dir: No such file"),
        (vec!["--cwd", "/no/such/dir"], "/no/such/dir: No such file"),
        (vec!["--unknown-flag"], "unexpected argument"),
    ] {
        let arguments = [&["sandbox"], &flags[..], &["--", "true"]].concat();
        let (code, stdout, errors) = run(&arguments).await;
        assert_eq!((code, stdout.as_str()), (125, ""), "{flags:?}: {errors}");
        assert!(errors.contains(reason), "{flags:?}: {errors}");
    }
    let (code, help, _) = run(&["sandbox", "--help"]).await;
    assert!(code == 0 && help.contains("127 if it is not found"), "{help}");
    let (code, _, errors) = run(&["--listen", "stdio", "sandbox", "--", "true"]).await;
    assert!(code == 2 && errors.contains("cannot be used with"), "{errors}");
}

#[tokio::test]
async fn a_policy_can_come_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (policy, secret) = (dir.path().join("policy.json"), dir.path().join("secret"));
    let uri = |path: &Path| format!("file://{}", path.display());
    std::fs::write(&secret, "secret").unwrap();
    let entries = json!([
        {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
        {"path": {"type": "path", "path": uri(&secret)}, "access": "deny"},
    ]);
    let sandbox = json!({
        "permissions": {"type": "managed", "network": "restricted",
                        "file_system": {"type": "restricted", "entries": entries}},
        "windowsSandboxLevel": "disabled",
    });
    std::fs::write(&policy, sandbox.to_string()).unwrap();
    let flags = ["--policy", policy.to_str().unwrap()];
    let (code, text, _) = sh(dir.path(), &flags, "cat policy.json >&2; cat secret").await;
    assert_eq!((code, text.as_str()), (1, ""));
}

#[tokio::test]
async fn the_network_is_there_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    let script = "readlink /proc/self/ns/net";
    let (_, theirs, _) = sh(dir.path(), &[], script).await;
    assert_ne!(theirs.trim_end(), ours.to_str().unwrap());
    let (_, theirs, _) = sh(dir.path(), &["--network"], script).await;
    assert_eq!(theirs.trim_end(), ours.to_str().unwrap());
}

#[tokio::test]
async fn refused_calls_can_be_allowed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (script, allow) = ("unshare -U true", "--sandbox-allow");
    assert_ne!(sh(dir.path(), &[], script).await.0, 0);
    assert_ne!(sh(dir.path(), &[allow, "debugging,keyrings,filters"], script).await.0, 0);
    let (code, _, errors) = sh(dir.path(), &[allow, "filters,namespaces"], script).await;
    assert_eq!(code, 0, "{errors}");
    let (code, _, errors) = sh(dir.path(), &[allow, "everything"], script).await;
    assert!(code != 0 && errors.contains("namespaces"), "{errors}");
}

#[tokio::test]
async fn input_output_and_environment_are_those_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let script = "cat; echo $HELLO; pwd; ls /proc/self/fd; echo no >&2";
    // An inherited descriptor is not passed to the command.
    let mut child = spawn(dir.path(), "exec 7</etc/passwd", script);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"from outside\n").await.unwrap();
    drop(stdin);
    let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
    let real = dir.path().canonicalize().unwrap();
    let expected = format!("from outside\nthere\n{}\n0\n1\n2\n3\n", real.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(output.stderr, b"no\n");
}

#[tokio::test]
async fn tokens_of_the_caller_stay_outside_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "hush").unwrap();
    let mut builder = TestExecutor::builder();
    builder.command().current_dir(dir.path());
    let script = "echo fine; env; cat token";
    let (code, said, errors) = builder
        .env("EXEC_SERVER_TOKEN", "hush")
        .env("exec_server_admin_token", "hush")
        .env("EXEC_SERVER_REMOTE_TOKEN", "hush")
        .env("EXEC_SERVER_TOKEN_FILE", &file)
        .env("MINE", "kept")
        .args(&["sandbox", "--", "/bin/sh", "-c", script])
        .run()
        .await;
    assert!(code != 0 && errors.contains("Permission denied"), "{code}: {errors}");
    assert!(
        said.contains("fine") && said.contains("MINE=kept") && !said.contains("hush"),
        "{said}"
    );
}

#[tokio::test]
async fn signals_reach_the_command_and_nothing_stays_behind() {
    for (signal, code) in [(Signal::INT, 5), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let dir = tempfile::tempdir().unwrap();
        let mut child =
            spawn(dir.path(), ":", "trap 'exit 5' INT; echo on; while :; do sleep 0.05; done");
        wait_until_on(&mut child).await;
        assert_eq!(names(dir.path()), [".agents", ".aws", ".codex", ".git"]);
        kill_process(pid(&child), signal).unwrap();
        let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(code), "{signal:?}");
        assert_eq!(names(dir.path()), [""; 0]);
    }
}

#[tokio::test]
async fn not_even_a_kill_leaves_anything_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = spawn(dir.path(), ":", "trap '' TERM; echo on; read forever");
    let output = wait_until_on(&mut child).await;
    kill_process(pid(&child), Signal::KILL).unwrap();
    // The command held the other end.
    let mut rest = output.lines();
    assert_eq!(timeout(DEADLINE, rest.next_line()).await.unwrap().unwrap(), None);
    let gone = async {
        while !names(dir.path()).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, gone).await.unwrap();
}

async fn run(arguments: &[&str]) -> (i32, String, String) {
    TestExecutor::builder().args(arguments).run().await
}

async fn sh(cwd: &Path, flags: &[&str], script: &str) -> (i32, String, String) {
    let cwd = ["--cwd", cwd.to_str().unwrap()];
    run(&[&["sandbox"], &cwd[..], flags, &["--", "/bin/sh", "-c", script]].concat()).await
}

/// Starts it from a shell that runs `preparation` first, with pipes.
fn spawn(cwd: &Path, preparation: &str, script: &str) -> Child {
    let preparation = format!("{preparation}; exec \"$0\" sandbox -- /bin/sh -c \"$1\"");
    let mut command = Command::new("/bin/sh");
    isolate(command.as_std_mut());
    command
        .args(["-c", &preparation])
        .arg(exec_server_testkit::executor::binary())
        .arg(script)
        .env("HELLO", "there")
        .current_dir(cwd)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn wait_until_on(child: &mut Child) -> BufReader<tokio::process::ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(DEADLINE, output.read_line(&mut line)).await.unwrap().unwrap();
    assert_eq!(line, "on\n");
    output
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().unwrap().cast_signed()).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
