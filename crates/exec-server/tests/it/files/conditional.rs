//! Conditional writes; append and truncate.

use std::os::unix::fs::symlink;
use std::path::Path;

use exec_server_protocol::base64;
use exec_server_testkit::fs_fixture::{code, content, kind, on_each_file_system, uri};
use exec_server_testkit::{TestClient, TestExecutor};
use rustix::fs::IFlags;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::host::{Flagged, make_fifo, names};

#[tokio::test]
async fn if_absent_creates_and_never_replaces() {
    on_each_file_system(async |fixture| {
        let absent = json!({"ifAbsent": true});
        fixture.write("f", b"first", absent.clone()).await.unwrap();
        symlink("f", fixture.path("l")).unwrap();
        for name in ["f", "l"] {
            let refused = fixture.write(name, b"second", absent.clone()).await;
            assert_eq!(code(refused), (-32603, "EEXIST".into()));
        }
        let open = json!({"handleId": "h", "mode": "replace", "ifAbsent": true});
        assert_eq!(code(fixture.call("fs/open", "f", open.clone()).await).1, "EEXIST");
        // The condition is checked when the content is published.
        fixture.call("fs/open", "g", open).await.unwrap();
        fixture.put("g", "somebody else");
        let refused = fixture.client.call("fs/close", json!({"handleId": "h"})).await;
        assert_eq!(code(refused), (-32603, "EEXIST".into()));
        assert_eq!(
            (fixture.get("f"), fixture.get("g")),
            (b"first".to_vec(), b"somebody else".to_vec())
        );
        assert_eq!(names(fixture.root()), ["f", "g", "l"]);
    })
    .await;
}

#[tokio::test]
async fn of_many_who_create_or_replace_at_once_exactly_one_wins() {
    on_each_file_system(async |fixture| {
        let mut clients = clients(&fixture.server, 16).await;
        for round in 0..10 {
            let name = format!("f{round}");
            let path = fixture.path(&name);
            for is_first in [true, false] {
                let tag = match is_first {
                    true => Value::Null,
                    false => tag(&mut fixture.client, &path).await,
                };
                let mut asked = Vec::new();
                for (number, client) in clients.iter_mut().enumerate() {
                    let data = base64::encode(&vec![number as u8; 10_000]);
                    let params = json!({
                        "path": fixture.uri(&name), "dataBase64": data, "ifAbsent": is_first, "ifMatch": tag,
                    });
                    asked.push(client.send("fs/writeFile", params).await);
                }
                let mut winners = Vec::new();
                for (number, id) in asked.into_iter().enumerate() {
                    match clients[number].reply(id).await {
                        Ok(answer) => {
                            assert_eq!(answer, json!({}));
                            winners.push(number as u8);
                        }
                        Err(error) if is_first => assert_eq!(error["data"]["errno"], "EEXIST"),
                        Err(error) => assert_eq!(error["data"]["kind"], "version_mismatch"),
                    }
                }
                assert_eq!(winners.len(), 1, "{winners:?}");
                assert!(fixture.get(&name) == [winners[0]; 10_000]);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn if_match_replaces_only_the_version_that_is_meant() {
    on_each_file_system(async |fixture| {
        let mismatch = (-32600, "version_mismatch".to_owned());
        let path = fixture.put("f", "old");
        let read = fixture.call("fs/readFile", "f", json!({"detailed": true})).await.unwrap();
        let first = read["versionTag"].clone();
        assert_eq!(first, tag(&mut fixture.client, &path).await);
        for wrong in ["", "x", &format!("{}0", first.as_str().unwrap())] {
            let refused = fixture.write("f", b"x", json!({"ifMatch": wrong})).await;
            assert_eq!(kind(refused), mismatch);
        }
        assert_eq!(kind(fixture.write("no", b"x", json!({"ifMatch": first})).await), mismatch);
        let more = json!({"ifMatch": first, "detailed": true});
        let written = fixture.write("f", b"new", more.clone()).await.unwrap();
        let second = tag(&mut fixture.client, &path).await;
        assert_eq!(written, json!({"size": 3, "versionTag": second}));
        assert_eq!(kind(fixture.write("f", b"x", more.clone()).await), mismatch);
        for method in ["fs/append", "fs/truncate"] {
            let params = json!({"dataBase64": "eA==", "size": 1, "ifMatch": first});
            assert_eq!(kind(fixture.call(method, "f", params).await), mismatch);
        }
        // The version is checked when the content is published.
        let open = json!({"handleId": "h", "mode": "replace", "ifMatch": second, "detailed": true});
        fixture.call("fs/open", "f", open).await.unwrap();
        fixture.put("f", "changed");
        let refused = fixture.client.call("fs/close", json!({"handleId": "h"})).await;
        assert_eq!(kind(refused), mismatch);
        assert_eq!(fixture.get("f"), b"changed");
        assert_eq!(names(fixture.root()), ["f"]);
    })
    .await;
}

#[tokio::test]
async fn a_counter_that_many_count_up_loses_nothing() {
    const CLIENTS: usize = 8;
    const EACH: usize = 25;
    on_each_file_system(async |fixture| {
        // Also in place, where only the version distinguishes two contents.
        for links in [1, 2] {
            let path = fixture.put(&format!("counter{links}"), "0");
            if links == 2 {
                std::fs::hard_link(&path, fixture.path("other name")).unwrap();
            }
            let mut counting = JoinSet::new();
            for (number, mut client) in
                clients(&fixture.server, CLIENTS).await.into_iter().enumerate()
            {
                let is_other = links == 2 && number % 2 == 1;
                let path = if is_other { fixture.path("other name") } else { path.clone() };
                counting.spawn(async move { count_up(&mut client, &path, EACH).await });
            }
            counting.join_all().await;
            assert_eq!(std::fs::read_to_string(&path).unwrap(), (CLIENTS * EACH).to_string());
        }
    })
    .await;
}

async fn count_up(client: &mut TestClient, path: &Path, times: usize) {
    let params = json!({"path": uri(path), "detailed": true});
    for _ in 0..times {
        let mut known = client.call("fs/readFile", params.clone()).await.unwrap();
        loop {
            // A reader of an in-place write may see partial content; the version tag reveals it.
            let text = String::from_utf8(content(&known["dataBase64"])).unwrap();
            let next = text.parse::<u64>().unwrap_or_default() + 1;
            let write = json!({
                "path": uri(path), "dataBase64": base64::encode(next.to_string().as_bytes()),
                "ifMatch": known["versionTag"],
            });
            match client.call("fs/writeFile", write).await {
                Ok(_) => break,
                Err(error) => assert_eq!(error["data"]["kind"], "version_mismatch"),
            }
            known = client.call("fs/readFile", params.clone()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn the_version_in_an_answer_is_the_one_that_was_written() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        let path = fixture.path("f");
        let mut others = clients(&fixture.server, 2).await;
        for round in 0..300 {
            let data = base64::encode(b"mine");
            let params = json!({"path": uri(&path), "dataBase64": data, "detailed": true});
            let asked = fixture.client.send("fs/writeFile", params).await;
            let mut appended = Vec::new();
            for other in &mut others {
                let params = json!({"path": uri(&path), "dataBase64": "eA=="});
                appended.push(other.send("fs/append", params).await);
            }
            let version = fixture.client.reply(asked).await.unwrap();
            assert_eq!(version["size"], 4, "in round {round} it is about what another made of it");
            for (other, id) in others.iter_mut().zip(appended) {
                other.reply(id).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn appended_lines_never_mix_and_none_is_lost() {
    const EACH: usize = 50;
    on_each_file_system(async |fixture| {
        let path = fixture.path("log");
        let mut appending = JoinSet::new();
        for (number, mut client) in clients(&fixture.server, 8).await.into_iter().enumerate() {
            let path = uri(&path);
            appending.spawn(async move {
                for line in 0..EACH {
                    let text = format!("{number} {line} {}\n", "x".repeat(line * 100));
                    let data = base64::encode(text.as_bytes());
                    let params = json!({"path": path, "dataBase64": data});
                    let answer = client.call("fs/append", params).await.unwrap();
                    assert!(answer["size"].as_u64().unwrap() >= text.len() as u64);
                }
            });
        }
        appending.join_all().await;
        let all = std::fs::read_to_string(&path).unwrap();
        let mut next = [0; 8];
        for line in all.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let (number, line): (usize, usize) =
                (words[0].parse().unwrap(), words[1].parse().unwrap());
            assert_eq!((line, words[2].len()), (next[number], line * 100));
            next[number] += 1;
        }
        assert_eq!(next, [EACH; 8]);
    })
    .await;
}

#[tokio::test]
async fn append_and_truncate_change_the_file_that_is_there() {
    on_each_file_system(async |fixture| {
        let append = |text: &str| json!({"dataBase64": base64::encode(text.as_bytes())});
        let mut only_there = append("x");
        only_there["create"] = json!(false);
        assert_eq!(code(fixture.call("fs/append", "f", only_there.clone()).await).0, -32004);
        assert_eq!(code(fixture.call("fs/truncate", "f", json!({"size": 0})).await).0, -32004);
        assert!(names(fixture.root()).is_empty());
        let made = fixture.call("fs/append", "f", append("one")).await.unwrap();
        assert_eq!(made["size"], 3);
        symlink("f", fixture.path("l")).unwrap();
        symlink("g", fixture.path("dangling")).unwrap();
        fixture.call("fs/append", "l", append(" two")).await.unwrap();
        fixture.call("fs/append", "dangling", append("made")).await.unwrap();
        assert_eq!((fixture.get("f"), fixture.get("g")), (b"one two".to_vec(), b"made".to_vec()));
        for size in [5, 0, 3] {
            let cut = fixture.call("fs/truncate", "l", json!({"size": size})).await.unwrap();
            assert_eq!(cut["size"], size);
            let path = fixture.path("f");
            assert_eq!(cut["versionTag"], tag(&mut fixture.client, &path).await);
        }
        assert_eq!(fixture.get("f"), [0; 3]);
        make_fifo(&fixture.path("fifo"));
        for method in ["fs/append", "fs/truncate"] {
            let mut more = append("x");
            more["size"] = json!(0);
            assert_eq!(code(fixture.call(method, "fifo", more.clone()).await).1, "ENXIO");
            assert_eq!(code(fixture.call(method, "", more.clone()).await).1, "EISDIR");
            let refused = fixture.call(method, "/dev/null", more.clone()).await;
            assert_eq!(kind(refused), (-32600, "not_a_file".into()));
            more["followSymlinks"] = json!(false);
            assert_eq!(code(fixture.call(method, "l", more.clone()).await).1, "ELOOP");
            more["dataBase64"] = json!("?");
            more["size"] = json!(-1);
            assert!(kind(fixture.call(method, "f", more).await).0 < -32599);
        }
        let huge = fixture.call("fs/truncate", "f", json!({"size": 1_u64 << 63})).await;
        assert_eq!(code(huge), (-32600, "EINVAL".into()));
        // An append-only file accepts appends.
        let Some(_flagged) = Flagged::new(&fixture.path("g"), IFlags::APPEND) else { return };
        fixture.call("fs/append", "g", append(" longer")).await.unwrap();
        assert_eq!(fixture.get("g"), b"made longer");
        assert_eq!(code(fixture.call("fs/truncate", "g", json!({"size": 0})).await).1, "EPERM");
    })
    .await;
}

async fn clients(server: &TestExecutor, count: usize) -> Vec<TestClient> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(server.client().await);
    }
    clients
}

async fn tag(client: &mut TestClient, path: &Path) -> Value {
    let params = json!({"path": uri(path), "detailed": true});
    client.call("fs/getMetadata", params).await.unwrap()["versionTag"].take()
}
