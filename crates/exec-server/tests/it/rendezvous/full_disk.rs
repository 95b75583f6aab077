//! A rendezvous whose disk is full.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use exec_server_testkit::executor::binary;
use exec_server_testkit::http::request;
use exec_server_testkit::{DEADLINE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

#[tokio::test]
async fn a_rendezvous_starts_on_a_full_disk_and_recovers_when_there_is_room() {
    let Some(disk) = SmallDisk::mount().await else {
        return eprintln!("skipped, a file system of its own takes root and a mount namespace");
    };
    let mut first = disk.rendezvous().await;
    let admin = first.stderr_line_with("xs_admin_").await.trim().to_owned();
    first.stop().await;
    disk.fill();

    let mut second = disk.rendezvous().await;
    second.stderr_line_with("the disk is full").await;
    assert_eq!(request(&second.url, "GET", "/readyz", &[]).await.status, 200);
    // Stored data is served, and new data is rejected.
    let listed = token(&second.url, &admin, &["list"]).await;
    assert!(listed.0 && listed.1.contains("admin"), "{listed:?}");
    let create = ["create", "--environment", "env", "--role", "executor"];
    let refused = token(&second.url, &admin, &create).await;
    assert!(!refused.0 && refused.1.contains("nothing was written"), "{refused:?}");

    disk.clear();
    second.stderr_line_with("disk space is available again").await;
    let created = token(&second.url, &admin, &create).await;
    assert!(created.0, "{created:?}");
    // Commands on the data directory work again.
    let mut list = disk.inside();
    list.arg(binary()).args(["token", "list", "--data"]).arg(disk.data());
    let listed = list.output().await.unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("env"), "{listed:?}");
    second.stop().await;
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

/// A small file system in its own mount namespace.
struct SmallDisk {
    holder: Child,
    data_dir: tempfile::TempDir,
}

impl SmallDisk {
    async fn mount() -> Option<Self> {
        let data_dir = tempfile::tempdir().unwrap();
        let script = format!(
            "mount -t tmpfs -o size=400k none '{0}' && mkdir -m 700 '{0}/data' && exec sleep 1000",
            data_dir.path().display()
        );
        let holder = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        let mut disk = Self { holder, data_dir };
        let mut is_over = false;
        eventually("the disk is there, or cannot be", || {
            is_over = disk.holder.try_wait().is_ok_and(|status| status.is_some());
            is_over || disk.seen().join("data").exists()
        })
        .await;
        (!is_over).then_some(disk)
    }

    fn pid(&self) -> String {
        self.holder.id().expect("it runs").to_string()
    }

    /// Path of the file system from this process.
    fn seen(&self) -> PathBuf {
        let inside = self.data_dir.path().strip_prefix("/").expect("it is absolute");
        Path::new("/proc").join(self.pid()).join("root").join(inside)
    }

    fn data(&self) -> PathBuf {
        self.data_dir.path().join("data")
    }

    fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &self.pid(), "--"]).kill_on_drop(true);
        command
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.seen().join("fill")).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
    }

    fn clear(&self) {
        fs::remove_file(self.seen().join("fill")).unwrap();
    }

    async fn rendezvous(&self) -> Running {
        let mut command = self.inside();
        command.arg(binary()).args(["rendezvous", "--listen", "http://127.0.0.1:0", "--data"]);
        command.arg(self.data()).env("RUST_LOG", "info");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap();
        let url = url.expect("it starts");
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Running { child, url, stderr }
    }
}

struct Running {
    child: Child,
    url: String,
    stderr: tokio::io::Lines<BufReader<tokio::process::ChildStderr>>,
}

impl Running {
    async fn stderr_line_with(&mut self, text: &str) -> String {
        loop {
            let line = timeout(DEADLINE, self.stderr.next_line()).await.expect("it comes in time");
            let line = line.unwrap().expect("it is said before the end");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Shut down cleanly, so that only the database file is left.
    async fn stop(mut self) {
        let pid = self.child.id().expect("it runs").cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
        timeout(DEADLINE, self.child.wait()).await.expect("it ends in time").unwrap();
    }
}
