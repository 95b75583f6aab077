//! Shell completion: `__complete`, and the script for bash.

use exec_server_testkit::TestExecutor;
use exec_server_testkit::executor::binary;

use super::attaching::detached;
use super::{cli, command, finish, ran};

/// A list of servers with one that listens.
fn list(directory: &std::path::Path, url: &str) -> String {
    let file = directory.join("environments.toml");
    let text = format!(
        "[[environments]]\nid = \"box\"\nurl = \"{url}\"\n\
         [[environments]]\nid = \"build\"\nprogram = \"/bin/false\"\n"
    );
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The candidates for the last word of a line.
async fn complete(list: &str, line: &[&str]) -> Vec<String> {
    let index = line.len().to_string();
    let arguments = [&["__complete", &index, "--", "exec-server"], line].concat();
    let child = command(&arguments).env("EXEC_SERVER_ENVIRONMENTS", list).spawn().unwrap();
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line:?}");
    ran.out.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn commands_targets_ids_and_paths_are_offered() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let list = list(directory.path(), server.url());
    assert_eq!(complete(&list, &["lo"]).await, ["logs"]);
    assert_eq!(complete(&list, &["run", "--memo"]).await, ["--memory"]);
    assert_eq!(complete(&list, &["ps", "b"]).await, ["box", "build"]);
    assert_eq!(complete(&list, &["run", "bo"]).await, ["box"]);
    assert!(complete(&list, &[""]).await.iter().all(|word| word != "__complete"));

    detached(&server, &["--name", "nightly"], "exec sleep 1000").await;
    detached(&server, &["--name", "done"], "exit 0").await;
    assert_eq!(cli(&["wait", "-q", server.url(), "done"]).await, ran(0, "", ""));
    assert_eq!(complete(&list, &["kill", "box", ""]).await, ["nightly"]);
    assert_eq!(complete(&list, &["kill", "-9", "box", "n"]).await, ["nightly"]);
    assert_eq!(complete(&list, &["logs", "box", ""]).await.len(), 2);
    assert_eq!(complete(&list, &["attach", server.url(), "ni"]).await, ["nightly"]);

    std::fs::create_dir(directory.path().join("sub")).unwrap();
    std::fs::write(directory.path().join("sub/file"), "").unwrap();
    std::fs::write(directory.path().join("sub/.hidden"), "").unwrap();
    let remote = |path: &str| format!("box:{}/{path}", directory.path().display());
    assert_eq!(complete(&list, &["ls", &remote("su")]).await, [remote("sub/")]);
    assert_eq!(complete(&list, &["cat", &remote("sub/")]).await, [remote("sub/file")]);
    assert_eq!(complete(&list, &["cat", &remote("sub/.")]).await, [remote("sub/.hidden")]);
    assert_eq!(complete(&list, &["cp", "x", &remote("sub/f")]).await, [remote("sub/file")]);
    assert_eq!(complete(&list, &["ls", "bo"]).await, ["box:"]);
}

#[tokio::test]
async fn without_a_server_completion_is_empty_and_silent() {
    let directory = tempfile::tempdir().unwrap();
    let list = list(directory.path(), "ws://127.0.0.1:1");
    for line in [
        &["kill", "box", ""][..],
        &["ls", "box:/"],
        &["ls", "build:/"],
        &["logs", "build", ""],
        &["cat", "nobody:/x"],
        &["kill", "--bogus", "box", ""],
    ] {
        assert_eq!(complete(&list, line).await, Vec::<String>::new(), "{line:?}");
    }
    let broken = directory.path().join("broken.toml");
    std::fs::write(&broken, "][").unwrap();
    assert_eq!(complete(broken.to_str().unwrap(), &["ps", ""]).await, Vec::<String>::new());
    assert_eq!(cli(&["__complete", "9", "--", "exec-server"]).await, ran(0, "", ""));
}

#[tokio::test]
async fn bash_replaces_what_comes_after_the_last_colon() {
    let Ok(found) = std::process::Command::new("bash").arg("--version").output() else { return };
    assert!(found.status.success());
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let list = list(directory.path(), server.url());
    std::fs::write(directory.path().join("file name"), "").unwrap();
    std::fs::create_dir(directory.path().join("folder")).unwrap();
    let script = r#"
        source <("$PROGRAM" completions bash)
        COMP_LINE="exec-server cat $SPOT" COMP_POINT=${#COMP_LINE}
        _exec_server "$PROGRAM"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let remote = format!("box:{}/f", directory.path().display());
    let mut bash = tokio::process::Command::new("bash");
    bash.args(["-c", script])
        .env("PROGRAM", binary())
        .env("SPOT", &remote)
        .env("EXEC_SERVER_ENVIRONMENTS", &list)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let place = directory.path().display();
    let expected = format!("{place}/file name\n{place}/folder/\n");
    assert_eq!(finish(bash.spawn().unwrap()).await, ran(0, &expected, ""));
}
