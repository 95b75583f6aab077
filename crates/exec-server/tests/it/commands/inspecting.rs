//! `ls`, `cat`, `info`, `doctor TARGET`.

use exec_server_testkit::TestExecutor;
use serde_json::Value;

use super::{cli, ran};

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
