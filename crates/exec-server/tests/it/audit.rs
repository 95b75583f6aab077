//! The audit log: what it has, what it leaves out, and what happens while it cannot be written.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use exec_server_testkit::executor::Signal;
use exec_server_testkit::{SmallDisk, TestClient, TestExecutor, Web, eventually};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::metrics::until;
use crate::sandbox::workspace_write;

const TOKEN: &str = "a-token-of-some-length";

struct Log {
    dir: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("audit.log")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap_or_default()
    }

    fn records(&self) -> Vec<Value> {
        records(&self.text())
    }

    fn of(&self, event: &str) -> Vec<Value> {
        self.records().into_iter().filter(|record| record["event"] == event).collect()
    }

    async fn server(&self, more: &[&str]) -> TestExecutor {
        let path = self.path();
        let arguments = ["--accept-native-paths", "--audit", path.to_str().unwrap()];
        TestExecutor::builder().args(&arguments).args(more).start().await
    }

    /// A server whose stderr is a file, and the URL of its metrics.
    async fn server_on_the_same_disk(&self, more: &[&str]) -> (TestExecutor, String) {
        let (path, errors) = (self.path(), self.dir.path().join("stderr"));
        let arguments = ["--accept-native-paths", "--audit", path.to_str().unwrap()];
        let mut builder = TestExecutor::builder()
            .args(&arguments)
            .args(&["--metrics-listen", "127.0.0.1:0"])
            .args(more)
            .env("RUST_LOG", "info");
        builder.command().stderr(fs::File::create(&errors).unwrap());
        let server = builder.start().await;
        let logged = records(&fs::read_to_string(&errors).unwrap());
        let line = logged.iter().find(|line| line["message"] == "serving metrics").unwrap();
        let url = line["url"].as_str().unwrap().strip_suffix("/metrics").unwrap().to_owned();
        (server, url)
    }

    /// Lets the server write no more to its files than they have; `None` lifts the limit.
    fn limit(&self, server: &TestExecutor, size: Option<u64>) {
        let pid = Pid::from_raw(server.serving_pid().cast_signed());
        let maximum = getrlimit(Resource::Fsize).maximum;
        prlimit(pid, Resource::Fsize, Rlimit { current: size, maximum }).unwrap();
    }

    fn size(&self) -> u64 {
        fs::metadata(self.path()).unwrap().len()
    }
}

fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

async fn stop(mut server: TestExecutor) {
    server.signal(Signal::TERM);
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn it_records_who_ran_what_where_and_how_it_ended() {
    let log = Log::new();
    let server = log.server(&[]).await;
    let mut client = server.client().await;
    let more = json!({ "cwd": "/tmp", "env": { "SECRET": "opensesame" } });
    let argv = ["/bin/sh", "-c", "exit 3"];
    assert_eq!(client.run("p1", &argv, more).await.exit_code, 3);
    let failed = client.start("p2", &["/no/such/program"], json!({"user": "no-such-user"})).await;
    assert!(failed.is_err(), "{failed:?}");
    client.start("p3", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    client.signal("p3", "kill").await;
    client.finish("p3").await;
    drop(client);
    stop(server).await;

    let start = &log.of("process/start")[0];
    assert_eq!(start["argv"], json!(argv), "{start}");
    assert_eq!((&start["cwd"], &start["sandbox"]), (&json!("/tmp"), &Value::Null), "{start}");
    assert_eq!(start["principal"]["kind"], "anyone");
    assert_eq!(start["uid"], rustix::process::getuid().as_raw());
    assert!(start["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{start}");
    assert_eq!(log.of("process/start")[1]["user"], "no-such-user");
    let exits = log.of("process/exited");
    let exit = exits.iter().find(|exit| exit["processId"] == "p1").unwrap();
    assert_eq!((&exit["exitCode"], &exit["session"]), (&json!(3), &start["session"]), "{exit}");
    let killed = exits.iter().find(|exit| exit["processId"] == "p3").unwrap();
    assert_eq!(killed["signal"], "SIGKILL", "{killed}");
    assert_eq!(log.of("process/failed")[0]["processId"], "p2");
    assert_eq!(log.of("process/signal")[0]["signal"], "kill");
    assert_eq!(log.of("connection/opened")[0]["resumed"], false);
    let events: Vec<Value> = log.records().iter().map(|it| it["event"].clone()).collect();
    assert_eq!(
        (&events[0], events.last()),
        (&json!("server/started"), Some(&json!("server/stopped")))
    );
    assert!(!log.text().contains("opensesame"), "{}", log.text());
    assert_eq!(fs::metadata(log.path()).unwrap().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn it_records_the_policy_of_a_sandboxed_start_and_what_it_denied() {
    let log = Log::new();
    let server = log.server(&[]).await;
    let mut client = server.client().await;
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let policy = workspace_write(&[inside.path()], "restricted");
    for (id, dir) in [("allowed", &inside), ("denied", &outside)] {
        let more = json!({ "sandbox": policy, "cwd": inside.path() });
        let file = dir.path().join("file");
        client.run(id, &["/usr/bin/touch", file.to_str().unwrap()], more).await;
        assert_eq!(file.exists(), id == "allowed");
    }
    stop(server).await;
    for (start, exit) in log.of("process/start").iter().zip(log.of("process/exited")) {
        assert_eq!(start["sandbox"], policy, "{start}");
        let is_denied = start["processId"] == "denied";
        assert_eq!(exit["sandboxDenied"], is_denied, "{exit}");
    }
    assert_eq!(log.of("process/exited").len(), 2);
}

#[tokio::test]
async fn it_records_changes_of_files_and_http_requests() {
    let log = Log::new();
    let web = Web::answering(|_| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()).await;
    let server = log.server(&[]).await;
    let mut client = server.client().await;
    let file = log.dir.path().join("file");
    let other = log.dir.path().join("other");
    let write = json!({ "path": file, "dataBase64": "b3BlbnNlc2FtZQ==" });
    client.call("fs/writeFile", write).await.unwrap();
    client.call("fs/readFile", json!({ "path": file })).await.unwrap();
    let rename = json!({ "sourcePath": file, "destinationPath": other });
    client.call("fs/rename", rename).await.unwrap();
    client.call("fs/remove", json!({ "path": file, "force": false })).await.unwrap_err();
    let url = web.url("/page?key=opensesame");
    let get = json!({ "method": "GET", "url": url, "requestId": "r" });
    client.call("http/request", get).await.unwrap();
    drop(client);
    stop(server).await;

    let written = &log.of("fs/writeFile")[0];
    assert_eq!((&written["paths"], &written["result"]), (&json!([file]), &json!("ok")));
    assert_eq!(log.of("fs/rename")[0]["paths"], json!([file, other]));
    let removed = &log.of("fs/remove")[0];
    assert_eq!((&removed["result"], &removed["error"]), (&json!("error"), &json!("not_found")));
    assert!(log.of("fs/readFile").is_empty());
    let asked = &log.of("http/request")[0];
    assert_eq!(asked["url"], web.url("/page"), "{asked}");
    assert!(!log.text().contains("b3BlbnNlc2FtZQ") && !log.text().contains("opensesame"));
}

#[tokio::test]
async fn payloads_are_recorded_only_on_request() {
    let log = Log::new();
    let server = log.server(&["--audit-payloads"]).await;
    let mut client = server.client().await;
    let more = json!({ "env": { "SECRET": "opensesame" }, "pipeStdin": true });
    client.start("p", &["/bin/cat"], more).await.unwrap();
    client.write("p", "w", "typed").await.unwrap();
    client.terminate("p", None).await;
    client.finish("p").await;
    stop(server).await;
    assert_eq!(log.of("process/start")[0]["params"]["env"]["SECRET"], "opensesame");
    assert_eq!(log.of("process/write")[0]["params"]["chunk"], "dHlwZWQ=");
}

#[tokio::test]
async fn tokens_and_refused_clients_are_told_apart() {
    let log = Log::new();
    let token = log.dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let auth = ["--ws-auth", "capability-token", "--ws-token-file", token.to_str().unwrap()];
    let server = log.server(&auth).await;
    assert_eq!(TestClient::try_connect(server.url(), &[]).await.err(), Some(401));
    let header = format!("Bearer {TOKEN}");
    let headers = [("Authorization", header.as_str())];
    let mut client = TestClient::try_connect(server.url(), &headers).await.unwrap();
    client.initialize().await;
    client.sh("p", ":").await;
    stop(server).await;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, TOKEN.as_bytes());
    let digest = exec_server::protocol::hex::encode(digest.as_ref());
    let principal = json!({ "kind": "token", "sha256": digest[..12] });
    assert_eq!(log.of("process/start")[0]["principal"], principal);
    assert_eq!(log.of("connection/refused")[0]["status"], 401);
    assert!(!log.text().contains(TOKEN));
}

#[tokio::test]
async fn a_large_log_is_rotated() {
    let log = Log::new();
    let server = log.server(&["--audit-max-bytes", "4096", "--audit-keep", "3"]).await;
    let mut client = server.client().await;
    for number in 0..40 {
        client.sh(&format!("p{number}"), ":").await;
    }
    stop(server).await;
    let name = |number: usize| PathBuf::from(format!("{}.{number}", log.path().display()));
    assert!(!name(4).exists());
    let mut all = Vec::new();
    for path in [name(3), name(2), name(1), log.path()] {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() <= 4096 && text.ends_with('\n'), "{}", text.len());
        all.extend(records(&text));
    }
    // No record is missing between the oldest and the newest.
    let exits = all.iter().filter(|record| record["event"] == "process/exited");
    let ids: Vec<String> = exits.map(|it| it["processId"].as_str().unwrap().to_owned()).collect();
    let expected: Vec<String> = (40 - ids.len()..40).map(|number| format!("p{number}")).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn with_block_nothing_starts_without_a_record() {
    let log = Log::new();
    let (server, _) = log.server_on_the_same_disk(&[]).await;
    let mut client = server.client().await;
    client.start("early", &["/bin/cat"], json!({ "pipeStdin": true })).await.unwrap();
    log.limit(&server, Some(log.size()));
    let marker = log.dir.path().join("marker");
    let touch = format!("touch {}", marker.display());
    let error = client.start("p", &["/bin/sh", "-c", &touch], json!({})).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "audit_unavailable", "{error}");
    assert_eq!(error["data"]["retryable"], true);
    let remove = client.call("fs/remove", json!({ "path": log.dir.path() })).await.unwrap_err();
    assert_eq!(remove["data"]["kind"], "audit_unavailable", "{remove}");
    // Reads are not recorded, and processes can always be ended.
    client.call("fs/getMetadata", json!({ "path": "/" })).await.unwrap();
    assert!(client.terminate("early", None).await);
    client.finish("early").await;
    assert!(!marker.exists() && log.of("process/exited").is_empty());

    log.limit(&server, None);
    eventually("the log has caught up", || !log.of("audit/gap").is_empty()).await;
    assert_eq!(log.of("process/exited")[0]["processId"], "early");
    let gap = &log.of("audit/gap")[0];
    assert_eq!((&gap["refused"], &gap["dropped"]), (&json!(2), &json!(0)), "{gap}");
    client.sh("p", &touch).await;
    assert!(marker.exists());
    stop(server).await;
}

#[tokio::test]
async fn with_drop_and_count_work_goes_on_and_the_gap_is_recorded() {
    let log = Log::new();
    let (server, metrics) =
        log.server_on_the_same_disk(&["--audit-on-full", "drop-and-count"]).await;
    let mut client = server.client().await;
    client.sh("before", ":").await;
    eventually("its exit is recorded", || !log.of("process/exited").is_empty()).await;
    // Room for a part of the next record.
    log.limit(&server, Some(log.size() + 10));
    for number in 0..3 {
        assert_eq!(client.sh(&format!("p{number}"), "exit 4").await.exit_code, 4);
    }
    let dropped = "exec_server_audit_records_dropped_total";
    until(&metrics, |samples| samples[dropped] == 6.0).await;
    log.limit(&server, None);
    eventually("the gap is recorded", || !log.of("audit/gap").is_empty()).await;
    client.sh("after", ":").await;
    stop(server).await;
    let gap = &log.of("audit/gap")[0];
    assert_eq!((&gap["refused"], &gap["dropped"]), (&json!(0), &json!(6)), "{gap}");
    let ids: Vec<Value> =
        log.of("process/start").iter().map(|it| it["processId"].clone()).collect();
    assert_eq!(ids, ["before", "after"]);
}

/// A server whose audit log is on this disk, and what of the log can be read.
async fn server_on(disk: &SmallDisk, policy: &str) -> (TestExecutor, impl Fn() -> Vec<Value>) {
    let (path, seen) = (disk.data().join("audit.log"), disk.seen().join("data/audit.log"));
    let arguments = ["--audit", path.to_str().unwrap(), "--audit-on-full", policy];
    let server = TestExecutor::builder().inside(disk).args(&arguments).start().await;
    (server, move || records(&fs::read_to_string(&seen).unwrap()))
}

/// How many requests and records of all gaps are missing.
fn missing(records: &[Value]) -> (u64, u64) {
    let gaps = records.iter().filter(|record| record["event"] == "audit/gap");
    let count = |gap: &Value, member: &str| gap[member].as_u64().unwrap();
    gaps.fold((0, 0), |(refused, dropped), gap| {
        let cause = gap["cause"].as_str().unwrap();
        assert!(cause.contains("No space left"), "{gap}");
        (refused + count(gap, "refused"), dropped + count(gap, "dropped"))
    })
}

fn ids(records: &[Value], event: &str) -> Vec<String> {
    let found = records.iter().filter(|record| record["event"] == event);
    found.map(|it| it["processId"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn on_a_full_disk_block_refuses_starts_until_there_is_room() {
    let Some(disk) = SmallDisk::mount().await else { return };
    let (server, log) = server_on(&disk, "block").await;
    let mut client = server.client().await;
    disk.fill();
    // The last block of the log has room for a few records.
    let mut started = Vec::new();
    let error = loop {
        let id = format!("p{}", started.len());
        match client.start(&id, &["/bin/true"], json!({})).await {
            Ok(_) => client.finish(&id).await,
            Err(error) => break error,
        };
        started.push(id);
        assert!(started.len() < 100, "the disk has no end");
    };
    assert_eq!(error["data"]["kind"], "audit_unavailable", "{error}");
    disk.clear();
    let mut refused = 1;
    while client.start("after", &["/bin/true"], json!({})).await.is_err() {
        refused += 1;
    }
    client.finish("after").await;
    started.push("after".to_owned());
    stop(server).await;
    let all = log();
    assert_eq!(missing(&all), (refused, 0));
    assert_eq!(ids(&all, "process/start"), started);
    assert_eq!(ids(&all, "process/exited"), started);
}

#[tokio::test]
async fn on_a_full_disk_drop_and_count_goes_on_and_counts() {
    let Some(disk) = SmallDisk::mount().await else { return };
    let (server, log) = server_on(&disk, "drop-and-count").await;
    let mut client = server.client().await;
    let is_open = || log().iter().any(|it| it["event"] == "connection/opened");
    eventually("the connection is recorded", is_open).await;
    disk.fill();
    for number in 0..50 {
        assert_eq!(client.sh(&format!("p{number}"), "exit 4").await.exit_code, 4);
    }
    disk.clear();
    let kept = || ids(&log(), "process/start").len() + ids(&log(), "process/exited").len();
    eventually("every record is there or counted", || missing(&log()) == (0, 100 - kept() as u64))
        .await;
    assert!(kept() < 50, "{} records fit on the full disk", kept());
    stop(server).await;
}

#[tokio::test]
async fn records_can_go_to_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("journal");
    let target = format!("journald:{}", socket.display());
    let (code, _, errors) = TestExecutor::builder().args(&["--audit", &target]).run().await;
    assert!(code == 1 && errors.contains("cannot open the audit log"), "{errors}");
    let journal = UnixDatagram::bind(&socket).unwrap();
    journal.set_read_timeout(Some(exec_server_testkit::DEADLINE)).unwrap();
    let server = TestExecutor::start_with(&["--audit", &target]).await;
    let mut client = server.client().await;
    client.sh("p", ":").await;
    let mut found = None;
    while found.is_none() {
        let mut entry = [0; 8192];
        let count = journal.recv(&mut entry).unwrap();
        let entry = std::str::from_utf8(&entry[..count]).unwrap();
        assert!(entry.contains("SYSLOG_IDENTIFIER=exec-server-audit\n"), "{entry}");
        let message = entry.lines().find_map(|line| line.strip_prefix("MESSAGE=")).unwrap();
        let record: Value = serde_json::from_str(message).unwrap();
        found = (record["event"] == "process/exited").then_some(record);
    }
    assert_eq!(found.unwrap()["processId"], "p");
    stop(server).await;
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_stops_the_server() {
    let log = Log::new();
    let _server = log.server(&[]).await;
    for path in [log.path(), Path::new("/dev/null").to_owned(), log.dir.path().join("no/dir")] {
        let arguments = ["--audit", path.to_str().unwrap()];
        let (code, out, errors) = TestExecutor::builder().args(&arguments).run().await;
        assert!(code == 1 && out.is_empty(), "{out}");
        assert!(errors.contains("cannot open the audit log"), "{errors}");
    }
    let (code, _, errors) = TestExecutor::builder().args(&["--audit-payloads"]).run().await;
    assert!(code == 2 && errors.contains("--audit <FILE|journald>"), "{errors}");
}
