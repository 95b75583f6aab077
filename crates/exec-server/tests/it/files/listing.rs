//! `fs/readDirectory`.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_testkit::fs_fixture::{FsFixture, code, content, kind, on_each_file_system};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

#[tokio::test]
async fn names_come_in_the_order_of_the_system() {
    on_each_file_system(async |fixture| {
        for number in 0..40 {
            fixture.put(&format!("{}{number}", if number % 3 == 0 { "." } else { "" }), "");
        }
        std::fs::create_dir(fixture.path("directory")).unwrap();
        let names = names(&list(fixture, "", json!({})).await.unwrap());
        let own = std::fs::read_dir(fixture.root()).unwrap();
        let own = own.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names, own.collect::<Vec<_>>());
        assert!(!names.is_sorted(), "this file system cannot tell");
    })
    .await;
}

#[tokio::test]
async fn links_are_described_by_what_they_lead_to_and_listed_even_if_that_is_nothing() {
    on_each_file_system(async |fixture| {
        fixture.put(".hidden", "x");
        std::fs::create_dir(fixture.path("directory")).unwrap();
        for (link, target) in [
            ("to file", ".hidden"),
            ("to directory", "directory"),
            ("to nothing", "nowhere"),
            ("to itself", "to itself"),
        ] {
            symlink(target, fixture.path(link)).unwrap();
        }
        let listed = list(fixture, "", json!({})).await.unwrap();
        assert_eq!(listed.as_object().unwrap().len(), 1, "only entries: {listed}");
        let flags = |name: &str, is_directory, is_file| {
            let flags = json!({"fileName": name, "isDirectory": is_directory, "isFile": is_file});
            (name.to_owned(), flags)
        };
        let link = |name, is_directory, is_file| {
            let (name, mut flags) = flags(name, is_directory, is_file);
            flags["isSymlink"] = json!(true);
            (name, flags)
        };
        let expected = BTreeMap::from([
            flags(".hidden", false, true),
            flags("directory", true, false),
            link("to file", false, true),
            link("to directory", true, false),
            link("to nothing", false, false),
            link("to itself", false, false),
        ]);
        assert_eq!(by_name(&listed), expected);
    })
    .await;
}

#[tokio::test]
async fn pipes_and_sockets_are_neither_files_nor_directories() {
    on_each_file_system(async |fixture| {
        mknodat(CWD, fixture.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _listener = UnixListener::bind(fixture.path("socket")).unwrap();
        symlink("pipe", fixture.path("link")).unwrap();
        let entries = by_name(&list(fixture, "", json!({})).await.unwrap());
        assert_eq!(entries.len(), 3);
        for (name, entry) in entries {
            let expected = (&json!(false), &json!(false));
            assert_eq!((&entry["isDirectory"], &entry["isFile"]), expected, "{name}");
            assert_eq!(entry.get("isSymlink").is_some(), name == "link");
        }
    })
    .await;
}

#[tokio::test]
async fn names_that_are_not_utf8_can_be_distinguished_and_used() {
    on_each_file_system(async |fixture| {
        let wanted: [&[u8]; 3] = [b"bad-\xfe", b"bad-\xff", "bad-\u{fffd}".as_bytes()];
        for name in wanted {
            let path = fixture.root().join(std::ffi::OsStr::from_bytes(name));
            std::fs::write(path, name).unwrap();
        }
        let listed = list(fixture, "", json!({})).await.unwrap();
        assert_eq!(names(&listed), ["bad-\u{fffd}"; 3]);
        let mut found = Vec::new();
        for entry in listed["entries"].as_array().unwrap() {
            // A UTF-8 name needs no URI.
            let own = fixture.uri(entry["fileName"].as_str().unwrap());
            let uri = entry.get("uri").map_or(own, |uri| uri.as_str().unwrap().to_owned());
            let read = fixture.client.call("fs/readFile", json!({"path": uri})).await.unwrap();
            found.push(content(&read["dataBase64"]));
        }
        found.sort();
        let mut wanted = wanted.map(<[u8]>::to_vec);
        wanted.sort();
        assert_eq!(found, wanted);
    })
    .await;
}

#[tokio::test]
async fn only_directories_and_links_to_them_can_be_listed() {
    on_each_file_system(async |fixture| {
        std::fs::create_dir(fixture.path("directory")).unwrap();
        fixture.put("file", "");
        symlink("directory", fixture.path("link")).unwrap();
        symlink("nowhere", fixture.path("dangling")).unwrap();
        symlink("loop", fixture.path("loop")).unwrap();
        mknodat(CWD, fixture.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let empty = json!({"entries": []});
        assert_eq!(list(fixture, "directory", json!({})).await.unwrap(), empty);
        fixture.put("directory/inside", "");
        assert_eq!(names(&list(fixture, "link", json!({})).await.unwrap()), ["inside"]);
        for more in [json!({}), json!({"limit": 1}), json!({"detailed": true})] {
            for (name, expected) in [
                ("file", (-32603, "ENOTDIR")),
                ("file/below", (-32603, "ENOTDIR")),
                ("pipe", (-32603, "ENOTDIR")),
                ("missing", (-32004, "ENOENT")),
                ("dangling", (-32004, "ENOENT")),
                ("loop", (-32603, "ELOOP")),
            ] {
                let refusal = code(list(fixture, name, more.clone()).await);
                assert_eq!(refusal, (expected.0, expected.1.to_owned()), "{name} {more}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn more_names_than_fit_into_an_answer_come_in_pages() {
    on_each_file_system(async |fixture| {
        let one = fixture.put("n00000", "");
        let add = |number: usize| {
            std::fs::hard_link(&one, fixture.path(&format!("n{number:05}"))).unwrap();
        };
        (1..50_000).for_each(add);
        assert_eq!(names(&list(fixture, "", json!({})).await.unwrap()).len(), 50_000);
        std::fs::hard_link(&one, fixture.path("n50000")).unwrap();
        for more in [json!({}), json!({"detailed": true})] {
            let refusal = kind(list(fixture, "", more).await);
            assert_eq!(refusal, (-32603, "too_many_entries".to_owned()));
        }
        let expected: Vec<_> = (0..=50_000).map(|number| format!("n{number:05}")).collect();
        // Larger pages than an answer holds are cut.
        let first = list(fixture, "", json!({"limit": 1_000_000})).await.unwrap();
        assert!(names(&first) == expected[..50_000]);
        let more = json!({"limit": 1_000_000, "cursor": first["nextCursor"]});
        let second = list(fixture, "", more).await.unwrap();
        assert_eq!(names(&second), ["n50000"]);
        assert!(second.get("nextCursor").is_none());
        let detailed = json!({"limit": 1_000_000, "detailed": true});
        let detailed = list(fixture, "", detailed).await.unwrap();
        assert!(names(&detailed) == expected[..10_000]);
        assert!(detailed.get("nextCursor").is_some());
    })
    .await;
}

#[tokio::test]
async fn pages_hold_every_name_once_while_others_come_and_go() {
    on_each_file_system(async |fixture| {
        let stays: Vec<Vec<u8>> = (0..60u8).map(|n| vec![b's', 200 - n, b'x']).collect();
        let path = |name: &[u8]| fixture.root().join(std::ffi::OsStr::from_bytes(name));
        let make = |name: &[u8]| std::fs::write(path(name), "").unwrap();
        stays.iter().for_each(|name| make(name));
        (0..30).for_each(|n| make(format!("goes{n:02}").as_bytes()));
        let root = fixture.root().to_owned();
        let (mut seen, mut cursor, mut pages) = (Vec::new(), Value::Null, 0);
        loop {
            let more = json!({"limit": 7, "cursor": cursor, "detailed": true});
            let page = list(fixture, "", more).await.unwrap();
            let entries = page["entries"].as_array().unwrap();
            assert!(entries.len() <= 7);
            seen.extend(entries.iter().map(|entry| name_in_uri(&root, entry)));
            let Some(next) = page.get("nextCursor") else { break };
            assert_eq!(entries.len(), 7, "only the last page may be short");
            cursor = next.clone();
            pages += 1;
            // Changes before and after the cursor, and to the cursor's own name.
            for name in [format!("a{pages}"), format!("sz{pages}"), format!("z{pages}")] {
                std::fs::write(root.join(name), "").unwrap();
            }
            let _ = std::fs::remove_file(root.join(format!("goes{:02}", pages * 7 - 1)));
            let _ = std::fs::remove_file(root.join(format!("goes{:02}", 29 - pages)));
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "sorted by bytes, each once");
        assert!(pages > 8, "{pages}");
        for name in stays {
            assert!(seen.contains(&name), "{name:?}");
        }
        assert!(seen.contains(&b"z1".to_vec()), "what comes behind the cursor is seen");
    })
    .await;
}

#[tokio::test]
async fn invalid_page_params_are_rejected() {
    on_each_file_system(async |fixture| {
        fixture.put("f", "");
        for more in [
            json!({"limit": 0}),
            json!({"limit": -1}),
            json!({"limit": 1.5}),
            json!({"limit": "1"}),
            json!({"cursor": "?"}),
            json!({"cursor": ""}),
            json!({"cursor": "Zg"}),
            json!({"cursor": 1}),
            json!({"limit": 0, "cursor": "Zg=="}),
            json!({"detailed": "yes"}),
        ] {
            // Independent of whether the directory exists.
            for name in ["", "missing"] {
                let refusal = kind(list(fixture, name, more.clone()).await);
                assert_eq!(refusal, (-32602, "invalid_params".to_owned()), "{more}");
            }
        }
        let nulls = json!({"limit": null, "cursor": null, "detailed": null, "sandbox": null});
        assert_eq!(names(&list(fixture, "", nulls).await.unwrap()), ["f"]);
        // A page that ends with the last name has no next one.
        let page = list(fixture, "", json!({"limit": 1})).await.unwrap();
        assert_eq!((names(&page).len(), page.get("nextCursor")), (1, None));
    })
    .await;
}

#[tokio::test]
async fn a_detailed_listing_matches_get_metadata() {
    on_each_file_system(async |fixture| {
        fixture.put("file", "twelve bytes");
        fixture.put("späce in it", "");
        std::fs::create_dir(fixture.path("directory")).unwrap();
        mknodat(CWD, fixture.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        symlink("file", fixture.path("to file")).unwrap();
        symlink("nowhere", fixture.path("to nothing")).unwrap();
        let entries = by_name(&list(fixture, "", json!({"detailed": true})).await.unwrap());
        assert_eq!(entries.len(), 6);
        for (name, entry) in &entries {
            assert_eq!(entry["uri"], fixture.uri(name));
            let follow = name != "to nothing";
            let params = json!({"path": entry["uri"], "followSymlinks": follow, "detailed": true});
            let own = fixture.client.call("fs/getMetadata", params).await.unwrap();
            assert_eq!(entry["metadata"], own, "{name}");
            let is_link = name.starts_with("to ");
            assert_eq!(entry.get("isSymlink").is_some(), is_link, "{name}");
        }
        assert_eq!(entries["file"]["metadata"]["size"], 12);
        assert_eq!(entries["to file"]["metadata"]["linkTarget"], "file");
        assert_eq!(entries["to nothing"]["metadata"]["linkTarget"], "nowhere");
        assert_eq!(entries["to nothing"]["metadata"]["kind"], "symlink");
    })
    .await;
}

async fn list(fixture: &mut FsFixture, name: &str, more: Value) -> Result<Value, Value> {
    fixture.call("fs/readDirectory", name, more).await
}

fn names(listed: &Value) -> Vec<String> {
    let entries = listed["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["fileName"].as_str().unwrap().to_owned()).collect()
}

fn by_name(listed: &Value) -> BTreeMap<String, Value> {
    names(listed).into_iter().zip(listed["entries"].as_array().unwrap().iter().cloned()).collect()
}

/// Exact bytes of a name, taken from its URI.
fn name_in_uri(root: &Path, entry: &Value) -> Vec<u8> {
    let uri = PathUri::parse(entry["uri"].as_str().unwrap());
    let path = uri.unwrap().to_posix(NativePaths::Reject).unwrap();
    path.strip_prefix(root.as_os_str().as_bytes()).unwrap()[1..].to_vec()
}
