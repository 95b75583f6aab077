//! `ls`, `cat`, `info`, `doctor TARGET`.

use exec_server_testkit::TestExecutor;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{cli, command, finish, ran};

#[tokio::test]
async fn directories_are_listed_and_files_shown() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::builder().current_dir(directory.path()).start().await;
    std::fs::write(directory.path().join("b"), "content\n").unwrap();
    std::fs::write(directory.path().join("a\u{1b}[2J"), "").unwrap();
    std::fs::write(directory.path().join(".hidden"), "").unwrap();
    let here = format!("{}:", server.url());
    assert_eq!(cli(&["ls", &here]).await, ran(0, "a?[2J\nb\n", ""));
    assert_eq!(cli(&["ls", "-a", &here]).await, ran(0, ".hidden\na?[2J\nb\n", ""));
    let long = cli(&["ls", "-l", &here]).await.out;
    assert!(long.lines().any(|line| line.starts_with("-rw") && line.ends_with("b")), "{long}");
    let json = cli(&["ls", "-o", "json", &here]).await.out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[1]["metadata"]["size"], 8);
    let file = format!("{}:{}/b", server.url(), directory.path().display());
    assert_eq!(cli(&["cat", &file, &file]).await, ran(0, "content\ncontent\n", ""));
    let missing = cli(&["cat", &format!("{}:/no/such", server.url())]).await;
    assert_eq!(missing.code, 1);
    assert!(
        missing.err.contains("/no/such") && missing.err.contains("No such file"),
        "{}",
        missing.err
    );
    let local = cli(&["ls", "/tmp"]).await;
    assert!(local.err.contains("TARGET:/tmp"), "{}", local.err);
}

#[tokio::test]
async fn several_paths_are_listed_and_missing_ones_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::builder().current_dir(directory.path()).start().await;
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::write(directory.path().join("d/inside"), "").unwrap();
    std::fs::write(directory.path().join("f"), "one\n").unwrap();
    let remote = |path: &str| format!("{}:{}/{path}", server.url(), directory.path().display());
    let place = directory.path().display();
    let listed = cli(&["ls", &remote("d"), &remote("no"), &remote("f")]).await;
    assert_eq!(listed.code, 1);
    assert_eq!(listed.out, format!("{place}/f\n\n{place}/d:\ninside\n"));
    assert!(listed.err.contains(&format!("{place}/no: No such file")), "{}", listed.err);
    let json = cli(&["ls", "--json", &remote("d"), &remote("f")]).await.out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["path"], format!("{place}/d"));
    assert_eq!(json[0]["entries"][0]["fileName"], "inside");

    let shown = cli(&["cat", &remote("no"), &remote("f"), &remote("d"), &remote("f")]).await;
    assert_eq!((shown.code, shown.out.as_str()), (1, "one\none\n"));
    assert!(shown.err.contains(&format!("{place}/no: No such file")), "{}", shown.err);
    assert!(shown.err.contains(&format!("{place}/d: ")), "{}", shown.err);
}

#[tokio::test]
async fn a_piece_of_text_is_replaced_and_a_mistake_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::start().await;
    let file = directory.path().join("f");
    std::fs::write(&file, "port = 80\n# port\n").unwrap();
    let spot = format!("{}:{}", server.url(), file.display());
    let tried = cli(&["replace", "-n", &spot, "= 80", "= 8080"]).await;
    assert_eq!(tried, ran(0, "would replace 1 (first at line 1)\n", ""));
    let replaced = cli(&["replace", &spot, "= 80", "= 8080"]).await;
    assert_eq!(replaced, ran(0, "replaced 1 (first at line 1)\n", ""));
    let twice = cli(&["replace", &spot, "port", "x"]).await;
    assert_eq!(twice.code, 1);
    assert!(twice.err.contains("occurs 2 times (lines 1, 2)"), "{}", twice.err);
    let missing = cli(&["replace", &spot, "port=8080", "x"]).await;
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("line 1 reads:\nport = 8080"), "{}", missing.err);
    let all = cli(&["replace", "--all", "--json", &spot, "port", "-p"]).await;
    let all: Value = serde_json::from_str(&all.out).unwrap();
    assert_eq!(all["edits"][0]["replacements"], 2);
    let wrong = cli(&["replace", "--if-match", "x", &spot, "-p", ""]).await;
    assert!(wrong.err.contains("ifMatch"), "{}", wrong.err);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "-p = 8080\n# -p\n");
}

#[tokio::test]
async fn content_and_names_are_searched() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::start().await;
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::write(directory.path().join("d/a.rs"), "one\n\ttwo\u{1b}[2J\nthree\n").unwrap();
    std::fs::write(directory.path().join("b"), "Two\0").unwrap();
    let place = directory.path().display();
    let spot = format!("{}:{place}", server.url());
    let found = cli(&["grep", "-C1", "two", &spot]).await;
    let expected =
        format!("{place}/d/a.rs-1-one\n{place}/d/a.rs:2:\ttwo?[2J\n{place}/d/a.rs-3-three\n");
    assert_eq!(found, ran(0, &expected, ""));
    let found = cli(&["grep", "-i", "-m", "1", "TWO", &format!("{spot}/b")]).await;
    assert_eq!(found, ran(0, &format!("{place}/b: binary file matches\n"), ""));
    assert_eq!(cli(&["grep", "-F", "t.o", &spot]).await, ran(1, "", ""));
    let found = cli(&["grep", "-l", "-T", "rust", "one", &spot]).await;
    assert_eq!(found, ran(0, &format!("{place}/d/a.rs\n"), ""));
    let json = cli(&["grep", "--json", "three", &spot]).await.out;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["line"], 3);
    let missing = cli(&["grep", "x", &format!("{spot}/no")]).await;
    assert_eq!(missing.code, 2);
    let wrong = cli(&["grep", "(", &spot]).await;
    assert!(wrong.code == 2 && wrong.err.contains("regex"), "{}", wrong.err);
    assert_eq!(cli(&["find", &spot, "*.rs"]).await, ran(0, &format!("{place}/d/a.rs\n"), ""));
    assert_eq!(cli(&["find", "-t", "d", "-0", &spot]).await, ran(0, &format!("{place}/d\0"), ""));
    let json = cli(&["find", "--json", &spot, "d/*"]).await.out;
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["size"], 19);
}

#[tokio::test]
async fn changes_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestExecutor::start().await;
    let place = directory.path().display().to_string();
    let mut child =
        command(&["watch", "-1", "-r", &format!("{}:{place}", server.url())]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap();
    assert_eq!(line, Some(format!("exec-server: watching {place}")));
    std::fs::create_dir(directory.path().join("new")).unwrap();
    assert_eq!(finish(child).await, ran(0, &format!("create {place}/new\n"), ""));
    let missing = cli(&["watch", &format!("{}:{place}/no", server.url())]).await;
    assert!(missing.code == 1 && missing.err.contains("No such file"), "{}", missing.err);
}

#[tokio::test]
async fn owners_have_names() {
    let server = TestExecutor::start().await;
    let remote = |path: &str| format!("{}:{path}", server.url());
    let json = cli(&["ls", "--json", &remote("/etc/passwd")]).await.out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["metadata"]["uid"], &json[0]["metadata"]["gid"]), (&0.into(), &0.into()));
    assert_eq!(json[0]["metadata"]["ownerName"], "root");
    let group = std::fs::read_to_string("/etc/group").unwrap();
    let group = group.lines().find(|line| line.split(':').nth(2) == Some("0")).unwrap();
    let group = group.split(':').next().unwrap();
    assert_eq!(json[0]["metadata"]["groupName"], group);
    let long = cli(&["ls", "-l", &remote("/etc/passwd")]).await.out;
    assert!(long.contains(&format!(" root:{group} ")), "{long}");
}

#[tokio::test]
async fn info_shows_host_and_capabilities() {
    let server = TestExecutor::start().await;
    let info = cli(&["info", server.url()]).await;
    assert!(
        info.out.contains("capabilities") && info.out.contains("sessionDirectory"),
        "{}",
        info.out
    );
    let json = cli(&["info", "--json", server.url()]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(json["host"]["name"], name.trim());
    assert_eq!(json["host"]["architecture"], std::env::consts::ARCH);
    for fact in ["name", "kernel", "architecture", "user"] {
        let value = json["host"][fact].as_str().unwrap();
        assert!(info.out.lines().any(|line| line.ends_with(value)), "{fact}: {}", info.out);
    }
    assert!(json["host"]["cpus"].as_u64().unwrap() > 0);
    assert!(json["host"]["memoryBytes"].as_u64().unwrap() > 1 << 20);
    let doctor = cli(&["doctor", server.url()]).await;
    assert!(doctor.out.contains("sandbox level: "), "{}", doctor.out);
    let json = cli(&["doctor", "--json", server.url()]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert!(json["enforced"].is_array(), "{json}");
}
