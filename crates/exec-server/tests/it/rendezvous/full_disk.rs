//! A rendezvous whose disk is full.

use exec_server_testkit::executor::{Signal, binary};
use exec_server_testkit::http::request;
use exec_server_testkit::{SmallDisk, TestExecutor};
use tokio::process::Command;

#[tokio::test]
async fn a_rendezvous_starts_on_a_full_disk_and_recovers_when_there_is_room() {
    let Some(disk) = SmallDisk::mount().await else { return };
    let mut first = rendezvous(&disk).await;
    let admin = stderr_line_with(&mut first, "xs_admin_").await.trim().to_owned();
    stop(first).await;
    disk.fill();

    let mut second = rendezvous(&disk).await;
    let url = second.url().to_owned();
    stderr_line_with(&mut second, "the disk is full").await;
    assert_eq!(request(&url, "GET", "/readyz", &[]).await.status, 200);
    // Stored data is served, and new data is rejected.
    let listed = token(&url, &admin, &["list"]).await;
    assert!(listed.0 && listed.1.contains("admin"), "{listed:?}");
    let create = ["create", "--environment", "env", "--role", "executor"];
    let refused = token(&url, &admin, &create).await;
    assert!(!refused.0 && refused.1.contains("nothing was written"), "{refused:?}");

    disk.clear();
    stderr_line_with(&mut second, "disk space is available again").await;
    let created = token(&url, &admin, &create).await;
    assert!(created.0, "{created:?}");
    // Commands on the data directory work again.
    let data = disk.data();
    let list = ["token", "list", "--data", data.to_str().unwrap()];
    let (_, listed, errors) = TestExecutor::builder().inside(&disk).args(&list).run().await;
    assert!(listed.contains("env"), "{listed}{errors}");
    stop(second).await;
}

async fn token(url: &str, admin: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(binary())
        .arg("token")
        .args(arguments)
        .args(["--remote", url])
        .env("EXEC_SERVER_ADMIN_TOKEN", admin)
        .output()
        .await
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

async fn rendezvous(disk: &SmallDisk) -> TestExecutor {
    let data = disk.data();
    let arguments =
        ["rendezvous", "--listen", "http://127.0.0.1:0", "--data", data.to_str().unwrap()];
    let builder = TestExecutor::builder().inside(disk).args(&arguments);
    builder.env("RUST_LOG", "info").piped_stderr().start().await
}

async fn stderr_line_with(rendezvous: &mut TestExecutor, text: &str) -> String {
    loop {
        let line = rendezvous.next_stderr_line().await.expect("it is said before the end");
        if line.contains(text) {
            return line;
        }
    }
}

/// Shuts down cleanly, so that only the database file is left.
async fn stop(mut rendezvous: TestExecutor) {
    rendezvous.signal(Signal::TERM);
    rendezvous.wait().await;
}
