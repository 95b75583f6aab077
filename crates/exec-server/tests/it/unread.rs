//! A client that reads nothing costs little memory, blocks no other, and gets everything once it reads.

use std::fs;
use std::path::{Path, PathBuf};

use exec_server_protocol::limits::{MAX_PAGE_BYTES, MAX_SEARCHES};
use exec_server_testkit::fs_fixture::uri;
use exec_server_testkit::process_count::state;
use exec_server_testkit::raw::TEXT;
use exec_server_testkit::web::answer;
use exec_server_testkit::{RawClient, TestClient, TestExecutor, Web, eventually};
use rustix::process::{Pid, Resource, Rlimit};
use serde_json::{Value, json};

use crate::sandbox::workspace_write;

/// Memory limit for a client that reads nothing.
const BAR_KIB: usize = 32 * 1024;

#[tokio::test]
async fn replies_of_whole_files_wait_until_they_are_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let fixture = tempfile::tempdir().unwrap();
    let uri = file(fixture.path(), "file", 700_000);
    unread.ask(1000, "fs/readFile", &json!({"path": uri})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        assert_eq!(reply["result"]["dataBase64"].as_str().unwrap().len(), 933_336);
    }
}

#[tokio::test]
async fn replies_of_small_files_wait_as_well() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let fixture = tempfile::tempdir().unwrap();
    let uri = file(fixture.path(), "file", 2_800);
    unread.ask(17_000, "fs/readFile", &json!({"path": uri})).await;
    unread.is_cheap().await;
    assert!(unread.replies().await.iter().all(|reply| reply["result"].is_object()));
}

#[tokio::test]
async fn files_without_a_size_are_bounded_as_well() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    // A file with a size of zero and much content: the server's mappings, or the kernel's symbols.
    let large = ["/proc/self/smaps", "/proc/kallsyms"];
    let uri = large.iter().find(|path| fs::read(path).is_ok_and(|text| text.len() > 4096));
    let uri = format!("file://{}", uri.expect("a process can read its own mappings"));
    unread.ask(100, "fs/readFile", &json!({"path": uri})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        assert!(reply["result"]["dataBase64"].as_str().unwrap().len() > 4096);
    }
}

#[tokio::test]
async fn blocks_of_a_file_are_read_before_its_handle_is_closed() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let fixture = tempfile::tempdir().unwrap();
    let uri = file(fixture.path(), "file", 1 << 20);
    unread.ask(1, "fs/open", &json!({"handleId": "h", "path": uri, "mode": "read"})).await;
    let block = json!({"handleId": "h", "offset": 0, "len": 1 << 20});
    unread.ask(500, "fs/readBlock", &block).await;
    unread.ask(1, "fs/close", &json!({"handleId": "h"})).await;
    unread.is_cheap().await;
    let replies = unread.replies().await;
    let blocks = replies.iter().filter(|reply| reply["result"]["chunk"].is_string()).count();
    assert_eq!((replies.len(), blocks), (502, 500));
}

#[tokio::test]
async fn batches_listings_and_walks_wait_until_they_are_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let fixture = tempfile::tempdir().unwrap();
    let uri = file(fixture.path(), "file", 700_000);
    let wide = fixture.path().join("wide");
    fs::create_dir(&wide).unwrap();
    for number in 0..5000 {
        fs::write(wide.join(format!("{number:0>100}")), "").unwrap();
    }
    let read = json!({"method": "fs/readFile", "params": {"path": uri}});
    unread.ask(60, "fs/batch", &json!({"requests": [read, read, read]})).await;
    let wide = format!("file://{}", wide.display());
    unread.ask(80, "fs/readDirectory", &json!({"path": wide})).await;
    let options = json!({"maxDepth": 3, "maxDirectories": 100, "maxEntries": 5000,
        "followDirectorySymlinks": false});
    unread.ask(80, "fs/walk", &json!({"path": wide, "options": options})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        let result = &reply["result"];
        let is_batch = result["results"].as_array().is_some_and(|results| {
            results.iter().all(|one| one["result"]["dataBase64"].as_str().unwrap().len() == 933_336)
        });
        let names = |list: &Value| list.as_array().is_some_and(|names| names.len() >= 4999);
        assert!(is_batch || names(&result["entries"]), "{}", reply.to_string().len());
    }
}

#[tokio::test]
async fn listings_of_very_wide_directories_wait_until_they_are_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let dir = tempfile::tempdir().unwrap();
    for number in 0..30_000 {
        fs::write(dir.path().join(format!("{number:0>240}")), "").unwrap();
    }
    let wide = format!("file://{}", dir.path().display());
    unread.ask(20, "fs/readDirectory", &json!({"path": wide})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        assert_eq!(reply["result"]["entries"].as_array().unwrap().len(), 30_000);
    }
}

#[tokio::test]
async fn lists_of_processes_with_long_arguments_wait_until_they_are_read() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let long = "x".repeat(120_000);
    let argv = ["sh", "-c", "exec sleep 1000", &long, &long, &long, &long, &long];
    for number in 0..4 {
        client.start(&format!("p{number}"), &argv, json!({})).await.unwrap();
    }
    let mut unread = Unread::new(server).await;
    unread.ask(100, "session/list", &json!({})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        assert!(reply.to_string().len() > 4 * 5 * 120_000);
    }
}

#[tokio::test]
async fn discovered_skills_wait_until_they_are_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let dir = tempfile::tempdir().unwrap();
    for number in 0..8 {
        let skill = dir.path().join(format!("skills/{number}"));
        fs::create_dir_all(&skill).unwrap();
        fs::write(skill.join("SKILL.md"), "x".repeat(500_000)).unwrap();
    }
    let root = json!({"id": "root", "path": format!("file://{}", dir.path().display())});
    unread.ask(40, "capabilityRoots/discoverV1", &json!({"roots": [root]})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        let skills = reply["result"]["roots"][0]["skills"].as_array().unwrap();
        assert_eq!(skills.len(), 8);
    }
}

#[tokio::test]
async fn retained_output_waits_until_it_is_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let script = "head -c 1000000 /dev/zero; exec sleep 1000";
    let start = exec_server_testkit::client::start_params("p", &["sh", "-c", script], json!({}));
    let id = unread.client.send("process/start", start).await;
    unread.client.reply(id).await;
    let all = json!({"processId": "p", "afterSeq": 0});
    loop {
        let id = unread.client.send("process/read", all.clone()).await;
        let chunks = unread.client.reply(id).await["result"]["chunks"].to_string();
        if chunks.len() > 1_333_333 {
            break;
        }
    }
    unread.ask(300, "process/read", &all).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        assert!(reply["result"]["chunks"].to_string().len() > 1_333_333);
    }
}

#[tokio::test]
async fn changes_wait_until_they_are_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let dir = tempfile::tempdir().unwrap();
    let ids = ["a", "b", "c", "d", "e", "f"];
    let params = json!({"path": uri(dir.path()), "recursive": true, "coalesceMs": 20});
    watch_many_changes(&mut unread, &ids, params, dir.path()).await;
    for id in ids {
        unread.ask(20, "fs/readChanges", &json!({"watchId": id, "waitMs": 60_000})).await;
    }
    unread.is_cheap().await;
    for reply in unread.replies().await {
        // They share their memory, so some were told to look again.
        let is_rescan = reply["result"]["changes"][0]["kind"] == "rescan";
        assert!(is_rescan || changes_of_a_page(&reply) > 100);
    }
}

#[tokio::test]
async fn changes_of_a_confined_watch_wait_until_they_are_read() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let dir = tempfile::tempdir().unwrap();
    let policy = workspace_write(&[dir.path()], "restricted");
    let params = json!({"path": uri(dir.path()), "recursive": true, "coalesceMs": 20,
        "sandbox": policy});
    watch_many_changes(&mut unread, &["w"], params, dir.path()).await;
    unread.ask(40, "fs/readChanges", &json!({"watchId": "w", "waitMs": 60_000})).await;
    unread.is_cheap().await;
    for reply in unread.replies().await {
        assert!(changes_of_a_page(&reply) > 100);
    }
}

/// Starts watches and makes 3.5 MiB of changes, as JSON.
async fn watch_many_changes(unread: &mut Unread, ids: &[&str], mut params: Value, dir: &Path) {
    let deep: PathBuf = std::iter::repeat_n("d".repeat(250), 12).collect();
    let deep = dir.join(deep);
    fs::create_dir_all(&deep).unwrap();
    for id in ids {
        params["watchId"] = json!(id);
        let id = unread.client.send("fs/watch", params.clone()).await;
        let reply = unread.client.reply(id).await;
        assert_eq!(reply["result"]["directories"], 13, "{reply}");
    }
    for number in 0..1100 {
        fs::write(deep.join(format!("{number:0>200}")), "").unwrap();
    }
    unread.settle().await;
}

/// Asserts that a reply has the first changes, within the limit of a page; how many.
#[track_caller]
fn changes_of_a_page(reply: &Value) -> usize {
    assert!(reply.to_string().len() <= MAX_PAGE_BYTES + 1024);
    let changes = reply["result"]["changes"].as_array().expect("there are changes");
    for (change, seq) in changes.iter().zip(1..) {
        assert_eq!(change["seq"], seq);
    }
    changes.len()
}

#[tokio::test]
async fn pages_of_searches_wait_until_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..200 {
        fs::write(dir.path().join(format!("f{number}")), "some line of text\n".repeat(2000))
            .unwrap();
    }
    let params = json!({"path": uri(dir.path()), "pattern": "line",
        "limits": {"pageSize": 10_000, "maxMatches": 1_000_000}});
    pages_wait("fs/search", "matches", params).await;
}

#[tokio::test]
async fn pages_of_names_wait_until_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..30_000 {
        fs::write(dir.path().join(format!("{number:0>240}")), "").unwrap();
    }
    let limits = json!({"pageSize": 10_000, "maxMatches": 1_000_000});
    let params = json!({"path": uri(dir.path()), "limits": limits});
    pages_wait("fs/find", "entries", params).await;
}

async fn pages_wait(method: &str, found: &str, mut params: Value) {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let ids: Vec<String> = (0..MAX_SEARCHES).map(|number| number.to_string()).collect();
    for id in &ids {
        params["searchId"] = json!(id);
        unread.ask(1, method, &params).await;
    }
    for id in &ids {
        unread.ask(4, "fs/nextPage", &json!({"searchId": id})).await;
    }
    unread.is_cheap().await;
    for reply in unread.replies().await {
        let count = reply["result"][found].as_array().map(Vec::len);
        assert!(count.is_some_and(|count| count > 0), "{:.200}", reply.to_string());
    }
}

#[tokio::test]
async fn answers_of_other_servers_wait_until_they_are_read() {
    let web = Web::answering(|request| {
        let body = vec![b'x'; 1_000_000];
        match request.target.as_str() {
            "/whole" => answer(200, &[], body),
            _ => {
                let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
                chunked.extend(format!("{:x}\r\n", body.len()).as_bytes());
                chunked.extend(body);
                chunked.extend(b"\r\n0\r\n\r\n");
                chunked
            }
        }
    })
    .await;
    let mut builder = TestExecutor::builder();
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        builder.command().env_remove(name).env_remove(name.to_uppercase());
    }
    let mut unread = Unread::new(builder.start().await).await;
    for path in ["/whole", "/chunked"] {
        let params = json!({"method": "GET", "url": web.url(path), "requestId": path});
        unread.ask(250, "http/request", &params).await;
    }
    unread.is_cheap().await;
    let mut whole = 0;
    for reply in unread.replies().await {
        match reply["result"]["bodyBase64"].as_str() {
            Some(body) => {
                assert_eq!(body.len(), 1_333_336);
                whole += 1;
            }
            None => assert_eq!(reply["error"]["data"]["kind"], "tooLarge", "{reply}"),
        }
    }
    // As many as one connection may have in memory.
    assert!(whole >= 100, "{whole}");
}

/// Replies that are too small to be counted one by one, and requests that wait behind them.
#[tokio::test]
async fn a_flood_of_small_requests_costs_little() {
    let fixture = tempfile::tempdir().unwrap();
    let long = format!("file://{}/{}", fixture.path().display(), "x".repeat(1900));
    let long = json!({"path": long});
    for (method, params) in [("no/such", json!("x".repeat(100))), ("fs/getMetadata", long)] {
        let mut unread = Unread::new(TestExecutor::start().await).await;
        let text = json!({"id": 7, "method": method, "params": params}).to_string();
        let server = unread.server.serving_pid();
        unread.client.flood(&text, 200_000, || is_idle(server)).await;
        unread.is_cheap().await;
    }
}

#[tokio::test]
async fn pongs_that_are_not_read_cost_little() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let server = unread.server.serving_pid();
    unread.client.flood_pings(1_600_000, || is_idle(server)).await;
    unread.is_cheap().await;
}

#[tokio::test]
async fn long_ids_and_names_are_refused_and_not_repeated() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let long = "x".repeat(1 << 20);
    let files = json!({"path": "file:///etc/passwd"});
    for _ in 0..200 {
        let message = json!({"id": long, "method": "fs/readFile", "params": files}).to_string();
        unread.client.send_frame(TEXT, true, message.as_bytes()).await;
    }
    let start = exec_server_testkit::client::start_params(&long, &["true"], json!({}));
    unread.ask(50, &long, &json!({})).await;
    unread.ask(50, "process/start", &start).await;
    unread.ask(50, "process/terminate", &json!({"processId": long})).await;
    unread.is_cheap().await;
    let replies = unread.replies().await;
    assert!(replies.iter().any(|reply| {
        let message = reply["error"]["message"].as_str().unwrap_or_default();
        message.contains("`processId` is longer than 1024 bytes")
    }));
    let refused = replies.iter().filter(|reply| reply["id"] == -1);
    let refused: Vec<_> = refused.map(|reply| reply["error"]["code"].clone()).collect();
    assert_eq!(refused, vec![json!(-32600); 200]);
    assert!(replies.iter().all(|reply| reply.to_string().len() < 40_000));
    let mut client = RawClient::connect(unread.server.url()).await;
    let id = client.send("initialize", json!({"clientName": long})).await;
    assert_eq!(client.reply(id).await["error"]["code"], -32602);
}

#[tokio::test]
async fn the_largest_reply_waits_for_a_client_that_reads() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let fixture = tempfile::tempdir().unwrap();
    let uri = file(fixture.path(), "file", 48_000_000);
    unread.ask(20, "fs/readFile", &json!({"path": uri})).await;
    unread.is_cheap().await;
    // A client that reads gets it meanwhile, and several at once.
    let mut client = unread.server.client().await;
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(client.send("fs/readFile", json!({"path": uri})).await);
    }
    for id in asked {
        let reply = client.reply(id).await.unwrap();
        assert_eq!(reply["dataBase64"].as_str().unwrap().len(), 64_000_000);
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_can_still_end_a_process() {
    let mut unread = Unread::new(TestExecutor::start().await).await;
    let fixture = tempfile::tempdir().unwrap();
    let uri = file(fixture.path(), "file", 700_000);
    let pid_file = fixture.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid_file.display());
    let start = exec_server_testkit::client::start_params("p", &["sh", "-c", &script], json!({}));
    unread.ask(1, "process/start", &start).await;
    eventually("the process runs", || pid_file.exists()).await;
    let pid: i32 = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    unread.ask(300, "fs/readFile", &json!({"path": uri})).await;
    unread.settle().await;
    unread.ask(1, "process/terminate", &json!({"processId": "p"})).await;
    eventually("the process ended", || state(pid).is_none_or(|state| state == 'Z')).await;
}

#[tokio::test]
async fn clients_that_read_nothing_leave_memory_for_the_others() {
    const TOTAL: usize = 16 << 20;
    let server = TestExecutor::start_with(&["--max-reply-memory", &TOTAL.to_string()]).await;
    let fixture = tempfile::tempdir().unwrap();
    let (uri, small) =
        (file(fixture.path(), "file", 700_000), file(fixture.path(), "small", 100_000));
    let large = file(fixture.path(), "large", 20_000_000);
    let mut unread = Unread::new(server).await;
    let mut more = Vec::new();
    for _ in 0..20 {
        let mut client = RawClient::connect_with_little_room(unread.server.url()).await;
        client.initialize().await;
        for _ in 0..100 {
            client.send("fs/readFile", json!({"path": uri})).await;
        }
        more.push(client);
    }
    unread.ask(1, "fs/readFile", &json!({"path": uri})).await;
    unread.settle().await;
    let used = unread.cost_kib();
    assert!(used < TOTAL / 1024 + 2 * BAR_KIB, "{used} KiB for twenty clients that read nothing");
    let mut client = unread.server.client().await;
    for (path, length) in [(&small, 133_336), (&large, 26_666_668)] {
        let reply = client.call("fs/readFile", json!({"path": path})).await.unwrap();
        assert_eq!(reply["dataBase64"].as_str().unwrap().len(), length);
    }
}

#[tokio::test]
async fn a_reply_that_no_memory_is_left_for_is_an_error_of_its_request() {
    let server = TestExecutor::start().await;
    let fixture = tempfile::tempdir().unwrap();
    let (large, small) =
        (file(fixture.path(), "large", 48_000_000), file(fixture.path(), "small", 10));
    let middle = file(fixture.path(), "middle", 1_000_000);
    let mut client = server.client().await;
    // Threads that read files are there from now on.
    read_whole(&mut client, &middle).await.unwrap();
    let pid = Pid::from_raw(server.serving_pid().cast_signed()).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", server.serving_pid())).unwrap();
    let used = number(&status, "VmData:") as u64 * 1024;
    let limit = Rlimit { current: Some(used + (16 << 20)), maximum: None };
    let Ok(before) = rustix::process::prlimit(Some(pid), Resource::Data, limit) else {
        return eprintln!("skipped, the limits of a process cannot be set");
    };
    let error = read_whole(&mut client, &large).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32603), &json!("out_of_memory")));
    assert_eq!(read_whole(&mut client, &small).await.unwrap(), 16);
    rustix::process::prlimit(Some(pid), Resource::Data, before).unwrap();
    assert_eq!(read_whole(&mut client, &large).await.unwrap(), 64_000_000);
}

async fn read_whole(client: &mut TestClient, uri: &str) -> Result<usize, Value> {
    let reply = client.call("fs/readFile", json!({"path": uri})).await?;
    Ok(reply["dataBase64"].as_str().unwrap().len())
}

/// A client that sends and does not read, and what its server had before.
struct Unread {
    server: TestExecutor,
    client: RawClient,
    asked: Vec<i64>,
    before_kib: usize,
}

impl Unread {
    async fn new(server: TestExecutor) -> Self {
        let mut client = RawClient::connect_with_little_room(server.url()).await;
        client.initialize().await;
        // What every request needs is in memory before it is measured.
        server.client().await.sh("warm", "true").await;
        let before_kib = status(server.serving_pid(), "VmRSS:");
        Self { server, client, asked: Vec::new(), before_kib }
    }

    async fn ask(&mut self, count: usize, method: &str, params: &Value) {
        for _ in 0..count {
            self.asked.push(self.client.send(method, params.clone()).await);
        }
    }

    /// Waits until the server is idle.
    async fn settle(&self) {
        let server = self.server.serving_pid();
        let mut quiet = 0;
        let look = || {
            quiet = if is_idle(server) { quiet + 1 } else { 0 };
            quiet == 20
        };
        eventually("the server has nothing to do", look).await;
    }

    /// Peak memory growth of the server since the client connected.
    fn cost_kib(&self) -> usize {
        status(self.server.serving_pid(), "VmHWM:").saturating_sub(self.before_kib)
    }

    async fn is_cheap(&self) {
        self.settle().await;
        let cost = self.cost_kib();
        eprintln!("{cost} KiB for a client that reads nothing");
        assert!(cost < BAR_KIB, "{cost} KiB for a client that reads nothing");
    }

    /// The replies to all requests.
    async fn replies(&mut self) -> Vec<Value> {
        let mut replies = Vec::new();
        let mut missing = std::mem::take(&mut self.asked);
        self.client.answer_pings();
        while !missing.is_empty() {
            let message = exec_server_testkit::raw::parse(&self.client.message().await);
            missing.retain(|id| message["id"] != *id);
            if message["id"].is_number() {
                replies.push(message);
            }
        }
        replies
    }
}

/// Whether no thread of a process runs or waits for a disk.
fn is_idle(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default())
        .all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S')))
}

fn status(pid: u32, name: &str) -> usize {
    number(&fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs"), name)
}

fn number(status: &str, name: &str) -> usize {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
    line.split_whitespace().next().expect("a number").parse().expect("a number")
}

fn file(dir: &Path, name: &str, size: usize) -> String {
    let path = dir.join(name);
    fs::write(&path, vec![b'x'; size]).unwrap();
    format!("file://{}", path.display())
}
