//! Concurrent writers, lost connections and killed servers: no file is ever torn.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{code, on_each_file_system, uri};
use exec_server_testkit::{TestClient, TestExecutor, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::host::{How, names, server_with_mounts};

const WRITERS: usize = 16;
const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn many_writers_of_one_file_never_mix_their_content() {
    on_each_file_system(async |fixture| {
        let path = fixture.put("f", vec![b'-'; MIB]);
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            writers.push(fixture.server.client().await);
        }
        for how in How::ALL {
            let asked = write_all(&mut writers, how, &path).await;
            // A concurrent reader sees one of the two contents as well.
            for (writer, ids) in writers.iter_mut().zip(asked) {
                is_of_one(&fixture.get("f"), MIB);
                for id in ids {
                    assert_eq!(writer.reply(id).await.unwrap(), json!({}));
                }
            }
            is_of_one(&fixture.get("f"), MIB);
        }
        assert_eq!(names(fixture.root()), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn neither_do_writers_of_one_file_under_two_names() {
    on_each_file_system(async |fixture| {
        let two = [fixture.put("one", vec![b'-'; MIB]), fixture.path("two")];
        std::fs::hard_link(&two[0], &two[1]).unwrap();
        let mut writers = Vec::new();
        for number in 0..4 {
            let source = fixture.put(&format!("source{number}"), vec![number as u8; 4 * MIB]);
            let to = uri(&two[number % 2]);
            let copy =
                json!({"sourcePath": uri(&source), "destinationPath": to, "recursive": false});
            writers.push((fixture.server.client().await, copy));
        }
        for _ in 0..40 {
            let mut asked = Vec::new();
            for (writer, copy) in &mut writers {
                asked.push(writer.send("fs/copy", copy.clone()).await);
            }
            for ((writer, _), id) in writers.iter_mut().zip(asked) {
                assert_eq!(writer.reply(id).await.unwrap(), json!({}));
            }
            is_of_one(&fixture.get("one"), 4 * MIB);
        }
        assert_eq!(names(fixture.root()).len(), 2 + 4);
    })
    .await;
}

/// Lets every writer fill a mebibyte with its number.
async fn write_all(writers: &mut [TestClient], how: How, path: &Path) -> Vec<Vec<i64>> {
    for writer in &mut *writers {
        if how == How::Blocks {
            let opened = how.open(writer, path).await;
            writer.reply(opened).await.unwrap();
        }
    }
    let mut asked = Vec::new();
    for (number, writer) in writers.iter_mut().enumerate() {
        asked.push(how.send(writer, path, &vec![number as u8; MIB]).await);
    }
    asked
}

#[track_caller]
fn is_of_one(content: &[u8], size: usize) {
    assert_eq!(content.len(), size);
    assert!(content == vec![content[0]; size], "the content is mixed");
}

#[tokio::test]
async fn a_cut_before_the_close_leaves_the_old_file() {
    on_each_file_system(async |fixture| {
        fixture.put("old", "old");
        for name in ["old", "new"] {
            let mut client = fixture.server.client().await;
            let open = json!({"handleId": "h", "path": fixture.uri(name), "mode": "replace"});
            client.call("fs/open", open).await.unwrap();
            for block in 0..3 {
                let chunk = base64::encode(&[b'x'; 1000]);
                let params = json!({"handleId": "h", "offset": block * 1000, "chunk": chunk});
                client.call("fs/writeBlock", params).await.unwrap();
            }
            let session = client.session_id.clone();
            drop(client);
            let pid = fixture.server.serving_pid();
            eventually("the server has closed it", || !holds_any(pid, fixture.root())).await;
            // The handle belonged to the connection; a resumed session does not have it.
            let mut client = TestClient::connect(fixture.server.url()).await;
            client.resume(&session).await.unwrap();
            let params = json!({"handleId": "h", "offset": 0, "chunk": "eA=="});
            assert_eq!(code(client.call("fs/writeBlock", params).await).0, -32004);
            client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
            assert_eq!(
                (names(fixture.root()), fixture.get("old")),
                (vec!["old".into()], b"old".into())
            );
        }
    })
    .await;
}

/// Whether a process has a file open that lies in a directory.
fn holds_any(pid: u32, dir: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the server runs");
    open.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file.starts_with(dir)))
}

/// Number of killed servers per file system.
const KILLS: usize = 50;
/// The same without O_TMPFILE; these start more slowly.
const KILLS_WITH_NAMES: usize = 10;

#[tokio::test]
async fn a_server_that_is_killed_at_any_moment_leaves_whole_files() {
    let seed = SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970").as_nanos() as u64;
    let seed = std::env::var("CRASH_SEED").map_or(seed, |seed| seed.parse().expect("a number"));
    println!("CRASH_SEED={seed}");
    let random = Random(Cell::new(seed));
    on_each_file_system(async |fixture| {
        for has_names in [false, true] {
            let kills = if has_names { KILLS_WITH_NAMES } else { KILLS };
            let mut folder = Folder::new(fixture.root());
            let Some(mut usual) = folder.round(has_names, None).await else { continue };
            assert_eq!(folder.check(), (Folder::FILES, 0), "it was not killed");
            let (mut partial, mut left) = (0, 0);
            for _ in 0..kills {
                let moment = usual.mul_f64(random.next_below(1200) as f64 / 1000.0);
                let took = folder.round(has_names, Some(moment)).await;
                let (written, litter) = folder.check();
                partial += usize::from((1..Folder::FILES).contains(&written));
                left += litter;
                // Other tests affect the duration of a round.
                if written == Folder::FILES {
                    usual = took.expect("it was possible before").min(usual * 2);
                } else {
                    usual = usual.mul_f64(1.02);
                }
            }
            println!(
                "{}: {kills} kills, {partial} in the middle, {left} temporary names left",
                fixture.root().display()
            );
            // Without `/proc` the server cannot tell its guardian where a name is.
            assert!(has_names || left == 0, "the guardian left something behind");
            assert!(partial > kills / 10, "the server was hardly ever killed at work");
        }
    })
    .await;
}

/// Files that are rewritten in every round.
struct Folder {
    dir: PathBuf,
    round: u32,
    /// Their content.
    known: BTreeMap<PathBuf, Vec<u8>>,
    /// The content that the last round tried to write.
    wanted: BTreeMap<PathBuf, Vec<u8>>,
}

impl Folder {
    const SIZES: [usize; 4] = [20, 5_000, 60_000, 400_000];
    /// With each write method, and once with a new name each.
    const FILES: usize = Self::SIZES.len() * How::ALL.len() * 2;

    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), round: 0, known: BTreeMap::new(), wanted: BTreeMap::new() }
    }

    /// Lets a new server write all files, kills it at a random moment, and returns how long it ran.
    async fn round(&mut self, has_names: bool, moment: Option<Duration>) -> Option<Duration> {
        self.round += 1;
        let mut texts = Vec::new();
        for how in How::ALL {
            for size in Self::SIZES {
                for name in [format!("{how:?}{size}"), format!("{how:?}{size}-{}", self.round)] {
                    let path = self.dir.join(name);
                    let content = self.round.to_le_bytes().repeat(size / 4);
                    requests(how, &path, &content, &mut texts);
                    self.wanted.insert(path, content);
                }
            }
        }
        let mut server = match has_names {
            false => TestExecutor::start().await,
            true => server_with_mounts("mount -t tmpfs none /proc").await?,
        };
        let mut client = server.client().await;
        let pid = Pid::from_raw(server.serving_pid().cast_signed()).expect("a process id");
        let started = Instant::now();
        let killer = moment.map(|moment| {
            std::thread::spawn(move || {
                std::thread::sleep(moment);
                kill_process(pid, Signal::KILL).expect("the server runs until then");
            })
        });
        work(&mut client, &texts).await;
        let took = started.elapsed();
        match killer {
            Some(killer) => killer.join().expect("it can be killed"),
            None => kill_process(pid, Signal::KILL).expect("the server runs"),
        }
        server.wait().await;
        Some(took)
    }

    /// Every file has its old or its new content: counts the new ones, and other entries.
    fn check(&mut self) -> (usize, usize) {
        let mut written = 0;
        for (path, wanted) in std::mem::take(&mut self.wanted) {
            let now = std::fs::read(&path).ok();
            let is_new = now.as_ref() == Some(&wanted);
            assert!(is_new || now.as_ref() == self.known.get(&path), "{} is torn", path.display());
            written += usize::from(is_new);
            self.known.extend(now.map(|now| (path, now)));
        }
        let mut litter = 0;
        for name in names(&self.dir) {
            let path = self.dir.join(&name);
            let is_temporary = name.starts_with(".exec-server-") && name.ends_with(".tmp");
            assert!(is_temporary || self.known.contains_key(&path), "what is {name}?");
            // Names that are used once are checked already.
            if is_temporary || name.contains('-') {
                std::fs::remove_file(&path).expect("it is there");
                self.known.remove(&path);
            }
            litter += usize::from(is_temporary);
        }
        (written, litter)
    }
}

/// The requests for one file.
pub fn requests(how: How, path: &Path, content: &[u8], texts: &mut Vec<String>) {
    let mut ask = |method: &str, params: Value| {
        let id = texts.len() + 1000;
        texts.push(json!({"id": id, "method": method, "params": params}).to_string());
    };
    if how == How::Whole {
        let params = json!({"path": uri(path), "dataBase64": base64::encode(content)});
        return ask("fs/writeFile", params);
    }
    let handle = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
    ask("fs/open", json!({"handleId": handle, "path": uri(path), "mode": "replace"}));
    // Backwards, so that what is written first does not look finished.
    for (number, block) in content.chunks(100_000).enumerate().rev() {
        let chunk = base64::encode(block);
        let params = json!({"handleId": handle, "offset": number * 100_000, "chunk": chunk});
        ask("fs/writeBlock", params);
    }
    ask("fs/close", json!({"handleId": handle}));
}

/// Sends all requests and reads all replies; returns whether the server survived.
pub async fn work(client: &mut TestClient, texts: &[String]) -> bool {
    let mut open = 0;
    for text in texts {
        if !client.try_send_text(text.clone()).await {
            return false;
        }
        open += 1;
        // Blocks must follow the open, and the close is awaited.
        let is_last = std::ptr::eq(text, &texts[texts.len() - 1]);
        while open > 0 && (is_last || text.contains("\"fs/open\"")) {
            let Some(Ok(_)) = client.raw_message().await else { return false };
            open -= 1;
        }
    }
    true
}

/// A deterministic random number generator.
struct Random(Cell<u64>);

impl Random {
    fn next_below(&self, limit: u64) -> u64 {
        let next = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(next);
        let mut mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
