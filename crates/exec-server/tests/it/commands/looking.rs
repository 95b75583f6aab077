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
async fn a_server_says_what_it_is_like() {
    let server = TestExecutor::start().await;
    let info = cli(&["info", server.url()]).await;
    assert!(
        info.out.contains("capabilities") && info.out.contains("sessionDirectory"),
        "{}",
        info.out
    );
    let doctor = cli(&["doctor", server.url()]).await;
    assert!(doctor.out.contains("sandbox level: "), "{}", doctor.out);
    let json = cli(&["doctor", "--json", server.url()]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert!(json["enforced"].is_array(), "{json}");
}
