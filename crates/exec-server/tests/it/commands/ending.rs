//! Processes by their names: `kill`, `wait`, unique `--name`s, `ps`, `logs --since --timestamps`.

use std::time::{Duration, SystemTime};

use exec_server_testkit::{DEADLINE, Fifo, TestExecutor};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::attaching::{detached, wait_for_log};
use super::{Ran, cli, command, finish, ran};

/// Runs a command whose default server is this one.
async fn on(server: &TestExecutor, arguments: &[&str]) -> Ran {
    finish(command(arguments).env("EXEC_SERVER_URL", server.url()).spawn().unwrap()).await
}

#[tokio::test]
async fn several_processes_are_ended_by_one_kill_which_returns_when_they_have_ended() {
    let server = TestExecutor::start().await;
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    detached(&server, &["--name", "a"], "exec sleep 1000").await;
    detached(&server, &["--name", "b"], stubborn).await;
    detached(&server, &["--name", "c"], "exec sleep 1000").await;
    wait_for_log(&server, "b", "ready").await;
    assert_eq!(on(&server, &["kill", "--grace", "100ms", "a", "b"]).await, ran(0, "", ""));
    // No waiting here: a killed process is no longer listed.
    assert_eq!(on(&server, &["ps", "-q"]).await, ran(0, "c\n", ""));
    let some = on(&server, &["kill", "nobody", "c", "a"]).await;
    assert_eq!(some.code, 1);
    assert!(some.err.contains("no process `nobody`"), "{}", some.err);
    assert!(some.err.contains("`a` has ended already"), "{}", some.err);
    assert_eq!(on(&server, &["ps", "-q"]).await.out, "");
    let named = cli(&["kill", server.url(), "a", "b"]).await;
    assert_eq!((named.code, named.err.lines().count()), (1, 2), "{}", named.err);
}

#[tokio::test]
async fn a_signal_is_an_option_of_its_own() {
    let server = TestExecutor::start().await;
    for (name, option, code) in [("a", "-9", 137), ("b", "-KILL", 137), ("c", "-SIGINT", 130)] {
        detached(&server, &["--name", name], "exec sleep 1000").await;
        assert_eq!(on(&server, &["kill", option, name]).await, ran(0, "", ""), "{option}");
        let waited = on(&server, &["wait", name]).await;
        assert_eq!(waited, ran(code, &format!("{code}\n"), ""), "{option}");
    }
    let unknown = on(&server, &["kill", "-11", "a"]).await;
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("a server knows HUP, INT"), "{}", unknown.err);
}

#[tokio::test]
async fn waiting_gives_the_exit_codes() {
    let server = TestExecutor::start().await;
    let mut fifo = Fifo::new();
    detached(&server, &["--name", "seven"], &format!("read _ < {}; exit 7", fifo.path())).await;
    // A descendant that holds the output open is not waited for.
    detached(&server, &["--name", "three"], "sleep 1000 & exit 3").await;
    let waiting = command(&["wait", server.url(), "seven", "three"]).spawn().unwrap();
    fifo.open().await;
    assert_eq!(finish(waiting).await, ran(3, "7\n3\n", ""));
    assert_eq!(on(&server, &["wait", "-q", "seven"]).await, ran(7, "", ""));
    let unknown = on(&server, &["wait", "seven", "nobody"]).await;
    assert_eq!((unknown.code, unknown.out.as_str()), (127, "7\n"));
    assert!(unknown.err.contains("no process `nobody`"), "{}", unknown.err);
    let late = ["run", "-d", "--timeout", "10ms", "--name", "late", "--", "sleep", "1000"];
    assert_eq!(on(&server, &late).await.code, 0);
    assert_eq!(on(&server, &["wait", "late"]).await, ran(124, "124\n", ""));
}

#[tokio::test]
async fn a_name_belongs_to_one_live_process() {
    let server = TestExecutor::start().await;
    detached(&server, &["--name", "job"], "echo first; exec sleep 1000").await;
    for more in [&["-d"][..], &[]] {
        let again = [&["run", "--name", "job"], more, &["--", "true"]].concat();
        let again = on(&server, &again).await;
        assert_eq!((again.code, again.out.as_str()), (125, ""));
        assert!(again.err.contains("`job` is running already"), "{}", again.err);
    }
    assert_eq!(on(&server, &["kill", "job"]).await, ran(0, "", ""));
    // The name of an exited process can be reused, and then means the newer process.
    detached(&server, &["--name", "job"], "echo second; exec sleep 1000").await;
    wait_for_log(&server, "job", "second").await;
    assert_eq!(on(&server, &["kill", "job"]).await, ran(0, "", ""));
    assert_eq!(on(&server, &["logs", "job"]).await, ran(0, "second\n", ""));
    for (name, reason) in [("a/b", "no `/`"), ("", "at least one letter"), ("a b", "no blanks")] {
        let refused = on(&server, &["run", "--name", name, "--", "true"]).await;
        assert_eq!(refused.code, 125);
        assert!(refused.err.contains(reason), "{}", refused.err);
    }
}

#[tokio::test]
async fn of_many_starts_of_one_name_at_once_one_wins() {
    let server = TestExecutor::start().await;
    let start = || {
        let run = ["run", "-d", "--name", "one", server.url(), "--", "sleep", "1000"];
        command(&run).spawn().unwrap()
    };
    let all: Vec<_> = (0..8).map(|_| start()).collect();
    let mut codes = Vec::new();
    for child in all {
        codes.push(finish(child).await.code);
    }
    codes.sort_unstable();
    assert_eq!(codes, [0, 125, 125, 125, 125, 125, 125, 125]);
}

#[tokio::test]
async fn the_list_has_session_user_and_age() {
    let server = TestExecutor::start().await;
    detached(&server, &["--name", "job"], "exec sleep 1000").await;
    let json = on(&server, &["ps", "--json"]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let (session, user) =
        (json[0]["sessionId"].as_str().unwrap(), json[0]["user"].as_str().unwrap());
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid));
    assert_eq!(user, line.map_or(uid.as_str(), |line| line.split(':').next().unwrap()));
    let table = on(&server, &["ps"]).await.out;
    let lines: Vec<Vec<&str>> = table.lines().map(|it| it.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ID", "SESSION", "USER", "PID", "STATUS", "AGE", "CLIENT", "COMMAND"]);
    assert_eq!(lines[1][..3], ["job", &session[..8], user]);
    let both = on(&server, &["ps", "--json", "-o", "table"]).await;
    assert_eq!(both.code, 2);
}

#[tokio::test]
async fn a_log_is_cut_by_time_and_lines_and_stamped() {
    let server = TestExecutor::start().await;
    let mut fifo = Fifo::new();
    let script =
        format!("echo old; read _ < {}; printf 'new\\nno end'; exec sleep 1000", fifo.path());
    detached(&server, &["--name", "job"], &script).await;
    wait_for_log(&server, "job", "old").await;
    let stamped = on(&server, &["logs", "-t", "job"]).await.out;
    let (stamp, text) = stamped.split_once(' ').unwrap();
    assert_eq!(text, "old\n");
    assert!(stamp.len() == 24 && stamp.starts_with("20") && stamp.ends_with('Z'), "{stamp}");
    // So that the other lines have a later time than the first.
    let seen = SystemTime::now();
    while SystemTime::now().duration_since(seen).is_ok_and(|it| it < Duration::from_millis(2)) {
        tokio::task::yield_now().await;
    }
    fifo.open().await;
    wait_for_log(&server, "job", "no end").await;
    let last = on(&server, &["logs", "-t", "-n", "1", "job"]).await.out;
    let (last, _) = last.split_once(' ').unwrap();
    let since = on(&server, &["logs", "--since", last, "job"]).await;
    assert_eq!(since, ran(0, "new\nno end", ""));
    assert_eq!(on(&server, &["logs", "--since", stamp, "job"]).await.out, "old\nnew\nno end");
    assert_eq!(on(&server, &["logs", "--since", "0d", "job"]).await, ran(0, "", ""));
    assert_eq!(on(&server, &["logs", "-n", "1", "job"]).await.out, "no end");
    let lines = on(&server, &["logs", "--timestamps", "job"]).await.out;
    let lines: Vec<&str> = lines.lines().map(|line| &line[24..]).collect();
    assert_eq!(lines, [" old", " new", " no end"]);
    let bad = on(&server, &["logs", "--since", "yesterday", "job"]).await;
    assert!(bad.code == 2 && bad.err.contains("expected a time such as"), "{}", bad.err);
}

#[tokio::test]
async fn a_restart_of_the_server_is_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", folder.path().join("socket").display());
    let mut server = TestExecutor::start_with(&["--listen", &url]).await;
    detached(&server, &["--name", "job"], "echo ready; exec sleep 1000").await;
    wait_for_log(&server, "job", "ready").await;
    let run = ["run", &url, "--", "sh", "-c", "echo ready; exec sleep 1000"];
    let mut following = Vec::new();
    detached(&server, &["--name", "done"], "exit 0").await;
    for (arguments, first) in [
        (&run[..], "ready"),
        (&["logs", "-f", &url, "job"], "ready"),
        (&["attach", "-n", &url, "job"], "ready"),
        (&["wait", &url, "done", "job"], "0"),
    ] {
        let mut child = command(arguments).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await.unwrap();
        assert_eq!(line.unwrap().as_deref(), Some(first), "{arguments:?}");
        following.push((arguments.to_vec(), child, lines));
    }
    server.cut_power().await;
    let _again = TestExecutor::start_with(&["--listen", &url]).await;
    let gone = "the server was restarted; the command is gone";
    for (arguments, child, lines) in following {
        drop(lines);
        let ran = finish(child).await;
        assert!(ran.code == 255 && ran.err.contains(gone), "{arguments:?}: {ran:?}");
    }
}
